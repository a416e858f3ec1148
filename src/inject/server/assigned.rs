//! Whether a script sets a variable that contains the port, so that neither its value in the container's env nor a default counts.

use serde_json::Value as Json;

use super::shell;

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

/// Words before a command.
const BEFORE: [&str; 10] = [
    "!", "builtin", "command", "do", "elif", "else", "if", "then", "while", "{",
];

/// Rejects a variable that a script sets, because its value in the container's env is then not used, unless the script derives
/// its value from it, as in `PORT=${PORT:-8000}`.
pub(super) fn set_in_env(container: &Json, name: &str) -> Result<(), String> {
    let is_set = |words: &[&str]| {
        sets(words, name)
            || words.iter().any(|word| {
                let value = assigned(word, name);
                value.is_some_and(|value| !value.contains(name))
            })
    };
    match in_scripts(container, &is_set) {
        true => Err(format!(
            "its port is in the variable {name}, which its script sets: set it in the container's env instead"
        )),
        false => Ok(()),
    }
}

/// Rejects a variable that a script, or a file that it reads, may set, because its default (`${PORT:-8000}`) is then not used.
pub(super) fn may_have_default(container: &Json, name: &str) -> Result<(), String> {
    let by_default = [format!("${{{name}:="), format!("${{{name}=")];
    let is_set = |words: &[&str]| {
        let is_assigned = |word: &&str| {
            assigned(word, name).is_some() || by_default.iter().any(|start| word.contains(start))
        };
        sets(words, name) || words.iter().any(is_assigned)
    };
    if in_scripts(container, &is_set) {
        return Err(format!(
            "its port is in the variable {name}, which its script sets: write it as a number where the server is started"
        ));
    }
    match in_scripts(container, &reads_file) {
        true => Err(format!(
            "its port is in the variable {name}, which a file that its script reads may set: set it in the container's env, or \
             write it as a number"
        )),
        false => Ok(()),
    }
}

/// The value that a word assigns to a variable.
fn assigned<'w>(word: &'w str, name: &str) -> Option<&'w str> {
    word.strip_prefix(name)?.strip_prefix('=')
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
