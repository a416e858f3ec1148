//! The next generation of a `DynamoGraphDeployment`.

use serde_json::{Value as Json, json};

use super::{
    Error, GENERATION, GRAPH, GeneratedObject, Request, dynamo_namespace, labels,
    names::Names,
    parts::{Parts, cleaned, name},
    rollout::{self, Frontends, GenerationWorkers, Rollout, SCALED, without_replicas},
    services,
};
use crate::inject::{self, shown};

/// Creates the generation and its rollout.
pub(super) fn generation(
    request: &Request<'_>,
    from: &Parts,
    to: &Parts,
    names: &Names,
    made: &mut Vec<GeneratedObject>,
    notes: &mut Vec<String>,
) -> Result<(), Error> {
    let (old, new) = (from.main(), to.main());
    let source = name(old);
    let target = names.next(&name(new));
    let client_service = client_service(request, from, &source, notes)?;
    let mut next = cleaned(new);
    next["metadata"]["name"] = target.as_str().into();
    labels::put(&mut next["metadata"]["labels"], GENERATION, &names.hash);
    let wrong = |message: String| format!("{}: {message}", shown(new));
    for field in ["env", "envs"] {
        if let Some(list) = next["spec"].get_mut(field) {
            dynamo_namespace::variables(list, names).map_err(wrong)?;
        }
    }
    let mut frontend = None;
    let mut workers = 0;
    for (name, kind, component) in components(&mut next) {
        if component["globalDynamoNamespace"] == true {
            let message = format!(
                "component {name} has globalDynamoNamespace: two generations would share it"
            );
            return Err(wrong(message).into());
        }
        move_namespace(component, names).map_err(wrong)?;
        match kind.as_str() {
            "frontend" => frontend = Some(name),
            "worker" | "prefill" | "decode" => {
                without_replicas(component);
                workers += 1;
            }
            "planner" => notes.push(format!(
                "component {name} of {} scales workers: remove it for the duration of the rollout, which pauses while \
                 another client scales the workers",
                shown(new)
            )),
            _ => {}
        }
    }
    let frontend = frontend.ok_or_else(|| wrong("has no component of type frontend".to_owned()))?;
    if workers == 0 {
        return Err(wrong("has no component of type worker, prefill, or decode".to_owned()).into());
    }
    let service = operators_service(&target, &frontend);
    made.extend(account(&target, new));
    if next["spec"]["components"].is_array() {
        notes.push(format!(
            "apply {} with kubectl apply --server-side: a client-side apply replaces the list of components, and with it the sizes that the rollout sets",
            shown(&next)
        ));
    }
    made.push(GeneratedObject {
        comment: format!("The new graph. {SCALED}"),
        object: next,
    });
    if !from.has_sidecar {
        notes.push(rollout::no_sidecar(&shown(old)));
    }
    made.push(rollout::rollout(Rollout {
        name: target.clone(),
        namespace: new["metadata"]["namespace"].as_str(),
        source: GenerationWorkers::graph(&source),
        target: GenerationWorkers::graph(&target),
        frontends: Frontends {
            source: &source,
            target: &target,
            service: &service,
            port: 8000,
        },
        client_service: &client_service,
    }));
    Ok(())
}

/// The Service that clients connect to. It must be the user's own, because the operator's Service always routes to one graph.
fn client_service(
    request: &Request<'_>,
    from: &Parts,
    source: &str,
    notes: &mut Vec<String>,
) -> Result<String, String> {
    if let Some(wanted) = request.client_service {
        let mut graph = from.main().clone();
        let frontends = components(&mut graph).into_iter();
        let mut frontends = frontends.filter(|(_, kind, _)| kind == "frontend");
        if frontends.any(|(frontend, ..)| operators_service(source, &frontend) == wanted) {
            return Err(format!(
                "--client-service: Dynamo's operator creates the Service {wanted} for the graph {source}, and it always routes to \
                 this graph: create a Service of your own that selects {GRAPH}: {source}, let the clients connect to it, and name it"
            ));
        }
        if from.services.iter().all(|service| name(service) != wanted) {
            notes.push(format!(
                "--client-service: --from has no Service {wanted}: it must exist in the cluster, and select {GRAPH}: {source}"
            ));
        }
        return Ok(wanted.to_owned());
    }
    let leads_there = |service: &Json| service["spec"]["selector"][GRAPH] == source;
    let found = services::the_one(from, leads_there)?.map(name);
    found.ok_or_else(|| {
        format!("--from has no Service that selects {GRAPH}: {source}: name the one that clients connect to with \
            --client-service")
    })
}

/// The Service that the operator creates for the frontend of a graph.
fn operators_service(graph: &str, frontend: &str) -> String {
    format!("{graph}-{}", frontend.to_lowercase().replace('.', "-"))
}

/// The components of a graph in both versions, with their names and types.
fn components(graph: &mut Json) -> Vec<(String, String, &mut Json)> {
    let text = |json: &Json| json.as_str().unwrap_or_default().to_owned();
    let spec = &mut graph["spec"];
    if spec["components"].is_array() {
        let list = spec["components"].as_array_mut();
        let list = list.into_iter().flatten();
        return list
            .map(|component| {
                (
                    text(&component["name"]),
                    text(&component["type"]),
                    component,
                )
            })
            .collect();
    }
    let services = spec.get_mut("services").and_then(Json::as_object_mut);
    let services = services.into_iter().flatten();
    services
        .map(|(name, component)| {
            let kind = match component["componentType"].as_str() {
                Some(kind) => kind.to_owned(),
                None if name.eq_ignore_ascii_case("frontend") => "frontend".to_owned(),
                None => String::new(),
            };
            (name.clone(), kind, component)
        })
        .collect()
}

/// The operator names the Dynamo namespace after the graph. If a component states another one, it changes, too.
fn move_namespace(component: &mut Json, names: &Names) -> Result<(), String> {
    let fields = component.as_object_mut().into_iter().flatten();
    for (field, value) in fields {
        match field.as_str() {
            "dynamoNamespace" => *value = names.next_in(value),
            "envs" => {
                dynamo_namespace::variables(value, names)?;
            }
            "extraPodSpec" => {
                dynamo_namespace::move_namespace(value, names)?;
            }
            "podTemplate" if value["spec"].is_object() => {
                dynamo_namespace::move_namespace(&mut value["spec"], names)?;
            }
            _ => {}
        }
    }
    Ok(())
}

/// The permissions that the service account of the new frontends, which the operator chooses, must have.
fn account(target: &str, graph: &Json) -> Vec<GeneratedObject> {
    let account = format!("{target}-k8s-service-discovery");
    let text = inject::rbac(Some(&account), None);
    let manifests = inject::manifests(&text).unwrap_or_default();
    let objects = manifests.into_iter().flat_map(|manifest| manifest.objects);
    objects
        .map(|mut object| {
            if let Some(namespace) = graph["metadata"]["namespace"].as_str() {
                object["metadata"]["namespace"] = json!(namespace);
            }
            GeneratedObject {
                comment: "The permissions that the sidecars of the new frontends need.".to_owned(),
                object,
            }
        })
        .collect()
}
