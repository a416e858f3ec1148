//! Decides what to do with an event before the first content, while the request can still be retried. Pure.

use std::time::{Duration, Instant};

use super::openings::Opening;
use super::{Api, Event, Meaning, Openings, meaning};

/// What to do with an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventAction {
    /// Forward it. Nothing is held.
    Forward,
    /// Hold it with the others. They may be held until this time.
    Hold { until: Instant },
    /// Forward the events that are held, then this one.
    Release,
    /// Drop it: the client has the same event from another target.
    Drop,
    /// The stream began with an error of this code: retry, or forward it and commit.
    Fail { code: Option<u16> },
    /// It has content or ends the stream: forward everything. The request can no longer be retried.
    Commit,
    /// It is incompatible with what the client has from another target: end the stream.
    Conflict,
}

/// The policy for events without content.
#[derive(Clone, Copy, Debug)]
pub struct HoldPolicy {
    /// How long they are held.
    pub hold: Duration,
    /// Maximum number of bytes that are held.
    pub max_bytes: usize,
    /// Some have been forwarded, so no more are held.
    pub released: bool,
}

impl HoldPolicy {
    /// Decides about an event. `held` is the number of bytes held so far.
    pub fn step(
        self,
        openings: &mut Openings,
        (api, event): (Api, &Event<'_>),
        held: usize,
        now: Instant,
    ) -> EventAction {
        match meaning(api, event) {
            Meaning::Comment if held == 0 => return EventAction::Forward,
            // The order is the server's: a comment does not overtake what is held, nor does an ID without data.
            Meaning::Comment => return self.hold_or_release(held, now),
            Meaning::Content | Meaning::Terminal if openings.lacks_blocks() => {
                return EventAction::Conflict;
            }
            Meaning::Content => {
                openings.learn(api, event);
                return EventAction::Commit;
            }
            Meaning::Terminal => return EventAction::Commit,
            Meaning::Error { code } => return EventAction::Fail { code },
            Meaning::Preamble => {}
        }
        match openings.classify(api, event) {
            Opening::LeaveOut => EventAction::Drop,
            Opening::Conflict => EventAction::Conflict,
            Opening::Forward => self.hold_or_release(held, now),
        }
    }

    fn hold_or_release(self, held: usize, now: Instant) -> EventAction {
        let holds = !self.hold.is_zero() && !self.released && held <= self.max_bytes;
        match holds {
            true => EventAction::Hold {
                until: now + self.hold,
            },
            false => EventAction::Release,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sse::Decoder;

    const POLICY: HoldPolicy = HoldPolicy {
        hold: Duration::from_secs(5),
        max_bytes: 100,
        released: false,
    };
    const ROLE: &str = r#"data: {"choices":[{"index":0,"delta":{"role":"assistant"}}]}"#;

    fn step(
        policy: HoldPolicy,
        openings: &mut Openings,
        block: &str,
        held: usize,
        now: Instant,
    ) -> EventAction {
        let stream = format!("{block}\n\n");
        let mut decoder = Decoder::new(1024);
        let mut events = decoder.feed(stream.as_bytes());
        let event = events.next().unwrap();
        policy.step(openings, (Api::Chat, &event), held, now)
    }

    #[test]
    fn the_step_follows_from_the_meaning_and_the_policy() {
        let now = Instant::now();
        let until = now + POLICY.hold;
        let off = HoldPolicy {
            hold: Duration::ZERO,
            ..POLICY
        };
        let released = HoldPolicy {
            released: true,
            ..POLICY
        };
        let content = r#"data: {"choices":[{"index":0,"delta":{"content":"x"}}]}"#;
        let error = r#"data: {"error":{"code":503}}"#;
        for (policy, block, held, expected) in [
            (POLICY, ": keep-alive", 0, EventAction::Forward),
            (POLICY, ": keep-alive", 1, EventAction::Hold { until }),
            (POLICY, ": keep-alive", 101, EventAction::Release),
            (POLICY, "id: 7", 1, EventAction::Hold { until }),
            (POLICY, ROLE, 0, EventAction::Hold { until }),
            (POLICY, ROLE, 100, EventAction::Hold { until }),
            (POLICY, ROLE, 101, EventAction::Release),
            (off, ROLE, 0, EventAction::Release),
            (released, ROLE, 0, EventAction::Release),
            (POLICY, content, 0, EventAction::Commit),
            (POLICY, "data: [DONE]", 0, EventAction::Commit),
            (POLICY, error, 0, EventAction::Fail { code: Some(503) }),
            (POLICY, "event: error", 0, EventAction::Fail { code: None }),
        ] {
            let mut openings = Openings::default();
            let step = step(policy, &mut openings, block, held, now);
            assert_eq!(step, expected, "{policy:?} {block}");
        }
    }

    #[test]
    fn an_event_that_the_client_has_from_another_target_is_dropped_once() {
        let now = Instant::now();
        let mut openings = Openings::default();
        openings.sent_all(Api::Chat, format!("{ROLE}\n\n").as_bytes());
        openings.next_stream();
        let mut step = || step(POLICY, &mut openings, ROLE, 0, now);
        assert_eq!(step(), EventAction::Drop);
        let until = now + POLICY.hold;
        assert_eq!(step(), EventAction::Hold { until });
    }
}
