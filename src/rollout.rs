//! The rollout: from what is seen of both generations to the split that follows.
//!
//! One pure function, [`step`]: settings, memory, observation and now in, a [`Decision`] out. Whoever calls it observes
//! before and applies after, and holds no policy:
//!
//! ```text
//! Settings (spec) ────────┐
//! Memory (status) ──┐     │
//!                   ▼     ▼
//! Observation ───▶ step(…, now) ───▶ Decision ─┬─▶ split, oldDraining → spec
//!                                              ├─▶ memory, conditions, message → status
//!                                              └─▶ events, wake_at
//! ```
//!
//! # Capacity
//!
//! The [`Capacity`] of a side is the least, over the roles it needs, of ready workers ÷ full size. The full size is the
//! source's size when the update was accepted, or what a person states: never the momentary replicas, which say only how
//! far an update is. New gets `new ÷ (old + new)` of the requests, as an exact [`Ratio`]:
//!
//! | old | new | split |
//! | --- | --- | --- |
//! | 4 of 4 workers | 1 of 4 workers | 1 : ¼, 20 % |
//! | prefill 4 of 4, decode 2 of 2 | prefill 1 of 4, decode 1 of 2 | 1 : min(¼, ½), 20 % |
//! | 4 of 4 workers | 8 of 4 workers | 1 : 2, 67 % |
//! | prefill 4 of 4, decode 0 of 2 | 1 of 4 workers | 0 : ¼, all to new |
//!
//! A worker is ready before a frontend knows of it. Where the frontends of old have been found to count workers as is counted
//! here, only those count that one frontend of their side knows of.
//!
//! Frontends of new that do not serve what is wanted take their part of its capacity with them: one of four leaves it three
//! quarters. A frontend that was not heard is none of them: new keeps what it has, and gains nothing. See [`gate()`].
//!
//! A missing role is no capacity. What a side needs is learnt from the source; new may be of another shape (one worker
//! for all where old had halves), and then needs its own roles, whose sizes a person has to state. A half always needs its
//! other half.
//!
//! # The rules
//!
//! The first that applies decides, and is named in the decision ([`Rule`]):
//!
//! | # | rule | when | split |
//! | --- | --- | --- | --- |
//! | 0 | `Superseded` | another resource rules the deployment | stays |
//! | 1 | `NeitherCanServe` | nobody can serve | stays |
//! | 2 | `NewCannotServe` | the [`gate`] is closed | all to old, at once |
//! | 3 | `OldCannotServe` | old has no worker (for a role), new can serve | all to new, at once |
//! | 4 | `Paused` | a person holds it | what is held, a person's edit included |
//! | 5 | `DrainOld` | a person wants old drained | all to new, or the cap |
//! | 6 | `Cap` | capacity would give new more than the cap | the cap |
//! | 7 | `Capacity` | else | by capacity |
//!
//! With `strict`, pause goes before 2 and 3, and 3 ends at the cap. What a pause holds returns after an emergency. An edit
//! by a person who did not pause is taken back, and told once.
//!
//! # Away at once, towards in time
//!
//! Each side has a [`Credit`]: the capacity that counts. It falls with what is seen at once, and rises to what has lasted
//! for `stableSeconds`, when also every ready proxy has applied the last change (or `ackTimeoutSeconds` are over). The
//! split is by the credits. So nothing that moves requests *away* from a loss ever waits, and everything that moves them
//! *towards* a gain does, even if both come in one moment. Two exceptions: old is credited at once
//! where it alone can serve, and a contested edit or a split above the cap is put right at once.
//!
//! # The end
//!
//! ```text
//! Pending ──▶ Progressing ──▶ Draining ──▶ Complete
//! ```
//!
//! Old has weight 0, *and that is wanted* (nobody wants old's workers any more, a person set `drainOld`, or paused at 100 %;
//! workers that fell over are an outage, and a name under which nothing was ever found may be mistyped: old stays a fallback)
//! → every proxy alive has applied it → `Draining`: old is no fallback any more → all know that, too, and no stream runs on
//! old, or `drainDeadlineSeconds` are over → `Complete`. Nobody found is nobody who agrees: without a proxy there is no
//! `Draining`. Every [`Phase`] goes back when old is needed again, and `Complete` when a later proxy may send to old. When
//! old's last worker and old as a whole can go is another question, with a list of [`Evidence`] that must each be seen. The
//! pods of old's frontends carry streams of *new*, because the sidecar sits there.
//!
//! # For the caller
//!
//! - What could not be listed is not empty: without it there is no [`Observation`]. What was not heard yet is marked as such:
//!   it lets nothing gain and takes nothing away.
//! - First the split (with `oldDraining`, in one write, against the `resourceVersion` that was seen), then the memory. If the
//!   split cannot be written, throw the decision away, observe and decide again. If the memory cannot be written after it,
//!   nothing worse follows than that a wait begins anew.
//! - Publish the events of a decision that was applied; there are none when nothing happens.
//! - Call again when something is seen, and at `wake_at`.
//! - Time is a [`Timestamp`] of the wall clock, because it must survive a restart; jumps cost a wait or spare one.
//!
//! Must not know Kubernetes, clocks, sockets, tasks, logs or metrics, nor how anything here is observed or applied.

mod assessment;
mod capacity;
mod conditions;
mod credit;
mod end;
mod estimate;
mod evidence;
mod gate;
mod inputs;
mod memory;
mod messages;
mod proxies;
mod ratio;
mod registered;
mod rules;
mod step;
mod timestamp;
mod wait;

pub use self::{
    capacity::{Capacity, Role, RoleCapacity, Workers},
    conditions::{Condition, ConditionKind, Event},
    credit::{Credit, Rise},
    end::Phase,
    estimate::{Lengths, drain_estimate},
    evidence::Evidence,
    gate::{Asked, ByProxies, Gate, Obstacle, RequiredModels, gate},
    inputs::{
        Answer, Clients, Experience, Frontend, Frontends, Observation, Proxy, ProxyState, Settings,
        Sides, Silence,
    },
    memory::{Change, Memory},
    ratio::Ratio,
    registered::Registered,
    rules::Rule,
    step::{Decision, step},
    timestamp::Timestamp,
    wait::{Wait, WaitFor},
};

#[cfg(test)]
mod tests;
