//! Checks invariants under random faults. Clients and model servers behave as a seed says, with the real program between them,
//! while plans change, servers go down and come back, and the process drains.
//!
//! `make chaos SECONDS=3600 SEED=0x1f` runs it longer. The behaviour of each actor follows only from the seed and the actor's
//! numbers, so a seed reproduces the decisions, but not their timing.

#![allow(
    clippy::unwrap_used,
    clippy::undocumented_unsafe_blocks,
    reason = "a test may panic"
)]

mod client;
mod draw;
mod http1;
mod invariants;
mod ledger;
mod patience;
mod plan;
mod round;
mod server;
#[path = "../support/rig.rs"]
mod support;
mod wire;

use std::time::{Duration, Instant};

use draw::Draw;
use round::Report;

/// Seeds of rounds that once failed.
const REGRESSIONS: [u64; 7] = [
    0x1,
    0x3,
    0x3c01_5a54_b0e2_879c,
    0x90ce_e6aa_d24b_3a2f,
    0x9084_4e63_2dc6_cd4f,
    0x7bcc_8844_2648_f4c0,
    0x179d_b94e_f151_6263,
];

/// The seed that `make test` starts with.
const SEED: u64 = 0xc0ffee;
const SECONDS: u64 = 30;

#[tokio::test]
async fn no_invariant_breaks_under_random_faults() {
    let given = std::env::var("CHAOS_SEED").ok();
    let seed = match given.as_deref() {
        None => SEED,
        Some("random") => fastrand::u64(..),
        Some(text) => parse(text).expect("CHAOS_SEED is a number or `random`"),
    };
    let seconds = std::env::var("CHAOS_SECONDS").ok();
    let seconds = seconds.map_or(SECONDS, |text| text.parse().expect("CHAOS_SECONDS"));
    let began = Instant::now();
    let mut total = Report::default();
    let mut rounds = 0;
    while rounds == 0 || began.elapsed() < Duration::from_secs(seconds) {
        // The first round uses the seed itself, so that any round can be repeated on its own.
        let of_round = match rounds {
            0 => seed,
            number => Draw::of(&[seed, number]).next(),
        };
        let report = played(of_round).await;
        total.exchanges += report.exchanges;
        total.visits += report.visits;
        total.whole += report.whole;
        rounds += 1;
    }
    eprintln!(
        "chaos: seed {seed:#x}, {rounds} rounds in {} s: {} exchanges, {} of them answered whole, {} requests at servers",
        began.elapsed().as_secs(),
        total.exchanges,
        total.whole,
        total.visits
    );
}

#[tokio::test]
async fn no_seed_finds_a_fixed_fault_again() {
    for seed in REGRESSIONS {
        played(seed).await;
    }
}

/// Runs a round.
///
/// # Panics
/// If an invariant is violated.
async fn played(seed: u64) -> Report {
    let report = round::run(seed).await;
    if !report.problems.is_empty() {
        let first_lines = report
            .problems
            .iter()
            .filter_map(|text| text.lines().next());
        let all: Vec<_> = first_lines.collect();
        let shown = &report.problems[..report.problems.len().min(5)];
        panic!(
            "seed {seed:#x} has {} problems:\n{}\n\nthe first of them:\n\n{}\nplay it again: make chaos SECONDS=1 SEED={seed:#x}",
            all.len(),
            all.join("\n"),
            shown.join("\n")
        );
    }
    report
}

fn parse(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}
