//! Outlier detection: decides when to eject an endpoint because of its own failures, as in Envoy (`outlier_detection`) and
//! linkerd2-proxy.
//!
//! Pure: the time, in seconds, is an argument. A record packs into one integer, so that threads can share it without a lock.
//!
//! An endpoint is ejected after:
//!
//! - [`CONNECTS`] consecutive failures to connect, or [`TIMEOUTS`] consecutive attempts without a response in time.
//! - A failure ratio of [`RATIO`]% over at least [`VOLUME`] requests within [`WINDOW`] seconds. A client can provoke any number
//!   of 503 responses, so they count only as a share of all requests, and a single later success ends the ejection.
//! - A single failure to connect, or a single attempt without a response in time, once it has been ejected before.

/// Consecutive failures to connect that eject an endpoint.
pub const CONNECTS: u8 = 3;
/// Consecutive attempts without a response in time that eject an endpoint.
pub const TIMEOUTS: u8 = 5;
/// Minimum number of requests in a window for the ratio to count.
pub const VOLUME: u16 = 10;
/// Failure ratio, in percent, at which an endpoint is ejected.
pub const RATIO: u16 = 50;
/// Length of a window, in seconds. It starts with its first failure; nothing is counted before.
pub const WINDOW: u32 = 30;

/// How an attempt failed, if the endpoint is at fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndpointFailure {
    /// The connection could not be opened.
    Connect,
    /// No response in time.
    Timeout,
    /// The endpoint responded with a gateway error (502–504) or began with an error event, or the response ended before the
    /// first content.
    Answer,
}

/// Why an endpoint is ejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ejection {
    /// It does not accept connections.
    Unreachable,
    /// It accepts requests but does not respond.
    Unresponsive,
    /// Too many of its responses are errors.
    Failing,
}

/// The recent results of an endpoint. The default is the record of an endpoint without failures.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Record {
    /// Start of the window, in seconds, modulo 2²⁴.
    since: u32,
    failures: u16,
    successes: u16,
    /// Consecutive failures to connect.
    connects: u8,
    /// Consecutive attempts without a response in time. Failures to connect in between do not reset it.
    timeouts: u8,
    ejections: u8,
    why: Option<Ejection>,
}

const SINCE_BITS: u32 = 24;
const COUNT_BITS: u32 = 12;
const SMALL_BITS: u32 = 4;
const COUNT_MAX: u16 = (1 << COUNT_BITS) - 1;
const SMALL_MAX: u8 = (1 << SMALL_BITS) - 1;

impl Record {
    /// The number of ejections since the last reset. A success after the end of the window resets the record.
    #[must_use]
    pub fn ejections(self) -> u8 {
        self.ejections
    }

    /// The reason for the last ejection.
    #[must_use]
    pub fn why(self) -> Option<Ejection> {
        self.why
    }

    fn is_over(self, second: u64) -> bool {
        let age = (second as u32).wrapping_sub(self.since) % (1 << SINCE_BITS);
        age >= WINDOW
    }

    /// Records a successful request.
    #[must_use]
    pub fn succeeded(self, second: u64) -> Self {
        if self.is_over(second) {
            return Self::default();
        }
        let (failures, successes) = match self.successes {
            // Halve both to keep the ratio.
            COUNT_MAX => (self.failures / 2, COUNT_MAX / 2),
            successes => (self.failures, successes + 1),
        };
        Self {
            failures,
            successes,
            connects: 0,
            timeouts: 0,
            ..self
        }
    }

    /// Records a failed request. While an ejection lasts (`is_ejected`), it cannot cause another one.
    #[must_use]
    pub fn failed(
        self,
        failure: EndpointFailure,
        second: u64,
        is_ejected: bool,
    ) -> (Self, Option<Ejection>) {
        let mut record = self;
        if record.is_over(second) || record == Self::default() {
            record.since = second as u32 % (1 << SINCE_BITS);
            (record.failures, record.successes) = (0, 0);
        }
        if record.failures == COUNT_MAX {
            record.failures /= 2;
            record.successes /= 2;
        }
        record.failures += 1;
        match failure {
            EndpointFailure::Connect => record.connects = (record.connects + 1).min(SMALL_MAX),
            EndpointFailure::Timeout => {
                record.connects = 0;
                record.timeouts = (record.timeouts + 1).min(SMALL_MAX);
            }
            EndpointFailure::Answer => (record.connects, record.timeouts) = (0, 0),
        }
        if is_ejected {
            return (record, None);
        }
        let all = record.failures + record.successes.min(u16::MAX - record.failures);
        let limit = |limit: u8| if record.ejections > 0 { 1 } else { limit };
        let ejection = if record.connects >= limit(CONNECTS) {
            Some(Ejection::Unreachable)
        } else if record.timeouts >= limit(TIMEOUTS) {
            Some(Ejection::Unresponsive)
        } else if all >= VOLUME
            && u32::from(record.failures) * 100 >= u32::from(all) * u32::from(RATIO)
        {
            Some(Ejection::Failing)
        } else {
            None
        };
        if ejection.is_some() {
            record = Self {
                since: second as u32 % (1 << SINCE_BITS),
                failures: 0,
                successes: 0,
                connects: 0,
                timeouts: 0,
                ejections: record.ejections.saturating_add(1).min(SMALL_MAX),
                why: ejection,
            };
        }
        (record, ejection)
    }

    /// Packs the record into one integer. The default packs to 0.
    #[must_use]
    pub fn pack(self) -> u64 {
        let why = match self.why {
            None => 0,
            Some(Ejection::Unreachable) => 1,
            Some(Ejection::Unresponsive) => 2,
            Some(Ejection::Failing) => 3,
        };
        let fields = [
            (u64::from(self.since), SINCE_BITS),
            (u64::from(self.failures), COUNT_BITS),
            (u64::from(self.successes), COUNT_BITS),
            (u64::from(self.connects), SMALL_BITS),
            (u64::from(self.timeouts), SMALL_BITS),
            (u64::from(self.ejections), SMALL_BITS),
            (why, 2),
        ];
        fields
            .into_iter()
            .fold(0, |word, (value, bits)| word << bits | value)
    }

    /// The inverse of [`Record::pack`].
    #[must_use]
    pub fn unpack(mut word: u64) -> Self {
        let mut take = |bits: u32| {
            let value = word & ((1 << bits) - 1);
            word >>= bits;
            value
        };
        let why = match take(2) {
            0 => None,
            1 => Some(Ejection::Unreachable),
            2 => Some(Ejection::Unresponsive),
            _ => Some(Ejection::Failing),
        };
        let [ejections, timeouts, connects] = [(); 3].map(|()| take(SMALL_BITS) as u8);
        let [successes, failures] = [(); 2].map(|()| take(COUNT_BITS) as u16);
        Self {
            since: take(SINCE_BITS) as u32,
            failures,
            successes,
            connects,
            timeouts,
            ejections,
            why,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The ejection after the last of `results`, each a failure or a success at second 7.
    fn after(results: &[Option<EndpointFailure>]) -> Option<Ejection> {
        let mut record = Record::default();
        let mut last = None;
        for result in results {
            last = match result {
                Some(failure) => {
                    let (next, ejection) = record.failed(*failure, 7, false);
                    record = next;
                    ejection
                }
                None => {
                    record = record.succeeded(7);
                    None
                }
            };
        }
        last
    }

    const C: Option<EndpointFailure> = Some(EndpointFailure::Connect);
    const S: Option<EndpointFailure> = Some(EndpointFailure::Timeout);
    const A: Option<EndpointFailure> = Some(EndpointFailure::Answer);
    const OK: Option<EndpointFailure> = None;

    #[test]
    fn an_endpoint_is_ejected_by_failures_to_connect_by_timeouts_or_by_a_ratio_over_enough_requests()
     {
        for (results, expected) in [
            (vec![C; 2], None),
            (vec![C; 3], Some(Ejection::Unreachable)),
            (vec![C, C, OK, C], None),
            (vec![C, C, A, C], None),
            (vec![S; 4], None),
            (vec![S; 5], Some(Ejection::Unresponsive)),
            (vec![S, S, S, S, OK, S], None),
            (vec![S, S, S, S, C, S], Some(Ejection::Unresponsive)),
            (vec![A; 3], None),
            (vec![A; 9], None),
            (vec![A; 10], Some(Ejection::Failing)),
            (
                [vec![A], vec![OK; 5], vec![A; 4]].concat(),
                Some(Ejection::Failing),
            ),
            ([vec![A], vec![OK; 6], vec![A; 4]].concat(), None),
            ([vec![A], vec![OK; 100], vec![A; 50]].concat(), None),
        ] {
            assert_eq!(after(&results), expected, "{results:?}");
        }
    }

    #[test]
    fn after_an_ejection_one_failure_to_connect_is_enough_until_a_calm_window_has_passed() {
        let mut record = Record::default();
        for _ in 0..3 {
            record = record.failed(EndpointFailure::Connect, 0, false).0;
        }
        assert_eq!(record.ejections(), 1);
        let (again, ejection) = record
            .succeeded(1)
            .failed(EndpointFailure::Connect, 2, false);
        assert_eq!(
            (ejection, again.ejections()),
            (Some(Ejection::Unreachable), 2)
        );
        assert_eq!(record.failed(EndpointFailure::Answer, 2, false).1, None);
        let calm = record.succeeded(u64::from(WINDOW));
        assert_eq!(calm, Record::default());
        assert_eq!(calm.failed(EndpointFailure::Connect, 40, false).1, None);
    }

    #[test]
    fn nothing_follows_from_failures_while_an_ejection_lasts() {
        let mut record = Record::default();
        for _ in 0..100 {
            let (next, ejection) = record.failed(EndpointFailure::Connect, 0, true);
            assert_eq!(ejection, None);
            record = next;
        }
    }

    #[test]
    fn failures_of_different_windows_do_not_add_up() {
        let mut record = Record::default();
        for window in 0..100 {
            let (next, ejection) =
                record.failed(EndpointFailure::Answer, window * u64::from(WINDOW), false);
            assert_eq!(ejection, None);
            record = next;
        }
    }

    fn any_failure() -> impl Strategy<Value = EndpointFailure> {
        prop::sample::select(
            &[
                EndpointFailure::Connect,
                EndpointFailure::Timeout,
                EndpointFailure::Answer,
            ][..],
        )
    }

    proptest! {
        #[test]
        fn a_record_is_packed_without_overflow(
            results in prop::collection::vec((prop::option::weighted(0.6, any_failure()), 0_u64..3, 1_u32..3000), 0..40),
            start in 0_u64..1 << 26,
        ) {
            let (mut record, mut second) = (Record::default(), start);
            for (result, later, times) in results {
                second += later;
                for _ in 0..times {
                    record = match result {
                        Some(failure) => record.failed(failure, second, false).0,
                        None => record.succeeded(second),
                    };
                }
                prop_assert_eq!(Record::unpack(record.pack()), record);
            }
        }

        #[test]
        fn answers_eject_only_where_half_of_enough_requests_failed(
            failed in prop::collection::vec(any::<bool>(), 0..60),
        ) {
            let mut record = Record::default();
            let (mut failures, mut all) = (0, 0);
            for failed in failed {
                // Counting starts with the first failure.
                failures += u32::from(failed);
                all += u32::from(failed || failures > 0);
                if !failed {
                    if failures > 0 { record = record.succeeded(0); }
                    continue;
                }
                let (next, ejection) = record.failed(EndpointFailure::Answer, 0, false);
                let expected = all >= u32::from(VOLUME) && failures * 2 >= all;
                prop_assert_eq!(ejection.is_some(), expected);
                record = next;
                if expected { break; }
            }
        }
    }
}
