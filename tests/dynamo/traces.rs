//! One trace across both programs: the spans of a real frontend are children of the attempt that it served.

use crate::dynamo::Options;
use crate::pair::{Pair, RequestKind};
use crate::rig::{Client, Collector, Family, Proxy, until};

#[tokio::test]
async fn the_spans_of_dynamos_frontend_are_children_of_the_attempt_that_it_served() {
    let Some(collector) = Collector::start().await else {
        return;
    };
    let url = collector.url();
    let traced = |service: &str| Options {
        env: [
            ("OTEL_EXPORT_ENABLED", "1"),
            ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", &url),
            ("OTEL_SERVICE_NAME", service),
            ("OTEL_BSP_SCHEDULE_DELAY", "30"),
            ("DYN_LOGGING_JSONL", "1"),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .into(),
        ..Options::default()
    };
    let pair = Pair::start_with(traced("dynamo-old"), traced("dynamo-new")).await;
    let (old, new) = (pair.old.url(), pair.new.url());
    let args = [
        "--old",
        &old,
        "--new",
        &new,
        "--split",
        "50",
        "--otlp-endpoint",
        &url,
    ];
    let proxy = Proxy::start_with_env(&args, &[("OTEL_BSP_SCHEDULE_DELAY", "30")]).await;
    let kind = RequestKind {
        family: Family::Chat,
        stream: true,
    };
    for _ in 0..2 {
        let mut client = Client::connect(proxy.address).await;
        kind.send(&mut client, &[], "<<words=4 each_ms=2>>").await;
        let response = client.response().await;
        let generation = response.generation().to_owned();
        let (attempt, span) = until("a span of Dynamo below an attempt", async || {
            let spans = collector.spans();
            let attempts = spans.iter().filter(|span| {
                span.kind == 3 && span.attribute("crossfade.generation") == generation.as_str()
            });
            attempts.clone().find_map(|attempt| {
                let span = spans.iter().find(|span| span.parent == attempt.id)?;
                Some((attempt.clone(), span.clone()))
            })
        })
        .await;
        assert_eq!(span.trace, attempt.trace);
        assert_eq!(
            span.resource["service.name"],
            format!("dynamo-{generation}")
        );
        assert!(attempt.start <= span.start, "{attempt:#?} {span:#?}");
    }
}
