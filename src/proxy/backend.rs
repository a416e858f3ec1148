//! Where a request can be sent: to the old side, whatever it is, or to a pool of the plan in force.

use std::sync::Arc;

use http::Response;

use super::context::Shared;
use crate::request_body::RequestBody;
use crate::rescue::Place;
use crate::snapshot::Snapshot;
use crate::upstream::{Error, Outgoing, Terms, UpstreamBody};

/// How the old generation is reached.
pub trait OldSide: Clone + Send + Sync + 'static {
    /// Sends one request to it.
    fn send(
        &self,
        world: &Snapshot,
        outgoing: Outgoing<'_>,
        body: RequestBody,
        terms: Terms,
    ) -> impl Future<Output = Result<Response<UpstreamBody>, Error>> + Send;
}

/// The old generation behind an HTTP pool: the sidecar.
#[derive(Clone, Copy, Debug, Default)]
pub struct OldPool;

impl OldSide for OldPool {
    async fn send(
        &self,
        world: &Snapshot,
        outgoing: Outgoing<'_>,
        body: RequestBody,
        terms: Terms,
    ) -> Result<Response<UpstreamBody>, Error> {
        match &world.old {
            Some(pool) => pool.send(outgoing, body, terms).await,
            None => Err(Error::NoEndpoint),
        }
    }
}

/// Splits requests between an old side and the pools of the plan in force.
#[derive(Clone)]
pub struct Proxy<O> {
    pub(super) shared: Arc<Shared>,
    old: O,
}

impl<O: OldSide> Proxy<O> {
    #[must_use]
    pub fn new(shared: Arc<Shared>, old: O) -> Self {
        Self { shared, old }
    }

    /// What all requests share.
    #[must_use]
    pub fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Sends one request to `place`.
    ///
    /// # Errors
    /// Why there is no response head.
    pub(super) async fn send_to(
        &self,
        place: Place,
        world: &Snapshot,
        outgoing: Outgoing<'_>,
        body: RequestBody,
        terms: Terms,
    ) -> Result<Response<UpstreamBody>, Error> {
        if place == Place::Old {
            return self.old.send(world, outgoing, body, terms).await;
        }
        match world.pool(place) {
            Some(pool) => pool.send(outgoing, body, terms).await,
            None => Err(Error::NoEndpoint),
        }
    }
}
