//! The edits of a container that move its server to another port.

use std::ops::Range;

use serde_json::Value as Json;

use super::Server;
use super::script::{self, Start};
use super::variables::Scope;
use crate::inject::path::{Path, below};

/// The edits that move a server to another port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::inject) enum Move {
    /// Replace parts of texts.
    Swap(Vec<Swap>),
    /// Set a variable.
    Variable { name: String },
    /// Append arguments to the list of this name.
    Arguments { list: &'static str, flag: String },
}

/// Replaces a part of the text at a path below the container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::inject) struct Swap {
    pub path: Path,
    pub from: String,
    pub to: String,
    /// How many occurrences of `from` the text has. All of them are replaced.
    pub times: usize,
}

/// The text at `place`, with as much of the line before it as distinguishes it from other texts, such as a comment. Only a text that
/// occurs once can be replaced, and only one within a line is written in the manifest as in the script.
pub(super) fn unique(text: &str, place: Range<usize>) -> String {
    let ends = [place.end];
    shared(text, place, &ends).0
}

/// The same, but the text may also occur at other places that are replaced in the same way. `ends` are the ends of them all.
/// Returns how often it occurs.
pub(super) fn shared(text: &str, place: Range<usize>, ends: &[usize]) -> (String, usize) {
    let line = text[..place.start].rfind('\n').map_or(0, |end| end + 1);
    let is_start = |at: &usize| {
        let before = &text[..*at];
        before.is_empty()
            || before.ends_with('\n')
            || before.ends_with(char::is_whitespace)
                && !text[*at..].starts_with(char::is_whitespace)
    };
    let starts = (line..place.start)
        .rev()
        .filter(|at| text.is_char_boundary(*at));
    let mut starts = std::iter::once(place.start).chain(starts.filter(is_start));
    let are_replaced = |start: &usize| {
        let mut found = text.match_indices(&text[*start..place.end]);
        // A word may end with another one, as in `vllm serve org/model` and `vllm serve model`.
        found.all(|(at, found)| {
            ends.contains(&(at + found.len())) && (*start == place.start || is_start(&at))
        })
    };
    match starts.find(are_replaced) {
        Some(start) => {
            let found = &text[start..place.end];
            (found.to_owned(), text.matches(found).count())
        }
        None => (text[place].to_owned(), 1),
    }
}

/// The position at which an argument can be added.
pub(super) fn append(
    server: Server,
    container: &Json,
    flag: &str,
    was_alone: bool,
    to: u16,
) -> Result<Move, String> {
    for list in ["args", "command"] {
        let items = container[list].as_array().map_or(&[][..], Vec::as_slice);
        let place = items.iter().enumerate().find_map(|(index, item)| {
            let text = item
                .as_str()
                .filter(|text| text.contains(char::is_whitespace))?;
            let is_only = |from: &str| text.matches(from).count() == 1;
            let starts = script::serving(text, server.words());
            let [Start { mark, command }] = starts.as_slice() else {
                return None;
            };
            let last = command.words.last()?;
            let scope = Scope { text, container };
            if scope.unknown(&starts[0]).is_some() {
                // The last argument takes effect, whatever it is that precedes it.
                let from = unique(text, last.clone());
                let to = format!("{from} {flag} {to}");
                return is_only(&from).then_some((index, from, to, 1));
            }
            let end = last.end;
            // A value that occurs more than once cannot be replaced.
            let place = [mark.clone(), mark.start..end]
                .into_iter()
                .find(|place| is_only(&text[place.clone()]));
            let Some(place) = place else {
                // Commands that do not serve, such as those with --headless, ignore the port.
                let all = script::starts(text, server.words());
                let all: Vec<_> = all.iter().map(|start| start.mark.end).collect();
                let parts = [&[mark.end][..], &all].map(|ends| shared(text, mark.clone(), ends));
                let is_all = |part: &(String, usize)| text.matches(&part.0).count() == part.1;
                let (from, times) = parts.into_iter().find(is_all)?;
                let to = format!("{from} {flag} {to}");
                return Some((index, from, to, times));
            };
            let to = format!(
                "{} {flag} {to}{}",
                &text[mark.clone()],
                &text[mark.end..place.end]
            );
            Some((index, text[place].to_owned(), to, 1))
        });
        if let Some((index, from, to, times)) = place {
            let path = below(&below(&Path::new(), [list]), [index]);
            return Ok(Move::Swap(vec![Swap {
                path,
                from,
                to,
                times,
            }]));
        }
    }
    let items = |list: &str| {
        container[list]
            .as_array()
            .is_some_and(|items| !items.is_empty())
    };
    let flag = flag.to_owned();
    match (items("args"), items("command")) {
        _ if is_shell(container) => Err(format!(
            "its command line is a script, and inject cannot tell where to add {flag}: write {flag} PORT into it"
        )),
        // Only of a known server is it clear what its image runs.
        (false, false) if server == Server::Other && !was_alone => Err(format!(
            "it has neither command nor args, and args with {flag} could replace those of the image: write its command out, or \
             set a variable with --port-env NAME instead of --port-arg"
        )),
        (false, true) => Ok(Move::Arguments {
            list: "command",
            flag,
        }),
        _ => Ok(Move::Arguments { list: "args", flag }),
    }
}

/// Whether a container runs a script, as with `sh -c`.
fn is_shell(container: &Json) -> bool {
    let lists = ["command", "args"].into_iter();
    let words = lists.flat_map(|list| container[list].as_array().into_iter().flatten());
    let mut words = words.filter_map(Json::as_str).skip_while(|word| {
        let name = word.rsplit('/').next().unwrap_or_default();
        !script::SHELLS.contains(&name)
    });
    let is_script = |word: &str| {
        word.starts_with('-') && !word.starts_with("--") && word.ends_with('c') && word.len() <= 4
    };
    words.next().is_some() && words.any(is_script)
}
