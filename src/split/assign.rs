//! Assigns a request to a generation: applies the reasons that take precedence over the weight,
//! then the weight.

use super::{Diffusion, Generation, Key, Weights};

/// Why a request goes to its generation. A closed set, used as metric label and log field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reason {
    /// Only the weight decided.
    Weighted,
    /// The request's affinity key decided.
    Sticky,
    /// The request names a worker of the old generation. It stays on old until all traffic goes to
    /// new.
    Pinned,
    /// The override header decided.
    Override,
    /// A crossfade proxy has already forwarded the request for this update. Old serves it, and it is not split again.
    Guarded,
    /// Not an inference request: old, or new once old drains.
    Local,
    /// `GET /v1/models`: the union of what both generations serve.
    Models,
}

impl Reason {
    /// Every reason, in declaration order.
    pub const ALL: [Reason; 7] = [
        Reason::Weighted,
        Reason::Sticky,
        Reason::Pinned,
        Reason::Override,
        Reason::Guarded,
        Reason::Local,
        Reason::Models,
    ];

    /// The metric label, in lower case.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Reason::Weighted => "weighted",
            Reason::Sticky => "sticky",
            Reason::Pinned => "pinned",
            Reason::Override => "override",
            Reason::Guarded => "guarded",
            Reason::Local => "local",
            Reason::Models => "models",
        }
    }
}

/// The generation of a request, and why it goes there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Assignment {
    /// The generation.
    pub generation: Generation,
    /// The reason.
    pub reason: Reason,
}

impl Assignment {
    /// Whether the weight took part in the decision. The promise of the weight covers exactly these
    /// assignments.
    #[must_use]
    pub const fn open_to_split(&self) -> bool {
        matches!(self.reason, Reason::Weighted | Reason::Sticky)
    }
}

/// The properties of a request that affect the split. The default is a plain request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestAttributes {
    /// The generation in the override header.
    pub forced: Option<Generation>,
    /// Whether a crossfade proxy has already forwarded it for this update.
    pub guarded: bool,
    /// Whether it names a worker of the old generation.
    pub pinned: bool,
    /// The affinity key of its session.
    pub key: Option<Key>,
}

/// Assigns a request. In order of precedence: guarded, forced, pinned, sticky, weighted.
///
/// Only sticky and weighted requests are counted in `diffusion`.
pub(super) fn assign(
    weights: &Weights,
    diffusion: &Diffusion,
    attributes: &RequestAttributes,
) -> Assignment {
    let (generation, reason) = if attributes.guarded {
        (Generation::Old, Reason::Guarded)
    } else if let Some(generation) = attributes.forced {
        (generation, Reason::Override)
    } else if attributes.pinned {
        let generation = if weights.is_all_new() {
            Generation::New
        } else {
            Generation::Old
        };
        (generation, Reason::Pinned)
    } else if let Some(key) = attributes.key {
        let generation = key.generation(weights);
        diffusion.counted(weights, generation);
        (generation, Reason::Sticky)
    } else {
        (diffusion.free(weights), Reason::Weighted)
    };
    Assignment { generation, reason }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::split::weights::testing::any_weights;

    const HALF: u64 = 1 << 63;

    fn any_attributes() -> impl Strategy<Value = RequestAttributes> {
        (
            prop::option::of(prop::sample::select(&Generation::ALL[..])),
            any::<bool>(),
            any::<bool>(),
            prop::option::of(any::<[u8; 8]>().prop_map(|bytes| Key::of(&bytes))),
        )
            .prop_map(|(forced, guarded, pinned, key)| RequestAttributes {
                forced,
                guarded,
                pinned,
                key,
            })
    }

    #[test]
    fn reasons_are_a_closed_set_of_distinct_lower_case_labels() {
        let labels: std::collections::HashSet<_> =
            Reason::ALL.iter().map(|reason| reason.as_str()).collect();
        assert_eq!(labels.len(), Reason::ALL.len());
        for reason in Reason::ALL {
            assert_eq!(reason.as_str(), format!("{reason:?}").to_lowercase());
        }
    }

    #[test]
    fn a_guarded_request_is_served_by_old_even_when_all_is_new_and_new_is_forced() {
        let attributes = RequestAttributes {
            forced: Some(Generation::New),
            guarded: true,
            pinned: true,
            key: Some(Key::of(b"session")),
        };
        let assignment = assign(&Weights::ALL_NEW, &Diffusion::new(0), &attributes);
        assert_eq!(assignment.generation, Generation::Old);
        assert_eq!(assignment.reason, Reason::Guarded);
    }

    #[test]
    fn an_override_header_wins_over_a_pinned_worker() {
        for generation in Generation::ALL {
            let attributes = RequestAttributes {
                forced: Some(generation),
                pinned: true,
                ..RequestAttributes::default()
            };
            for weights in [Weights::ALL_OLD, Weights::ALL_NEW] {
                let assignment = assign(&weights, &Diffusion::new(0), &attributes);
                assert_eq!(assignment.generation, generation);
                assert_eq!(assignment.reason, Reason::Override);
            }
        }
    }

    #[test]
    fn a_pinned_request_stays_on_old_until_there_is_no_old() {
        let attributes = RequestAttributes {
            pinned: true,
            key: Some(Key::of(b"session")),
            ..RequestAttributes::default()
        };
        let generation_at = |weights: &Weights| {
            let assignment = assign(weights, &Diffusion::new(0), &attributes);
            assert_eq!(assignment.reason, Reason::Pinned);
            assignment.generation
        };
        for percent in 0..100 {
            let weights = Weights::percent(percent).unwrap();
            assert_eq!(generation_at(&weights), Generation::Old);
        }
        assert_eq!(
            generation_at(&Weights::new(1, u32::MAX).unwrap()),
            Generation::Old
        );
        assert_eq!(generation_at(&Weights::ALL_NEW), Generation::New);
    }

    #[test]
    fn free_requests_make_up_for_sticky_ones() {
        let weights = Weights::percent(50).unwrap();
        let diffusion = Diffusion::new(HALF);
        let key = (0_u32..)
            .map(|n| Key::of(&n.to_be_bytes()))
            .find(|key| key.generation(&weights) == Generation::New);
        let sticky = assign(
            &weights,
            &diffusion,
            &RequestAttributes {
                key,
                ..RequestAttributes::default()
            },
        );
        assert_eq!(sticky.generation, Generation::New);
        assert_eq!(sticky.reason, Reason::Sticky);
        let free = assign(&weights, &diffusion, &RequestAttributes::default());
        assert_eq!(free.generation, Generation::Old);
        assert_eq!(free.reason, Reason::Weighted);
    }

    proptest! {
        #[test]
        fn only_requests_open_to_the_split_are_counted(
            weights in any_weights(), phase in any::<u64>(), attributes in any_attributes(),
        ) {
            let diffusion = Diffusion::new(phase);
            let before = diffusion.accumulated();
            let assignment = assign(&weights, &diffusion, &attributes);
            let counted = diffusion.accumulated() != before;
            let split = !weights.is_all_old() && !weights.is_all_new();
            prop_assert_eq!(counted, split && assignment.open_to_split());
        }
    }
}
