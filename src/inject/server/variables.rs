//! Follows the variables in a command line to the arguments that they contain.
//!
//! A variable is resolved if its script assigns it literally, or if the container's env has its value.

use std::ops::Range;

use serde_json::Value as Json;

use super::script::{self, Start};
use super::shell::{self, Command, bare};
use super::{Server, variable};

/// How deep variables may refer to other variables.
const MAX_DEPTH: usize = 4;

/// All positional parameters: the arguments of the container, or what the script sets with `set --`.
const ALL: &str = "@";

/// Where a flag is written with its value, and the value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Written {
    /// The index of the variable among the container's, if it is not in the script itself.
    pub variable: Option<usize>,
    pub place: Range<usize>,
    pub value: String,
}

/// What replaces a part of a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Expansion<'t> {
    Variable(&'t str),
    /// The output of a command.
    Output,
}

/// A variable in a command line: `$NAME`, `${NAME}`, `$(NAME)` or `${NAME:-DEFAULT}`.
pub(super) struct Reference<'t> {
    pub name: &'t str,
    pub default: Option<&'t str>,
}

impl<'t> Reference<'t> {
    pub fn of(text: &'t str) -> Option<Self> {
        let text = text.strip_prefix('$')?;
        let in_braces = text
            .strip_prefix('{')
            .and_then(|text| text.strip_suffix('}'));
        let in_brackets = text
            .strip_prefix('(')
            .and_then(|text| text.strip_suffix(')'));
        let inner = in_braces.or(in_brackets).unwrap_or(text);
        let end = inner.find(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        let (name, rest) = inner.split_at(end.unwrap_or(inner.len()));
        // Everything else is computed, such as $(cat FILE) or $((8000 + 1)).
        let is_name = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
        if !is_name || !rest.is_empty() && in_braces.is_none() {
            return None;
        }
        let default = rest.strip_prefix(":-").or(rest.strip_prefix('-'));
        Some(Self { name, default })
    }
}

/// A script, or one word of a list of arguments, and the variables of its container.
pub(super) struct Scope<'t> {
    pub text: &'t str,
    pub container: &'t Json,
}

impl<'t> Scope<'t> {
    /// The last `flag` of a command with its value. A server uses the last one.
    ///
    /// # Errors
    /// When it is unclear which of several values a variable has.
    pub fn find(&self, command: &Command, flag: &str) -> Option<Result<Written, String>> {
        self.find_in(None, &command.words, flag, MAX_DEPTH)
    }

    /// `words` are those of the script, or of the value of a variable of the container.
    fn find_in(
        &self,
        variable: Option<usize>,
        words: &[Range<usize>],
        flag: &str,
        depth: usize,
    ) -> Option<Result<Written, String>> {
        let text = self.text_of(variable);
        let depth = depth.checked_sub(1)?;
        words.iter().enumerate().rev().find_map(|(index, word)| {
            let written = &text[word.clone()];
            if bare(written) == flag {
                let value = words.get(index + 1)?;
                return Some(Ok(Written {
                    variable,
                    place: word.start..value.end,
                    value: text[value.clone()].to_owned(),
                }));
            }
            let rest = written.trim_start_matches(['"', '\'']).strip_prefix(flag);
            let value = rest.and_then(|rest| rest.strip_prefix('='));
            if let Some(value) = value.filter(|value| !value.is_empty()) {
                return Some(Ok(Written {
                    variable,
                    place: word.clone(),
                    value: value.to_owned(),
                }));
            }
            let names = expansions(written).into_iter().rev();
            let mut found = names.filter_map(|expansion| match expansion {
                Expansion::Variable(name) => self.in_variable(name, flag, depth),
                Expansion::Output => None,
            });
            found.next()
        })
    }

    fn in_variable(&self, name: &str, flag: &str, depth: usize) -> Option<Result<Written, String>> {
        let values = self.values(name);
        let found = values
            .iter()
            .filter_map(|(variable, words)| self.find_in(*variable, words, flag, depth));
        let mut found: Vec<_> = found.collect();
        // A variable that contains itself leads to the same place twice.
        found.dedup_by(|one, other| match (one, other) {
            (Ok(one), Ok(other)) => (one.variable, &one.place) == (other.variable, &other.place),
            _ => false,
        });
        match found.len() {
            0 | 1 => found.pop(),
            _ => Some(Err(format!(
                "its script sets {flag} several times in the variable {name}, and it is unclear which one is used: write {flag} \
                 only once"
            ))),
        }
    }

    fn text_of(&self, variable: Option<usize>) -> &'t str {
        let value = variable.and_then(|index| self.container["env"][index]["value"].as_str());
        match variable {
            Some(_) => value.unwrap_or_default(),
            None => self.text,
        }
    }

    /// The words of each known value of a variable: those that the script assigns, or the one in the container's env.
    fn values(&self, name: &str) -> Vec<(Option<usize>, Vec<Range<usize>>)> {
        let mut values = Vec::new();
        assignments(self.text, 0..self.text.len(), name, &mut values);
        let is_itself = |word: &Range<usize>| {
            expansions(&self.text[word.clone()]).contains(&Expansion::Variable(name))
        };
        // A script may also add to the value in the container's env.
        let hides_env = !values.is_empty() && !values.iter().flatten().any(is_itself);
        let of_container = variable(self.container, name).filter(|_| !hides_env);
        let of_container = of_container.and_then(|(index, of_container)| {
            let value = of_container["value"].as_str()?;
            Some((Some(index), shell::words_in(value, 0..value.len())))
        });
        let values = values.into_iter().map(|words| (None, words));
        values.chain(of_container).collect()
    }

    /// The first word of a command that may add arguments that cannot be seen in the manifest.
    pub fn unknown(&self, start: &Start) -> Option<&'t str> {
        self.adds_input(start)
            .or_else(|| self.unknown_from(start, start.mark.end))
    }

    /// The same for arguments after the last `flag` of the command, which take precedence over it.
    fn overriding(&self, start: &Start, flag: &str) -> Option<&'t str> {
        let written = self.find(&start.command, flag)?.ok()?;
        let mut words = start.command.words.iter();
        // In a variable, the flag is at another position.
        let is_here = words.any(|word| word.start == written.place.start);
        if written.variable.is_some() || !is_here {
            return None;
        }
        self.adds_input(start)
            .or_else(|| self.unknown_from(start, written.place.end))
    }

    /// The word of a program that adds the words of its input to the end of the command.
    fn adds_input(&self, start: &Start) -> Option<&'t str> {
        let words = start.command.words.iter();
        let before = words.take_while(|word| word.start < start.mark.start);
        let mut before = before.map(|word| &self.text[word.clone()]);
        before.find(|word| bare(word).rsplit('/').next() == Some("xargs"))
    }

    /// The first unknown word of a command from the position `at` on.
    fn unknown_from(&self, start: &Start, at: usize) -> Option<&'t str> {
        let words = &start.command.words;
        let first = words.iter().position(|word| word.start >= at)?;
        let is_model = |index: usize| {
            index == first
                && at == start.mark.end
                && self.text[start.mark.clone()].ends_with("serve")
        };
        let found = words.iter().enumerate().skip(first).find(|(index, word)| {
            let before = bare(&self.text[words[index - 1].clone()]);
            let is_value = before.starts_with('-') && !before.contains('=') && !is_switch(before);
            !is_value && !is_model(*index) && self.is_unknown(&self.text[(*word).clone()])
        });
        found.map(|(_, word)| &self.text[word.clone()])
    }

    /// Whether a word is replaced with text that is not in the manifest, and that may be arguments.
    pub fn is_unknown(&self, word: &str) -> bool {
        self.is_unknown_in(word, MAX_DEPTH)
    }

    fn is_unknown_in(&self, word: &str, depth: usize) -> bool {
        let Some(depth) = depth.checked_sub(1) else {
            return true;
        };
        if !bare(word).starts_with(['$', '`']) {
            return false;
        }
        expansions(word).into_iter().any(|expansion| {
            let Expansion::Variable(name) = expansion else {
                return true;
            };
            let values = self.values(name);
            values.is_empty() && name != ALL
                || values.iter().any(|(variable, words)| {
                    let text = self.text_of(*variable);
                    let is_itself = |word: &str| expansions(word) == [Expansion::Variable(name)];
                    let mut words = words.iter().map(|word| &text[word.clone()]);
                    words.any(|word| !is_itself(word) && self.is_unknown_in(word, depth))
                })
        })
    }
}

/// Whether a flag of a server has no value, so that what follows it may be arguments.
fn is_switch(flag: &str) -> bool {
    const PREFIXES: [&str; 5] = ["--enable-", "--disable-", "--no-", "--use-", "--skip-"];
    const SWITCHES: [&str; 4] = [
        "--trust-remote-code",
        "--enforce-eager",
        "--is-embedding",
        "--headless",
    ];
    PREFIXES.iter().any(|prefix| flag.starts_with(prefix)) || SWITCHES.contains(&flag)
}

/// A part of the command line that may contain the port of a server, and that is not in the manifest.
pub(in crate::inject) fn unknown(server: Server, container: &Json) -> Option<String> {
    let lists = ["command", "args"].into_iter();
    let words = lists.flat_map(|list| container[list].as_array().into_iter().flatten());
    let mut words = words.filter_map(Json::as_str);
    words.find_map(|text| {
        let scope = Scope { text, container };
        let starts = script::starts(text, server.words());
        let mut found = starts.iter().filter_map(|start| scope.unknown(start));
        let is_argument = starts.is_empty() && text.starts_with("$(") && text.ends_with(')');
        let found = found
            .next()
            .or((is_argument && scope.is_unknown(text)).then_some(text));
        found.map(str::to_owned)
    })
}

/// A part of the command line after `flag` that may contain `flag` again, and that is not in the manifest.
pub(in crate::inject) fn overriding(
    server: Server,
    container: &Json,
    flag: &str,
) -> Option<String> {
    let lists = ["command", "args"].into_iter();
    let words = lists.flat_map(|list| container[list].as_array().into_iter().flatten());
    let words: Vec<&str> = words
        .map(|word| word.as_str().unwrap_or_default())
        .collect();
    let in_script = words.iter().find_map(|text| {
        let scope = Scope { text, container };
        let starts = script::starts(text, server.words());
        let mut found = starts
            .iter()
            .filter_map(|start| scope.overriding(start, flag));
        found.next()
    });
    let is_flag = |word: &&str| {
        word.strip_prefix(flag)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('='))
    };
    let after = words
        .iter()
        .rposition(is_flag)
        .map_or(&[][..], |at| &words[at..]);
    let mut pairs = after.windows(2);
    let argument = pairs.find_map(|pair| {
        let [before, text] = pair else { return None };
        let is_value = before.starts_with('-') && !before.contains('=') && !is_switch(before);
        let is_unknown = text.starts_with("$(") && Scope { text, container }.is_unknown(text);
        (is_unknown && !is_value).then_some(*text)
    });
    in_script.or(argument).map(str::to_owned)
}

/// What is replaced in a word of a script, or in an argument, where Kubernetes replaces `$(NAME)`.
fn expansions(word: &str) -> Vec<Expansion<'_>> {
    let mut found = Vec::new();
    if word.starts_with('\'') {
        return found;
    }
    if word.contains('`') {
        found.push(Expansion::Output);
    }
    for (at, _) in word.match_indices('$') {
        let rest = &word[at + 1..];
        let inner = rest.trim_start_matches(['{', '(']);
        let end = inner.find(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        let (name, after) = inner.split_at(end.unwrap_or(inner.len()));
        let is_name = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
        match rest.as_bytes().first() {
            // Arithmetic results in a number.
            Some(b'(') if rest.starts_with("((") => {}
            Some(b'(') if !is_name || !after.starts_with(')') => found.push(Expansion::Output),
            // ${!NAME} is the value of a variable whose name is computed.
            Some(b'{') if inner.starts_with('!') => found.push(Expansion::Output),
            Some(b'@' | b'*') => found.push(Expansion::Variable(ALL)),
            Some(b'{') if inner.starts_with(['@', '*']) => found.push(Expansion::Variable(ALL)),
            _ if is_name => found.push(Expansion::Variable(name)),
            _ => {}
        }
    }
    found
}

/// The words of all values that a script assigns to a variable, literally or as an array.
fn assignments(text: &str, script: Range<usize>, name: &str, values: &mut Vec<Vec<Range<usize>>>) {
    for command in shell::commands(&text[script.clone()]) {
        let by = |word: &Range<usize>| word.start + script.start..word.end + script.start;
        if let (ALL, [set, dashes, words @ ..]) = (name, &*command.words)
            && (&text[by(set)], &text[by(dashes)]) == ("set", "--")
        {
            values.push(words.iter().map(by).collect());
            continue;
        }
        for word in command.words.iter().map(by) {
            let written = &text[word.clone()];
            let value = written.strip_prefix(name);
            let value = value.map(|value| value.strip_prefix('+').unwrap_or(value));
            if let Some(value) = value.and_then(|value| value.strip_prefix('=')) {
                let start = word.end - value.len();
                let range = match value.is_empty() && text[word.end..].starts_with('(') {
                    true => word.end + 1..shell::nested(text.as_bytes(), word.end, b'(', b')') - 1,
                    false => shell::inside(text, &(start..word.end)),
                };
                values.push(shell::words_in(text, range));
                continue;
            }
            let inner = shell::inside(text, &word);
            if inner.len() < word.len() && text[inner.clone()].contains(char::is_whitespace) {
                assignments(text, inner, name, values);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn arguments_are_found_in_variables() {
        let container = json!({"env": [{"name": "E", "value": "--port=1 --x"}, {"name": "F", "valueFrom": {}}]});
        for (text, found, unknown) in [
            ("A='--port 2'; vllm serve x $A", Some("--port 2"), None),
            (
                "A=(--y\n --port 2\n --z)\nvllm serve x \"${A[@]}\"",
                Some("--port 2"),
                None,
            ),
            (
                "A=--y; A+=' --port 2'; vllm serve x ${A}",
                Some("--port 2"),
                None,
            ),
            ("A=\"$A --port 2\"\nvllm serve x $A", Some("--port 2"), None),
            (
                "B='--port 2'; A=\"$B -y\"; vllm serve x $A",
                Some("--port 2"),
                None,
            ),
            (
                "bash -c \"A='--port 2'; vllm serve x \\$A\"",
                Some("--port 2"),
                None,
            ),
            ("vllm serve x --port 3 $E", Some("--port=1"), None),
            ("vllm serve x $E --port 3", Some("--port 3"), None),
            ("vllm serve x $(E)", Some("--port=1"), None),
            ("E=-y; vllm serve x $E", None, None),
            (
                "vllm serve $M --model $N -o=$O \"$@\" $((1 + 2))",
                None,
                None,
            ),
            (
                "set -- --port 2 --y; vllm serve x \"$@\"",
                Some("--port 2"),
                None,
            ),
            ("set -- $F; vllm serve x ${@}", None, Some("${@}")),
            ("vllm serve x ${!F}", None, Some("${!F}")),
            (
                "A=(vllm serve x); \"${A[@]}\" --port 3 $F",
                Some("--port 3"),
                Some("$F"),
            ),
            ("vllm serve x $F", None, Some("$F")),
            ("vllm serve x \"$G\"", None, Some("\"$G\"")),
            ("vllm serve x $(cat f)", None, Some("$(cat f)")),
            ("vllm serve x `cat f`", None, Some("`cat f`")),
            ("A=$G; vllm serve x $A", None, Some("$A")),
        ] {
            let scope = Scope {
                text,
                container: &container,
            };
            let starts = script::starts(text, &["vllm serve"]);
            let [start] = starts.as_slice() else {
                panic!("{text}")
            };
            let written = scope.find(&start.command, "--port").map(Result::unwrap);
            let shown = written
                .as_ref()
                .map(|written| &scope.text_of(written.variable)[written.place.clone()]);
            assert_eq!((shown, scope.unknown(start)), (found, unknown), "{text}");
        }
        for (text, unknown, overriding) in [
            ("vllm serve x --port 3 $E", None, None),
            ("vllm serve x --port 3 $F", Some("$F"), Some("$F")),
            ("vllm serve x --port 3 --model $F", None, None),
            (
                "vllm serve $F --port=3 \"${G[@]}\"",
                Some("\"${G[@]}\""),
                Some("\"${G[@]}\""),
            ),
            ("vllm serve x $F --port 3", Some("$F"), None),
            ("echo --port 4 | xargs vllm serve x", Some("xargs"), None),
            (
                "echo --port 4 | /bin/xargs -n9 vllm serve x --port 3",
                Some("/bin/xargs"),
                Some("/bin/xargs"),
            ),
            ("A=$(echo ')'; echo x) vllm serve x --port 3", None, None),
        ] {
            let scope = Scope {
                text,
                container: &container,
            };
            let starts = script::starts(text, &["vllm serve"]);
            let [start] = starts.as_slice() else {
                panic!("{text}")
            };
            let found = (scope.unknown(start), scope.overriding(start, "--port"));
            assert_eq!(found, (unknown, overriding), "{text}");
        }
        let text = "A='--port 2'\nif x; then A='--port 3'; fi\nvllm serve $A";
        let scope = Scope {
            text,
            container: &container,
        };
        let starts = script::starts(text, &["vllm serve"]);
        assert!(scope.find(&starts[0].command, "--port").unwrap().is_err());
    }
}
