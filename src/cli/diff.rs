//! A unified diff of two texts, which `patch` and `git apply` accept.

use std::fmt::Write;

use similar::{Algorithm, ChangeTag, DiffOp, DiffTag, TextDiff};

/// How many unchanged lines surround a change.
const CONTEXT: usize = 3;

/// The changes from `before` to `after`, two versions of the file `name`; empty if there are none.
pub(super) fn unified(name: &str, before: &str, after: &str) -> String {
    // Only at line feeds: `patch` takes a carriage return for a part of its line.
    let [old, new] = [before, after].map(|text| text.split_inclusive('\n').collect::<Vec<_>>());
    // The default algorithm takes the square of the number of changes. Lines that occur once, such as names, divide the text.
    let diff = TextDiff::configure()
        .algorithm(Algorithm::Patience)
        .diff_slices(&old, &new);
    let mut text = String::new();
    let (mut removed, mut added) = (0, 0);
    for hunk in diff.grouped_ops(CONTEXT) {
        let first = hunk.first().map_or(0, |op| op.old_range().start);
        let [old, new] = [DiffTag::Insert, DiffTag::Delete].map(|other| lines(&hunk, other));
        if text.is_empty() {
            let _ = writeln!(text, "--- {name}\n+++ {name}");
        }
        // Not as the operations have it: their positions in the new text may be wrong (similar 2.7).
        let (old_range, new_range) = (range(first, old), range(first + added - removed, new));
        let _ = writeln!(text, "@@ -{old_range} +{new_range} @@");
        (removed, added) = (removed + old, added + new);
        for change in hunk.iter().flat_map(|op| diff.iter_changes(op)) {
            text.push(match change.tag() {
                ChangeTag::Equal => ' ',
                ChangeTag::Delete => '-',
                ChangeTag::Insert => '+',
            });
            text += change.value();
            if !change.value().ends_with('\n') {
                text += "\n\\ No newline at end of file\n";
            }
        }
    }
    text
}

/// How many lines the operations cover, except those that only exist in the `other` text.
fn lines(hunk: &[DiffOp], other: DiffTag) -> usize {
    let own = hunk.iter().filter(|op| op.tag() != other);
    own.map(|op| match other {
        DiffTag::Insert => op.old_range().len(),
        _ => op.new_range().len(),
    })
    .sum()
}

/// `count` lines after the first `before` ones, in the notation of a diff.
fn range(before: usize, count: usize) -> String {
    match count {
        0 => format!("{before},0"),
        1 => (before + 1).to_string(),
        _ => format!("{},{count}", before + 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Applies a diff as strictly as `patch --fuzz=0`.
    fn patched(before: &str, diff: &str) -> String {
        let old: Vec<&str> = before.split_inclusive('\n').collect();
        let (mut result, mut at) = (Vec::new(), 0);
        let mut lines = diff.split_inclusive('\n').skip(2).peekable();
        while let Some(head) = lines.next() {
            let mut words = head.split(' ').skip(1).map(|range| {
                let (start, count) = range[1..].split_once(',').unwrap_or((&range[1..], "1"));
                let (start, count): (usize, usize) =
                    (start.parse().unwrap(), count.parse().unwrap());
                (start - usize::from(count > 0), count)
            });
            let ((start, mut left), (new_start, mut new_left)) =
                (words.next().unwrap(), words.next().unwrap());
            result.extend_from_slice(&old[at..start]);
            at = start;
            assert_eq!(result.len(), new_start, "{head}");
            while left + new_left > 0 {
                let line = lines.next().unwrap();
                let is_last = lines.next_if(|line| line.starts_with('\\')).is_some();
                let text = &line[1..line.len() - usize::from(is_last)];
                let (is_old, is_new) = (!line.starts_with('+'), !line.starts_with('-'));
                if is_old {
                    assert_eq!(text, old[at]);
                    (at, left) = (at + 1, left - 1);
                }
                if is_new {
                    result.push(text);
                    new_left -= 1;
                }
            }
        }
        result.extend_from_slice(&old[at..]);
        result.concat()
    }

    #[test]
    fn a_diff_leads_from_one_text_to_the_other() {
        let mut random = fastrand::Rng::with_seed(1);
        let words = [
            "a\n", "b\n", "c\r\n", "\rd\n", "\n", "  }]\n", "-e\n", "@@ f\n",
        ];
        for _ in 0..20_000 {
            let count = random.usize(..30);
            let mut old: Vec<&str> = (0..count)
                .map(|_| words[random.usize(..words.len())])
                .collect();
            let mut new = old.clone();
            for _ in 0..random.usize(..8) {
                let at = random.usize(..=new.len());
                let end = (at + random.usize(..3)).min(new.len());
                let more: Vec<&str> = (0..random.usize(..3))
                    .map(|_| words[random.usize(..words.len())])
                    .collect();
                new.splice(at..end, more);
            }
            for text in [&mut old, &mut new] {
                if random.u8(..4) == 0 {
                    text.push("end");
                }
            }
            let (old, new) = (old.concat(), new.concat());
            let diff = unified("f", &old, &new);
            assert_eq!(diff.is_empty(), old == new);
            assert_eq!(patched(&old, &diff), new, "{old:?} to {new:?}\n{diff}");
        }
    }

    #[test]
    fn a_diff_has_the_usual_form() {
        assert_eq!(
            unified("f", "a\nb\nc\nd\ne", "a\nb\nc\nd\n"),
            "--- f\n+++ f\n@@ -2,4 +2,3 @@\n b\n c\n d\n-e\n\\ No newline at end of file\n"
        );
        assert_eq!(
            unified("f", "", "a\r\n"),
            "--- f\n+++ f\n@@ -0,0 +1 @@\n+a\r\n"
        );
    }
}
