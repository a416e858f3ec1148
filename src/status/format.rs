//! Formats text, numbers and bars for a terminal.
//!
//! Text from outside (messages, names, problems) may contain anything, so it is escaped: it must not move the cursor or reverse a
//! line.

/// Width of a bar of the split, in cells. With this width, the line of the observed split fits 80 columns.
pub(super) const BAR: usize = 12;

/// The text as [`crate::printable`] escapes it, with spaces instead of tabs.
#[must_use]
pub fn printable(text: &str) -> String {
    crate::printable::printable(text.replace('\t', " ")).to_string()
}

/// A share in percent, with a bar.
pub(super) fn share(share: Option<f64>) -> String {
    match share {
        None => format!("{:>6}  {}", "-", bar(0.0, BAR)),
        Some(share) => format!(
            "{:>6}  {}",
            crate::printable::percent(share),
            bar(share, BAR)
        ),
    }
}

/// A share that is usually a whole percentage: `70%`, `33.3%`.
pub(super) fn percent(share: f64) -> String {
    crate::printable::percent(share).replace(".0%", "%")
}

/// A bar of `width` cells with this share of them filled.
pub(super) fn bar(share: f64, width: usize) -> String {
    let filled = ((share.clamp(0.0, 1.0) * width as f64).round() as usize).min(width);
    "█".repeat(filled) + &"░".repeat(width - filled)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_fill_to_their_share() {
        assert_eq!(bar(0.5, 4), "██░░");
        assert_eq!(bar(7.0, 2), "██");
        assert_eq!(percent(0.7), "70%");
        assert_eq!(percent(1.0 / 3.0), "33.3%");
    }

    #[test]
    fn text_from_outside_cannot_control_a_terminal() {
        let hostile = "a\x1b[2J\u{9b}31m\r\u{202e}\x7f\n\tb é 漢";
        let plain = printable(hostile);
        assert_eq!(plain, r"a\u001b[2J\u009b31m\r\u202e\u007f\n b é 漢");
    }
}
