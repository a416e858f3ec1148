//! What the split costs a request: the decision alone, with a session's key, and from a snapshot.

use std::hint::black_box;

use arc_swap::ArcSwap;
use criterion::{Criterion, criterion_group, criterion_main};
use crossfade::split::{Generation, Key, RequestAttributes, SplitPolicy, Weights};

/// Two sessions, one of each generation at 50%: with one alone the debt would reach its limit, where
/// nothing is written any more.
fn sessions() -> [String; 2] {
    let half = Weights::new(1, 1).expect("not both zero");
    Generation::ALL.map(|generation| {
        (0_u64..)
            .map(|n| format!("7f1c0c9e-3f55-4f6e-9a53-{n:012x}"))
            .find(|id| Key::of(id.as_bytes()).generation(&half) == generation)
            .expect("half of all keys are on either generation")
    })
}

fn decisions(c: &mut Criterion) {
    let weights = Weights::new(997, 3).expect("not both zero");
    let policy = SplitPolicy::new(weights, 0x9e37_79b9_7f4a_7c15);
    let mut group = c.benchmark_group("split");

    group.bench_function("free", |b| {
        b.iter(|| black_box(&policy).assign(&RequestAttributes::default()));
    });

    let half = policy.with_weights(Weights::new(1, 1).expect("not both zero"));
    let sessions = sessions();
    group.bench_function("sticky, 36-byte key", |b| {
        let mut turn = 0;
        b.iter(|| {
            turn ^= 1;
            let attributes = RequestAttributes {
                key: Some(Key::of(black_box(sessions[turn].as_bytes()))),
                ..RequestAttributes::default()
            };
            black_box(&half).assign(&attributes)
        });
    });

    let snapshot = ArcSwap::from_pointee(policy);
    group.bench_function("snapshot load + free", |b| {
        b.iter(|| black_box(&snapshot.load()).assign(&RequestAttributes::default()));
    });

    group.finish();
}

criterion_group!(benches, decisions);
criterion_main!(benches);
