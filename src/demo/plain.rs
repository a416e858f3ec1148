//! The demo as plain lines, one a second: for a pipe, a log, a terminal that cannot do more.
//!
//! Must not know a terminal: no escape codes.

use std::io::{self, Write};

use super::scene::{Scene, milliseconds, percent};
use super::script::Life;

/// Writes lines to `W`.
#[derive(Debug)]
pub(super) struct Plain<W> {
    out: W,
    next_second: u64,
    /// The last one that was written.
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

    /// Writes what is new since the last picture; pairs of figures are old/new.
    pub(super) fn show(&mut self, scene: &Scene<'_>) -> io::Result<()> {
        let seconds = scene.elapsed.as_secs();
        if self.next_second == 0 {
            self.head(scene)?;
        }
        let event = event(scene);
        if event != self.event {
            if let Some(event) = &event {
                writeln!(self.out, "{seconds:>4} s  {event}")?;
            }
            self.event = event;
        }
        if seconds >= self.next_second {
            self.next_second = seconds + 1;
            self.line(scene)?;
        }
        self.out.flush()
    }

    fn head(&mut self, scene: &Scene<'_>) -> io::Result<()> {
        write!(
            self.out,
            "crossfade demo: {} clients on http://{}",
            scene.streams, scene.address
        )?;
        match scene.page {
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
            saved,
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
                "saved",
            ],
            [
                "", "", "", "old/new", "p50, ms", "p50, ms", "old/new", "", "", "",
            ],
        ] {
            writeln!(
                self.out,
                "{time:>6} {wanted:>7} {observed:>8} {open:>7} {first:>11} {gap:>11} {completed:>11} {failed:>6} \
                 {broken:>6} {saved:>5}"
            )?;
        }
        Ok(())
    }

    fn line(&mut self, scene: &Scene<'_>) -> io::Result<()> {
        let sample = &scene.sample;
        let [old, new] = sample.open;
        let open = format!("{old}/{new}");
        let first = sample
            .first_event
            .map(|times| milliseconds(times.p50, 0))
            .join("/");
        let gap = sample.gap.map(|times| milliseconds(times.p50, 1)).join("/");
        let completed = scene
            .seen
            .completed
            .map(|count| count.to_string())
            .join("/");
        writeln!(
            self.out,
            "{:>4} s {:>7} {:>8} {open:>7} {first:>11} {gap:>11} {completed:>11} {:>6} {:>6} {:>5}",
            scene.elapsed.as_secs(),
            percent(Some(sample.wanted)),
            percent(sample.observed),
            scene.seen.failed,
            scene.seen.broken + scene.seen.unreachable,
            sample.saves,
        )
    }
}

/// What happens, where that is not in every line anyway.
fn event(scene: &Scene<'_>) -> Option<String> {
    match scene.situation.victim {
        _ if scene.is_over() => Some(scene.caption()),
        None => None,
        Some((victim, Life::Dead(_))) => Some(format!(
            "the {} upstream is KILLED",
            victim.as_str().to_uppercase()
        )),
        Some((_, Life::Back)) => Some(scene.caption()),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::demo::scene::tests::example;
    use crate::demo::script::Script;

    #[test]
    fn there_is_a_line_a_second_and_one_for_each_event_without_escape_codes() {
        let outages: Vec<_> = Script::new(60).outages().collect();
        let mut plain = Plain::new(Vec::new());
        let scene = example(&[], &outages);
        plain.show(&scene).unwrap();
        plain.show(&scene).unwrap();
        let next = Scene {
            elapsed: scene.elapsed + Duration::from_secs(1),
            ..scene
        };
        plain.show(&next).unwrap();
        let text = String::from_utf8(plain.out).unwrap();
        assert_eq!(text.lines().count(), 3 + 1 + 2, "{text}");
        assert!(!text.contains('\x1b'));
        assert!(text.contains("the NEW upstream is KILLED"));
        let line = text.lines().last().unwrap();
        for figure in [
            "50.0 %",
            "48.7 %",
            "27/16",
            "211/209",
            "30.3/31.3",
            "631/214",
            " 21 ",
            " 37",
        ] {
            assert!(line.contains(figure), "{figure} in {line}");
        }
    }
}
