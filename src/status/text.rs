//! A look for people, as text of a terminal's width.
//!
//! Must not know a terminal: no escape codes.

use std::fmt::Write;

use super::{Asked, Happened, Look};
use crate::resource::DynamoUpdateConfig;
use crate::resource::status::DynamoUpdateConfigStatus;
use crate::state_api::{total, v1};

// So that the line of the observed split fits 80 columns.
const BAR: usize = 12;
const SMALL_BAR: usize = 8;
/// The least width of a proxy's name.
const NAME: usize = 12;
/// Events that are shown.
const EVENTS: usize = 8;

/// All of it.
#[must_use]
pub fn text(look: &Look) -> String {
    let mut page = Page(String::new());
    let all = total(look.states());
    page.head(look);
    page.line("figures", &look.origin);
    page.split(look, all.as_ref());
    page.sides(look, all.as_ref());
    if let Some(all) = &all {
        page.saves(all);
    }
    page.proxies(look);
    page.events(&look.events);
    page.0
}

/// Several updates, a line each.
#[must_use]
pub fn list(updates: &[DynamoUpdateConfig]) -> String {
    let mut text = format!(
        "{:<32} {:<12} {:>6} {:>9}\n",
        "NAME", "PHASE", "SPLIT", "OBSERVED"
    );
    for update in updates {
        let status = update.status.clone().unwrap_or_default();
        let name = update.metadata.name.as_deref().unwrap_or_default();
        let phase = status
            .phase
            .map_or("-".to_owned(), |phase| format!("{phase:?}"));
        let percent = |percent: Option<u8>| percent.map_or("-".to_owned(), |n| format!("{n} %"));
        let _ = writeln!(
            text,
            "{name:<32} {phase:<12} {:>6} {:>9}",
            percent(update.spec.traffic_split_percent),
            percent(status.observed.map(|observed| observed.percent)),
        );
    }
    text
}

struct Page(String);

impl Page {
    fn line(&mut self, name: &str, value: &str) {
        let _ = writeln!(self.0, "{name:<12}{value}");
    }

    fn gap(&mut self) {
        self.0.push('\n');
    }

    fn head(&mut self, look: &Look) {
        let Some(update) = &look.update else {
            return;
        };
        let meta = &update.metadata;
        let [name, namespace] = [&meta.name, &meta.namespace].map(|text| text.as_deref());
        let generation = meta.generation.unwrap_or_default();
        let namespace = namespace.unwrap_or_default();
        let named = format!(
            "{} in namespace {namespace}, edit {generation} of it",
            name.unwrap_or_default()
        );
        self.line("update", &named);
        let Some(status) = &update.status else {
            return self.line("phase", "not known: no controller has written a status");
        };
        if let Some(phase) = status.phase {
            self.line("phase", &format!("{phase:?}"));
        }
        if let Some(message) = &status.message {
            self.line("", message);
        }
        if let Some(seconds) = status.estimated_drain_seconds {
            self.line("drain", &format!("about {seconds} s more"));
        }
        if status.safe_to_delete_old == Some(true) {
            self.line("old", "can be deleted");
        }
    }

    fn split(&mut self, look: &Look, all: Option<&v1::State>) {
        let spec = look.update.as_ref().map(|update| &update.spec);
        let of_spec = spec.and_then(|spec| match (spec.weights, spec.traffic_split_percent) {
            (Some(weights), _) => {
                let sum = f64::from(weights.old) + f64::from(weights.new);
                (sum > 0.0).then(|| f64::from(weights.new) / sum)
            }
            (None, percent) => percent.map(|percent| f64::from(percent) / 100.0),
        });
        let of_proxies = all.and_then(|all| all.plan.as_ref()?.share_of_new());
        self.gap();
        let wanted = share(of_spec.or(of_proxies));
        let agree = all.is_none_or(|all| all.plan.is_some());
        let remark = if agree {
            ""
        } else {
            "   the proxies have different plans"
        };
        self.line("split", &format!("wanted    {wanted}{remark}"));
        let last = all.and_then(|all| all.assigned_last_minute.as_ref());
        let told = look
            .update
            .as_ref()
            .and_then(|update| update.status.as_ref()?.observed);
        let observed = match (last, told) {
            (Some(last), _) => format!(
                "{}   {} of {} requests in 60 s",
                share(last.share_of_new()),
                count(last.new),
                count(last.old + last.new)
            ),
            (None, Some(told)) => share(Some(f64::from(told.percent) / 100.0)),
            (None, None) => share(None),
        };
        self.line("", &format!("observed  {observed}"));
    }

    fn sides(&mut self, look: &Look, all: Option<&v1::State>) {
        self.gap();
        self.row("", ["OLD", "NEW"].map(str::to_owned));
        if let Some(status) = look
            .update
            .as_ref()
            .and_then(|update| update.status.as_ref())
        {
            self.workers(status);
            if all.is_none() {
                let sides = [&status.old, &status.new];
                self.row(
                    "open streams",
                    sides.map(|side| {
                        let open = side.as_ref().and_then(|side| side.open_streams);
                        open.map_or("-".to_owned(), |open| open.to_string())
                    }),
                );
            }
        }
        let Some(all) = all else {
            return;
        };
        let sides = [all.old.clone(), all.new.clone()].map(Option::unwrap_or_default);
        self.row(
            "open streams",
            sides.each_ref().map(|side| count(side.open_streams)),
        );
        self.row(
            "addresses",
            sides.each_ref().map(|side| {
                let addresses = side.endpoints.unwrap_or_default();
                format!("{} of {}", addresses.healthy, addresses.known)
            }),
        );
        let ends = sides
            .each_ref()
            .map(|side| side.outcomes.unwrap_or_default());
        self.row("completed", ends.map(|ends| count(ends.completed)));
        self.row("truncated", ends.map(|ends| count(ends.truncated)));
        self.row("failed", ends.map(|ends| count(ends.failed)));
        self.row("cancelled", ends.map(|ends| count(ends.cancelled)));
        self.times(
            "first token",
            sides.each_ref().map(|side| side.first_event.as_ref()),
        );
        self.times("token gap", sides.each_ref().map(|side| side.gap.as_ref()));
    }

    fn workers(&mut self, status: &DynamoUpdateConfigStatus) {
        let sides = [&status.old, &status.new].map(|side| side.clone().unwrap_or_default());
        let told = sides
            .each_ref()
            .map(|side| side.workers.clone().unwrap_or("-".into()));
        self.row("workers", told);
        let mut roles: Vec<&String> = sides.iter().flat_map(|side| side.roles.keys()).collect();
        roles.sort();
        roles.dedup();
        for role in roles {
            let told = sides.each_ref().map(|side| {
                let role = side.roles.get(role);
                role.map_or("-".to_owned(), |role| {
                    format!("{}/{}", role.ready, role.desired)
                })
            });
            self.row(&format!("  {role}"), told);
        }
    }

    fn row(&mut self, name: &str, [old, new]: [String; 2]) {
        let _ = writeln!(self.0, "{name:<18}{old:>12}{:10}{new:>12}", "");
    }

    fn times(&mut self, name: &str, sides: [Option<&v1::Histogram>; 2]) {
        let at = |q| sides.map(|side| side.and_then(|times| times.quantile(q)));
        let most = at(0.99).into_iter().flatten().fold(0.0, f64::max);
        for (quantile, q) in [("p50", 0.5), ("p95", 0.95), ("p99", 0.99)] {
            let cells = at(q).map(|seconds| {
                let filled = seconds.unwrap_or_default() / most.max(f64::MIN_POSITIVE);
                (duration(seconds), bar(filled, SMALL_BAR))
            });
            let [(old, old_bar), (new, new_bar)] = cells;
            let name = if q == 0.5 { name } else { "" };
            let line = format!("{name:<13}{quantile:<5}{old:>12} {old_bar} {new:>12} {new_bar}");
            let _ = writeln!(self.0, "{}", line.trim_end());
        }
    }

    fn saves(&mut self, all: &v1::State) {
        self.gap();
        let by_cause = |counts: &std::collections::BTreeMap<String, u64>| {
            let causes: Vec<String> = counts
                .iter()
                .map(|(cause, n)| format!("{} {}", count(*n), cause.replace('_', " ")))
                .collect();
            let sum = count(counts.values().sum());
            match causes.is_empty() {
                true => sum,
                false => format!("{sum} ({})", causes.join(", ")),
            }
        };
        let refused = count(all.retries_refused);
        let saves = by_cause(&all.saves);
        self.line(
            "saved",
            &format!("{saves}; {refused} more were not allowed by the retry budget"),
        );
        self.line("refused", &by_cause(&all.rejected_requests));
    }

    fn proxies(&mut self, look: &Look) {
        if look.proxies.is_empty() {
            return;
        }
        self.gap();
        let meta = look.update.as_ref().map(|update| &update.metadata);
        let newest = meta.and_then(|meta| meta.generation);
        let names = look.proxies.iter().map(|asked| asked.name.chars().count());
        let widest = names.max().unwrap_or_default().max(NAME);
        let _ = writeln!(
            self.0,
            "{:<widest$} {:<9} {:<6} {:>6} {:>10} {:>11}",
            "PROXY", "PHASE", "READY", "SPLIT", "PLAN", "OPEN O/N"
        );
        for Asked { name, state } in &look.proxies {
            let Ok(state) = state.as_ref().map_err(|error| {
                let _ = writeln!(self.0, "{name:<widest$} {error}");
            }) else {
                continue;
            };
            let plan = state.plan.clone().unwrap_or_default();
            let open = [&state.old, &state.new].map(|side| {
                side.as_ref()
                    .map_or(0, |side| side.open_streams)
                    .to_string()
            });
            let _ = writeln!(
                self.0,
                "{name:<widest$} {:<9} {:<6} {:>6} {:>10} {:>11}",
                state.phase().as_word(),
                if state.ready { "yes" } else { "no" },
                format!("{} %", plan.percent),
                applied(&plan, newest),
                open.join("/"),
            );
            if let Some(refusal) = &plan.refusal {
                let problems = refusal.problems.iter();
                let problems: Vec<String> = problems
                    .map(|problem| format!("{}: {}", problem.path, problem.message))
                    .collect();
                let _ = writeln!(self.0, "  refused a newer plan: {}", problems.join("; "));
            }
            if let Some(lost) = &plan.source_lost_for {
                let _ = writeln!(self.0, "  has not heard of its plan for {} s", lost.seconds);
            }
        }
    }

    fn events(&mut self, events: &[Happened]) {
        if events.is_empty() {
            return;
        }
        self.gap();
        self.0.push_str("EVENTS\n");
        for event in &events[events.len().saturating_sub(EVENTS)..] {
            let mark = if event.warning { "! " } else { "  " };
            let at = if event.at.is_empty() { "-" } else { &event.at };
            let _ = writeln!(self.0, "{mark}{at:<21} {}: {}", event.reason, event.note);
        }
    }
}

/// Which plan a proxy has: the edit of the resource and how far behind it is, or a number of its own.
fn applied(plan: &v1::Plan, newest: Option<i64>) -> String {
    let edit = plan
        .resource
        .as_ref()
        .and_then(|resource| resource.generation);
    match (edit, newest) {
        (Some(edit), Some(newest)) if edit < newest => format!("{} behind", newest - edit),
        (Some(edit), _) => format!("edit {edit}"),
        (None, _) => format!("no. {}", plan.epoch),
    }
}

fn share(share: Option<f64>) -> String {
    match share {
        None => format!("{:>7}  {}", "-", bar(0.0, BAR)),
        Some(share) => format!("{:>5.1} %  {}", share * 100.0, bar(share, BAR)),
    }
}

/// A bar of `width` cells of which this share is filled.
fn bar(share: f64, width: usize) -> String {
    let filled = ((share.clamp(0.0, 1.0) * width as f64).round() as usize).min(width);
    "█".repeat(filled) + &"░".repeat(width - filled)
}

fn duration(seconds: Option<f64>) -> String {
    match seconds {
        None => "-".to_owned(),
        Some(seconds) if seconds < 1.0 => format!("{:.1} ms", seconds * 1000.0),
        Some(seconds) => format!("{seconds:.2} s"),
    }
}

/// With commas between thousands.
fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thousands_are_told_apart_and_bars_fill_to_their_share() {
        assert_eq!(count(0), "0");
        assert_eq!(count(999), "999");
        assert_eq!(count(1_234_567), "1,234,567");
        assert_eq!(bar(0.5, 4), "██░░");
        assert_eq!(bar(7.0, 2), "██");
    }

    #[test]
    fn a_look_at_proxies_fits_a_terminal_of_80_columns() {
        let side = v1::Generation {
            open_streams: 1234,
            first_event: Some(v1::Histogram {
                bounds: vec![0.1, 1.0],
                cumulative_counts: vec![5, 9],
                count: 9,
                sum: 3.0,
            }),
            ..Default::default()
        };
        let state = v1::State {
            plan: Some(v1::Plan {
                weights: Some(v1::Weights { old: 1, new: 1 }),
                ..Default::default()
            }),
            assigned_last_minute: Some(v1::Requests {
                old: 5678,
                new: 5678,
            }),
            old: Some(side.clone()),
            new: Some(side),
            ..Default::default()
        };
        let asked = |name: &str| Asked {
            name: name.to_owned(),
            state: Ok(state.clone()),
        };
        let told = text(&Look {
            proxies: vec![asked("192.168.100.200:9464"), asked("[fd00::1]:9464")],
            ..Look::default()
        });
        assert!(told.contains("192.168.100.200:9464 unknown"), "{told}");
        let widest = told.lines().map(|line| line.chars().count()).max();
        assert!(widest <= Some(80), "{widest:?}\n{told}");
    }

    #[test]
    fn a_proxy_that_has_not_applied_the_last_edit_is_said_to_be_behind() {
        let plan = |generation| v1::Plan {
            epoch: 9,
            resource: Some(v1::Resource {
                generation,
                ..Default::default()
            }),
            ..Default::default()
        };
        assert_eq!(applied(&plan(Some(3)), Some(5)), "2 behind");
        assert_eq!(applied(&plan(Some(5)), Some(5)), "edit 5");
        assert_eq!(applied(&plan(None), Some(5)), "no. 9");
    }
}
