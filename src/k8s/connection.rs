//! Connects to the API server, with the pod's service account or a kubeconfig.

use std::time::Duration;

use http::Response;
use http_body_util::BodyExt;
use kube::Client;
use kube::client::{ClientBuilder, DynBody};
use tokio::sync::watch;
use tokio::time::Instant;
use tower::util::MapResponseLayer;

use super::kubeconfig::{ConfigError, load_config};

/// Connect timeout.
const CONNECT: Duration = Duration::from_secs(3);
/// Read timeout: how long the API server may be silent.
const READ_TIMEOUT: Duration = Duration::from_secs(40);
/// Read timeout of a watch, longer than the longest watch. The API server does not promise bookmarks, so a watch may be silent
/// to its end if nothing changes.
const WATCH_READ_TIMEOUT: Duration = Duration::from_secs(130);

/// Why the API server cannot be used at all.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is neither a service account nor a kubeconfig.
    #[error("there is neither a service account nor a usable kubeconfig")]
    Unknown(#[source] ConfigError),
    /// The certificates or credentials cannot be used.
    #[error("cannot use the configuration of the connection to the API server")]
    Unusable(#[source] Box<kube::Error>),
}

/// A connection to the API server. Nothing is sent until the first request.
#[derive(Clone)]
pub struct Connection {
    pub(super) client: Client,
    /// For the watch on updates: every response and body frame updates `contact`.
    pub(super) update_watch_client: Client,
    /// For the watches on EndpointSlices, with the same timeouts.
    pub(super) watch_client: Client,
    pub(super) contact: watch::Receiver<Instant>,
    namespace: String,
}

impl Connection {
    /// Reads how to reach the API server. `namespace` defaults to that of the pod or of the kubeconfig.
    ///
    /// # Errors
    /// If there is no configuration, or it cannot be used.
    pub async fn open(namespace: Option<&str>) -> Result<Self, Error> {
        // An error means that the process has already installed a provider.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let mut config = load_config(None, None).await.map_err(Error::Unknown)?.0;
        config.connect_timeout = Some(CONNECT);
        config.read_timeout = Some(READ_TIMEOUT);
        // The default retry would hide an unavailable API server, eventually for a quarter of an hour. Callers retry
        // themselves.
        config.default_retry = false;
        let namespace = namespace.map_or_else(|| config.default_namespace.clone(), str::to_owned);
        let unusable = |error| Error::Unusable(Box::new(error));
        let client = Client::try_from(config.clone()).map_err(unusable)?;
        config.read_timeout = Some(WATCH_READ_TIMEOUT);
        let watch_client = Client::try_from(config.clone()).map_err(unusable)?;
        let (contacts, contact) = watch::channel(Instant::now());
        let note = MapResponseLayer::new(move |response: Response<Box<DynBody>>| {
            if !response.status().is_success() {
                return response;
            }
            contacts.send_replace(Instant::now());
            // Bookmarks count too: while nothing changes they may be all that arrives.
            let contacts = contacts.clone();
            response.map(|body| -> Box<DynBody> {
                Box::new(body.map_frame(move |frame| {
                    contacts.send_replace(Instant::now());
                    frame
                }))
            })
        });
        let update_watch_client = ClientBuilder::try_from(config)
            .map_err(unusable)?
            .with_layer(&note)
            .build();
        Ok(Self {
            client,
            update_watch_client,
            watch_client,
            contact,
            namespace,
        })
    }

    /// A client for requests to the API server.
    #[must_use]
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// The namespace that is watched.
    #[must_use]
    pub fn namespace(&self) -> &str {
        &self.namespace
    }
}
