//! A frontend in Rust that embeds crossfade: its own routes are the old generation, and what the plan says goes to new.
//!
//! Run it with `cargo run --example embedded -- plan.yaml`, where the plan is a `DynamoUpdateConfig` manifest, and ask
//! `http://127.0.0.1:8000/v1/chat/completions`.

use axum::Router;
use axum::response::sse::{Event, Sse};
use axum::routing::{get, post};
use crossfade::proxy::SplitLayer;
use futures_util::stream;

/// The frontend's own answer: the old generation.
async fn chat() -> Sse<impl stream::Stream<Item = Result<Event, std::convert::Infallible>>> {
    let chunk = |text: &str| {
        format!(
            r#"{{"object":"chat.completion.chunk","choices":[{{"index":0,"delta":{{"content":"{text}"}}}}]}}"#
        )
    };
    let events = [chunk("old "), chunk("answer"), "[DONE]".to_owned()];
    Sse::new(stream::iter(
        events.map(|event| Ok(Event::default().data(event))),
    ))
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let plan = std::env::args()
        .nth(1)
        .ok_or("give the path of a plan file")?;
    let embedded = SplitLayer::builder().file(plan).start().await?;
    tokio::spawn(embedded.follow);
    let frontend = Router::new()
        .route("/v1/chat/completions", post(chat))
        .route("/health", get(async || "healthy"))
        .layer(embedded.layer);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:8000").await?;
    println!("listening on http://{}", listener.local_addr()?);
    axum::serve(listener, frontend).await?;
    Ok(())
}
