//! What a person at a terminal asks of an update: shows it, again and again if wished, and changes it once confirmed.

mod frame;

use std::io::{self, BufRead, IsTerminal, Write};
use std::process::ExitCode;
use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use serde_json::Value;

use self::frame::Frame;
use crate::printable::{self, printable};
use crate::resource::DynamoUpdateConfig;
use crate::state_api::whole;
use crate::status::{self, Choice, Cluster, Look, Proxies, Verb};

/// Why a person does not get what was asked for.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Status(#[from] status::Error),
    #[error("cannot begin")]
    Begin(#[from] super::Error),
    #[error("nothing was changed: there is no terminal to ask on; use --yes")]
    NobodyToAsk,
    #[error("nothing was changed: cannot ask")]
    Ask(#[source] io::Error),
}

/// In which form a look is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Form {
    Text,
    Json,
    Yaml,
}

/// What is to be shown.
#[derive(Clone, Debug)]
pub struct Wish {
    /// The update; the only one if it is not named.
    pub name: Option<String>,
    /// Ask these admin ports instead of a cluster.
    pub proxies: Vec<String>,
    pub cluster: Choice,
    /// Look again and again, after so long each time.
    pub every: Option<Duration>,
    pub form: Form,
}

/// Where it is looked.
enum Source {
    Proxies(Proxies),
    /// At the update of this name; without one, at all.
    Cluster(Cluster, Option<String>),
}

/// What is seen there.
enum View {
    One(Box<Look>),
    Several(Vec<DynamoUpdateConfig>),
}

impl Source {
    async fn view(&mut self) -> Result<View, status::Error> {
        let look = match self {
            Self::Proxies(proxies) => proxies.look().await,
            Self::Cluster(cluster, Some(name)) => cluster.look(name).await?,
            Self::Cluster(cluster, None) => {
                let mut updates = cluster.updates().await?;
                match updates.pop() {
                    None => return Err(status::Error::NoUpdate(cluster.namespace().to_owned())),
                    Some(only) if updates.is_empty() => cluster.look_at(only).await,
                    Some(last) => {
                        updates.push(last);
                        return Ok(View::Several(updates));
                    }
                }
            }
        };
        Ok(View::One(look.into()))
    }
}

impl View {
    /// Whether anything could be told.
    fn tells(&self) -> bool {
        match self {
            Self::One(look) => look.update.is_some() || look.states().next().is_some(),
            Self::Several(_) => true,
        }
    }

    fn text(&self) -> String {
        match self {
            Self::One(look) => status::text(look),
            Self::Several(updates) => status::list(updates),
        }
    }

    fn printed(&self, form: Form, one_of_many: bool) -> String {
        let json = || match self {
            Self::One(look) => status::json(look),
            Self::Several(updates) => status::json_list(updates),
        };
        match form {
            Form::Text if one_of_many => self.text() + "\n",
            Form::Text => self.text(),
            Form::Json => as_json(&json(), one_of_many),
            Form::Yaml => format!("---\n{}", status::yaml(&json())),
        }
    }
}

/// On one line where there are several, which is what readers of a stream of JSON take.
fn as_json(value: &Value, one_of_many: bool) -> String {
    let mut text = Vec::new();
    let written = match one_of_many {
        true => printable::write_json(&mut text, value),
        false => printable::write_json_pretty(&mut text, value),
    };
    written.expect("a Vec takes every write");
    text.push(b'\n');
    String::from_utf8(text).expect("JSON is UTF-8")
}

/// Shows an update. The exit code is a failure when nothing could be told.
///
/// # Errors
/// When the cluster cannot be read; not while watching, where it may come back.
pub fn status(wish: Wish) -> Result<ExitCode, Error> {
    super::runtime()?.block_on(async {
        let mut source = if wish.proxies.is_empty() {
            let cluster = Cluster::open(&wish.cluster).await?;
            Source::Cluster(cluster, wish.name)
        } else {
            Source::Proxies(Proxies::at(wish.proxies))
        };
        if let Some(pause) = wish.every {
            watch(source, pause, wish.form).await;
            return Ok(ExitCode::SUCCESS);
        }
        let view = source.view().await?;
        let text = view.printed(wish.form, false);
        say(&match wish.form == Form::Text && is_coloured() {
            true => status::coloured(&text),
            false => text,
        });
        Ok(ExitCode::from(u8::from(!view.tells())))
    })
}

/// Looks again and again, until nobody reads any more.
async fn watch(mut source: Source, pause: Duration, form: Form) {
    let drawn = form == Form::Text && io::stdout().is_terminal();
    let mut frame = Frame::default();
    loop {
        let seen = source.view().await;
        let now = Timestamp::now().strftime("%H:%M:%SZ").to_string();
        let text = match (seen, drawn) {
            (Ok(view), false) => view.printed(form, true),
            (Err(error), false) => {
                let why = status::printable(&whole(&error));
                eprintln!("crossfade: {why}");
                String::new()
            }
            (Ok(view), true) => {
                frame.saw(now, view.text());
                frame.drawn(size())
            }
            (Err(error), true) => {
                frame.failed(now, status::printable(&whole(&error)));
                frame.drawn(size())
            }
        };
        let text = match drawn && is_coloured() {
            true => status::coloured(&text),
            false => text,
        };
        if !say(&text) {
            return;
        }
        tokio::time::sleep(pause).await;
    }
}

/// Does whoever reads want colours? (no-color.org)
fn is_coloured() -> bool {
    let is_set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    let is_dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
    io::stdout().is_terminal() && !is_set("NO_COLOR") && !is_dumb
}

/// Columns and rows of the terminal, if it tells them.
fn size() -> Option<(u16, u16)> {
    let size = crossterm::terminal::size().ok()?;
    (size.0 > 0 && size.1 > 0).then_some(size)
}

/// Writes to standard output; false once nobody reads any more.
fn say(text: &str) -> bool {
    let mut out = io::stdout();
    out.write_all(text.as_bytes())
        .and_then(|()| out.flush())
        .is_ok()
}

/// Shows what a verb changes of an update, asks, and changes it.
///
/// # Errors
/// When the cluster cannot be read or refuses, and where nobody can be asked.
pub fn edit(name: &str, choice: &Choice, yes: bool, verb: Verb) -> Result<ExitCode, Error> {
    super::runtime()?.block_on(async {
        let cluster = Cluster::open(choice).await?;
        let update = cluster.update(name).await?;
        let changes = verb.changes(&update.spec);
        let (name, namespace) = (printable(name), printable(cluster.namespace()));
        say(&format!("{name} in namespace {namespace}\n"));
        if changes.is_empty() {
            say("  is so already\n");
            return Ok(ExitCode::SUCCESS);
        }
        for change in &changes {
            say(&format!("  {}\n", printable(change)));
        }
        if let Some(caveat) = verb.caveat(&update.spec) {
            say(&format!("  {}\n", printable(caveat)));
        }
        if !yes && !confirmed()? {
            say("nothing was changed\n");
            return Ok(ExitCode::FAILURE);
        }
        cluster.apply(&update, verb).await?;
        say("changed\n");
        Ok(ExitCode::SUCCESS)
    })
}

fn confirmed() -> Result<bool, Error> {
    if !io::stdin().is_terminal() {
        return Err(Error::NobodyToAsk);
    }
    say("Change it? [y/N] ");
    let mut answer = String::new();
    let read = io::stdin().lock().read_line(&mut answer);
    if read.map_err(Error::Ask)? == 0 {
        // The end of input has left the cursor behind the question.
        say("\n");
    }
    let answer = answer.trim().to_lowercase();
    Ok(matches!(&*answer, "y" | "yes"))
}
