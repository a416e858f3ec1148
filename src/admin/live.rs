//! What the live page of a proxy is told: its state again and again, each with the samples since the one before; the first
//! has all that are kept.
//!
//! Must not know how it is drawn.

use std::sync::Arc;
use std::time::SystemTime;

use futures_util::{Stream, stream};
use http::Request;
use serde_json::{Value, json};

use super::Admin;
use super::watching::Watching;
use crate::pages::{Answer, History, LivePage, Sample};

/// The page of this process. The clones share the history.
#[derive(Clone)]
pub(super) struct Live {
    admin: Admin,
    page: LivePage,
    history: Arc<History>,
}

impl Live {
    pub(super) fn new(admin: &Admin) -> Self {
        Self {
            admin: admin.clone(),
            page: LivePage::default(),
            history: Arc::default(),
        }
    }

    /// Takes a sample for the history: call it once a second.
    pub(super) fn sample(&self) {
        let state = self.admin.figures(true);
        self.history.push(Sample::of(&state, SystemTime::now()));
    }

    /// The answer to what asks for the page or its stream; `None` to everything else.
    pub(super) fn answer<B>(&self, request: &Request<B>) -> Option<Answer> {
        self.page.answer(request, |_| Ok(self.tellings()))
    }

    fn tellings(&self) -> impl Stream<Item = Value> + Send + use<> {
        let watching = Watching::new(self.admin.clone(), LivePage::INTERVAL);
        let history = Arc::clone(&self.history);
        stream::unfold((watching, 0), move |(mut watching, seen)| {
            let history = Arc::clone(&history);
            async move {
                let state = watching.next().await?;
                let (samples, next) = history.since(seen);
                let telling = json!({"state": state.to_json(), "samples": samples});
                Some((telling, (watching, next)))
            }
        })
    }
}
