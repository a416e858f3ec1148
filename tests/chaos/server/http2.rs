//! One connection of an HTTP/2 server: checks each stream to the last byte and responds as its behavior says.

use std::sync::Arc;

use bytes::Bytes;
use h2::server::SendResponse;
use h2::{Reason, RecvStream};
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::ServerContext;
use super::behavior::{After, Answer, AnswerFraming, Behavior, Break, Fault};
use super::check;
use crate::client::request::{ClientRequest, Kind};
use crate::draw::Draw;
use crate::http1::Head;
use crate::ledger::{Ledger, VisitEnd};
use crate::wire::{ANSWER, Id, TRAILER, Tag};

/// Initial stream windows of a server, from the protocol's default to large.
///
/// None is below the default: for body data that arrives before the client has seen a smaller window, h2 as a server returns no
/// window.
const WINDOWS: [u32; 3] = [65_535, 100_000, 1 << 20];
/// Large enough that unread bodies cannot use it up. That would stop the other streams of the connection, whatever the proxy
/// does.
const CONNECTION_WINDOW: u32 = 16 << 20;
/// Maximum number of concurrent streams.
const STREAMS: [u32; 3] = [1, 3, 100];
/// The limit on small frames at which the library closes the connection: more than can occur.
const SMALL_FRAMES: usize = 1 << 30;
/// Maximum number of pauses in one response.
const PAUSES: usize = 12;
/// The highest error code in RFC 9113 §7.
const CODES: u32 = 13;

/// What to do with the connection after a stream.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Next {
    Go,
    /// Sends GOAWAY and accepts no more streams.
    GoAway,
    /// Closes it, with all its open streams.
    Close,
}

/// Serves a connection to its end.
pub async fn serve(
    number: usize,
    connection: usize,
    context: Arc<ServerContext>,
    stream: TcpStream,
) {
    let mut draw = Draw::of(&[context.seed, 8, number as u64, connection as u64]);
    let mut builder = h2::server::Builder::new();
    builder
        .initial_window_size(draw.pick(&WINDOWS))
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_concurrent_streams(draw.pick(&STREAMS))
        .data_frame_budget(SMALL_FRAMES);
    let Ok(mut connected) = builder.handshake::<_, Bytes>(stream).await else {
        return;
    };
    let mut streams = JoinSet::new();
    loop {
        tokio::select! {
            accepted = connected.accept() => match accepted {
                Some(Ok((request, respond))) => {
                    streams.spawn(one(number, connection, context.clone(), request, respond));
                }
                Some(Err(_)) | None => return,
            },
            Some(next) = streams.join_next() => match next {
                Ok(Next::Close) => return,
                Ok(Next::GoAway) => connected.graceful_shutdown(),
                Ok(Next::Go) | Err(_) => {}
            },
        }
    }
}

async fn one(
    number: usize,
    connection: usize,
    context: Arc<ServerContext>,
    request: Request<RecvStream>,
    mut respond: SendResponse<Bytes>,
) -> Next {
    let ledger = &context.ledger;
    let (parts, body) = request.into_parts();
    let target = parts.uri.path_and_query().map_or("", |path| path.as_str());
    let head = head(
        &parts.headers,
        parts.uri.authority().map(|host| host.as_str()),
    );
    let (planned, visit) = match check::head(ledger, (parts.method.as_str(), target), &head) {
        Ok(found) => found,
        Err((id, what)) => {
            ledger.violation(id, format!("server {number}: {what}: {parts:?}"));
            return Next::Close;
        }
    };
    let (behavior, tag, answer) = context.visited([number, connection], &planned, visit);
    let (comes, has_come) = watch::channel(false);
    let reading = read(ledger, tag, &planned, body, &comes);
    let expects = head.get("expect").is_some();
    let playing = play(
        &context,
        &behavior,
        &planned,
        tag,
        expects,
        answer,
        &mut respond,
        has_come,
    );
    let mut playing = std::pin::pin!(playing);
    let played = tokio::select! {
        biased;
        played = &mut playing => played,
        never = reading => never,
    };
    played.unwrap_or(Next::Go)
}

/// The fields of a request in the form used by the checks.
fn head(headers: &HeaderMap, authority: Option<&str>) -> Head {
    let fields = headers.iter().map(|(name, value)| {
        let value = String::from_utf8_lossy(value.as_bytes()).into_owned();
        (name.to_string(), value)
    });
    let host = authority.map(|host| ("host".to_owned(), host.to_owned()));
    Head {
        first_line: String::new(),
        fields: host.into_iter().chain(fields).collect(),
    }
}

/// Reads the body of the request, which must be the one that the client sends. Returns only if it breaks.
async fn read(
    ledger: &Ledger,
    tag: Tag,
    planned: &ClientRequest,
    mut body: RecvStream,
    comes: &watch::Sender<bool>,
) -> Result<Next, h2::Error> {
    let wanted = planned.body();
    let mut read = 0;
    while let Some(data) = body.data().await {
        let data = data?;
        body.flow_control().release_capacity(data.len())?;
        if wanted.get(read..read + data.len()) != Some(&data[..]) {
            let what = format!("from byte {read} on its body at the server is another one");
            ledger.violation(Some(tag.id), what);
            return Ok(Next::Close);
        }
        read += data.len();
        ledger.visited(tag, |visit| visit.body_bytes = read);
    }
    body.trailers().await?;
    if read < wanted.len() {
        let what = format!("its body ends cleanly after {read} bytes");
        ledger.violation(Some(tag.id), what);
        return Ok(Next::Close);
    }
    ledger.visited(tag, |visit| visit.whole = true);
    comes.send_replace(true);
    std::future::pending().await
}

/// Responds as the behavior says.
#[expect(clippy::too_many_arguments)]
async fn play(
    context: &ServerContext,
    behavior: &Behavior,
    planned: &ClientRequest,
    tag: Tag,
    expects: bool,
    answer: Vec<u8>,
    respond: &mut SendResponse<Bytes>,
    mut has_come: watch::Receiver<bool>,
) -> Result<Next, h2::Error> {
    let ledger = &context.ledger;
    let ends = |end| ledger.visited(tag, |visit| visit.end = end);
    let continues = (expects && !behavior.early).then_some(&100);
    for status in continues.into_iter().chain(&behavior.interim) {
        let interim = Response::builder().status(*status).body(());
        respond.send_informational(interim.expect("a status"))?;
    }
    if !behavior.early && has_come.wait_for(|come| *come).await.is_err() {
        return Ok(Next::Go);
    }
    sleep(behavior.wait).await;
    match behavior.fault {
        Fault::NoAnswer(how) => {
            ends(VisitEnd::Cut);
            return Ok(break_off(respond, how, code(context, tag)).await);
        }
        // HTTP/2 has no partial heads. Instead, say that the request was not processed.
        Fault::HalfHead(_) => {
            ends(VisitEnd::Refused);
            respond.send_reset(Reason::REFUSED_STREAM);
            return Ok(Next::Go);
        }
        _ => {}
    }
    let is_empty = planned.kind == Kind::Head || answer.is_empty();
    let mut stream = respond.send_response(response(behavior, tag), is_empty)?;
    if is_empty {
        ends(VisitEnd::Whole);
        return Ok(after(behavior));
    }
    let stop = match behavior.fault {
        Fault::Half(percent, _) => (answer.len() * percent / 100).min(answer.len() - 1),
        _ => answer.len(),
    };
    let mut sent = 0;
    let mut pauses = 0;
    while sent < stop {
        let wanted = (stop - sent).min(behavior.width);
        stream.reserve_capacity(wanted);
        let granted = match std::future::poll_fn(|cx| stream.poll_capacity(cx)).await {
            Some(granted) => granted?.min(wanted),
            None => return Ok(Next::Go),
        };
        let is_last = sent + granted == answer.len();
        if is_last {
            ends(VisitEnd::Whole);
        }
        stream.send_data(
            Bytes::copy_from_slice(&answer[sent..sent + granted]),
            is_last && !behavior.trailers,
        )?;
        if is_last && behavior.trailers {
            stream.send_trailers(trailers(tag))?;
        }
        sent += granted;
        if pauses < PAUSES && !behavior.pause.is_zero() {
            pauses += 1;
            sleep(behavior.pause).await;
        }
    }
    if let Fault::Half(_, how) = behavior.fault {
        if let Break::Silence(time) = how {
            sleep(time).await;
        }
        ends(VisitEnd::Cut);
        if how == Break::Fin {
            return Ok(Next::Close);
        }
        stream.send_reset(code(context, tag));
        return Ok(Next::Go);
    }
    Ok(after(behavior))
}

async fn break_off(respond: &mut SendResponse<Bytes>, how: Break, code: Reason) -> Next {
    match how {
        Break::Fin => return Next::Close,
        Break::Reset => {}
        Break::Silence(time) => sleep(time).await,
    }
    respond.send_reset(code);
    Next::Go
}

/// Any error code except the one that says that the request was not processed.
fn code(context: &ServerContext, tag: Tag) -> Reason {
    let Tag { id: Id(id), visit } = tag;
    let mut draw = Draw::of(&[context.seed, 9, id, visit as u64]);
    match Reason::from(draw.within(0..=CODES as usize) as u32) {
        Reason::REFUSED_STREAM => Reason::INTERNAL_ERROR,
        code => code,
    }
}

fn trailers(tag: Tag) -> HeaderMap {
    let value = HeaderValue::from_str(&tag.to_string()).expect("digits");
    HeaderMap::from_iter([(HeaderName::from_static(TRAILER), value)])
}

fn after(behavior: &Behavior) -> Next {
    match behavior.after {
        After::Keeps => Next::Go,
        After::Closes | After::Vanishes(_) => Next::GoAway,
    }
}

fn response(behavior: &Behavior, tag: Tag) -> Response<()> {
    let mut response = Response::builder()
        .status(behavior.status())
        .header(ANSWER, tag.to_string());
    match behavior.answer {
        Answer::Events { .. } => response = response.header("content-type", "text/event-stream"),
        Answer::Whole {
            length,
            framing: AnswerFraming::Length,
            ..
        } => response = response.header("content-length", length),
        Answer::Whole { .. } => {}
    }
    response.body(()).expect("all parts are valid")
}
