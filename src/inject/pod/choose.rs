//! Finds the frontend among the containers of a pod.

use serde_json::Value as Json;

use super::{Basis, Frontend};
use crate::inject::path::{Path, get};
use crate::inject::server::{self, Server};
use crate::inject::workload::{PodCreator, Workload};
use crate::inject::{Options, Refused};

/// The name of a Dynamo frontend's container.
const MAIN: &str = "main";

/// Finds the frontend's container in a pod.
///
/// # Errors
/// When several could be.
pub(in crate::inject) fn choose(
    root: &Json,
    workload: &Workload,
    options: &Options,
) -> Result<Option<Frontend>, Refused> {
    let containers = workload.containers(root);
    let name = |container: &Json| container["name"].as_str().unwrap_or(MAIN).to_owned();
    let labels = get(root, &workload.labels);
    let by_operator = workload.creator != PodCreator::Kubernetes;
    let component = labels.and_then(|labels| labels["nvidia.com/dynamo-component-type"].as_str());
    let is_dynamo = by_operator || component == Some("frontend");
    if matches!(component, Some(other) if other != "frontend") {
        return Ok(None);
    }
    let of = |(path, container): &(Path, &Json), server, basis| Frontend {
        path: path.clone(),
        name: name(container),
        server,
        basis,
    };
    let other = if is_dynamo {
        Server::Dynamo
    } else {
        Server::Other
    };
    let is_main = |wanted: &String| wanted == MAIN;
    if by_operator
        && options.container.as_ref().is_none_or(is_main)
        && let Some(path) = workload.place_of_main(root, MAIN)
    {
        // The operator creates it.
        return Ok(Some(Frontend {
            path,
            name: MAIN.to_owned(),
            server: Server::Dynamo,
            basis: Basis::Recognized,
        }));
    }
    if let Some(wanted) = &options.container {
        let found = containers
            .iter()
            .find(|(_, container)| name(container) == *wanted);
        return Ok(found.map(|found| {
            let server = Server::of(found.1).unwrap_or(other);
            of(found, server, Basis::Recognized)
        }));
    }
    if is_dynamo {
        let main = containers
            .iter()
            .find(|(_, container)| name(container) == MAIN);
        let only = containers.first().filter(|_| containers.len() == 1);
        return match main.or(only) {
            Some(found) => Ok(Some(of(
                found,
                Server::of(found.1).unwrap_or(Server::Dynamo),
                Basis::Recognized,
            ))),
            None => Err(Refused::of(
                &workload.base,
                "has no container 'main': name the frontend's container with --frontend-container, or add it to the manifest with \
                 its name and image",
            )),
        };
    }
    let known: Vec<_> = containers
        .iter()
        .filter_map(|found| Some(of(found, Server::of(found.1)?, Basis::Recognized)))
        .collect();
    let by_port: Vec<_> = containers
        .iter()
        .filter(|(_, container)| {
            let ports = container["ports"].as_array().into_iter().flatten();
            options.port.is_some_and(|port| {
                ports
                    .into_iter()
                    .any(|entry| entry["containerPort"] == port)
            })
        })
        .map(|found| of(found, Server::Other, Basis::DeclaredPort))
        .collect();
    let candidates = if known.is_empty() { by_port } else { known };
    match candidates.as_slice() {
        [] if options.port.is_some()
            && containers.len() == 1
            && !server::is_worker(containers[0].1) =>
        {
            let has_ports = containers[0].1["ports"]
                .as_array()
                .is_some_and(|ports| !ports.is_empty());
            Ok((!has_ports).then(|| of(&containers[0], Server::Other, Basis::OnlyContainer)))
        }
        [] => Ok(None),
        [one] => Ok(Some(one.clone())),
        several => {
            let names: Vec<_> = several.iter().map(|one| one.name.as_str()).collect();
            let message = format!(
                "several containers could be the frontend: {}; name it with --frontend-container",
                names.join(", ")
            );
            Err(Refused::of(&workload.base, message))
        }
    }
}
