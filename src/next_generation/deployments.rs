//! The next generation of plain Deployments and StatefulSets.

use serde_json::{Value as Json, json};

use super::{
    COMPONENT, Error, GENERATION, GRAPH, GeneratedObject, Request, dynamo_namespace, labels,
    names::Names,
    parts::{Parts, cleaned, labels as labels_of, name},
    rollout::{self, Frontends, GenerationWorkers, Role, Rollout, SCALED, without_replicas},
    services,
};
use crate::inject::shown;

/// Creates the generation and its rollout.
pub(super) fn generation(
    request: &Request<'_>,
    from: &Parts,
    to: &Parts,
    names: &Names,
    made: &mut Vec<GeneratedObject>,
    notes: &mut Vec<String>,
) -> Result<(), Error> {
    let client_service = client_service(request, from)?;
    let source = from.graph_label.clone();
    let source = source.unwrap_or_else(|| name(&from.frontend));
    let target = names.next(&source);
    let mut known = from.services.clone();
    known.extend(to.services.iter().cloned());
    let mut workers = Vec::new();
    for worker in &to.workers {
        let partition = &worker.object["spec"]["updateStrategy"]["rollingUpdate"]["partition"];
        if partition.as_u64().is_some_and(|partition| partition > 0) {
            let object = shown(&worker.object);
            notes.push(format!(
                "{object} has a partition, but it is replaced with a second object here; to replace its workers in place instead, \
                 apply the edited {object} and a DynamoRollout whose source and target are both this object"
            ));
        }
        let next = workload(&worker.object, &known, names, &target, worker.role, notes)?;
        services_of(&worker.object, to, names, &target, "workers", made);
        workers.push(next);
    }
    let frontend = workload(&to.frontend, &known, names, &target, "frontend", notes)?;
    apart(&known, &frontend)?;
    let selecting = labels::selecting(&to.frontend, &known);
    let service = services::next(client_service, &selecting, names, &target);
    rollout::is_free(&service, &known)?;
    let port = services::port(&service);
    let service_name = name(&service);
    made.push(GeneratedObject {
        comment: "The Service of the new frontends: the current frontends forward requests to it."
            .to_owned(),
        object: service,
    });
    for (worker, mut object) in to.workers.iter().zip(workers.iter().cloned()) {
        without_replicas(&mut object["spec"]);
        made.push(GeneratedObject {
            comment: format!("The new {}. {SCALED}", workers_of(worker.role)),
            object,
        });
    }
    made.push(GeneratedObject {
        comment: "The new frontends.".to_owned(),
        object: frontend.clone(),
    });
    if !from.has_sidecar {
        notes.push(rollout::no_sidecar(&shown(&from.frontend)));
    }
    let workers_of = |parts: &Parts, next: Option<&[Json]>| GenerationWorkers {
        roles: parts
            .workers
            .iter()
            .enumerate()
            .map(|(index, worker)| {
                let object = next.map_or(&worker.object, |next| &next[index]);
                let replicas = worker.object["spec"]["replicas"].as_u64();
                Role {
                    role: worker.role,
                    kind: object["kind"].as_str().unwrap_or_default().to_owned(),
                    name: name(object),
                    replicas,
                }
            })
            .collect(),
    };
    made.push(rollout::rollout(Rollout {
        name: target.clone(),
        namespace: to.frontend["metadata"]["namespace"].as_str(),
        source: workers_of(from, None),
        target: workers_of(to, Some(&workers)),
        frontends: Frontends {
            source: &source,
            target: &target,
            service: &service_name,
            port,
        },
        client_service: &name(client_service),
    }));
    Ok(())
}

/// The workers of a role, as text for users.
fn workers_of(role: &str) -> String {
    match role {
        "worker" => "workers".to_owned(),
        role => format!("{role} workers"),
    }
}

/// The Service that clients connect to.
fn client_service<'a>(request: &Request<'_>, from: &'a Parts) -> Result<&'a Json, String> {
    if let Some(wanted) = request.client_service {
        let mut services = from.services.iter();
        let found = services.find(|service| name(service) == wanted);
        return found.ok_or_else(|| format!("--client-service: --from has no Service {wanted}"));
    }
    let pods = labels_of(&from.frontend);
    let found = services::the_one(from, |service| labels::selects(service, pods))?;
    found.ok_or_else(|| {
        format!(
            "--from has no Service that selects the pods of {}: add the one that clients connect to",
            shown(&from.frontend)
        )
    })
}

/// The next generation's counterpart of `object`.
fn workload(
    object: &Json,
    known: &[Json],
    names: &Names,
    graph: &str,
    role: &str,
    notes: &mut Vec<String>,
) -> Result<Json, String> {
    let selecting = labels::selecting(object, known);
    let mut next = cleaned(object);
    next["metadata"]["name"] = names.next_in(&object["metadata"]["name"]);
    if next["metadata"]["labels"].is_object() {
        labels::move_labels(
            &mut next["metadata"]["labels"],
            &selecting,
            names,
            Some(graph),
        );
    }
    labels::put(&mut next["metadata"]["labels"], GENERATION, &names.hash);
    let spec = &mut next["spec"];
    labels::move_labels(
        &mut spec["selector"]["matchLabels"],
        &selecting,
        names,
        Some(graph),
    );
    labels::put(
        &mut spec["selector"]["matchLabels"],
        GENERATION,
        &names.hash,
    );
    if spec["serviceName"].is_string() {
        spec["serviceName"] = names.next_in(&spec["serviceName"]);
    }
    let pods = &mut spec["template"]["metadata"]["labels"];
    labels::move_labels(pods, &selecting, names, Some(graph));
    labels::put(pods, GENERATION, &names.hash);
    labels::put(pods, GRAPH, graph);
    if pods[COMPONENT].is_null() {
        pods[COMPONENT] = role.into();
    }
    let pod = &mut spec["template"]["spec"];
    let wrong = |message: String| format!("{}: {message}", shown(object));
    if !dynamo_namespace::move_namespace(pod, names).map_err(wrong)? {
        dynamo_namespace::state(pod, names);
        notes.push(format!(
            "{} does not set a Dynamo namespace: the new one gets DYN_NAMESPACE, so that each frontend finds the workers of its own generation",
            shown(object)
        ));
    }
    Ok(next)
}

/// The Services of workers, by which Dynamo finds them.
fn services_of(
    object: &Json,
    to: &Parts,
    names: &Names,
    graph: &str,
    whose: &str,
    made: &mut Vec<GeneratedObject>,
) {
    let selecting = labels::selecting(object, &to.services);
    for service in to
        .services
        .iter()
        .filter(|service| labels::selects(service, labels_of(object)))
    {
        let next = services::next(service, &selecting, names, graph);
        if !made.iter().any(|other| other.object == next) {
            made.push(GeneratedObject {
                comment: format!("The Service of the new {whose}."),
                object: next,
            });
        }
    }
}

/// Checks that no current Service leads to the new frontends.
fn apart(known: &[Json], frontend: &Json) -> Result<(), String> {
    let pods = labels_of(frontend);
    let Some(service) = known.iter().find(|service| labels::selects(service, pods)) else {
        return Ok(());
    };
    Err(format!(
        "{} would select the new frontends as well, because it selects by {}, which every generation has: make it select by a label that only one generation has",
        shown(service),
        json!(service["spec"]["selector"])
    ))
}
