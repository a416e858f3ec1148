//! Polls a frontend for the models that it actually serves.
//!
//! `/v1/models` lists the models that it knows, and `/v1/models/{m}/ready` says whether it can serve one. A frontend without
//! that page is probed with a short request to the model.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use http::StatusCode;
use serde::Deserialize;
use serde_json::json;
use tokio::task::JoinSet;

use super::http::{Answer, FrontendAddress, FrontendClient, FrontendQuery, MAX_LIST};
use super::limits::{Kept, Share};
use super::poller::PollSink;
use crate::rollout::Registered;

/// Poll interval, and the interval once all updates that need the answer are complete.
const INTERVAL: Duration = Duration::from_secs(1);
const SELDOM: Duration = Duration::from_secs(15);
const PATIENCE: Duration = Duration::from_secs(2);
/// Timeout of a probe, and how long a successful probe stays valid while the model is listed.
const PROBE: Duration = Duration::from_secs(30);
const PROVEN: Duration = Duration::from_secs(60);
/// A single response may get lost: believe only this many failures in a row.
const MISSED: u32 = 2;
/// Maximum number of models checked per frontend, in the order of their names, and the maximum length of a name, in bytes.
const MAX_MODELS: usize = 512;
pub(super) const MAX_ID: usize = 512;
/// Maximum number of Dynamo namespaces kept per frontend, in the order of their names.
const MAX_NAMESPACES: usize = 32;
/// Concurrent probes per frontend, and how much of a response is read, in bytes.
const TRIALS: usize = 2;
const MAX_TRIAL: usize = 64 * 1024;

/// What is known about a frontend.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Served {
    /// The models that it is proven to serve.
    pub models: BTreeSet<String>,
    /// Whether a model is being probed for the first time.
    pub is_trying: bool,
    /// Number of listed models that are not checked, because there are too many.
    pub left_out: usize,
    /// The workers that it reports.
    pub registered: Registered,
    /// The Dynamo namespaces of these workers.
    pub namespaces: BTreeSet<String>,
    /// Whether its responses come through a crossfade.
    pub is_proxied: bool,
    /// Why it could not be polled.
    pub trouble: Option<Missing>,
}

/// A missing response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Missing {
    pub why: String,
    pub how: Lack,
}

/// The kind of failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lack {
    /// No request reached the frontend, so the failure says nothing about it: what was known before still holds.
    Unasked,
    /// There was no response.
    Silent,
    /// The response was not usable.
    Bad,
}

/// Polls `place` forever and reports what it serves.
pub(super) async fn follow(place: FrontendAddress, share: Share, mut sink: PollSink<Served>) {
    let share = Arc::new(share);
    let mut client = FrontendClient::new(place);
    let mut reading = Reading::default();
    let mut trials = Trials::default();
    // Holds the reservation for the model ids across polls.
    let mut kept = None;
    loop {
        let answer = served(&mut client, &share, &mut trials, &mut kept).await;
        if let Err(missing) = &answer {
            tracing::debug!(trouble = missing.why, "a frontend does not respond");
        }
        if let Some((served, is_changed)) = reading.take(answer) {
            sink.report(served, is_changed);
        }
        // After a failure, poll soon to find out whether it persists.
        let calm = if reading.missed > 0 { INTERVAL } else { SELDOM };
        tokio::select! {
            () = sink.pause(INTERVAL, calm) => {}
            () = trials.next() => {}
        }
    }
}

impl Served {
    /// Equal except for the text of a failure.
    fn is_as_good_as(&self, other: &Self) -> bool {
        let how = |served: &Self| served.trouble.as_ref().map(|missing| missing.how);
        how(self) == how(other)
            && self.is_trying == other.is_trying
            && self.left_out == other.left_out
            && self.registered == other.registered
            && self.namespaces == other.namespaces
            && self.is_proxied == other.is_proxied
            && self.models == other.models
    }
}

/// Decides which poll results to report.
#[derive(Debug, Default)]
struct Reading {
    last: Option<Served>,
    missed: u32,
}

impl Reading {
    /// Takes the result of a poll. Returns what to report, if anything, and whether it is news.
    ///
    /// A failure, or a first result without a model, is believed only when it repeats: a response can get lost, and a
    /// frontend that has just started serves no model for a moment.
    fn take(&mut self, answer: Result<Served, Missing>) -> Option<(Served, bool)> {
        let lacks = |served: &Served| served.models.is_empty() && !served.is_trying;
        let is_missing = answer
            .as_ref()
            .map_or(true, |served| self.last.is_none() && lacks(served));
        self.missed = if is_missing { self.missed + 1 } else { 0 };
        if is_missing && self.missed < MISSED {
            return None;
        }
        let served = answer.unwrap_or_else(|missing| {
            // The frontend was not reached, so what was known before still holds.
            let known = self.last.as_ref().filter(|_| missing.how == Lack::Unasked);
            Served {
                trouble: Some(missing),
                ..known.cloned().unwrap_or_default()
            }
        });
        let is_changed = self
            .last
            .as_ref()
            .is_none_or(|last| !last.is_as_good_as(&served));
        self.last = Some(served.clone());
        Some((served, is_changed))
    }
}

/// Polls a frontend once for the models that it serves.
async fn served(
    client: &mut FrontendClient,
    share: &Arc<Share>,
    trials: &mut Trials,
    kept: &mut Option<Kept>,
) -> Result<Served, Missing> {
    let place = client.place.clone();
    let mut send = async |path: &str, most: usize| {
        let _turn = share.query_permit().await;
        let query = FrontendQuery {
            path,
            body: None,
            most,
        };
        let answer = client.send(&query, PATIENCE, share).await;
        answer.map_err(|error| Missing {
            why: match std::error::Error::source(&error) {
                Some(cause) => format!("{} {error}: {cause}", place.target),
                None => format!("{} {error}", place.target),
            },
            how: match &error {
                error if error.is_unasked() => Lack::Unasked,
                error if error.is_answer() => Lack::Bad,
                _ => Lack::Silent,
            },
        })
    };
    let Answer {
        status,
        body,
        is_proxied,
        ..
    } = send("/v1/models", MAX_LIST).await?;
    if status != StatusCode::OK {
        let (target, code) = (&place.target, status.as_u16());
        return Err(Missing {
            why: format!("{target} answers /v1/models with status {code}"),
            how: Lack::Bad,
        });
    }
    let mut listed = ids(&body);
    drop(body);
    let count = listed.len();
    // Release the previous reservation first, so that its room is available.
    *kept = None;
    let room = kept.insert(share.keep(count.min(MAX_MODELS))).count();
    listed.truncate(room);
    listed.shrink_to_fit();
    trials.keep(&listed);
    let mut served = Served {
        left_out: count - listed.len(),
        is_proxied,
        ..Served::default()
    };
    let mut without_page = Vec::new();
    let mut pages = Vec::new();
    for model in listed {
        let path = format!("/v1/models/{}/ready", in_path(&model));
        let answer = send(&path, MAX_LIST).await?;
        let status = answer.status;
        let page = Page::read(status, &answer.body);
        pages.push(page.registered());
        served.namespaces.extend(page.with_workers());
        while served.namespaces.len() > MAX_NAMESPACES {
            served.namespaces.pop_last();
        }
        match status {
            StatusCode::OK => _ = served.models.insert(model),
            // A frontend of an older version, without this page.
            StatusCode::NOT_FOUND
            | StatusCode::METHOD_NOT_ALLOWED
            | StatusCode::NOT_IMPLEMENTED => without_page.push(model),
            _ => {}
        }
    }
    if served.left_out == 0 {
        served.registered = in_all(&pages);
    }
    trials.begin(&place, share, &without_page);
    for model in without_page {
        match trials.known(&model) {
            Some(true) => _ = served.models.insert(model),
            Some(false) => {}
            None => served.is_trying = true,
        }
    }
    Ok(served)
}

/// Probes of models, run in the background because a response may take long.
#[derive(Default)]
struct Trials {
    /// Whether each model responded, and when.
    known: HashMap<String, (bool, Instant)>,
    running: JoinSet<(String, Option<bool>)>,
    tried: BTreeSet<String>,
}

impl Trials {
    /// Starts probes of the `models` without a valid result, up to the limit: first those never probed, then the least
    /// recently probed.
    fn begin(&mut self, place: &FrontendAddress, share: &Arc<Share>, models: &[String]) {
        let lasts = |(answers, since): &(bool, Instant)| *answers && since.elapsed() < PROVEN;
        let mut due: Vec<_> = models
            .iter()
            .filter(|model| !self.tried.contains(*model))
            .map(|model| (self.known.get(model), model))
            .filter(|(known, _)| !known.is_some_and(lasts))
            .collect();
        due.sort_by_key(|(known, _)| known.map(|(_, since)| *since));
        let free = TRIALS.saturating_sub(self.tried.len());
        for (_, model) in due.into_iter().take(free) {
            self.tried.insert(model.clone());
            let (place, share, model) = (place.clone(), Arc::clone(share), model.clone());
            self.running.spawn(async move {
                let _turn = share.trial().await;
                let answers = answers(&place, &model).await;
                (model, answers)
            });
        }
    }

    /// Whether a model responds; `None` if that is not known yet.
    fn known(&self, model: &str) -> Option<bool> {
        self.known.get(model).map(|(answers, _)| *answers)
    }

    /// Waits for a probe to end, forever if none is running.
    async fn next(&mut self) {
        match self.running.join_next().await {
            Some(Ok((model, answers))) => {
                self.tried.remove(&model);
                if let Some(answers) = answers {
                    self.known.insert(model, (answers, Instant::now()));
                }
            }
            Some(Err(_)) => self.tried.clear(),
            None => std::future::pending().await,
        }
    }

    /// Forgets models that are no longer listed, so that they are probed again if they come back.
    fn keep(&mut self, listed: &[String]) {
        let listed: BTreeSet<_> = listed.iter().collect();
        self.known.retain(|model, _| listed.contains(model));
    }
}

/// Whether the model responds to a request for one token; `None` if the frontend could not be reached.
async fn answers(place: &FrontendAddress, model: &str) -> Option<bool> {
    let chat =
        json!({"model": model, "max_tokens": 1, "messages": [{"role": "user", "content": "ping"}]});
    let completion = json!({"model": model, "max_tokens": 1, "prompt": "ping"});
    let mut answers = Some(false);
    for (path, body) in [
        ("/v1/chat/completions", chat),
        ("/v1/completions", completion),
    ] {
        let query = FrontendQuery {
            path,
            body: Some(body.to_string()),
            most: MAX_TRIAL,
        };
        match place.send(&query, PROBE).await {
            Ok((status, _)) if status.is_success() => return Some(true),
            Err(error) if error.is_unasked() => answers = None,
            Ok(_) | Err(_) => {}
        }
    }
    // Do not probe a model again at once if it fails at once.
    tokio::time::sleep(INTERVAL).await;
    answers
}

/// The page of a model.
#[derive(Default, Deserialize)]
struct Page {
    /// By name of the Dynamo namespace.
    #[serde(default)]
    namespaces: BTreeMap<String, Namespace>,
}

#[derive(Deserialize)]
struct Namespace {
    #[serde(default)]
    worker_types: BTreeMap<String, WorkerType>,
}

#[derive(Deserialize)]
struct WorkerType {
    workers: u32,
}

impl Page {
    /// The page; empty if it reports no workers.
    fn read(status: StatusCode, page: &[u8]) -> Self {
        // A frontend that is not ready reports its namespaces, too.
        let has_page = status.is_success() || status == StatusCode::SERVICE_UNAVAILABLE;
        match has_page {
            true => serde_json::from_slice(page).unwrap_or_default(),
            false => Self::default(),
        }
    }

    /// The workers, summed over all Dynamo namespaces.
    fn registered(&self) -> Registered {
        let types = self.namespaces.values();
        let types = types.flat_map(|namespace| &namespace.worker_types);
        let mut found = Registered::default();
        for (name, WorkerType { workers }) in types {
            let count = match name.as_str() {
                "prefill" => &mut found.prefill,
                _ => &mut found.others,
            };
            *count = Some(count.unwrap_or(0).saturating_add(*workers));
        }
        found
    }

    /// The Dynamo namespaces that have workers.
    fn with_workers(self) -> impl Iterator<Item = String> {
        let namespaces = self.namespaces.into_iter();
        namespaces.filter_map(|(name, namespace)| {
            let mut types = namespace.worker_types.values();
            let has_workers = types.any(|of_type| of_type.workers > 0);
            (has_workers && name.len() <= MAX_ID).then_some(name)
        })
    }
}

/// The workers of all models. A worker that serves several models is counted once for each, so the sum is never too low.
/// Unknown if the page of any model does not report workers.
fn in_all(pages: &[Registered]) -> Registered {
    let has_page = |page: &Registered| page.prefill.is_some() || page.others.is_some();
    if !pages.iter().all(has_page) {
        return Registered::default();
    }
    let sum = |of: fn(&Registered) -> Option<u32>| {
        let counts = pages.iter().filter_map(of);
        counts.reduce(u32::saturating_add)
    };
    Registered {
        prefill: sum(|page| page.prefill),
        others: sum(|page| page.others),
    }
}

/// The model names of a list, sorted. Leaves out names that are too long.
fn ids(list: &[u8]) -> Vec<String> {
    #[derive(Default, Deserialize)]
    struct List {
        data: Vec<Model>,
    }
    #[derive(Deserialize)]
    struct Model {
        id: Option<String>,
    }
    let list: List = serde_json::from_slice(list).unwrap_or_default();
    let ids = list.data.into_iter().filter_map(|model| model.id);
    let mut ids: Vec<String> = ids.filter(|id| id.len() <= MAX_ID).collect();
    ids.sort_unstable();
    ids.dedup();
    ids
}

/// A model name as part of a path. Keeps slashes (`org/model`) and escapes all other special characters.
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

    /// What is reported after each poll: a model, `-` for no model, `!` for trouble, `.` if nothing is reported.
    fn results(answers: &[Result<&str, ()>]) -> Vec<String> {
        let mut reading = Reading::default();
        let take = |answer: &Result<&str, ()>| {
            let served = answer.map(|models| Served {
                models: models.split_whitespace().map(str::to_owned).collect(),
                ..Served::default()
            });
            let results = reading.take(served.map_err(|()| Missing {
                why: "late".to_owned(),
                how: Lack::Silent,
            }));
            results.map_or_else(
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
            results(&[Err(()), Ok("a"), Err(()), Ok("a")]),
            [".", "a", ".", "a"]
        );
        assert_eq!(results(&[Err(()), Err(()), Err(())]), [".", "!", "!"]);
        assert_eq!(
            results(&[Ok("a"), Err(()), Err(()), Ok("a")]),
            ["a", ".", "!", "a"]
        );
        // A frontend that has just started serves no model for a moment; one that stops serving a model is believed at once.
        assert_eq!(
            results(&[Ok(""), Ok("a"), Ok(""), Ok("a")]),
            [".", "a", "-", "a"]
        );
        assert_eq!(results(&[Ok(""), Ok("")]), [".", "-"]);
    }

    #[test]
    fn who_could_not_be_asked_serves_what_was_known_before() {
        let mut reading = Reading::default();
        let missing = || {
            Err(Missing {
                why: "Too many open files".to_owned(),
                how: Lack::Unasked,
            })
        };
        let serves = Served {
            models: ["a".to_owned()].into(),
            ..Served::default()
        };
        reading.take(Ok(serves.clone()));
        assert_eq!(reading.take(missing()), None);
        let (results, is_changed) = reading.take(missing()).unwrap();
        assert!(
            is_changed
                && results
                    .trouble
                    .is_some_and(|missing| missing.how == Lack::Unasked)
        );
        assert_eq!(results.models, serves.models);
        assert!(!reading.take(missing()).unwrap().1);
        // The frontend responds again.
        assert_eq!(reading.take(Ok(serves.clone())), Some((serves, true)));
    }

    #[test]
    fn workers_are_counted_by_the_pages_of_all_models_and_only_if_all_of_them_say() {
        let page = |types: serde_json::Value| {
            let page =
                json!({"model": "m", "ready": true, "namespaces": {"a": {"worker_types": types}}});
            Page::read(StatusCode::OK, page.to_string().as_bytes()).registered()
        };
        let of = |prefill, others| Registered { prefill, others };
        let whole = page(json!({"aggregated": {"workers": 2, "needs": []}}));
        assert_eq!(whole, of(None, Some(2)));
        let halves = page(json!({"prefill": {"workers": 3}, "decode": {"workers": 1}}));
        assert_eq!(halves, of(Some(3), Some(1)));
        let none = page(json!({}));
        for silent in [&b"{}"[..], b"", b"[", br#"{"namespaces": 7}"#] {
            assert_eq!(Page::read(StatusCode::OK, silent).registered(), none);
        }
        assert_eq!(Page::read(StatusCode::NOT_FOUND, b"{}").registered(), none);
        assert_eq!(in_all(&[whole, halves]), of(Some(3), Some(3)));
        assert_eq!(in_all(&[whole, none]), none);
        assert_eq!(in_all(&[]), none);
    }

    #[test]
    fn a_namespace_without_workers_is_not_used() {
        let types = |workers: u32| json!({"worker_types": {"aggregated": {"workers": workers}}});
        let page = json!({"namespaces": {"a": types(1), "b": types(0), "c": {}, "d": types(2)}});
        let page = Page::read(StatusCode::OK, page.to_string().as_bytes());
        assert_eq!(page.with_workers().collect::<Vec<_>>(), ["a", "d"]);
    }

    #[test]
    fn a_list_is_read_in_order_without_what_no_model_is_called() {
        let long = "x".repeat(MAX_ID + 1);
        let list =
            json!({"data": [{"id": "b"}, {"id": "a", "more": [1]}, {"id": "b"}, {}, {"id": long}]});
        assert_eq!(ids(list.to_string().as_bytes()), ["a", "b"]);
        assert_eq!(ids(b"["), [""; 0]);
    }
}
