//! Compares both generations based on the counts of proxies.

mod report;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

pub use self::report::{AnalysisReport, no_report};
use crate::analysis::{self, Accumulator, Margins, Memory, Report};
use crate::state_api::v1;

/// The response of one proxy.
#[derive(Clone, Debug)]
pub struct ComparisonAnswer {
    /// Its pod or its address.
    pub name: String,
    /// `None` if it is too old to report counts; an error if it did not respond.
    pub answer: Result<Option<v1::Comparison>, String>,
    /// Its plan, if requested: proxies without a common source may have different plans.
    pub plan: Option<v1::Plan>,
}

/// The analysis of `crossfade judge`, over many looks.
#[derive(Debug)]
pub struct CommandAnalysis {
    margins: Margins,
    memory: Memory,
    accumulator: Accumulator,
    /// The last series of each proxy: one for each new generation.
    series: BTreeMap<String, u64>,
}

/// The margins in the plans of these proxies: each once, with the name of the first proxy that has it. A proxy without an
/// analysis, or too old to report one, has the defaults.
#[must_use]
pub fn margins(answers: &[ComparisonAnswer]) -> Vec<(&str, Margins)> {
    let mut all: Vec<(&str, Margins)> = Vec::new();
    for (name, reported) in answers.iter().filter_map(comparison) {
        let margins = reported.margins.as_ref();
        let margins = margins
            .and_then(v1::Margins::to_analysis)
            .unwrap_or_default();
        if all.iter().all(|(_, known)| *known != margins) {
            all.push((name, margins));
        }
    }
    all
}

impl CommandAnalysis {
    #[must_use]
    pub fn new(margins: Margins) -> Self {
        Self {
            margins,
            memory: Memory::default(),
            accumulator: Accumulator::default(),
            series: BTreeMap::new(),
        }
    }

    /// Analyses what the proxies remember of the last minutes.
    #[must_use]
    pub fn past(&mut self, answers: &[ComparisonAnswer]) -> AnalysisReport {
        let answers = distinct(answers);
        let past = answers.iter().copied().filter_map(comparison);
        let past = past.map(|(_, reported)| reported.past()).collect();
        let report = analysis::replay(&mut self.memory, &self.margins, past);
        self.report(report, &answers)
    }

    /// Adds what the proxies have counted until `now`, from any monotonic clock, and analyses everything since the first look, or
    /// since a proxy's plan named a different new generation.
    #[must_use]
    pub fn observe(&mut self, answers: &[ComparisonAnswer], now: Duration) -> AnalysisReport {
        let answers = distinct(answers);
        let reported: Vec<_> = answers.iter().copied().filter_map(comparison).collect();
        let begun = reported
            .iter()
            .filter(|(name, reported)| self.begins_series(name, reported));
        if begun.count() > 0 {
            self.memory = Memory::default();
            self.accumulator = Accumulator::default();
        }
        let readings = reported
            .iter()
            .filter_map(|(name, reported)| reported.reading(name));
        let [counts] = self.accumulator.since_last(readings, now, [Duration::ZERO]);
        let report = self.memory.look(&self.margins, counts, now);
        self.report(report, &answers)
    }

    /// Whether the plan of this proxy names a different new generation than at the last comparison.
    fn begins_series(&mut self, name: &str, reported: &v1::Comparison) -> bool {
        let started = reported
            .process
            .as_ref()
            .and_then(|process| process.started);
        let started = started.unwrap_or_default();
        let process = format!("{name} {}.{}", started.seconds, started.nanos);
        let last = self.series.insert(process, reported.series);
        last.is_some_and(|last| last != reported.series)
    }

    fn report(&self, report: Report, answers: &[&ComparisonAnswer]) -> AnalysisReport {
        let silent = answers.iter().filter_map(|proxy| match &proxy.answer {
            Ok(Some(_)) => None,
            Ok(None) => Some(format!("{}: too old to be compared", proxy.name)),
            Err(why) => Some(format!("{}: {why}", proxy.name)),
        });
        let targets = answers.iter().copied().filter_map(comparison);
        let targets = targets.map(|(_, reported)| BTreeSet::from_iter(&reported.new_targets));
        // Older proxies do not report it.
        let targets: BTreeSet<_> = targets.filter(|targets| !targets.is_empty()).collect();
        let mut reported = answers.iter().copied().filter_map(comparison);
        let rolled_back = reported.find(|(_, reported)| !reported.rolled_back.is_empty());
        // With other margins, it may not have failed.
        let mut reported = answers.iter().copied().filter_map(comparison);
        let failed = reported.find(|(_, reported)| {
            let margins = reported.margins.as_ref().and_then(v1::Margins::to_analysis);
            !reported.failed.is_empty() && margins == Some(self.margins)
        });
        AnalysisReport {
            report,
            needed: self.margins.min_samples,
            queried: answers.len(),
            silent: silent.collect(),
            differ: targets.len() > 1,
            disagree: disagreement(answers),
            rolled_back: rolled_back.map(|(_, reported)| reported.rolled_back.clone()),
            failed: failed.map(|(_, reported)| reported.failed.clone()),
        }
    }
}

/// One response per process: a process that was asked at two addresses must not count twice.
fn distinct(answers: &[ComparisonAnswer]) -> Vec<&ComparisonAnswer> {
    let mut seen = BTreeSet::new();
    let is_first = |proxy: &&ComparisonAnswer| {
        let process = comparison(proxy).and_then(|(_, reported)| reported.process.as_ref());
        let started = process.and_then(|process| Some((&*process.name, process.started?)));
        seen.insert(match started {
            Some((host, at)) => Err((host.to_owned(), at.seconds, at.nanos)),
            None => Ok(proxy.name.clone()),
        })
    };
    answers.iter().filter(is_first).collect()
}

/// What each proxy does, unless all have the same plan. If not, the figures belong to different splits or updates.
fn disagreement(answers: &[&ComparisonAnswer]) -> Vec<String> {
    let have_plan = |proxy: &&&ComparisonAnswer| proxy.plan.is_some();
    let answers: Vec<_> = answers.iter().filter(have_plan).collect();
    let mut plans = answers.iter().filter_map(|proxy| proxy.plan.as_ref());
    let Some(first) = plans.next() else {
        return Vec::new();
    };
    match plans.all(|plan| is_same_plan(first, plan)) {
        true => Vec::new(),
        false => answers
            .into_iter()
            .filter_map(|proxy| described(proxy))
            .collect(),
    }
}

fn is_same_plan(one: &v1::Plan, other: &v1::Plan) -> bool {
    let share = |plan: &v1::Plan| {
        let weights = plan.weights.unwrap_or_default();
        (u64::from(weights.old), u64::from(weights.new))
    };
    let ((old, new), (other_old, other_new)) = (share(one), share(other));
    let targets = |plan: &v1::Plan| BTreeSet::from_iter(plan.new_targets.iter().cloned());
    // Plans from flags have no name.
    let names = update_of(one).zip(update_of(other));
    old * other_new == new * other_old
        && targets(one) == targets(other)
        && names.is_none_or(|(one, other)| one == other)
}

fn update_of(plan: &v1::Plan) -> Option<&str> {
    plan.resource.as_ref()?.name.as_deref()
}

fn described(proxy: &ComparisonAnswer) -> Option<String> {
    let plan = proxy.plan.as_ref()?;
    let update = update_of(plan).map(|name| format!(", by update {name}"));
    Some(format!(
        "{} sends {}% to new at {}{}",
        proxy.name,
        plan.percent,
        plan.new_targets.join(","),
        update.unwrap_or_default(),
    ))
}

fn comparison(proxy: &ComparisonAnswer) -> Option<(&str, &v1::Comparison)> {
    let reported = proxy.answer.as_ref().ok()?.as_ref()?;
    Some((&proxy.name, reported))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::{Attempts, Counts, GenerationCounts, Stratum, Verdict};

    fn reported(
        started: [u64; 2],
        failed: u64,
        uptime: i64,
        ages: &[(i64, u64)],
    ) -> v1::Comparison {
        let counts = |share: u64, age: i64| {
            let generation = |started, failed| {
                GenerationCounts::from(Attempts {
                    started: started * share,
                    ended: started * share,
                    completed: (started - failed) * share,
                    decided: started * share,
                    failed: failed * share,
                    ..Attempts::default()
                })
            };
            let stratum = Stratum {
                class: "chat".into(),
                size: 1,
            };
            let generations = [generation(started[0], 0), generation(started[1], failed)];
            let age = prost_types::Duration {
                seconds: age,
                nanos: 0,
            };
            v1::Counts::new(age, &Counts([(stratum, generations)].into()))
        };
        v1::Comparison {
            series: 1,
            series_age: None,
            new_targets: Vec::new(),
            margins: None,
            rolled_back: String::new(),
            failed: String::new(),
            process: Some(v1::Process {
                started: Some(prost_types::Timestamp::default()),
                uptime: Some(prost_types::Duration {
                    seconds: uptime,
                    nanos: 0,
                }),
                ..Default::default()
            }),
            counts: ages
                .iter()
                .map(|(age, share)| counts(*share, *age))
                .collect(),
        }
    }

    fn answer(name: &str, answer: Result<Option<v1::Comparison>, String>) -> ComparisonAnswer {
        ComparisonAnswer {
            name: name.to_owned(),
            answer,
            plan: None,
        }
    }

    #[test]
    fn the_past_is_analysed_at_once_and_silent_proxies_are_named() {
        let past = [(120, 1), (60, 2), (0, 3)];
        let answers = [
            answer("a", Ok(Some(reported([900, 100], 5, 500, &past)))),
            answer("b", Ok(None)),
            answer("c", Err("cannot be reached".to_owned())),
        ];
        let analysed = CommandAnalysis::new(Margins::default()).past(&answers);
        assert_eq!(analysed.report.verdict.as_str(), "fail");
        let text = analysed.text();
        for part in [
            "fail: New fails 5.0% of its requests, and old fails 0.0% (200 and 1,800 requests in 2 min).\n",
            "failed requests              0.0%      5.0%  +5.0 points",
            "fail\nfirst token, p50                -         -            -        0.0%  no data\n",
            "\n1 of 3 proxies\n  b: too old to be compared\n  c: cannot be reached\n",
        ] {
            assert!(text.contains(part), "{part:?} is not in\n{text}");
        }
        let json = analysed.json();
        assert_eq!(json["verdict"], "fail");
        assert_eq!(json["metrics"][0]["new"], 0.05);
        assert_eq!(json["proxies"]["silent"].as_array().unwrap().len(), 2);
    }

    #[test]
    fn proxies_with_another_new_generation_are_not_analysed_together() {
        let at = |target: &str, failed| {
            let mut reported = reported([900, 100], failed, 500, &[(120, 1), (60, 2), (0, 3)]);
            reported.process.as_mut().unwrap().name = format!("{target} {failed}");
            reported.new_targets = vec![target.to_owned()];
            Ok(Some(reported))
        };
        let analysed = |second: &str| {
            let answers = [
                answer("a", at("http://new:80", 5)),
                answer("b", at(second, 6)),
            ];
            CommandAnalysis::new(Margins::default()).past(&answers)
        };
        assert_eq!(analysed("http://new:80").verdict(), "fail");
        let analysed = analysed("http://newer:80");
        assert_eq!(analysed.verdict(), "inconclusive");
        let text = "inconclusive: The proxies do not have the same new generation.";
        assert!(analysed.text().starts_with(text), "{}", analysed.text());
    }

    #[test]
    fn proxies_with_different_plans_are_not_analysed_together_and_named() {
        let proxy = |name: &str, [old, new]: [u32; 2], update: &str, rolled_back: &str| {
            let mut reported = reported([900, 100], 5, 500, &[(120, 1), (60, 2), (0, 3)]);
            reported.process.as_mut().unwrap().name = name.to_owned();
            reported.rolled_back = rolled_back.to_owned();
            ComparisonAnswer {
                plan: Some(v1::Plan {
                    weights: Some(v1::Weights { old, new }),
                    percent: 100 * new / (old + new),
                    new_targets: vec!["http://new:80".to_owned()],
                    resource: Some(v1::Resource {
                        name: (!update.is_empty()).then(|| update.to_owned()),
                        ..Default::default()
                    }),
                    ..Default::default()
                }),
                ..answer(name, Ok(Some(reported)))
            }
        };
        let one = proxy("a", [1, 1], "chat", "");
        for (other, expected) in [
            (proxy("b", [2, 2], "chat", ""), ""),
            (proxy("b", [1, 1], "", ""), ""),
            (
                proxy("b", [3, 1], "chat", ""),
                "b sends 25% to new at http://new:80, by update chat.",
            ),
            (
                proxy("b", [1, 1], "code", ""),
                "b sends 50% to new at http://new:80, by update code.",
            ),
            // A failure of another one counts, too.
            (proxy("b", [1, 0], "chat", "New fails."), ""),
        ] {
            let analysed = CommandAnalysis::new(Margins::default()).past(&[one.clone(), other]);
            let text = analysed.text();
            if expected.is_empty() {
                assert_eq!(analysed.verdict(), "fail", "{text}");
                continue;
            }
            let start = "inconclusive: The proxies have different plans: a sends 50% to new at http://new:80, by update chat; ";
            assert!(text.starts_with(&format!("{start}{expected}\n")), "{text}");
            assert_eq!(analysed.json()["verdict"], "inconclusive");
        }
    }

    #[test]
    fn new_that_a_proxy_has_failed_by_the_same_margins_has_failed() {
        let margins = Margins::default();
        let analysed = |margins: Margins| {
            let mut reported = reported([900, 0], 0, 500, &[(60, 1), (0, 2)]);
            reported.failed = "New fails 50.0% of its requests.".to_owned();
            reported.margins = Some(v1::Margins::from(&Margins::default()));
            let analysed = CommandAnalysis::new(margins).past(&[answer("a", Ok(Some(reported)))]);
            (analysed.verdict(), analysed.text())
        };
        let (verdict, text) = analysed(margins);
        assert_eq!(verdict, "fail");
        let expected = "fail: New has failed: New fails 50.0% of its requests.\n";
        assert!(text.starts_with(expected), "{text}");
        let min_samples = 7;
        assert_eq!(
            analysed(Margins {
                min_samples,
                ..margins
            })
            .0,
            "inconclusive"
        );
    }

    #[test]
    fn new_that_was_rolled_back_has_failed() {
        let reported = reported([900, 0], 0, 500, &[(60, 1), (0, 2)]);
        let rolled_back = "New fails 50.0% of its requests.".to_owned();
        let answers = [answer(
            "a",
            Ok(Some(v1::Comparison {
                rolled_back,
                ..reported
            })),
        )];
        let analysed = CommandAnalysis::new(Margins::default()).past(&answers);
        assert_eq!(analysed.verdict(), "fail");
        let text = "fail: New has failed and was rolled back: New fails 50.0% of its requests.\n";
        assert!(analysed.text().starts_with(text), "{}", analysed.text());
        assert_eq!(analysed.json()["verdict"], "fail");
        // The status of the update tells it even if no proxy responds.
        let answers = [answer("a", Err("cannot be reached".to_owned()))];
        let analysed = CommandAnalysis::new(Margins::default())
            .past(&answers)
            .or_rolled_back(Some("New fails 50.0% of its requests."));
        assert_eq!(analysed.verdict(), "fail");
        assert!(analysed.text().starts_with(text), "{}", analysed.text());
    }

    #[test]
    fn texts_of_proxies_cannot_control_a_terminal_or_add_lines() {
        let hostile = "\u{1b}[31m\u{9b}X\u{202e}\r\npass: All is well.\u{2028}\u{7}";
        let of = |change: &dyn Fn(&mut v1::Comparison)| {
            let mut reported = reported([900, 900], 0, 500, &[(60, 1), (0, 2)]);
            reported.margins = Some((&Margins::default()).into());
            change(&mut reported);
            reported
        };
        for answers in [
            [answer(
                "a",
                Ok(Some(of(&|reported| {
                    reported.rolled_back = hostile.to_owned()
                }))),
            )],
            [answer(
                "a",
                Ok(Some(of(&|reported| reported.failed = hostile.to_owned()))),
            )],
            [answer("a", Err(hostile.to_owned()))],
            [answer(hostile, Ok(None))],
        ] {
            let analysed = CommandAnalysis::new(Margins::default()).past(&answers);
            let text = analysed.text();
            assert!(
                text.contains("\\u001b[31m\\u009bX\\u202e\\r\\npass: "),
                "{text}"
            );
            let is_raw = |c: char| c != '\n' && crate::printable::is_unsafe(c);
            assert!(!text.contains(is_raw), "{text:?}");
            assert!(
                !text.lines().any(|line| line.starts_with("pass: ")),
                "{text}"
            );
        }
    }

    #[test]
    fn each_set_of_margins_is_reported_once() {
        let strict = Margins {
            ttft_ratio: 1.1,
            ..Margins::default()
        };
        let of = |name: &str, margins: Option<v1::Margins>| {
            let reported = reported([1, 1], 0, 500, &[(0, 1)]);
            answer(
                name,
                Ok(Some(v1::Comparison {
                    margins,
                    ..reported
                })),
            )
        };
        let made_up = v1::Margins::default();
        let answers = [
            of("a", Some((&strict).into())),
            of("b", Some((&strict).into())),
            answer("c", Ok(None)),
            of("d", None),
            of("e", Some(made_up)),
        ];
        assert_eq!(
            margins(&answers),
            [("a", strict), ("d", Margins::default())]
        );
    }

    #[test]
    fn only_what_is_counted_from_the_first_look_on_is_judged_if_it_waits() {
        let mut run = CommandAnalysis::new(Margins::default());
        let mut look = |seconds, started, failed| {
            let reported = reported([9 * started, started], failed, 500, &[(0, 1)]);
            run.observe(
                &[answer("a", Ok(Some(reported)))],
                Duration::from_secs(seconds),
            )
        };
        assert_eq!(look(0, 5000, 4000).report.verdict.as_str(), "inconclusive");
        let analysed = look(5, 5300, 4000);
        assert_eq!(
            analysed.report.verdict,
            Verdict::Pass,
            "{}",
            analysed.text()
        );
    }

    #[test]
    fn another_new_generation_is_analysed_from_its_beginning() {
        let mut run = CommandAnalysis::new(Margins::default());
        let mut look = |seconds, started, failed, series| {
            let mut reported = reported([9 * started, started], failed, 500, &[(0, 1)]);
            reported.series = series;
            reported.series_age = Some(prost_types::Duration::default());
            run.observe(
                &[answer("a", Ok(Some(reported)))],
                Duration::from_secs(seconds),
            )
        };
        look(0, 0, 0, 1);
        assert_eq!(look(5, 300, 200, 1).report.verdict.as_str(), "fail");
        assert_eq!(look(6, 10, 0, 2).report.verdict.as_str(), "inconclusive");
        let analysed = look(9, 300, 0, 2);
        assert_eq!(
            analysed.report.verdict,
            Verdict::Pass,
            "{}",
            analysed.text()
        );
        assert_eq!(analysed.report.covers, Duration::from_secs(3));
    }

    #[test]
    fn nothing_passes_without_the_answer_of_every_proxy() {
        let good = || reported([900, 300], 0, 500, &[(60, 0), (0, 1)]);
        let ok = || answer("a", Ok(Some(good())));
        for (other, verdict, sentence) in [
            (None, "pass", "New is within the margins."),
            (
                Some(Err("cannot be reached".to_owned())),
                "inconclusive",
                "1 of 2 proxies cannot be compared.",
            ),
            (
                Some(Ok(None)),
                "inconclusive",
                "1 of 2 proxies cannot be compared.",
            ),
        ] {
            let other = other.map(|other| answer("b", other));
            let answers: Vec<_> = [ok()].into_iter().chain(other).collect();
            let analysed = CommandAnalysis::new(Margins::default()).past(&answers);
            assert_eq!(analysed.verdict(), verdict);
            assert_eq!(analysed.json()["text"], sentence);
            let text = analysed.text();
            assert!(
                text.starts_with(&format!("{verdict}: {sentence}\n")),
                "{text}"
            );
        }
    }

    /// `localhost` and `127.0.0.1`, say.
    #[test]
    fn a_process_queried_at_two_addresses_counts_once() {
        let past = [(60, 0), (0, 1)];
        let of = |name: &str, host: &str| {
            let mut reported = reported([900, 150], 0, 500, &past);
            reported.process.as_mut().unwrap().name = host.to_owned();
            answer(name, Ok(Some(reported)))
        };
        for (second, begun) in [("host", 150), ("other", 300)] {
            let answers = [of("a", "host"), of("b", second)];
            let analysed = CommandAnalysis::new(Margins::default())
                .past(&answers)
                .json();
            assert_eq!(
                analysed["metrics"][0]["samples"]["new"], begun,
                "{analysed}"
            );
            let mut run = CommandAnalysis::new(Margins::default());
            let _ = run.observe(&[], Duration::ZERO);
            let mut young = answers.clone();
            for proxy in &mut young {
                let reported = proxy.answer.as_mut().unwrap().as_mut().unwrap();
                let uptime = prost_types::Duration {
                    seconds: 1,
                    nanos: 0,
                };
                reported.process.as_mut().unwrap().uptime = Some(uptime);
            }
            let analysed = run.observe(&young, Duration::from_secs(5)).json();
            assert_eq!(
                analysed["metrics"][0]["samples"]["new"], begun,
                "{analysed}"
            );
        }
    }

    #[test]
    fn without_a_response_nothing_is_analysed() {
        let answers = [answer("a", Err("cannot be reached".to_owned()))];
        let analysed = CommandAnalysis::new(Margins::default()).observe(&answers, Duration::ZERO);
        assert!(!analysed.has_data());
        let expected =
            "inconclusive: No proxy could be queried.\n\n0 of 1 proxy\n  a: cannot be reached\n";
        assert_eq!(analysed.text(), expected);
    }
}
