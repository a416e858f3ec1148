//! Evidence that new is worse, in the form of e-processes, which may be inspected at any time.
//!
//! An e-process is never negative, begins at 1 and, while new is *not* worse, does not grow in expectation. By Ville's
//! inequality, the probability that it ever reaches `1 / α` is then at most `α`, no matter how often and for how long it is
//! inspected. A test of fixed size that is repeated at every look has no such bound (Johari, Pekelis, Walsh, *Always valid
//! inference*, 2015; Johari and others, *Peeking at A/B tests*, KDD 2017).
//!
//! # One look
//!
//! A [`Block`] is what both generations of one stratum did between two looks: of `n₀` and `n₁` requests, `k₀` and `k₁` were
//! bad. New is worse if its rate of bad requests exceeds old's by more than the margin `δ`. The alternative is that old's rate
//! is `a`, as estimated from earlier looks, and new's is `b > a + δ`. Its e-variable is the likelihood ratio of the
//! alternative and the closest pair of rates `(x, x + δ)` that is not worse, in the sense of the Kullback-Leibler divergence
//! (Turner, Ly, Grünwald, *Generic E-variables for exact sequential k-sample tests that allow for optional stopping*, J.
//! Statist. Plann. Inference 230, 2024; Grünwald, de Heide, Koolen, *Safe testing*, JRSS B 2024).
//!
//! Why its expectation is at most 1: with true rates `p₀`, `p₁`, a request of a generation with alternative `a` and closest
//! point `x` contributes at most `exp((p₀ − x)(a − x) / v(x))`, where `v(x)` is `x` for a Poisson process and `x (1 − x)` for
//! Bernoulli trials (there `1 + …` rather than `exp …`). At the closest point `n₀ (a − x) / v(x) = −g` and `n₁ (b − y) / v(y)
//! = g` for some `g ≥ 0`, so that the block contributes at most `exp(g (p₁ − p₀ − δ)) ≤ 1` if new is not worse. Only the mean
//! rates of the block enter: rates may differ from request to request and drift from look to look, since old is observed at
//! the same time.
//!
//! # All looks
//!
//! The e-variables of strata and looks are multiplied, and the products for several alternatives are averaged. Since a product
//! over hours of good traffic would take hours to recover, half of the weight goes to products that begin later, the `t`-th with
//! weight `w(t) − w(t + 1)`, where `w(t) = 1 / (1 + ln t)`, so that none of them has a very small weight: a mixture of
//! e-processes that start later, kept in one number as in the Shiryaev-Roberts procedure (Shin, Ramdas, Rinaldo, *E-detectors*,
//! NEJSDS 2024). The weights add up to 1, so the bound holds for all time.

/// The counts of both generations of one stratum between two looks, old first.
#[derive(Clone, Copy, Debug)]
pub(super) struct Block {
    /// Requests.
    pub n: [f64; 2],
    /// The bad requests among them.
    pub k: [f64; 2],
    /// Old's rate of bad requests as estimated from earlier looks, above 0 and below 1.
    pub a: f64,
}

/// How a request can be bad.
#[derive(Clone, Copy, Debug)]
pub(super) enum Law {
    /// It failed. New is worse if its rate exceeds old's by more than the margin. While failures are rare, they are counted as a
    /// Poisson process; for a crash, the requests that do not fail are the earlier evidence.
    Failed { margin: f64 },
    /// It was slow. New is worse if its rate is higher.
    Slow,
}

/// Differences of rates that are looked for, above the margin.
const DIFFERENCES: [f64; 9] = [0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 0.9];
/// Odds ratios that are looked for.
const ODDS: [f64; 9] = [1.3, 1.6, 2.0, 3.0, 5.0, 10.0, 20.0, 50.0, 200.0];
const ALTERNATIVES: usize = 9;
/// The weights of the differences in their average. A crash has the largest weight, because each second of it costs the most
/// requests.
const WEIGHTS_OF_DIFFERENCES: [f64; ALTERNATIVES] = [0.6, 0.6, 0.6, 0.6, 0.6, 0.6, 0.8, 1.6, 3.0];
/// The highest rate of an alternative.
const HIGHEST: f64 = 0.98;

/// From this difference on, failures are no longer rare.
const NOT_RARE: f64 = 0.1;
/// Steps of a bisection: enough for the precision of a rate.
const BISECTIONS: u32 = 60;

impl Law {
    /// The weight of an alternative; on average 1.
    const fn weight(self, number: usize) -> f64 {
        match self {
            Self::Failed { .. } => WEIGHTS_OF_DIFFERENCES[number],
            Self::Slow => 1.0,
        }
    }

    /// New's rate in an alternative.
    fn alternative(self, a: f64, number: usize) -> f64 {
        match self {
            Self::Failed { margin } => (a + margin + DIFFERENCES[number]).min(HIGHEST),
            Self::Slow => {
                let odds = ODDS[number] * a / (1.0 - a);
                (odds / (1.0 + odds)).min(HIGHEST)
            }
        }
    }

    /// The logarithm of the e-variable of a block; 0 for an alternative in which new is not worse.
    pub(super) fn log_e(self, block: &Block, b: f64) -> f64 {
        let Block { n, a, .. } = *block;
        let margin = match self {
            Self::Failed { margin } => margin,
            Self::Slow => 0.0,
        };
        if n[0] <= 0.0 || n[1] <= 0.0 || b <= a + margin {
            return 0.0;
        }
        match self {
            Self::Failed { .. } if b - a - margin < NOT_RARE => poisson(block, b, margin),
            _ => bernoulli(block, b, margin),
        }
    }
}

fn poisson(block: &Block, b: f64, margin: f64) -> f64 {
    let Block {
        n: [n0, n1],
        k: [k0, k1],
        a,
    } = *block;
    // The root of n₀ (1 − a / x) + n₁ (1 − b / (x + δ)).
    let all = n0 + n1;
    let linear = all * margin - n0 * a - n1 * b;
    let x = (-linear + (linear * linear + 4.0 * all * n0 * a * margin).sqrt()) / (2.0 * all);
    let y = x + margin;
    k0 * (a / x).ln() - n0 * (a - x) + k1 * (b / y).ln() - n1 * (b - y)
}

fn bernoulli(block: &Block, b: f64, margin: f64) -> f64 {
    let Block {
        n: [n0, n1],
        k: [k0, k1],
        a,
    } = *block;
    let x = if margin > 0.0 {
        // The root of n₀ (x − a) / v(x) + n₁ (y − b) / v(y), which lies between a and b − δ.
        let slope = |x: f64| {
            let y = x + margin;
            n0 * (x - a) / (x * (1.0 - x)) + n1 * (y - b) / (y * (1.0 - y))
        };
        let (mut low, mut high) = (a, b - margin);
        for _ in 0..BISECTIONS {
            let middle = (low + high) / 2.0;
            if slope(middle) < 0.0 {
                low = middle;
            } else {
                high = middle;
            }
        }
        (low + high) / 2.0
    } else {
        (n0 * a + n1 * b) / (n0 + n1)
    };
    let term = |n: f64, k: f64, rate: f64, closest: f64| {
        let good = (n - k).max(0.0);
        k * (rate / closest).ln() + good * ((1.0 - rate) / (1.0 - closest)).ln()
    };
    term(n0, k0, a, x) + term(n1, k1, b, x + margin)
}

/// The evidence of all looks that new is worse in one respect.
#[derive(Clone, Debug)]
pub(super) struct Evidence {
    /// Products that were begun at later blocks.
    begun: u32,
    /// Logarithms of the products since the first look, per alternative.
    whole: [f64; ALTERNATIVES],
    /// Logarithms of the weighted products that began later.
    later: [f64; ALTERNATIVES],
    /// The logarithm of the e-process, and the highest so far.
    now: f64,
    highest: f64,
}

impl Default for Evidence {
    fn default() -> Self {
        Self {
            begun: 0,
            whole: [0.0; ALTERNATIVES],
            later: [f64::NEG_INFINITY; ALTERNATIVES],
            now: 0.0,
            highest: 0.0,
        }
    }
}

impl Evidence {
    /// Begins a product with the next block.
    pub(super) fn begin(&mut self) {
        self.begun = self.begun.saturating_add(1);
        let left = |number: f64| 1.0 / (1.0 + number.ln());
        let number = f64::from(self.begun);
        let weight = (left(number) - left(number + 1.0)).ln();
        for later in &mut self.later {
            *later = log_add(*later, weight);
        }
    }

    /// Adds what both generations did. `most` is the logarithm of the largest factor by which it may raise the evidence for an
    /// alternative: bad requests at the same moment often have the same cause.
    pub(super) fn multiply(&mut self, law: Law, blocks: &[Block], most: f64) {
        let mut now = f64::NEG_INFINITY;
        for number in 0..ALTERNATIVES {
            let blocks = blocks.iter();
            let log_e: f64 = blocks
                .map(|block| law.log_e(block, law.alternative(block.a, number)))
                .sum();
            let log_e = log_e.min(most);
            self.whole[number] += log_e;
            self.later[number] += log_e;
            let both = log_add(self.whole[number], self.later[number]);
            now = log_add(now, both + law.weight(number).ln());
        }
        self.now = now - (2.0 * ALTERNATIVES as f64).ln();
        self.highest = self.highest.max(self.now);
    }

    /// The e-process now.
    #[cfg(test)]
    pub(super) fn value(&self) -> f64 {
        self.now.exp()
    }

    /// An upper bound of the probability that evidence this strong ever occurs although new is not worse: an always-valid
    /// p-value.
    pub(super) fn p_value(&self) -> f64 {
        (-self.highest).exp().min(1.0)
    }
}

/// ln(exp(a) + exp(b)).
fn log_add(a: f64, b: f64) -> f64 {
    let (low, high) = if a < b { (a, b) } else { (b, a) };
    if low == f64::NEG_INFINITY {
        return high;
    }
    high + (low - high).exp().ln_1p()
}
