//! Runs the program with a real API server, but without a cluster: the tests create pods and other objects themselves.
//!
//! Needs etcd, kube-apiserver and kubectl. The charts also need helm, the controller's page Chromium, and monitoring Prometheus.

#![allow(
    clippy::unwrap_used,
    clippy::undocumented_unsafe_blocks,
    reason = "a test may panic"
)]

#[path = "../support/browser.rs"]
mod browser;
#[path = "../support/cluster.rs"]
mod cluster;
#[path = "../support/gateway.rs"]
mod gateway;
#[path = "../support/helm.rs"]
mod helm;
#[path = "../support/manifests.rs"]
mod manifests;
#[path = "../support/page.rs"]
mod page;
#[path = "../support/rig.rs"]
mod rig;
#[path = "../support/terminal.rs"]
mod terminal;

mod charts;
mod controller;
mod deploy;
mod inject;
mod monitoring;
mod network_policy;
mod plan;
mod resource;
mod status;
