//! The demo: two model servers, the real proxy between them, some tens of clients, and a rollout shown live.
//!
//! Every figure is counted by the proxy ([`Sample`]) or, independently, by the clients ([`Summary`]). The proxy itself is
//! passed in as a [`ProxyControl`].

mod args;
mod frame;
mod lines;
mod load;
mod model_server;
mod proxy;
mod runner;
mod screen;
mod script;
mod summary;
mod transcript;
mod view;
mod worker;

use std::io::{self, IsTerminal};
use std::ops::ControlFlow;
use std::pin::pin;

use tokio::signal::unix::{SignalKind, signal};

pub use args::DemoArgs;
use frame::DemoFrame;
use lines::Plain;
pub use model_server::ModelServer;
pub use proxy::{Percentiles, ProxyControl, Sample};
use runner::Runner;
use screen::Screen;
pub use script::SHORTEST;
pub use summary::{RecoveryCounts, Summary, WorstStep};

/// Why the demo failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A model server has no port or no thread.
    #[error("cannot start a model server of the demo")]
    Serve(#[source] io::Error),
    /// The clients have no thread.
    #[error("cannot start the clients of the demo")]
    Load(#[source] io::Error),
    /// The output cannot be written.
    #[error("cannot show the demo")]
    Show(#[source] io::Error),
    /// No signal handler can be set.
    #[error("cannot handle signals in the demo")]
    Signal(#[source] io::Error),
}

/// The options of the demo.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Length in seconds, at least [`SHORTEST`]. The last streams may take some seconds more.
    pub seconds: u64,
    /// Prints lines even on a terminal.
    pub plain: bool,
    /// Number of concurrent clients.
    pub streams: usize,
    /// Whether streams that break are continued on the other generation.
    pub continuation: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            seconds: 60,
            plain: false,
            streams: 48,
            continuation: true,
        }
    }
}

/// Runs the demo on `proxy`, whose upstreams are `old` and `new`. `page` is the URL of its live page.
///
/// Ends with the script, on q, SIGINT or SIGTERM. The terminal is restored then, and the caller prints the summary.
/// Beware: afterwards SIGINT and SIGTERM no longer end the process by themselves.
///
/// # Errors
/// [`Error`]; the terminal is restored in this case too.
pub async fn run(
    options: Options,
    old: ModelServer,
    new: ModelServer,
    proxy: impl ProxyControl,
    page: Option<String>,
) -> Result<Summary, Error> {
    let mut terminate = signal(SignalKind::terminate()).map_err(Error::Signal)?;
    let mut interrupted = pin!(async {
        tokio::select! {
            _ = tokio::signal::ctrl_c() => {}
            _ = terminate.recv() => {}
        }
    });
    let mut runner = Runner::begin(&options, [old, new], proxy, page)?;
    let mut output = Output::open(options.plain);
    loop {
        tokio::select! {
            () = &mut interrupted => break,
            next_tick = runner.next_tick() => if !next_tick? { break },
        }
        if output.show(&runner.frame()).map_err(Error::Show)? == ControlFlow::Break(()) {
            break;
        }
    }
    drop(output);
    Ok(runner.end())
}

/// Where the output goes.
enum Output {
    Screen(Screen),
    Plain(Plain<io::Stdout>),
}

impl Output {
    /// Full screen on a terminal that supports it, lines elsewhere.
    fn open(plain: bool) -> Self {
        if !plain
            && io::stdout().is_terminal()
            && let Ok(screen) = Screen::take()
        {
            return Self::Screen(screen);
        }
        Self::Plain(Plain::new(io::stdout()))
    }

    fn show(&mut self, demo_frame: &DemoFrame<'_>) -> io::Result<ControlFlow<()>> {
        if let Self::Screen(screen) = self
            && !screen.is_ours()
        {
            *self = Self::Plain(Plain::new(io::stdout()));
        }
        match self {
            Self::Screen(screen) => {
                screen.draw(|frame| view::draw(frame, demo_frame))?;
                Ok(if Screen::quit_pressed()? {
                    ControlFlow::Break(())
                } else {
                    ControlFlow::Continue(())
                })
            }
            Self::Plain(plain) => match plain.show(demo_frame) {
                // The reader has exited, as `head` does.
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
                    Ok(ControlFlow::Break(()))
                }
                shown => shown.map(ControlFlow::Continue),
            },
        }
    }
}
