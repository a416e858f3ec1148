//! The attempts of both generations by kind of request, without any times.

use std::collections::BTreeMap;

use super::{Attempts, Counts, Stratum};

/// How the requests of both generations ended, old first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcomes(pub BTreeMap<Stratum, [Attempts; 2]>);

impl Outcomes {
    /// The counts since `before`. Decreasing counts are ignored.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        let strata = self.0.iter().map(|(stratum, [old, new])| {
            let [before_old, before_new] = before.0.get(stratum).copied().unwrap_or_default();
            let generations = [
                old.saturating_since(before_old),
                new.saturating_since(before_new),
            ];
            (stratum.clone(), generations)
        });
        Self(strata.collect())
    }
}

impl From<&Counts> for Outcomes {
    fn from(counts: &Counts) -> Self {
        let strata = counts.0.iter();
        Self(
            strata
                .map(|(stratum, generations)| {
                    (
                        stratum.clone(),
                        generations.each_ref().map(|generation| generation.attempts),
                    )
                })
                .collect(),
        )
    }
}
