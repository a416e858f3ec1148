//! `/plan`: the plan in force, its age and its source, and the last plan that was rejected since then.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use super::Admin;
use crate::continuation::{Mode, Probe};
use crate::failover::Target;
use crate::printable::write_json_pretty;
use crate::snapshot::Snapshot;
use crate::split::Generation;
use crate::upstream::Endpoint;

/// The page, as JSON. Times are seconds since 1970.
pub fn render(admin: &Admin) -> Vec<u8> {
    let snapshot = admin.snapshots.load();
    let metrics = &admin.metrics;
    let plan = &snapshot.plan;
    let rejection = admin.status.rejection.load();
    let rejection = rejection.as_ref().as_ref().map(|rejection| {
        let problems: Vec<Value> = rejection
            .problems
            .iter()
            .map(|problem| {
                json!({"path": problem.path, "line": problem.line, "message": problem.message})
            })
            .collect();
        json!({
            "source": *rejection.source,
            "at": seconds(rejection.at),
            "problems": problems,
        })
    });
    let page = json!({
        "phase": admin.lifecycle.phase().as_str(),
        "epoch": snapshot.epoch,
        "since": seconds(snapshot.since),
        "ageSeconds": snapshot.since_instant.elapsed().as_secs_f64(),
        "source": *snapshot.source,
        "sourceLostSeconds": admin.status.lost_since.load().map(|since| since.elapsed().as_secs_f64()),
        "remarks": **admin.status.remarks.load(),
        "summary": plan.to_string(),
        "weights": {"old": plan.weights.old(), "new": plan.weights.new_weight()},
        "trafficSplitPercent": plan.weights.rounded_percent(),
        "split": {
            "wanted": plan.weights.share_of_new(),
            "observed": metrics.window.share(metrics.second(Instant::now())),
            "answered": metrics.answered.share(metrics.second(Instant::now())),
        },
        "openStreams": {
            "old": metrics.open_streams(Generation::Old),
            "new": metrics.open_streams(Generation::New),
        },
        "identity": {
            "namespace": plan.identity.namespace,
            "name": plan.identity.name,
            "generation": plan.identity.generation,
        },
        "spec": snapshot.manifest.as_ref().map(|manifest| &manifest.spec),
        "withoutEffect": snapshot.manifest.as_ref().map(|manifest| &manifest.without_effect),
        "movingStreams": admin.snapshots.moving(),
        "analysis": admin.status.analysis_result(plan).map(|result| json!({
            "verdict": result.verdict,
            "text": result.text,
            "rolledBack": result.rolled_back,
        })),
        "endpoints": endpoints(&snapshot),
        "lastRejection": rejection,
    });
    let mut text = Vec::new();
    // Users read it in a terminal.
    write_json_pretty(&mut text, &page).expect("writing to a Vec does not fail");
    text.push(b'\n');
    text
}

fn endpoints(snapshot: &Snapshot) -> Vec<Value> {
    let now = Instant::now();
    let continues = snapshot.plan.failover.continuation.mode != Mode::Off;
    // Proofs from an earlier plan may be outdated.
    let capabilities = move |endpoint: &Endpoint, probe| {
        let capabilities = endpoint.capabilities(probe, now).into_iter();
        let capabilities = capabilities
            .map(|(model, capability)| (model.to_string(), Value::from(capability.as_str())));
        continues.then(|| Value::Object(capabilities.collect()))
    };
    snapshot
        .pools()
        .flat_map(|(target, pool)| {
            pool.endpoints().iter().map(move |endpoint| {
                json!({
                    "pool": match target {
                        Target::Old => "old",
                        Target::New => "new",
                        Target::Peers => "peers",
                    },
                    "continuation": capabilities(endpoint, Probe::Chat),
                    "messagesContinuation": capabilities(endpoint, Probe::Messages),
                    "address": endpoint.address.to_string(),
                    "tls": endpoint.server_name.is_some(),
                    "healthy": endpoint.is_healthy(now),
                    "open": endpoint.open(),
                })
            })
        })
        .collect()
}

fn seconds(time: SystemTime) -> f64 {
    time.duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_secs_f64()
}
