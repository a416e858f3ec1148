//! Splits a shell script into its simple commands, and finds those that start a server.
//!
//! Knows quotes, comments, continued lines, and substitutions. Does not know here-documents.

use std::ops::Range;

/// What only names a server, and does not start it.
const MENTIONS: [&str; 4] = ["echo", "printf", "pgrep", "pkill"];

/// The words of a simple command, each with its place in the script, and with its quotes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Command {
    pub words: Vec<Range<usize>>,
}

/// A command that starts a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Start {
    pub command: Command,
    /// The words that name the server. Arguments may follow them.
    pub mark: Range<usize>,
}

/// The simple commands of a script.
pub(super) fn commands(text: &str) -> Vec<Command> {
    let bytes = text.as_bytes();
    let (mut commands, mut words) = (Vec::new(), Vec::new());
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
                commands.push(Command { words });
            }
            // Of a continued line, the line break goes as well.
            let is_crlf = is_continued && text[at + 1..].starts_with("\r\n");
            at += 1 + usize::from(is_continued) + usize::from(is_crlf);
            continue;
        }
        if byte == b'#' && start.is_none() {
            at += text[at..].find('\n').unwrap_or(text.len() - at);
            continue;
        }
        start = start.or(Some(at));
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
        commands.push(Command { words });
    }
    commands
}

/// Behind the next `quote`.
fn closed(bytes: &[u8], mut at: usize, quote: u8) -> usize {
    while let Some(&byte) = bytes.get(at) {
        at += 1;
        match byte {
            byte if byte == quote => break,
            b'\\' if quote != b'\'' => at += 1,
            _ => {}
        }
    }
    at.min(bytes.len())
}

/// Behind what closes the bracket at `at`.
fn nested(bytes: &[u8], mut at: usize, open: u8, close: u8) -> usize {
    let mut depth = 0;
    while let Some(&byte) = bytes.get(at) {
        at += 1;
        depth += i32::from(byte == open) - i32::from(byte == close);
        if depth == 0 {
            break;
        }
    }
    at
}

/// The commands that start a server with one of the names `marks`, also those in a quoted script within the script.
pub(super) fn starts(text: &str, marks: &[&str]) -> Vec<Start> {
    let mut starts = Vec::new();
    for command in commands(text) {
        let words: Vec<_> = command
            .words
            .iter()
            .map(|word| bare(&text[word.clone()]))
            .collect();
        if words.first().is_some_and(|first| MENTIONS.contains(first)) {
            continue;
        }
        if let Some(named) = marks.iter().find_map(|mark| named(&words, mark)) {
            let mark = command.words[named.start].start..command.words[named.end - 1].end;
            starts.push(Start { command, mark });
            continue;
        }
        for word in &command.words {
            let inner = inside(text, word);
            let script = &text[inner.clone()];
            if script.len() == word.len() || !script.contains(char::is_whitespace) {
                continue;
            }
            let by = |range: &mut Range<usize>| {
                *range = range.start + inner.start..range.end + inner.start;
            };
            for mut start in self::starts(script, marks) {
                by(&mut start.mark);
                start.command.words.iter_mut().for_each(by);
                starts.push(start);
            }
        }
    }
    starts
}

/// Which words are the name `mark` of a server: a module anywhere in a word, or a program with its sub-command.
fn named(words: &[&str], mark: &str) -> Option<Range<usize>> {
    let Some((program, command)) = mark.split_once(' ') else {
        let is_it = |word: &&str| word.contains(mark) && !word.contains(char::is_whitespace);
        let at = words.iter().position(is_it)?;
        return Some(at..at + 1);
    };
    let is_it = |pair: &[&str]| pair[0].rsplit('/').next() == Some(program) && pair[1] == command;
    let at = words.windows(2).position(is_it)?;
    Some(at..at + 2)
}

/// A word without the quotes around it.
pub(super) fn bare(word: &str) -> &str {
    word.trim_matches(['"', '\''])
}

/// What stands between the quotes of a word that is quoted as a whole.
fn inside(text: &str, word: &Range<usize>) -> Range<usize> {
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
            ("a \"b\\", &[&["a", "\"b\\"]]),
            (" \n;; ", &[]),
        ] {
            assert_eq!(split(text), said, "{text}");
        }
    }

    #[test]
    fn a_server_is_found_where_it_is_started() {
        let marks = ["vllm serve", "sglang.launch_server"];
        for (text, said) in [
            (
                "ray start && exec /bin/vllm serve x",
                &["/bin/vllm serve"][..],
            ),
            ("echo vllm serve; # vllm serve\n:", &[]),
            ("su u -c \"cd x && vllm serve y\"", &["vllm serve"]),
            (
                "python -m sglang.launch_server & vllm  serve",
                &["sglang.launch_server", "vllm  serve"],
            ),
            ("vllm bench serve", &[]),
        ] {
            let starts = starts(text, &marks);
            let found: Vec<_> = starts.into_iter().map(|start| &text[start.mark]).collect();
            assert_eq!(found, said, "{text}");
        }
    }
}
