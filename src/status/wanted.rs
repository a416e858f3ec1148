//! The desired split, and a remark if it differs from the requested one.
//!
//! The split in force takes precedence: that of the proxies, then that of the controller, then the edit itself.

use super::StatusReport;
use super::format::percent;
use crate::resource::{DynamoUpdateConfig, capped_share};
use crate::split::Weights;
use crate::state_api::v1;

/// The remark on an update whose split has not been set.
const UNDECIDED: &str =
    "the update sets no split, and no controller has set one yet: all requests go to old";

/// Shares closer than this are the same: a percentage is a rounded ratio.
const SAME: f64 = 0.000_5;

/// The desired share of new, 0 to 1, if known.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct WantedShare {
    pub share: Option<f64>,
    pub remark: Option<String>,
}

/// The desired split of the update. `all` is the total of its proxies.
pub(super) fn wanted(report: &StatusReport, all: Option<&v1::State>) -> WantedShare {
    let update = report.update.as_deref();
    let plan = all.and_then(|all| all.plan.as_ref());
    let cap = plan.and_then(|plan| plan.max_percent?.try_into().ok());
    let cap: Option<u8> = cap.or(update.and_then(|update| update.spec.max_traffic_split_percent));
    let lifted = update.and_then(|update| update.status.as_ref()?.lifted_cap_percent);
    let before_cap = plan.and_then(|plan| plan.weights_before_cap);
    let before_cap = before_cap.and_then(|weights| Weights::new(weights.old, weights.new).ok());
    let requested = update.and_then(|update| update.spec.split());
    let requested = requested.or(before_cap);

    let in_force = plan.and_then(v1::Plan::share_of_new);
    let share = in_force
        .or(update.and_then(of_controller))
        .or(requested.map(|split| capped_share(split, cap, lifted)));
    let requested = requested.map(|split| split.share_of_new());
    let other =
        requested.filter(|requested| share.is_some_and(|share| (share - requested).abs() > SAME));
    let refused = || {
        let mut plans = report.states().filter_map(|state| state.plan.as_ref());
        plans.any(|plan| plan.refusal.is_some())
    };
    let is_cap = |share: Option<f64>| {
        cap.zip(share)
            .is_some_and(|(cap, share)| (f64::from(cap) / 100.0 - share).abs() < SAME)
    };
    let is_undecided = update.is_some_and(|update| {
        let wanted = update.status.as_ref().and_then(|status| status.wanted);
        !update.spec.gives_split() && wanted.is_none()
    });
    let remark = if all.is_some() && plan.is_none() {
        Some("the proxies have different plans".to_owned())
    } else if is_undecided {
        Some(UNDECIDED.to_owned())
    } else {
        other.map(|requested| {
            let requested = format!("{} requested", percent(requested));
            match (share, in_force) {
                (Some(share), _) if is_cap(Some(share)) => {
                    format!("{requested}, capped at {}", percent(share))
                }
                (_, Some(_)) if refused() => format!("{requested}, but the edit was rejected"),
                (_, Some(_)) => format!("{requested}, which is not in force yet"),
                (_, None) => format!("{requested}, overridden by the controller"),
            }
        })
    };
    WantedShare { share, remark }
}

/// The share that the controller wants, if it has observed the last edit.
fn of_controller(update: &DynamoUpdateConfig) -> Option<f64> {
    let status = update.status.as_ref()?;
    let is_of_this_edit = status.observed_generation == update.metadata.generation;
    let wanted = status.wanted.filter(|_| is_of_this_edit)?;
    Some(wanted.exact()?.share_of_new())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resource::DynamoUpdateConfigSpec;
    use crate::resource::status::{DynamoUpdateConfigStatus, SplitStatus};
    use crate::status::ProxyAnswer;

    /// An update that requests this percentage.
    fn requests(percent: u8) -> StatusReport {
        let mut spec = DynamoUpdateConfigSpec::to("new:8000");
        spec.traffic_split_percent = Some(percent);
        let mut update = DynamoUpdateConfig::new("u", spec);
        update.metadata.generation = Some(3);
        StatusReport {
            update: Some(Box::new(update)),
            ..StatusReport::default()
        }
    }

    /// And a proxy that has this one in force.
    fn in_force(
        mut report: StatusReport,
        percent: u32,
        change: impl FnOnce(&mut v1::Plan),
    ) -> WantedShare {
        let mut plan = v1::Plan {
            weights: Some(v1::Weights {
                old: 100 - percent,
                new: percent,
            }),
            ..Default::default()
        };
        change(&mut plan);
        let state = v1::State {
            plan: Some(plan),
            ..Default::default()
        };
        report.proxies.push(ProxyAnswer {
            name: "p".into(),
            state: Ok(state.clone()),
        });
        wanted(&report, Some(&state))
    }

    fn is(share: f64, remark: Option<&str>) -> WantedShare {
        WantedShare {
            share: Some(share),
            remark: remark.map(str::to_owned),
        }
    }

    #[test]
    fn the_split_in_force_takes_precedence_over_the_requested_one() {
        let capped = in_force(requests(70), 60, |plan| plan.max_percent = Some(60));
        assert_eq!(capped, is(0.6, Some("70% requested, capped at 60%")));
        let refused = in_force(requests(70), 25, |plan| {
            plan.refusal = Some(v1::Refusal::default())
        });
        assert_eq!(
            refused,
            is(0.25, Some("70% requested, but the edit was rejected"))
        );
        let late = in_force(requests(70), 25, |_| ());
        assert_eq!(
            late,
            is(0.25, Some("70% requested, which is not in force yet"))
        );
        assert_eq!(in_force(requests(70), 70, |_| ()), is(0.7, None));
        // If the proxies were queried by address, there is no edit to compare with.
        let alone = in_force(StatusReport::default(), 60, |plan| {
            plan.max_percent = Some(60);
            plan.weights_before_cap = Some(v1::Weights { old: 3, new: 7 });
        });
        assert_eq!(alone, is(0.6, Some("70% requested, capped at 60%")));
    }

    #[test]
    fn without_proxies_the_controller_and_then_the_edit_report_what_is_wanted() {
        assert_eq!(wanted(&requests(70), None), is(0.7, None));
        let mut report = requests(70);
        let update = report.update.as_mut().unwrap();
        update.spec.max_traffic_split_percent = Some(60);
        assert_eq!(
            wanted(&report, None),
            is(0.6, Some("70% requested, capped at 60%"))
        );
        let update = report.update.as_mut().unwrap();
        update.status = Some(DynamoUpdateConfigStatus {
            observed_generation: Some(3),
            wanted: Some(SplitStatus {
                percent: 40,
                weights: None,
            }),
            ..Default::default()
        });
        let otherwise = "70% requested, overridden by the controller";
        assert_eq!(wanted(&report, None), is(0.4, Some(otherwise)));
        // It has not seen this edit yet.
        report.update.as_mut().unwrap().metadata.generation = Some(4);
        assert_eq!(wanted(&report, None).share, Some(0.6));
        // The controller has lifted the cap, because old is out.
        let update = report.update.as_mut().unwrap();
        update.spec.traffic_split_percent = Some(100);
        update.status.as_mut().unwrap().lifted_cap_percent = Some(60);
        assert_eq!(wanted(&report, None), is(1.0, None));
    }

    #[test]
    fn a_split_that_is_left_to_the_controller_is_reported_until_it_is_set() {
        let mut report = requests(0);
        let update = report.update.as_mut().unwrap();
        update.spec.traffic_split_percent = None;
        let undecided = wanted(&report, None);
        assert_eq!(undecided.share, None);
        assert_eq!(undecided.remark.as_deref(), Some(UNDECIDED));
        assert_eq!(
            in_force(report.clone(), 0, |_| ()),
            is(0.0, Some(UNDECIDED))
        );
        let update = report.update.as_mut().unwrap();
        update.status = Some(DynamoUpdateConfigStatus {
            observed_generation: Some(3),
            wanted: Some(SplitStatus {
                percent: 40,
                weights: None,
            }),
            ..Default::default()
        });
        assert_eq!(wanted(&report, None), is(0.4, None));
        assert_eq!(in_force(report, 40, |_| ()), is(0.4, None));
    }

    #[test]
    fn differences_between_proxies_are_reported() {
        let all = v1::State::default();
        let remark = wanted(&requests(70), Some(&all)).remark;
        assert_eq!(remark.as_deref(), Some("the proxies have different plans"));
    }
}
