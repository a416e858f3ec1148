//! Changes the environment of requests: rewrites plans, and stops and restarts servers.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::sleep;

use crate::draw::Draw;
use crate::patience::extended;
use crate::server::Server;
use crate::support::plan_file::{PlanFile, manifest};

/// Plan number `number` of a round, and whether it allows retries.
pub fn text(seed: u64, number: usize, new: &[&Server]) -> (String, bool) {
    let mut draw = Draw::of(&[seed, 4, number as u64]);
    let (old, share) = draw.pick(&[(1, 1), (3, 1), (1, 3), (0, 1), (1, 0)]);
    let failover = draw.percent(75);
    let targets: Vec<_> = match draw.within(0..=2) {
        0 => vec![new[0]],
        1 => vec![new[1]],
        _ => new.to_vec(),
    };
    let targets: Vec<_> = targets.iter().map(|server| server.url()).collect();
    let deadline = draw.pick(&[None, Some(extended(Duration::from_millis(400)))]);
    let deadline = deadline.map_or_else(String::new, |time| {
        format!("firstEventTimeoutSeconds: {}, ", time.as_secs_f64())
    });
    let hold = draw.pick(&["0", "0.02", "5"]);
    let budget = draw.pick(&["0", "20", "100", "100"]);
    let more = format!(
        "failover: {{enabled: {failover}, {deadline}holdSeconds: {hold}, retryBudgetPercent: {budget}}}"
    );
    (manifest(&targets.join(","), old, share, &more), failover)
}

/// Changes plans and servers until the wave is over. Returns for each plan whether it allows retries.
pub async fn disturb(
    seed: u64,
    wave: usize,
    file: &PlanFile,
    servers: &[Server],
    mut over: watch::Receiver<bool>,
) -> Vec<bool> {
    let mut draw = Draw::of(&[seed, 5, wave as u64]);
    let new: Vec<_> = servers[crate::invariants::visits::OLD..].iter().collect();
    let mut down: Option<usize> = None;
    let mut plans = Vec::new();
    let mut number = wave * 1000;
    loop {
        let pause = draw.millis(60..=400);
        tokio::select! {
            () = sleep(pause) => {}
            _ = over.wait_for(|over| *over) => break,
        }
        if let Some(number) = down.take() {
            servers[number].resume();
        } else if draw.percent(40) {
            let number = draw.within(0..=servers.len() - 1);
            servers[number].stop();
            if draw.percent(50) {
                // As after a restart.
                servers[number].resume();
            } else {
                down = Some(number);
            }
        } else {
            number += 1;
            let (plan, allows) = text(seed, number, &new);
            plans.push(allows);
            if draw.percent(50) {
                file.write(&plan);
            } else {
                file.replace(&plan);
            }
        }
    }
    if let Some(number) = down {
        servers[number].resume();
    }
    plans
}

/// How long a wave lasts.
pub fn wave_time(seed: u64, wave: usize) -> Duration {
    match wave {
        0 => Duration::from_millis(500),
        _ => Draw::of(&[seed, 6, wave as u64]).millis(1000..=2000),
    }
}
