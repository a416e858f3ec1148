//! The demo: two model servers, the real proxy between them and some tens of clients, and a fade under a live view.
//!
//! It answers for what a newcomer sees in the first minute, and for telling the truth there: every figure is counted
//! by the proxy ([`Sample`]) or, apart from it, by the clients ([`Summary`]). Must not know how the proxy is built:
//! it is handed in as a [`Subject`].

mod args;
mod load;
mod model_server;
mod plain;
mod scene;
mod screen;
mod script;
mod stage;
mod subject;
mod summary;
mod view;
mod voice;
mod worker;

use std::io::{self, IsTerminal};
use std::pin::pin;

use tokio::signal::unix::{SignalKind, signal};

pub use args::DemoArgs;
pub use model_server::ModelServer;
use plain::Plain;
use scene::Scene;
use screen::Screen;
pub use script::SHORTEST;
use stage::Stage;
pub use subject::{Percentiles, Sample, Subject};
pub use summary::{Summary, WorstStep};

/// Why the demo could not go on.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A model server could not listen or have a thread.
    #[error("a model server of the demo cannot serve")]
    Serve(#[source] io::Error),
    /// The clients could not have a thread.
    #[error("the clients of the demo cannot start")]
    Load(#[source] io::Error),
    /// What there is to show could not be written.
    #[error("the demo cannot be shown")]
    Show(#[source] io::Error),
    /// Signals could not be listened to.
    #[error("the demo cannot be made to end on a signal")]
    Signal(#[source] io::Error),
}

/// How the demo is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Its length; less than [`SHORTEST`] counts as that. The last streams may take some seconds more.
    pub seconds: u64,
    /// Lines instead of a picture, as without a terminal.
    pub plain: bool,
    /// How many clients ask at the same time.
    pub streams: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            seconds: 60,
            plain: false,
            streams: 48,
        }
    }
}

/// Runs the demo on `subject`, which has `old` and `new` as its upstreams; `page` is where a person finds its live page.
///
/// Ends with the script, on q, on SIGINT or on SIGTERM; then the terminal is as it was, and the summary is the
/// caller's to print. Beware: when this has run, SIGINT and SIGTERM no longer end the process by themselves.
///
/// # Errors
/// [`Error`]; the terminal is given back then too.
pub async fn run(
    options: Options,
    old: ModelServer,
    new: ModelServer,
    subject: impl Subject,
    page: Option<String>,
) -> Result<Summary, Error> {
    let mut terminate = signal(SignalKind::terminate()).map_err(Error::Signal)?;
    let mut interrupted = pin!(async {
        tokio::select! {
            _ = tokio::signal::ctrl_c() => {}
            _ = terminate.recv() => {}
        }
    });
    let mut stage = Stage::begin(&options, [old, new], subject, page)?;
    let mut output = Output::open(options.plain);
    loop {
        tokio::select! {
            () = &mut interrupted => break,
            goes_on = stage.goes_on() => if !goes_on? { break },
        }
        if output.show(&stage.scene()).map_err(Error::Show)? == Wish::Quit {
            break;
        }
    }
    drop(output);
    Ok(stage.end())
}

/// Where pictures go.
enum Output {
    Screen(Screen),
    Plain(Plain<io::Stdout>),
}

#[derive(PartialEq, Eq)]
enum Wish {
    GoOn,
    Quit,
}

impl Output {
    /// A picture where there is a terminal that takes it, lines elsewhere.
    fn open(plain: bool) -> Self {
        if !plain
            && io::stdout().is_terminal()
            && let Ok(screen) = Screen::take()
        {
            return Self::Screen(screen);
        }
        Self::Plain(Plain::new(io::stdout()))
    }

    fn show(&mut self, scene: &Scene<'_>) -> io::Result<Wish> {
        if let Self::Screen(screen) = self
            && !screen.is_ours()
        {
            *self = Self::Plain(Plain::new(io::stdout()));
        }
        match self {
            Self::Screen(screen) => {
                screen.draw(|frame| view::draw(frame, scene))?;
                Ok(if Screen::quit_pressed()? {
                    Wish::Quit
                } else {
                    Wish::GoOn
                })
            }
            Self::Plain(plain) => match plain.show(scene) {
                // Whoever read has read enough, as `head` does.
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(Wish::Quit),
                shown => shown.map(|()| Wish::GoOn),
            },
        }
    }
}
