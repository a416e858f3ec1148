//! Invariants that hold for all settings, histories and observations.

use proptest::{collection::vec, option, prelude::*};

use super::*;

/// A fixture with random settings, after a random history.
fn any_fixture() -> impl Strategy<Value = Fixture> {
    let settings = (
        any::<bool>(),
        any::<bool>(),
        option::of(0..=100_u8),
        0..8_u64,
        0..40_u64,
    );
    let sizes = (1..5_u32, any::<bool>());
    (settings, sizes, vec((0..12_u8, 0..6_u32, 0..20_u64), 0..30)).prop_map(
        |((paused, strict, cap, stable, ack), (full, halves), history)| {
            let mut fixture = if halves {
                Fixture::of(&[(Role::Prefill, full), (Role::Decode, 2)])
            } else {
                Fixture::of(&[(Role::Worker, full)])
            };
            fixture.settings.cap_percent = cap;
            fixture.settings.strict = strict;
            fixture.settings.stable = seconds(stable);
            fixture.settings.ack_timeout = seconds(ack);
            for (what, number, wait) in history {
                fixture.step();
                fixture.wait(seconds(wait));
                happen(&mut fixture, what, number);
            }
            fixture.settings.paused = paused;
            fixture
        },
    )
}

/// Applies one random change.
fn happen(fixture: &mut Fixture, what: u8, number: u32) {
    let roles: Vec<Role> = fixture.seen.workers.old.keys().copied().collect();
    let role = roles[number as usize % roles.len()];
    let new = &mut fixture.seen.frontends.new;
    match what {
        0..=1 => _ = fixture.count(role, Some(number), None),
        2..=4 => _ = fixture.count(role, None, Some(number)),
        5 => fixture.seen.workers.old.entry(role).or_default().desired = number,
        6 => new.endpoints = u32::from(number > 1),
        7 if new.queried[0].models.is_empty() => *new = frontends(),
        7 => new.queried[0].models.clear(),
        8 => _ = fixture.edit(Weights::new(number, 6 - number).expect("6 in all")),
        9 => fixture.settings.paused = number > 3,
        10 => fixture.seen.proxies[0].ready = number > 1,
        _ => _ = fixture.applied(),
    }
}

/// The split that is written, if it is another one.
fn split(fixture: &Fixture, decision: &Decision) -> Option<Weights> {
    let split = decision.desired.split;
    (split != fixture.seen.split).then_some(split)
}

fn share(weights: Weights) -> (u64, u64) {
    let new = u64::from(weights.new_weight());
    (new, new + u64::from(weights.old()))
}

/// Whether new gets at most as much with `a` as with `b`.
fn is_at_most(a: Weights, b: Weights) -> bool {
    let ((a, a_total), (b, b_total)) = (share(a), share(b));
    u128::from(a) * u128::from(b_total) <= u128::from(b) * u128::from(a_total)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(250))]

    #[test]
    fn the_cap_is_exceeded_only_to_keep_requests_served(fixture in any_fixture()) {
        let decision = fixture.peek();
        let cap = percent(fixture.settings.cap_percent.unwrap_or(100));
        let is_urgent = decision.rule == Rule::OldCannotServe && !fixture.settings.strict;
        if let Some(split) = split(&fixture, &decision).filter(|_| !is_urgent) {
            prop_assert!(is_at_most(split, cap), "{split:?}");
        }
    }

    #[test]
    fn nothing_is_written_to_a_generation_that_cannot_serve(fixture in any_fixture()) {
        let decision = fixture.peek();
        if let Some(split) = split(&fixture, &decision) {
            let new_serves = decision.obstacles.is_empty();
            prop_assert!(split.is_all_old() || new_serves);
            let old_serves = decision.capacity.old.serves;
            prop_assert!(split.is_all_new() || old_serves || fixture.settings.strict);
        }
    }

    #[test]
    fn once_applied_a_decision_changes_nothing_more(fixture in any_fixture()) {
        let mut fixture = fixture;
        fixture.step();
        let second = fixture.step();
        prop_assert_eq!(&second.actions, &[]);
        prop_assert_eq!(&second.events, &[]);
        prop_assert!(second.wake_at.is_none_or(|wake_at| wake_at > fixture.now));
        prop_assert_eq!(second.desired.old_draining, fixture.seen.old_draining);
        let third = fixture.step();
        prop_assert_eq!(second, third);
    }

    #[test]
    fn the_memory_contains_everything_needed_after_a_restart(fixture in any_fixture()) {
        let status = serde_json::to_string(&fixture.memory).unwrap();
        let memory: Memory = serde_json::from_str(&status).unwrap();
        prop_assert_eq!(&memory, &fixture.memory);
        let decision = step(&fixture.settings, &memory, &fixture.seen, fixture.now);
        prop_assert_eq!(decision, fixture.peek());
    }

    #[test]
    fn more_workers_never_get_a_generation_less(fixture in any_fixture(), role in 0..2_usize, more in 1..9_u32) {
        let mut fixture = fixture;
        fixture.settings.paused = false;
        fixture.settings.stable = Duration::ZERO;
        fixture.seen.split_is_ours = true;
        fixture.applied();
        let roles: Vec<Role> = fixture.seen.workers.old.keys().copied().collect();
        let role = roles[role % roles.len()];
        let before = fixture.clone().next();
        let neither = |fixture: &Fixture| fixture.peek().rule == Rule::NeitherCanServe;

        let mut with_new = fixture.clone();
        let ready = fixture.seen.workers.new.get(&role).map_or(0, |workers| workers.ready);
        with_new.count(role, None, Some(ready + more));
        prop_assert!(neither(&fixture) || is_at_most(before, with_new.next()));

        let mut with_old = fixture.clone();
        let ready = fixture.seen.workers.old.get(&role).map_or(0, |workers| workers.ready);
        with_old.count(role, Some(ready + more), None);
        prop_assert!(neither(&fixture) || is_at_most(with_old.next(), before));
    }

    #[test]
    fn time_alone_leads_to_the_exact_ratio(fixture in any_fixture()) {
        let mut fixture = fixture;
        fixture.settings.paused = false;
        let decision = fixture.settle();
        let wanted = match decision.rule {
            Rule::NeitherCanServe => fixture.seen.split,
            Rule::NewCannotServe => Weights::ALL_OLD,
            Rule::OldCannotServe => Weights::ALL_NEW,
            _ => {
                let exact = Ratio::weights(decision.capacity.old.share, decision.capacity.new.share);
                let cap = percent(fixture.settings.cap_percent.unwrap_or(100));
                exact.filter(|exact| is_at_most(*exact, cap)).unwrap_or(cap)
            }
        };
        prop_assert_eq!(fixture.seen.split, wanted);
    }

    #[test]
    fn no_status_causes_a_panic(
        fixture in any_fixture(),
        parts in [1..=u64::MAX, 1..=u64::MAX, 1..=u64::MAX, 1..=u64::MAX],
        since in any::<u64>(),
        now in any::<u64>(),
        sizes in (any::<u32>(), any::<u32>()),
    ) {
        let mut fixture = fixture;
        let credit = |of, whole| Credit {
            capacity: Ratio::ZERO,
            rises: vec![Rise {
                capacity: Ratio::new(of, whole).unwrap(),
                since: Timestamp::from_unix_millis(since),
            }],
            flaps: sizes.0,
            gained: Some(Timestamp::from_unix_millis(since)),
        };
        let [old, old_whole, new, new_whole] = parts;
        fixture.memory.credit = Some(PerGeneration { old: credit(old, old_whole), new: credit(new, new_whole) });
        fixture.memory.full_sizes = [(Role::Worker, sizes.0)].into();
        fixture.settings.full_sizes.new = [(Role::Worker, sizes.1)].into();
        fixture.settings.stable = Duration::from_millis(since);
        fixture.now = Timestamp::from_unix_millis(now);
        fixture.step();
        fixture.settle();
    }
}
