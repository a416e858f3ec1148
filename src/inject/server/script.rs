//! Finds the commands of a shell script that start a server.

use std::ops::Range;

use super::arrays;
use super::shell::{Command, bare, commands, inside};

/// Commands that only name a server, without starting it.
const MENTIONS: [&str; 4] = ["echo", "printf", "pgrep", "pkill"];

/// Programs that run their input as a script.
pub(super) const SHELLS: [&str; 6] = ["sh", "bash", "dash", "ash", "zsh", "ksh"];

/// A command that starts a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Start {
    pub command: Command,
    /// The words that name the server. Arguments may follow them.
    pub mark: Range<usize>,
}

/// Arguments with which a command of a server listens on no port.
const NOT_SERVING: [&str; 4] = ["--help", "-h", "--version", "--headless"];

/// The commands that start a server that listens on a port; all that start one, if none of them does.
pub(super) fn serving(text: &str, marks: &[&str]) -> Vec<Start> {
    let all = starts(text, marks);
    match all.iter().any(|start| is_serving(text, start)) {
        true => all
            .into_iter()
            .filter(|start| is_serving(text, start))
            .collect(),
        false => all,
    }
}

/// Whether a command listens on a port.
pub(super) fn is_serving(text: &str, start: &Start) -> bool {
    let mut words = start.command.words.iter();
    !words.any(|word| NOT_SERVING.contains(&bare(&text[word.clone()])))
}

/// The commands that start a server with one of the names `marks`, including those in a nested script: in quotes, or in a
/// here-document that a shell reads. Any other here-document counts only if nothing else starts a server: it may be run later.
pub(super) fn starts(text: &str, marks: &[&str]) -> Vec<Start> {
    let mut starts = Vec::new();
    let mut others = Vec::new();
    for command in commands(text) {
        let words: Vec<_> = command
            .words
            .iter()
            .map(|word| bare(&text[word.clone()]))
            .collect();
        let is_shell = |word: &&str| SHELLS.contains(&word.rsplit('/').next().unwrap_or_default());
        let documents = match words.iter().any(is_shell) {
            true => &mut starts,
            false => &mut others,
        };
        for document in &command.documents {
            documents.extend(starts_in(text, document.clone(), marks));
        }
        if words.first().is_some_and(|first| MENTIONS.contains(first)) {
            continue;
        }
        if let Some(named) = marks.iter().find_map(|mark| named(&words, mark)) {
            let mark = command.words[named.start].start..command.words[named.end - 1].end;
            let mut command = command;
            if let Some(words) = arrays::words(text, &command) {
                command.words = words;
            }
            starts.push(Start { command, mark });
            continue;
        }
        for word in &command.words {
            let inner = inside(text, word);
            if inner.len() < word.len() && text[inner.clone()].contains(char::is_whitespace) {
                starts.extend(starts_in(text, inner, marks));
            }
        }
    }
    if starts.is_empty() { others } else { starts }
}

/// The same for the script at `place`.
fn starts_in(text: &str, place: Range<usize>, marks: &[&str]) -> Vec<Start> {
    let by = |range: &mut Range<usize>| {
        *range = range.start + place.start..range.end + place.start;
    };
    let mut starts = starts(&text[place.clone()], marks);
    for start in &mut starts {
        by(&mut start.mark);
        start.command.words.iter_mut().for_each(by);
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

#[cfg(test)]
mod tests {
    use super::*;

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
            (
                "cat >a <<E\nvllm serve x\nE\n/bin/vllm serve y",
                &["/bin/vllm serve"],
            ),
            (
                "cat >a <<E\nvllm  serve x\nE\nbash <<E\nvllm serve y\nE\n",
                &["vllm serve"],
            ),
            ("cat >a <<E\nvllm serve x\nE\nbash a", &["vllm serve"]),
        ] {
            let starts = starts(text, &marks);
            let found: Vec<_> = starts.into_iter().map(|start| &text[start.mark]).collect();
            assert_eq!(found, said, "{text}");
        }
    }
}
