//! Compares both generations by their counts of the last minutes, for plans without an analysis. Pure.
//!
//! The page compares every second, with few requests after a start, so its statements about new must be certain: too many of all
//! requests that failed (or were slow) must have been new's. If both generations were equal, the probability that such a
//! request is new's would be new's share of all requests; the Chernoff bound limits the probability of this many.

use std::fmt::{self, Display, Formatter};

use super::GenerationFigures;
use crate::latency::{Scale, Sketch};
use crate::printable::{self, needed, only, percent};

/// New needs attention if its error ratio exceeds old's by this much, and is at least twice as high.
const MORE_ERRORS: f64 = 0.01;
/// New needs attention if its p95 exceeds this multiple of old's, and by this many seconds.
const SLOWER: f64 = 1.25;
const NOTICEABLE: f64 = 0.005;
/// The streams that each generation must have for a comparison of latencies.
const STREAMS: u64 = 200;
/// With equal generations, the probability of a false alarm is at most one minus this.
const CERTAIN: f64 = 0.9999;

/// In what respect new is worse than old.
pub(super) fn worse(generations: &[GenerationFigures; 2]) -> Option<String> {
    let sure = differences(generations).find(|difference| difference.is_sure)?;
    Some(format!("{sure}."))
}

/// Why it is unknown whether new is as good as old: it looks worse, or there are too few streams to tell.
pub(super) fn unclear(generations: &[GenerationFigures; 2]) -> Option<String> {
    if let Some(difference) = differences(generations).next() {
        return Some(format!("{difference}; that is not enough evidence yet."));
    }
    let streams = |generation: &GenerationFigures| generation.first_event.count();
    // Streams that are rare among the requests need not be compared.
    let matter = |generation: &GenerationFigures| {
        streams(generation) > 0 && streams(generation).saturating_mul(10) >= generation.ended
    };
    let few = generations
        .iter()
        .filter(|generation| streams(generation) < STREAMS);
    let few = few.min_by_key(|generation| streams(generation))?;
    generations.iter().any(matter).then(|| {
        format!(
            "Not enough data: {} started {} in the last 5 minutes; {}.",
            few.name.to_lowercase(),
            only(streams(few), "stream"),
            needed(STREAMS)
        )
    })
}

/// Something in which new looks worse than old.
struct Difference {
    what: &'static str,
    /// Old's and new's.
    figures: [String; 2],
    /// Whether it is not a coincidence.
    is_sure: bool,
}

impl Display for Difference {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let [before, now] = &self.figures;
        write!(
            f,
            "New {}{now} versus {before} in the last 5 minutes",
            self.what
        )
    }
}

fn differences([old, new]: &[GenerationFigures; 2]) -> impl Iterator<Item = Difference> {
    let slower = |what, latency: fn(&GenerationFigures) -> &Sketch| {
        let (figures, is_sure) = slower([old, new], latency)?;
        Some(Difference {
            what,
            figures: figures.map(printable::latency),
            is_sure,
        })
    };
    let failures = fails_more([old, new]).map(|(figures, is_sure)| Difference {
        what: "fails more requests than old: ",
        figures: figures.map(percent),
        is_sure,
    });
    let first = "has a longer time to first token than old: p95 ";
    let gap = "has longer gaps between tokens than old: p95 ";
    let all = [
        failures,
        slower(first, |generation| &generation.first_event),
        slower(gap, |generation| &generation.gap),
    ];
    all.into_iter().flatten()
}

/// The error ratios of both generations if new's is higher, and whether that is certain.
fn fails_more([old, new]: [&GenerationFigures; 2]) -> Option<([f64; 2], bool)> {
    let [before, now] = [old.errors?, new.errors?];
    let ended = [old, new].map(|generation| generation.ended as f64);
    let is_worse = now > before + MORE_ERRORS && now > 2.0 * before;
    let failed = [before * ended[0], now * ended[1]];
    is_worse.then(|| ([before, now], are_too_many_of_new(failed, ended)))
}

/// The p95 of both generations if new's is higher, and whether that is certain.
fn slower(
    [old, new]: [&GenerationFigures; 2],
    latency: fn(&GenerationFigures) -> &Sketch,
) -> Option<([f64; 2], bool)> {
    let streams = [old, new].map(|generation| generation.first_event.count());
    let values = [old, new].map(latency);
    if streams
        .iter()
        .chain(&values.map(Sketch::count))
        .any(|count| *count < STREAMS)
    {
        return None;
    }
    let [before, now] = [values[0].quantile(0.95)?, values[1].quantile(0.95)?];
    let bucket = values[0].quantile_bucket(0.95)?;
    let bound = Scale::index((Scale::lower(bucket + 1) * SLOWER * 1e9) as u64);
    // The values of a stream are not independent, so they count as one.
    let independent =
        [0, 1].map(|generation| streams[generation].min(values[generation].count()) as f64);
    let slow = [values[0].count_above(bucket), values[1].count_above(bound)];
    let slow = [0, 1].map(|generation| {
        independent[generation] * slow[generation] as f64 / values[generation].count() as f64
    });
    let is_worse = now > SLOWER * before && now > before + NOTICEABLE;
    is_worse.then(|| ([before, now], are_too_many_of_new(slow, independent)))
}

/// Whether new's share of the cases (failures, slow requests) of both generations is too large to be a coincidence.
fn are_too_many_of_new(cases: [f64; 2], of: [f64; 2]) -> bool {
    let all = cases[0] + cases[1];
    let (share, expected) = (cases[1] / all, of[1] / (of[0] + of[1]));
    let divergence = |share: f64, expected: f64| match share > 0.0 {
        true => share * (share / expected).ln(),
        false => 0.0,
    };
    let divergence = divergence(share, expected) + divergence(1.0 - share, 1.0 - expected);
    share > expected && all * divergence > -(1.0 - CERTAIN).ln()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn generation(
        ended: u64,
        failed: u64,
        times: &[(u64, u64)],
        gaps_each: u64,
    ) -> GenerationFigures {
        let sketch = |scale: u64| {
            let index = |millis: u64| Scale::index(millis * 1_000_000);
            let counts = times
                .iter()
                .map(|(millis, count)| (index(*millis), count * scale));
            Sketch::new(counts, 0)
        };
        GenerationFigures {
            name: "",
            ended,
            errors: Some(failed as f64 / ended as f64),
            first_event: if gaps_each > 0 {
                Sketch::new([(10, times.iter().map(|(_, count)| count).sum())], 0)
            } else {
                sketch(1)
            },
            gap: sketch(gaps_each),
        }
    }

    #[test]
    fn new_fails_more_only_if_that_is_not_chance() {
        for (old, new, is_worse) in [
            ((1000, 3), (1000, 40), true),
            ((80, 0), (80, 20), true),
            ((1000, 0), (60, 4), true),
            ((1000, 0), (60, 2), false),
            ((60, 0), (60, 5), false),
            ((1000, 30), (1000, 40), false),
            ((100_000, 100), (100_000, 900), false),
            ((60, 60), (60, 60), false),
            ((60, 0), (60, 60), true),
            ((60, 0), (60, 0), false),
        ] {
            let generations = [old, new].map(|(ended, failed)| generation(ended, failed, &[], 0));
            let worse = worse(&generations);
            assert_eq!(worse.is_some(), is_worse, "{old:?} {new:?}: {worse:?}");
        }
    }

    /// A difference that may be a coincidence does not count as good either.
    #[test]
    fn worse_or_rare_figures_are_inconclusive() {
        let requests = |ended, failed| generation(ended, failed, &[], 0);
        let streams = |millis, count| generation(count, 0, &[(millis, count)], 0);
        let unclear = |old, new| unclear(&[old, new]);
        for (old, new, expected) in [
            (
                requests(1000, 0),
                requests(60, 2),
                Some(
                    "New fails more requests than old: 3.3% versus 0.0% in the last 5 minutes; that is not enough evidence yet.",
                ),
            ),
            (requests(1000, 3), requests(60, 0), None),
            (
                streams(30, 1000),
                streams(60, 199),
                Some(
                    "Not enough data:  started only 199 streams in the last 5 minutes; at least 200 are needed.",
                ),
            ),
            (
                streams(30, 1000),
                requests(100, 0),
                Some(
                    "Not enough data:  started no streams in the last 5 minutes; at least 200 are needed.",
                ),
            ),
            (streams(30, 1000), streams(30, 200), None),
            // Streams are rare.
            (
                generation(1000, 0, &[(30, 99)], 0),
                generation(500, 0, &[(60, 49)], 0),
                None,
            ),
        ] {
            assert_eq!(unclear(old, new).as_deref(), expected);
        }
        let tails = [9, 13].map(|slow| generation(1000, 0, &[(30, 200 - slow), (100, slow)], 0));
        let text = super::unclear(&tails).unwrap();
        assert!(
            text.starts_with("New has a longer time to first token than old: p95 "),
            "{text}"
        );
    }

    #[test]
    fn new_is_slower_only_if_users_could_notice_it_and_it_is_not_chance() {
        let few = [(3, 76), (4, 4)];
        for (old, new, is_worse) in [
            (vec![(300, 500)], vec![(400, 500)], true),
            (vec![(300, 500)], vec![(370, 500)], false),
            // A millisecond, regardless of the ratio and the number of values.
            (vec![(3, 100_000)], vec![(4, 100_000)], false),
            // A busy machine.
            (few.to_vec(), vec![(3, 70), (40, 10)], false),
            (vec![(30, 199)], vec![(400, 1000)], false),
            (vec![(30, 1000)], vec![(400, 199)], false),
            (vec![(30, 200)], vec![(400, 200)], true),
            // The tails of 200 values differ by chance.
            (vec![(30, 191), (100, 9)], vec![(30, 187), (100, 13)], false),
            (vec![(30, 191), (100, 9)], vec![(30, 140), (100, 60)], true),
        ] {
            let generations = [&old, &new].map(|times| generation(1000, 0, times, 0));
            let worse = worse(&generations);
            assert_eq!(worse.is_some(), is_worse, "{old:?} {new:?}: {worse:?}");
            assert!(
                worse.is_none_or(|text| text.starts_with("New has a longer time to first token"))
            );
        }
    }

    /// All gaps of a stream may be long for one cause.
    #[test]
    fn gaps_weigh_no_more_than_their_streams() {
        let of = |slow| generation(1000, 0, &[(20, 250 - slow), (80, slow)], 100);
        assert_eq!(worse(&[of(12), of(14)]), None);
        let text = worse(&[of(12), of(60)]).unwrap();
        assert!(
            text.starts_with("New has longer gaps between tokens than old: p95 8"),
            "{text}"
        );
    }
}
