//! The arguments of the commands that edit an update, and of those that print completions and the manual.

use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{ArgMatches, Args, CommandFactory, Error, FromArgMatches};
use clap_complete::Shell;
use clap_mangen::Man;

use super::cluster::{ClusterChoice, GlobalClusterArgs};
use super::parse::{kubernetes_name, percent};
use super::variables::with_variable;
use super::{Cli, Command};
use crate::files::explain;
use crate::printable::{is_unsafe, printable_lines};
use crate::status::ClusterOptions;

/// The name under which kubectl finds this program as a plugin.
const PLUGIN: &str = "kubectl-crossfade";

#[derive(Debug, Args)]
pub struct EditArgs {
    /// The update
    #[arg(value_parser = kubernetes_name)]
    pub name: String,
    #[command(flatten)]
    pub options: EditOptions,
}

/// The options of the commands that edit an update or a rollout.
#[derive(Debug, Args)]
pub struct EditOptions {
    #[command(flatten)]
    cluster: ClusterChoice,
    /// Do not ask for confirmation
    #[arg(short, long)]
    pub yes: bool,
}

#[derive(Debug, Args)]
pub struct SetArgs {
    #[command(flatten)]
    pub edit: EditArgs,
    /// Share of requests that goes to new, in percent
    #[arg(long, value_name = "PERCENT", value_parser = percent)]
    pub split: u8,
}

#[derive(Debug, Args)]
pub struct CompletionsArgs {
    /// The shell, or kubectl
    pub shell: CompletionTarget,
}

/// The target of the completions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum CompletionTarget {
    Bash,
    Elvish,
    Fish,
    Powershell,
    Zsh,
    /// The program `kubectl_complete-crossfade`, which kubectl runs for its plugin
    Kubectl,
}

#[derive(Debug, Args)]
pub struct ManArgs {
    /// Write one page per subcommand to this directory instead of printing the main page
    pub directory: Option<PathBuf>,
}

impl Cli {
    /// The command line of this process. As `kubectl-crossfade` it shows the name that the user typed.
    #[must_use]
    pub fn of_this_process() -> Self {
        let mut command = with_negative_numbers(Self::command());
        let name = std::env::args_os().next();
        let name = name.as_deref().map(Path::new).and_then(Path::file_stem);
        if name == Some(OsStr::new(PLUGIN)) {
            command = command.bin_name("kubectl crossfade");
        }
        let arguments: Vec<_> = std::env::args_os().collect();
        let (error, verb) = match command.try_get_matches_from_mut(&arguments) {
            Ok(given) => match Self::settled(&given) {
                Ok(cli) => return cli,
                Err(error) => (error, given.subcommand_name().map(str::to_owned)),
            },
            // Only the explanation needs a usage line: errors of the parser contain that of their subcommand.
            Err(error) => (explained(error, &arguments), Some("rollout".to_owned())),
        };
        let value = |name: &OsStr| std::env::var_os(name);
        let error = with_variable(error, &command, &arguments, value);
        let verb = verb.and_then(|verb| command.find_subcommand(verb).cloned());
        exit(&error.format(&mut verb.unwrap_or(command)))
    }

    /// The parsed command line, with flags before a subcommand passed on to it.
    fn settled(given: &ArgMatches) -> Result<Self, Error> {
        let mut cli = Self::from_arg_matches(given)?;
        let mut early = std::mem::take(&mut cli.early);
        if let Command::Rbac(args) = &mut cli.command {
            args.after(early.take_namespace());
        }
        let (name, given) = given.subcommand().expect("clap requires one");
        match &mut cli.command {
            Command::Status(args) => args.connection.settle(early, given)?,
            Command::Judge(args) => args.connection.settle(early, given)?,
            Command::Set(args) => args.edit.options.after(early, given),
            Command::Pause(args)
            | Command::Resume(args)
            | Command::DrainOld(args)
            | Command::Retry(args) => {
                args.options.after(early, given);
            }
            Command::Rollout(args) => args.after(early, given),
            _ => {
                if let Some(flag) = early.first() {
                    let message = format!(
                        "{flag} before `{name}` has no effect: it is for status, judge, set, pause, resume, drain-old, retry, and rollout"
                    );
                    return Err(Error::raw(ErrorKind::ArgumentConflict, message));
                }
            }
        }
        if let Command::Proxy(args) = &cli.command {
            args.check()
                .map_err(|message| Error::raw(ErrorKind::ValueValidation, message))?;
        }
        Ok(cli)
    }
}

/// Takes a negative number for the value of a flag, which is then out of range, and not for an unknown flag.
fn with_negative_numbers(command: clap::Command) -> clap::Command {
    let command = command.allow_negative_numbers(true);
    command.mut_subcommands(with_negative_numbers)
}

/// `rollout` is followed by a name or a verb, so the parser takes a mistyped verb for a name, and rejects the name after it. Most
/// commands that read a file take its name as an argument, but `simulate` takes it as an option.
fn explained(mut error: Error, arguments: &[OsString]) -> Error {
    match error.kind() {
        ErrorKind::UnknownArgument
            if arguments.get(1).is_some_and(|verb| verb == "simulate")
                && let Some(ContextValue::String(file)) = error.get(ContextKind::InvalidArg)
                && !file.starts_with('-') =>
        {
            let tip = StyledStr::from(format!("to read a manifest, use '--file {file}'"));
            error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip]));
            error
        }
        ErrorKind::ArgumentConflict if error.get(ContextKind::InvalidSubcommand).is_some() => {
            let message = "use `rollout [NAME]`, or `rollout VERB NAME` with one of the verbs pause, resume, promote, abort, undo, retry, and history";
            Error::raw(ErrorKind::InvalidSubcommand, message)
        }
        _ => error,
    }
}

/// Prints the requested help, or the error in the command line, and ends the process. An error repeats parts of the command line
/// and of variables, so it is escaped if these would control a terminal.
fn exit(error: &Error) -> ! {
    let arguments = std::env::args_os();
    let variables =
        std::env::vars_os().filter(|(name, _)| name.as_encoded_bytes().starts_with(b"CROSSFADE_"));
    let mut given = arguments.chain(variables.map(|(_, value)| value));
    if given.any(|text| text.to_string_lossy().contains(is_unsafe)) {
        explain(printable_lines(error.render().to_string().trim_end()));
        std::process::exit(error.exit_code());
    }
    error.exit()
}

impl EditOptions {
    /// Takes over what was given before the subcommand.
    pub(super) fn after(&mut self, early: GlobalClusterArgs, given: &ArgMatches) {
        self.cluster.after(early, given);
    }

    /// The cluster and namespace.
    #[must_use]
    pub fn choice(&self) -> ClusterOptions {
        self.cluster.clone().choice()
    }
}

impl CompletionsArgs {
    /// Prints them.
    #[must_use]
    pub fn print(&self) -> ExitCode {
        let shell = match self.shell {
            CompletionTarget::Bash => Some(Shell::Bash),
            CompletionTarget::Elvish => Some(Shell::Elvish),
            CompletionTarget::Fish => Some(Shell::Fish),
            CompletionTarget::Powershell => Some(Shell::PowerShell),
            CompletionTarget::Zsh => Some(Shell::Zsh),
            CompletionTarget::Kubectl => None,
        };
        let mut text = Vec::new();
        match shell {
            Some(shell) => {
                clap_complete::generate(shell, &mut Cli::command(), "crossfade", &mut text)
            }
            None => text.extend(include_bytes!("kubectl_complete.sh")),
        }
        super::print_all(&text)
    }
}

impl ManArgs {
    /// Prints the first page, or writes all of them.
    ///
    /// # Errors
    /// When the pages cannot be written.
    pub fn write(&self) -> io::Result<ExitCode> {
        if let Some(directory) = &self.directory {
            std::fs::create_dir_all(directory)?;
            let mut command = Cli::command().disable_help_subcommand(true);
            command.build();
            pages(&command, directory)?;
            return Ok(ExitCode::SUCCESS);
        }
        let mut text = Vec::new();
        page(&Cli::command()).render(&mut text)?;
        Ok(super::print_all(&text))
    }
}

/// Writes the page of a command, and those of its subcommands, which its page refers to.
fn pages(command: &clap::Command, directory: &Path) -> io::Result<()> {
    page(command).generate_to(directory)?;
    let mut verbs = command.get_subcommands();
    verbs.try_for_each(|verb| pages(verb, directory))
}

/// A page of the manual with its version.
fn page(command: &clap::Command) -> Man {
    Man::new(command.clone()).source(concat!("crossfade ", env!("CARGO_PKG_VERSION")))
}
