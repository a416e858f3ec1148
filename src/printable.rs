//! Escapes text from outside so that it is safe to print: characters that control a terminal, break a line or change the
//! reading order.
//!
//! The escapes are those of JSON (`\n`, `\u009b`), so they are also valid in a JSON string.

mod numbers;

use std::fmt::{self, Display, Write};
use std::io;

use serde::Serialize;
use serde_json::ser::{CompactFormatter, Formatter, PrettyFormatter};

pub use self::numbers::{are, counted, latency, needed, only, percent, plural, seconds, thousands};

/// Whether a terminal or a log reader interprets the character, or it is invisible.
///
/// These are the control characters (C0, DEL and C1), line and paragraph separators, the controls of the bidirectional
/// algorithm (UAX #9), and other invisible characters, which make two texts look alike.
#[must_use]
pub const fn is_unsafe(c: char) -> bool {
    matches!(c,
        '\0'..='\u{1f}' | '\u{7f}'..='\u{9f}'
        | '\u{ad}' | '\u{61c}' | '\u{180e}'
        | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
        | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

/// A value whose text is escaped when it is displayed.
#[derive(Clone, Copy, Debug)]
pub struct Printable<T> {
    value: T,
    keep: &'static [&'static str],
}

/// `value` in one line.
#[must_use]
pub const fn printable<T: Display>(value: T) -> Printable<T> {
    Printable { value, keep: &[] }
}

/// `value` with the line breaks of this program. Parts from outside must have been escaped by [`printable`] before, or their
/// line breaks stay too.
#[must_use]
pub const fn printable_lines<T: Display>(value: T) -> Printable<T> {
    Printable {
        value,
        keep: &["\n"],
    }
}

/// The escape sequences of colors and styles (ECMA-48, SGR) that a terminal shows and that hide nothing.
const STYLES: &[&str] = &[
    "\u{1b}[0m",
    "\u{1b}[1m",
    "\u{1b}[2m",
    "\u{1b}[3m",
    "\u{1b}[31m",
    "\u{1b}[32m",
    "\u{1b}[33m",
    "\u{1b}[34m",
    "\u{1b}[35m",
    "\u{1b}[36m",
];

/// `value` in one line, with its colors.
#[must_use]
pub const fn printable_with_styles<T: Display>(value: T) -> Printable<T> {
    Printable {
        value,
        keep: STYLES,
    }
}

impl<T: Display> Display for Printable<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let keep = self.keep;
        write!(Escaping { out: f, keep }, "{}", self.value)
    }
}

/// Escapes what is written through it.
struct Escaping<'a, 'b> {
    out: &'a mut fmt::Formatter<'b>,
    keep: &'static [&'static str],
}

impl Write for Escaping<'_, '_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let mut rest = text;
        while let Some(at) = rest.find(is_unsafe) {
            let (safe, found) = rest.split_at(at);
            self.out.write_str(safe)?;
            if let Some(kept) = self.keep.iter().find(|kept| found.starts_with(**kept)) {
                self.out.write_str(kept)?;
                rest = &found[kept.len()..];
                continue;
            }
            let mut chars = found.chars();
            if let Some(c) = chars.next() {
                escape(c, self.out)?;
            }
            rest = chars.as_str();
        }
        self.out.write_str(rest)
    }
}

fn escape(c: char, out: &mut impl Write) -> fmt::Result {
    match c {
        '\n' => out.write_str("\\n"),
        '\r' => out.write_str("\\r"),
        '\t' => out.write_str("\\t"),
        c => {
            let mut units = [0; 2];
            c.encode_utf16(&mut units)
                .iter()
                .try_for_each(|unit| write!(out, "\\u{unit:04x}"))
        }
    }
}

/// Writes `value` as JSON in one line, escaped for printing.
///
/// # Errors
/// When serializing or writing fails.
pub fn write_json<T: Serialize + ?Sized>(out: impl io::Write, value: &T) -> serde_json::Result<()> {
    let formatter = Json(CompactFormatter);
    value.serialize(&mut serde_json::Serializer::with_formatter(out, formatter))
}

/// The same over several lines, indented.
///
/// # Errors
/// When serializing or writing fails.
pub fn write_json_pretty<T: Serialize + ?Sized>(
    out: impl io::Write,
    value: &T,
) -> serde_json::Result<()> {
    let formatter = Json(PrettyFormatter::new());
    value.serialize(&mut serde_json::Serializer::with_formatter(out, formatter))
}

/// A JSON formatter that escapes more than JSON requires (RFC 8259 §7), which allows DEL, C1 and bidirectional controls.
struct Json<F>(F);

impl<F: Formatter> Formatter for Json<F> {
    fn write_string_fragment<W: ?Sized + io::Write>(
        &mut self,
        out: &mut W,
        fragment: &str,
    ) -> io::Result<()> {
        if fragment.bytes().all(|byte| matches!(byte, b' '..=b'~')) {
            return out.write_all(fragment.as_bytes());
        }
        write!(out, "{}", printable(fragment))
    }

    fn begin_array<W: ?Sized + io::Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.0.begin_array(out)
    }

    fn end_array<W: ?Sized + io::Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.0.end_array(out)
    }

    fn begin_array_value<W: ?Sized + io::Write>(
        &mut self,
        out: &mut W,
        first: bool,
    ) -> io::Result<()> {
        self.0.begin_array_value(out, first)
    }

    fn end_array_value<W: ?Sized + io::Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.0.end_array_value(out)
    }

    fn begin_object<W: ?Sized + io::Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.0.begin_object(out)
    }

    fn end_object<W: ?Sized + io::Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.0.end_object(out)
    }

    fn begin_object_key<W: ?Sized + io::Write>(
        &mut self,
        out: &mut W,
        first: bool,
    ) -> io::Result<()> {
        self.0.begin_object_key(out, first)
    }

    fn begin_object_value<W: ?Sized + io::Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.0.begin_object_value(out)
    }

    fn end_object_value<W: ?Sized + io::Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.0.end_object_value(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_escaped_and_the_rest_stays() {
        for (given, shown) in [
            ("", ""),
            ("new.example:8000", "new.example:8000"),
            ("Größe 東京 🚀 a\\b \"c\"", "Größe 東京 🚀 a\\b \"c\""),
            ("a\nb\r\tc", "a\\nb\\r\\tc"),
            ("\0\u{1b}[2J\u{7}\u{7f}", "\\u0000\\u001b[2J\\u0007\\u007f"),
            ("\u{9b}2J\u{85}x", "\\u009b2J\\u0085x"),
            ("\u{202e}fdp\u{2066}\u{2069}", "\\u202efdp\\u2066\\u2069"),
            ("\u{200e}\u{200f}\u{61c}", "\\u200e\\u200f\\u061c"),
            ("a\u{2028}b\u{2029}c", "a\\u2028b\\u2029c"),
            ("\u{feff}\u{200b}x", "\\ufeff\\u200bx"),
            ("\u{e0041}", "\\udb40\\udc41"),
        ] {
            assert_eq!(printable(given).to_string(), shown, "{given:?}");
            let mut json = Vec::new();
            write_json(&mut json, given).unwrap();
            let json = String::from_utf8(json).unwrap();
            assert!(!json.contains(is_unsafe), "{json:?}");
            assert_eq!(serde_json::from_str::<String>(&json).unwrap(), given);
        }
    }

    #[test]
    fn line_breaks_of_this_program_can_be_kept() {
        let text = format!("first: {}\nsecond", printable("a\nb"));
        let shown = printable_lines(text + "\u{1b}").to_string();
        assert_eq!(shown, "first: a\\nb\nsecond\\u001b");
    }

    #[test]
    fn colors_can_be_kept_and_other_escape_sequences_cannot() {
        let text = "\u{1b}[32m INFO\u{1b}[0m a\u{1b}]0;title\u{7}\u{1b}[8mhidden\u{1b}[2K\u{1b}";
        assert_eq!(
            printable_with_styles(text).to_string(),
            "\u{1b}[32m INFO\u{1b}[0m a\\u001b]0;title\\u0007\\u001b[8mhidden\\u001b[2K\\u001b"
        );
    }

    #[test]
    fn json_over_several_lines_stays_json() {
        let value = serde_json::json!({"a\u{9b}": ["\u{202e}", {}], "b": 1});
        let mut text = Vec::new();
        write_json_pretty(&mut text, &value).unwrap();
        let text = String::from_utf8(text).unwrap();
        assert!(text.lines().count() > 3);
        assert!(!text.replace('\n', "").contains(is_unsafe), "{text:?}");
        let back: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(back, value);
    }
}
