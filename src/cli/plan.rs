//! `crossfade plan`: the current and the edited manifests, and the output.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;

use super::inject::IMAGE;
use super::manifest_file::{INVALID_INPUT, read};
use super::output::print;
use crate::files::explain;
use crate::next_generation::{Request, plan};
use crate::printable::{printable, printable_lines};

#[derive(Debug, Args)]
pub struct PlanArgs {
    /// The current manifests: frontends, workers, and Services, or a DynamoGraphDeployment and the Service of its clients; `-` is
    /// standard input
    #[arg(long, value_name = "FILE")]
    from: PathBuf,
    /// The same manifests, edited for the next generation; `-` is standard input
    #[arg(long, value_name = "FILE")]
    to: PathBuf,
    /// The Service that clients connect to [default: the one that selects the current frontends]
    #[arg(long, value_name = "NAME", value_parser = super::parse::kubernetes_name)]
    client_service: Option<String>,
    /// The crossfade image [default: the one that was released with this program]
    #[arg(long, env = "CROSSFADE_IMAGE", value_name = "IMAGE")]
    image: Option<String>,
    /// Create a second generation even if a rolling update is enough
    #[arg(long)]
    anyway: bool,
}

impl PlanArgs {
    /// Prints the next generation and its rollout, and an explanation on standard error. Status 0, with nothing printed if a
    /// rolling update is enough; 2 if the input has no next generation.
    #[must_use]
    pub fn run(&self) -> ExitCode {
        let wrong = |message: String| {
            explain(format_args!("crossfade: {}", printable_lines(message)));
            ExitCode::from(INVALID_INPUT)
        };
        if self.from == Path::new("-") && self.to == Path::new("-") {
            return wrong("only one of --from and --to can be standard input".to_owned());
        }
        let text = |path: &Path| {
            read(path).map_err(|error| format!("{}: {error}", printable(path.display())))
        };
        let (from, to) = match (text(&self.from), text(&self.to)) {
            (Ok(from), Ok(to)) => (from, to),
            (Err(message), _) | (_, Err(message)) => return wrong(message),
        };
        let planned = plan(&Request {
            from: &from,
            to: &to,
            image: self.image.as_deref().or(IMAGE),
            client_service: self.client_service.as_deref(),
            anyway: self.anyway,
        });
        let planned = match planned {
            Ok(planned) => planned,
            Err(error) => return wrong(error.to_string()),
        };
        for note in &planned.notes {
            explain(printable_lines(note));
        }
        print(planned.text.as_bytes(), ExitCode::SUCCESS, INVALID_INPUT)
    }
}
