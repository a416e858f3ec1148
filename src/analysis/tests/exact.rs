//! The expectation of an e-variable, summed over all results of a small block.

use crate::analysis::evidence::{Block, Evidence, Law};

fn choose(n: u32, k: u32) -> f64 {
    (0..k).fold(1.0, |product, i| {
        product * f64::from(n - i) / f64::from(i + 1)
    })
}

fn binomial(n: u32, k: u32, p: f64) -> f64 {
    choose(n, k) * p.powi(k.cast_signed()) * (1.0 - p).powi((n - k).cast_signed())
}

/// The expected value of the e-process after one block, if the true rates are `p`.
fn expectation(law: Law, n: [u32; 2], a: f64, p: [f64; 2]) -> f64 {
    let mut sum = 0.0;
    for k0 in 0..=n[0] {
        for k1 in 0..=n[1] {
            let block = Block {
                n: n.map(f64::from),
                k: [k0, k1].map(f64::from),
                a,
            };
            let mut evidence = Evidence::default();
            evidence.begin();
            evidence.multiply(law, &[block], f64::INFINITY);
            sum += binomial(n[0], k0, p[0]) * binomial(n[1], k1, p[1]) * evidence.value();
        }
    }
    sum
}

#[test]
fn evidence_does_not_grow_in_expectation_while_new_is_not_worse() {
    for n in [[1, 1], [9, 1], [1, 9], [12, 7]] {
        for a in [0.001, 0.005, 0.05, 0.4] {
            for p0 in [0.0, 0.002, 0.01, 0.05, 0.3, 0.8] {
                for margin in [0.0, 0.005, 0.05] {
                    for better in [0.0, 0.001, 0.1] {
                        let p1: f64 = p0 + margin - better;
                        let p = [p0, p1.clamp(0.0, 1.0)];
                        let failed = expectation(Law::Failed { margin }, n, a, p);
                        assert!(failed <= 1.0 + 1e-9, "{n:?} {a} {p:?} {margin}: {failed}");
                    }
                }
                let slow = expectation(Law::Slow, n, a, [p0, p0]);
                assert!(slow <= 1.0 + 1e-9, "{n:?} {a} {p0}: {slow}");
            }
        }
    }
}

#[test]
fn evidence_grows_if_new_is_worse() {
    let failed = expectation(Law::Failed { margin: 0.005 }, [20, 10], 0.01, [0.01, 0.3]);
    assert!(failed > 2.0, "{failed}");
    let slow = expectation(Law::Slow, [20, 10], 0.05, [0.05, 0.5]);
    assert!(slow > 2.0, "{slow}");
}

#[test]
fn one_evaluation_raises_the_evidence_by_a_limited_factor() {
    let block = Block {
        n: [50.0, 50.0],
        k: [0.0, 50.0],
        a: 0.05,
    };
    let mut evidence = Evidence::default();
    evidence.begin();
    evidence.multiply(Law::Slow, &[block], 1.5);
    let most = 1.5_f64.exp();
    // One half of the mixture consists of the products so far. A part of the other half begins now; the rest begins later and
    // does not count.
    let now = 1.0 - 1.0 / (1.0 + 2.0_f64.ln());
    assert!(
        (evidence.value() - 0.5 * (1.0 + now) * most).abs() < 1e-9,
        "{}",
        evidence.value()
    );
}
