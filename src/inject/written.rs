//! Replaces a part of a scalar where it is written. Tools such as kubectl fold a long line at a space, and escape quotes.

use std::ops::Range;

/// The ranges of a text, each with what replaces it.
pub(super) type Edits = Vec<(Range<usize>, String)>;

/// The edits of a scalar that replace every `from` with `to`, if it has so many.
pub(super) fn exactly(written: &str, from: &str, to: &str, times: usize) -> Option<Edits> {
    let all = literal(written, from, to);
    if all.len() == times {
        return Some(all);
    }
    let all = rewritten(written, from, to);
    (all.len() == times * changes(from, to)).then_some(all)
}

pub(super) fn literal(written: &str, from: &str, to: &str) -> Edits {
    let places = written.match_indices(from);
    let edits = places.map(|(at, from)| (at..at + from.len(), to.to_owned()));
    edits.collect()
}

/// The same where a line may be folded within `from`, or a character escaped. All this stays, unless it is in a part that changes.
fn rewritten(written: &str, from: &str, to: &str) -> Edits {
    let parts = parts(from, to);
    let find = |at: usize| {
        let mut edits = Edits::new();
        let mut end = at;
        for (old, new) in &parts {
            let start = end;
            end = after(written, start, old)?;
            if old != new {
                edits.push((start..end, (*new).to_owned()));
            }
        }
        Some((edits, end))
    };
    let mut found = Edits::new();
    let mut next = 0;
    for (at, _) in written.char_indices() {
        if at >= next
            && let Some((edits, end)) = find(at)
        {
            found.extend(edits);
            next = end;
        }
    }
    found
}

/// How many parts of `from` [`rewritten`] replaces in each place.
fn changes(from: &str, to: &str) -> usize {
    let parts = parts(from, to);
    parts.iter().filter(|(old, new)| old != new).count()
}

/// Two texts part by part. If they differ only in numbers, each of these is a part, so that all between them stays; otherwise,
/// everything from the first difference to the last.
fn parts<'t>(from: &'t str, to: &'t str) -> Vec<(&'t str, &'t str)> {
    let (old, new) = (runs(from), runs(to));
    let is_number = |run: &str| run.starts_with(|c: char| c.is_ascii_digit());
    let pairs = || old.iter().copied().zip(new.iter().copied());
    if old.len() == new.len()
        && pairs().all(|(old, new)| old == new || is_number(old) && is_number(new))
    {
        return pairs().collect();
    }
    let head = common(from.chars(), to.chars());
    let (rest, new) = (&from[head..], &to[head..]);
    let tail = common(rest.chars().rev(), new.chars().rev());
    let (head, middle) = (&from[..head], rest.len() - tail);
    let (middle, tail) = rest.split_at(middle);
    vec![
        (head, head),
        (middle, &new[..new.len() - tail.len()]),
        (tail, tail),
    ]
}

/// The numbers in a text, and what is between them.
fn runs(text: &str) -> Vec<&str> {
    let mut runs = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let is_number = first.is_ascii_digit();
        let end = rest.find(|c: char| c.is_ascii_digit() != is_number);
        let (run, after) = rest.split_at(end.unwrap_or(rest.len()));
        runs.push(run);
        rest = after;
    }
    runs
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
        // Only the numbers change, and not the folded line between them.
        let edits = exactly("a:80\n  b:80", "a:80 b:80", "a:9090 b:9090", 1).unwrap();
        assert_eq!(
            edits,
            [(2..4, "9090".to_owned()), (9..11, "9090".to_owned())]
        );
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
