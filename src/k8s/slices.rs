//! Watches the EndpointSlices of a Service for its ready addresses.
//!
//! This watch loop is simpler than those of `watch` and `cache`: the last addresses always stay in use, so it reports neither
//! since when the API server has been unreachable nor whether the list is current. After errors, all three relist and back off in
//! the same way.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::time::Duration;

use futures_util::{Stream, StreamExt};
use k8s_openapi::api::discovery::v1::{EndpointPort, EndpointSlice};
use kube::Api;
use kube::runtime::watcher::{self, Event, watcher};
use tokio::time::Instant;

use super::Connection;
use super::throttle::throttled;
use super::watch::must_relist;
use crate::backoff::Backoff;
use crate::error_chain::error_chain;
use crate::printable::printable;

/// The label with the name of a slice's Service (discovery.k8s.io/v1).
pub const SERVICE_LABEL: &str = "kubernetes.io/service-name";
/// The name of the port to use if no port has the requested number.
const HTTP: &str = "http";
/// The delays after errors.
const BACKOFF: Backoff = Backoff {
    first: Duration::from_millis(200),
    longest: Duration::from_secs(5),
};

type Events = Pin<Box<dyn Stream<Item = watcher::Result<Event<EndpointSlice>>> + Send>>;

/// A watch on the addresses behind one port of a Service.
pub struct Slices {
    api: Api<EndpointSlice>,
    events: Events,
    known: BTreeMap<String, EndpointSlice>,
    listing: bool,
    service: String,
    port: u16,
    lost: bool,
    /// The last address that was reported because it is not an IP address.
    unreadable: Option<String>,
    failures: u32,
    resume: Instant,
}

impl Slices {
    /// Watches `service` in the namespace of `connection`. Sends no request before [`Slices::next`] is polled.
    #[must_use]
    pub fn new(connection: &Connection, service: &str, port: u16) -> Self {
        let client = throttled(connection.watch_client.clone());
        let api: Api<EndpointSlice> = Api::namespaced(client, connection.namespace());
        Self {
            events: events(&api, service),
            api,
            known: BTreeMap::new(),
            listing: false,
            service: service.to_owned(),
            port,
            lost: false,
            unreadable: None,
            failures: 0,
            resume: Instant::now(),
        }
    }

    /// Returns the ready addresses after each change. The last ones stay in use while the API server is unreachable.
    pub async fn next(&mut self) -> Vec<SocketAddr> {
        loop {
            tokio::time::sleep_until(self.resume).await;
            match self.events.next().await {
                Some(Ok(event)) => {
                    if !matches!(event, Event::Init) {
                        self.lost = false;
                        self.failures = 0;
                    }
                    self.take(event);
                    if !self.listing {
                        return self.addresses();
                    }
                }
                Some(Err(error)) => self.lose(&error),
                // The stream should never end; restart it if it does.
                None => self.events = events(&self.api, &self.service),
            }
        }
    }

    fn lose(&mut self, error: &watcher::Error) {
        if must_relist(error) {
            self.events = events(&self.api, &self.service);
        }
        self.resume = Instant::now() + BACKOFF.jittered(self.failures, fastrand::f64());
        self.failures = self.failures.saturating_add(1);
        match std::mem::replace(&mut self.lost, true) {
            true => tracing::debug!(error = error_chain(error), "EndpointSlices"),
            false => {
                let service = &self.service;
                tracing::warn!(%service, error = error_chain(error), "cannot watch EndpointSlices; the last known addresses stay in use");
            }
        }
    }

    fn take(&mut self, event: Event<EndpointSlice>) {
        let name = |slice: &EndpointSlice| slice.metadata.name.clone().unwrap_or_default();
        match event {
            Event::Init => {
                self.known.clear();
                self.listing = true;
            }
            Event::InitApply(slice) | Event::Apply(slice) => {
                self.report_unreadable(&slice);
                self.known.insert(name(&slice), slice);
            }
            Event::Delete(slice) => {
                self.known.remove(&name(&slice));
            }
            Event::InitDone => self.listing = false,
        }
    }

    fn report_unreadable(&mut self, slice: &EndpointSlice) {
        let Some(address) = unreadable(slice) else {
            return;
        };
        if self.unreadable.as_deref() != Some(address) {
            let (service, shown) = (&self.service, printable(address));
            tracing::warn!(%service, address = %shown, "an EndpointSlice contains an address that is not an IP address; it gets no requests");
            self.unreadable = Some(address.to_owned());
        }
    }

    fn addresses(&self) -> Vec<SocketAddr> {
        let mut all: Vec<_> = self
            .known
            .values()
            .flat_map(|slice| ready(slice, self.port))
            .collect();
        all.sort_unstable();
        all.dedup();
        all
    }
}

fn events(api: &Api<EndpointSlice>, service: &str) -> Events {
    let settings = watcher::Config::default()
        .labels(&format!("{SERVICE_LABEL}={service}"))
        .timeout(super::watch::length());
    Box::pin(watcher(api.clone(), settings))
}

/// The port of a slice to connect to: its only one, or the one with the number `wanted`, or the one named `http`.
#[must_use]
pub fn port_of(slice: &EndpointSlice, wanted: u16) -> Option<u16> {
    let ports = slice.ports.as_deref().unwrap_or_default();
    let number = |port: &EndpointPort| port.port.and_then(|port| u16::try_from(port).ok());
    match ports {
        [only] => number(only),
        several => several
            .iter()
            .find(|port| number(port) == Some(wanted))
            .or_else(|| {
                several
                    .iter()
                    .find(|port| port.name.as_deref() == Some(HTTP))
            })
            .and_then(number),
    }
}

/// Whether an endpoint with this condition `ready` is ready. An unset condition means that it is (discovery.k8s.io/v1,
/// `EndpointConditions`).
pub(super) fn is_ready(condition: Option<bool>) -> bool {
    condition != Some(false)
}

/// An address that is not an IP address. Those with leading zeros are not: some programs read them as octal numbers.
fn unreadable(slice: &EndpointSlice) -> Option<&str> {
    let mut addresses = { slice.endpoints.iter().flatten() }.flat_map(|one| &one.addresses);
    let found = addresses.find(|address| address.parse::<IpAddr>().is_err());
    found.map(String::as_str)
}

/// The ready addresses of a slice.
fn ready(slice: &EndpointSlice, wanted: u16) -> Vec<SocketAddr> {
    let Some(port) = port_of(slice, wanted) else {
        return Vec::new();
    };
    let endpoints = slice.endpoints.iter().flatten();
    endpoints
        .filter(|endpoint| is_ready(endpoint.conditions.as_ref().and_then(|all| all.ready)))
        .flat_map(|endpoint| &endpoint.addresses)
        .filter_map(|address| address.parse::<IpAddr>().ok())
        .map(|address| (address, port).into())
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_address_that_cannot_be_read_is_reported_and_not_used() {
        let port = json!([{"port": 80}]);
        assert_eq!(unreadable(&slice(port.clone())), None);
        let mut slice = slice(port);
        for address in ["010.0.0.1", "host.example"] {
            let [first, ..] = &mut slice.endpoints.as_mut().unwrap()[..] else {
                panic!("no endpoint");
            };
            first.addresses = vec![address.to_owned()];
            assert_eq!(unreadable(&slice), Some(address));
            assert_eq!(ready(&slice, 80), ["10.0.0.2:80".parse().unwrap()]);
        }
    }

    fn slice(ports: serde_json::Value) -> EndpointSlice {
        serde_json::from_value(json!({
            "addressType": "IPv4",
            "endpoints": [
                {"addresses": ["10.0.0.1"]},
                {"addresses": ["10.0.0.2"], "conditions": {"ready": true}},
                {"addresses": ["10.0.0.3"], "conditions": {"ready": false}},
            ],
            "ports": ports,
        }))
        .unwrap()
    }

    #[test]
    fn ready_addresses_by_the_port_that_is_meant() {
        let http = json!({"name": "http", "port": 8080});
        let grpc = json!({"name": "grpc", "port": 9000});
        for (ports, port) in [
            (json!([grpc]), Some(9000)),
            (json!([grpc, http]), Some(8080)),
            (json!([http, {"name": "x", "port": 80}]), Some(80)),
            (json!([grpc, {"name": "x", "port": 1}]), None),
            (json!([]), None),
        ] {
            let found: Vec<_> = ready(&slice(ports.clone()), 80)
                .iter()
                .map(ToString::to_string)
                .collect();
            let expected: Vec<_> = port
                .map(|port| vec![format!("10.0.0.1:{port}"), format!("10.0.0.2:{port}")])
                .unwrap_or_default();
            assert_eq!(found, expected, "{ports}");
        }
    }
}
