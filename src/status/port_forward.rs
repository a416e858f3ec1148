//! Asks the proxies of a namespace for their state, through ports forwarded by the API server.

use futures_util::future::join_all;
use k8s_openapi::api::core::v1::Pod;
use kube::Client;
use kube::api::{Api, ListParams};
use kube::core::ObjectMeta;

use super::proxies::{TIMEOUT, counted};
use super::{ComparisonAnswer, Error, Other, ProxyAnswer, api};
use crate::error_chain::error_chain;
use crate::resource::Identity;
use crate::state_api::{self, v1};

/// The name of the admin port of a proxy's container.
const PORT: &str = "crossfade";

/// The responses of a namespace's proxies.
pub(super) struct Answers {
    /// The responses that concern the update, and the proxies that did not respond.
    pub proxies: Vec<ProxyAnswer>,
    pub others: Vec<Other>,
    /// Whether one could not be queried because a permission is missing.
    forbidden: bool,
}

impl Answers {
    /// The source of the figures of a report, for display.
    pub fn origin(&self) -> String {
        let all = self.proxies.len();
        let answered = self.proxies.iter().filter(|proxy| proxy.state.is_ok());
        let why = match answered.count() {
            0 if all == 0 && self.others.is_empty() => {
                format!("no pod of the namespace has a container port named {PORT}")
            }
            0 if all == 0 => format!(
                "none of the namespace's proxies follows it: {}",
                counted(self.others.len(), self.others.len())
            ),
            0 if self.forbidden => {
                "no proxy could be queried: this needs permission to get pods/portforward, and with Kubernetes 1.35 or \
                 later also to create it"
                    .to_owned()
            }
            0 => "no proxy could be queried".to_owned(),
            some => return format!("{}, queried through the API server", counted(some, all)),
        };
        alone(&why)
    }
}

/// The origin of a report that has only the resource.
pub(super) fn alone(why: &str) -> String {
    format!("the status of the resource only: {why}")
}

/// Asks all proxies of the namespace, and separates those of this update from the others.
///
/// # Errors
/// When the pods cannot be listed.
pub(super) async fn query_all(
    client: Client,
    namespace: &str,
    update: &ObjectMeta,
) -> Result<Answers, Error> {
    let pods: Api<Pod> = Api::namespaced(client, namespace);
    let list = pods
        .list(&ListParams::default())
        .await
        .map_err(api("list the pods"))?;
    let ports = list.items.iter().filter_map(admin_port);
    let queries = ports.map(async |(name, port)| {
        let answer = query(&pods, &name, port, async |client| client.get().await).await;
        (name, answer)
    });
    let mut answers = Answers {
        proxies: Vec::new(),
        others: Vec::new(),
        forbidden: false,
    };
    for (name, answer) in join_all(queries).await {
        match answer {
            Ok(state) if !is_about(&state, update) => {
                let follows = state.resource().and_then(|resource| resource.name.clone());
                answers.others.push(Other { name, follows });
            }
            answer => {
                answers.forbidden |=
                    matches!(answer, Err(PortForwardError::Api(Error::Forbidden { .. })));
                let state = answer.map_err(|error| error_chain(&error));
                answers.proxies.push(ProxyAnswer { name, state });
            }
        }
    }
    Ok(answers)
}

/// Asks the proxies of an update for the counts of both generations.
///
/// # Errors
/// When the pods cannot be listed.
pub(super) async fn compare_all(
    client: Client,
    namespace: &str,
    update: &ObjectMeta,
    with_past: bool,
) -> Result<Vec<ComparisonAnswer>, Error> {
    let pods: Api<Pod> = Api::namespaced(client, namespace);
    let list = pods
        .list(&ListParams::default())
        .await
        .map_err(api("list the pods"))?;
    let ports = list.items.iter().filter_map(admin_port);
    let queries = ports.map(async |(name, port)| {
        let answer = query(&pods, &name, port, async |client| {
            Ok((client.get().await?, client.compare(with_past).await?))
        })
        .await;
        (name, answer)
    });
    let answers = join_all(queries).await.into_iter();
    let answers = answers.filter_map(|(name, answer)| {
        let answer = match answer {
            Ok((state, _)) if !is_about(&state, update) => return None,
            Ok((_, comparison)) => Ok(comparison),
            Err(error) => Err(error_chain(&error)),
        };
        // The plans of these proxies have the update as their common source, and follow it at slightly different times.
        let plan = None;
        Some(ComparisonAnswer { name, answer, plan })
    });
    Ok(answers.collect())
}

/// Whether a proxy follows the update, or has rejected an edit of it.
fn is_about(state: &v1::State, update: &ObjectMeta) -> bool {
    let resource = state.resource();
    let follows = resource.is_some_and(|resource| resource.name == update.name);
    let identity = Identity {
        namespace: update.namespace.clone(),
        name: update.name.clone(),
        ..Identity::default()
    };
    let refusal = state.plan.as_ref().and_then(|plan| plan.refusal.as_ref());
    follows || refusal.is_some_and(|refusal| refusal.source == identity.source())
}

/// The name of the pod and the admin port of its proxy, if it runs one.
fn admin_port(pod: &Pod) -> Option<(String, u16)> {
    let spec = pod.spec.as_ref()?;
    let runs = pod.status.as_ref()?.phase.as_deref() == Some("Running");
    let sidecars = spec.init_containers.iter().flatten();
    let mut ports = spec
        .containers
        .iter()
        .chain(sidecars)
        .flat_map(|container| container.ports.iter().flatten());
    let port = ports.find(|port| port.name.as_deref() == Some(PORT))?;
    let port = u16::try_from(port.container_port).ok()?;
    Some((pod.metadata.name.clone()?, port)).filter(|_| runs)
}

/// Why a proxy did not answer.
#[derive(Debug, thiserror::Error)]
enum PortForwardError {
    #[error(transparent)]
    Api(#[from] Error),
    #[error("the port was not forwarded")]
    NoStream,
    #[error(transparent)]
    Proxy(#[from] state_api::Error),
    #[error("no response in time")]
    Timeout,
}

async fn query<T>(
    pods: &Api<Pod>,
    name: &str,
    port: u16,
    question: impl AsyncFnOnce(&state_api::Client) -> Result<T, state_api::Error>,
) -> Result<T, PortForwardError> {
    let answer = tokio::time::timeout(2 * TIMEOUT, through(pods, name, port, question)).await;
    answer.unwrap_or(Err(PortForwardError::Timeout))
}

async fn through<T>(
    pods: &Api<Pod>,
    name: &str,
    port: u16,
    question: impl AsyncFnOnce(&state_api::Client) -> Result<T, state_api::Error>,
) -> Result<T, PortForwardError> {
    let forwarder = pods.portforward(name, &[port]).await;
    let mut forwarder = forwarder.map_err(api("forward its port"))?;
    let stream = forwarder
        .take_stream(port)
        .ok_or(PortForwardError::NoStream)?;
    let answer = async {
        let client = state_api::Client::over(stream, TIMEOUT).await?;
        question(&client).await
    };
    let answer = answer.await;
    forwarder.abort();
    Ok(answer?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn update() -> ObjectMeta {
        ObjectMeta {
            name: Some("mine".into()),
            namespace: Some("ns".into()),
            ..Default::default()
        }
    }

    fn state(follows: Option<&str>, refused: Option<&str>) -> v1::State {
        let resource = follows.map(|name| v1::Resource {
            name: Some(name.into()),
            ..Default::default()
        });
        let refusal = refused.map(|source| v1::Refusal {
            source: source.into(),
            ..Default::default()
        });
        v1::State {
            plan: Some(v1::Plan {
                resource,
                refusal,
                ..Default::default()
            }),
            ..Default::default()
        }
    }

    #[test]
    fn a_proxy_that_refused_the_first_edit_concerns_the_update() {
        assert!(is_about(&state(Some("mine"), None), &update()));
        assert!(is_about(&state(None, Some("cluster: ns/mine")), &update()));
        assert!(is_about(
            &state(Some("other"), Some("cluster: ns/mine")),
            &update()
        ));
        assert!(!is_about(&state(Some("other"), None), &update()));
        assert!(!is_about(
            &state(None, Some("cluster: ns/mine-too")),
            &update()
        ));
        assert!(!is_about(&v1::State::default(), &update()));
    }

    #[test]
    fn the_origin_says_why_only_the_status_is_known() {
        let silent = |name: &str| ProxyAnswer {
            name: name.into(),
            state: Err("no response in time".into()),
        };
        let answers = |name: &str| ProxyAnswer {
            name: name.into(),
            state: Ok(v1::State::default()),
        };
        let origin = |proxies, others: usize, forbidden| {
            let other = Other {
                name: "x".into(),
                follows: None,
            };
            let others = vec![other; others];
            let answers = Answers {
                proxies,
                others,
                forbidden,
            };
            answers.origin()
        };
        assert!(origin(vec![], 0, false).ends_with("has a container port named crossfade"));
        assert!(origin(vec![], 2, false).ends_with("follows it: 2 proxies"));
        assert!(origin(vec![silent("a")], 2, false).ends_with("no proxy could be queried"));
        assert!(origin(vec![silent("a")], 0, true).contains("get pods/portforward"));
        let some = origin(vec![silent("a"), answers("b"), answers("c")], 1, true);
        assert_eq!(some, "2 of 3 proxies, queried through the API server");
        let all = origin(vec![answers("b")], 0, false);
        assert_eq!(all, "1 proxy, queried through the API server");
    }
}
