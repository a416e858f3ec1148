//! A report for users, as plain text for a terminal, without escape sequences.

mod recent;
mod rollout;
mod rows;
mod update;

pub use self::rollout::{rollout, rollout_history, rollouts};
use super::StatusReport;
use super::format::{percent, printable, share};
use super::wanted::wanted;
use crate::printable::{are, counted, thousands};
use crate::resource::DynamoUpdateConfig;
use crate::resource::status::DynamoUpdateConfigStatus;
use crate::state_api::{assess, assess_analysis, total, v1};

const SMALL_BAR: usize = 8;
/// From this difference on, the answered share of new is shown next to the assigned one.
const MOVED: f64 = 0.02;
/// The column of values.
const COLUMN: usize = 12;

/// The whole report.
#[must_use]
pub fn text(report: &StatusReport) -> String {
    let mut page = Page(String::new());
    let all = total(report.states());
    if report.update.is_none() && all.is_none() {
        page.unanswered(report);
        return page.0;
    }
    page.title(report);
    let verdict = report.verdict(all.as_ref());
    let summary = match &all {
        Some(all) => Some(assess(all, verdict.as_ref())),
        None => verdict.as_ref().map(assess_analysis),
    };
    if let Some(summary) = summary {
        page.line("summary", &summary.text);
    }
    page.head(report);
    page.line("figures", &report.origin);
    page.split(report, all.as_ref());
    page.generations(report, all.as_ref());
    if let Some(all) = &all {
        page.recovered(all);
    }
    page.proxies(report);
    page.others(report);
    page.events(report);
    page.0
}

/// A list of updates, one per line.
#[must_use]
pub fn list(updates: &[DynamoUpdateConfig]) -> String {
    let mut page = Page(String::new());
    let row = |[name, phase, split, observed]: [&str; 4]| {
        format!("{name:<32} {phase:<12} {split:>7} {observed:>9}")
    };
    page.put(0, &row(["NAME", "PHASE", "SPLIT", "OBSERVED"]));
    for update in updates {
        let status = update.status.clone().unwrap_or_default();
        let name = update.metadata.name.as_deref().unwrap_or_default();
        let phase = status.phase.map(|phase| format!("{phase:?}"));
        let share = |share: Option<f64>| share.map_or("-".to_owned(), percent);
        let observed = status.observed.map(|seen| f64::from(seen.percent) / 100.0);
        let wanted = update.spec.split().map(|split| split.share_of_new());
        let split = [wanted, observed].map(share);
        let phase = phase.as_deref().unwrap_or("-");
        page.put(0, &row([name, phase, &split[0], &split[1]]));
    }
    page.0
}

struct Page(String);

impl Page {
    /// All output goes through here. The further lines of a text are indented below its first line.
    fn put(&mut self, indent: usize, text: &str) {
        for (index, line) in text.lines().enumerate() {
            if index > 0 {
                self.0 += &" ".repeat(indent);
            }
            self.0 += printable(line).trim_end();
            self.0.push('\n');
        }
    }

    fn line(&mut self, name: &str, value: &str) {
        self.put(COLUMN, &format!("{name:<COLUMN$}{value}"));
    }

    fn gap(&mut self) {
        self.0.push('\n');
    }

    fn split(&mut self, report: &StatusReport, all: Option<&v1::State>) {
        self.gap();
        let wanted = wanted(report, all);
        self.line("split", &format!("wanted    {}", share(wanted.share)));
        if let Some(remark) = &wanted.remark {
            self.line("", &format!("          {remark}"));
        }
        let last = all.and_then(|all| all.assigned_last_minute.as_ref());
        let reported = report
            .update
            .as_ref()
            .and_then(|update| update.status.as_ref()?.observed);
        let observed = match (last, reported) {
            (Some(last), _) => format!(
                "{}   {} of {} in 60 s",
                share(last.share_of_new()),
                thousands(last.new),
                counted(last.old.saturating_add(last.new), "request")
            ),
            (None, Some(reported)) => share(Some(f64::from(reported.percent) / 100.0)),
            (None, None) => share(None),
        };
        self.line("", &format!("observed  {observed}"));
        let answered = all.and_then(|all| all.answered_last_minute.as_ref());
        let shares = [answered, last].map(|requests| requests.and_then(v1::Requests::share_of_new));
        if let (Some(answered), [Some(by), Some(assigned)]) = (answered, shares)
            && (by - assigned).abs() > MOVED
        {
            let shown = all;
            let all = thousands(answered.new + answered.old);
            let (by, new) = (share(Some(by)), thousands(answered.new));
            // The shares also differ while many requests wait for their first response.
            let failed_over =
                shown.is_some_and(|all| all.recovered_requests.values().any(|count| *count > 0));
            let remark = if failed_over { ", after failover" } else { "" };
            self.line("", &format!("answered  {by}   {new} of {all}{remark}"));
        }
    }

    fn generations(&mut self, report: &StatusReport, all: Option<&v1::State>) {
        self.gap();
        self.row("", ["OLD", "NEW"].map(str::to_owned));
        if let Some(status) = report
            .update
            .as_ref()
            .and_then(|update| update.status.as_ref())
        {
            self.workers(status);
            if all.is_none() {
                let generations = [&status.old, &status.new];
                self.row(
                    "open streams",
                    generations.map(|generation| {
                        let open = generation
                            .as_ref()
                            .and_then(|generation| generation.open_streams);
                        open.map_or("-".to_owned(), |open| thousands(open.unsigned_abs()))
                    }),
                );
            }
        }
        let Some(all) = all else {
            return;
        };
        let generations = [all.old.clone(), all.new.clone()].map(Option::unwrap_or_default);
        self.row(
            "open streams",
            generations
                .each_ref()
                .map(|generation| thousands(generation.open_streams)),
        );
        self.row(
            "addresses",
            generations.each_ref().map(|generation| {
                let addresses = generation.endpoints.unwrap_or_default();
                format!("{} of {}", addresses.healthy, addresses.known)
            }),
        );
        let ends = generations
            .each_ref()
            .map(|generation| generation.outcomes.unwrap_or_default());
        self.row("completed", ends.map(|ends| thousands(ends.completed)));
        self.row("truncated", ends.map(|ends| thousands(ends.truncated)));
        self.row("failed", ends.map(|ends| thousands(ends.failed)));
        self.row("cancelled", ends.map(|ends| thousands(ends.cancelled)));
        self.recent(generations.each_ref());
    }

    fn workers(&mut self, status: &DynamoUpdateConfigStatus) {
        let generations =
            [&status.old, &status.new].map(|generation| generation.clone().unwrap_or_default());
        let value = generations
            .each_ref()
            .map(|generation| generation.workers.clone().unwrap_or("-".into()));
        self.row("workers", value);
        let mut roles: Vec<&String> = generations
            .iter()
            .flat_map(|generation| generation.roles.keys())
            .collect();
        roles.sort();
        roles.dedup();
        for role in roles {
            let value = generations.each_ref().map(|generation| {
                let role = generation.roles.get(role);
                role.map_or("-".to_owned(), |role| {
                    format!("{}/{}", role.ready, role.desired)
                })
            });
            self.row(&format!("  {}", printable(role)), value);
        }
    }

    fn row(&mut self, name: &str, [old, new]: [String; 2]) {
        self.put(0, &format!("{name:<18}{old:>15}{:7}{new:>15}", ""));
    }

    fn recovered(&mut self, all: &v1::State) {
        self.gap();
        let by_cause = |counts: &std::collections::BTreeMap<String, u64>| {
            let causes: Vec<String> = counts
                .iter()
                .map(|(cause, n)| format!("{} {}", thousands(*n), cause.replace('_', " ")))
                .collect();
            let sum = thousands(
                counts
                    .values()
                    .fold(0, |sum, count| sum.saturating_add(*count)),
            );
            match causes.is_empty() {
                true => sum,
                false => format!("{sum} ({})", causes.join(", ")),
            }
        };
        let mut recovered = by_cause(&all.recovered_requests);
        if all.retries_refused > 0 {
            let refused = thousands(all.retries_refused);
            recovered += &format!("; the retry budget denied {refused} more");
        }
        self.line("recovered", &recovered);
        if let Some(all) = &all.continuations {
            self.continuations(all, &by_cause);
        }
        self.line("rejected", &by_cause(&all.rejected_requests));
    }

    /// Streams that another server continued. Omitted if no plan enables continuation and no stream was continued.
    fn continuations(
        &mut self,
        all: &v1::Continuations,
        by_cause: &dyn Fn(&std::collections::BTreeMap<String, u64>) -> String,
    ) {
        let is_off = all.mode() == v1::ContinuationMode::Off;
        if is_off && all.count() == 0 {
            return;
        }
        let mut continued = by_cause(&all.continued);
        if !all.not_continued.is_empty() {
            continued += &format!("; not continued {}", by_cause(&all.not_continued));
        }
        self.line("continued", &continued);
        if all.moving > 0 {
            let are = are(all.moving);
            let moving = counted(all.moving, "stream");
            self.line(
                "moving",
                &format!("{moving} on old {are} waiting to move to new"),
            );
        }
        let proofs = [("old", all.old), ("new", all.new)].map(|(generation, proofs)| {
            let proofs = proofs.unwrap_or_default();
            let models = [proofs.supported, proofs.unsupported, proofs.unknown];
            let models: u64 = models.into_iter().map(u64::from).sum();
            format!("{generation} {} of {models}", proofs.supported)
        });
        if !is_off {
            let proven = proofs.join(", ");
            self.line(
                "",
                &format!("known to support continuation: {proven} (per endpoint and model)"),
            );
        }
    }
}

#[cfg(test)]
mod tests;
