//! The figures of both generations in the last minutes.

use super::{Page, SMALL_BAR};
use crate::printable::{latency, percent};
use crate::state_api::v1;
use crate::status::format::bar;
use crate::telemetry::latency::Sketch;

/// The width of a cell with a bar.
const CELL: usize = 13 + SMALL_BAR;
const FEW: &str = "not enough data";

impl Page {
    pub(super) fn recent(&mut self, generations: [&v1::Generation; 2]) {
        self.window(
            "LAST MINUTE",
            generations.map(|generation| generation.last_minute.as_ref()),
            &[("p95", 0.95)],
        );
        self.window(
            "LAST 5 MINUTES",
            generations.map(|generation| generation.last_five_minutes.as_ref()),
            &[("p50", 0.5), ("p95", 0.95), ("p99", 0.99)],
        );
    }

    fn window(
        &mut self,
        name: &str,
        generations: [Option<&v1::Recent>; 2],
        quantiles: &[(&str, f64)],
    ) {
        // An older proxy does not report it.
        if generations.iter().all(Option::is_none) {
            return;
        }
        self.gap();
        self.row(name, ["OLD", "NEW"].map(str::to_owned));
        let rate = |generation: Option<&v1::Recent>| {
            let rate = generation.and_then(v1::Recent::requests_per_second);
            rate.map_or("-".to_owned(), |rate| format!("{rate:.1} /s"))
        };
        let errors = |generation: Option<&v1::Recent>| {
            let errors = generation.and_then(v1::Recent::error_ratio);
            errors.map_or(FEW.to_owned(), percent)
        };
        self.row("requests", generations.map(rate));
        self.row("errors", generations.map(errors));
        let latencies = |of: fn(&v1::Recent) -> Option<&v1::Latencies>| {
            generations.map(|generation| generation.and_then(of).map(Sketch::from))
        };
        let first_event = latencies(|generation| generation.first_event.as_ref());
        let gap = latencies(|generation| generation.gap.as_ref());
        self.quantiles("first token", &first_event, quantiles);
        self.quantiles("token gap", &gap, quantiles);
    }

    fn quantiles(
        &mut self,
        name: &str,
        generations: &[Option<Sketch>; 2],
        quantiles: &[(&str, f64)],
    ) {
        let at = |q| {
            generations.each_ref().map(|generation| {
                generation
                    .as_ref()
                    .and_then(|times| times.reliable_quantile(q))
            })
        };
        let most = at(0.99).into_iter().flatten().fold(0.0, f64::max);
        for (index, (quantile, q)) in quantiles.iter().enumerate() {
            let [old, new] = at(*q).map(|value| match value {
                None => format!("{FEW:>CELL$}"),
                Some(value) => {
                    let filled = value / most.max(f64::MIN_POSITIVE);
                    format!("{:>12} {}", latency(value), bar(filled, SMALL_BAR))
                }
            });
            let name = if index == 0 { name } else { "" };
            self.put(0, &format!("{name:<13}{quantile:<5}{old} {new}"));
        }
    }
}
