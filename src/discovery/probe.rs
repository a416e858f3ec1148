//! Active probes: asks each endpoint by itself whether it can serve. A frontend's `/health` says nothing about that.

use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, HeaderValue, Method, Uri, header::HOST};
use http_body_util::{BodyExt, Limited};

use crate::request_body::RequestBody;
use crate::resource::{Probe, Question};
use crate::snapshot::World;
use crate::upstream::{Endpoint, Head, Outgoing, Pool};

/// Largest list of models that is read, in bytes.
const MAX_LIST: usize = 4 * 1024 * 1024;
/// Limit for an answer where the plan sets none.
const PATIENCE: Duration = Duration::from_secs(2);

/// Probes all endpoints of the plan in force for the life of the process; `default` is the interval where the plan has
/// none.
pub async fn probe(world: Arc<World>, default: Option<Duration>) {
    loop {
        let snapshot = world.load();
        let own = default.map(|interval| Probe {
            question: Question::AnyModel,
            interval,
            timeout: PATIENCE,
        });
        let Some(probe) = snapshot.plan.probe.clone().or(own) else {
            // A plan that wants probes may come.
            tokio::time::sleep(Duration::from_secs(1)).await;
            continue;
        };
        let mut asked = tokio::task::JoinSet::new();
        for pool in [&snapshot.old, &snapshot.new].into_iter().flatten() {
            for endpoint in pool.endpoints() {
                asked.spawn(ask(Arc::clone(pool), Arc::clone(endpoint), probe.clone()));
            }
        }
        drop(snapshot);
        asked.join_all().await;
        tokio::time::sleep(probe.interval).await;
    }
}

/// Asks all endpoints of `pool` at once: can any of them serve, by the question of `probe`? Changes nothing.
pub async fn any_serves(pool: &Arc<Pool>, probe: &Option<Probe>) -> bool {
    let question = probe
        .as_ref()
        .map_or(Question::AnyModel, |probe| probe.question.clone());
    let mut asked = tokio::task::JoinSet::new();
    for endpoint in pool.endpoints() {
        let (pool, endpoint, question) = (Arc::clone(pool), Arc::clone(endpoint), question.clone());
        asked.spawn(async move { can_serve(&pool, &endpoint, &question).await });
    }
    while let Some(answer) = asked.join_next().await {
        if answer.unwrap_or(false) {
            return true;
        }
    }
    false
}

async fn ask(pool: Arc<Pool>, endpoint: Arc<Endpoint>, probe: Probe) {
    let answered =
        tokio::time::timeout(probe.timeout, can_serve(&pool, &endpoint, &probe.question)).await;
    let was = endpoint.is_healthy(std::time::Instant::now());
    let is = answered.unwrap_or(false);
    endpoint.probed(is);
    if was != is {
        tracing::info!(endpoint = %endpoint.address, healthy = is, "probe");
    }
}

async fn can_serve(pool: &Pool, endpoint: &Arc<Endpoint>, question: &Question) -> bool {
    let path = match question {
        Question::AnyModel => "/v1/models".to_owned(),
        Question::Model(model) => format!("/v1/models/{model}/ready"),
        Question::Path(path) => path.to_string(),
    };
    let Ok(uri) = path.parse::<Uri>() else {
        return false;
    };
    let mut headers = HeaderMap::new();
    if let Ok(host) = HeaderValue::try_from(endpoint.address.to_string()) {
        headers.insert(HOST, host);
    }
    let head = Head {
        method: Method::GET,
        uri,
        headers,
        expects_continue: false,
    };
    let outgoing = Outgoing {
        head: &head,
        extra: None,
    };
    let Ok(response) = pool.send_to(endpoint, outgoing, RequestBody::empty()).await else {
        return false;
    };
    let is_ok = response.status() == http::StatusCode::OK;
    let Ok(body) = Limited::new(response.into_body(), MAX_LIST).collect().await else {
        return false;
    };
    is_ok && (!matches!(question, Question::AnyModel) || lists_a_model(&body.to_bytes()))
}

fn lists_a_model(body: &[u8]) -> bool {
    let list: Option<serde_json::Value> = serde_json::from_slice(body).ok();
    list.as_ref()
        .and_then(|list| list.get("data")?.as_array())
        .is_some_and(|models| !models.is_empty())
}
