//! Checks what the API server allows this process to read.

use std::time::Duration;

use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec,
};
use kube::api::{Api, PostParams};

use super::Connection;

/// How long the API server may take to answer.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Whether this process may list and watch everything in all namespaces. False if the API server does not answer.
pub async fn may_read_all_namespaces(connection: &Connection) -> bool {
    let allowed = async { may(connection, "list").await && may(connection, "watch").await };
    tokio::time::timeout(TIMEOUT, allowed)
        .await
        .unwrap_or(false)
}

async fn may(connection: &Connection, verb: &str) -> bool {
    let anything = || Some("*".to_owned());
    let review = SelfSubjectAccessReview {
        spec: SelfSubjectAccessReviewSpec {
            resource_attributes: Some(ResourceAttributes {
                verb: Some(verb.to_owned()),
                group: anything(),
                version: anything(),
                resource: anything(),
                ..Default::default()
            }),
            ..Default::default()
        },
        ..Default::default()
    };
    let api: Api<SelfSubjectAccessReview> = Api::all(connection.client.clone());
    let answer = api.create(&PostParams::default(), &review).await;
    answer
        .ok()
        .and_then(|review| review.status)
        .is_some_and(|status| status.allowed)
}
