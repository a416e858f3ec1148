//! A report in colour: names of lines in bold, good and bad values in green, yellow or red.
//!
//! Takes the plain text as it is, and adds only terminal codes (ECMA-48 SGR).

/// The column of values, as in `text`.
const COLUMN: usize = 12;
const BOLD: &str = "1";
const RED: &str = "31";
const GREEN: &str = "32";
const YELLOW: &str = "33";

/// The same text in colour.
#[must_use]
pub fn coloured(text: &str) -> String {
    text.split_inclusive('\n').map(line).collect()
}

fn line(line: &str) -> String {
    let content = line.trim_end_matches('\n');
    let end = &line[content.len()..];
    if content.starts_with("! ") {
        return format!("{}{end}", painted(RED, content));
    }
    if content.starts_with("NAME ") {
        return format!("{}{end}", painted(BOLD, content));
    }
    let Some((name, value)) = content.split_at_checked(COLUMN) else {
        return line.to_owned();
    };
    let is_name = name.starts_with(|first: char| first.is_ascii_lowercase()) && name.ends_with(' ');
    if !is_name {
        return line.to_owned();
    }
    let word = name.trim_end();
    let value = match colour(word, value) {
        Some(colour) => painted(colour, value),
        None => value.to_owned(),
    };
    format!("{}{}{value}{end}", painted(BOLD, word), &name[word.len()..])
}

/// The colour of the value of a line with this name.
fn colour(name: &str, value: &str) -> Option<&'static str> {
    let first = value.split([',', ' ']).next().unwrap_or_default();
    match (name, first) {
        ("phase", "Complete" | "Progressing") => Some(GREEN),
        ("phase", "Degraded") | ("degraded" | "rejected", _) => Some(RED),
        ("phase", "Paused" | "Pending" | "Draining" | "Superseded") | ("paused" | "cap", _) => {
            Some(YELLOW)
        }
        ("old", "can") => Some(GREEN),
        _ => None,
    }
}

fn painted(colour: &str, text: &str) -> String {
    format!("\x1b[{colour}m{text}\x1b[0m")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_do_not_change_the_text() {
        let text = "update      x in namespace y, edit 1 of it\nphase       Degraded, by the rule r\n            why\nold         can be deleted\n\
                    ! 12:00:00Z  cannot list\n  below\nNAME   PHASE\nä           b\nshort\n\n";
        let shown = coloured(text);
        assert!(
            shown.contains("\x1b[1mphase\x1b[0m       \x1b[31mDegraded, by the rule r\x1b[0m\n"),
            "{shown}"
        );
        assert!(
            shown.contains("\x1b[1mold\x1b[0m         \x1b[32mcan be deleted\x1b[0m\n"),
            "{shown}"
        );
        assert!(
            shown.contains(
                "\x1b[31m! 12:00:00Z  cannot list\x1b[0m\n  below\n\x1b[1mNAME   PHASE\x1b[0m\n"
            ),
            "{shown}"
        );
        let mut plain = shown;
        for code in ["\x1b[0m", "\x1b[1m", "\x1b[31m", "\x1b[32m", "\x1b[33m"] {
            plain = plain.replace(code, "");
        }
        assert_eq!(plain, text);
    }
}
