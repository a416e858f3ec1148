//! Adds to an error about an invalid value what the parser does not say: the environment variable that the value comes from, and the
//! values of a switch.

use std::ffi::{OsStr, OsString};

use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, ArgAction, Command, Error};

/// The error, with the environment variable that an invalid value comes from. `arguments` are those of the process, and `value` returns
/// the value of a variable that is set.
pub(super) fn with_variable(
    mut error: Error,
    command: &Command,
    arguments: &[OsString],
    value: impl Fn(&OsStr) -> Option<OsString>,
) -> Error {
    let is_about_value = matches!(
        error.kind(),
        ErrorKind::InvalidValue | ErrorKind::ValueValidation
    );
    let arg = match error.get(ContextKind::InvalidArg) {
        Some(ContextValue::String(flag)) if is_about_value => {
            let flag = flag.split_once(' ').map_or(&**flag, |(flag, _)| flag);
            let args = flag.strip_prefix("--").map(|long| named(command, long));
            let args = args.unwrap_or_default();
            let is_given = args.iter().any(|arg| is_given(arg, arguments));
            let with_variable = args.iter().find(|arg| arg.get_env().is_some());
            with_variable.copied().filter(|_| !is_given)
        }
        _ => None,
    };
    let Some((arg, variable)) = arg.and_then(|arg| arg.get_env().map(|variable| (arg, variable)))
    else {
        return error;
    };
    let Some(value) = value(variable) else {
        return error;
    };
    let variable = variable.to_string_lossy();
    let mut tips = vec![match value.is_empty() {
        true => {
            format!("the environment variable {variable} is empty: set it to a value, or remove it")
        }
        false => format!("the value comes from the environment variable {variable}"),
    }];
    if matches!(arg.get_action(), ArgAction::SetTrue) {
        tips.push("use true or false".to_owned());
    }
    let tips = tips.into_iter().map(StyledStr::from).collect();
    error.insert(ContextKind::Suggested, ContextValue::StyledStrs(tips));
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
