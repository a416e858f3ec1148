//! Counters over all proxies of an update that only rise: a proxy that leaves takes nothing away, and of one that comes back
//! only what is new is added.
//!
//! Must not know what is counted.

use std::collections::HashMap;

use crate::pages::Counters;
use crate::state_api::v1::State;

/// The sum, and what each proxy said last: when its process started, and its counters since.
#[derive(Debug, Default)]
pub(super) struct Totals {
    sum: Counters,
    last: HashMap<String, (Option<prost_types::Timestamp>, Counters)>,
}

impl Totals {
    /// Adds what is new of the proxy in this pod. What it counted before it was first heard is not.
    pub fn add(&mut self, pod: &str, state: &State) {
        let started = state.process.as_ref().and_then(|process| process.started);
        let counters = Counters::of(state);
        let before = self.last.insert(pod.to_owned(), (started, counters));
        self.sum = self.sum
            + match before {
                Some((same, before)) if same == started => counters - before,
                // It began anew.
                Some(_) => counters,
                None => Counters::default(),
            };
    }

    /// Forgets pods that are no more.
    pub fn keep(&mut self, is_there: impl Fn(&str) -> bool) {
        self.last.retain(|pod, _| is_there(pod));
    }

    pub fn sum(&self) -> Counters {
        self.sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state_api::v1::Process;

    fn state(started: i64, saves: u64) -> State {
        State {
            process: Some(Process {
                started: Some(prost_types::Timestamp {
                    seconds: started,
                    nanos: 0,
                }),
                ..Default::default()
            }),
            saves: [("connect".to_owned(), saves)].into(),
            ..Default::default()
        }
    }

    #[test]
    fn only_what_is_new_is_counted_whoever_comes_and_goes() {
        let mut totals = Totals::default();
        let mut saves = |pod: &str, started, saves| {
            totals.add(pod, &state(started, saves));
            totals.sum().saves
        };
        assert_eq!(saves("a", 1, 100), 0);
        assert_eq!(saves("b", 1, 0), 0);
        assert_eq!(saves("a", 1, 103), 3);
        // It is silent meanwhile; nothing is lost by that.
        assert_eq!(saves("b", 1, 2), 5);
        assert_eq!(saves("a", 1, 104), 6);
        // Its process has begun anew.
        assert_eq!(saves("a", 2, 1), 7);
        totals.keep(|pod| pod == "b");
        totals.add("a", &state(2, 50));
        assert_eq!(totals.sum().saves, 7);
    }
}
