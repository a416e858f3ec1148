//! How a stream went: when its events came, and how it ended.
//!
//! Must not know: the clock (`now` is an argument), what an event is made of.

use std::time::{Duration, Instant};

/// The record of one answer, from the moment its request went upstream. A unary answer is an answer without events.
#[derive(Clone, Debug)]
pub struct Timeline {
    started: Instant,
    first_event: Option<Instant>,
    last_event: Option<Instant>,
    events: u64,
    bytes: u64,
    terminal: bool,
    error: Option<Option<u16>>,
}

/// How the body of an answer came to an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The clean end of the body.
    Eof,
    /// A reset, or an end inside the framing.
    Cut,
    /// Downstream went away.
    Gone,
    /// One of our own deadlines passed.
    Deadline,
}

/// How a stream ended, for those who count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Outcome {
    /// Everything came.
    Completed,
    /// It stopped before its end.
    Truncated,
    /// Upstream reported an error, as a status or inside the stream.
    Failed,
    /// Downstream went away first.
    Cancelled,
}

impl Outcome {
    /// Every outcome, in the order of the declaration.
    pub const ALL: [Self; 4] = [
        Self::Completed,
        Self::Truncated,
        Self::Failed,
        Self::Cancelled,
    ];

    /// The name used in metrics and logs.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Completed => "completed",
            Self::Truncated => "truncated",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        }
    }
}

impl Timeline {
    /// A record that starts now.
    #[must_use]
    pub const fn new(now: Instant) -> Self {
        Self {
            started: now,
            first_event: None,
            last_event: None,
            events: 0,
            bytes: 0,
            terminal: false,
            error: None,
        }
    }

    /// Notes events of content, or such as come after content, that came together. Answers the gap to what came before;
    /// `None` if these are the first. Comments and preambles are not to be noted: they tell nothing about the model's pace.
    pub fn content(&mut self, now: Instant, events: u64) -> Option<Duration> {
        self.events += events;
        let previous = self.last_event.replace(now);
        if previous.is_none() {
            self.first_event = Some(now);
        }
        previous.map(|previous| now.saturating_duration_since(previous))
    }

    /// Notes bytes of the body.
    pub const fn add_bytes(&mut self, bytes: u64) {
        self.bytes += bytes;
    }

    /// Notes an event after which the stream is complete ([`is_terminal`](super::is_terminal)).
    pub const fn set_terminal(&mut self) {
        self.terminal = true;
    }

    /// Notes an error that upstream reported inside the stream. The first one counts.
    pub fn set_error(&mut self, code: Option<u16>) {
        self.error.get_or_insert(code);
    }

    /// From the start to the first event of content.
    #[must_use]
    pub fn time_to_first_event(&self) -> Option<Duration> {
        self.first_event
            .map(|first| first.saturating_duration_since(self.started))
    }

    /// When the record started.
    #[must_use]
    pub const fn started(&self) -> Instant {
        self.started
    }

    /// When the last event was noted.
    #[must_use]
    pub const fn last_event(&self) -> Option<Instant> {
        self.last_event
    }

    /// How many events were noted.
    #[must_use]
    pub const fn events(&self) -> u64 {
        self.events
    }

    /// How many bytes of the body were noted.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether the stream is complete.
    #[must_use]
    pub const fn terminal(&self) -> bool {
        self.terminal
    }

    /// Whether an error came inside the stream, and the status it stood for.
    #[must_use]
    pub const fn error(&self) -> Option<Option<u16>> {
        self.error
    }

    /// How the stream ended. `quiet`: the decoder gave up, so that a missing terminal event proves nothing.
    ///
    /// An error stays an error whatever follows, a complete stream stays complete. Otherwise a downstream that left is a
    /// cancellation, and a body that did not end by itself, or an event stream without its terminal event, is truncated.
    #[must_use]
    pub const fn outcome(&self, is_sse: bool, quiet: bool, status_5xx: bool, end: End) -> Outcome {
        if self.error.is_some() || status_5xx {
            return Outcome::Failed;
        }
        if self.terminal {
            return Outcome::Completed;
        }
        match end {
            End::Gone => Outcome::Cancelled,
            End::Cut | End::Deadline => Outcome::Truncated,
            End::Eof if is_sse && !quiet => Outcome::Truncated,
            End::Eof => Outcome::Completed,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_lie_between_consecutive_events() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut timeline = Timeline::new(start);
        assert_eq!(timeline.time_to_first_event(), None);
        assert_eq!(timeline.content(at(300), 1), None);
        assert_eq!(
            timeline.content(at(320), 1),
            Some(Duration::from_millis(20))
        );
        assert_eq!(timeline.content(at(320), 1), Some(Duration::ZERO));
        assert_eq!(timeline.content(at(310), 1), Some(Duration::ZERO));
        assert_eq!(
            timeline.time_to_first_event(),
            Some(Duration::from_millis(300))
        );
        assert_eq!(timeline.events(), 4);
        assert_eq!(timeline.last_event(), Some(at(310)));
        assert_eq!(timeline.started(), start);
    }

    #[test]
    fn the_first_error_counts() {
        let mut timeline = Timeline::new(Instant::now());
        timeline.set_error(Some(503));
        timeline.set_error(Some(500));
        assert_eq!(timeline.error(), Some(Some(503)));
    }

    /// `terminal`, `error`, is SSE, quiet, 5xx, end, and what follows.
    type Row = (bool, bool, bool, bool, bool, End, Outcome);

    #[test]
    fn the_outcome_follows_from_what_was_seen_and_how_it_ended() {
        use End::{Cut, Deadline, Eof, Gone};
        use Outcome::{Cancelled, Completed, Failed, Truncated};
        let (y, n) = (true, false);
        #[rustfmt::skip]
        let table: [Row; 24] = [
            // A stream with its terminal event is complete, however it ends.
            (y, n, y, n, n, Eof, Completed),
            (y, n, y, n, n, Cut, Completed),
            (y, n, y, n, n, Gone, Completed),
            (y, n, y, n, n, Deadline, Completed),
            // A stream cut before it is truncated, even when the framing is intact.
            (n, n, y, n, n, Eof, Truncated),
            (n, n, y, n, n, Cut, Truncated),
            (n, n, y, n, n, Deadline, Truncated),
            (n, n, y, n, n, Gone, Cancelled),
            // A quiet decoder knows nothing of terminal events.
            (n, n, y, y, n, Eof, Completed),
            (n, n, y, y, n, Cut, Truncated),
            (n, n, y, y, n, Gone, Cancelled),
            // An error stays an error, whatever follows.
            (n, y, y, n, n, Eof, Failed),
            (y, y, y, n, n, Eof, Failed),
            (y, y, y, n, n, Gone, Failed),
            (n, y, y, n, n, Gone, Failed),
            (n, y, y, n, n, Cut, Failed),
            (n, y, y, y, n, Eof, Failed),
            // Unary answers.
            (n, n, n, n, n, Eof, Completed),
            (n, n, n, n, n, Cut, Truncated),
            (n, n, n, n, n, Deadline, Truncated),
            (n, n, n, n, n, Gone, Cancelled),
            (n, n, n, n, y, Eof, Failed),
            (n, n, n, n, y, Cut, Failed),
            (n, n, n, n, y, Gone, Failed),
        ];
        for row @ (terminal, error, is_sse, quiet, status_5xx, end, outcome) in table {
            let mut timeline = Timeline::new(Instant::now());
            if terminal {
                timeline.set_terminal();
            }
            if error {
                timeline.set_error(None);
            }
            assert_eq!(
                timeline.outcome(is_sse, quiet, status_5xx, end),
                outcome,
                "{row:?}"
            );
        }
    }
}
