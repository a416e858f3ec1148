//! What came of the rounds: medians with their ranges and ratios, as Markdown and as JSON.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use clap::ValueEnum;
use serde_json::{Value, json};

use super::measure::median;
use super::peers::Peer;

use super::metric::Metric;
use super::payload::{Payload, RequestForm};
use super::workloads::Workload;

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

    /// What a proxy has, or adds, round by round.
    fn own(&self, workload: Workload, peer: Peer, metric: usize) -> Option<Vec<f64>> {
        let all = self.of(workload, peer, metric)?;
        let is_added = workload.metrics()[metric].is_added();
        let direct = is_added.then(|| self.of(workload, Peer::Direct, metric));
        let direct = direct.flatten().map_or(0.0, median);
        Some(all.iter().map(|value| value - direct).collect())
    }

    /// The ratio of what a proxy has, or adds, to what the yardstick does in the same turn; the median of those of all turns,
    /// none if in one of them either adds nothing to speak of. Medians of each alone would compare rounds of one pace of the
    /// machine with rounds of another.
    fn ratio(&self, workload: Workload, peer: Peer, metric: usize) -> Option<f64> {
        let one = self.own(workload, peer, metric)?;
        let yardstick = self.own(workload, YARDSTICK, metric)?;
        let plain = !matches!(peer, Peer::Haproxy | Peer::Direct);
        let speaks = plain && one.iter().chain(&yardstick).all(|value| *value > 0.0);
        let turns = one.iter().zip(&yardstick).map(|(one, other)| one / other);
        speaks.then(|| median(&turns.collect::<Vec<_>>()))
    }

    /// How many times the load of one core two cores carry, by the CPU that the same load takes on both.
    fn two_cores(&self, peer: Peer) -> Option<f64> {
        let one = median(self.of(Workload::Tokens, peer, 0)?);
        let two = median(self.of(Workload::TwoThreads, peer, 0)?);
        (peer != Peer::Direct).then(|| 2.0 * one / two)
    }

    /// What the first metric of `workload` (CPU per event, or memory per stream) is with continuation on, × off, turn by turn.
    fn continuing(&self, workload: Workload) -> Option<f64> {
        let off = self.of(workload, Peer::Crossfade, 0)?;
        let on = self.of(workload, Peer::CrossfadeContinuing, 0)?;
        let turns = on.iter().zip(off).map(|(on, off)| on / off);
        Some(median(&turns.collect::<Vec<_>>()))
    }

    /// Bytes that continuation adds to an idle stream, and what of that is neither its text nor its request's body. Each stream has
    /// had one event when its memory is measured.
    fn kept_per_stream(&self) -> Option<[f64; 2]> {
        let off = self.of(Workload::Idle, Peer::Crossfade, 0)?;
        let on = self.of(Workload::Idle, Peer::CrossfadeContinuing, 0)?;
        let turns = on.iter().zip(off).map(|(on, off)| (on - off) * 1024.0);
        let added = median(&turns.collect::<Vec<_>>());
        let payload = Payload::new();
        let known = payload.text() + payload.prompt(RequestForm::Paced).len();
        Some([added, added - known as f64])
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
                for peer in &peers {
                    let values = self.of(workload, *peer, index);
                    let ratio = self.ratio(workload, *peer, index);
                    let cell = values.map(|values| cell(values, ratio));
                    let _ = write!(text, " {} |", cell.unwrap_or_default());
                }
                text.push('\n');
            }
        }
        if peers.iter().any(|peer| self.two_cores(*peer).is_some()) {
            text.push_str("| | two cores carry, × one |");
            for peer in &peers {
                let cell = self.two_cores(*peer).map(short);
                let _ = write!(text, " {} |", cell.unwrap_or_default());
            }
            text.push('\n');
        }
        for workload in Workload::value_variants() {
            if let Some(ratio) = self.continuing(*workload) {
                let (name, label) = (workload.name(), workload.metrics()[0].label());
                let _ = writeln!(text, "\n{name}: {label}, continuation on × off: {ratio:.3}");
            }
        }
        if let Some([added, rest]) = self.kept_per_stream() {
            let _ = writeln!(
                text,
                "\nidle: continuation adds {added:.0} bytes to a stream, {rest:.0} without its text and its request's body"
            );
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
            for (index, values) in metrics.iter().enumerate() {
                let metric = workload.metrics()[index];
                let (low, high) = range(values);
                let one = &mut entry["metrics"][metric.key()];
                one["label"] = json!(metric.label());
                one["peers"][peer.name()] = json!({
                    "median": median(values), "min": low, "max": high, "rounds": values,
                    "of_haproxy": self.ratio(*workload, *peer, index)
                });
            }
            if let Some(times) = self
                .two_cores(*peer)
                .filter(|_| *workload == Workload::TwoThreads)
            {
                entry["two_cores_carry"][peer.name()] = json!(times);
            }
            if let Some(ratio) = self.continuing(*workload) {
                entry["continuation_on_over_off"] = json!(ratio);
            }
            if let Some([added, rest]) = self
                .kept_per_stream()
                .filter(|_| *workload == Workload::Idle)
            {
                entry["continuation_bytes_per_stream"] =
                    json!({"added": added, "without_text_and_body": rest});
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

fn cell(values: &[f64], ratio: Option<f64>) -> String {
    let (low, high) = range(values);
    let mut text = short(median(values));
    if values.len() > 1 {
        let _ = write!(text, " ({}–{})", short(low), short(high));
    }
    if let Some(ratio) = ratio {
        let _ = write!(text, " **×{ratio:.2}**");
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
