//! The tables of a report: proxies, other proxies, Events.

use std::time::Duration;

use super::Page;
use crate::state_api::v1;
use crate::status::lag::{Lag, lag};
use crate::status::{ProxyAnswer, StatusReport};

/// Minimum width of a proxy's name.
const NAME: usize = 12;
/// Number of Events shown.
const EVENTS: usize = 8;

impl Page {
    pub(super) fn proxies(&mut self, report: &StatusReport) {
        if report.proxies.is_empty() {
            return;
        }
        self.gap();
        let names = report
            .proxies
            .iter()
            .map(|proxy| proxy.name.chars().count());
        let widest = names.max().unwrap_or_default().max(NAME);
        let row = |[name, phase, ready, split, plan, open]: [&str; 6]| {
            format!("{name:<widest$} {phase:<9} {ready:<6} {split:>6} {plan:>10} {open:>13}")
        };
        self.put(
            0,
            &row(["PROXY", "PHASE", "READY", "SPLIT", "PLAN", "OLD/NEW OPEN"]),
        );
        let newest = report.update.as_ref().map(|update| &update.metadata);
        for ProxyAnswer { name, state } in &report.proxies {
            let state = match state {
                Ok(state) => state,
                Err(error) => {
                    self.put(2, &format!("{name:<widest$} {error}"));
                    continue;
                }
            };
            let plan = state.plan.clone().unwrap_or_default();
            let open = [&state.old, &state.new].map(|generation| {
                generation
                    .as_ref()
                    .map_or(0, |generation| generation.open_streams)
                    .to_string()
            });
            let ready = if state.ready { "yes" } else { "no" };
            let split = format!("{}%", plan.percent);
            let phase = state.phase().as_word();
            self.put(
                0,
                &row([name, phase, ready, &split, &applied(&plan), &open.join("/")]),
            );
            if let Some(lag) = describe_lag(lag(&plan, newest), report.since_edit) {
                self.put(2, &format!("  {lag}"));
            }
            if let Some(refusal) = &plan.refusal {
                let problems = refusal.problems.iter();
                let problems: Vec<String> = problems
                    .map(|problem| match problem.path.is_empty() {
                        true => problem.message.clone(),
                        false => format!("{}: {}", problem.path, problem.message),
                    })
                    .collect();
                self.put(
                    4,
                    &format!("  could not apply a newer plan: {}", problems.join("; ")),
                );
            }
            for remark in &plan.remarks {
                self.put(4, &format!("  {remark}"));
            }
            if let Some(lost) = &plan.source_lost_for {
                self.put(
                    2,
                    &format!("  lost contact with its plan source {} s ago", lost.seconds),
                );
            }
        }
    }

    /// Why nothing is known, if no proxy could be queried.
    pub(super) fn unanswered(&mut self, report: &StatusReport) {
        for ProxyAnswer { name, state } in &report.proxies {
            if let Err(error) = state {
                self.put(2, &format!("{name} {error}"));
            }
        }
    }

    pub(super) fn others(&mut self, report: &StatusReport) {
        if report.others.is_empty() {
            return;
        }
        self.gap();
        self.put(0, "OTHER PROXIES OF THE NAMESPACE");
        for other in &report.others {
            let follows = match &other.follows {
                Some(update) => format!("follows {update}"),
                None => "follows no update".to_owned(),
            };
            self.put(2, &format!("{:<38} {follows}", other.name));
        }
    }

    pub(super) fn events(&mut self, report: &StatusReport) {
        if report.events.is_empty() && report.events_unknown.is_none() {
            return;
        }
        self.gap();
        self.put(0, "EVENTS");
        if let Some(why) = &report.events_unknown {
            self.put(2, &format!("  unknown: {why}"));
        }
        for event in &report.events[report.events.len().saturating_sub(EVENTS)..] {
            let mark = if event.warning { "! " } else { "  " };
            let at = if event.at.is_empty() { "-" } else { &event.at };
            self.put(
                4,
                &format!("{mark}{at:<21} {}: {}", event.reason, event.note),
            );
        }
    }
}

/// The plan of a proxy: the edit of its resource, or its own number.
fn applied(plan: &v1::Plan) -> String {
    let resource = plan.resource.as_ref();
    match resource.and_then(|resource| resource.generation) {
        Some(edit) => format!("edit {edit}"),
        None => format!("no. {}", plan.epoch),
    }
}

pub(super) fn describe_lag(lag: Lag, since_edit: Option<Duration>) -> Option<String> {
    match lag {
        Lag::None | Lag::Unknown => None,
        Lag::Deleted => Some("follows a deleted update of the same name".to_owned()),
        Lag::Edits(edits) => {
            let word = if edits == 1 { "edit" } else { "edits" };
            let time = since_edit.map_or_else(String::new, |time| {
                format!(", for at least {} s", time.as_secs())
            });
            Some(format!("is {edits} {word} behind{time}"))
        }
    }
}
