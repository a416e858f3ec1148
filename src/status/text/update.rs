//! What a report says about an update itself: its name, its settings, and what the controller has found out.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use k8s_openapi::jiff::Timestamp;

use super::Page;
use crate::printable::thousands;
use crate::resource::is_lifted;
use crate::resource::status::{DynamoUpdateConfigStatus, FlagState, condition};
use crate::status::StatusReport;

impl Page {
    pub(super) fn title(&mut self, report: &StatusReport) {
        let Some(update) = &report.update else {
            return;
        };
        let meta = &update.metadata;
        let [name, namespace] = [&meta.name, &meta.namespace].map(|text| text.as_deref());
        let generation = meta.generation.unwrap_or_default();
        let namespace = namespace.unwrap_or_default();
        let named = format!(
            "{} in namespace {namespace}, edit {generation}",
            name.unwrap_or_default()
        );
        self.line("update", &named);
    }

    pub(super) fn head(&mut self, report: &StatusReport) {
        let Some(update) = &report.update else {
            return;
        };
        if update.spec.paused == Some(true) {
            self.line(
                "paused",
                "the split is held manually; `crossfade resume` returns it to the controller",
            );
        }
        if let Some(cap) = update.spec.max_traffic_split_percent {
            let lifted = update
                .status
                .as_ref()
                .and_then(|status| status.lifted_cap_percent);
            let all_to_new = update.spec.split().is_some_and(|split| split.is_all_new());
            let value = match is_lifted(Some(cap), lifted, all_to_new) {
                true => {
                    format!("{cap}%, lifted: no worker of old is ready, so new gets everything")
                }
                false => format!("new gets at most {cap}%"),
            };
            self.line("cap", &value);
        }
        match &update.status {
            Some(status) => {
                self.phase(status, update.metadata.generation);
                self.deletion_flags(
                    status,
                    update.metadata.generation,
                    report.at.unwrap_or(Timestamp::MAX),
                );
            }
            None => self.line("phase", "unknown: no controller has written a status"),
        }
    }

    fn phase(&mut self, status: &DynamoUpdateConfigStatus, newest: Option<i64>) {
        if let Some(phase) = status.phase {
            let rule = status.rule.as_ref();
            let rule = rule.map_or_else(String::new, |rule| format!(", by rule {rule}"));
            self.line("phase", &format!("{phase:?}{rule}"));
        }
        if let Some(message) = &status.message {
            self.line("", message);
        }
        let seen = status.observed_generation;
        if let Some((seen, newest)) = seen.zip(newest).filter(|(seen, newest)| seen < newest) {
            self.line(
                "",
                &format!("as of edit {seen}: the controller has not observed edit {newest} yet"),
            );
        }
        // The conditions for generic tools only repeat the others.
        let for_tools = [condition::READY, condition::RECONCILING, condition::STALLED];
        let is_for_people = |one: &&Condition| !for_tools.contains(&one.type_.as_str());
        let holding = status.conditions.iter().filter(is_for_people);
        let holding = holding.filter(|one| one.status == "True");
        let holding: Vec<String> = holding
            .map(|one| match one.reason == one.type_ {
                true => one.type_.clone(),
                false => format!("{} ({})", one.type_, one.reason),
            })
            .collect();
        if !holding.is_empty() {
            self.line("conditions", &holding.join(", "));
        }
        let mut conditions = status.conditions.iter();
        let degraded =
            conditions.find(|one| one.type_ == condition::DEGRADED && one.status == "True");
        if let Some(degraded) = degraded.filter(|one| status.message.as_ref() != Some(&one.message))
        {
            self.line("degraded", &degraded.message);
        }
        if let Some(seconds) = status.estimated_drain_seconds {
            self.line(
                "drain",
                &format!("about {} s remaining", thousands(seconds.unsigned_abs())),
            );
        }
    }

    /// The flags about old in the status, while they are valid.
    fn deletion_flags(
        &mut self,
        status: &DynamoUpdateConfigStatus,
        generation: Option<i64>,
        now: Timestamp,
    ) {
        let deletion = status.old_may_be_deleted(generation, now);
        let last_worker = status.last_old_worker_may_go(generation, now);
        if deletion == Some(FlagState::True) {
            self.line("old", "can be deleted");
        } else if [deletion, last_worker].contains(&Some(FlagState::Expired)) {
            let at = status.observed_at.as_ref();
            let at = at.map_or_else(|| "an unknown time".to_owned(), |at| at.0.to_string());
            self.line(
                "old",
                &format!(
                    "unknown whether it can be deleted: last confirmed at {at}; check that the controller is running"
                ),
            );
        } else {
            if last_worker == Some(FlagState::True) {
                self.line(
                    "old",
                    "its last worker can be removed, but not its frontends",
                );
            }
            for missing in &status.missing_for_deletion {
                self.line("", &format!("cannot be deleted: {missing}"));
            }
        }
    }
}
