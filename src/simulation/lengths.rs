//! The durations of streams: a log-normal distribution, drawn with a fixed sequence of pseudo-random numbers.

/// The standard deviation of the logarithm. With it, the median is a tenth of the 99th percentile, as for the answers of language
/// models.
const SIGMA: f64 = 1.0;
/// The 99th percentile of the standard normal distribution.
const Z99: f64 = 2.326_347_874;

/// Lengths of streams, in seconds.
pub(super) struct Lengths {
    median: f64,
    longest: f64,
    /// The state of SplitMix64.
    state: u64,
}

impl Lengths {
    /// Lengths with this 99th percentile, in seconds. None is longer than twice that: servers limit the number of tokens.
    pub fn with_p99(p99: f64) -> Self {
        Self {
            median: p99 / (SIGMA * Z99).exp(),
            longest: 2.0 * p99,
            state: 0x0063_726f_7373_6661,
        }
    }

    /// The mean of the lengths.
    pub fn mean(&self) -> f64 {
        self.median * (SIGMA * SIGMA / 2.0).exp()
    }

    /// The next length.
    pub fn draw(&mut self) -> f64 {
        // Box and Muller: a normally distributed number from two evenly distributed ones.
        let (first, second) = (self.even(), self.even());
        let normal = (-2.0 * first.ln()).sqrt() * (std::f64::consts::TAU * second).cos();
        (self.median * (SIGMA * normal).exp()).min(self.longest)
    }

    /// Evenly distributed, above 0 and at most 1.
    fn even(&mut self) -> f64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^= z >> 31;
        ((z >> 11) + 1) as f64 / (1_u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_have_the_requested_percentile_and_mean() {
        let mut lengths = Lengths::with_p99(540.0);
        let mut drawn: Vec<_> = (0..100_000).map(|_| lengths.draw()).collect();
        drawn.sort_by(f64::total_cmp);
        let p99 = drawn[99_000];
        assert!((p99 / 540.0 - 1.0).abs() < 0.03, "{p99}");
        let mean = drawn.iter().sum::<f64>() / 100_000.0;
        assert!((mean / lengths.mean() - 1.0).abs() < 0.03, "{mean}");
        assert!(drawn[0] > 0.0 && drawn[99_999] <= 1080.0);
    }
}
