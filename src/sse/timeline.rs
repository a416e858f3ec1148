//! Records when the events of a response arrived and how it ended. The clock is an argument.

use std::time::{Duration, Instant};

/// The record of one response, from the time its request was sent. A unary response has no events.
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

/// How the body of a response ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// It ended cleanly.
    Eof,
    /// It was reset, or ended before its framing did.
    Cut,
    /// Downstream disconnected.
    Gone,
    /// One of our own deadlines passed.
    Deadline,
}

/// The outcome of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Outcome {
    /// It arrived completely.
    Completed,
    /// It stopped before its end.
    Truncated,
    /// Upstream reported an error, in the status or in the stream.
    Failed,
    /// Downstream disconnected first.
    Cancelled,
}

impl Outcome {
    /// Every outcome, in declaration order.
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

    /// Records events with content, or after content, that arrived together. Returns the gap since the previous ones; `None` if
    /// these are the first. Do not record comments and preambles: they say nothing about the model's pace.
    pub fn content(&mut self, now: Instant, events: u64) -> Option<Duration> {
        self.events += events;
        let previous = self.last_event.replace(now);
        if previous.is_none() {
            self.first_event = Some(now);
        }
        previous.map(|previous| now.saturating_duration_since(previous))
    }

    /// Records a part of the body that was forwarded.
    pub const fn forwarded(&mut self, part: &[u8]) {
        self.add_bytes(part.len() as u64);
    }

    /// Records forwarded bytes.
    pub const fn add_bytes(&mut self, bytes: u64) {
        self.bytes += bytes;
    }

    /// Records an event that completes the stream ([`is_terminal`](super::is_terminal)).
    pub const fn set_terminal(&mut self) {
        self.terminal = true;
    }

    /// Records an error that upstream reported in the stream. Only the first one counts.
    pub fn set_error(&mut self, code: Option<u16>) {
        self.error.get_or_insert(code);
    }

    /// Time from the start to the first event with content.
    #[must_use]
    pub fn time_to_first_event(&self) -> Option<Duration> {
        self.first_event
            .map(|first| first.saturating_duration_since(self.started))
    }

    /// Time from the first event with content to the last one.
    #[must_use]
    pub fn time_of_events(&self) -> Option<Duration> {
        let events = self.first_event.zip(self.last_event);
        events.map(|(first, last)| last.saturating_duration_since(first))
    }

    /// When the record started.
    #[must_use]
    pub const fn started(&self) -> Instant {
        self.started
    }

    /// When the last event was recorded.
    #[must_use]
    pub const fn last_event(&self) -> Option<Instant> {
        self.last_event
    }

    /// Number of events recorded.
    #[must_use]
    pub const fn events(&self) -> u64 {
        self.events
    }

    /// Number of bytes recorded.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether the stream is complete.
    #[must_use]
    pub const fn terminal(&self) -> bool {
        self.terminal
    }

    /// The status of an error in the stream, if there was an error.
    #[must_use]
    pub const fn error(&self) -> Option<Option<u16>> {
        self.error
    }

    /// The outcome. `quiet` means that the decoder gave up, so a missing terminal event proves nothing.
    ///
    /// After an error or a terminal event, the outcome is final. Otherwise it is cancelled if downstream disconnected, and
    /// truncated if the body did not end cleanly or an event stream lacks its terminal event.
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
        assert_eq!(timeline.time_of_events(), Some(Duration::from_millis(10)));
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
            // A stream with its terminal event is complete, no matter how it ends.
            (y, n, y, n, n, Eof, Completed),
            (y, n, y, n, n, Cut, Completed),
            (y, n, y, n, n, Gone, Completed),
            (y, n, y, n, n, Deadline, Completed),
            // A stream cut before it is truncated, even when the framing is intact.
            (n, n, y, n, n, Eof, Truncated),
            (n, n, y, n, n, Cut, Truncated),
            (n, n, y, n, n, Deadline, Truncated),
            (n, n, y, n, n, Gone, Cancelled),
            // A quiet decoder does not see terminal events.
            (n, n, y, y, n, Eof, Completed),
            (n, n, y, y, n, Cut, Truncated),
            (n, n, y, y, n, Gone, Cancelled),
            // An error stays an error, no matter what follows.
            (n, y, y, n, n, Eof, Failed),
            (y, y, y, n, n, Eof, Failed),
            (y, y, y, n, n, Gone, Failed),
            (n, y, y, n, n, Gone, Failed),
            (n, y, y, n, n, Cut, Failed),
            (n, y, y, y, n, Eof, Failed),
            // Unary responses.
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
