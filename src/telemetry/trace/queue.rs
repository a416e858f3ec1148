//! The queue of finished spans, which drops spans instead of waiting, and the exporter behind it.
//!
//! The queue and its thread are the SDK's batch processor. It does not report what it drops, so it is never allowed to
//! overflow: room is reserved here before a span is added.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use opentelemetry::KeyValue;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::resource::{EnvResourceDetector, TelemetryResourceDetector};
use opentelemetry_sdk::trace::{
    BatchConfigBuilder, BatchSpanProcessor, SpanData, SpanExporter, SpanProcessor,
};
use prometheus::IntCounter;

#[cfg(feature = "otlp")]
use super::exporter::{self, LastFailure};
#[cfg(not(feature = "otlp"))]
use super::no_exporter::{self as exporter, LastFailure};
use super::settings::{Error, TraceSettings};

/// Log interval of failed exports.
const FAILURE_LOG_INTERVAL: Duration = Duration::from_secs(60);

/// Counters of spans.
#[derive(Clone, Debug)]
pub struct Counts {
    /// Accepted by the collector.
    pub exported: IntCounter,
    /// The collector was unreachable or did not accept them.
    pub failed: IntCounter,
    /// The queue was full.
    pub dropped: IntCounter,
}

/// Queues spans and exports them.
#[derive(Debug)]
pub struct SpanQueue {
    processor: BatchSpanProcessor,
    room: Arc<QueueCapacity>,
}

/// Counts the spans that are not exported yet.
#[derive(Debug)]
struct QueueCapacity {
    taken: AtomicUsize,
    size: usize,
    counts: Counts,
}

impl SpanQueue {
    pub fn open(settings: &TraceSettings, counts: Counts) -> Result<Self, Error> {
        let room = Arc::new(QueueCapacity {
            taken: AtomicUsize::new(0),
            size: settings.queue,
            counts,
        });
        let (exporter, failure) = exporter::build(settings)?;
        let exporter = CountedExporter {
            exporter,
            failure,
            room: Arc::clone(&room),
            last_logged: Mutex::new(None),
        };
        let config = BatchConfigBuilder::default().with_max_queue_size(settings.queue);
        let mut processor = BatchSpanProcessor::new(exporter, config.build());
        processor.set_resource(&resource(settings));
        Ok(Self { processor, room })
    }

    /// Adds a span if there is room.
    pub fn put(&self, span: SpanData) {
        if self.room.enter() {
            self.processor.on_end(span);
        }
    }

    /// Exports what is queued. Blocks for at most `limit`.
    pub fn shut_down(&self, limit: Duration) -> OTelSdkResult {
        self.processor.shutdown_with_timeout(limit)
    }
}

impl QueueCapacity {
    fn enter(&self) -> bool {
        let fits = self.taken.fetch_add(1, Ordering::Relaxed) < self.size;
        if !fits {
            self.taken.fetch_sub(1, Ordering::Relaxed);
            self.counts.dropped.inc();
        }
        fits
    }

    fn leave(&self, count: usize, exported: bool) {
        self.taken.fetch_sub(count, Ordering::Relaxed);
        let counter = match exported {
            true => &self.counts.exported,
            false => &self.counts.failed,
        };
        counter.inc_by(count as u64);
    }
}

/// An exporter that counts successes and failures and logs them at intervals.
#[derive(Debug)]
struct CountedExporter<E> {
    exporter: E,
    failure: LastFailure,
    room: Arc<QueueCapacity>,
    /// When a failure was last logged; `None` while exports succeed. Only the exporting thread locks it.
    last_logged: Mutex<Option<Instant>>,
}

impl<E> CountedExporter<E> {
    fn record(&self, result: &OTelSdkResult) {
        let cause = self.failure.take();
        let Ok(mut last_logged) = self.last_logged.lock() else {
            return;
        };
        match (result, *last_logged) {
            (Ok(()), None) => {}
            (Ok(()), Some(_)) => {
                tracing::info!("spans can be exported again");
                *last_logged = None;
            }
            (Err(_), Some(last)) if last.elapsed() < FAILURE_LOG_INTERVAL => {}
            (Err(error), _) => {
                tracing::warn!(%error, cause, "cannot export spans; they are dropped, requests are not affected");
                *last_logged = Some(Instant::now());
            }
        }
    }
}

impl<E: SpanExporter> SpanExporter for CountedExporter<E> {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let count = batch.len();
        let result = self.exporter.export(batch).await;
        self.room.leave(count, result.is_ok());
        self.record(&result);
        result
    }

    fn shutdown(&self) -> OTelSdkResult {
        self.exporter.shutdown()
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.exporter.shutdown_with_timeout(timeout)
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.exporter.force_flush()
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.exporter.set_resource(resource);
    }
}

/// The resource attributes. The environment takes precedence.
fn resource(settings: &TraceSettings) -> Resource {
    let service = settings.service.clone();
    Resource::builder_empty()
        .with_attribute(KeyValue::new("service.name", "crossfade"))
        .with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")))
        .with_detector(Box::new(TelemetryResourceDetector))
        .with_detector(Box::new(EnvResourceDetector::new()))
        .with_attributes(service.map(|name| KeyValue::new("service.name", name)))
        .build()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts() -> Counts {
        let counter = |name| IntCounter::new(name, name).expect("valid");
        Counts {
            exported: counter("exported"),
            failed: counter("failed"),
            dropped: counter("dropped"),
        }
    }

    #[test]
    fn spans_beyond_the_queue_are_dropped_and_counted() {
        let room = QueueCapacity {
            taken: AtomicUsize::new(0),
            size: 2,
            counts: counts(),
        };
        assert_eq!(
            [room.enter(), room.enter(), room.enter()],
            [true, true, false]
        );
        room.leave(1, true);
        assert_eq!([room.enter(), room.enter()], [true, false]);
        room.leave(2, false);
        let Counts {
            exported,
            failed,
            dropped,
        } = &room.counts;
        assert_eq!([exported.get(), failed.get(), dropped.get()], [1, 2, 2]);
    }

    #[test]
    fn the_service_is_named_by_the_settings_or_after_the_program() {
        let mut settings = TraceSettings::new("http://127.0.0.1:4317".parse().expect("valid"));
        let name = |settings: &TraceSettings| resource(settings).get(&"service.name".into());
        assert_eq!(name(&settings), Some("crossfade".into()));
        settings.service = Some("mine".into());
        assert_eq!(name(&settings), Some("mine".into()));
    }
}
