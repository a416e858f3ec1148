//! Replaces a part of a scalar where it is written. Tools such as kubectl fold a long line at a space, and escape quotes.

use std::ops::Range;

/// The ranges of a text, each with what replaces it.
pub(super) type Edits = Vec<(Range<usize>, String)>;

/// The edits of a scalar that replace every `from` with `to`, if it has so many.
pub(super) fn exactly(written: &str, from: &str, to: &str, times: usize) -> Option<Edits> {
    let all = [literal, rewritten].map(|edits| edits(written, from, to));
    all.into_iter().find(|edits| edits.len() == times)
}

pub(super) fn literal(written: &str, from: &str, to: &str) -> Edits {
    let places = written.match_indices(from);
    let edits = places.map(|(at, from)| (at..at + from.len(), to.to_owned()));
    edits.collect()
}

/// The same where a line may be folded within `from`, or a character escaped. All this stays, unless it is in the part that changes.
fn rewritten(written: &str, from: &str, to: &str) -> Edits {
    let head = common(from.chars(), to.chars());
    let (rest, new) = (&from[head..], &to[head..]);
    let tail = common(rest.chars().rev(), new.chars().rev());
    let (old, new) = (&rest[..rest.len() - tail], &new[..new.len() - tail]);
    let (head, tail) = (&from[..head], &rest[rest.len() - tail..]);
    let find = |at: usize| {
        let start = after(written, at, head)?;
        let end = after(written, start, old)?;
        Some((start..end, after(written, end, tail)?))
    };
    let mut edits = Edits::new();
    let mut next = 0;
    for (at, _) in written.char_indices() {
        if at >= next
            && let Some((range, end)) = find(at)
        {
            edits.push((range, new.to_owned()));
            next = end;
        }
    }
    edits
}

/// The length of what two texts have in common at their beginning.
fn common(one: impl Iterator<Item = char>, other: impl Iterator<Item = char>) -> usize {
    let pairs = one.zip(other).take_while(|(one, other)| one == other);
    pairs.map(|(one, _)| one.len_utf8()).sum()
}

/// The position after `part`, if it is written at `at`.
fn after(written: &str, at: usize, part: &str) -> Option<usize> {
    let (is_double, is_single) = (written.starts_with('"'), written.starts_with('\''));
    part.chars().try_fold(at, |at, c| {
        let rest = &written[at..];
        let escaped = match c {
            ' ' => return after_space(written, at),
            '"' if is_double => "\\\"",
            '\\' if is_double => "\\\\",
            '\t' if is_double && !rest.starts_with(c) => "\\t",
            '\'' if is_single => "''",
            _ => return rest.starts_with(c).then(|| at + c.len_utf8()),
        };
        rest.starts_with(escaped).then(|| at + escaped.len())
    })
}

/// The position after a space, or after a line break that stands for one.
fn after_space(written: &str, at: usize) -> Option<usize> {
    let blanks = [' ', '\t'];
    let rest = &written[at..];
    let line = rest.trim_start_matches(blanks);
    // In double quotes, a backslash before the line break removes it.
    let escaped = line.strip_prefix('\\');
    let end = escaped.unwrap_or(line);
    let next = end.strip_prefix('\n').or(end.strip_prefix("\r\n"));
    let Some(next) = next.map(|next| next.trim_start_matches(blanks)) else {
        return rest.starts_with(' ').then_some(at + 1);
    };
    let next = match escaped.is_some() && line.len() == rest.len() {
        true => next.strip_prefix("\\ ")?,
        false => next,
    };
    let is_blank_line = next.starts_with(['\n', '\r']);
    (!is_blank_line).then_some(written.len() - next.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_replaced_where_it_is_folded_or_escaped_and_back() {
        for (written, from, to, expected) in [
            ("a --port 80 b", "--port 80", "--port 90", "a --port 90 b"),
            (
                "a --port\n  80 b",
                "--port 80",
                "--port 90",
                "a --port\n  90 b",
            ),
            (
                "a --port \r\n 80",
                "--port 80",
                "--port 90",
                "a --port \r\n 90",
            ),
            (
                "v\n  serve\n  m",
                "v serve",
                "v serve -p 1",
                "v\n  serve -p 1\n  m",
            ),
            (
                "v serve\n  m",
                "v serve m",
                "v serve -p 1 m",
                "v serve\n  -p 1 m",
            ),
            (
                "\"a -p\\\n  \\ 80\"",
                "-p 80",
                "-p 90",
                "\"a -p\\\n  \\ 90\"",
            ),
            ("\"a -p \\\n  80\"", "-p 80", "-p 90", "\"a -p \\\n  90\""),
            (
                r#""a -p \"80\" b""#,
                r#"-p "80" b"#,
                r#"-p "90" b"#,
                r#""a -p \"90\" b""#,
            ),
            ("'a ''-p 80'''", "'-p 80'", "'-p 90'", "'a ''-p 90'''"),
            (r#""a\t-p\t80""#, "-p\t80", "-p\t90", r#""a\t-p\t90""#),
            ("é -p\n 80 é", "é -p 80 é", "é -p 90 é", "é -p\n 90 é"),
        ] {
            let replace = |written: &str, from: &str, to: &str| {
                let edits = exactly(written, from, to, 1).unwrap();
                let (range, new) = &edits[0];
                [&written[..range.start], new, &written[range.end..]].concat()
            };
            let new = replace(written, from, to);
            assert_eq!(new, expected);
            assert_eq!(replace(&new, to, from), written);
        }
        assert_eq!(exactly("-p\n\n 80", "-p 80", "-p 90", 1), None);
        assert_eq!(
            exactly("-p 80 -p\n 80", "-p 80", "-p 90", 1).map(|all| all.len()),
            Some(1)
        );
        assert_eq!(
            exactly("-p 80 -p\n 80", "-p 80", "-p 90", 2).map(|all| all.len()),
            Some(2)
        );
    }
}
