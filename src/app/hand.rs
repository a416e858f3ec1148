//! What a person at a terminal asks of an update: shows it, again and again if wished, and changes it once confirmed.

use std::io::{self, BufRead, IsTerminal, Write};
use std::process::ExitCode;
use std::time::Duration;

use crate::state_api::whole;
use crate::status::{self, Choice, Cluster, Look, Proxies, Verb};

/// Puts the cursor home and takes away what is below it (ECMA-48 CUP, ED).
const AFRESH: &str = "\x1b[H\x1b[J";

/// Why a person does not get what was asked for.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Status(#[from] status::Error),
    #[error("cannot begin")]
    Begin(#[from] super::Error),
    #[error("nothing was changed: there is nobody to ask, so say --yes")]
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

/// Where looks come from.
enum Source {
    Proxies(Proxies),
    Cluster(Cluster, String),
}

impl Source {
    async fn look(&mut self) -> Result<Look, status::Error> {
        match self {
            Self::Proxies(proxies) => Ok(proxies.look().await),
            Self::Cluster(cluster, name) => cluster.look(name).await,
        }
    }
}

/// Shows an update. The exit code is a failure when nothing could be told.
///
/// # Errors
/// When the cluster cannot be read; not while watching, where it may come back.
pub fn status(wish: Wish) -> Result<ExitCode, Error> {
    super::runtime()?.block_on(async {
        let mut source = if wish.proxies.is_empty() {
            let cluster = Cluster::open(&wish.cluster).await?;
            let name = match &wish.name {
                Some(name) => name.clone(),
                None => match only(&cluster).await? {
                    Ok(name) => name,
                    Err(list) => {
                        say(&list);
                        return Ok(ExitCode::SUCCESS);
                    }
                },
            };
            Source::Cluster(cluster, name)
        } else {
            Source::Proxies(Proxies::at(wish.proxies))
        };
        let Some(pause) = wish.every else {
            let look = source.look().await?;
            say(&printed(&look, wish.form, false));
            let told = look.update.is_some() || look.states().next().is_some();
            return Ok(ExitCode::from(u8::from(!told)));
        };
        let afresh = wish.form == Form::Text && io::stdout().is_terminal();
        loop {
            let text = match source.look().await {
                Ok(look) => printed(&look, wish.form, true),
                Err(error) => {
                    eprintln!("crossfade: {}", whole(&error));
                    String::new()
                }
            };
            if !say(&format!("{}{text}", if afresh { AFRESH } else { "" })) {
                return Ok(ExitCode::SUCCESS);
            }
            tokio::time::sleep(pause).await;
        }
    })
}

/// The name of the only update, or a list of several.
async fn only(cluster: &Cluster) -> Result<Result<String, String>, Error> {
    let updates = cluster.updates().await?;
    match &updates[..] {
        [] => Err(status::Error::NoUpdate(cluster.namespace().to_owned()).into()),
        [update] => Ok(Ok(update.metadata.name.clone().unwrap_or_default())),
        several => Ok(Err(status::list(several))),
    }
}

fn printed(look: &Look, form: Form, one_of_many: bool) -> String {
    match form {
        Form::Text => format!(
            "{}{}",
            status::text(look),
            if one_of_many { "\n" } else { "" }
        ),
        // A line each, which is what readers of a stream of JSON take.
        Form::Json if one_of_many => format!("{}\n", status::json(look)),
        Form::Json => format!("{:#}\n", status::json(look)),
        Form::Yaml => format!("---\n{}", status::yaml(look)),
    }
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
        say(&format!("{} in namespace {}\n", name, cluster.namespace()));
        if changes.is_empty() {
            say("  is so already\n");
            return Ok(ExitCode::SUCCESS);
        }
        for change in &changes {
            say(&format!("  {change}\n"));
        }
        if let Some(caveat) = verb.caveat(&update.spec) {
            say(&format!("  {caveat}\n"));
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
        // Whoever ends the input instead of a line has not ended the line.
        say("\n");
    }
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}
