//! Which models a frontend really serves: a list says which it knows, `/v1/models/{m}/ready` which it can serve, and where
//! there is no such page, a request that must be answered.
//!
//! Must not know who wants to know.

use std::collections::{BTreeSet, HashMap};
use std::time::{Duration, Instant};

use http::StatusCode;
use serde_json::{Value as Json, json};

use super::ask::{Error, Place};
use super::lookout::Teller;

/// From one question to the next.
const INTERVAL: Duration = Duration::from_secs(1);
const PATIENCE: Duration = Duration::from_secs(2);
/// What an answer of a model may take, and for how long it is taken for granted while the model stays listed.
const PROBE: Duration = Duration::from_secs(30);
const PROVEN: Duration = Duration::from_secs(60);
/// One answer that is missing may have been lost: so many in a row have not.
const MISSED: u32 = 2;

/// Models that have answered, and when.
type Proven = HashMap<String, Instant>;

/// What is known of frontends that are asked together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Served {
    /// The models that each of them serves.
    pub models: BTreeSet<String>,
    /// Why one of them cannot be asked.
    pub trouble: Option<String>,
}

impl Served {
    /// The part of it by which something may be decided.
    fn essence(&self) -> (&BTreeSet<String>, bool) {
        (&self.models, self.trouble.is_some())
    }
}

/// Asks all `places`, again and again, and tells which models are served by each of them.
pub(super) async fn follow(places: Vec<Place>, teller: Teller<Served>) {
    let mut proven: Vec<Proven> = vec![Proven::new(); places.len()];
    let mut last: Option<Served> = None;
    let mut missed = 0;
    loop {
        let heard = match served_by_all(&places, &mut proven).await {
            Ok(models) => {
                missed = 0;
                let trouble = None;
                Some(Served { models, trouble })
            }
            Err(trouble) => {
                missed += 1;
                tracing::debug!(trouble, "a frontend does not answer");
                let models = BTreeSet::new();
                let trouble = Some(trouble);
                (missed >= MISSED || last.is_none()).then_some(Served { models, trouble })
            }
        };
        if let Some(heard) = heard {
            let matters = last.as_ref().map(Served::essence) != Some(heard.essence());
            teller.tell(heard.clone(), matters);
            last = Some(heard);
        }
        tokio::time::sleep(INTERVAL).await;
    }
}

/// The models, or in whose way what is.
async fn served_by_all(
    places: &[Place],
    proven: &mut [Proven],
) -> Result<BTreeSet<String>, String> {
    let mut all: Option<BTreeSet<String>> = None;
    for (place, proven) in places.iter().zip(proven) {
        let trouble = |error: Error| match std::error::Error::source(&error) {
            Some(cause) => format!("{} {error}: {cause}", place.target),
            None => format!("{} {error}", place.target),
        };
        let served = served(place, proven).await.map_err(trouble)?;
        all = Some(match all {
            None => served,
            Some(all) => all.intersection(&served).cloned().collect(),
        });
    }
    Ok(all.unwrap_or_default())
}

async fn served(place: &Place, proven: &mut Proven) -> Result<BTreeSet<String>, Error> {
    let (status, body) = place.ask("/v1/models", None, PATIENCE).await?;
    let listed = if status == StatusCode::OK {
        ids(&body)
    } else {
        Vec::new()
    };
    proven.retain(|model, _| listed.contains(model));
    let mut served = BTreeSet::new();
    for model in listed {
        if is_served(place, &model, proven).await? {
            served.insert(model);
        }
    }
    Ok(served)
}

async fn is_served(place: &Place, model: &str, proven: &mut Proven) -> Result<bool, Error> {
    let path = format!("/v1/models/{}/ready", in_path(model));
    match place.ask(&path, None, PATIENCE).await?.0 {
        StatusCode::OK => return Ok(true),
        // No such page: an older frontend.
        StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED | StatusCode::NOT_IMPLEMENTED => {}
        _ => return Ok(false),
    }
    if proven
        .get(model)
        .is_some_and(|since| since.elapsed() < PROVEN)
    {
        return Ok(true);
    }
    let answers = answers(place, model).await;
    if answers {
        proven.insert(model.to_owned(), Instant::now());
    } else {
        proven.remove(model);
    }
    Ok(answers)
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
}
