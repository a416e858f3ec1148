//! Commands that a script keeps in an array, as in `cmd=(vllm serve x); cmd+=(--port 8000); exec "${cmd[@]}"`.

use std::ops::Range;

use super::shell::{self, Command};

/// All words of the array that begins with this command: those in its brackets, those that the script adds to it, and those after
/// it where the script runs it. `None` if the command is not in an array.
pub(super) fn words(text: &str, command: &Command) -> Option<Vec<Range<usize>>> {
    let first = command.words.first()?;
    let before = text[..first.start].trim_end().strip_suffix('(')?;
    let open = before.len();
    let before = before.strip_suffix('=')?;
    let before = before.strip_suffix('+').unwrap_or(before);
    let is_end = |c: char| !c.is_ascii_alphanumeric() && c != '_';
    let name = &before[before.rfind(is_end).map_or(0, |end| end + 1)..];
    if name.is_empty() {
        return None;
    }
    let mut words = shell::words_in(text, brackets(text, open));
    let adds = format!("{name}+=");
    let items = [format!("${{{name}[@]}}"), format!("${{{name}[*]}}")];
    for later in shell::commands(text) {
        for (index, word) in later.words.iter().enumerate() {
            let written = &text[word.clone()];
            let is_later = word.start > first.start;
            if is_later && written == adds && text[word.end..].starts_with('(') {
                words.extend(shell::words_in(text, brackets(text, word.end)));
            } else if items.iter().any(|items| written.contains(items)) {
                words.extend_from_slice(&later.words[index + 1..]);
            }
        }
    }
    Some(words)
}

/// What is inside the brackets that open at `open`.
fn brackets(text: &str, open: usize) -> Range<usize> {
    let end = shell::nested(text.as_bytes(), open, b'(', b')');
    let is_closed = text[open + 1..end].ends_with(')');
    open + 1..end - usize::from(is_closed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_array_has_the_words_of_all_its_parts() {
        for (text, expected) in [
            (
                "cmd=(vllm serve x\n  --y\n); cmd+=(--port 1)\nexec \"${cmd[@]}\" --z & wait",
                Some("vllm serve x --y --port 1 --z"),
            ),
            ("A=(vllm serve x)\n${A[*]}", Some("vllm serve x")),
            ("A=(vllm serve x", Some("vllm serve x")),
            ("(vllm serve x --y)", None),
            ("vllm serve x", None),
            ("=(vllm serve x)", None),
        ] {
            let starts = shell::commands(text);
            let is_start = |command: &&Command| text[command.words[0].clone()] == *"vllm";
            let start = starts.iter().find(is_start).unwrap();
            let words = words(text, start);
            let shown = words.map(|words| {
                let words = words.into_iter().map(|word| &text[word]);
                words.collect::<Vec<_>>().join(" ")
            });
            assert_eq!(shown.as_deref(), expected, "{text}");
        }
    }
}
