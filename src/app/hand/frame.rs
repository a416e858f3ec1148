//! One picture of a watch on a terminal: the last look that succeeded, and above it why there is no newer one.
//!
//! Must not know a terminal but for its size and how a picture begins.

/// Puts the cursor home and takes away what is below it (ECMA-48 CUP, ED).
const AFRESH: &str = "\x1b[H\x1b[J";

/// What is to be drawn.
#[derive(Debug, Default)]
pub(super) struct Frame {
    /// The last good look, and when it was.
    good: Option<(String, String)>,
    /// Why the looks since then failed, and when the last one did.
    trouble: Option<(String, String)>,
}

impl Frame {
    pub fn saw(&mut self, at: String, text: String) {
        self.good = Some((at, text));
        self.trouble = None;
    }

    pub fn failed(&mut self, at: String, why: String) {
        self.trouble = Some((at, why));
    }

    /// All of it, as far as it has room in these columns and rows: what is at the head matters most.
    pub fn drawn(&self, size: Option<(u16, u16)>) -> String {
        let trouble = self.trouble.as_ref().map(|(at, why)| {
            let below = match &self.good {
                Some((at, _)) => format!("below is what was seen at {at}"),
                None => "nothing was seen before".to_owned(),
            };
            format!("! {at}  {why}\n  {below}\n\n")
        });
        let good = self.good.as_ref().map_or("", |(_, text)| text);
        let text = trouble.unwrap_or_default() + good;
        let text = match size {
            Some((columns, rows)) => cut(&text, columns.into(), rows.into()),
            None => text,
        };
        format!("{AFRESH}{text}")
    }
}

/// The first lines that have room, with a word about the others. The cursor needs a row of its own below them.
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
    let last = format!("… {hidden} more {word}: make the terminal higher");
    let last: String = last.chars().take(columns).collect();
    kept.push(&last);
    kept.join("\n") + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trouble_stands_above_the_last_good_look_until_there_is_a_new_one() {
        let mut frame = Frame::default();
        frame.failed("12:00:01Z".into(), "no way there".into());
        let text = frame.drawn(None);
        assert!(
            text.contains("12:00:01Z  no way there\n  nothing was seen before"),
            "{text}"
        );
        frame.saw("12:00:03Z".into(), "all is well\n".into());
        assert_eq!(frame.drawn(None), format!("{AFRESH}all is well\n"));
        frame.failed("12:00:05Z".into(), "no way there".into());
        let text = frame.drawn(None);
        assert!(
            text.starts_with(&format!("{AFRESH}! 12:00:05Z  no way there\n")),
            "{text}"
        );
        assert!(
            text.ends_with("seen at 12:00:03Z\n\nall is well\n"),
            "{text}"
        );
    }

    #[test]
    fn what_has_no_room_is_cut_from_the_end_and_counted() {
        assert_eq!(cut("a\nb\n", 80, 3), "a\nb\n");
        assert_eq!(
            cut("a\nb\nc\n", 80, 3),
            "a\n… 2 more lines: make the terminal higher\n"
        );
        // A line that is wrapped takes two rows.
        assert_eq!(cut("a\nbbbbb\nc\n", 4, 4), "a\n… 2 \n");
        assert_eq!(
            cut("a\nb\n", 80, 1),
            "… 2 more lines: make the terminal higher\n"
        );
        assert_eq!(cut("", 80, 1), "");
    }
}
