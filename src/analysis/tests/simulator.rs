//! Rollouts of made-up traffic, with fixed seeds.

use std::time::Duration;

use crate::analysis::{
    Counts, GenerationCounts, Margins, Memory, Outcomes, Report, Stratum, Verdict,
};
use crate::latency::{BUCKETS, Scale, Sketch};
use crate::split::{Diffusion, Generation, Weights};

/// What a generation does to a request.
#[derive(Clone, Copy)]
pub struct Behaviour {
    /// The share of requests that fail, in an average stratum.
    pub failures: f64,
    /// Times of this generation are those of the traffic times this.
    pub first_event: f64,
    pub gap: f64,
    /// The share of each stratum among its requests.
    pub mix: [f64; STRATA],
}

pub const STRATA: usize = 4;
/// Strata that differ in failures and in times.
const FAILURES: [f64; STRATA] = [0.7, 0.9, 1.2, 1.5];
const FIRST_EVENT: [f64; STRATA] = [0.2, 0.4, 0.9, 2.0];

pub const EVEN: [f64; STRATA] = [0.4, 0.3, 0.2, 0.1];
pub const LARGE: [f64; STRATA] = [0.1, 0.2, 0.3, 0.4];

pub const USUAL: Behaviour = Behaviour {
    failures: 0.005,
    first_event: 1.0,
    gap: 1.0,
    mix: EVEN,
};

#[derive(Clone, Copy)]
pub struct Traffic {
    /// Requests per second.
    pub rate: f64,
    /// The share of new, in percent.
    pub percent: u8,
    pub old: Behaviour,
    pub new: Behaviour,
    /// What old does before new gets requests.
    pub earlier: Behaviour,
    /// For this many seconds, both do the same.
    pub good_for: f64,
    /// The time between two looks, in seconds.
    pub look: f64,
    /// Interim looks per look, the look included.
    pub interim_looks: u32,
    /// Only outcomes, no times.
    pub only_outcomes: bool,
}

/// The share of failed requests that is tried again on the other generation.
const RETRIED: f64 = 0.2;

/// A generator of random numbers (SplitMix64).
pub struct Draw(pub u64);

impl Draw {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn unit(&mut self) -> f64 {
        ((self.next() >> 11) as f64 + 0.5) / (1_u64 << 53) as f64
    }

    fn normal(&mut self) -> f64 {
        let radius = (-2.0 * self.unit().ln()).sqrt();
        radius * (std::f64::consts::TAU * self.unit()).cos()
    }

    fn poisson(&mut self, mean: f64) -> u64 {
        let (mut count, mut time) = (0, 0.0);
        loop {
            time -= self.unit().ln();
            if time > mean {
                return count;
            }
            count += 1;
        }
    }

    fn stratum(&mut self, mix: &[f64; STRATA]) -> usize {
        let mut left = self.unit();
        for (stratum, share) in mix.iter().enumerate() {
            left -= share;
            if left < 0.0 {
                return stratum;
            }
        }
        STRATA - 1
    }
}

/// Values on the scale.
struct Values(Box<[u64; BUCKETS]>);

impl Values {
    fn new() -> Self {
        Self(Box::new([0; BUCKETS]))
    }

    fn add(&mut self, seconds: f64) {
        self.0[Scale::index((seconds * 1e9) as u64)] += 1;
    }

    fn sketch(&self) -> Sketch {
        Sketch::new(self.0.iter().copied().enumerate(), 0)
    }
}

fn generation(
    draw: &mut Draw,
    requests: u64,
    behaviour: &Behaviour,
    only_outcomes: bool,
) -> [GenerationCounts; STRATA] {
    if requests == 0 {
        return Default::default();
    }
    let mut generations: [GenerationCounts; STRATA] = Default::default();
    // Most of a step's work, so only where it is needed.
    let mut times: Option<[[Values; 3]; STRATA]> =
        (!only_outcomes).then(|| std::array::from_fn(|_| std::array::from_fn(|_| Values::new())));
    for _ in 0..requests {
        let stratum = draw.stratum(&behaviour.mix);
        let generation = &mut generations[stratum];
        generation.attempts.started += 1;
        generation.attempts.ended += 1;
        generation.attempts.decided += 1;
        // A crash is the same for all requests.
        let factor = if behaviour.failures < 0.5 {
            FAILURES[stratum]
        } else {
            1.0
        };
        if draw.unit() < behaviour.failures * factor {
            generation.attempts.failed += 1;
            generation.attempts.unanswered += 1;
            continue;
        }
        generation.attempts.completed += 1;
        let Some(times) = &mut times else {
            continue;
        };
        let [first_event, gap, per_token] = &mut times[stratum];
        let first = FIRST_EVENT[stratum] * behaviour.first_event;
        first_event.add(first * (0.4 * draw.normal()).exp());
        gap.add(0.03 * behaviour.gap * (0.5 * draw.normal()).exp());
        per_token.add(0.03 * behaviour.gap * (0.15 * draw.normal()).exp());
    }
    for (generation, [first_event, gap, per_token]) in
        generations.iter_mut().zip(times.iter().flatten())
    {
        generation.first_event = first_event.sketch();
        generation.gap = gap.sketch();
        generation.per_token = per_token.sketch();
    }
    generations
}

/// Requests as they come, split as a proxy splits them.
pub struct Arrivals {
    draw: Draw,
    split: Diffusion,
}

impl Arrivals {
    pub fn new(seed: u64) -> Self {
        let mut draw = Draw(seed);
        let split = Diffusion::new(draw.next());
        Self { draw, split }
    }

    /// What both generations do between two looks.
    pub fn look(&mut self, traffic: &Traffic) -> Counts {
        step(self, traffic, traffic.look)
    }
}

/// What both generations do in some seconds.
fn step(Arrivals { draw, split }: &mut Arrivals, traffic: &Traffic, seconds: f64) -> Counts {
    let weights = Weights::percent(traffic.percent).unwrap();
    let mut requests = [0, 0];
    for _ in 0..draw.poisson(traffic.rate * seconds) {
        requests[split.free(&weights).index()] += 1;
    }
    let quick = traffic.only_outcomes;
    let old = generation(draw, requests[Generation::Old.index()], &traffic.old, quick);
    let new = generation(draw, requests[Generation::New.index()], &traffic.new, quick);
    let strata = old.into_iter().zip(new).enumerate();
    let strata = strata.map(|(size, (mut old, new))| {
        for _ in 0..new.attempts.failed {
            if draw.unit() < RETRIED {
                old.attempts.retried += 1;
                let fails = draw.unit() < traffic.old.failures * FAILURES[size];
                old.attempts.retries_failed += u64::from(fails);
            }
        }
        let class = "chat".into();
        let size = u8::try_from(size).unwrap();
        (Stratum { class, size }, [old, new])
    });
    Counts(strata.collect())
}

/// A rollout: the time in seconds from the first request that new treats in its own way to its failure, if it was failed within
/// `seconds`, and the last report.
pub fn rollout(
    seed: u64,
    margins: &Margins,
    traffic: &Traffic,
    seconds: f64,
) -> (Option<f64>, Report) {
    // Old has been observed for a minute before new gets its first request.
    let alone = Traffic {
        percent: 0,
        old: traffic.earlier,
        ..*traffic
    };
    let good = Traffic {
        old: traffic.earlier,
        new: traffic.earlier,
        ..*traffic
    };
    let mut arrivals = Arrivals::new(seed);
    let mut memory = Memory::default();
    let mut now = 0.0;
    let mut report = memory.look(margins, Counts::default(), Duration::ZERO);
    while now < 60.0 {
        now += traffic.look;
        let counts = arrivals.look(&alone);
        report = memory.look(margins, counts, Duration::from_secs_f64(now));
    }
    let turns = now + traffic.good_for;
    let mut began = None;
    let interim = traffic.look / f64::from(traffic.interim_looks);
    while began.is_none_or(|began| now - began < seconds) {
        let mut counts = Counts::default();
        for number in 1..=traffic.interim_looks {
            let is_good = now < turns;
            let since = step(
                &mut arrivals,
                if is_good { &good } else { traffic },
                interim,
            );
            if !is_good && began.is_none() && since.total()[1].attempts.started > 0 {
                began = Some(now);
            }
            now += interim;
            counts.add(&since);
            let time = Duration::from_secs_f64(now);
            if number < traffic.interim_looks
                && memory.interim_look(margins, &Outcomes::from(&counts), time)
            {
                break;
            }
        }
        report = memory.look(margins, counts, Duration::from_secs_f64(now));
        if matches!(report.verdict, Verdict::Fail(_)) {
            // A good new generation that fails was detected immediately, and wrongly.
            return (Some(began.map_or(0.0, |began| now - began)), report);
        }
    }
    (None, report)
}
