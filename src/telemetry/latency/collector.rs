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
    sides: [Arc<Histogram>; 2],
}

impl Exposed {
    /// # Errors
    /// When the name or the help is invalid for Prometheus.
    pub fn new(
        name: &str,
        help: &str,
        bounds: &'static [f64],
        sides: [Arc<Histogram>; 2],
    ) -> prometheus::Result<Self> {
        let labels = vec!["generation".to_owned()];
        let desc = Desc::new(name.to_owned(), help.to_owned(), labels, Default::default())?;
        Ok(Self {
            desc,
            bounds,
            sides,
        })
    }
}

impl Collector for Exposed {
    fn desc(&self) -> Vec<&Desc> {
        vec![&self.desc]
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let metrics = Generation::ALL.map(|generation| {
            let sketch = self.sides[generation.index()].sketch();
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
