//! Decides which results of polling a frontend are reported: a single failed poll changes nothing.

use std::collections::BTreeSet;

use crate::rollout::Registered;

/// A single response may get lost: believe only this many failures in a row.
const MISSED: u32 = 2;

/// The known state of a frontend.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FrontendReport {
    /// The models that it is proven to serve.
    pub models: BTreeSet<String>,
    /// Whether a model is being probed for the first time.
    pub is_trying: bool,
    /// Number of listed models that are not checked, because there are too many.
    pub left_out: usize,
    /// The workers that it reports.
    pub registered: Registered,
    /// The Dynamo namespaces of these workers.
    pub namespaces: BTreeSet<String>,
    /// Whether it reports more of them than are kept.
    pub has_more_namespaces: bool,
    /// Whether its responses come through a crossfade proxy.
    pub is_proxied: bool,
    /// Why it could not be polled.
    pub error: Option<FailedQuery>,
}

/// A missing response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailedQuery {
    pub why: String,
    pub how: QueryFailure,
}

/// The kind of failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueryFailure {
    /// No request reached the frontend, so the failure says nothing about it: what was known before still holds.
    NotSent,
    /// There was no response.
    NoResponse,
    /// The response was not usable.
    Bad,
}

/// Decides which poll results to report.
#[derive(Debug, Default)]
pub(super) struct Reading {
    last: Option<FrontendReport>,
    pub missed: u32,
}

impl FrontendReport {
    /// Equal except for the text of a failure.
    fn is_as_good_as(&self, other: &Self) -> bool {
        let how = |report: &Self| report.error.as_ref().map(|missing| missing.how);
        how(self) == how(other)
            && self.is_trying == other.is_trying
            && self.left_out == other.left_out
            && self.registered == other.registered
            && self.namespaces == other.namespaces
            && self.has_more_namespaces == other.has_more_namespaces
            && self.is_proxied == other.is_proxied
            && self.models == other.models
    }
}

impl Reading {
    /// Takes the result of a poll. Returns what to report, if anything, and whether it is news.
    ///
    /// A failure, or a first result without a model, is believed only when it repeats: a response can get lost, and a
    /// frontend that has just started serves no model for a moment.
    pub fn take(
        &mut self,
        answer: Result<FrontendReport, FailedQuery>,
    ) -> Option<(FrontendReport, bool)> {
        let lacks = |report: &FrontendReport| report.models.is_empty() && !report.is_trying;
        let is_missing = answer
            .as_ref()
            .map_or(true, |report| self.last.is_none() && lacks(report));
        self.missed = if is_missing { self.missed + 1 } else { 0 };
        if is_missing && self.missed < MISSED {
            return None;
        }
        let report = answer.unwrap_or_else(|missing| {
            // The frontend was not reached, so what was known before still holds.
            let known = self
                .last
                .as_ref()
                .filter(|_| missing.how == QueryFailure::NotSent);
            FrontendReport {
                error: Some(missing),
                ..known.cloned().unwrap_or_default()
            }
        });
        let is_changed = self
            .last
            .as_ref()
            .is_none_or(|last| !last.is_as_good_as(&report));
        self.last = Some(report.clone());
        Some((report, is_changed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is reported after each poll: a model, `-` for no model, `!` for an error, `.` if nothing is reported.
    fn results(answers: &[Result<&str, ()>]) -> Vec<String> {
        let mut reading = Reading::default();
        let take = |answer: &Result<&str, ()>| {
            let report = answer.map(|models| FrontendReport {
                models: models.split_whitespace().map(str::to_owned).collect(),
                ..FrontendReport::default()
            });
            let results = reading.take(report.map_err(|()| FailedQuery {
                why: "late".to_owned(),
                how: QueryFailure::NoResponse,
            }));
            results.map_or_else(
                || ".".to_owned(),
                |(report, _)| match (report.models.into_iter().next(), report.error) {
                    (Some(model), None) => model,
                    (None, Some(_)) => "!".to_owned(),
                    _ => "-".to_owned(),
                },
            )
        };
        answers.iter().map(take).collect()
    }

    #[test]
    fn one_answer_that_is_missing_takes_nothing_away_not_even_the_first() {
        assert_eq!(
            results(&[Err(()), Ok("a"), Err(()), Ok("a")]),
            [".", "a", ".", "a"]
        );
        assert_eq!(results(&[Err(()), Err(()), Err(())]), [".", "!", "!"]);
        assert_eq!(
            results(&[Ok("a"), Err(()), Err(()), Ok("a")]),
            ["a", ".", "!", "a"]
        );
        // A frontend that has just started serves no model for a moment; one that stops serving a model is believed immediately.
        assert_eq!(
            results(&[Ok(""), Ok("a"), Ok(""), Ok("a")]),
            [".", "a", "-", "a"]
        );
        assert_eq!(results(&[Ok(""), Ok("")]), [".", "-"]);
    }

    #[test]
    fn frontends_that_cannot_be_queried_keep_their_known_models() {
        let mut reading = Reading::default();
        let missing = || {
            Err(FailedQuery {
                why: "Too many open files".to_owned(),
                how: QueryFailure::NotSent,
            })
        };
        let serves = FrontendReport {
            models: ["a".to_owned()].into(),
            ..FrontendReport::default()
        };
        reading.take(Ok(serves.clone()));
        assert_eq!(reading.take(missing()), None);
        let (results, is_changed) = reading.take(missing()).unwrap();
        assert!(
            is_changed
                && results
                    .error
                    .is_some_and(|missing| missing.how == QueryFailure::NotSent)
        );
        assert_eq!(results.models, serves.models);
        assert!(!reading.take(missing()).unwrap().1);
        // The frontend responds again.
        assert_eq!(reading.take(Ok(serves.clone())), Some((serves, true)));
    }
}
