//! Writes to the API server while this replica leads.

use std::sync::Arc;
use std::time::{Duration, Instant};

use kube::api::{Api, ApiResource, DynamicObject};
use kube::{Client, Error as ClientError};

use super::Metrics;
use crate::k8s::workloads::ScalingError;
use crate::k8s::{Connection, Leading};

/// Why a write did not happen.
#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    /// The object has changed since it was observed: reconcile again.
    #[error("the object has changed in the meantime")]
    Changed,
    #[error("this replica may no longer be the leader")]
    NotLeading,
    #[error(transparent)]
    Unscalable(#[from] ScalingError),
    #[error("the API server does not respond")]
    Late,
    #[error("the API server rejected it")]
    Refused(#[source] Box<ClientError>),
}

impl Error {
    /// Whether the write may still take effect.
    pub fn is_uncertain(&self) -> bool {
        match self {
            Self::Late => true,
            // Anything except a response of the API server, such as a broken connection.
            Self::Refused(error) => status_code(error).is_none_or(|code| code >= 500),
            Self::Changed | Self::NotLeading | Self::Unscalable(_) => false,
        }
    }

    /// The API server's message if it rejected the write permanently, as text for users: because of a missing permission, a
    /// policy, or a quota.
    pub fn refusal(&self) -> Option<&str> {
        let Self::Refused(error) = self else {
            return None;
        };
        match &**error {
            ClientError::Api(status) => {
                let is_lasting = matches!(status.code, 400..=403 | 405 | 413 | 422);
                Some(&*status.message).filter(|_| is_lasting)
            }
            _ => None,
        }
    }
}

/// The status code with which the API server rejected a request.
pub(super) fn status_code(error: &ClientError) -> Option<u16> {
    match error {
        ClientError::Api(status) => Some(status.code),
        _ => None,
    }
}

/// A client whose writes fail once another replica may lead.
#[derive(Clone)]
pub(super) struct LeaderClient {
    client: Client,
    leading: Leading,
    /// Timeout of a write. For a write that starts while the lease is certainly held, the
    /// waiting ends before another replica can hold the lease. The write itself may still arrive later.
    patience: Duration,
    metrics: Arc<Metrics>,
}

impl LeaderClient {
    pub fn new(
        connection: &Connection,
        leading: Leading,
        lease: Duration,
        metrics: Arc<Metrics>,
    ) -> Self {
        Self {
            client: connection.client(),
            leading,
            patience: lease / 3,
            metrics,
        }
    }

    /// Since when this replica has led, if it leads.
    pub fn leads_since(&self) -> Option<Instant> {
        self.leading.since()
    }

    /// The objects of a kind in a namespace, to write one of them now.
    ///
    /// # Errors
    /// If this replica may no longer be the leader.
    pub fn api(&self, namespace: &str, kind: &ApiResource) -> Result<Api<DynamicObject>, Error> {
        if self.leading.remaining().is_none() {
            return Err(Error::NotLeading);
        }
        Ok(Api::namespaced_with(self.client.clone(), namespace, kind))
    }

    /// Waits for a write.
    ///
    /// # Errors
    /// Why the write did not happen, or is not known to have happened.
    pub async fn write<T>(
        &self,
        writing: impl Future<Output = Result<T, ClientError>>,
    ) -> Result<T, Error> {
        self.metrics.writes.inc();
        match tokio::time::timeout(self.patience, writing).await {
            Ok(Ok(written)) => Ok(written),
            Ok(Err(error)) if status_code(&error) == Some(409) => Err(Error::Changed),
            Ok(Err(error)) => Err(Error::Refused(error.into())),
            Err(_) => Err(Error::Late),
        }
    }
}
