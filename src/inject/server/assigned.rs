//! Whether a script sets a variable that contains the port, so that neither its value in the container's env nor a default counts.

use serde_json::Value as Json;

use super::shell::{self, bare};
use super::variable;

/// How deep scripts may be nested in the arguments of commands.
const MAX_DEPTH: usize = 4;

/// Commands that set, or unset, the variables that they name.
const SETTERS: [&str; 8] = [
    "for",
    "getopts",
    "mapfile",
    "printf",
    "read",
    "readarray",
    "select",
    "unset",
];

/// Commands that assign in their arguments, which may be in quotes.
const DECLARATIONS: [&str; 6] = ["declare", "export", "let", "local", "readonly", "typeset"];

/// Words before a command.
const BEFORE: [&str; 14] = [
    "!", "builtin", "command", "do", "elif", "else", "exec", "if", "sudo", "then", "time", "until",
    "while", "{",
];

/// Rejects a variable that a script sets, because its value in the container's env is then not used, unless the script derives
/// its value from it, as in `PORT=${PORT:-8000}`.
pub(super) fn set_in_env(container: &Json, name: &str) -> Result<(), String> {
    let is_set = |words: &[&str]| {
        sets(words, name)
            || assigned(words, name)
                .iter()
                .any(|value| !value.contains(name))
    };
    if !in_scripts(container, &is_set) && !calculates(container, name) {
        return Ok(());
    }
    let advice = match variable(container, name) {
        Some(_) => "remove that from the script, so that its value in the container's env counts",
        None => "set it in the container's env instead",
    };
    Err(format!(
        "its port is in the variable {name}, which its script sets: {advice}"
    ))
}

/// Rejects a variable that a script, or a file that it reads, may set, because its default (`${PORT:-8000}`) is then not used.
pub(super) fn may_have_default(container: &Json, name: &str) -> Result<(), String> {
    let by_default = [format!("${{{name}:="), format!("${{{name}=")];
    let is_set = |words: &[&str]| {
        let is_default = |word: &&str| by_default.iter().any(|start| word.contains(start));
        sets(words, name) || !assigned(words, name).is_empty() || words.iter().any(is_default)
    };
    if in_scripts(container, &is_set) || calculates(container, name) {
        return Err(format!(
            "its port is in the variable {name}, which its script sets: write it as a number where the server is started"
        ));
    }
    not_in_file(container, name)
}

/// Rejects a variable that is not in the container's env, and that a file that the script reads may set.
pub(super) fn not_in_file(container: &Json, name: &str) -> Result<(), String> {
    match in_scripts(container, &reads_file) {
        true => Err(format!(
            "its port is in the variable {name}, which a file that its script reads may set: write it as a number where the server \
             is started"
        )),
        false => Ok(()),
    }
}

/// What may set any variable of a script, and is not in the manifest.
pub(super) fn unknown_setter(container: &Json) -> Option<&'static str> {
    if in_scripts(container, &reads_file) {
        return Some("a file that its script reads");
    }
    in_scripts(container, &sets_computed)
        .then_some("a command with computed arguments (eval, export, env)")
}

/// Whether a command sets variables whose names are computed, as in `eval "$(cat FILE)"`, `export "$LINE"` or `env $(cat FILE)`.
fn sets_computed(words: &[&str]) -> bool {
    let mut words = command(words).map(bare);
    let Some(first) = words.next() else {
        return false;
    };
    let is_computed = |word: &str| word.contains(['$', '`']);
    let has_computed_name = |word: &str| match word.split_once('=') {
        Some((name, _)) if !name.contains(['{', '(']) => is_computed(name),
        _ => is_computed(word),
    };
    let mut names = words.take_while(|word| !word.starts_with(['<', '>']));
    match first.rsplit('/').next().unwrap_or_default() {
        "eval" => names.any(is_computed),
        "printf" => names.next() == Some("-v") && names.next().is_some_and(is_computed),
        "env" => names
            .take_while(|word| word.starts_with(['-', '$', '`']) || word.contains('='))
            .any(has_computed_name),
        // Their names cannot be computed.
        "for" | "select" => false,
        first if SETTERS.contains(&first) || DECLARATIONS.contains(&first) => {
            names.any(has_computed_name)
        }
        _ => false,
    }
}

/// The words of a command, without those before it and its own variables.
fn command<'w>(words: &'w [&'w str]) -> impl Iterator<Item = &'w str> {
    let is_before = |word: &str| {
        let name = word.split_once('=').map(|(name, _)| name);
        let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
        BEFORE.contains(&word) || name.is_some_and(|name| name.chars().all(is_name))
    };
    words
        .iter()
        .copied()
        .skip_while(move |word| is_before(word))
}

/// The values that a command assigns to a variable.
fn assigned<'w>(words: &[&'w str], name: &str) -> Vec<&'w str> {
    let declares = words.iter().any(|word| DECLARATIONS.contains(word));
    let value = |word: &'w str| {
        let word = if declares { bare(word) } else { word };
        let rest = word.strip_prefix(name)?;
        rest.strip_prefix('+').unwrap_or(rest).strip_prefix('=')
    };
    let values = words.iter().filter_map(|word| value(word));
    // Not a comparison, as in ((NAME == 1)).
    values.filter(|value| !value.starts_with('=')).collect()
}

/// Whether a command such as `read` names a variable, a declaration makes another name for it (`declare -n`), or `let` changes it.
fn sets(words: &[&str], name: &str) -> bool {
    let is_one_of = |all: &[&str]| words.iter().any(|word| all.contains(word));
    let mut bare_words = words.iter().map(|word| bare(word));
    if is_one_of(&SETTERS) && bare_words.any(|word| word == name) {
        return true;
    }
    let is_option = |word: &&str| word.starts_with('-') && word.contains('n');
    let refers = |word: &&str| {
        let value = word.split_once('=').map(|(_, value)| bare(value));
        value == Some(name)
    };
    let changes_it = |word: &str| changes(bare(word), name);
    is_one_of(&DECLARATIONS) && words.iter().any(is_option) && words.iter().any(refers)
        || command(words).next() == Some("let") && command(words).any(changes_it)
}

/// Whether an arithmetic expression in a script changes a variable, as in `((NAME += 1))` or `$((NAME++))`.
fn calculates(container: &Json, name: &str) -> bool {
    let expressions = texts(container).flat_map(|text| text.split("((").skip(1));
    let mut expressions = expressions.map(|rest| rest.split("))").next().unwrap_or_default());
    expressions.any(|expression| changes(expression, name))
}

/// Whether an arithmetic expression changes a variable.
fn changes(expression: &str, name: &str) -> bool {
    let is_part = |c: char| c.is_ascii_alphanumeric() || "_${".contains(c);
    let is_counter = |text: Option<&str>| matches!(text, Some("++" | "--"));
    let mut found = expression.match_indices(name);
    found.any(|(at, _)| {
        let before = expression[..at].trim_end();
        let after = expression[at + name.len()..].trim_start();
        let is_compared = ["==", "<=", ">="]
            .iter()
            .any(|operator| after.starts_with(operator));
        let is_assigned = after
            .trim_start_matches(|c| "+-*/%<>&|^".contains(c))
            .starts_with('=');
        !expression[..at].ends_with(is_part)
            && (is_assigned && !is_compared
                || is_counter(after.get(..2))
                || is_counter(before.len().checked_sub(2).and_then(|at| before.get(at..))))
    })
}

/// Whether a command runs the commands of a file. Those of a virtual environment set only paths.
fn reads_file(words: &[&str]) -> bool {
    let mut words = command(words);
    let is_source = matches!(words.next(), Some("." | "source"));
    is_source
        && words
            .next()
            .is_some_and(|file| !bare(file).ends_with("/activate"))
}

/// Whether the words of one command of the container's scripts are as described.
fn in_scripts(container: &Json, is_it: &dyn Fn(&[&str]) -> bool) -> bool {
    texts(container).any(|text| in_script(text, is_it, MAX_DEPTH))
}

fn texts(container: &Json) -> impl Iterator<Item = &str> {
    let lists = ["command", "args"].into_iter();
    let texts = lists.flat_map(|list| container[list].as_array().into_iter().flatten());
    texts.filter_map(Json::as_str)
}

fn in_script(text: &str, is_it: &dyn Fn(&[&str]) -> bool, depth: usize) -> bool {
    let Some(depth) = depth.checked_sub(1) else {
        return false;
    };
    shell::commands(text).into_iter().any(|command| {
        let words: Vec<_> = command
            .words
            .iter()
            .map(|word| &text[word.clone()])
            .collect();
        is_it(&words)
            || command.words.iter().any(|word| {
                let inner = shell::inside(text, word);
                let is_script = inner.len() < word.len() && text[inner.clone()].contains(' ');
                is_script && in_script(&text[inner], is_it, depth)
            })
    })
}
