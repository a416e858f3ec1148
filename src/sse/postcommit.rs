//! Decides what to do with an event after the first content, when the request can no longer be retried. Pure.

use super::Tail;

/// What to do with an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TailAction {
    /// Forward it as it is.
    Forward,
    /// Forward it in the form of the part that the client already has.
    Rewrite,
    /// Hold back this error event of this code, and what follows it, while another server is asked to continue the stream.
    HoldBack { code: Option<u16> },
}

/// The state of a stream whose content has begun.
#[derive(Clone, Copy, Debug)]
pub struct TailPolicy {
    /// Another server may continue it.
    pub may_continue: bool,
    /// Another server has continued it.
    pub is_joined: bool,
}

impl TailPolicy {
    /// Decides about an event of meaning `tail`.
    #[inline]
    #[must_use]
    pub const fn step(self, tail: Tail) -> TailAction {
        match tail {
            Tail::Error { code } if self.may_continue => TailAction::HoldBack { code },
            _ if self.is_joined => TailAction::Rewrite,
            _ => TailAction::Forward,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_held_back_only_if_another_server_may_continue_and_the_rest_follows_the_part() {
        let error = Tail::Error { code: Some(502) };
        let held = TailAction::HoldBack { code: Some(502) };
        for (may_continue, is_joined, tail, expected) in [
            (false, false, Tail::Nothing, TailAction::Forward),
            (false, false, error, TailAction::Forward),
            (false, true, Tail::Nothing, TailAction::Rewrite),
            (false, true, error, TailAction::Rewrite),
            (true, false, Tail::Nothing, TailAction::Forward),
            (true, false, Tail::Terminal, TailAction::Forward),
            (true, false, error, held),
            (true, true, Tail::Terminal, TailAction::Rewrite),
            (true, true, error, held),
        ] {
            let policy = TailPolicy {
                may_continue,
                is_joined,
            };
            assert_eq!(policy.step(tail), expected, "{policy:?} {tail:?}");
        }
    }
}
