//! The ports of a pod with crossfade in front of its frontend.

use serde_json::Value as Json;

use super::command::mentions;
use super::{
    ADMIN, Doubtful, FRONTEND_NAMES, FRONTEND_PORTS, HostPort, Injection, NAME, Path, Ports,
    Refused, Relocated, below, doubtful_variable, host, is_one_of_several, overriding, relocate,
    unknown,
};

impl Injection<'_, '_> {
    pub(super) fn ports(&mut self, container: &Json) -> Result<Ports, Refused> {
        let given = self.given();
        let refuse = |message: String| self.refuse(message);
        let Relocated {
            port, is_assumed, ..
        } = relocate(self.frontend.server, container, &given, 0).map_err(refuse)?;
        let entries = container["ports"].as_array().map_or(&[][..], Vec::as_slice);
        let is_port = |entry: &&Json| is_tcp(entry) && entry["containerPort"] == port;
        if entries.iter().filter(is_port).count() > 1 {
            return Err(self.refuse(format!(
                "its container declares port {port} more than once: keep one entry, and use its name in Services and probes"
            )));
        }
        let entry = entries.iter().position(|entry| is_port(&entry));
        if is_assumed && entry.is_none() {
            self.doubt(container, port)?;
        }
        let flag = given.flag.or(self.frontend.server.flag());
        if let Some(word) = flag.and_then(|flag| overriding(self.frontend.server, container, flag))
        {
            self.note.warn(format!(
                "its port may be set again in {word} of its command line, which inject does not read: if so, the frontend does \
                 not listen where crossfade expects it; remove the port there"
            ));
        }
        if is_one_of_several(self.frontend.server, container, &given) {
            self.note.warn(format!(
                "several commands of its script start the server on different ports: only those on port {port} move behind crossfade"
            ));
        }
        if let Some(doubtful) = doubtful_variable(self.frontend.server, container, &given) {
            let Doubtful {
                name,
                by,
                is_in_arguments,
            } = doubtful;
            let advice = match is_in_arguments {
                true => "write the port as a number where the server is started",
                false => "make sure that it does not set the variable",
            };
            self.note.warn(format!(
                "its port is in the variable {name}, which {by} may also set: if so, the frontend does not listen where crossfade \
                 expects it; {advice}"
            ));
        }
        let own = entry.map(|index| &entries[index]);
        let everywhere = self.workload.everywhere(self.root);
        for (path, container) in &everywhere {
            are_decimal(path, container)?;
        }
        let used: Vec<&Json> = everywhere
            .iter()
            .flat_map(|(_, container)| container["ports"].as_array().into_iter().flatten())
            .collect();
        let others = used.iter().filter(|entry| is_port(entry)).count();
        if others > usize::from(own.is_some()) {
            return Err(self.refuse(format!(
                "another container of the pod also uses port {port}"
            )));
        }
        let is_named = |name: &str| {
            let named = used.iter().filter(|entry| entry["name"] == name);
            named
                .filter(|entry| !own.is_some_and(|own| std::ptr::eq(**entry, own)))
                .count()
                > 0
        };
        if is_named(NAME) {
            return Err(self.refuse(format!("the pod already has a port named '{NAME}', which the controller would take for a proxy's")));
        }
        let free = |ports: [u16; 3]| {
            let is_declared = |candidate: u16| {
                let mut used = used.iter().filter(|entry| is_tcp(entry));
                used.any(|entry| entry["containerPort"] == candidate)
            };
            // What mentions the earlier port may mean the frontend itself.
            let is_mentioned = |candidate: u16| {
                self.earlier_port != Some(candidate)
                    && everywhere
                        .iter()
                        .any(|(_, container)| is_mentioned(container, candidate))
            };
            let is_free = |candidate: &u16| {
                *candidate != port && !is_declared(*candidate) && !is_mentioned(*candidate)
            };
            ports.into_iter().find(is_free).ok_or_else(|| {
                self.refuse(format!("the ports {ports:?} of the pod are all in use"))
            })
        };
        let (frontend, admin) = (free(FRONTEND_PORTS)?, free(ADMIN)?);
        if admin != ADMIN[0] {
            self.note.warn(format!(
                "crossfade's admin port is {admin}, because a container uses {}: change the port in NetworkPolicies and in prometheus.io/port",
                ADMIN[0]
            ));
        }
        let name = own.and_then(|own| own["name"].as_str());
        let default = if is_named("http") {
            "http-clients"
        } else {
            "http"
        };
        let name = name.unwrap_or(default).to_owned();
        let declared = entries.iter().find(|entry| entry["name"] == "http");
        if name == default
            && let Some(declared) = declared
        {
            self.note.warn(format!(
                "its container declares port {} as 'http', but it listens on port {port}: clients that use the name 'http' do not \
                 reach crossfade, whose port is named '{name}'; correct the declared port",
                declared["containerPort"]
            ));
        }
        let [taken, also_taken] = FRONTEND_NAMES.map(|other| name == other || is_named(other));
        if taken && also_taken {
            return Err(self.refuse(format!(
                "the pod already has ports named '{}' and '{}': rename one of them",
                FRONTEND_NAMES[0], FRONTEND_NAMES[1]
            )));
        }
        Ok(Ports {
            port,
            host_port: own.and_then(|own| {
                Some(HostPort {
                    port: own["hostPort"].as_u64().filter(|port| *port > 0)?,
                    ip: own["hostIP"].as_str().map(str::to_owned),
                })
            }),
            frontend,
            frontend_name: FRONTEND_NAMES[usize::from(taken)],
            admin,
            entry,
            name,
        })
    }

    /// Rejects, or warns about, a port that is not set in the manifest.
    fn doubt(&mut self, container: &Json, port: u16) -> Result<(), Refused> {
        let server = self.frontend.server.name();
        let declared = container["ports"].as_array().into_iter().flatten();
        let declared = declared.filter(|entry| is_tcp(entry));
        let declared = declared.filter_map(|entry| entry["containerPort"].as_u64());
        let declared: Vec<_> = declared.map(|port| port.to_string()).collect();
        if !declared.is_empty() {
            return Err(self.refuse(format!(
                "cannot tell where it listens: {server} listens on port {port} by default, but the \
                 container declares {}: set the port with --port",
                declared.join(", ")
            )));
        }
        let words = ["command", "args"].into_iter();
        let mut words = words.flat_map(|list| container[list].as_array().into_iter().flatten());
        let has_file = words.any(|word| {
            let word = word.as_str().unwrap_or_default();
            word.split_whitespace()
                .any(|word| word == "--config" || word.starts_with("--config="))
        });
        let unknown = unknown(self.frontend.server, container);
        let elsewhere = match (&unknown, has_file) {
            (_, true) => "its configuration file (--config)",
            (Some(word), false) => &format!("{word} of its command line"),
            _ if container["envFrom"].is_array() => "its envFrom",
            _ => return Ok(()),
        };
        self.note.warn(format!(
            "its port may be set in {elsewhere}, which inject does not read: it assumes {port}, the default of {server}; \
             if that is wrong, set the port with --port"
        ));
        Ok(())
    }

    /// Whether the frontend listens on IPv6. If it does not listen where crossfade connects, a note says so.
    pub(super) fn is_on_ipv6(&mut self, container: &Json) -> bool {
        let Some(host) = host(self.frontend.server, container, &self.given()) else {
            return false;
        };
        match host.as_str() {
            "::" => return true,
            "0.0.0.0" => {}
            // crossfade cannot connect to any other one, such as 127.0.0.2.
            loopback @ ("127.0.0.1" | "localhost" | "::1") => {
                self.note.warn(format!(
                    "it listens on '{host}', which only its own pod can reach. Because crossfade listens on all addresses, every pod \
                     that can reach this one can now send it requests. Probes and the controller cannot reach '{host}': make it \
                     listen on 0.0.0.0, or on :: in an IPv6-only cluster"
                ));
                return loopback == "::1";
            }
            _ => self.note.warn(format!(
                "it listens on '{host}', but crossfade connects to it at 127.0.0.1: make it listen on 0.0.0.0, or on :: in an \
                 IPv6-only cluster"
            )),
        }
        false
    }

    /// Reports an annotation because of which Prometheus would now scrape crossfade instead of the frontend.
    pub(super) fn scraped(&mut self, ports: &Ports) {
        let place = below(&self.workload.annotations, ["prometheus.io/port"]);
        let Some(Json::String(scraped)) = self.editor.get(&place) else {
            return;
        };
        if *scraped == ports.port.to_string() {
            self.note.warn(format!(
                "prometheus.io/port: {scraped} routes to crossfade now: set it to {} for the metrics of the frontend, or to {} \
                 for those of crossfade",
                ports.frontend, ports.admin
            ));
        }
    }
}

/// Whether the command line or a variable of a container contains a port, which it may listen on without declaring it.
pub(super) fn is_mentioned(container: &Json, port: u16) -> bool {
    let lists = ["command", "args"].into_iter();
    let words = lists.flat_map(|list| container[list].as_array().into_iter().flatten());
    let variables = container["env"].as_array().into_iter().flatten();
    let mut texts = words.chain(variables.map(|variable| &variable["value"]));
    texts.any(|text| {
        let text = text.as_str().unwrap_or_default();
        let found = mentions("", text, port);
        found.is_doubtful || !found.ports.is_empty()
    })
}

/// Rejects ports in another notation, such as 0x1F40. Inject compares ports as numbers, and writes decimal ones.
fn are_decimal(path: &Path, container: &Json) -> Result<(), Refused> {
    let entries = container["ports"].as_array().into_iter().flatten();
    for (index, entry) in entries.enumerate() {
        for key in ["containerPort", "hostPort"] {
            let port = &entry[key];
            if !port.is_null() && !port.is_u64() {
                let path = below(&below(path, ["ports"]), [index]);
                let message = format!("{key} must be a decimal number, not {port}");
                return Err(Refused::of(&below(&path, [key]), message));
            }
        }
    }
    Ok(())
}

/// Whether a text is a number in a YAML notation other than decimal, such as `0x1F40`, `8e3` or `8_000`.
pub(super) fn is_other_notation(text: &str) -> bool {
    let is_digit = |c: char| c.is_ascii_digit() || c == '_';
    let has_base = ["0x", "0o", "0b"].iter().any(|base| {
        let digits = text.strip_prefix(base).unwrap_or_default();
        !digits.is_empty() && digits.chars().all(|c| c.is_ascii_hexdigit() || c == '_')
    });
    let is_number = has_base || text.chars().all(is_digit) || text.parse::<f64>().is_ok();
    let is_decimal = |number: u64| number.to_string() == text;
    let is_digits = text.parse().is_ok_and(is_decimal);
    is_number && text.starts_with(|c: char| c.is_ascii_digit()) && !is_digits
}

fn is_tcp(entry: &Json) -> bool {
    entry["protocol"]
        .as_str()
        .is_none_or(|protocol| protocol == "TCP")
}
