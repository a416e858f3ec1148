//! Decides what changes in one pod, and applies the changes.

mod allow;
mod check;
mod choose;
mod command;
mod identity;
mod operator;
mod ports;
mod probes;
mod qos;

use serde_json::{Value as Json, json};

pub(super) use self::choose::choose;
pub(super) use self::identity::PROXY;
use self::operator::Effective;

use super::edit::Editor;
use super::path::{Path, Step, below};
use super::record::ANNOTATION;
use super::resources::Resources;
use super::server::{
    Doubtful, Move, PortOptions, Relocated, Server, Swap, doubtful_variable, host,
    is_one_of_several, overriding, relocate, unknown, variable,
};
use super::sidecar::{self, FRONTEND_PORTS, HostPort, NAME, Sidecar};
use super::workload::Workload;
use super::{Note, Options, Refused};

/// The name of the frontend's own port, on which the controller requests its models.
const FRONTEND: &str = "frontend";
/// The names for the frontend's port: the second one is used if the pod already has a port with the first.
pub(super) const FRONTEND_NAMES: [&str; 2] = [FRONTEND, "frontend-http"];
const ADMIN: [u16; 3] = [9464, 19464, 29464];
/// Grace period for a hung frontend, in seconds.
const HUNG: u64 = 30;
/// How long a Dynamo frontend waits for its streams after SIGTERM, in seconds; by default 5.
const DYNAMO_TIMEOUT: &str = "DYN_HTTP_GRACEFUL_SHUTDOWN_TIMEOUT_SECS";

/// The container that serves clients.
#[derive(Clone, Debug)]
pub(super) struct Frontend {
    pub path: Path,
    pub name: String,
    pub server: Server,
    pub basis: Basis,
}

/// Why a container is taken for a frontend, from the weakest reason to the strongest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Basis {
    /// It is the only one of its pod and declares no port, so it may listen on the given one.
    OnlyContainer,
    /// It declares the given port.
    DeclaredPort,
    /// It runs a known server, or the user has named it.
    Recognized,
}

pub(super) struct Injection<'i, 'a> {
    pub editor: &'i mut Editor<'a>,
    pub root: &'i Json,
    pub workload: &'i Workload,
    pub frontend: &'i Frontend,
    pub options: &'i Options,
    pub image: &'i str,
    /// The port on which the frontend listens because of an earlier injection.
    pub earlier_port: Option<u16>,
    /// Whether an earlier injection added the same argument where there were none.
    pub was_alone: bool,
    pub note: &'i mut Note,
}

fn given(options: &Options) -> PortOptions<'_> {
    PortOptions {
        port: options.port,
        flag: options.port_arg.as_deref(),
        variable: options.port_env.as_deref(),
        was_alone: false,
    }
}

/// The port on which the frontend of a pod listens, whatever port the options name. `None` if it is unknown.
pub(super) fn port(root: &Json, workload: &Workload, options: &Options) -> Option<u16> {
    let frontend = choose(root, workload, options).ok().flatten()?;
    let container = Effective::of(root, workload, &frontend).container;
    let listens = |given: &PortOptions<'_>| relocate(frontend.server, &container, given, 0);
    let given = given(options);
    let alone = PortOptions {
        port: None,
        ..given.clone()
    };
    let found = listens(&given).or_else(|_| listens(&alone));
    found.ok().map(|found| found.port)
}

/// The ports of a pod with crossfade in front of its frontend.
struct Ports {
    /// The port that clients connect to.
    port: u16,
    name: String,
    host_port: Option<HostPort>,
    /// The port on which the frontend listens, and its name.
    frontend: u16,
    frontend_name: &'static str,
    admin: u16,
    /// The entry of the frontend's port among those of its container.
    entry: Option<usize>,
}

impl<'i> Injection<'i, '_> {
    pub fn run(&mut self) -> Result<(), Refused> {
        let effective = Effective::of(self.root, self.workload, self.frontend);
        let container = effective.container.clone();
        let resources = Resources::of(self.options).map_err(|message| self.refuse(message))?;
        self.check(&container)?;
        self.resources(&container, &resources);
        let ports = self.ports(&container)?;
        self.write_out_main()?;
        self.relocate(&effective, &ports)?;
        self.declare(&container, &ports)?;
        self.scraped(&ports);
        self.mentioned(&ports);
        self.probes(&container, &ports)?;
        self.hooks(&container, &ports)?;
        let drain = self.options.drain.unwrap_or(sidecar::DRAIN);
        self.grace(drain)?;
        self.add(&container, &ports, drain, &resources)?;
        self.editor.record().port = ports.port;
        Ok(())
    }

    fn spec(&self) -> &Json {
        static NOTHING: Json = Json::Null;
        super::path::get(self.root, &self.workload.spec).unwrap_or(&NOTHING)
    }

    fn of(&self, steps: &[&str]) -> Path {
        below(&self.frontend.path, steps.iter().copied())
    }

    fn refuse(&self, message: impl Into<String>) -> Refused {
        Refused::of(&self.frontend.path, message)
    }

    fn given(&self) -> PortOptions<'i> {
        PortOptions {
            was_alone: self.was_alone,
            ..given(self.options)
        }
    }

    /// Moves the frontend to its new port, behind crossfade.
    fn relocate(&mut self, effective: &Effective, ports: &Ports) -> Result<(), Refused> {
        let container = &effective.container;
        let given = self.given();
        let port = ports.frontend;
        let Relocated { how, .. } = relocate(self.frontend.server, container, &given, port)
            .map_err(|message| self.refuse(message))?;
        let by = match how {
            Move::Swap(swaps) => {
                let mut by = Vec::new();
                for swap in swaps {
                    let Swap {
                        path,
                        from,
                        to,
                        times,
                    } = swap;
                    self.exchange(effective, &path, &from, &to, times)?;
                    by.push(match path.as_slice() {
                        [Step::Key(list), Step::Item(index), ..] if list == "env" => {
                            let variable = &container["env"][*index];
                            let value = variable["value"].as_str().unwrap_or_default();
                            let value = value.replacen(&from, &to, times);
                            format!("{}={value}", variable["name"].as_str().unwrap_or_default())
                        }
                        _ if times > 1 => {
                            format!("'{from}' is now '{to}', in all {times} places")
                        }
                        _ => format!("'{from}' is now '{to}'"),
                    });
                }
                by.join(", ")
            }
            Move::Variable { name } => {
                // Such as Ollama's OLLAMA_HOST, which takes a number alone for a host.
                let address = match name.ends_with("HOST") {
                    true => format!("0.0.0.0:{port}"),
                    false => port.to_string(),
                };
                let by = format!("{name}={address}");
                let value = json!({"name": name, "value": address});
                self.editor.push(&self.of(&["env"]), value)?;
                by
            }
            Move::Arguments { list, flag } => {
                let list = self.of(&[list]);
                self.editor.push(&list, flag.as_str().into())?;
                self.editor.push(&list, port.to_string().into())?;
                format!("{flag} {port}")
            }
        };
        self.note.add_detail(format!(
            "container '{}' is {}: it moves from port {} to port {port}, named '{}' ({by}), and crossfade uses port {}, \
             named '{}'",
            self.frontend.name,
            self.frontend.server.name(),
            ports.port,
            ports.frontend_name,
            ports.port,
            ports.name,
        ));
        if self.frontend.server == Server::Dynamo && variable(container, DYNAMO_TIMEOUT).is_none() {
            self.editor.push(
                &self.of(&["env"]),
                json!({"name": DYNAMO_TIMEOUT, "value": HUNG.to_string()}),
            )?;
            self.note.add_detail(format!(
                "{DYNAMO_TIMEOUT}={HUNG}: after SIGTERM, the frontend waits this long for streams of clients that bypass crossfade"
            ));
        }
        Ok(())
    }

    /// Names the frontend's port, and gives its old name to crossfade's port.
    fn declare(&mut self, container: &Json, ports: &Ports) -> Result<(), Refused> {
        if ports.frontend_name != FRONTEND {
            self.note.warn(format!(
                "the name '{FRONTEND}' is taken: start the controller with --frontend-port {}",
                ports.frontend_name
            ));
        }
        let list = self.of(&["ports"]);
        let Some(index) = ports.entry else {
            return self.editor.push(
                &list,
                json!({"name": ports.frontend_name, "containerPort": ports.frontend}),
            );
        };
        if let Some(host_port) = &ports.host_port
            && !self.workload.is_on_host_network(self.root)
        {
            // The frontend must not have one, or clients could bypass crossfade. Nothing is removed from within a list
            // separately.
            let mut entries = container["ports"].clone();
            entries[index]["name"] = ports.frontend_name.into();
            entries[index]["containerPort"] = ports.frontend.into();
            if let Some(entry) = entries[index].as_object_mut() {
                entry.retain(|key, _| key != "hostPort" && key != "hostIP");
            }
            self.note.add_detail(format!(
                "port {} of the node routes to crossfade instead of the frontend",
                host_port.port
            ));
            return self.editor.set(&list, entries);
        }
        let entry = below(&list, [index]);
        let (from, to) = (ports.port.to_string(), ports.frontend.to_string());
        // Change the name first, because it identifies the others.
        let name = below(&entry, ["name"]);
        match container["ports"][index]["name"].as_str() {
            Some(was) => self.editor.swap(&name, was, ports.frontend_name)?,
            None => self.editor.put(&name, ports.frontend_name.into())?,
        }
        self.editor
            .swap(&below(&entry, ["containerPort"]), &from, &to)?;
        if let Some(host_port) = &ports.host_port {
            let was = host_port.port.to_string();
            self.editor.swap(&below(&entry, ["hostPort"]), &was, &to)?;
        }
        Ok(())
    }

    fn grace(&mut self, drain: u64) -> Result<(), Refused> {
        let place = below(&self.workload.spec, ["terminationGracePeriodSeconds"]);
        let needed = sidecar::grace(drain);
        match self.editor.get(&place).cloned() {
            Some(Json::Number(seconds))
                if seconds.as_u64().is_some_and(|seconds| seconds >= needed) =>
            {
                return Ok(());
            }
            Some(Json::Number(seconds)) => {
                let was = seconds.to_string();
                self.editor.swap(&place, &was, &needed.to_string())?;
                self.note.add_detail(format!("terminationGracePeriodSeconds: {was} is now {needed}, for streams of up to {drain} s (--drain)"));
            }
            Some(other) if !other.is_null() => {
                return Err(
                    self.refuse("terminationGracePeriodSeconds must be a number".to_owned())
                );
            }
            _ => {
                self.editor.put(&place, needed.into())?;
                self.note.add_detail(format!("terminationGracePeriodSeconds: {needed}, for streams of up to {drain} s (--drain)"));
            }
        }
        Ok(())
    }

    fn add(
        &mut self,
        container: &Json,
        ports: &Ports,
        drain: u64,
        resources: &Resources,
    ) -> Result<(), Refused> {
        let deployment = self.labels()?;
        let native = !self.options.plain_container;
        let sidecar = Sidecar {
            image: self.image,
            native,
            deployment: &deployment,
            port: ports.port,
            port_name: &ports.name,
            host_port: ports.host_port.as_ref(),
            ipv6: self.is_on_ipv6(container),
            frontend: ports.frontend,
            admin: ports.admin,
            drain,
            resources,
        };
        let list = if native {
            "initContainers"
        } else {
            "containers"
        };
        let volumes = self.spec()["volumes"].as_array().into_iter().flatten();
        let object = super::path::get(self.root, &self.workload.object).unwrap_or(&Json::Null);
        let claims = object["spec"]["volumeClaimTemplates"].as_array();
        let claims = claims.into_iter().flatten();
        let claims = claims.map(|claim| &claim["metadata"]["name"]);
        let mut names = volumes.map(|volume| &volume["name"]).chain(claims);
        if names.any(|name| name == NAME) {
            return Err(self.refuse(format!("the pod already has a volume '{NAME}'")));
        }
        self.editor
            .push(&below(&self.workload.spec, [list]), sidecar.container())?;
        self.editor
            .push(&below(&self.workload.spec, ["volumes"]), sidecar::volume())?;
        self.note.add_detail(format!(
            "volume '{NAME}': crossfade stores the last plan in it; annotation {ANNOTATION}: records these changes for uninject"
        ));
        self.allow(ports.port)?;
        self.note.add_detail(format!(
            "updates refer to it by this name: {deployment} (sourceDeployment, or targetDeployment if it is the new generation)"
        ));
        self.account();
        Ok(())
    }
}
