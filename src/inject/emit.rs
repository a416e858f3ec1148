//! Writes values as YAML in the style of the surrounding text, or as JSON if the text is in flow style.

use serde_json::Value as Json;

/// The style of the surrounding text.
#[derive(Clone, Debug)]
pub(super) struct Style {
    /// Indentation of nested mappings, in columns.
    pub step: usize,
    /// Indentation of a list within a mapping, in columns.
    pub list: usize,
    pub newline: &'static str,
}

/// `key: value` as whole lines, the key at `column`.
pub(super) fn entry(key: &str, value: &Json, column: usize, style: &Style) -> String {
    let mut lines = Vec::new();
    under(&scalar(&key.into()), value, column, style, &mut lines);
    joined(&lines, style)
}

/// `- value` as whole lines, the dash at `column`.
pub(super) fn item(value: &Json, column: usize, style: &Style) -> String {
    let mut lines = Vec::new();
    list_item(value, column, style, &mut lines);
    joined(&lines, style)
}

/// The text after the colon of a key at `column`, without the last line break.
pub(super) fn after_colon(value: &Json, column: usize, style: &Style) -> String {
    let text = entry("k", value, column, style);
    let text = text.trim_start_matches(' ').trim_end_matches(['\r', '\n']);
    text["k:".len()..].to_owned()
}

fn joined(lines: &[String], style: &Style) -> String {
    lines
        .iter()
        .map(|line| format!("{line}{}", style.newline))
        .collect()
}

fn under(key: &str, value: &Json, column: usize, style: &Style, lines: &mut Vec<String>) {
    let indent = " ".repeat(column);
    match value {
        Json::Object(map) if !map.is_empty() => {
            lines.push(format!("{indent}{key}:"));
            for (key, value) in map {
                let column = column + style.step;
                under(&scalar(&key.as_str().into()), value, column, style, lines);
            }
        }
        Json::Array(items) if !items.is_empty() => {
            lines.push(format!("{indent}{key}:"));
            for value in items {
                list_item(value, column + style.list, style, lines);
            }
        }
        value => lines.push(format!("{indent}{key}: {}", scalar(value))),
    }
}

fn list_item(value: &Json, column: usize, style: &Style, lines: &mut Vec<String>) {
    let indent = " ".repeat(column);
    match value {
        Json::Object(map) if !map.is_empty() => {
            let first = lines.len();
            for (key, value) in map {
                let column = column + 2;
                under(&scalar(&key.as_str().into()), value, column, style, lines);
            }
            lines[first].replace_range(column..column + 1, "-");
        }
        value => lines.push(format!("{indent}- {}", scalar(value))),
    }
}

/// The value on one line.
pub(super) fn scalar(value: &Json) -> String {
    match value {
        Json::String(text) if is_plain(text) => text.clone(),
        // A record is JSON itself, which is easier to read in this form.
        Json::String(text) if text.starts_with('{') && !text.contains(char::is_control) => {
            format!("'{}'", text.replace('\'', "''"))
        }
        value => value.to_string(),
    }
}

/// Whether all YAML 1.1 and 1.2 readers read this text as a string.
fn is_plain(text: &str) -> bool {
    let is_word = |c: char| c.is_ascii_alphanumeric() || "/_.-:".contains(c);
    let lower = text.to_ascii_lowercase();
    text.starts_with(|first: char| first.is_ascii_alphabetic() || first == '/')
        && text.chars().all(is_word)
        && !text.ends_with(':')
        && !["y", "n", "yes", "no", "on", "off", "true", "false", "null"].contains(&&*lower)
}

/// The value as JSON within a flow collection: on one line, or on separate lines starting at `column`.
pub(super) fn flow(value: &Json, column: Option<usize>, style: &Style) -> String {
    match column {
        None => value.to_string(),
        Some(column) => {
            let text = serde_json::to_string_pretty(value).unwrap_or_else(|_| value.to_string());
            let indent = format!("{}{}", style.newline, " ".repeat(column));
            text.replace('\n', &indent)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn values_take_the_style_that_is_asked_for() {
        let value = json!({"a": [{"b": "8080", "c": {"d": 1}}, "yes"], "e": {}});
        let two = Style {
            step: 2,
            list: 0,
            newline: "\n",
        };
        assert_eq!(
            entry("k", &value, 1, &two),
            " k:\n   a:\n   - b: \"8080\"\n     c:\n       d: 1\n   - \"yes\"\n   e: {}\n"
        );
        let four = Style {
            step: 4,
            list: 2,
            newline: "\r\n",
        };
        assert_eq!(
            item(&value["a"][0], 0, &four),
            "- b: \"8080\"\r\n  c:\r\n      d: 1\r\n"
        );
        assert_eq!(after_colon(&json!("x"), 4, &two), " x");
        assert_eq!(after_colon(&json!({"a": 1}), 2, &two), "\n    a: 1");
        assert_eq!(scalar(&json!("{\"a\":\"it's\"}")), "'{\"a\":\"it''s\"}'");
    }
}
