//! Parses the command line, starts logging, runs the subcommand and turns an error into an exit code.

use std::process::ExitCode;

use anyhow::Context;
use crossfade::admin::client;
use crossfade::app::{self, ProxyExit, commands};
use crossfade::cli::{
    Cli, Command, ControllerArgs, DrainArgs, EditArgs, LogFormat, LogLevelArgs, ManArgs, ProxyArgs,
    RolloutArgs, RolloutCommand, print_all,
};
use crossfade::demo::DemoArgs;
use crossfade::error_chain::error_chain;
use crossfade::files::explain;
use crossfade::printable::{printable, printable_lines};
use crossfade::resource;
use crossfade::status::Verb;
use crossfade::telemetry::{access, log};
use k8s_openapi::jiff::Timestamp;

// Chosen by measurement: see benches/README.md.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// The exit code if streams had to be cut.
const STREAMS_CUT: u8 = 3;

fn main() -> ExitCode {
    let result = match Cli::of_this_process().command {
        Command::Proxy(args) => proxy(*args),
        Command::Controller(args) => controller(*args),
        Command::Check(args) => Ok(args.run()),
        Command::Crd => Ok(print_all(resource::crd_yaml().as_bytes())),
        Command::Inject(args) => Ok(args.run()),
        Command::Uninject(args) => Ok(args.run()),
        Command::Rbac(args) => Ok(args.run()),
        Command::Plan(args) => Ok(args.run()),
        Command::Simulate(args) => Ok(args.run()),
        Command::Demo(args) => demo(&args),
        Command::Drain(args) => drain(&args),
        Command::LogLevel(args) => log_level(&args),
        Command::Status(args) => commands::status(args.options()).map_err(Into::into),
        Command::Judge(args) => commands::judge(&args.options()).map_err(Into::into),
        Command::Set(args) => edit(&args.edit, Verb::Split(args.split)),
        Command::Pause(args) => edit(&args, Verb::Pause),
        Command::Resume(args) => edit(&args, Verb::Resume),
        Command::DrainOld(args) => edit(&args, Verb::DrainOld),
        Command::Retry(args) => edit(&args, Verb::Retry(Timestamp::now())),
        Command::Rollout(args) => rollout(*args),
        Command::Completions(args) => Ok(args.print()),
        Command::Version(args) => Ok(args.run()),
        Command::Man(args) => man(&args),
    };
    result.unwrap_or_else(|error| {
        // Each problem of a plan has its own line.
        explain(format_args!(
            "crossfade: {}",
            printable_lines(error_chain(error.as_ref()))
        ));
        ExitCode::FAILURE
    })
}

fn proxy(args: ProxyArgs) -> anyhow::Result<ExitCode> {
    let (level, format) = args.log();
    let _flushed = log::start(level, format == LogFormat::Json)?;
    access::configure(args.access());
    let config = args.config().context("cannot start")?;
    let bound = app::build(config).context("cannot start")?;
    Ok(match bound.run()? {
        ProxyExit::Clean => ExitCode::SUCCESS,
        ProxyExit::StreamsCut => ExitCode::from(STREAMS_CUT),
    })
}

fn controller(args: ControllerArgs) -> anyhow::Result<ExitCode> {
    let (level, format) = args.log();
    let _flushed = log::start(level, format == LogFormat::Json)?;
    app::controller::run(args.config()).context("cannot start")?;
    Ok(ExitCode::SUCCESS)
}

fn demo(args: &DemoArgs) -> anyhow::Result<ExitCode> {
    let summary = app::demo::run(args.options())?;
    Ok(print_all(format!("{summary}\n").as_bytes()))
}

fn man(args: &ManArgs) -> anyhow::Result<ExitCode> {
    args.write().with_context(|| match &args.directory {
        Some(directory) => format!(
            "cannot write the manual to {}",
            printable(directory.display())
        ),
        None => "cannot write the manual".to_owned(),
    })
}

fn drain(args: &DrainArgs) -> anyhow::Result<ExitCode> {
    client::drain(args.admin)?;
    Ok(ExitCode::SUCCESS)
}

fn log_level(args: &LogLevelArgs) -> anyhow::Result<ExitCode> {
    client::log_level(args.admin, &args.level)?;
    Ok(ExitCode::SUCCESS)
}

fn edit(args: &EditArgs, verb: Verb) -> anyhow::Result<ExitCode> {
    let options = &args.options;
    Ok(commands::edit(
        &args.name,
        &options.choice(),
        options.yes,
        verb,
    )?)
}

fn rollout(args: RolloutArgs) -> anyhow::Result<ExitCode> {
    match &args.verb {
        Some(RolloutCommand::History(args)) => {
            Ok(commands::rollout_history(&args.name, &args.choice())?)
        }
        Some(RolloutCommand::Edit(command)) => {
            let (edit, verb) = command.parts();
            Ok(commands::edit_rollout(
                &edit.name,
                &edit.options.choice(),
                edit.options.yes,
                verb,
            )?)
        }
        None => Ok(commands::rollout(args.options())?),
    }
}
