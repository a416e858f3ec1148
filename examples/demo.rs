//! `crossfade demo` by itself, without what it does not show: no cluster, no manual, no traces. `make demo` runs it.

use std::io::Write;

use clap::Parser;
use crossfade::app;
use crossfade::demo::DemoArgs;

/// Two model servers, the real proxy between them, load, and a split that rises from 0 to 100%
#[derive(Debug, Parser)]
#[command(name = "demo", max_term_width = 100)]
struct Demo {
    #[command(flatten)]
    args: DemoArgs,
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let summary = app::demo::run(Demo::parse().args.options())?;
    // A reader that has gone, as `head` does, is no error.
    let _ = writeln!(std::io::stdout(), "{summary}");
    Ok(())
}
