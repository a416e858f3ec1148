//! Failover: whether a request is retried after a failed attempt, and on which target.
//!
//! Pure: the caller states what failed, what has been attempted, and what the plan allows.

mod budget;
mod candidates;
mod moves;

pub use budget::RetryBudget;
pub use candidates::{Candidates, TakeoverCause, candidates};
pub use moves::MovePace;

use crate::split::{Generation, Weights};

/// Why an attempt failed. A closed set: metric label and log field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cause {
    /// No connection was made: nothing was sent.
    Connect,
    /// This host is out of descriptors or memory and cannot open connections: nothing was sent, and another target would not
    /// help.
    Local,
    /// This host has no free port to the address: nothing was sent.
    LocalPorts,
    /// The stream was reset, or ended, before the first content.
    Broken,
    /// Status 502.
    BadGateway,
    /// Status 503.
    Unavailable,
    /// Status 504.
    GatewayTimeout,
    /// Status 404 with an empty body: a frontend without workers.
    NoWorkers,
    /// Status 404 with `Model not found`.
    ModelNotFound,
    /// A stream whose first data event is an error with code 502, 503 or 504.
    ErrorEvent,
    /// No content before the first-event deadline.
    Deadline,
    /// Status or first event 529.
    Overloaded,
    /// Status or first event 500.
    ServerError,
    /// A server that was asked to continue a stream responded with something else.
    NoContinuation,
    /// An HTTP/2 server reset the stream because the request is malformed, or a server switched protocols before the request was
    /// complete. Another server would do the same.
    Malformed,
}

impl Cause {
    /// Every cause, in declaration order.
    pub const ALL: [Self; 15] = [
        Self::Connect,
        Self::Local,
        Self::LocalPorts,
        Self::Broken,
        Self::BadGateway,
        Self::Unavailable,
        Self::GatewayTimeout,
        Self::NoWorkers,
        Self::ModelNotFound,
        Self::ErrorEvent,
        Self::Deadline,
        Self::Overloaded,
        Self::ServerError,
        Self::NoContinuation,
        Self::Malformed,
    ];

    /// The metric label.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Connect => "connect",
            Self::Local => "local",
            Self::LocalPorts => "local_ports",
            Self::Broken => "broken",
            Self::BadGateway => "bad_gateway",
            Self::Unavailable => "unavailable",
            Self::GatewayTimeout => "gateway_timeout",
            Self::NoWorkers => "no_workers",
            Self::ModelNotFound => "model_not_found",
            Self::ErrorEvent => "error_event",
            Self::Deadline => "deadline",
            Self::Overloaded => "overloaded",
            Self::ServerError => "server_error",
            Self::NoContinuation => "no_continuation",
            Self::Malformed => "malformed",
        }
    }

    /// The cause that a response status stands for. For a 404, the body is needed: see [`Cause::of_not_found`].
    #[must_use]
    pub const fn of_status(status: u16) -> Option<Self> {
        match status {
            502 => Some(Self::BadGateway),
            503 => Some(Self::Unavailable),
            504 => Some(Self::GatewayTimeout),
            529 => Some(Self::Overloaded),
            500 => Some(Self::ServerError),
            _ => None,
        }
    }

    /// The cause that a 404 with this body stands for: `None` unless the frontend has no workers or lacks the model.
    #[must_use]
    pub fn of_not_found(body: &[u8]) -> Option<Self> {
        if body.is_empty() {
            return Some(Self::NoWorkers);
        }
        // The wording of OpenAI-style routes and of the Messages route.
        let says = |text: &str| memchr::memmem::find(body, text.as_bytes()).is_some();
        let is_about_the_model = says("Model not found") || says("\"not_found_error\"");
        is_about_the_model.then_some(Self::ModelNotFound)
    }

    /// The cause that an error with this code stands for if it is the first data event of a stream.
    #[must_use]
    pub const fn of_error_event(code: Option<u16>) -> Option<Self> {
        match code {
            Some(502..=504) => Some(Self::ErrorEvent),
            Some(529) => Some(Self::Overloaded),
            Some(500) => Some(Self::ServerError),
            _ => None,
        }
    }
}

/// The target of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Target {
    /// The old generation.
    Old,
    /// The new generation.
    New,
    /// The old generation, through the Service of the sibling pods.
    Peers,
}

impl Target {
    /// The generation that a target belongs to.
    #[must_use]
    pub const fn generation(self) -> Generation {
        match self {
            Self::New => Generation::New,
            Self::Old | Self::Peers => Generation::Old,
        }
    }

    /// The target that a request of this generation is first sent to.
    #[must_use]
    pub const fn of(generation: Generation) -> Self {
        match generation {
            Generation::Old => Self::Old,
            Generation::New => Self::New,
        }
    }
}

/// The targets to which an exchange has been sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attempted(u8);

impl Attempted {
    /// With `target` added.
    #[must_use]
    pub const fn and(self, target: Target) -> Self {
        Self(self.0 | 1 << target as u8)
    }

    const fn has(self, target: Target) -> bool {
        self.0 & 1 << target as u8 != 0
    }

    /// How many.
    #[must_use]
    pub const fn count(self) -> u32 {
        self.0.count_ones()
    }
}

/// The retries that the plan allows.
#[derive(Clone, Copy, Debug)]
pub struct FailoverPolicy {
    /// Whether failover is on.
    pub enabled: bool,
    pub weights: Weights,
    /// Old drains, so nothing is retried on it.
    pub old_drains: bool,
    pub has_new: bool,
    pub has_peers: bool,
    /// Whether a 529 is retried.
    pub overloaded: bool,
    /// Whether a 500 from old is retried on new. A prompt that crashes its server would then reach both generations.
    pub old_server_errors: bool,
}

/// The target to retry on, after the attempt on `failed` ended with `cause`. `None` if there is none.
///
/// A generation of weight 0 is not a target, except old, until it drains.
#[must_use]
pub fn next_target(
    policy: &FailoverPolicy,
    attempted: Attempted,
    failed: Target,
    cause: Cause,
) -> Option<Target> {
    let may_retry = policy.enabled
        && match cause {
            Cause::Overloaded => policy.overloaded,
            Cause::Local | Cause::Malformed => false,
            // The new generation is on trial: its faults must not reach clients while old can respond.
            Cause::ServerError => failed == Target::New || policy.old_server_errors,
            _ => true,
        };
    [Target::Old, Target::New, Target::Peers]
        .into_iter()
        .filter(|target| may_retry && !attempted.has(*target))
        .find(|target| policy.serves(*target))
}

impl FailoverPolicy {
    /// Whether a request that has failed elsewhere may be sent there.
    const fn serves(&self, target: Target) -> bool {
        let old_serves = !self.weights.is_all_new() || !self.old_drains;
        match target {
            Target::Old => old_serves,
            Target::New => self.has_new && !self.weights.is_all_old(),
            Target::Peers => self.has_peers && old_serves,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(percent: u8) -> FailoverPolicy {
        FailoverPolicy {
            enabled: true,
            weights: Weights::percent(percent).expect("valid"),
            old_drains: false,
            has_new: true,
            has_peers: false,
            overloaded: false,
            old_server_errors: false,
        }
    }

    fn next(policy: &FailoverPolicy, failed: Target, cause: Cause) -> Option<Target> {
        next_target(policy, Attempted::default().and(failed), failed, cause)
    }

    #[test]
    fn each_generation_is_the_others_target_while_both_have_weight() {
        for cause in Cause::ALL {
            let never = [Cause::Overloaded, Cause::Local, Cause::Malformed];
            let retried = !never.contains(&cause);
            assert_eq!(
                next(&policy(50), Target::New, cause),
                retried.then_some(Target::Old)
            );
            let retried = retried && cause != Cause::ServerError;
            assert_eq!(
                next(&policy(50), Target::Old, cause),
                retried.then_some(Target::New)
            );
        }
    }

    #[test]
    fn a_generation_of_weight_0_is_not_a_target_except_old_until_it_drains() {
        assert_eq!(next(&policy(0), Target::Old, Cause::Connect), None);
        assert_eq!(
            next(&policy(100), Target::New, Cause::Connect),
            Some(Target::Old)
        );
        let draining = FailoverPolicy {
            old_drains: true,
            has_peers: true,
            ..policy(100)
        };
        assert_eq!(next(&draining, Target::New, Cause::Connect), None);
        let not_yet = FailoverPolicy {
            old_drains: true,
            ..policy(99)
        };
        assert_eq!(
            next(&not_yet, Target::New, Cause::Connect),
            Some(Target::Old)
        );
    }

    #[test]
    fn the_sibling_pods_are_the_last_target() {
        let policy = FailoverPolicy {
            has_peers: true,
            ..policy(25)
        };
        let attempted = Attempted::default().and(Target::Old);
        assert_eq!(
            next_target(&policy, attempted, Target::Old, Cause::Connect),
            Some(Target::New)
        );
        let attempted = attempted.and(Target::New);
        assert_eq!(
            next_target(&policy, attempted, Target::New, Cause::Connect),
            Some(Target::Peers)
        );
        let attempted = attempted.and(Target::Peers);
        assert_eq!(
            next_target(&policy, attempted, Target::Peers, Cause::Connect),
            None
        );
        let all_old = FailoverPolicy {
            weights: Weights::ALL_OLD,
            ..policy
        };
        assert_eq!(
            next(&all_old, Target::Old, Cause::Unavailable),
            Some(Target::Peers)
        );
    }

    #[test]
    fn optional_features_can_be_enabled() {
        let policy = FailoverPolicy {
            overloaded: true,
            old_server_errors: true,
            ..policy(50)
        };
        assert_eq!(
            next(&policy, Target::Old, Cause::Overloaded),
            Some(Target::New)
        );
        assert_eq!(
            next(&policy, Target::Old, Cause::ServerError),
            Some(Target::New)
        );
        let off = FailoverPolicy {
            enabled: false,
            ..policy
        };
        assert_eq!(next(&off, Target::Old, Cause::Connect), None);
    }

    #[test]
    fn a_404_is_a_cause_only_when_it_is_about_workers_or_the_model() {
        assert_eq!(Cause::of_not_found(b""), Some(Cause::NoWorkers));
        let body = br#"{"message":"Model not found","type":"Not Found","code":404}"#;
        assert_eq!(Cause::of_not_found(body), Some(Cause::ModelNotFound));
        let body = br#"{"type":"error","error":{"type":"not_found_error","message":"Model 'x' not found"}}"#;
        assert_eq!(Cause::of_not_found(body), Some(Cause::ModelNotFound));
        let body = br#"{"message":"Route not found: POST /v1/x","code":404}"#;
        assert_eq!(Cause::of_not_found(body), None);
    }
}
