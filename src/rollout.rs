//! Decides an update: from the observed state of both generations to the traffic split.
//!
//! One pure function, [`step`], maps settings, memory, observation and the current time to a [`Decision`]. The caller
//! observes before the call, applies the decision after it, and contains no policy:
//!
//! ```text
//! Settings (spec) ────────┐
//! Memory (status) ──┐     │
//!                   ▼     ▼
//! Observation ───▶ step(…, now) ───▶ Decision ─┬─▶ actions, such as the split and oldDraining → spec
//!                                              ├─▶ memory, conditions, message → status
//!                                              └─▶ events, wake_at
//! ```
//!
//! # Capacity
//!
//! The [`Capacity`] of a generation is the minimum, over the roles it needs, of ready workers ÷ full size. The full size is
//! the source's size when the update was accepted, or what the user specifies. It is never the current replica count, which
//! only shows the progress of an update. New gets `new ÷ (old + new)` of the requests, as an exact [`Ratio`]:
//!
//! | old | new | split |
//! | --- | --- | --- |
//! | 4 of 4 workers | 1 of 4 workers | 1 : ¼, 20% |
//! | prefill 4 of 4, decode 2 of 2 | prefill 1 of 4, decode 1 of 2 | 1 : min(¼, ½), 20% |
//! | 4 of 4 workers | 8 of 4 workers | 1 : 2, 67% |
//! | prefill 4 of 4, decode 0 of 2 | 1 of 4 workers | 0 : ¼, all to new |
//!
//! A worker is ready before a frontend registers it. If the frontends of old have been found to report as many workers
//! as are ready, then only workers known to at least one frontend of their generation count.
//!
//! A frontend of new that does not serve what is required reduces new's capacity by its share: if one of four fails, three
//! quarters remain. A frontend whose state is unknown does not count as failing: new keeps what it has but gains nothing. See
//! [`gate()`].
//!
//! A missing role means no capacity. The roles a generation needs are learned from the source. New may have another shape
//! (one worker for everything where old had prefill and decode); then it needs its own roles, and the user must specify
//! their sizes. Prefill and decode always need each other.
//!
//! # The rules
//!
//! The first rule that applies decides, and the decision names it ([`Rule`]):
//!
//! | # | rule | when | split |
//! | --- | --- | --- | --- |
//! | 0 | `Superseded` | another resource controls the deployment | unchanged |
//! | 1 | `NeitherCanServe` | neither generation can serve | unchanged |
//! | 2 | `NewCannotServe` | the [`gate`] is closed | all to old, immediately |
//! | 3 | `OldCannotServe` | old has no worker (for a role), new can serve | all to new, immediately |
//! | 4 | `AnalysisFailed` | new has failed the analysis, with `onFailure: RollBack` | all to old, immediately |
//! | 5 | `Paused` | the user pauses the update | the held split, including the user's edits |
//! | 6 | `DrainOld` | the user sets `drainOld` | all to new, or what rules 7 to 9 leave |
//! | 7 | `AnalysisFailed` | new has failed the analysis, with `onFailure: Hold` | at most the split at that time |
//! | 8 | `Step` | a step of the update has not been passed yet | at most that step |
//! | 9 | `Cap` | capacity would give new more than the cap | the cap |
//! | 10 | `Capacity` | otherwise | by capacity |
//!
//! With `strict`, `Paused` precedes rules 2 to 4, and rule 3 is limited by the cap. After an emergency the split held by a pause
//! is restored. A user's edit without a pause is reverted, and reported once. Among rules 7 to 9, the one with the lowest limit
//! decides.
//!
//! A failed analysis is remembered in the [`Trial`] of new. It stays, no matter what happens to workers, proxies, the split, or
//! the controller, until a user requests a retry or the spec names a different new generation. It is written before the split
//! that follows from it ([`Action::RecordFailure`]): a controller that dies between the two writes does not forget it.
//!
//! # Losses immediately, gains after a wait
//!
//! Each generation has a [`Credit`]: the capacity that counts. It falls to the observed capacity immediately. It rises to what
//! has lasted for `stableSeconds`, and only once every ready proxy has applied the last change or `ackTimeoutSeconds` have
//! passed. The split follows the credits. So traffic moves *away* from a loss without waiting, and *towards* a gain only after
//! a wait, even if both happen at once. There are two exceptions: old is credited immediately when only old can serve, and a
//! contested edit or a split above the cap is corrected immediately.
//!
//! # The end
//!
//! ```text
//! Pending ──▶ Progressing ──▶ Draining ──▶ Complete
//! ```
//!
//! 1. Old's weight is 0, *and that is intended*: no replicas of old are desired, the user set `drainOld`, or the user paused at
//!    100%. Crashed workers are an outage, and a name under which nothing was ever found may be mistyped; in both cases old
//!    stays a fallback.
//! 2. Every live proxy has applied it → `Draining`: old is no longer a fallback.
//! 3. All proxies know that, and no stream runs on old or `drainDeadlineSeconds` have passed → `Complete`.
//!
//! No proxies means no confirmation: without a proxy there is no `Draining`. Every [`Phase`] goes back when old is needed again,
//! and `Complete` also when a later proxy may send to old. Whether old's last worker, or all of old, may be removed is a separate
//! question: each [`DeletionRequirement`] in a list must be met. The pods of old's frontends also serve streams of *new*, because
//! the sidecar runs there.
//!
//! # For the caller
//!
//! - A failed list is not an empty list: without it there is no [`Observation`]. State that has not been observed yet
//!   is marked as such; it permits no gain and causes no loss.
//! - Carry out the [`Action`]s first, in order (the split with `oldDraining` in one write, against the observed
//!   `resourceVersion`), then write the memory. If a required action fails, discard the decision, observe and decide
//!   again. If only the memory write fails, the worst consequence is that a wait starts again.
//! - Publish the events of a decision once it is applied. There are none if nothing happened.
//! - Call again on every new observation, and at `wake_at`.
//! - Time is a wall-clock [`Timestamp`] because it must survive a restart. A clock jump lengthens or shortens a wait.
//!
//! Does not depend on Kubernetes, clocks, sockets, tasks, logs or metrics.

mod action;
mod assessment;
mod capacity;
mod conditions;
mod credit;
mod end;
mod estimate;
mod gate;
mod inputs;
mod memory;
mod messages;
mod proxies;
mod ratio;
mod registered;
mod requirements;
mod rules;
mod step;
mod timestamp;
mod trial;
mod wait;

pub use self::{
    action::{Action, DesiredSplit},
    capacity::{Capacity, Role, RoleCapacity, Workers},
    conditions::{Condition, ConditionKind, Event},
    credit::{Credit, Rise},
    end::Phase,
    estimate::{Lengths, drain_estimate},
    gate::{ByProxies, Gate, GateInput, Obstacle, RequiredModels, gate},
    inputs::{
        Clients, Experience, Frontend, Frontends, NoReport, Observation, ObservedProxy,
        PerGeneration, ProxyState, QueryResult, UpdateSettings,
    },
    memory::{Change, Memory},
    ratio::Ratio,
    registered::Registered,
    requirements::DeletionRequirement,
    rules::Rule,
    step::{Decision, step},
    timestamp::Timestamp,
    trial::{
        Analysis, AtStep, FailedTrial, OnFailure, SplitStep, Trial, TrialResult, TrialVerdict,
    },
    wait::{WaitFor, Waiting},
};

#[cfg(test)]
mod tests;
