//! What an earlier leader may have sent to the API server before this replica began to lead. Pure.
//!
//! A leader records in the status what it is about to write. The write itself may arrive after another replica leads: the
//! connection is closed, but the API server, or something in front of it, still has the request.

use std::time::Instant;

use super::{UNCERTAIN, memory};
use crate::managed_update::role;
use crate::resource::rollout_status::{DynamoRolloutStatus, ResizingStatus};
use crate::scaling::UnfinishedWrite;
use crate::split::Generation;

/// The writes of earlier leaders.
#[derive(Default)]
pub(super) struct Inherited {
    /// Since when this replica has led.
    since: Option<Instant>,
    /// Whether this replica has written the status since, so that it has seen everything that an earlier leader recorded, and
    /// what is recorded later is its own.
    has_recorded: bool,
    writes: Vec<UnfinishedWrite>,
}

impl Inherited {
    /// Follows the status, as a replica that has led since then.
    pub fn follow(&mut self, since: Option<Instant>, status: &DynamoRolloutStatus) {
        if self.since != since {
            *self = Self {
                since,
                ..Self::default()
            };
        }
        let recorded = recorded(status);
        match self.has_recorded {
            false => self.writes = recorded,
            // What is no longer recorded was carried out, or can no longer arrive.
            true => self.writes.retain(|write| recorded.contains(write)),
        }
    }

    /// Notes that this replica has written the status.
    pub const fn note_recorded(&mut self) {
        self.has_recorded = true;
    }

    /// What may still arrive. That may include what was carried out.
    pub fn unfinished(&self, now: Instant) -> &[UnfinishedWrite] {
        let is_over = { self.since }.is_none_or(|since| now.duration_since(since) >= UNCERTAIN);
        if is_over { &[] } else { &self.writes }
    }
}

/// The writes that the status announces. They may have been carried out.
fn recorded(status: &DynamoRolloutStatus) -> Vec<UnfinishedWrite> {
    let resizing = memory::resizing(status).and_then(resize);
    let retires =
        { status.memory.as_ref() }.is_some_and(|memory| memory.retiring && !memory.retired);
    let retire = retires.then_some(UnfinishedWrite::Retire);
    resizing.into_iter().chain(retire).collect()
}

fn resize(announced: &ResizingStatus) -> Option<UnfinishedWrite> {
    let generation = { Generation::ALL.into_iter() }
        .find(|generation| generation.as_str() == announced.generation)?;
    let sizes = announced
        .sizes
        .iter()
        .filter_map(|(name, size)| Some((role(name)?, *size)));
    let sizes = sizes.collect();
    Some(UnfinishedWrite::Resize { generation, sizes })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::{Value, json};

    use super::*;
    use crate::rollout::Role;

    fn status(memory: Value) -> DynamoRolloutStatus {
        serde_json::from_value(json!({"memory": memory})).unwrap()
    }

    fn resized(generation: Generation, size: u32) -> UnfinishedWrite {
        let sizes = [(Role::Worker, size)].into();
        UnfinishedWrite::Resize { generation, sizes }
    }

    #[test]
    fn what_an_earlier_leader_recorded_may_arrive_for_a_minute() {
        let resizing = json!({"generation": "old", "sizes": {"worker": 0}});
        let old_empty = resized(Generation::Old, 0);
        for (memory, expected) in [
            (json!({}), vec![]),
            (json!({"resizing": resizing}), vec![old_empty.clone()]),
            (
                json!({"handedOver": true, "retiring": true}),
                vec![UnfinishedWrite::Retire],
            ),
            (json!({"retiring": true, "retired": true}), vec![]),
            (
                json!({"resizing": resizing, "retiring": true}),
                vec![old_empty, UnfinishedWrite::Retire],
            ),
        ] {
            let (since, mut inherited) = (Instant::now(), Inherited::default());
            inherited.follow(Some(since), &status(memory.clone()));
            let at = |seconds| since + Duration::from_secs(seconds);
            assert_eq!(inherited.unfinished(at(59)), expected, "{memory}");
            assert!(inherited.unfinished(at(60)).is_empty(), "{memory}");
        }
    }

    #[test]
    fn what_this_replica_records_itself_is_not_inherited_until_it_leads_again() {
        let shrunk = |size: u32| {
            status(json!({"resizing": {"generation": "old", "sizes": {"worker": size}}}))
        };
        let (since, mut inherited) = (Instant::now(), Inherited::default());
        inherited.follow(Some(since), &status(json!({})));
        // The first status may have been outdated.
        inherited.follow(Some(since), &shrunk(3));
        assert_eq!(inherited.unfinished(since), [resized(Generation::Old, 3)]);
        inherited.note_recorded();
        inherited.follow(Some(since), &shrunk(3));
        assert_eq!(inherited.unfinished(since), [resized(Generation::Old, 3)]);
        inherited.follow(Some(since), &shrunk(2));
        assert!(inherited.unfinished(since).is_empty());
        let again = since + Duration::from_secs(30);
        inherited.follow(Some(again), &shrunk(2));
        assert_eq!(inherited.unfinished(again), [resized(Generation::Old, 2)]);
    }
}
