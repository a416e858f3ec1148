//! Sends requests to a target: the old backend, or a pool of the plan in force.

use std::sync::Arc;

use http::Response;

use super::context::ProxyContext;
use crate::failover::Target;
use crate::request_body::RequestBody;
use crate::snapshot::Snapshot;
use crate::upstream::{Error, Outgoing, SendOptions, UpstreamBody};

/// How to reach the old generation.
pub trait OldBackend: Clone + Send + Sync + 'static {
    /// Sends one request to the old generation.
    fn send(
        &self,
        snapshot: &Snapshot,
        outgoing: Outgoing<'_>,
        body: RequestBody,
        options: SendOptions,
    ) -> impl Future<Output = Result<Response<UpstreamBody>, Error>> + Send;
}

/// The old generation behind an HTTP pool, as in a sidecar.
#[derive(Clone, Copy, Debug, Default)]
pub struct OldPool;

impl OldBackend for OldPool {
    async fn send(
        &self,
        snapshot: &Snapshot,
        outgoing: Outgoing<'_>,
        body: RequestBody,
        options: SendOptions,
    ) -> Result<Response<UpstreamBody>, Error> {
        match &snapshot.old {
            Some(pool) => pool.send(outgoing, body, options).await,
            None => Err(Error::NoEndpoint),
        }
    }
}

/// Splits requests between an old backend and the pools of the plan in force.
#[derive(Clone)]
pub struct Proxy<O> {
    pub(super) context: Arc<ProxyContext>,
    old: O,
}

impl<O: OldBackend> Proxy<O> {
    #[must_use]
    pub fn new(context: Arc<ProxyContext>, old: O) -> Self {
        Self { context, old }
    }

    /// The state that all requests share.
    #[must_use]
    pub fn context(&self) -> &Arc<ProxyContext> {
        &self.context
    }

    /// Sends one request to `target`.
    ///
    /// # Errors
    /// Why there is no response head.
    pub(super) async fn send_to(
        &self,
        target: Target,
        snapshot: &Snapshot,
        outgoing: Outgoing<'_>,
        body: RequestBody,
        options: SendOptions,
    ) -> Result<Response<UpstreamBody>, Error> {
        if target == Target::Old {
            return self.old.send(snapshot, outgoing, body, options).await;
        }
        match snapshot.pool(target) {
            Some(pool) => pool.send(outgoing, body, options).await,
            None => Err(Error::NoEndpoint),
        }
    }
}
