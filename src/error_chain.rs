//! An error and its causes, in one line.

use std::error::Error;
use std::fmt::Write;

/// The message of an error, followed by those of its causes. Leaves out a cause that the message already contains, since some
/// libraries include it.
#[must_use]
pub fn error_chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let message = error.to_string();
        if !text.contains(&message) {
            let _ = write!(text, ": {message}");
        }
        cause = error.source();
    }
    text
}

/// The message of the last cause of an error, for libraries whose errors state in each link where they occurred.
#[must_use]
pub fn root_cause(mut error: &dyn Error) -> String {
    while let Some(cause) = error.source() {
        error = cause;
    }
    error.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("{message}")]
    struct Link {
        message: &'static str,
        source: Option<Box<Link>>,
    }

    fn chain(messages: &[&'static str]) -> Option<Box<Link>> {
        let (message, rest) = messages.split_first()?;
        let source = chain(rest);
        Some(Box::new(Link { message, source }))
    }

    #[test]
    fn each_cause_is_named_once() {
        let error = chain(&["cannot connect: refused", "refused", "os error 111"]);
        let text = error_chain(&*error.expect("it has links"));
        assert_eq!(text, "cannot connect: refused: os error 111");
        let error = chain(&["cannot connect", "refused"]);
        assert_eq!(root_cause(&*error.expect("it has links")), "refused");
    }
}
