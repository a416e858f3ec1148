//! Quantiles of a histogram, computed like Prometheus' `histogram_quantile`: linear within a bucket.

/// The value below which the share `q` of the observations lies, in the unit of the bounds; `None` without observations.
/// `buckets` are upper bounds with cumulative counts, the last bound infinite. Values beyond the last finite bound count as
/// that bound.
#[must_use]
pub fn quantile(buckets: &[(f64, u64)], q: f64) -> Option<f64> {
    let total = buckets
        .last()
        .map(|(_, count)| *count)
        .filter(|count| *count > 0)?;
    let rank = q * total as f64;
    let (mut lower, mut below) = (0.0, 0);
    for &(upper, count) in buckets {
        if count as f64 >= rank && count > below {
            if upper.is_infinite() {
                return Some(lower);
            }
            return Some(lower + (upper - lower) * (rank - below as f64) / (count - below) as f64);
        }
        if upper.is_finite() {
            lower = upper;
        }
        below = count;
    }
    Some(lower)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quantile_lies_within_its_bucket() {
        let buckets = [(1.0, 0), (2.0, 10), (4.0, 20), (f64::INFINITY, 21)];
        assert_eq!(quantile(&buckets, 0.0), Some(1.0));
        assert_eq!(quantile(&buckets, 5.0 / 21.0), Some(1.5));
        assert_eq!(quantile(&buckets, 15.0 / 21.0), Some(3.0));
        assert_eq!(quantile(&buckets, 1.0), Some(4.0));
        assert_eq!(quantile(&[(1.0, 0), (f64::INFINITY, 0)], 0.5), None);
        assert_eq!(quantile(&[], 0.5), None);
    }
}
