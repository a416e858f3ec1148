//! Adds crossfade to Kubernetes manifests as a sidecar, and removes it again: text in, text and an explanation out.
//!
//! Edits bytes instead of reserializing a tree, so that comments, quotes, order and style stay. Every change is recorded in an
//! annotation of the pod, so that the original can be restored byte for byte. Does not depend on the source of the text.

mod cut;
mod defaults;
mod documents;
mod edit;
mod emit;
mod image;
mod live;
mod manifests;
mod options;
mod path;
mod pod;
mod policies;
mod rbac;
mod record;
mod resources;
mod run;
mod server;
mod services;
mod sidecar;
mod tree;
mod undo;
mod workload;
mod written;

use std::fmt;

pub use self::manifests::{Manifest, manifests, yaml};
pub use self::options::Options;
use self::path::Path;
pub use self::rbac::rbac;
pub use self::record::ANNOTATION;
pub use self::resources::{cpu, memory};
use self::run::Run;
pub use self::workload::shown;

/// Maximum size of the text, in bytes.
pub const MAX_BYTES: usize = 16 << 20;

/// The result for a text.
#[derive(Debug)]
pub struct Report {
    pub text: String,
    pub notes: Vec<Note>,
}

/// The result for one object.
#[derive(Debug)]
pub struct Note {
    /// The name in kubectl's notation.
    pub object: String,
    /// The line in the whole text.
    pub line: usize,
    /// A short summary.
    pub summary: String,
    pub details: Vec<String>,
    /// Notes for the user to check.
    pub warnings: Vec<String>,
}

impl Note {
    fn new(object: &str, line: usize, summary: impl Into<String>) -> Self {
        Self {
            object: object.to_owned(),
            line,
            summary: summary.into(),
            details: Vec::new(),
            warnings: Vec::new(),
        }
    }

    fn add_detail(&mut self, detail: impl Into<String>) {
        self.details.push(detail.into());
    }

    fn warn(&mut self, warning: impl Into<String>) {
        self.warnings.push(warning.into());
    }
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (line {}): {}", self.object, self.line, self.summary)?;
        for detail in &self.details {
            write!(f, "\n  - {detail}")?;
        }
        for warning in &self.warnings {
            write!(f, "\n  ! {warning}")?;
        }
        Ok(())
    }
}

/// Why a text is left unchanged.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("the text is larger than {} MiB", MAX_BYTES >> 20)]
    TooLarge,
    #[error("document {document}, line {line}: {message}")]
    Unreadable {
        document: usize,
        line: usize,
        message: String,
    },
    #[error("document {document}, {object}, line {line}: {message}")]
    Refused {
        document: usize,
        object: String,
        line: usize,
        message: String,
    },
    /// A text that is not a valid image name.
    #[error(
        "'{image}' is not a valid image name: set --image or CROSSFADE_IMAGE to a name such as registry.example/crossfade:0.1.0"
    )]
    BadImage { image: String },
    #[error("the input is empty")]
    Empty,
    #[error("this build has no default image: set --image or CROSSFADE_IMAGE")]
    NoImage,
    /// Nothing but the port tells which of them is the frontend.
    #[error(
        "several objects could be the one with the frontend on port {port} (--port): {}; name the frontend's container with \
         --frontend-container", .objects.join(", ")
    )]
    Ambiguous { port: u16, objects: Vec<String> },
    /// It contains no known frontend.
    #[error(
        "no frontend was found{}; {hint}", found(.seen)
    )]
    NoFrontend { seen: Vec<String>, hint: String },
}

fn found(seen: &[String]) -> String {
    match seen {
        [] => String::new(),
        seen => format!(" in {}", seen.join(", ")),
    }
}

/// Which options may be wrong or missing, unless no option would help.
fn hint(run: &Run, options: &Options) -> String {
    if let [why, ..] = run.unsupported.as_slice()
        && run.unsupported.len() == run.seen.len()
    {
        return format!("{}: {}", why.reason(), why.advice());
    }
    match (&options.container, options.port) {
        (Some(name), _) => format!("no pod there has a container '{name}' (--frontend-container)"),
        (None, Some(port)) => format!(
            "no container there declares port {port} (--port): name the frontend's container with --frontend-container"
        ),
        (None, None) => "inject recognizes Deployments, StatefulSets, and DynamoGraphDeployments with a Dynamo frontend, vLLM, or \
             SGLang; for another OpenAI-compatible server, set its port with --port"
            .to_owned(),
    }
}

/// Why an object is not edited.
#[derive(Debug)]
struct Refused {
    place: Position,
    message: String,
}

#[derive(Debug)]
enum Position {
    Byte(usize),
    Path(Path),
}

impl Refused {
    fn at(byte: usize, message: impl Into<String>) -> Self {
        let place = Position::Byte(byte);
        let message = message.into();
        Self { place, message }
    }

    fn of(path: &Path, message: impl Into<String>) -> Self {
        let place = Position::Path(path.clone());
        let message = message.into();
        Self { place, message }
    }
}

/// Whether an object creates the pods of Dynamo frontends.
#[must_use]
pub fn is_dynamo_frontend(object: &serde_json::Value) -> bool {
    let is_frontend = |found: workload::Found| match found {
        workload::Found::Workload(workload) => {
            let chosen = pod::choose(object, &workload, &Options::default());
            matches!(chosen, Ok(Some(frontend)) if frontend.server == server::Server::Dynamo)
        }
        _ => false,
    };
    workload::find(object).into_iter().any(is_frontend)
}

/// Adds crossfade to every frontend in `text`, by default with `image`. An existing sidecar is replaced.
///
/// # Errors
/// If a frontend cannot be edited (then nothing is), or if there is none.
pub fn inject(text: &str, options: &Options, image: Option<&str>) -> Result<Report, Error> {
    let requested = options.image.as_deref().or(image);
    if let Some(image) = requested.filter(|name| !image::is_valid(name)) {
        let image = image.to_owned();
        return Err(Error::BadImage { image });
    }
    let mut run = Run::default();
    run.survey(text, options)?;
    let report = run.all(text, |run, document| run.inject(document, options, image))?;
    if !run.has_objects {
        return Err(Error::Empty);
    }
    match run.injected.is_empty() && run.present == 0 {
        true => Err(Error::NoFrontend {
            hint: hint(&run, options),
            seen: run.seen,
        }),
        false => Ok(report),
    }
}

/// Removes crossfade from everything in `text` to which [`inject`] added it.
///
/// # Errors
/// When that is not possible for one of them.
pub fn uninject(text: &str) -> Result<Report, Error> {
    Run::default().all(text, Run::uninject)
}
