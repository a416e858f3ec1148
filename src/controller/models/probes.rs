//! Probes models with short requests, for frontends that do not report which models are ready.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::json;
use tokio::task::JoinSet;

use super::super::http::{FrontendAddress, FrontendQuery};
use super::super::limits::TargetPermit;

/// Timeout of a probe.
const PROBE: Duration = Duration::from_secs(30);
/// How long a successful probe stays valid while the model is listed.
const PROVEN: Duration = Duration::from_secs(60);
/// Delay after a failed probe, which may fail immediately.
const PAUSE: Duration = Duration::from_secs(1);
/// Concurrent probes per frontend.
const PROBES: usize = 2;
/// How much of a response is read, in bytes.
const MAX_RESPONSE: usize = 64 * 1024;

/// Probes of models, run in the background because a response may take long.
#[derive(Default)]
pub(super) struct ModelProbes {
    /// Whether each model responded, and when.
    known: HashMap<String, (bool, Instant)>,
    running: JoinSet<(String, Option<bool>)>,
    tried: BTreeSet<String>,
}

impl ModelProbes {
    /// Starts probes of the `models` without a valid result, up to the limit: first those never probed, then the least
    /// recently probed.
    pub fn begin(
        &mut self,
        frontend: &FrontendAddress,
        share: &Arc<TargetPermit>,
        models: &[String],
    ) {
        let lasts = |(answers, since): &(bool, Instant)| *answers && since.elapsed() < PROVEN;
        let mut due: Vec<_> = models
            .iter()
            .filter(|model| !self.tried.contains(*model))
            .map(|model| (self.known.get(model), model))
            .filter(|(known, _)| !known.is_some_and(lasts))
            .collect();
        due.sort_by_key(|(known, _)| known.map(|(_, since)| *since));
        let free = PROBES.saturating_sub(self.tried.len());
        for (_, model) in due.into_iter().take(free) {
            self.tried.insert(model.clone());
            let (frontend, share, model) = (frontend.clone(), Arc::clone(share), model.clone());
            self.running.spawn(async move {
                let _turn = share.probe().await;
                let answers = answers(&frontend, &model).await;
                (model, answers)
            });
        }
    }

    /// Whether a model responds; `None` if that is not known yet.
    pub fn known(&self, model: &str) -> Option<bool> {
        self.known.get(model).map(|(answers, _)| *answers)
    }

    /// Waits for a probe to end, forever if none is running.
    pub async fn next(&mut self) {
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
    pub fn keep(&mut self, listed: &[String]) {
        let listed: BTreeSet<_> = listed.iter().collect();
        self.known.retain(|model, _| listed.contains(model));
    }
}

/// Whether the model responds to a request for one token; `None` if the frontend could not be reached.
async fn answers(frontend: &FrontendAddress, model: &str) -> Option<bool> {
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
            most: MAX_RESPONSE,
        };
        match frontend.send(&query, PROBE).await {
            Ok((status, _)) if status.is_success() => return Some(true),
            Err(error) if error.was_not_sent() => answers = None,
            Ok(_) | Err(_) => {}
        }
    }
    tokio::time::sleep(PAUSE).await;
    answers
}
