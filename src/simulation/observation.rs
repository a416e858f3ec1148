//! The controller's observation of the modelled cluster.

use std::collections::BTreeMap;
use std::time::Duration;

use super::cluster::{Cluster, Workload};
use crate::rollout::PerGeneration;
use crate::scaling::{
    ClientRouting, GenerationObservation, LastWorker, Pod, RemovalOrder, RoleReplicas,
    RolloutObservation, Serves, Traffic, TrialVerdict,
};
use crate::split::Generation;

impl Cluster<'_> {
    /// The current observation.
    pub fn read(&self) -> RolloutObservation {
        let all_new = self.split.is_all_new() && self.applied == self.split;
        let open = PerGeneration {
            old: self.open(Generation::Old),
            new: self.open(Generation::New),
        };
        let is_quiet = self.since(self.came_to_old_at) >= self.scenario.quiet;
        RolloutObservation {
            unfinished: Vec::new(),
            is_current: true,
            generations: PerGeneration {
                old: self.generation(Generation::Old),
                new: self.generation(Generation::New),
            },
            traffic: Traffic {
                split: self.split,
                applied: vec![Some(self.applied)],
                applied_for: self.since(self.applied_at),
                open: Some(open),
                p99: Some(self.scenario.stream_p99),
            },
            verdict: self.verdict(),
            clients: ClientRouting {
                handed_over: false,
                service: Some(self.service),
                selector_saved: self.selector_saved,
                direct_to_new: Some(self.service == Generation::New),
                last_worker: match (all_new, open.old) {
                    (false, _) => LastWorker::Needed,
                    (true, 0) => LastWorker::Dispensable,
                    (true, _) => LastWorker::Streams,
                },
                safe_to_delete_old: all_new
                    && self.service == Generation::New
                    && is_quiet
                    && self.through.old == 0,
                retired: self.retired,
            },
            unchanged_for: self.since(self.changed_at),
            at_rest_for: self.since(self.rest_since),
            unready_for: self.since(self.unready_since),
            quota_left: None,
            pods_left: None,
            resources_left: BTreeMap::new(),
            accepts_sizes: false,
            retire_obstacle: None,
        }
    }

    const fn since(&self, then: u64) -> Duration {
        Duration::from_secs(self.now.saturating_sub(then))
    }

    fn verdict(&self) -> TrialVerdict {
        let samples = self.arrivals.samples();
        match self.scenario.analysis {
            Some(needed) if samples.old.min(samples.new) < needed.count => {
                TrialVerdict::Inconclusive
            }
            _ => TrialVerdict::Pass,
        }
    }

    fn generation(&self, generation: Generation) -> GenerationObservation {
        let roles = self.generations.of(generation).iter();
        let roles: BTreeMap<_, _> = roles
            .map(|(role, workload)| (*role, self.workers(workload)))
            .collect();
        GenerationObservation {
            roles,
            serves: Serves::Yes,
            frontends: 1,
            scaler: None,
            lost: None,
        }
    }

    fn workers(&self, workload: &Workload) -> RoleReplicas {
        let now = self.now;
        let staying = || workload.pods.iter().filter(|pod| pod.ending.is_none());
        let ready = || staying().filter(|pod| pod.is_ready(now));
        let present = workload.present();
        RoleReplicas {
            desired: workload.desired,
            observed: now >= workload.observed_at,
            present,
            terminating: workload.pods.len() as u32 - present,
            ready: ready().count() as u32,
            warm: ready().filter(|pod| pod.warm_at <= now).count() as u32,
            recorded: workload.ours.then_some(workload.desired),
            ours: workload.ours,
            grace: Some(self.scenario.grace),
            leaving: Vec::new(),
            resources: BTreeMap::new(),
            removes: match self.scenario.chooses {
                false => RemovalOrder::Last,
                true => RemovalOrder::Marked(
                    staying()
                        .map(|pod| Pod {
                            name: pod.number.to_string(),
                            ready: pod.is_ready(now),
                            open_streams: Some(pod.open() as u64),
                            marked: pod.marked,
                        })
                        .collect(),
                ),
            },
        }
    }
}
