//! Analyses new by the counts of this process if no controller does so, and sends all requests to old if new fails.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::mpsc;

use super::SourceEvent;
use crate::analysis::{Counts, Memory, Outcomes, Report, Verdict};
use crate::resource::{Analysis, OnFailure, Plan, TargetAddress};
use crate::snapshot::{SnapshotStore, Status};
use crate::telemetry::Metrics;

/// The time between two interim looks at the failures, which find a crash.
const INTERIM: Duration = Duration::from_millis(50);
/// The time between two looks.
const LATENCY_INTERVAL: Duration = Duration::from_millis(500);

/// The subject of an analysis. A different new generation, or different margins, start another one.
#[derive(Clone, PartialEq)]
struct AnalyzedGeneration {
    new: Vec<TargetAddress>,
    analysis: Analysis,
}

impl AnalyzedGeneration {
    fn of(plan: &Plan) -> Option<Self> {
        // The consequence of a failure is not a margin.
        let analysis = plan.analysis.clone().map(|analysis| Analysis {
            on_failure: OnFailure::Hold,
            ..analysis
        })?;
        Some(Self {
            new: plan.new.clone(),
            analysis,
        })
    }
}

/// The analysis of a proxy without a controller, since it began.
struct ProxyAnalysis {
    subject: AnalyzedGeneration,
    began: Instant,
    /// The counts at the last look, and its time.
    counted: Counts,
    checked: Instant,
    memory: Memory,
    /// Whether a failure that does not change the split has been logged.
    is_logged: bool,
}

impl ProxyAnalysis {
    /// `earlier` is what old did before.
    fn of(plan: &Plan, counted: Counts, earlier: Counts, now: Instant) -> Option<Self> {
        let subject = AnalyzedGeneration::of(plan)?;
        let mut memory = Memory::after(earlier);
        memory.look(&subject.analysis.margins, Counts::default(), Duration::ZERO);
        Some(Self {
            subject,
            began: now,
            counted,
            checked: now,
            memory,
            is_logged: false,
        })
    }

    fn is_of(&self, plan: &Plan) -> bool {
        Some(&self.subject) == AnalyzedGeneration::of(plan).as_ref()
    }

    /// Whether it is time to evaluate new again.
    fn interim_look(&mut self, outcomes: &Outcomes, now: Instant) -> bool {
        if now.saturating_duration_since(self.checked) >= LATENCY_INTERVAL {
            return true;
        }
        let since = outcomes.since(&Outcomes::from(&self.counted));
        let now = now.saturating_duration_since(self.began);
        let margins = &self.subject.analysis.margins;
        self.memory.interim_look(margins, &since, now)
    }

    fn evaluate(&mut self, counted: Counts, now: Instant) -> Report {
        let since = counted.since(&self.counted).unwrap_or_default();
        self.counted = counted;
        self.checked = now;
        let now = now.saturating_duration_since(self.began);
        self.memory.look(&self.subject.analysis.margins, since, now)
    }
}

/// Evaluates new at intervals, for as long as it is polled. The last report is in `status`.
pub async fn analyse(
    snapshots: Arc<SnapshotStore>,
    metrics: Arc<Metrics>,
    status: Arc<Status>,
    events: mpsc::Sender<SourceEvent>,
) {
    let mut running: Option<ProxyAnalysis> = None;
    let mut looks = tokio::time::interval(INTERIM);
    looks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        looks.tick().await;
        let now = Instant::now();
        metrics.strata.remember(now);
        let plan = Arc::clone(&snapshots.load().plan);
        let Some(analysis) = &plan.analysis else {
            if running.take().is_some() {
                status.analysis.store(Arc::default());
            }
            continue;
        };
        let Some(current) = running.as_mut().filter(|known| known.is_of(&plan)) else {
            let strata = &metrics.strata;
            running = ProxyAnalysis::of(&plan, strata.counts(), strata.earlier(now), now);
            continue;
        };
        if !current.interim_look(&metrics.strata.outcomes(), now) {
            continue;
        }
        let report = current.evaluate(metrics.strata.counts(), now);
        let has_failed = matches!(report.verdict, Verdict::Fail(_));
        let rolls_back = analysis.on_failure == OnFailure::RollBack && plan.may_roll_back();
        let is_rolled_back = plan.failed_analysis.is_some();
        if has_failed
            && !rolls_back
            && !is_rolled_back
            && !std::mem::replace(&mut current.is_logged, true)
        {
            tracing::warn!(why = %report.sentence(), "new has failed the analysis: the split stays as it is");
        }
        if has_failed && rolls_back {
            let failed = SourceEvent::Failed {
                new: current.subject.new.clone(),
                why: report.sentence(),
            };
            if events.send(failed).await.is_err() {
                return;
            }
        }
        status.analysis.store(Arc::new(Some(report)));
    }
}
