//! Observes, acts and advances time until the rollout ends, or until it is clear that it never will.

use std::mem::discriminant;
use std::time::Duration;

use super::{
    Row, Sample, Scenario, SimulationEnd, SimulationReport, Totals, Waited,
    cluster::{Cluster, Counts},
};
use crate::printable::{counted, thousands};
use crate::scaling::{Progress, Retire, ScalingAction, ScalingDecision, Sizes, Wait, decide};
use crate::split::Generation;

/// Maximum duration of a rollout, in seconds: longer ones count as never ending.
const LONGEST: u64 = 30 * 86_400;

/// Simulates a rollout.
#[must_use]
pub fn run(scenario: &Scenario) -> SimulationReport {
    let mut run = Run {
        patience: patience(scenario),
        gpus_peak: 0,
        rows: Vec::new(),
        waits: Vec::new(),
        samples: Vec::new(),
    };
    let mut cluster = Cluster::of(scenario);
    let gpus_before = cluster.gpus_of(Generation::Old);
    let mut acted_at = 0;
    let ended = loop {
        let decision = decide(&scenario.settings, &cluster.read());
        run.sample(&cluster, &decision);
        if let Some(action) = &decision.action {
            cluster.apply(action);
            run.acted(&cluster, action_text(action));
            acted_at = cluster.now;
        } else if decision.waits == [Wait::Clients] {
            cluster.service = Generation::New;
            let action = "the owner routes clients to new's frontends";
            run.acted(&cluster, Some(action.to_owned()));
            acted_at = cluster.now;
        } else if is_over(&decision) {
            break SimulationEnd::At(decision.progress);
        } else if is_final(&decision) || cluster.now - acted_at > run.patience {
            let waits = decision.waits.iter().map(ToString::to_string);
            break SimulationEnd::Never(decision.progress, waits.collect());
        }
        run.waited(&decision);
        cluster.draining = draining(&decision);
        cluster.tick();
    };
    run.end(&cluster, ended, gpus_before)
}

/// The time without any change after which nothing more is expected to happen.
fn patience(scenario: &Scenario) -> u64 {
    let strategy = &scenario.settings.strategy;
    let holds = strategy.steps.iter().map(|step| step.hold);
    let waits = [
        scenario.startup + scenario.stable,
        2 * scenario.stream_p99,
        scenario.grace,
        scenario.quiet,
        scenario.apply,
        strategy.step_interval,
        strategy.drain_deadline.unwrap_or_default(),
        scenario
            .analysis
            .map(|samples| samples.window)
            .unwrap_or_default(),
    ];
    let longest = waits.into_iter().chain(holds).max().unwrap_or_default();
    (2 * longest.as_secs() + 600).min(LONGEST)
}

const fn is_over(decision: &ScalingDecision) -> bool {
    matches!(
        decision.progress,
        Progress::Complete | Progress::Partition | Progress::RolledBack
    )
}

/// Whether nothing that happens by itself can change this.
fn is_final(decision: &ScalingDecision) -> bool {
    let is_still = matches!(
        decision.progress,
        Progress::Refused | Progress::Held | Progress::Contested
    );
    is_still || decision.waits.contains(&Wait::Infeasible)
}

/// The generation whose streams the next step waits for.
fn draining(decision: &ScalingDecision) -> Option<Generation> {
    decision.waits.iter().find_map(|wait| match wait {
        Wait::Streams { generation, .. } => Some(*generation),
        Wait::LastWorker => Some(Generation::Old),
        _ => None,
    })
}

/// A run so far.
struct Run {
    patience: u64,
    gpus_peak: u64,
    rows: Vec<Row>,
    /// The waits since the last row.
    waits: Vec<(Wait, Waited)>,
    samples: Vec<Sample>,
}

impl Run {
    /// Records the current state, if it has changed.
    fn sample(&mut self, cluster: &Cluster, decision: &ScalingDecision) {
        let sample = Sample {
            at: Duration::from_secs(cluster.now),
            desired: decision.desired,
            ready: decision.ready,
            split: cluster.applied,
            gpus: cluster.gpus(),
        };
        self.gpus_peak = self.gpus_peak.max(sample.gpus);
        let is_changed = self.samples.last().is_none_or(|last| {
            let at = last.at;
            Sample { at, ..sample } != *last
        });
        if is_changed {
            self.samples.push(sample);
        }
    }

    fn acted(&mut self, cluster: &Cluster, action: Option<String>) {
        let Some(action) = action else {
            return;
        };
        self.close();
        let seen = decide(&cluster.scenario.settings, &cluster.read());
        self.gpus_peak = self.gpus_peak.max(cluster.gpus());
        self.rows.push(Row {
            at: Duration::from_secs(cluster.now),
            action,
            desired: seen.desired,
            ready: seen.ready,
            split: cluster.split,
            gpus: cluster.gpus(),
            waits: Vec::new(),
        });
    }

    /// Assigns the waits since the last row to that row.
    fn close(&mut self) {
        let mut waits = std::mem::take(&mut self.waits);
        let of_ready = |(wait, waited): &(Wait, Waited)| match wait {
            Wait::Ready { .. } => Some(waited.time),
            _ => None,
        };
        let ready = waits.iter().find_map(of_ready).unwrap_or_default();
        // There will be room once workers are ready, so until then, the rollout does not wait for room.
        waits.retain(|(wait, waited)| !wait.is_room() || waited.time > ready);
        if let Some(row) = self.rows.last_mut() {
            row.waits = waits.into_iter().map(|(_, waited)| waited).collect();
        }
    }

    fn waited(&mut self, decision: &ScalingDecision) {
        let second = Duration::from_secs(1);
        for wait in &decision.waits {
            // The status reflects a write at the next observation.
            if matches!(wait, Wait::Unobserved(..)) {
                continue;
            }
            let known = self.waits.iter_mut();
            let mut same = known.filter(|(known, _)| discriminant(known) == discriminant(wait));
            match same.next() {
                Some((_, waited)) => waited.time += second,
                None => {
                    let what = wait.to_string();
                    self.waits
                        .push((wait.clone(), Waited { what, time: second }));
                }
            }
        }
    }

    fn end(
        mut self,
        cluster: &Cluster,
        ended: SimulationEnd,
        gpus_before: u64,
    ) -> SimulationReport {
        self.close();
        let time = Duration::from_secs(cluster.now);
        let hours = |gpu_seconds: u64| gpu_seconds as f64 / 3600.0;
        let totals = Totals {
            time,
            gpu_hours: hours(cluster.gpu_seconds),
            gpu_hours_of_old: hours(gpus_before * cluster.now),
            gpus_before,
            gpus_peak: self.gpus_peak,
            streams_begun: 0,
            streams_moved: 0,
            streams_waited_for: 0,
            streams_cut: 0,
            requests_refused: 0,
        };
        SimulationReport {
            rows: self.rows,
            samples: self.samples,
            ended,
            totals: totals.streams(cluster.counts),
            notes: notes(cluster),
        }
    }
}

/// Notes for its owner.
fn notes(cluster: &Cluster) -> Vec<String> {
    let scenario = cluster.scenario;
    let mut notes = Vec::new();
    let Counts { cut, refused, .. } = cluster.counts;
    if cut > 0 {
        let grace = thousands(scenario.grace.as_secs());
        let (were, they) = if cut == 1 {
            ("was", "it")
        } else {
            ("were", "they")
        };
        notes.push(format!(
            "{} {were} cut, because {they} lasted longer than the worker's terminationGracePeriodSeconds ({grace} s): raise it, or \
             enable continuation",
            counted(cut, "stream")
        ));
    }
    if refused > 0 {
        let requests = counted(refused, "request");
        notes.push(format!("{requests} found no ready worker"));
    }
    if scenario.startup >= scenario.settings.strategy.ready_timeout {
        notes.push(
            "workers take longer to start than readyTimeoutSeconds: the rollout will be reported as stalled meanwhile"
                .to_owned(),
        );
    }
    let each = cluster.arrivals.stands_for;
    if each > 1 {
        notes.push(format!("streams are modelled in groups of {each}"));
    }
    notes
}

/// Describes an action; `None` if it is not relevant for the owner.
fn action_text(action: &ScalingAction) -> Option<String> {
    let sizes = |sizes: &Sizes| match sizes.len() {
        1 => sizes.values().map(u32::to_string).collect(),
        _ => {
            let each = sizes.iter().map(|(role, size)| format!("{role} {size}"));
            each.collect::<Vec<_>>().join(", ")
        }
    };
    Some(match action {
        ScalingAction::Split(split) => {
            format!("split old {} : new {}", split.old(), split.new_weight())
        }
        ScalingAction::Grow {
            generation,
            sizes: to,
        } => format!("grow {generation} to {}", sizes(to)),
        ScalingAction::Shrink {
            generation,
            sizes: to,
        } => format!("shrink {generation} to {}", sizes(to)),
        ScalingAction::Mark { .. } | ScalingAction::Replace { .. } => return None,
        ScalingAction::SaveSelector => "save the selector of clientService".to_owned(),
        ScalingAction::Retarget(generation) => {
            format!("route clients to the frontends of {generation}")
        }
        ScalingAction::Retire(retire) => match retire {
            Retire::Delete => "delete old".to_owned(),
            _ => "scale the frontends of old to zero".to_owned(),
        },
    })
}
