//! One screen of `crossfade status --watch`: the last report that could be read, preceded by an error if a newer one could not.

/// Moves the cursor to the top left and clears the screen below it (ECMA-48 CUP, ED).
const CLEAR: &str = "\x1b[H\x1b[J";

/// What to draw.
#[derive(Debug, Default)]
pub(super) struct Frame {
    /// The last report, and when it was read.
    report: Option<(String, String)>,
    /// The error of the last attempt since then, and when it was made.
    error: Option<(String, String)>,
}

impl Frame {
    pub fn report(&mut self, at: String, text: String) {
        self.report = Some((at, text));
        self.error = None;
    }

    pub fn failed(&mut self, at: String, why: String) {
        self.error = Some((at, why));
    }

    /// Cuts the text to this many columns and rows. Keeps the top, which matters most.
    pub fn draw(&self, size: Option<(u16, u16)>) -> String {
        let error = self.error.as_ref().map(|(at, why)| {
            let below = match &self.report {
                Some((at, _)) => format!("below is the state as of {at}"),
                None => "there is no earlier state".to_owned(),
            };
            format!("! {at}  {why}\n  {below}\n\n")
        });
        let report = self.report.as_ref().map_or("", |(_, text)| text);
        let text = error.unwrap_or_default() + report;
        let text = match size {
            Some((columns, rows)) => cut(&text, columns.into(), rows.into()),
            None => text,
        };
        format!("{CLEAR}{text}")
    }
}

/// The first lines that fit, and a note about the rest. The cursor needs a separate row below them.
fn cut(text: &str, columns: usize, rows: usize) -> String {
    let height = |line: &str| line.chars().count().div_ceil(columns).max(1);
    let room = rows.saturating_sub(1).max(1);
    if text.lines().map(height).sum::<usize>() <= room {
        return text.to_owned();
    }
    let mut left = room - 1;
    let mut kept: Vec<&str> = Vec::new();
    for line in text.lines() {
        let Some(rest) = left.checked_sub(height(line)) else {
            break;
        };
        left = rest;
        kept.push(line);
    }
    let hidden = text.lines().count() - kept.len();
    let word = if hidden == 1 { "line" } else { "lines" };
    let last = format!("… {hidden} more {word}: enlarge the terminal");
    let last: String = last.chars().take(columns).collect();
    kept.push(&last);
    kept.join("\n") + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_stands_above_the_last_report_until_there_is_a_new_one() {
        let mut frame = Frame::default();
        frame.failed("12:00:01Z".into(), "connection refused".into());
        let text = frame.draw(None);
        assert!(
            text.contains("12:00:01Z  connection refused\n  there is no earlier state"),
            "{text}"
        );
        frame.report("12:00:03Z".into(), "all is well\n".into());
        assert_eq!(frame.draw(None), format!("{CLEAR}all is well\n"));
        frame.failed("12:00:05Z".into(), "connection refused".into());
        let text = frame.draw(None);
        assert!(
            text.starts_with(&format!("{CLEAR}! 12:00:05Z  connection refused\n")),
            "{text}"
        );
        assert!(text.ends_with("as of 12:00:03Z\n\nall is well\n"), "{text}");
    }

    #[test]
    fn lines_that_do_not_fit_are_cut_from_the_end_and_counted() {
        assert_eq!(cut("a\nb\n", 80, 3), "a\nb\n");
        assert_eq!(
            cut("a\nb\nc\n", 80, 3),
            "a\n… 2 more lines: enlarge the terminal\n"
        );
        // A line that is wrapped takes two rows.
        assert_eq!(cut("a\nbbbbb\nc\n", 4, 4), "a\n… 2 \n");
        assert_eq!(
            cut("a\nb\n", 80, 1),
            "… 2 more lines: enlarge the terminal\n"
        );
        assert_eq!(cut("", 80, 1), "");
    }
}
