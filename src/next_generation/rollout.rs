//! The `DynamoRollout` that moves from one generation to the next.

use serde_json::{Map, Value as Json, json};

use super::{GeneratedObject, parts::is_same};
use crate::inject::shown;

/// The note on workers without replicas.
pub(super) const SCALED: &str = "Without replicas, so that applying this again keeps the sizes that the rollout sets: one worker starts immediately.";

/// Removes the replicas of workers from a manifest. Otherwise, each time it is applied, it would reset what the rollout sets.
pub(super) fn without_replicas(workers: &mut Json) {
    if let Some(fields) = workers.as_object_mut() {
        fields.shift_remove("replicas");
    }
}

/// The workers of a generation.
pub(super) struct GenerationWorkers {
    /// The role, kind, name and full size of each object.
    pub roles: Vec<Role>,
}

/// The object for one role.
pub(super) struct Role {
    pub role: &'static str,
    pub kind: String,
    pub name: String,
    /// The full size, if the object is known to have it.
    pub replicas: Option<u64>,
}

/// The frontends of both generations.
pub(super) struct Frontends<'a> {
    pub source: &'a str,
    pub target: &'a str,
    pub service: &'a str,
    pub port: u64,
}

/// The fields of a rollout.
pub(super) struct Rollout<'a> {
    pub name: String,
    pub namespace: Option<&'a str>,
    pub source: GenerationWorkers,
    pub target: GenerationWorkers,
    pub frontends: Frontends<'a>,
    pub client_service: &'a str,
}

impl GenerationWorkers {
    /// A graph, whose components are the roles.
    pub fn graph(name: &str) -> Self {
        let graph = Role {
            role: "worker",
            kind: "DynamoGraphDeployment".to_owned(),
            name: name.to_owned(),
            replicas: None,
        };
        Self { roles: vec![graph] }
    }

    /// In the form of the resource. The size is included if it differs from that of the same role in `other`, which is the
    /// default.
    fn json(&self, other: Option<&Self>) -> Json {
        let workload = |own: &Role| {
            let mut workload = json!({"kind": own.kind, "name": own.name});
            let same = |other: &&Role| other.role == own.role;
            let default =
                other.map(|other| other.roles.iter().find(same).and_then(|role| role.replicas));
            if let (Some(replicas), Some(default)) = (own.replicas, default)
                && default != Some(replicas)
            {
                workload["replicas"] = replicas.into();
            }
            workload
        };
        match &self.roles[..] {
            [one] if one.role == "worker" => workload(one),
            roles => {
                let roles = roles
                    .iter()
                    .map(|role| (role.role.to_owned(), workload(role)));
                json!({"roles": roles.collect::<Map<_, _>>()})
            }
        }
    }
}

/// The rollout as an object.
pub(super) fn rollout(rollout: Rollout<'_>) -> GeneratedObject {
    let mut metadata = json!({"name": rollout.name});
    if let Some(namespace) = rollout.namespace {
        metadata["namespace"] = namespace.into();
    }
    let Frontends {
        source,
        target,
        service,
        port,
    } = rollout.frontends;
    let mut frontends = json!({"source": source, "target": target, "service": service});
    if port != 8000 {
        frontends["port"] = port.into();
    }
    GeneratedObject {
        comment: "Describes how workers and requests move to the new generation. A controller with --rollouts carries it out."
            .to_owned(),
        object: json!({
            "apiVersion": "nvidia.com/v1alpha1",
            "kind": "DynamoRollout",
            "metadata": metadata,
            "spec": {
                "source": rollout.source.json(None),
                "target": rollout.target.json(Some(&rollout.source)),
                "frontends": frontends,
                "clientService": rollout.client_service,
                "strategy": {"maxSurge": 1, "maxUnavailable": 0},
            },
        }),
    }
}

/// Checks that the new Service does not exist yet.
pub(super) fn is_free(service: &Json, known: &[Json]) -> Result<(), String> {
    match known.iter().any(|other| is_same(other, service)) {
        true => Err(format!(
            "{} already exists, so both generations would share it",
            shown(service)
        )),
        false => Ok(()),
    }
}

/// What to do if the current frontends have no sidecar.
pub(super) fn no_sidecar(frontends: &str) -> String {
    format!(
        "{frontends} has no sidecar in these manifests: the rollout needs one in the current frontends; see `crossfade \
         inject --help`"
    )
}
