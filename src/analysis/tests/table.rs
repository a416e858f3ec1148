//! The table of docs/analysis.md.

use std::num::NonZero;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use super::simulator::{Behaviour, LARGE, Traffic, USUAL, rollout};
use crate::analysis::Margins;

/// A row of the table: rollouts of one kind.
pub struct Case {
    pub what: &'static str,
    pub margins: Margins,
    pub traffic: Traffic,
    /// The longest time of a rollout, in seconds.
    pub seconds: f64,
    /// How many rollouts the table has.
    pub rollouts: u64,
    /// New is worse than its margins allow.
    pub finds: bool,
    /// The time within which 99% of the rollouts must fail, in seconds.
    pub limit: Option<f64>,
    /// It takes so long to be found that only the table has it.
    pub is_slow: bool,
}

const HOUR: f64 = 3600.0;

/// 10% of 50 requests per second, with a look every five seconds.
pub(super) fn traffic(new: Behaviour) -> Traffic {
    Traffic {
        rate: 50.0,
        percent: 10,
        old: USUAL,
        new,
        earlier: USUAL,
        good_for: 0.0,
        look: 5.0,
        interim_looks: 1,
        only_outcomes: false,
    }
}

fn failing(failures: f64) -> Traffic {
    Traffic {
        only_outcomes: true,
        ..traffic(Behaviour { failures, ..USUAL })
    }
}

pub fn cases() -> Vec<Case> {
    let margins = Margins::default();
    let no_margin = Margins {
        max_failure_rate_increase: 0.0,
        ttft_ratio: 1.0,
        gap_ratio: 1.0,
        ..margins
    };
    let tenth = Margins {
        ttft_ratio: 1.1,
        ..margins
    };
    let case = |what, margins, traffic| Case {
        what,
        margins,
        traffic,
        seconds: HOUR,
        rollouts: ROLLOUTS,
        finds: true,
        limit: None,
        is_slow: false,
    };
    let equal = |what, margins, traffic| Case {
        finds: false,
        ..case(what, margins, traffic)
    };
    let slow = |what, margins, failures| Case {
        seconds: 3.0 * HOUR,
        is_slow: true,
        ..case(what, margins, failing(failures))
    };
    let crash = |what, failures, percent| Case {
        seconds: 60.0,
        rollouts: ROLLOUTS_OF_A_MINUTE,
        limit: Some(2.0),
        ..case(
            what,
            margins,
            Traffic {
                look: 0.5,
                interim_looks: 10,
                percent,
                ..failing(failures)
            },
        )
    };
    let first_event = |first_event| {
        traffic(Behaviour {
            first_event,
            ..USUAL
        })
    };
    let quarter = |traffic| Traffic {
        percent: 25,
        ..traffic
    };
    let gap = |gap| traffic(Behaviour { gap, ..USUAL });
    let often = |failures| Traffic {
        look: 0.5,
        interim_looks: 10,
        old: Behaviour { failures, ..USUAL },
        earlier: Behaviour { failures, ..USUAL },
        ..failing(failures)
    };
    // Both begin to fail more as new gets its first request.
    let both_turn = |what, failures| Case {
        seconds: 60.0,
        rollouts: ROLLOUTS_OF_A_MINUTE,
        ..equal(
            what,
            margins,
            Traffic {
                earlier: USUAL,
                ..often(failures)
            },
        )
    };
    let late = |case: Case| Case {
        traffic: Traffic {
            good_for: 600.0,
            ..case.traffic
        },
        rollouts: ROLLOUTS,
        // In 2 s, one that fails 60% may fail a single request.
        limit: case.limit.filter(|_| case.traffic.new.failures >= 0.9),
        ..case
    };
    // A controller polls the proxies. A poll and the write of the split take time in addition.
    let polled = |case: Case| Case {
        traffic: Traffic {
            interim_looks: 1,
            ..case.traffic
        },
        limit: None,
        ..case
    };
    let half = Traffic {
        percent: 50,
        ..traffic(USUAL)
    };
    let larger = traffic(Behaviour {
        mix: LARGE,
        ..USUAL
    });
    vec![
        equal("equal", margins, traffic(USUAL)),
        equal("equal; without any margin", no_margin, traffic(USUAL)),
        equal(
            "equal; share of new 50%, without any margin",
            no_margin,
            half,
        ),
        equal("equal; new gets the larger requests", margins, larger),
        equal(
            "failures 1% instead of 0.5%, as the margin allows",
            margins,
            failing(0.01),
        ),
        slow(
            "failures 1% instead of 0.5%, without a margin",
            no_margin,
            0.01,
        ),
        slow("failures 1.5% instead of 0.5%", margins, 0.015),
        case("failures 2% instead of 0.5%", margins, failing(0.02)),
        case("failures 5% instead of 0.5%", margins, failing(0.05)),
        case(
            "failures 2% instead of 0.5%; share of new 25%",
            margins,
            quarter(failing(0.02)),
        ),
        equal(
            "equal; a proxy evaluates new on its own",
            margins,
            often(0.005),
        ),
        equal(
            "equal, both fail 5%; a proxy evaluates new on its own, without any margin",
            no_margin,
            often(0.05),
        ),
        both_turn(
            "equal, both begin to fail 5% with new's first request; a proxy evaluates new on its own",
            0.05,
        ),
        both_turn(
            "equal, both begin to fail 50% with new's first request; a proxy evaluates new on its own",
            0.5,
        ),
        late(both_turn(
            "equal, both begin to fail 50% after ten good minutes; a proxy evaluates new on its own",
            0.5,
        )),
        crash("new fails 60%", 0.6, 10),
        crash("new fails 90%", 0.9, 10),
        crash("new fails 100%", 1.0, 10),
        late(crash("new fails 60% after ten good minutes", 0.6, 10)),
        late(crash("new fails 90% after ten good minutes", 0.9, 10)),
        late(crash("new fails 100% after ten good minutes", 1.0, 10)),
        polled(crash("new fails 60%; a controller evaluates new", 0.6, 10)),
        polled(crash("new fails 90%; a controller evaluates new", 0.9, 10)),
        polled(crash("new fails 100%; a controller evaluates new", 1.0, 10)),
        crash("new fails 90%; share of new 100%", 0.9, 100),
        equal(
            "equal, both fail 5%; share of new 100%, a proxy evaluates new on its own, without any margin",
            no_margin,
            Traffic {
                percent: 100,
                ..often(0.05)
            },
        ),
        crash("new fails 90%; share of new 25%", 0.9, 25),
        crash("new fails 100%; share of new 25%", 1.0, 25),
        case("first token 25% later, ratio 1.1", tenth, first_event(1.25)),
        case(
            "first token 25% later, ratio 1.1; share of new 25%",
            tenth,
            quarter(first_event(1.25)),
        ),
        case("first token 40% later", margins, first_event(1.4)),
        case(
            "first token 40% later; a proxy evaluates new on its own",
            margins,
            Traffic {
                look: 0.5,
                ..first_event(1.4)
            },
        ),
        case("first token 100% later", margins, first_event(2.0)),
        case("tokens 30% slower", margins, gap(1.3)),
        case("tokens 50% slower", margins, gap(1.5)),
    ]
}

/// The share of rollouts that failed, and within which time half and 99% of them did, in seconds.
type Outcome = (f64, Option<f64>, Option<f64>);

/// The times of some rollouts of a case, infinite for those that were not failed.
fn times(case: &Case, rollouts: Range<u64>, seed: u64) -> Vec<f64> {
    let times = rollouts.map(|number| {
        let seed = seed.wrapping_add(number.wrapping_mul(0x5851_f42d_4c95_7f2d));
        let (time, _) = rollout(seed, &case.margins, &case.traffic, case.seconds);
        time.unwrap_or(f64::INFINITY)
    });
    times.collect()
}

fn outcome(mut times: Vec<f64>) -> Outcome {
    times.sort_by(f64::total_cmp);
    let failed = times.iter().filter(|time| time.is_finite()).count();
    let at = |share: f64| {
        let rank = (share * times.len() as f64).ceil() as usize;
        times
            .get(rank.max(1) - 1)
            .copied()
            .filter(|time| time.is_finite())
    };
    (failed as f64 / times.len() as f64, at(0.5), at(0.99))
}

/// The results of the rollouts of a case.
pub fn run(case: &Case, rollouts: u64, seed: u64) -> Outcome {
    outcome(times(case, 0..rollouts, seed))
}

/// The result of each case, computed on one thread per core.
fn run_all() -> Vec<(Case, Outcome)> {
    let threads = std::thread::available_parallelism().map_or(1, NonZero::get);
    let run = |case: Case| {
        let began = Instant::now();
        let next = AtomicU64::new(0);
        let work = || {
            let mut done = Vec::new();
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= case.rollouts {
                    return done;
                }
                done.extend(times(&case, number..number + 1, 42));
            }
        };
        let times = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
            let done = threads.into_iter().map(|thread| thread.join().unwrap());
            done.flatten().collect()
        });
        let result = outcome(times);
        let took = began.elapsed().as_secs();
        println!("{} {result:?}, in {took} s", case.what);
        (case, result)
    };
    cases().into_iter().map(run).collect()
}

/// Rollouts of each row, and of one of which a minute is enough.
const ROLLOUTS: u64 = 300;
const ROLLOUTS_OF_A_MINUTE: u64 = 3000;
const DOCUMENT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/analysis.md");
const BEGIN: &str = "<!-- made by `make analysis-table` -->\n";
const END: &str = "<!-- end -->\n";

/// `make analysis-table` runs it.
#[test]
#[ignore = "writes the table of docs/analysis.md, which takes minutes"]
fn the_table_is_written() {
    let mut table = "| new is | failed | found in half of the rollouts within | in 99% within |\n| --- | --- | --- | --- |\n".to_owned();
    for (case, (failed, half, most)) in run_all() {
        if case.finds {
            assert!(failed >= 0.99, "{}: {failed}", case.what);
        } else {
            assert!(failed <= 0.01, "{}: {failed}", case.what);
        }
        if let Some(limit) = case.limit {
            let most = most.unwrap_or(f64::INFINITY);
            // The times are sums of twentieths.
            assert!(most <= limit + 1e-6, "{}: {most} s", case.what);
        }
        let percent = failed * 100.0;
        let [half, most] = [half, most].map(|time| time.map_or_else(|| "–".to_owned(), length));
        let row = format!("| {} | {percent:.1}% | {half} | {most} |\n", case.what);
        table += &row;
    }
    let text = std::fs::read_to_string(DOCUMENT).unwrap();
    let (before, rest) = text.split_once(BEGIN).expect("the page has a place for it");
    let (_, after) = rest.split_once(END).expect("and it has an end");
    std::fs::write(DOCUMENT, format!("{before}{BEGIN}{table}{END}{after}")).unwrap();
}

fn length(seconds: f64) -> String {
    if seconds < 120.0 {
        // Without the error of a sum of twentieths.
        return format!("{} s", (seconds * 100.0).round() / 100.0);
    }
    format!("{:.0} min", (seconds / 60.0).ceil())
}
