//! Monotonic counters summed over all proxies of an update: a proxy that disappears subtracts nothing, and one that returns adds
//! only its increase.

use std::collections::HashMap;

use crate::pages::Counters;
use crate::state_api::v1::State;

/// The sum, and the last report of each proxy: the start time of its process, and its counters.
#[derive(Debug, Default)]
pub(super) struct Totals {
    sum: Counters,
    last: HashMap<String, (Option<prost_types::Timestamp>, Counters)>,
}

impl Totals {
    /// Adds the increase since the last report of the proxy in this pod. The first report only sets the baseline.
    pub fn add(&mut self, pod: &str, state: &State) {
        let started = state.process.as_ref().and_then(|process| process.started);
        let counters = Counters::of(state);
        let before = self.last.insert(pod.to_owned(), (started, counters));
        self.sum = self.sum
            + match before {
                Some((same, before)) if same == started => counters - before,
                // The process has restarted.
                Some(_) => counters,
                None => Counters::default(),
            };
    }

    /// Forgets pods that no longer exist.
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

    fn state(started: i64, recovered: u64) -> State {
        State {
            process: Some(Process {
                started: Some(prost_types::Timestamp {
                    seconds: started,
                    nanos: 0,
                }),
                ..Default::default()
            }),
            recovered_requests: [("connect".to_owned(), recovered)].into(),
            ..Default::default()
        }
    }

    #[test]
    fn only_what_is_new_is_counted_whoever_comes_and_goes() {
        let mut totals = Totals::default();
        let mut total = |pod: &str, started, recovered| {
            totals.add(pod, &state(started, recovered));
            totals.sum().recovered
        };
        assert_eq!(total("a", 1, 100), 0);
        assert_eq!(total("b", 1, 0), 0);
        assert_eq!(total("a", 1, 103), 3);
        // A proxy that was silent for a while loses no counts.
        assert_eq!(total("b", 1, 2), 5);
        assert_eq!(total("a", 1, 104), 6);
        // The process has restarted.
        assert_eq!(total("a", 2, 1), 7);
        totals.keep(|pod| pod == "b");
        totals.add("a", &state(2, 50));
        assert_eq!(totals.sum().recovered, 7);
    }
}
