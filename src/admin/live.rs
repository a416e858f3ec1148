//! The stream of a proxy's live page: its state, repeatedly, each time with the samples since the last one. The first message
//! contains all samples that are kept.

use std::sync::Arc;
use std::time::SystemTime;

use futures_util::{Stream, stream};
use http::{Extensions, HeaderMap};
use serde_json::{Value, json};

use super::Admin;
use super::state_watch::StateWatch;
use crate::pages::{History, LivePage, PageResponse, Sample};

/// The live page of this process. Clones share the history.
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

    /// Adds a sample to the history. Call it once per second.
    pub(super) fn sample(&self) {
        let state = self.admin.figures(true);
        self.history.push(Sample::of(&state, SystemTime::now()));
    }

    /// The page, if a browser asks for it.
    pub(super) fn document_for(&self, headers: &HeaderMap) -> Option<PageResponse> {
        self.page.document_for(headers)
    }

    /// The response to a request with these extensions for the page's stream.
    pub(super) fn stream(&self, extensions: &Extensions) -> PageResponse {
        self.page.stream(extensions, self.states())
    }

    fn states(&self) -> impl Stream<Item = Value> + Send + use<> {
        let watching = StateWatch::new(self.admin.clone(), LivePage::INTERVAL);
        let history = Arc::clone(&self.history);
        stream::unfold((watching, 0), move |(mut watching, seen)| {
            let history = Arc::clone(&history);
            async move {
                let state = watching.next().await?;
                let (samples, next) = history.since(seen);
                let event = json!({"state": state.to_json(), "samples": samples});
                Some((event, (watching, next)))
            }
        })
    }
}
