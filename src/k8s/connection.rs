//! The way to the API server: by the pod's service account or a kubeconfig.
//!
//! Must not know what is asked over it.

use std::time::Duration;

use http::Response;
use http_body_util::BodyExt;
use kube::Client;
use kube::client::{ClientBuilder, DynBody};
use kube::config::InferConfigError;
use tokio::sync::watch;
use tokio::time::Instant;
use tower::util::MapResponseLayer;

/// How long a connection may take.
const CONNECT: Duration = Duration::from_secs(3);
/// How long the API server may be silent.
const SILENCE: Duration = Duration::from_secs(40);
/// The same of a watch: longer than the longest of them. The API server promises no bookmarks, so one where nothing changes
/// may be silent to its end.
const SILENCE_OF_WATCH: Duration = Duration::from_secs(130);

/// Why there is no way to the API server at all.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Neither a service account nor a kubeconfig.
    #[error("no way to an API server is known")]
    Unknown(#[source] Box<InferConfigError>),
    /// The certificates or credentials cannot be used.
    #[error("the way to the API server cannot be used")]
    Unusable(#[source] Box<kube::Error>),
}

/// The way to the API server. Nothing is sent before something is asked.
#[derive(Clone)]
pub struct Connection {
    pub(super) client: Client,
    /// For the watch on updates: whatever comes of its answers is noted in `contact`.
    pub(super) watching: Client,
    /// For other watches.
    pub(super) watching_unnoted: Client,
    pub(super) contact: watch::Receiver<Instant>,
    namespace: String,
}

impl Connection {
    /// Reads how to reach the API server. `namespace` is the one to look at; by default that of the pod or of the
    /// kubeconfig.
    ///
    /// # Errors
    /// When nothing says how, or what does cannot be used.
    pub async fn open(namespace: Option<&str>) -> Result<Self, Error> {
        // An error means that the process has chosen before.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let mut config = kube::Config::infer()
            .await
            .map_err(|error| Error::Unknown(Box::new(error)))?;
        config.connect_timeout = Some(CONNECT);
        config.read_timeout = Some(SILENCE);
        // It would hide that the API server is out of order, in the end for a quarter of an hour; who asks here asks again.
        config.default_retry = false;
        let namespace = namespace.map_or_else(|| config.default_namespace.clone(), str::to_owned);
        let unusable = |error| Error::Unusable(Box::new(error));
        let client = Client::try_from(config.clone()).map_err(unusable)?;
        config.read_timeout = Some(SILENCE_OF_WATCH);
        let watching_unnoted = Client::try_from(config.clone()).map_err(unusable)?;
        let (told, contact) = watch::channel(Instant::now());
        let note = MapResponseLayer::new(move |response: Response<Box<DynBody>>| {
            if !response.status().is_success() {
                return response;
            }
            told.send_replace(Instant::now());
            // Bookmarks as well: where nothing changes they are all that may come.
            let told = told.clone();
            response.map(|body| -> Box<DynBody> {
                Box::new(body.map_frame(move |frame| {
                    told.send_replace(Instant::now());
                    frame
                }))
            })
        });
        let watching = ClientBuilder::try_from(config)
            .map_err(unusable)?
            .with_layer(&note)
            .build();
        Ok(Self {
            client,
            watching,
            watching_unnoted,
            contact,
            namespace,
        })
    }

    /// What asks the API server.
    #[must_use]
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// The namespace that is looked at.
    #[must_use]
    pub fn namespace(&self) -> &str {
        &self.namespace
    }
}
