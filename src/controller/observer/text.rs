//! Finds in the text of an object what it routes to, for the annotations of Ingresses and for the many kinds of gateways and
//! meshes that are not parsed: any name or address of old counts, no matter where in the text it is.
//!
//! When in doubt, an object names old. Its name is then shown to the user, who knows what the object is for.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use kube::api::DynamicObject;
use serde_json::Value as Json;

use super::kinds::CONSUL;
use super::references::{self, Reference};
use super::route_match::{ServiceName, backends};
use super::to_old::{ToOld, namespace_of};
use crate::k8s::workloads::{is_selected, labels};
use crate::k8s::{GroupKind, Object};

/// The name of the annotation that repeats a whole object.
const REPEATS: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// The annotation with whole objects of Emissary.
const EMISSARY_ANNOTATION: &str = "getambassador.io/config";

/// The label of the Upstreams that Gloo creates by itself, one for each port of every Service.
const DISCOVERED: &str = "discovered_by";

/// The words of a text that may be names or addresses.
#[derive(Default)]
struct Text<'a> {
    words: BTreeSet<&'a str>,
    ports: BTreeSet<u16>,
}

impl<'a> Text<'a> {
    /// The words of all fields except the status, and of the annotations. An annotation, or the object's own name, must contain a
    /// full host name.
    fn of(object: &'a DynamicObject) -> Self {
        let mut found = Self::default();
        let fields = object.data.as_object().into_iter().flatten();
        let fields = fields.filter(|(name, _)| *name != "status");
        let mut left: Vec<&Json> = fields.map(|(_, value)| value).collect();
        while let Some(value) = left.pop() {
            match value {
                Json::Object(fields) => left.extend(fields.values()),
                Json::Array(items) => left.extend(items),
                Json::String(text) => found.add(text, false),
                Json::Number(number) => {
                    let port = number.as_u64().and_then(|port| u16::try_from(port).ok());
                    found.ports.extend(port);
                }
                _ => {}
            }
        }
        for (name, value) in object.metadata.annotations.iter().flatten() {
            if name != REPEATS {
                found.add(value, true);
            }
        }
        found.add(object.metadata.name.as_deref().unwrap_or_default(), true);
        found
    }

    fn add(&mut self, text: &'a str, only_full: bool) {
        let is_of_host = |letter: char| letter.is_ascii_alphanumeric() || "-.:".contains(letter);
        let is_full = |word: &str| word.contains(".svc") || word.parse::<IpAddr>().is_ok();
        for word in text.split(|letter| !is_of_host(letter)) {
            let (host, port) = word.rsplit_once(':').unwrap_or((word, word));
            self.ports.extend(port.parse::<u16>().ok());
            let first = word.split(':').next().unwrap_or(word);
            let words = [word, host, first].into_iter();
            let words = words.filter(|word| !word.is_empty() && (!only_full || is_full(word)));
            self.words.extend(words);
        }
    }

    /// The words that are more than one label of a host name.
    fn hosts(&self) -> impl Iterator<Item = &'a str> {
        let words = self.words.iter().copied();
        words.filter(|word| word.contains(['.', ':']))
    }

    fn addresses(&self, domain: &str) -> impl Iterator<Item = IpAddr> {
        self.hosts()
            .flat_map(move |word| references::of_host(word, "", domain))
            .filter_map(|reference| match reference {
                Reference::Address(address) => Some(address),
                _ => None,
            })
    }

    /// Whether the text contains a name, together with its namespace unless that is the object's `own`.
    fn has(&self, (namespace, name): &ServiceName, own: &str) -> bool {
        let is_in = |namespace: &str| namespace == own || self.words.contains(namespace);
        self.words.contains(&**name) && is_in(namespace)
    }
}

impl ToOld<'_> {
    /// The annotation of an Ingress that names something of old. Ingress controllers also read backends from annotations, such as
    /// `alb.ingress.kubernetes.io/actions.NAME` and `nginx.ingress.kubernetes.io/default-backend`. An annotation whose name does
    /// not identify it as one of these, such as `nginx.org/location-snippets`, must contain the full host name.
    pub(super) fn named_by_annotation<'b>(&self, ingress: &'b DynamicObject) -> Option<&'b str> {
        let own = namespace_of(ingress);
        let annotations = ingress.metadata.annotations.iter().flatten();
        let mut read = annotations.filter(|(name, _)| *name != REPEATS);
        let (name, _) = read.find(|(name, value)| {
            let mut text = Text::default();
            text.add(
                value,
                !name.contains("ingress") && *name != EMISSARY_ANNOTATION,
            );
            self.is_in(&text, own) || self.is_node_in(&text)
        })?;
        Some(name)
    }

    /// Whether an annotation of a Service routes to old. The others do not route.
    pub(super) fn is_named_by_service(&self, service: &DynamicObject) -> bool {
        let annotations = service.metadata.annotations.as_ref();
        let value = annotations.and_then(|all| all.get(EMISSARY_ANNOTATION));
        value.is_some_and(|value| {
            let mut text = Text::default();
            text.add(value, false);
            self.is_in(&text, namespace_of(service)) || self.is_node_in(&text)
        })
    }

    /// Those of these objects of kinds that are not parsed that lead to old.
    pub(super) fn named_by<'b>(
        &self,
        objects: Vec<(&'b GroupKind, &'b Object)>,
    ) -> Vec<(&'b GroupKind, &'b Object)> {
        // An object that is deleted with its Service matters only if another object uses it.
        let (discovered, mut others): (Vec<_>, Vec<_>) =
            { objects.into_iter() }.partition(|(kind, object)| is_discovered(kind, object));
        let upstreams = discovered
            .iter()
            .filter(|(kind, object)| self.is_named_in(kind, object, &Text::of(object)));
        let upstreams = upstreams.filter_map(|(_, object)| {
            let name = object.metadata.name.clone()?;
            Some((namespace_of(object).to_owned(), name))
        });
        let upstreams: BTreeSet<ServiceName> = upstreams.collect();
        let leads = |kind: &GroupKind, object: &DynamicObject| {
            let (text, own) = (Text::of(object), namespace_of(object));
            self.is_named_in(kind, object, &text)
                || upstreams.iter().any(|name| text.has(name, own))
        };
        others.retain(|(kind, object)| leads(kind, object));
        others
    }

    /// Whether an object of a kind that is not parsed leads to old.
    fn is_named_in(&self, kind: &GroupKind, object: &DynamicObject, text: &Text) -> bool {
        let own = match kind.group {
            // The names have the same meaning in all namespaces.
            CONSUL => self.namespace,
            _ => namespace_of(object),
        };
        self.is_in(text, own) || self.is_node_in(text) || self.is_redirected(object)
    }

    /// Whether an object of a kind that is not parsed leads to one of these ports of old's pods by a pod's address. An object
    /// without a port may lead to any.
    pub(super) fn is_named_at_port(&self, object: &DynamicObject, numbers: &BTreeSet<u16>) -> bool {
        let text = Text::of(object);
        let is_any = text.ports.is_empty() || !text.ports.is_disjoint(numbers);
        let mut addresses = text.addresses(self.domain);
        let has_pod = addresses.any(|address| self.old.has(None, Some(address)));
        is_any && (has_pod || self.is_redirected(object))
    }

    /// Whether an object leads to old through the nodes: a node port of a Service that leads to old, or a host port of a pod of
    /// old.
    pub(super) fn is_of_node(&self, object: &DynamicObject) -> bool {
        self.is_node_in(&Text::of(object))
    }

    fn is_in(&self, text: &Text, own: &str) -> bool {
        let mut names = self.services.names.iter().chain(&self.pools.names);
        names.any(|name| text.has(name, own)) || text.hosts().any(|host| self.has_host(host, own))
    }

    fn is_node_in(&self, text: &Text) -> bool {
        let mut ports = text.ports.iter();
        let is_host_port = |address: IpAddr| {
            let mut ports = text.ports.iter();
            ports.any(|port| self.old.listen_at_node(address, *port))
        };
        ports.any(|port| self.services.has_node_port(*port))
            || text.addresses(self.domain).any(is_host_port)
    }

    /// Whether a CiliumLocalRedirectPolicy selects a pod of old.
    fn is_redirected(&self, object: &DynamicObject) -> bool {
        let selects = |selector: &Json| self.may_be_selected(selector).then_some(());
        let spec = &object.data["spec"];
        let is_own = namespace_of(object) == self.namespace;
        is_own && !backends(spec, "localEndpointSelector", &selects).is_empty()
    }

    /// Whether a selector of Cilium may select a pod of old. The labels may be prefixed with their source, and Cilium adds its
    /// own labels.
    fn may_be_selected(&self, selector: &Json) -> bool {
        let wanted = selector["matchLabels"].as_object().into_iter().flatten();
        let wanted = wanted.filter_map(|(name, value)| {
            let name = name.split_once(':').map_or(&**name, |(_, name)| name);
            let is_added = name.starts_with("io.kubernetes.") || name.starts_with("io.cilium.");
            (!is_added).then(|| Some((name.to_owned(), value.as_str()?.to_owned())))?
        });
        let wanted: BTreeMap<String, String> = wanted.collect();
        { self.old.pods().iter() }.any(|pod| is_selected(pod, &wanted))
    }
}

/// Whether Gloo created this Upstream for a Service, and will delete it together with the Service.
fn is_discovered(kind: &GroupKind, object: &DynamicObject) -> bool {
    let by = labels(object).and_then(|labels| labels.get(DISCOVERED));
    kind.plural == "upstreams" && by.map(String::as_str) == Some("kubernetesplugin")
}

#[cfg(test)]
mod tests;
