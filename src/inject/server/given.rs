//! A port as a command line gives it, and how to change it where its value is written.

use serde_json::Value as Json;

use super::assigned::{may_have_default, not_in_file, set_in_env};
use super::moves::Swap;
use super::shell;
use super::variable;
use super::variables::Reference;
use crate::inject::path::{Path, below};

/// A port in a command line.
pub(super) struct Given {
    /// The path below the container.
    pub path: Path,
    /// The text from the flag to the end of the value, and the value.
    pub whole: String,
    pub value: String,
    /// How often the whole text occurs.
    pub times: usize,
}

impl Given {
    /// The port that a value stands for.
    ///
    /// # Errors
    /// Why it is unknown.
    pub fn port(value: &str, container: &Json) -> Result<u16, String> {
        let given = Self {
            path: Path::new(),
            whole: value.to_owned(),
            value: value.to_owned(),
            times: 1,
        };
        given.moved(container, None, 0).map(|(port, _)| port)
    }

    /// The port, and the edit that changes it to `to`.
    pub fn moved(
        self,
        container: &Json,
        given: Option<u16>,
        to: u16,
    ) -> Result<(u16, Swap), String> {
        let bare = shell::bare(&self.value);
        let port = match Reference::of(bare) {
            None => bare,
            Some(Reference {
                name,
                default: Some(default),
            }) if variable(container, name).is_none() && container["envFrom"].is_null() => {
                may_have_default(container, name)?;
                default
            }
            Some(Reference { name, .. }) => return by_variable(container, name, given, to),
        };
        let (number, moved) = moved(port, to).ok_or_else(|| match bare.contains(['$', '`']) {
            true => format!("its port is computed ({bare}): write it as a number"),
            false => format!("its port '{bare}' is not {}", expected(bare)),
        })?;
        agree(number, given)?;
        let new = bare.replacen(port, &moved, 1);
        let (path, from, times) = (self.path, self.whole, self.times);
        // The flag before it may contain the same digits.
        let at = from.rfind(bare).unwrap_or(0);
        let to = format!("{}{new}{}", &from[..at], &from[at + bare.len()..]);
        let swap = Swap {
            path,
            from,
            to,
            times,
        };
        Ok((number, swap))
    }
}

/// The port in `PORT`, `:PORT` or `HOST:PORT`, and the same text with the port `to`.
fn moved(text: &str, to: u16) -> Option<(u16, String)> {
    let at = text.rfind(':').map_or(0, |colon| colon + 1);
    let port = text[at..].parse().ok()?;
    Some((port, format!("{}{to}", &text[..at])))
}

/// What a text should be instead of a value that is not a port.
fn expected(value: &str) -> &'static str {
    let port = value.rsplit(':').next().unwrap_or_default();
    match port.parse::<f64>() {
        Ok(_) => "a whole number from 1 to 65535",
        Err(_) => "a number",
    }
}

fn agree(port: u16, given: Option<u16>) -> Result<(), String> {
    match given {
        Some(given) if given != port => Err(format!(
            "--port is {given}, but according to the manifest, it listens on {port}"
        )),
        _ => Ok(()),
    }
}

pub(super) fn by_variable(
    container: &Json,
    name: &str,
    given: Option<u16>,
    to: u16,
) -> Result<(u16, Swap), String> {
    set_in_env(container, name)?;
    if variable(container, name).is_none() {
        not_in_file(container, name)?;
    }
    let unknown = || {
        format!(
            "its port is in the variable {name}, which has no value in the container's env: set it there"
        )
    };
    let (index, variable) = variable(container, name).ok_or_else(unknown)?;
    let value = variable["value"].as_str().ok_or_else(unknown)?;
    // Kubernetes replaces it if that variable precedes this one.
    let other = value.strip_prefix("$(").and(Reference::of(value));
    if let Some(Reference { name: other, .. }) = other
        && self::variable(container, other).is_some_and(|(other, _)| other < index)
    {
        return by_variable(container, other, given, to);
    }
    let is_address = |value: &str| {
        let value = value.trim_matches(['[', ']']);
        value == "localhost" || value.parse::<std::net::IpAddr>().is_ok()
    };
    let (port, moved) = match moved(value, to) {
        Some(found) if !is_address(value) => found,
        _ => {
            return Err(match given.filter(|_| is_address(value)) {
                Some(given) => format!(
                    "the variable {name} has no port: write {value}:{given} if the server listens on {given} now"
                ),
                None => format!("the variable {name} is not {}: '{value}'", expected(value)),
            });
        }
    };
    agree(port, given)?;
    let path = below(&below(&below(&Path::new(), ["env"]), [index]), ["value"]);
    let (from, to) = (value.to_owned(), moved);
    let swap = Swap {
        path,
        from,
        to,
        times: 1,
    };
    Ok((port, swap))
}
