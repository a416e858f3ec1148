//! Whether a script sets a variable that contains the port, so that neither its value in the container's env nor a default counts.

use serde_json::Value as Json;

use super::{shell, variable};

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
const BEFORE: [&str; 10] = [
    "!", "builtin", "command", "do", "elif", "else", "if", "then", "while", "{",
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
    if !in_scripts(container, &is_set) {
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
    if in_scripts(container, &is_set) {
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
    in_scripts(container, &evaluates_output).then_some("the output of a command (eval, export)")
}

/// Whether a command evaluates the output of another one, as in `eval "$(cat FILE)"` or `export $(cat FILE)`.
fn evaluates_output(words: &[&str]) -> bool {
    let mut words = words.iter().skip_while(|word| BEFORE.contains(*word));
    let is_it = words
        .next()
        .is_some_and(|word| *word == "eval" || DECLARATIONS.contains(word));
    let is_output = |word: &&str| {
        let word = shell::bare(word);
        word.starts_with("$(") || word.starts_with('`')
    };
    is_it && words.any(is_output)
}

/// The values that a command assigns to a variable.
fn assigned<'w>(words: &[&'w str], name: &str) -> Vec<&'w str> {
    let declares = words.iter().any(|word| DECLARATIONS.contains(word));
    let value = |word: &'w str| {
        let word = if declares { shell::bare(word) } else { word };
        let rest = word.strip_prefix(name)?;
        rest.strip_prefix('+').unwrap_or(rest).strip_prefix('=')
    };
    let mut values: Vec<_> = words.iter().filter_map(|word| value(word)).collect();
    // In (( NAME = 1 )), they are words of their own.
    let apart = words
        .windows(2)
        .filter(|pair| pair[0] == name && matches!(pair[1], "=" | "+=" | "-=" | "*="));
    values.extend(apart.map(|_| ""));
    values
}

/// Whether a command such as `read` names a variable.
fn sets(words: &[&str], name: &str) -> bool {
    words.contains(&name) && words.iter().any(|word| SETTERS.contains(word))
}

/// Whether a command runs the commands of a file. Those of a virtual environment set only paths.
fn reads_file(words: &[&str]) -> bool {
    let mut words = words.iter().skip_while(|word| BEFORE.contains(*word));
    let is_source = matches!(words.next(), Some(&"." | &"source"));
    is_source
        && words
            .next()
            .is_some_and(|file| !shell::bare(file).ends_with("/activate"))
}

/// Whether the words of one command of the container's scripts are as described.
fn in_scripts(container: &Json, is_it: &dyn Fn(&[&str]) -> bool) -> bool {
    let lists = ["command", "args"].into_iter();
    let texts = lists.flat_map(|list| container[list].as_array().into_iter().flatten());
    let mut texts = texts.filter_map(Json::as_str);
    texts.any(|text| in_script(text, is_it, MAX_DEPTH))
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
