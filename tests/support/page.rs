//! Compares the live page as a user sees it with the metrics that it must show.
//!
//! Does not depend on the proxy or the controller.
#![allow(dead_code, reason = "each test binary uses its own part")]

use std::collections::BTreeMap;

use crate::browser::Browser;
use crate::rig::proxy::Metrics;

/// Figures by name.
pub type Figures = BTreeMap<String, String>;

/// All figures on the page, as displayed.
pub async fn figures(browser: &mut Browser) -> Figures {
    let all = "Object.fromEntries([...document.querySelectorAll('[data-figure]')].map((found) => [found.dataset.figure, found.textContent]))";
    serde_json::from_value(browser.value(all).await).unwrap()
}

/// The figures that the page must show for the metrics of one proxy, or of several together: all except the plan.
pub fn expected(metrics: &Metrics) -> Figures {
    let mut figures = Figures::new();
    // The sum of no series is -0.0, which is the same as 0.
    let sum = |name: &str, labels: &[(&str, &str)]| metrics.sum(name, labels) + 0.0;
    let proxies = metrics.of("crossfade_plan_epoch").len() as f64;
    let mut is = |figure: &str, wanted: String| figures.insert(figure.to_owned(), wanted);
    for generation in ["old", "new"] {
        let label = ("generation", generation);
        is(
            &format!("{generation}.openStreams"),
            sum("crossfade_open_streams", &[label]).to_string(),
        );
        for outcome in ["completed", "truncated", "failed", "cancelled"] {
            let count = sum("crossfade_requests_total", &[label, ("outcome", outcome)]);
            is(&format!("{generation}.{outcome}"), count.to_string());
        }
        // Each proxy counts the same addresses.
        let addresses = |state| {
            let all = sum("crossfade_pool_endpoints", &[label, ("state", state)]);
            all / proxies
        };
        let (healthy, ejected) = (addresses("healthy"), addresses("ejected"));
        is(
            &format!("{generation}.endpoints"),
            format!("{healthy} of {}", healthy + ejected),
        );
        for (figure, name) in [
            ("firstEvent", "crossfade_time_to_first_event_seconds"),
            ("gap", "crossfade_inter_event_seconds"),
        ] {
            let count = sum(&format!("{name}_count"), &[label]);
            is(&format!("{generation}.{figure}.count"), count.to_string());
        }
    }
    for (figure, name) in [
        ("recovered", "crossfade_recovered_requests_total"),
        ("rejected", "crossfade_rejected_requests_total"),
    ] {
        is(figure, sum(name, &[]).to_string());
        for (labels, count) in metrics.of(name) {
            if count > 0.0 {
                let count = sum(name, &[("cause", &labels["cause"])]);
                is(&format!("{figure}.{}", labels["cause"]), count.to_string());
            }
        }
    }
    let refused = sum("crossfade_retries_refused_total", &[]);
    is("retriesRefused", refused.to_string());
    for kind in ["wanted", "observed"] {
        let share = sum("crossfade_split_ratio", &[("kind", kind)]) / proxies;
        is(&format!("split.{kind}"), format!("{:.1}%", share * 100.0));
    }
    figures
}
