//! Splits a shell script into its simple commands.
//!
//! Knows quotes, comments, continued lines, substitutions, and here-documents.

use std::ops::Range;

/// The words of a simple command, each with its position in the script and its quotes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Command {
    pub words: Vec<Range<usize>>,
    /// The here-documents that it reads.
    pub documents: Vec<Range<usize>>,
}

/// A here-document whose text follows on the next line.
struct Awaited<'t> {
    /// The index of its command.
    command: usize,
    /// The line that ends it.
    end: &'t str,
    /// Whether tabs before that line do not count (`<<-`).
    has_tabs: bool,
}

/// The simple commands of a script.
pub(super) fn commands(text: &str) -> Vec<Command> {
    let bytes = text.as_bytes();
    let (mut commands, mut words) = (Vec::<Command>::new(), Vec::new());
    let mut awaited = Vec::new();
    let mut start = None;
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        let next = bytes.get(at + 1).copied();
        let is_redirection =
            byte == b'&' && (next == Some(b'>') || at > 0 && b"<>".contains(&bytes[at - 1]));
        let is_end = b"\n;|&()".contains(&byte) && !is_redirection;
        let is_continued = byte == b'\\' && matches!(next, Some(b'\n' | b'\r'));
        if is_end || is_continued || b" \t\r".contains(&byte) {
            words.extend(start.take().map(|start| start..at));
            if is_end && !words.is_empty() {
                let words = std::mem::take(&mut words);
                let documents = Vec::new();
                commands.push(Command { words, documents });
            }
            if byte == b'\n' && !awaited.is_empty() {
                at = documents(text, at + 1, &mut awaited, &mut commands);
                continue;
            }
            // For a continued line, this includes the line break.
            let is_crlf = is_continued && text[at + 1..].starts_with("\r\n");
            at += 1 + usize::from(is_continued) + usize::from(is_crlf);
            continue;
        }
        if byte == b'#' && start.is_none() {
            at += text[at..].find('\n').unwrap_or(text.len() - at);
            continue;
        }
        start = start.or(Some(at));
        if byte == b'<' && next == Some(b'<') {
            let third = bytes.get(at + 2).copied();
            at += 2 + usize::from(matches!(third, Some(b'<' | b'-')));
            // `<<<` is a word instead.
            if third != Some(b'<') {
                awaited.push(Awaited {
                    command: commands.len(),
                    end: delimiter(&text[at..]),
                    has_tabs: third == Some(b'-'),
                });
            }
            continue;
        }
        at = match (byte, next) {
            (b'\\', _) => at + 2,
            (b'\'' | b'`', _) => closed(bytes, at + 1, byte),
            (b'"', _) => closed(bytes, at + 1, b'"'),
            (b'$', Some(b'(')) => nested(bytes, at + 1, b'(', b')'),
            (b'$', Some(b'{')) => nested(bytes, at + 1, b'{', b'}'),
            _ => at + 1,
        };
    }
    words.extend(start.map(|start| start..text.len()));
    if !words.is_empty() {
        let documents = Vec::new();
        commands.push(Command { words, documents });
    }
    commands
}

/// The word at the start of `text` that ends a here-document.
fn delimiter(text: &str) -> &str {
    let text = text.trim_start_matches([' ', '\t']);
    let end = text.find(|c: char| c.is_whitespace() || ";|&()<>".contains(c));
    bare(&text[..end.unwrap_or(text.len())]).trim_start_matches('\\')
}

/// Assigns the here-documents that begin at `at` to their commands. Returns where the script continues.
fn documents(
    text: &str,
    mut at: usize,
    awaited: &mut Vec<Awaited<'_>>,
    commands: &mut [Command],
) -> usize {
    for document in awaited.drain(..) {
        let mut end = at;
        let last = text[at..].split_inclusive('\n').find(|line| {
            end += line.len();
            let line = line.trim_end_matches(['\r', '\n']);
            let line = match document.has_tabs {
                true => line.trim_start_matches('\t'),
                false => line,
            };
            line == document.end
        });
        // Without an end, it was not a here-document but a shift, as in ((1 << 2)).
        let Some(last) = last else { continue };
        if let Some(command) = commands.get_mut(document.command) {
            command.documents.push(at..end - last.len());
        }
        at = end;
    }
    at
}

/// The words at `place`, with lines and all other separators between them.
pub(super) fn words_in(text: &str, place: Range<usize>) -> Vec<Range<usize>> {
    let commands = commands(&text[place.clone()]);
    let words = commands.into_iter().flat_map(|command| command.words);
    words
        .map(|word| word.start + place.start..word.end + place.start)
        .collect()
}

/// The position after the next `quote`.
fn closed(bytes: &[u8], mut at: usize, quote: u8) -> usize {
    while let Some(&byte) = bytes.get(at) {
        at += 1;
        match byte {
            byte if byte == quote => break,
            b'\\' if quote != b'\'' => at += 1,
            b'$' if quote == b'"' && bytes.get(at) == Some(&b'(') => {
                at = nested(bytes, at, b'(', b')');
            }
            _ => {}
        }
    }
    at.min(bytes.len())
}

/// The position after the bracket that closes the one at `at`. Those in quotes do not count.
pub(super) fn nested(bytes: &[u8], mut at: usize, open: u8, close: u8) -> usize {
    let mut depth = 0;
    while let Some(&byte) = bytes.get(at) {
        at += 1;
        depth += i32::from(byte == open) - i32::from(byte == close);
        match byte {
            _ if depth == 0 => break,
            b'\\' => at += 1,
            b'\'' | b'"' => {
                let end = closed(bytes, at, byte);
                // Without an end, it is an apostrophe in a comment or a here-document.
                if end > at && bytes[end - 1] == byte {
                    at = end;
                }
            }
            _ => {}
        }
    }
    at.min(bytes.len())
}

/// A word without the quotes around it.
pub(super) fn bare(word: &str) -> &str {
    word.trim_matches(['"', '\''])
}

/// The text between the quotes of a word that is entirely quoted.
pub(super) fn inside(text: &str, word: &Range<usize>) -> Range<usize> {
    let written = &text[word.clone()];
    let is_quoted = ['"', '\'']
        .iter()
        .any(|quote| written.len() > 1 && written.starts_with(*quote) && written.ends_with(*quote));
    match is_quoted {
        true => word.start + 1..word.end - 1,
        false => word.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(text: &str) -> Vec<Vec<&str>> {
        let words = |command: Command| -> Vec<_> {
            command.words.into_iter().map(|word| &text[word]).collect()
        };
        commands(text).into_iter().map(words).collect()
    }

    #[test]
    fn commands_end_where_a_shell_says() {
        for (text, said) in [
            (
                "a b && c|d;e\nf &",
                &[&["a", "b"][..], &["c"], &["d"], &["e"], &["f"]][..],
            ),
            ("a # b; c\n# d\ne#f", &[&["a"], &["e#f"]]),
            (
                "a \"b; 'c\" 'd && e' \\; f\\ g",
                &[&["a", "\"b; 'c\"", "'d && e'", "\\;", "f\\ g"]],
            ),
            (
                "a \\\n  b\\\r\nc 2>&1 &>d",
                &[&["a", "b", "c", "2>&1", "&>d"]],
            ),
            (
                "a $(b; c $(d)) ${e:-f g} `h; i`",
                &[&["a", "$(b; c $(d))", "${e:-f g}", "`h; i`"]],
            ),
            ("(é 'ü", &[&["é", "'ü"]]),
            (
                "a <<E >f <<-'F' b\nit's --port 1\nE\n$( x\n\tF\nc <<<d\ne",
                &[&["a", "<<E", ">f", "<<-'F'", "b"], &["c", "<<<d"], &["e"]],
            ),
            (
                "a << \"E\" | b\r\nx\r\nE\r\nc",
                &[&["a", "<<", "\"E\""], &["b"], &["c"]],
            ),
            (
                "((1 << 2))\na <<E\nb",
                &[&["1", "<<", "2"], &["a", "<<E"], &["b"]],
            ),
            ("a \"b\\", &[&["a", "\"b\\"]]),
            (
                "a $(b ')' \\) \")\") \"$(c \")\")\" ${d:-\"}\"} e",
                &[&[
                    "a",
                    "$(b ')' \\) \")\")",
                    "\"$(c \")\")\"",
                    "${d:-\"}\"}",
                    "e",
                ]],
            ),
            (
                "a $(b # it's\n) c\nd",
                &[&["a", "$(b # it's\n)", "c"], &["d"]],
            ),
            (" \n;; ", &[]),
        ] {
            assert_eq!(split(text), said, "{text}");
        }
    }
}
