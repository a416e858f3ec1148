//! An error and its causes, in one line.

use std::error::Error;
use std::fmt::Write;

/// The message of an error, followed by those of its causes. Leaves out a cause that the message already contains, since some
/// libraries include it.
#[must_use]
pub fn error_chain(error: &(dyn Error + 'static)) -> String {
    let mut text = message(error);
    let mut cause = error.source();
    while let Some(error) = cause {
        let message = message(error);
        text = text.replace(&error.to_string(), &message);
        if !text.contains(&message) {
            let _ = write!(text, ": {message}");
        }
        cause = error.source();
    }
    text
}

/// The message of an error, without its causes.
fn message(error: &(dyn Error + 'static)) -> String {
    // kube would add all fields, in the notation of Rust.
    #[cfg(feature = "kube")]
    if let Some(kube::Error::Api(status)) = error.downcast_ref() {
        return status.to_string();
    }
    error.to_string()
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

    #[cfg(feature = "kube")]
    #[test]
    fn a_response_of_the_api_server_is_its_message_and_its_reason() {
        use kube::runtime::watcher::Error as WatcherError;
        let status = kube::core::Status {
            code: 500,
            ..kube::core::Status::failure("etcd has no leader", "InternalError")
        };
        let api = || kube::Error::Api(Box::new(status.clone()));
        let wanted = "etcd has no leader: InternalError";
        assert_eq!(error_chain(&api()), wanted);
        assert_eq!(
            error_chain(&WatcherError::InitialListFailed(api())),
            format!("failed to perform initial object list: {wanted}")
        );
    }
}
