//! The demo as plain lines, one per second: for a pipe, a log or a simple terminal.

use std::io::{self, Write};

use super::frame::{DemoFrame, milliseconds, percent};
use super::script::ServerState;

/// Writes lines to `W`.
#[derive(Debug)]
pub(super) struct Plain<W> {
    out: W,
    next_second: u64,
    /// The last event that was written.
    event: Option<String>,
}

impl<W: Write> Plain<W> {
    pub(super) fn new(out: W) -> Self {
        Self {
            out,
            next_second: 0,
            event: None,
        }
    }

    /// Writes what has changed since the last frame. Pairs of figures are old/new.
    pub(super) fn show(&mut self, demo_frame: &DemoFrame<'_>) -> io::Result<()> {
        let seconds = demo_frame.elapsed.as_secs();
        if self.next_second == 0 {
            self.head(demo_frame)?;
        }
        let event = event(demo_frame);
        if event != self.event {
            if let Some(event) = &event {
                writeln!(self.out, "{seconds:>4} s  {event}")?;
            }
            self.event = event;
        }
        if seconds >= self.next_second {
            self.next_second = seconds + 1;
            self.line(demo_frame)?;
        }
        self.out.flush()
    }

    fn head(&mut self, demo_frame: &DemoFrame<'_>) -> io::Result<()> {
        write!(
            self.out,
            "crossfade demo: {} clients on http://{}",
            demo_frame.streams, demo_frame.address
        )?;
        match demo_frame.page {
            Some(page) => writeln!(self.out, ", live page {page}")?,
            None => writeln!(self.out)?,
        }
        for [
            time,
            wanted,
            observed,
            open,
            first,
            gap,
            completed,
            failed,
            broken,
            recovered,
            continued,
        ] in [
            [
                "time",
                "wanted",
                "observed",
                "open",
                "first token",
                "gap",
                "completed",
                "failed",
                "broken",
                "recovered",
                "continued",
            ],
            [
                "", "", "", "old/new", "p50, ms", "p50, ms", "old/new", "", "", "", "",
            ],
        ] {
            writeln!(
                self.out,
                "{time:>6} {wanted:>7} {observed:>8} {open:>7} {first:>11} {gap:>11} {completed:>11} {failed:>6} \
                 {broken:>6} {recovered:>9} {continued:>9}"
            )?;
        }
        Ok(())
    }

    fn line(&mut self, demo_frame: &DemoFrame<'_>) -> io::Result<()> {
        let sample = &demo_frame.sample;
        let [old, new] = sample.open;
        let open = format!("{old}/{new}");
        let first = sample
            .first_event
            .map(|times| milliseconds(times.p50, 0))
            .join("/");
        let gap = sample.gap.map(|times| milliseconds(times.p50, 1)).join("/");
        let completed = demo_frame
            .clients
            .completed
            .map(|count| count.to_string())
            .join("/");
        writeln!(
            self.out,
            "{:>4} s {:>7} {:>8} {open:>7} {first:>11} {gap:>11} {completed:>11} {:>6} {:>6} {:>9} {:>9}",
            demo_frame.elapsed.as_secs(),
            percent(Some(sample.wanted)),
            percent(sample.observed),
            demo_frame.clients.failed,
            demo_frame.clients.broken + demo_frame.clients.unreachable,
            sample.recovered,
            sample.continued,
        )
    }
}

/// What happens now, unless every line shows it anyway.
fn event(demo_frame: &DemoFrame<'_>) -> Option<String> {
    match demo_frame.state.killed {
        _ if demo_frame.is_over() => Some(demo_frame.caption()),
        None => None,
        Some((killed, ServerState::Down(_))) => Some(format!(
            "the {} upstream is KILLED",
            killed.as_str().to_uppercase()
        )),
        Some((_, ServerState::Restarted)) => Some(demo_frame.caption()),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::demo::frame::tests::example;
    use crate::demo::script::Script;

    #[test]
    fn there_is_a_line_a_second_and_one_for_each_event_without_escape_codes() {
        let outages: Vec<_> = Script::new(60).outages().collect();
        let mut plain = Plain::new(Vec::new());
        let demo_frame = example(&[], &outages);
        plain.show(&demo_frame).unwrap();
        plain.show(&demo_frame).unwrap();
        let next = DemoFrame {
            elapsed: demo_frame.elapsed + Duration::from_secs(1),
            ..demo_frame
        };
        plain.show(&next).unwrap();
        let text = String::from_utf8(plain.out).unwrap();
        assert_eq!(text.lines().count(), 3 + 1 + 2, "{text}");
        assert!(!text.contains('\x1b'));
        assert!(text.contains("the NEW upstream is KILLED"));
        let line = text.lines().last().unwrap();
        for figure in [
            "50.0%",
            "48.7%",
            "27/16",
            "211/209",
            "30.3/31.3",
            "631/214",
            " 21 ",
            " 37 ",
            " 9",
        ] {
            assert!(line.contains(figure), "{figure} in {line}");
        }
    }
}
