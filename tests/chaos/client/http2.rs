//! One connection of an HTTP/2 client: sends all its requests at once, each on its own stream.

use std::pin::Pin;
use std::task::Poll;
use std::time::{Duration, Instant};

use bytes::Bytes;
use h2::client::{ResponseFuture, SendRequest};
use h2::{Reason, RecvStream, SendStream};
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::request::{ClientRequest, Leaving, Reading, RequestFraming, Sending};
use super::{PATIENCE, WaveContext};
use crate::draw::Draw;
use crate::ledger::{ClientEnd, ClientHead, Ledger};
use crate::patience::patience;
use crate::support::upstream::Io;
use crate::wire::{ANSWER, ID, LENGTH, TRAILER, Tag};

/// How long a client waits for `100 Continue` before it sends the body anyway.
const CONTINUE: Duration = Duration::from_millis(300);
/// Maximum number of pauses in one request or response.
const PAUSES: usize = 12;
/// Initial stream windows of a client: tiny, the default, and large.
const WINDOWS: [u32; 3] = [2_000, 65_535, 1 << 20];

/// The limit on small frames at which the library closes the connection: more than can occur.
const SMALL_FRAMES: usize = 1 << 30;

/// Sends these requests over one connection and reads the responses.
pub async fn converse(
    context: &WaveContext,
    requests: Vec<ClientRequest>,
    mut draw: Draw,
    io: Box<dyn Io>,
) {
    let mut builder = h2::client::Builder::new();
    builder
        .initial_window_size(draw.pick(&WINDOWS))
        .data_frame_budget(SMALL_FRAMES);
    let Ok(Ok((sender, connection))) = timeout(patience(PATIENCE), builder.handshake(io)).await
    else {
        return;
    };
    // Dropped with this future, which closes the connection.
    let mut driver = JoinSet::new();
    driver.spawn(connection);
    let mut exchanges = JoinSet::new();
    for planned in requests {
        let ledger = context.ledger.clone();
        ledger.planned(&planned);
        exchanges.spawn(exchange(ledger, planned, sender.clone()));
    }
    while exchanges.join_next().await.is_some() {}
}

async fn exchange(ledger: Ledger, planned: ClientRequest, sender: SendRequest<Bytes>) {
    let leaves = async {
        match planned.leaving {
            Leaving::After(time) => sleep(time).await,
            _ => std::future::pending().await,
        }
    };
    tokio::select! {
        ended = timeout(patience(PATIENCE), send_and_read(&ledger, &planned, sender)) => match ended {
            Ok(Ok(())) => {}
            Ok(Err(_)) => ledger.seen(planned.id, |seen| seen.end = Some(ClientEnd::Reset)),
            Err(_) => ledger.violation(Some(planned.id), "its answer does not end in time"),
        },
        () = leaves => ledger.actions(planned.id, |actions| actions.left = true),
    }
}

async fn send_and_read(
    ledger: &Ledger,
    planned: &ClientRequest,
    sender: SendRequest<Bytes>,
) -> Result<(), h2::Error> {
    let mut sender = sender.ready().await?;
    ledger.actions(planned.id, |actions| actions.began = Some(Instant::now()));
    let (mut response, stream) = sender.send_request(request(planned), planned.length == 0)?;
    if planned.length == 0 {
        ledger.actions(planned.id, |actions| actions.whole = true);
    }
    if planned.expects
        && let Ok(Some(response)) =
            timeout(CONTINUE, continued(ledger, planned, &mut response)).await
    {
        // The server does not want the body.
        return read(ledger, planned, std::future::ready(response)).await;
    }
    let sending = async {
        if planned.length > 0 {
            // A response that arrives before the end of the request stops the sending. It is still read.
            let _ = send(ledger, planned, stream).await;
        }
    };
    let (read, ()) = tokio::join!(read(ledger, planned, response), sending);
    read
}

/// Waits for `100 Continue`. Returns the response if that comes first.
async fn continued(
    ledger: &Ledger,
    planned: &ClientRequest,
    response: &mut ResponseFuture,
) -> Option<Result<Response<RecvStream>, h2::Error>> {
    std::future::poll_fn(|cx| {
        if let Poll::Ready(Some(Ok(interim))) = response.poll_informational(cx) {
            let status = interim.status().as_u16();
            ledger.seen(planned.id, |seen| seen.interim.push(status));
            if status != 100 {
                ledger.violation(Some(planned.id), format!("{status} for nothing"));
            }
            return Poll::Ready(None);
        }
        Pin::new(&mut *response).poll(cx).map(Some)
    })
    .await
}

fn request(planned: &ClientRequest) -> Request<()> {
    let mut request = Request::builder()
        .method(planned.method())
        .uri(format!("http://models.example{}", planned.target()))
        .header(ID, planned.id.to_string())
        .header(LENGTH, planned.length)
        .header("traceparent", planned.id.traceparent());
    if planned.framing == RequestFraming::Length {
        request = request.header("content-length", planned.length);
    }
    if planned.trailers {
        request = request.header("te", "trailers");
    }
    if planned.expects {
        request = request.header("expect", "100-continue");
    }
    request.body(()).expect("all parts are valid")
}

async fn send(
    ledger: &Ledger,
    planned: &ClientRequest,
    mut stream: SendStream<Bytes>,
) -> Result<(), h2::Error> {
    let body = planned.body();
    let stop = match planned.leaving {
        Leaving::InBody(most) => most,
        _ => usize::MAX,
    };
    let (width, pause) = match planned.sending {
        Sending::AtOnce => (usize::MAX, None),
        Sending::Slow(width, pause) => (width, Some(pause)),
    };
    let mut sent = 0;
    let mut pauses = 0;
    while sent < body.len().min(stop) {
        let wanted = (body.len().min(stop) - sent).min(width);
        stream.reserve_capacity(wanted);
        let granted = match std::future::poll_fn(|cx| stream.poll_capacity(cx)).await {
            Some(granted) => granted?.min(wanted),
            None => return Ok(()),
        };
        stream.send_data(Bytes::copy_from_slice(&body[sent..sent + granted]), false)?;
        sent += granted;
        if let Some(pause) = pause.filter(|_| pauses < PAUSES) {
            pauses += 1;
            sleep(pause).await;
        }
    }
    if stop < body.len() {
        ledger.actions(planned.id, |actions| actions.left = true);
        stream.send_reset(Reason::CANCEL);
        return Ok(());
    }
    ledger.actions(planned.id, |actions| actions.whole = true);
    if planned.trailers {
        let mut trailers = HeaderMap::new();
        let value = HeaderValue::from_str(&planned.id.to_string()).expect("digits");
        trailers.insert(TRAILER, value);
        return stream.send_trailers(trailers);
    }
    stream.send_data(Bytes::new(), true)
}

async fn read(
    ledger: &Ledger,
    planned: &ClientRequest,
    response: impl Future<Output = Result<Response<RecvStream>, h2::Error>>,
) -> Result<(), h2::Error> {
    let (head, mut body) = response.await?.into_parts();
    let text = |name: &str| head.headers.get(name).and_then(|value| value.to_str().ok());
    ledger.seen(planned.id, |seen| {
        seen.head = Some(ClientHead {
            status: head.status.as_u16(),
            generation: text("x-crossfade-generation").map(str::to_owned),
            tag: text(ANSWER).and_then(Tag::parse),
            is_events: text("content-type") == Some("text/event-stream"),
            may_have_trailers: !head.headers.contains_key("content-length"),
        });
    });
    let pause = match planned.reading {
        Reading::Fast => None,
        Reading::Slow(_, pause) => Some(pause),
        Reading::Stalls(time) => {
            sleep(time).await;
            None
        }
    };
    let mut pauses = 0;
    while let Some(data) = body.data().await {
        let data = data?;
        body.flow_control().release_capacity(data.len())?;
        ledger.seen(planned.id, |seen| seen.body.extend(&data));
        if let Some(pause) = pause.filter(|_| pauses < PAUSES) {
            pauses += 1;
            sleep(pause).await;
        }
    }
    let trailers = body.trailers().await?.unwrap_or_default();
    let text = |(name, value): (&HeaderName, &HeaderValue)| {
        let value = String::from_utf8_lossy(value.as_bytes()).into_owned();
        (name.to_string(), value)
    };
    ledger.seen(planned.id, |seen| {
        seen.trailers = trailers.iter().map(text).collect();
        seen.end = Some(ClientEnd::Whole);
    });
    Ok(())
}
