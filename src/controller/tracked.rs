//! The state of one update between reconciles. The queue, the index, the observer, admission, and the metrics keep their own
//! state of it; `Controller::forget` removes all of it.
//!
//! Nothing in it needs to survive a restart: such state is in the status of the update.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::ControllerSettings;
use super::dry_run::DryRun;
use super::last_valid::LastValid;
use super::observer::ProxyComparison;
use super::parsed::ParsedUpdate;
use super::rejected_writes::RejectedWrites;
use super::verdict::ControllerAnalysis;
use crate::k8s::{Object, resource_version};
use crate::resource::{AnalysisSpec, Problems};
use crate::rollout::{Timestamp, Trial, TrialResult};

/// Minimum interval between status writes if only figures have changed.
pub(super) const FIGURES: Duration = Duration::from_secs(10);

type Parsed = Result<Arc<ParsedUpdate>, Arc<Problems>>;

/// An update that this replica knows.
#[derive(Default)]
pub(super) struct TrackedUpdate {
    /// The object that was last written, which the watch may not have delivered yet.
    pub latest: Option<Object>,
    /// The object that was last parsed, and the result.
    parsed: Option<(Object, Parsed)>,
    /// The last valid spec.
    pub valid: Option<LastValid>,
    /// When the status was last written.
    pub status_written_at: Option<Instant>,
    /// Whether its `SplitContested` Event was emitted, but not recorded in the status yet.
    pub is_contested: bool,
    /// Its state in a dry run, which keeps none in the cluster.
    pub dry_run: Option<DryRun>,
    pub rejected_writes: RejectedWrites,
    analysis: Option<ControllerAnalysis>,
}

impl TrackedUpdate {
    /// Parses the update, unless that was done.
    ///
    /// # Errors
    /// All problems of its spec.
    pub fn parse(&mut self, object: &Object, settings: &ControllerSettings) -> Parsed {
        let is_known = |known: &Object| {
            let (known, object) = (&known.metadata, &object.metadata);
            known.uid == object.uid
                && known.resource_version == object.resource_version
                && known.resource_version.is_some()
        };
        if let Some((known, result)) = &self.parsed
            && is_known(known)
        {
            return result.clone();
        }
        let result = ParsedUpdate::read(object, settings);
        let result = result.map(Arc::new).map_err(Arc::new);
        self.parsed = Some((Arc::clone(object), result.clone()));
        result
    }

    /// Evaluates new by what the proxies have reported, if it is analysed.
    pub fn trial_result(
        &mut self,
        parsed: &ParsedUpdate,
        trial: &Trial,
        comparisons: &[ProxyComparison],
        wall: Timestamp,
    ) -> Option<TrialResult> {
        let margins = parsed.spec.analysis.as_ref().map(AnalysisSpec::margins);
        let begun = margins.filter(|_| trial.since > Timestamp::default());
        let Some(margins) = begun else {
            self.analysis = None;
            return None;
        };
        let now = Instant::now();
        let known = self
            .analysis
            .take()
            .filter(|analysis| analysis.is_of(trial, &margins));
        self.analysis =
            known.or_else(|| ControllerAnalysis::begin(trial, margins, comparisons, (now, wall)));
        Some(self.analysis.as_mut()?.observe(trial, comparisons, now))
    }

    /// Drops the state that only a followed update needs.
    pub fn shrink(&mut self) {
        (self.parsed, self.valid, self.analysis) = (None, None, None);
    }

    /// Remembers the spec of a valid update.
    pub fn note_valid(&mut self, object: &Object) {
        self.valid = Some(LastValid {
            uid: object.metadata.uid.clone(),
            generation: object.metadata.generation.unwrap_or(0),
            spec: object.data["spec"].clone(),
        });
    }

    /// The last valid spec of this object (same uid): as seen by this process, or as an earlier controller recorded it in the
    /// status. The recorded one contains the split after the losses since.
    pub fn last_valid(&self, object: &Object) -> Option<LastValid> {
        let (status, _) = super::parsed::status(object);
        let uid = &object.metadata.uid;
        let seen = self.valid.as_ref().filter(|valid| valid.uid == *uid);
        match (seen, status.last_valid) {
            (Some(seen), Some(noted)) if noted.generation < seen.generation => Some(seen.clone()),
            (_, Some(noted)) => Some(LastValid {
                uid: uid.clone(),
                generation: noted.generation,
                spec: noted.spec,
            }),
            (seen, None) => seen.cloned(),
        }
    }
}

/// The newest known version of an object. The watch has delivered `found`, which may lag behind the controller's own writes:
/// `latest` is what was last written, and is forgotten once it is outdated.
pub(super) fn newest(latest: &mut Option<Object>, found: &Object) -> Object {
    *latest = latest.take().filter(|latest| {
        resource_version(latest) > resource_version(found)
            && latest.metadata.uid == found.metadata.uid
    });
    latest.clone().unwrap_or_else(|| Arc::clone(found))
}

/// Whether a status is worth writing. If only its figures have changed, it is not written more often than every [`FIGURES`].
pub(super) fn is_worth_writing<S: PartialEq, F: PartialEq>(
    before: &S,
    after: &S,
    written_at: Option<Instant>,
    without_figures: impl Fn(&S) -> F,
) -> bool {
    let is_due = || written_at.is_none_or(|written_at| written_at.elapsed() >= FIGURES);
    without_figures(before) != without_figures(after) || (before != after && is_due())
}
