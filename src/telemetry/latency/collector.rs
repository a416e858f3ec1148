//! The histograms of both generations as one Prometheus metric.

use std::sync::Arc;

use prometheus::core::{Collector, Desc};
use prometheus::proto::{
    Bucket, Histogram as Message, LabelPair, Metric, MetricFamily, MetricType,
};

use super::{Histogram, Sketch};
use crate::split::Generation;

/// What Prometheus scrapes. Bounds must be bounds of the [`Scale`](super::Scale).
pub struct Exposed {
    desc: Desc,
    bounds: &'static [f64],
    generations: [Arc<Histogram>; 2],
}

impl Exposed {
    /// # Errors
    /// When the name or the help is invalid for Prometheus.
    pub fn new(
        name: &str,
        help: &str,
        bounds: &'static [f64],
        generations: [Arc<Histogram>; 2],
    ) -> prometheus::Result<Self> {
        let labels = vec!["generation".to_owned()];
        let desc = Desc::new(name.to_owned(), help.to_owned(), labels, Default::default())?;
        Ok(Self {
            desc,
            bounds,
            generations,
        })
    }
}

impl Collector for Exposed {
    fn desc(&self) -> Vec<&Desc> {
        vec![&self.desc]
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let metrics = Generation::ALL.map(|generation| {
            let sketch = self.generations[generation.index()].sketch();
            let mut label = LabelPair::default();
            label.set_name("generation".to_owned());
            label.set_value(generation.as_str().to_owned());
            let mut metric = Metric::default();
            metric.set_label(vec![label]);
            metric.set_histogram(message(&sketch, self.bounds));
            metric
        });
        let mut family = MetricFamily::default();
        family.set_name(self.desc.fq_name.clone());
        family.set_help(self.desc.help.clone());
        family.set_field_type(MetricType::HISTOGRAM);
        family.set_metric(metrics.into());
        vec![family]
    }
}

fn message(sketch: &Sketch, bounds: &[f64]) -> Message {
    let buckets = bounds.iter().map(|bound| {
        let mut bucket = Bucket::default();
        bucket.set_upper_bound(*bound);
        bucket.set_cumulative_count(sketch.count_up_to(*bound));
        bucket
    });
    let mut message = Message::default();
    message.set_bucket(buckets.collect());
    message.set_sample_count(sketch.count());
    message.set_sample_sum(sketch.sum() as f64 / 1e9);
    message
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::telemetry::latency::{FIRST_EVENT_BOUNDS, GAP_BOUNDS};
    use crate::telemetry::quantile::quantile;

    /// What Prometheus computes of these values.
    fn estimate(seconds: impl IntoIterator<Item = f64>, bounds: &[f64], q: f64) -> f64 {
        let histogram = Histogram::default();
        for value in seconds {
            histogram.observe(Duration::from_secs_f64(value));
        }
        let message = message(&histogram.sketch(), bounds);
        let finite = message.get_bucket().iter();
        let finite = finite.map(|bucket| (bucket.upper_bound(), bucket.cumulative_count()));
        let infinite = (f64::INFINITY, message.get_sample_count());
        let buckets: Vec<_> = finite.chain([infinite]).collect();
        quantile(&buckets, q).unwrap()
    }

    /// Values within 5% of `middle`, evenly: times of a server vary more.
    fn near(middle: f64) -> impl Iterator<Item = f64> {
        (0..=100).map(move |i| middle * (0.95 + 0.001 * f64::from(i)))
    }

    /// The range in which adjacent values must be distinguishable.
    fn range(from: f64, to: f64) -> impl Iterator<Item = f64> {
        let steps = ((to / from).ln() / 0.005) as i32;
        (0..=steps).map(move |step| from * (0.005 * f64::from(step)).exp())
    }

    #[test]
    fn prometheus_estimates_a_latency_within_15_percent_and_distinguishes_two_that_differ_by_as_much()
     {
        for (bounds, from, to) in [(GAP_BOUNDS, 0.005, 0.2), (FIRST_EVENT_BOUNDS, 0.05, 5.0)] {
            for middle in range(from / 0.95 * 1.001, to / 1.05) {
                for (q, real) in [(0.5, middle), (0.9, middle * 1.04), (0.95, middle * 1.045)] {
                    let reported = estimate(near(middle), &bounds, q);
                    let error = (reported / real - 1.0).abs();
                    assert!(error <= 0.15, "p{q} of {middle}: {reported}");
                    let other = estimate(near(middle * 1.15), &bounds, q);
                    let is_more = middle * 1.15 * 1.05 > to || other > reported * 1.01;
                    assert!(
                        is_more,
                        "p{q} of {middle} and 15% more: {reported} and {other}"
                    );
                }
                // Even of a value that never varies, the median is as good.
                let reported = estimate([middle; 10], &bounds, 0.5);
                assert!(
                    (reported / middle - 1.0).abs() <= 0.101,
                    "{middle}: {reported}"
                );
            }
        }
    }
}
