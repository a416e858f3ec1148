//! Which models a frontend really serves: a list says which it knows, `/v1/models/{m}/ready` which it can serve, and where
//! there is no such page, a request that must be answered.
//!
//! Must not know who wants to know.

use std::collections::{BTreeSet, HashMap};
use std::time::{Duration, Instant};

use http::StatusCode;
use serde_json::{Value as Json, json};
use tokio::task::JoinSet;

use super::ask::Place;
use super::lookout::Teller;

/// From one question to the next.
const INTERVAL: Duration = Duration::from_secs(1);
const PATIENCE: Duration = Duration::from_secs(2);
/// What an answer of a model may take, and how long it is taken for granted while the model stays listed.
const PROBE: Duration = Duration::from_secs(30);
const PROVEN: Duration = Duration::from_secs(60);
/// One answer that is missing may have been lost: so many in a row have not.
const MISSED: u32 = 2;

/// What is known of a frontend.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Served {
    /// The models that it serves, as far as that is proven.
    pub models: BTreeSet<String>,
    /// Is there a model that is being tried for the first time?
    pub is_trying: bool,
    /// Why it cannot be asked.
    pub trouble: Option<String>,
}

/// Asks `place`, again and again, and tells what it serves.
pub(super) async fn follow(place: Place, teller: Teller<Served>) {
    let mut reading = Reading::default();
    let mut trials = Trials::default();
    loop {
        let answer = served(&place, &mut trials).await;
        if let Err(trouble) = &answer {
            tracing::debug!(trouble, "a frontend does not answer");
        }
        if let Some((served, is_news)) = reading.take(answer) {
            teller.tell(served, is_news);
        }
        tokio::select! {
            () = tokio::time::sleep(INTERVAL) => {}
            () = trials.next() => {}
        }
    }
}

/// What was last told.
#[derive(Debug, Default)]
struct Reading {
    last: Option<Served>,
    missed: u32,
}

impl Reading {
    /// What is to be told of an answer, if anything, and whether it is news.
    ///
    /// No answer, or at first one without a model, is believed when it is the second in a row: an answer can get lost, and
    /// who has just begun serves nothing for a moment.
    fn take(&mut self, answer: Result<Served, String>) -> Option<(Served, bool)> {
        let lacks = |served: &Served| served.models.is_empty() && !served.is_trying;
        let is_missing = answer
            .as_ref()
            .map_or(true, |served| self.last.is_none() && lacks(served));
        self.missed = if is_missing { self.missed + 1 } else { 0 };
        if is_missing && self.missed < MISSED {
            return None;
        }
        let served = answer.unwrap_or_else(|trouble| Served {
            trouble: Some(trouble),
            ..Served::default()
        });
        let essence = |served: &Served| {
            (
                served.models.clone(),
                served.is_trying,
                served.trouble.is_some(),
            )
        };
        let is_news = self.last.as_ref().map(essence) != Some(essence(&served));
        self.last = Some(served.clone());
        Some((served, is_news))
    }
}

/// What a frontend serves, or in whose way what is.
async fn served(place: &Place, trials: &mut Trials) -> Result<Served, String> {
    let ask = async |path: &str| {
        let answer = place.ask(path, None, PATIENCE).await;
        answer.map_err(|error| match std::error::Error::source(&error) {
            Some(cause) => format!("{} {error}: {cause}", place.target),
            None => format!("{} {error}", place.target),
        })
    };
    let (status, body) = ask("/v1/models").await?;
    if status != StatusCode::OK {
        let (target, code) = (&place.target, status.as_u16());
        return Err(format!("{target} answers /v1/models with status {code}"));
    }
    let listed = ids(&body);
    trials.keep(&listed);
    let mut served = Served::default();
    for model in listed {
        let path = format!("/v1/models/{}/ready", in_path(&model));
        let is_served = match ask(&path).await?.0 {
            StatusCode::OK => Some(true),
            // No such page: an older frontend.
            StatusCode::NOT_FOUND
            | StatusCode::METHOD_NOT_ALLOWED
            | StatusCode::NOT_IMPLEMENTED => trials.of(place, &model),
            _ => Some(false),
        };
        served.is_trying |= is_served.is_none();
        if is_served == Some(true) {
            served.models.insert(model);
        }
    }
    Ok(served)
}

/// Models that are tried by a request, in the background: an answer may take its time.
#[derive(Default)]
struct Trials {
    /// Which answered, or did not, and when.
    known: HashMap<String, (bool, Instant)>,
    running: JoinSet<(String, bool)>,
    tried: BTreeSet<String>,
}

impl Trials {
    /// Does a model answer? None if that is not known yet.
    fn of(&mut self, place: &Place, model: &str) -> Option<bool> {
        let known = self.known.get(model).copied();
        let lasts = |(answers, since): (bool, Instant)| answers && since.elapsed() < PROVEN;
        if !known.is_some_and(lasts) && self.tried.insert(model.to_owned()) {
            let (place, model) = (place.clone(), model.to_owned());
            self.running.spawn(async move {
                let answers = answers(&place, &model).await;
                (model, answers)
            });
        }
        known.map(|(answers, _)| answers)
    }

    /// Waits until one has ended; for ever if none runs.
    async fn next(&mut self) {
        match self.running.join_next().await {
            Some(Ok((model, answers))) => {
                self.tried.remove(&model);
                self.known.insert(model, (answers, Instant::now()));
            }
            Some(Err(_)) => self.tried.clear(),
            None => std::future::pending().await,
        }
    }

    /// What is no longer listed is to be proven anew.
    fn keep(&mut self, listed: &[String]) {
        self.known.retain(|model, _| listed.contains(model));
    }
}

/// Does the model answer a request of one token?
async fn answers(place: &Place, model: &str) -> bool {
    let chat =
        json!({"model": model, "max_tokens": 1, "messages": [{"role": "user", "content": "ping"}]});
    let completion = json!({"model": model, "max_tokens": 1, "prompt": "ping"});
    for (path, body) in [
        ("/v1/chat/completions", chat),
        ("/v1/completions", completion),
    ] {
        let answer = place.ask(path, Some(body.to_string()), PROBE).await;
        if answer.is_ok_and(|(status, _)| status.is_success()) {
            return true;
        }
    }
    // Who refuses at once is asked again no sooner than who answers.
    tokio::time::sleep(INTERVAL).await;
    false
}

fn ids(list: &[u8]) -> Vec<String> {
    let list: Json = serde_json::from_slice(list).unwrap_or_default();
    let models = list["data"].as_array().into_iter().flatten();
    let ids = models.filter_map(|model| model["id"].as_str());
    ids.map(str::to_owned).collect()
}

/// A model's name within a path: slashes are a part of it (`org/model`), and all else that is special is escaped.
fn in_path(model: &str) -> String {
    let mut path = String::with_capacity(model.len());
    for byte in model.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~/:@".contains(&byte) {
            path.push(char::from(byte));
        } else {
            path += &format!("%{byte:02X}");
        }
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_models_name_makes_a_path() {
        assert_eq!(in_path("Qwen/Qwen3-0.6B"), "Qwen/Qwen3-0.6B");
        assert_eq!(in_path("a b?c#d\u{e9}"), "a%20b%3Fc%23d%C3%A9");
    }

    /// What is told after each answer: models, `-` for none, `.` where nothing is told.
    fn told(answers: &[Result<&str, ()>]) -> Vec<String> {
        let mut reading = Reading::default();
        let take = |answer: &Result<&str, ()>| {
            let served = answer.map(|models| Served {
                models: models.split_whitespace().map(str::to_owned).collect(),
                ..Served::default()
            });
            let told = reading.take(served.map_err(|()| "late".to_owned()));
            told.map_or_else(
                || ".".to_owned(),
                |(served, _)| match (served.models.into_iter().next(), served.trouble) {
                    (Some(model), None) => model,
                    (None, Some(_)) => "!".to_owned(),
                    _ => "-".to_owned(),
                },
            )
        };
        answers.iter().map(take).collect()
    }

    #[test]
    fn one_answer_that_is_missing_takes_nothing_away_not_even_the_first() {
        assert_eq!(
            told(&[Err(()), Ok("a"), Err(()), Ok("a")]),
            [".", "a", ".", "a"]
        );
        assert_eq!(told(&[Err(()), Err(()), Err(())]), [".", "!", "!"]);
        assert_eq!(
            told(&[Ok("a"), Err(()), Err(()), Ok("a")]),
            ["a", ".", "!", "a"]
        );
        // Who has just begun serves nothing for a moment; who says that it no longer does is believed.
        assert_eq!(
            told(&[Ok(""), Ok("a"), Ok(""), Ok("a")]),
            [".", "a", "-", "a"]
        );
        assert_eq!(told(&[Ok(""), Ok("")]), [".", "-"]);
    }
}
