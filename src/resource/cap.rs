//! The cap on the share of new (`spec.maxTrafficSplitPercent`), and when it is lifted.

use crate::split::Weights;

/// Whether new gets all requests despite `cap`: all requests should go to new, and the controller has `lifted` this very cap.
/// Caps are in percent.
#[must_use]
pub fn is_lifted(cap: Option<u8>, lifted: Option<u8>, all_to_new: bool) -> bool {
    all_to_new && lifted.is_some() && lifted == cap
}

/// New's share of the requests, 0 to 1, if `requested` is limited by `cap`, unless that is lifted.
#[must_use]
pub fn capped_share(requested: Weights, cap: Option<u8>, lifted: Option<u8>) -> f64 {
    let share = requested.share_of_new();
    match cap.filter(|_| !is_lifted(cap, lifted, requested.is_all_new())) {
        Some(cap) => share.min(f64::from(cap) / 100.0),
        None => share,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_cap_that_was_lifted_does_not_apply_and_only_if_new_should_get_everything() {
        for (percent, cap, lifted, expected) in [
            (70, None, None, 0.7),
            (70, Some(60), None, 0.6),
            (50, Some(60), None, 0.5),
            (100, Some(60), Some(60), 1.0),
            (100, Some(60), Some(50), 0.6),
            (70, Some(60), Some(60), 0.6),
        ] {
            let requested = Weights::percent(percent).unwrap();
            let share = capped_share(requested, cap, lifted);
            assert!(
                (share - expected).abs() < 1e-9,
                "{percent} {cap:?} {lifted:?}: {share}"
            );
        }
    }
}
