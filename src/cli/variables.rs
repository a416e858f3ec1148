//! Says when an invalid value comes from an environment variable: the parser names only the flag.

use std::ffi::{OsStr, OsString};

use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, Command, Error};

/// The error, with the environment variable that an invalid value comes from. `arguments` are those of the process, and `is_set` tells
/// which variables are set.
pub(super) fn with_variable(
    mut error: Error,
    command: &Command,
    arguments: &[OsString],
    is_set: impl Fn(&OsStr) -> bool,
) -> Error {
    let is_about_value = matches!(
        error.kind(),
        ErrorKind::InvalidValue | ErrorKind::ValueValidation
    );
    let variable = match error.get(ContextKind::InvalidArg) {
        Some(ContextValue::String(flag)) if is_about_value => {
            let flag = flag.split_once(' ').map_or(&**flag, |(flag, _)| flag);
            let args = flag.strip_prefix("--").map(|long| named(command, long));
            let args = args.unwrap_or_default();
            let is_given = args.iter().any(|arg| is_given(arg, arguments));
            let variable = args.iter().find_map(|arg| arg.get_env());
            variable.filter(|variable| !is_given && is_set(variable))
        }
        _ => None,
    };
    if let Some(variable) = variable {
        let variable = variable.to_string_lossy();
        let tip = StyledStr::from(format!(
            "the value comes from the environment variable {variable}"
        ));
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip]));
    }
    error
}

/// The options of this name, of all subcommands. They have the same variable.
fn named<'a>(command: &'a Command, long: &str) -> Vec<&'a Arg> {
    let here = command.get_arguments();
    let below = command.get_subcommands();
    here.filter(|arg| arg.get_long() == Some(long))
        .chain(below.flat_map(|command| named(command, long)))
        .collect()
}

fn is_given(arg: &Arg, arguments: &[OsString]) -> bool {
    arguments.iter().any(|argument| {
        let argument = argument.to_string_lossy();
        let long = arg
            .get_long()
            .zip(argument.strip_prefix("--"))
            .is_some_and(|(long, given)| given.split('=').next() == Some(long));
        let short = arg
            .get_short()
            .zip(argument.strip_prefix('-'))
            .is_some_and(|(short, given)| given.starts_with(short));
        long || short
    })
}
