//! Selects the targets that may be asked to continue a stream after its first content.

use super::{FailoverPolicy, Target};

/// Why another server has to take over a stream, as far as this affects which servers are asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TakeoverCause {
    /// Its server is gone.
    ServerLost,
    /// Its server is alive, and reports that the backend behind it is gone.
    BackendLost,
    /// The plan moves it to the new generation.
    Move,
}

/// The servers to ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Candidates {
    /// The endpoints of a pool, except the one whose stream broke.
    Others(Target),
    /// The endpoint whose stream broke.
    Same,
}

/// The servers to ask, in order, for the rest of a stream that came `from` this target: first on its own generation, then, if
/// `any_generation`, on the other one. The endpoint whose stream broke comes last, because it is probably gone, unless it has
/// reported the failure itself: other workers may be behind it.
///
/// A generation of weight 0 is not asked, except old, until it drains.
#[must_use]
pub fn candidates(
    policy: &FailoverPolicy,
    from: Target,
    any_generation: bool,
    why: TakeoverCause,
) -> Vec<Candidates> {
    if !policy.enabled {
        return Vec::new();
    }
    if why == TakeoverCause::Move {
        let may_move = from != Target::New && policy.serves(Target::New);
        return may_move
            .then_some(Candidates::Others(Target::New))
            .into_iter()
            .collect();
    }
    let same = policy.serves(from).then_some(Candidates::Same);
    let own = |target: &Target| target.generation() == from.generation();
    let mut targets = vec![from];
    let rest = [Target::Old, Target::Peers, Target::New];
    targets.extend(
        rest.into_iter()
            .filter(|target| own(target) && *target != from),
    );
    targets.extend(
        rest.into_iter()
            .filter(|target| any_generation && !own(target)),
    );
    let others = targets.into_iter().filter(|target| policy.serves(*target));
    let mut candidates: Vec<Candidates> = others.map(Candidates::Others).collect();
    match why {
        TakeoverCause::BackendLost if same.is_some() => candidates.insert(1, Candidates::Same),
        _ => candidates.extend(same),
    }
    candidates
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::split::Weights;

    const BOTH: FailoverPolicy = FailoverPolicy {
        enabled: true,
        weights: Weights::ALL_OLD,
        old_drains: false,
        has_new: true,
        has_peers: true,
        overloaded: false,
        old_server_errors: false,
    };

    fn policy(percent: u8, old_drains: bool) -> FailoverPolicy {
        FailoverPolicy {
            weights: Weights::percent(percent).expect("valid"),
            old_drains,
            ..BOTH
        }
    }

    #[test]
    fn its_own_generation_comes_first_and_what_broke_off_last() {
        use Candidates::{Others, Same};
        use TakeoverCause::{BackendLost, ServerLost};
        use Target::{New, Old, Peers};
        let policy = policy(50, false);
        for (from, any, why, expected) in [
            (
                Old,
                false,
                ServerLost,
                vec![Others(Old), Others(Peers), Same],
            ),
            (
                Old,
                false,
                BackendLost,
                vec![Others(Old), Same, Others(Peers)],
            ),
            (
                Old,
                true,
                ServerLost,
                vec![Others(Old), Others(Peers), Others(New), Same],
            ),
            (
                Peers,
                true,
                ServerLost,
                vec![Others(Peers), Others(Old), Others(New), Same],
            ),
            (New, false, ServerLost, vec![Others(New), Same]),
            (
                New,
                true,
                ServerLost,
                vec![Others(New), Others(Old), Others(Peers), Same],
            ),
            (
                New,
                true,
                BackendLost,
                vec![Others(New), Same, Others(Old), Others(Peers)],
            ),
        ] {
            assert_eq!(
                candidates(&policy, from, any, why),
                expected,
                "{from:?} {any} {why:?}"
            );
        }
    }

    #[test]
    fn a_generation_without_weight_is_not_a_target_except_old_until_it_drains() {
        use Candidates::{Others, Same};
        use Target::{New, Old};
        let gone = |policy: &FailoverPolicy, from| {
            candidates(policy, from, true, TakeoverCause::ServerLost)
        };
        let no_peers = |policy| FailoverPolicy {
            has_peers: false,
            ..policy
        };
        assert_eq!(gone(&no_peers(policy(100, true)), Old), [Others(New)]);
        assert_eq!(gone(&no_peers(policy(100, true)), New), [Others(New), Same]);
        assert_eq!(
            gone(&no_peers(policy(100, false)), New),
            [Others(New), Others(Old), Same]
        );
        assert_eq!(gone(&no_peers(policy(0, false)), New), [Others(Old)]);
        assert_eq!(gone(&no_peers(policy(0, false)), Old), [Others(Old), Same]);
        let off = FailoverPolicy {
            enabled: false,
            ..policy(50, false)
        };
        assert_eq!(gone(&off, Old), []);
    }

    #[test]
    fn a_stream_moves_from_old_to_new_only() {
        let moved =
            |percent, from| candidates(&policy(percent, true), from, true, TakeoverCause::Move);
        assert_eq!(moved(100, Target::Old), [Candidates::Others(Target::New)]);
        assert_eq!(moved(100, Target::Peers), [Candidates::Others(Target::New)]);
        assert_eq!(moved(100, Target::New), []);
        assert_eq!(moved(0, Target::Old), []);
    }
}
