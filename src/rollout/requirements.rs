//! Decides when `lastOldWorkerDispensable` and `safeToDeleteOld` hold: when every item of their list was observed at this step.
//! Unknown items count as missing.

use super::{Memory, PerGeneration, Phase, assessment::Assessment, proxies::ProxySummary};
use crate::split::Weights;

/// One observation that is required before old may be removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DeletionRequirement {
    /// The controller had recent contact with the API server.
    CurrentView,
    /// The controller sees what routes to old from other namespaces, or its settings say that nothing does.
    SeesElsewhere,
    /// The update is not being deleted. Once it is gone, the proxies of old's frontends may send requests to old again.
    UpdateStays,
    /// The rollout that manages the update, if any, does not go back to old.
    NoWayBack,
    /// The update controls its deployment and is complete.
    Complete,
    /// The split in the resource gives all requests to new, and this step does not change that.
    AllToNew,
    /// Each frontend of new was observed to serve, so no client needs old back.
    NewServes,
    /// No frontend of new has registered workers of a Dynamo namespace of which a frontend of old has or had, too.
    NewLeavesOldWorkers,
    /// At least one proxy of old's frontends answers.
    ProxySeen,
    /// Every live frontend of old has a proxy that responds, has applied this generation of the resource, and therefore sends
    /// no requests to old.
    NoNewRequestOnOld,
    /// None of these proxies uses old as a fallback.
    NoFallbackToOld,
    /// No open request of an earlier plan can still be sent to old.
    NoLateRequest,
    /// No stream runs on old.
    NoStreamOnOld,
    /// No update, including this one, uses old's frontends as its new ones.
    NoUpdateToOld,
    /// No Service leads to a frontend of old and bypasses its proxy, which would not see these requests.
    NoBypass,
    /// No stream of either generation runs through the pods of old's frontends.
    NoStreamThroughOldPods,
    /// No client has sent a request to the proxies of old's frontends for some time, in any way.
    QuietPeriod,
    /// `clientService` leads to a ready frontend of new.
    ClientsReachNew,
    /// `clientService` leads to no frontend of old.
    ClientsLeftOld,
    /// No other Service, Ingress or route leads to a frontend of old.
    NoOtherRoute,
    /// Nothing that clients or new need is deleted together with old, because of its owners.
    NewNotOwnedByOld,
}

impl DeletionRequirement {
    /// Required before the last worker of old may be removed.
    pub const FOR_LAST_WORKER: [Self; 15] = [
        Self::CurrentView,
        Self::SeesElsewhere,
        Self::UpdateStays,
        Self::NoWayBack,
        Self::Complete,
        Self::AllToNew,
        Self::NewServes,
        Self::NewLeavesOldWorkers,
        Self::ProxySeen,
        Self::NoNewRequestOnOld,
        Self::NoFallbackToOld,
        Self::NoLateRequest,
        Self::NoStreamOnOld,
        Self::NoUpdateToOld,
        Self::NoBypass,
    ];

    /// Additionally required before old may be deleted, including its frontends.
    pub const FOR_DELETION: [Self; 6] = [
        Self::NoStreamThroughOldPods,
        Self::QuietPeriod,
        Self::ClientsReachNew,
        Self::ClientsLeftOld,
        Self::NoOtherRoute,
        Self::NewNotOwnedByOld,
    ];

    /// All requirements, in the order in which they are checked.
    pub fn all() -> impl Iterator<Item = Self> {
        let last_worker = Self::FOR_LAST_WORKER.into_iter();
        last_worker.chain(Self::FOR_DELETION)
    }

    /// Why the requirement is not met, for users.
    #[must_use]
    pub const fn missing(self) -> &'static str {
        match self {
            Self::CurrentView => "there was no recent contact with the API server",
            Self::SeesElsewhere => {
                "this controller can read only one namespace, so it does not know what routes to the frontends of old from \
                 others (--assume-isolated-namespace asserts that nothing does)"
            }
            Self::UpdateStays => {
                "the update is being deleted, and once it is gone the frontends of old may send requests to old again"
            }
            Self::NoWayBack => {
                "it is not confirmed that the rollout that manages the update does not go back to old"
            }
            Self::Complete => "the update is not complete",
            Self::AllToNew => "the split does not send all requests to new",
            Self::NewServes => "not every frontend of new is known to serve",
            Self::NewLeavesOldWorkers => {
                "the frontends of new and of old list workers of the same Dynamo namespace, or more than can be compared, so new \
                 may send requests to the workers of old"
            }
            Self::ProxySeen => "no proxy of old's frontends responds",
            Self::NoNewRequestOnOld => {
                "not every frontend of old has a proxy that sends no request to old"
            }
            Self::NoFallbackToOld => "not every proxy has stopped using old as a fallback",
            Self::NoLateRequest => {
                "open requests of an earlier split may still be sent to old, or a proxy does not report whether there are any"
            }
            Self::NoStreamOnOld => "streams run on old",
            Self::NoUpdateToOld => {
                "it is not confirmed that no update sends requests to the frontends of old"
            }
            Self::NoBypass => {
                "it is not confirmed that no Service bypasses the proxies of old's frontends"
            }
            Self::NoStreamThroughOldPods => "streams run through the pods of old's frontends",
            Self::QuietPeriod => {
                "the pods of old's frontends have received requests recently, or a proxy does not report when the last one \
                 arrived"
            }
            Self::ClientsReachNew => {
                "it is not confirmed that spec.clientService routes to a ready frontend of new on each of its ports"
            }
            Self::ClientsLeftOld => {
                "it is not confirmed that spec.clientService no longer routes to the frontends of old"
            }
            Self::NoOtherRoute => {
                "it is not confirmed that no other Service, Ingress, or route sends requests to the frontends of old"
            }
            Self::NewNotOwnedByOld => {
                "it is not confirmed that nothing that clients or new need is deleted together with old"
            }
        }
    }
}

/// The inputs by which requirements are checked.
pub(super) struct RequirementInput<'a> {
    pub assessment: &'a Assessment<'a>,
    pub memory: &'a Memory,
    pub phase: Phase,
    /// The split after this step.
    pub next: Weights,
}

impl RequirementInput<'_> {
    /// Whether it was observed.
    fn is_met(&self, requirement: DeletionRequirement) -> bool {
        let seen = self.assessment.seen;
        let proxies: &ProxySummary = &self.assessment.proxies;
        match requirement {
            DeletionRequirement::CurrentView => seen.is_current,
            DeletionRequirement::SeesElsewhere => seen.sees_elsewhere,
            DeletionRequirement::UpdateStays => !seen.is_being_deleted,
            DeletionRequirement::NoWayBack => seen.goes_back == Some(false),
            DeletionRequirement::Complete => {
                self.phase == Phase::Complete && seen.superseded_by.is_none()
            }
            DeletionRequirement::AllToNew => seen.split.is_all_new() && self.next.is_all_new(),
            DeletionRequirement::NewServes => {
                let gate = &self.assessment.gate;
                let each_is_polled = seen.frontends.new.left_out == 0;
                let serve = gate.obstacles.is_empty() && gate.failing == 0 && !gate.is_presumed;
                serve && each_is_polled
            }
            DeletionRequirement::NewLeavesOldWorkers => self.new_leaves_old_workers(),
            DeletionRequirement::ProxySeen => proxies.responding > 0,
            DeletionRequirement::NoNewRequestOnOld => proxies.have_left_old(),
            DeletionRequirement::NoFallbackToOld => seen.old_draining && proxies.let_old_drain(),
            DeletionRequirement::NoLateRequest => proxies.may_reach_old == Some(0),
            DeletionRequirement::NoStreamOnOld => proxies.open.is_some_and(|open| open.old == 0),
            DeletionRequirement::NoUpdateToOld => {
                let updates = seen.updates_to_old.as_ref();
                updates.is_some_and(Vec::is_empty)
            }
            DeletionRequirement::NoBypass => {
                let ways = seen.clients.bypasses.as_ref();
                ways.is_some_and(Vec::is_empty)
            }
            DeletionRequirement::NoStreamThroughOldPods => {
                proxies.open == Some(PerGeneration::default())
            }
            DeletionRequirement::QuietPeriod => {
                let least = self.assessment.settings.quiet_period;
                proxies.quiet_for.is_some_and(|quiet| quiet >= least)
            }
            DeletionRequirement::ClientsReachNew => seen.clients.reach_new == Some(true),
            DeletionRequirement::ClientsLeftOld => seen.clients.reach_old == Some(false),
            DeletionRequirement::NoOtherRoute => {
                let ways = seen.clients.other_ways.as_ref();
                ways.is_some_and(Vec::is_empty)
            }
            DeletionRequirement::NewNotOwnedByOld => {
                let objects = seen.clients.deleted_with_old.as_ref();
                objects.is_some_and(Vec::is_empty)
            }
        }
    }

    fn new_leaves_old_workers(&self) -> bool {
        let seen = self.assessment.seen;
        let (old, new) = (&seen.frontends.old, &seen.frontends.new);
        let (mut of_old, of_new) = (old.namespaces(), new.namespaces());
        let workers = &seen.workers.old;
        let has_workers = workers.values().any(|all| all.ready > 0 || all.desired > 0);
        if has_workers && !old.all_answer() {
            // The workers of old stay registered when its frontends stop.
            of_old.extend(&self.memory.namespaces);
            if !self.memory.knows_namespaces() && !of_new.is_empty() {
                return false;
            }
        }
        let are_whole = old.namespaces_are_whole() && new.namespaces_are_whole();
        are_whole && of_old.is_disjoint(&of_new)
    }

    /// The requirements that are not met before old may be deleted.
    pub fn missing(&self) -> Vec<DeletionRequirement> {
        DeletionRequirement::all()
            .filter(|requirement| !self.is_met(*requirement))
            .collect()
    }
}
