//! What came of the rounds: medians with their ranges and ratios, as Markdown and as JSON.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde_json::{Value, json};

use super::measure::median;
use super::peers::Peer;
use super::workloads::{Metric, Workload};

/// What others are compared with.
const YARDSTICK: Peer = Peer::Haproxy;

#[derive(Default)]
pub struct Results {
    values: BTreeMap<(Workload, Peer), Vec<Vec<f64>>>,
    shares: BTreeMap<(Workload, Peer), Vec<f64>>,
    pub failures: Vec<String>,
    /// Rounds that were kept although others were busy.
    pub disturbed: Vec<String>,
    /// Rounds that were thrown away.
    pub discarded: usize,
}

impl Results {
    pub fn add(&mut self, workload: Workload, peer: Peer, values: &[(Metric, f64)], share: f64) {
        let all = self.values.entry((workload, peer)).or_default();
        all.resize(values.len(), Vec::new());
        for (place, (_, value)) in all.iter_mut().zip(values) {
            place.push(*value);
        }
        self.shares.entry((workload, peer)).or_default().push(share);
    }

    fn of(&self, workload: Workload, peer: Peer, metric: usize) -> Option<&[f64]> {
        self.values
            .get(&(workload, peer))?
            .get(metric)
            .map(Vec::as_slice)
    }

    /// A table per workload, with ratios to the yardstick.
    pub fn markdown(&self) -> String {
        let peers: Vec<Peer> = Peer::ALL
            .into_iter()
            .filter(|peer| self.values.keys().any(|(_, one)| one == peer))
            .collect();
        let mut text = String::from("| workload | |");
        for peer in &peers {
            let _ = write!(text, " {} |", peer.name());
        }
        let _ = write!(text, "\n| --- | --- |{}\n", " --: |".repeat(peers.len()));
        let mut workloads: Vec<Workload> = self.values.keys().map(|(one, _)| *one).collect();
        workloads.dedup();
        for workload in workloads {
            for (index, metric) in workload.metrics().iter().enumerate() {
                let name = if index == 0 { workload.name() } else { "" };
                let _ = write!(text, "| {name} | {} |", metric.label());
                let yardstick = self.of(workload, YARDSTICK, index).map(median);
                for peer in &peers {
                    let cell = self.of(workload, *peer, index).map(|values| {
                        let ratio =
                            yardstick.filter(|_| !matches!(peer, Peer::Haproxy | Peer::Direct));
                        cell(values, ratio)
                    });
                    let _ = write!(text, " {} |", cell.unwrap_or_default());
                }
                text.push('\n');
            }
        }
        text
    }

    pub fn json(&self) -> Value {
        let mut all = serde_json::Map::new();
        for ((workload, peer), metrics) in &self.values {
            let entry = all
                .entry(workload.name())
                .or_insert_with(|| json!({"about": workload.about(), "metrics": {}}));
            entry["share_of_new"][peer.name()] = json!(self.shares[&(*workload, *peer)]);
            for (metric, values) in workload.metrics().iter().zip(metrics) {
                let (low, high) = range(values);
                let one = &mut entry["metrics"][metric.key()];
                one["label"] = json!(metric.label());
                let mut numbers =
                    json!({"median": median(values), "min": low, "max": high, "rounds": values});
                let index = workload.metrics().iter().position(|other| other == metric);
                let yardstick = index.and_then(|index| self.of(*workload, YARDSTICK, index));
                if let Some(yardstick) = yardstick {
                    numbers["of_haproxy"] = json!(median(values) / median(yardstick));
                }
                one["peers"][peer.name()] = numbers;
            }
        }
        json!({
            "workloads": all, "failures": self.failures,
            "disturbed_rounds_kept": self.disturbed, "disturbed_rounds_discarded": self.discarded
        })
    }
}

fn range(values: &[f64]) -> (f64, f64) {
    let low = values.iter().copied().fold(f64::INFINITY, f64::min);
    (
        low,
        values.iter().copied().fold(f64::NEG_INFINITY, f64::max),
    )
}

fn cell(values: &[f64], yardstick: Option<f64>) -> String {
    let (low, high) = range(values);
    let mut text = short(median(values));
    if values.len() > 1 {
        let _ = write!(text, " ({}–{})", short(low), short(high));
    }
    if let Some(yardstick) = yardstick.filter(|yardstick| *yardstick > 0.0) {
        let _ = write!(text, " **×{:.2}**", median(values) / yardstick);
    }
    text
}

fn short(value: f64) -> String {
    match value.abs() {
        large if large >= 10_000.0 => format!("{:.1}k", value / 1000.0),
        large if large >= 100.0 => format!("{value:.0}"),
        large if large >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}
