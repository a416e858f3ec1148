//! The probes and hooks of a frontend with crossfade in front of it.

use serde_json::{Value as Json, json};

use super::super::workload::PodCreator;
use super::command::{Mentions, exchange, mentions};
use super::ports::is_other_notation;
use super::{HUNG, Injection, Path, Ports, Refused, Step, below, sidecar};

impl Injection<'_, '_> {
    pub(super) fn probes(&mut self, container: &Json, ports: &Ports) -> Result<(), Refused> {
        let by_operator = matches!(self.workload.creator, PodCreator::Operator { .. });
        let has = |probe: &str| container[probe].is_object();
        let readiness = sidecar::readiness(ports.admin);
        let place = self.probe("readinessProbe");
        let ready = "the pod is ready when crossfade is (/readyz), because it can serve requests from either generation";
        if has("readinessProbe") {
            self.editor.set(&place, readiness)?;
            self.note
                .add_detail(format!("readinessProbe: replaced; {ready}"));
        } else if by_operator {
            self.editor.put(&place, readiness)?;
            self.note
                .add_detail(format!("readinessProbe: added; {ready}"));
        }
        let path = self.options.health.as_deref();
        let live = path.unwrap_or(self.frontend.server.live()).to_owned();
        let get = json!({"path": live, "port": ports.frontend});
        let is_wanted = by_operator || path.is_some();
        for (probe, added) in [
            (
                "livenessProbe",
                json!({"httpGet": get, "periodSeconds": 10, "failureThreshold": 3, "terminationGracePeriodSeconds": HUNG}),
            ),
            (
                "startupProbe",
                json!({"httpGet": get, "periodSeconds": 5, "failureThreshold": if by_operator { 60 } else { 720 }, "terminationGracePeriodSeconds": HUNG}),
            ),
        ] {
            let place = self.probe(probe);
            if has(probe) {
                if self.retarget(&place, &container[probe], ports)? {
                    self.note.add_detail(format!(
                        "{probe}: follows the frontend to port {}",
                        ports.frontend
                    ));
                }
                let grace = below(&place, ["terminationGracePeriodSeconds"]);
                if self.editor.get(&grace).is_none() {
                    self.editor.put(&grace, HUNG.into())?;
                    self.note.add_detail(format!(
                        "{probe}: terminationGracePeriodSeconds: {HUNG}, because a frontend that hangs must not wait as long as the pod's streams"
                    ));
                }
            } else if is_wanted {
                self.editor.put(&place, added)?;
                self.note
                    .add_detail(format!("{probe}: added; it probes {live} on the frontend"));
            }
        }
        Ok(())
    }

    /// Directs a probe or hook to the port on which the frontend listens now. Returns whether that changed it.
    fn retarget(&mut self, place: &Path, probe: &Json, ports: &Ports) -> Result<bool, Refused> {
        let mut is_changed = false;
        let by_number = (ports.port.to_string(), ports.frontend.to_string());
        // The operator declares a port 'http' where the manifest declares none.
        let by_operator = matches!(self.workload.creator, PodCreator::Operator { .. });
        let has_name = ports.entry.is_some() || by_operator;
        let by_name = has_name.then(|| (ports.name.clone(), ports.frontend_name.to_owned()));
        for way in ["httpGet", "tcpSocket", "grpc"] {
            let given = match &probe[way]["port"] {
                Json::String(text) => text.clone(),
                Json::Number(number) => number.to_string(),
                _ => continue,
            };
            if is_other_notation(&given) {
                let message = format!("must be a name or a decimal number, not '{given}'");
                return Err(Refused::of(&below(place, [way, "port"]), message));
            }
            let known = [Some(&by_number), by_name.as_ref()].into_iter().flatten();
            if let Some((from, to)) = known.into_iter().find(|(from, _)| *from == given) {
                self.editor.swap(&below(place, [way, "port"]), from, to)?;
                is_changed = true;
            }
        }
        let command = probe["exec"]["command"].as_array();
        let words = command
            .into_iter()
            .flatten()
            .map(|word| word.as_str().unwrap_or_default());
        let words: Vec<_> = words.collect();
        for (index, word) in words.iter().enumerate() {
            let before = index.checked_sub(1).map_or("", |before| words[before]);
            let Mentions {
                ports: places,
                is_doubtful,
            } = mentions(before, word, ports.port);
            if is_doubtful {
                self.note.warn(format!(
                    "the command of its {} contains {}: if that is its port, write {} there",
                    place.last().map_or("probe", name_of),
                    ports.port,
                    ports.frontend
                ));
            }
            if let Some((from, to)) = exchange(word, &places, ports.frontend) {
                let path = below(&below(place, ["exec", "command"]), [index]);
                self.editor.swap(&path, &from, &to)?;
                is_changed = true;
            }
        }
        Ok(is_changed)
    }

    pub(super) fn hooks(&mut self, container: &Json, ports: &Ports) -> Result<(), Refused> {
        let place = self.of(&["lifecycle", "preStop"]);
        let hook = sidecar::pre_stop(ports.admin);
        let was = &container["lifecycle"]["preStop"];
        if was.is_null() {
            self.editor.put(&place, hook)?;
            self.note
                .add_detail("preStop: the frontend stays until its last stream has ended");
        } else if is_sleep(was) || self.options.replace_pre_stop {
            self.editor.set(&place, hook)?;
            let why = "its preStop hook is replaced: crossfade keeps the pod until its streams have ended";
            match is_sleep(was) {
                true => self.note.add_detail(why),
                false => self.note.warn(why),
            }
        } else {
            return Err(self.refuse(
                "it has a preStop hook, which crossfade must replace with its own: allow this with --replace-pre-stop",
            ));
        }
        let post_start = &container["lifecycle"]["postStart"];
        let place = self.of(&["lifecycle", "postStart"]);
        if self.retarget(&place, post_start, ports)? {
            let port = ports.frontend;
            self.note
                .add_detail(format!("postStart: follows the frontend to port {port}"));
        }
        Ok(())
    }
}

fn name_of(step: &Step) -> &str {
    match step {
        Step::Key(key) => key,
        Step::Item(_) => "probe",
    }
}

/// Whether a hook only waits.
fn is_sleep(hook: &Json) -> bool {
    if hook["sleep"].is_object() {
        return true;
    }
    let command = hook["exec"]["command"].as_array().into_iter().flatten();
    let words: Vec<_> = command
        .filter_map(Json::as_str)
        .flat_map(str::split_whitespace)
        .collect();
    let shell = |word: &&str| word.ends_with("sh") || *word == "-c";
    let mut rest = words.iter().skip_while(|word| shell(word));
    let is_sleep = rest
        .next()
        .is_some_and(|word| *word == "sleep" || word.ends_with("/sleep"));
    is_sleep && rest.next().is_some_and(|time| time.parse::<f64>().is_ok()) && rest.next().is_none()
}
