//! The reason for a verdict, as a label value.

use super::{Metric, NoVerdict, Report, Verdict};

/// What decided a verdict, or what is missing for one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// New is within all margins.
    WithinMargins,
    /// New fails by this metric.
    Worse(Metric),
    NoTraffic,
    TooFewRequests,
    InFlight,
    TooFewValues,
    NotEnoughEvidence,
    TooFewCompleted,
    MostFail,
    /// Proxies do not report counts that can be compared.
    NotComparable,
    JustStarted,
    /// New failed by an unrecorded metric: an earlier process or version found the failure.
    Unknown,
}

impl Reason {
    /// All reasons.
    pub const ALL: [Self; 16] = [
        Self::WithinMargins,
        Self::Worse(Metric::Failures),
        Self::Worse(Metric::FirstTokenP50),
        Self::Worse(Metric::FirstTokenP95),
        Self::Worse(Metric::GapP99),
        Self::Worse(Metric::TimePerToken),
        Self::NoTraffic,
        Self::TooFewRequests,
        Self::InFlight,
        Self::TooFewValues,
        Self::NotEnoughEvidence,
        Self::TooFewCompleted,
        Self::MostFail,
        Self::NotComparable,
        Self::JustStarted,
        Self::Unknown,
    ];

    /// The label value.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::WithinMargins => "within_margins",
            Self::Worse(Metric::Failures) => "failure_rate",
            Self::Worse(Metric::FirstTokenP50) => "first_token_p50",
            Self::Worse(Metric::FirstTokenP95) => "first_token_p95",
            Self::Worse(Metric::GapP99) => "gap_p99",
            Self::Worse(Metric::TimePerToken) => "time_per_token_p50",
            Self::NoTraffic => "no_traffic",
            Self::TooFewRequests => "too_few_requests",
            Self::InFlight => "in_flight",
            Self::TooFewValues => "too_few_values",
            Self::NotEnoughEvidence => "not_enough_evidence",
            Self::TooFewCompleted => "too_few_completed",
            Self::MostFail => "most_fail",
            Self::NotComparable => "not_comparable",
            Self::JustStarted => "just_started",
            Self::Unknown => "unknown",
        }
    }

    /// The reason with this label value.
    #[must_use]
    pub fn from_name(name: &str) -> Self {
        let known = Self::ALL.into_iter().find(|reason| reason.as_str() == name);
        known.unwrap_or(Self::Unknown)
    }
}

impl Report {
    #[must_use]
    pub const fn reason(&self) -> Reason {
        match &self.verdict {
            Verdict::Pass => Reason::WithinMargins,
            Verdict::Fail(row) => Reason::Worse(row.metric),
            Verdict::Inconclusive(why) => match why {
                NoVerdict::NoTraffic => Reason::NoTraffic,
                NoVerdict::TooFew(..) => Reason::TooFewRequests,
                NoVerdict::InFlight(_) => Reason::InFlight,
                NoVerdict::TooFewValues(..) => Reason::TooFewValues,
                NoVerdict::Unclear(_) => Reason::NotEnoughEvidence,
                NoVerdict::FewCompleted(..) => Reason::TooFewCompleted,
                NoVerdict::MostFail(..) => Reason::MostFail,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_label_value_states_its_reason() {
        for reason in Reason::ALL {
            assert_eq!(Reason::from_name(reason.as_str()), reason);
        }
        assert_eq!(Reason::from_name("of a later version"), Reason::Unknown);
    }
}
