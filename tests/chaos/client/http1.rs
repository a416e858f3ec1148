//! One connection of an HTTP/1 client: sends requests, one or several at a time, while it reads the responses.

use std::io;
use std::time::{Duration, Instant};

use tokio::io::{AsyncWriteExt, ReadHalf, WriteHalf};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use super::request::{ClientRequest, Kind, Leaving, Reading, RequestFraming, Sending};
use super::{HttpVersion, PATIENCE, WaveContext};
use crate::http1::{Broken, Framing, Head, Reader};
use crate::ledger::{ClientEnd, ClientHead, Ledger};
use crate::patience::patience;
use crate::server::check::PROTOCOL;
use crate::support::upstream::Io;
use crate::wire::{ANSWER, ID, LENGTH, TRAILER, Tag};

/// How long a client waits for `100 Continue` before it sends the body anyway.
const CONTINUE: Duration = Duration::from_millis(300);
/// Maximum number of pauses in one request or response.
const PAUSES: usize = 12;

type Connection = Box<dyn Io>;

/// What the reading half reports to the writing half about the current exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd)]
enum Progress {
    Nothing,
    Continue,
    Final,
    /// The final response switches protocols.
    Switched,
}

/// What to do with the connection next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    Go,
    /// Nothing more can be sent or read.
    Stop,
    /// A write failed because the connection had ended. The next read then sees a clean end.
    Broken,
    /// The client is done and closes.
    Leave,
}

/// Sends these requests over one connection, up to `depth` of them before the first response, and reads the responses.
pub async fn converse(
    context: &WaveContext,
    version: HttpVersion,
    requests: Vec<ClientRequest>,
    depth: usize,
    io: Connection,
) {
    let (reader, mut writer) = tokio::io::split(io);
    let mut reader = Reader::new(reader);
    let mut previous = None;
    for batch in requests.chunks(depth) {
        if *context.over.borrow() {
            return;
        }
        let mut batch = batch.to_vec();
        if depth > 1 {
            // A client that waits for `100 Continue`, or for another protocol, does not pipeline.
            for planned in &mut batch {
                *planned = planned.clone().without_upgrade();
                planned.expects = false;
            }
        }
        let ledger = &context.ledger;
        for planned in &batch {
            ledger.planned(planned);
            ledger.actions(planned.id, |actions| {
                actions.previous = previous.replace(planned.id)
            });
        }
        let both = exchange(ledger, version, &batch, &mut reader, &mut writer);
        let next = match timeout(patience(PATIENCE), both).await {
            Ok(next) => next,
            Err(_) => {
                ledger.violation(Some(batch[0].id), "its answer does not end in time");
                Next::Leave
            }
        };
        match next {
            Next::Go if version == HttpVersion::Http11 => {}
            Next::Leave => return mark_left(ledger, &batch),
            Next::Go | Next::Stop | Next::Broken => return surplus(ledger, &batch, &reader.buffer),
        }
    }
}

fn mark_left(ledger: &Ledger, batch: &[ClientRequest]) {
    for planned in batch {
        ledger.actions(planned.id, |actions| actions.left = true);
    }
}

/// Nothing may follow the last response, except a rejection of what followed the request.
fn surplus(ledger: &Ledger, batch: &[ClientRequest], rest: &[u8]) {
    if !rest.is_empty() && !rest.starts_with(b"HTTP/1.1 408") {
        let text = String::from_utf8_lossy(&rest[..rest.len().min(120)]).into_owned();
        let id = batch.last().map(|planned| planned.id);
        ledger.violation(id, format!("bytes behind the last answer: {text:?}"));
    }
}

async fn exchange(
    ledger: &Ledger,
    version: HttpVersion,
    batch: &[ClientRequest],
    reader: &mut Reader<ReadHalf<Connection>>,
    writer: &mut WriteHalf<Connection>,
) -> Next {
    let (progress, receiver) = watch::channel(Progress::Nothing);
    let leaves = batch.iter().find_map(|planned| match planned.leaving {
        Leaving::After(time) => Some(time),
        _ => None,
    });
    let mut leave = std::pin::pin!(async {
        match leaves {
            Some(time) => sleep(time).await,
            None => std::future::pending().await,
        }
    });
    let mut sending = std::pin::pin!(send_all(ledger, version, batch, writer, receiver));
    let mut reading = std::pin::pin!(read_all(ledger, version, batch, reader, &progress));
    let mut sent = None;
    let mut read = None;
    let half_closes = batch
        .iter()
        .any(|planned| planned.leaving == Leaving::HalfCloses);
    if half_closes {
        // A half-close gives up every request that is still open then.
        mark_left(ledger, batch);
    }
    loop {
        match (sent, read) {
            (Some(Next::Leave), _) => return Next::Leave,
            (_, Some(Next::Stop)) => {
                if sent == Some(Next::Broken) {
                    // The kernel reports a reset once, and the write consumed it.
                    for planned in batch {
                        ledger.seen(planned.id, |seen| {
                            if seen.end == Some(ClientEnd::Closed) {
                                seen.end = Some(ClientEnd::Reset);
                            }
                        });
                    }
                }
                return Next::Stop;
            }
            (Some(sent), Some(_)) => return sent,
            _ => {}
        }
        tokio::select! {
            next = &mut sending, if sent.is_none() => sent = Some(next),
            next = &mut reading, if read.is_none() => read = Some(next),
            () = &mut leave => return Next::Leave,
        }
    }
}

async fn send_all(
    ledger: &Ledger,
    version: HttpVersion,
    batch: &[ClientRequest],
    writer: &mut WriteHalf<Connection>,
    mut receiver: watch::Receiver<Progress>,
) -> Next {
    for planned in batch {
        ledger.actions(planned.id, |actions| actions.began = Some(Instant::now()));
        match send(ledger, version, planned, writer, &mut receiver).await {
            Ok(Next::Go) => {}
            Ok(next) => return next,
            Err(_) => return Next::Broken,
        }
    }
    Next::Go
}

async fn send(
    ledger: &Ledger,
    version: HttpVersion,
    planned: &ClientRequest,
    writer: &mut WriteHalf<Connection>,
    receiver: &mut watch::Receiver<Progress>,
) -> io::Result<Next> {
    let head = head(version, planned);
    if planned.kind == Kind::Upgrade {
        return upgrade(ledger, planned, &head, writer, receiver).await;
    }
    let mut body = encode(planned);
    let whole = body.len();
    if let Leaving::InBody(most) = planned.leaving {
        body.truncate(most);
    }
    if planned.expects {
        write(writer, planned.sending, head.as_bytes()).await?;
        let waiting = receiver.wait_for(|progress| *progress > Progress::Nothing);
        if let Ok(Ok(progress)) = timeout(CONTINUE, waiting).await
            && *progress == Progress::Final
        {
            // The server does not want the body. Without the body no other request can follow.
            return Ok(Next::Stop);
        }
        write(writer, planned.sending, &body).await?;
    } else {
        let bytes = [head.as_bytes(), &body].concat();
        write(writer, planned.sending, &bytes).await?;
    }
    if let Leaving::InBody(_) = planned.leaving {
        return Ok(Next::Leave);
    }
    ledger.actions(planned.id, |actions| actions.whole = body.len() == whole);
    if planned.leaving == Leaving::HalfCloses {
        writer.shutdown().await?;
        return Ok(Next::Stop);
    }
    Ok(Next::Go)
}

/// Sends a request for another protocol and, if the server switches, what the client has for the tunnel.
async fn upgrade(
    ledger: &Ledger,
    planned: &ClientRequest,
    head: &str,
    writer: &mut WriteHalf<Connection>,
    receiver: &mut watch::Receiver<Progress>,
) -> io::Result<Next> {
    write(writer, planned.sending, head.as_bytes()).await?;
    if let Leaving::InBody(_) = planned.leaving {
        return Ok(Next::Leave);
    }
    ledger.actions(planned.id, |actions| actions.whole = true);
    let answered = receiver
        .wait_for(|progress| *progress >= Progress::Final)
        .await;
    if !answered.is_ok_and(|progress| *progress == Progress::Switched) {
        return Ok(Next::Go);
    }
    // Again, as the reader does: the answer may have come before the request was noted as sent.
    ledger.actions(planned.id, |actions| actions.whole = false);
    write(writer, planned.sending, &planned.tunnelled()).await?;
    writer.shutdown().await?;
    ledger.actions(planned.id, |actions| actions.whole = true);
    Ok(Next::Stop)
}

async fn write(
    writer: &mut WriteHalf<Connection>,
    sending: Sending,
    bytes: &[u8],
) -> io::Result<()> {
    match sending {
        Sending::AtOnce => writer.write_all(bytes).await?,
        Sending::Slow(width, pause) => {
            let slow = bytes.len().min(width * PAUSES);
            for piece in bytes[..slow].chunks(width) {
                writer.write_all(piece).await?;
                writer.flush().await?;
                sleep(pause).await;
            }
            writer.write_all(&bytes[slow..]).await?;
        }
    }
    writer.flush().await
}

fn head(version: HttpVersion, planned: &ClientRequest) -> String {
    let version = match version {
        HttpVersion::Http10 => "HTTP/1.0",
        HttpVersion::Http11 | HttpVersion::Http2 => "HTTP/1.1",
    };
    let mut head = format!(
        "{} {} {version}\r\nhost: models.example\r\n{ID}: {}\r\n{LENGTH}: {}\r\ntraceparent: {}\r\n",
        planned.method(),
        planned.target(),
        planned.id,
        planned.length,
        planned.id.traceparent()
    );
    match planned.framing {
        RequestFraming::None => {}
        RequestFraming::Length => head += &format!("content-length: {}\r\n", planned.length),
        RequestFraming::Chunked(_) => head += "transfer-encoding: chunked\r\n",
    }
    if planned.expects {
        head += "expect: 100-continue\r\n";
    }
    if planned.trailers {
        head += "te: trailers\r\n";
    }
    let upgrades = planned.kind == Kind::Upgrade;
    if upgrades {
        head += &format!("upgrade: {PROTOCOL}\r\n");
    }
    for (names, name) in [(upgrades, "upgrade"), (planned.hop, "x-hop")] {
        if names {
            head += &format!("connection: {name}\r\n");
        }
    }
    if planned.hop {
        head += "x-hop: not for the next one\r\n";
    }
    head + "\r\n"
}

/// The body as sent on the wire.
fn encode(planned: &ClientRequest) -> Vec<u8> {
    let body = planned.body();
    let RequestFraming::Chunked(size) = planned.framing else {
        return body;
    };
    let mut bytes = Vec::new();
    for chunk in body.chunks(size) {
        bytes.extend(format!("{:x}\r\n", chunk.len()).bytes());
        bytes.extend(chunk);
        bytes.extend(b"\r\n");
    }
    bytes.extend(b"0\r\n");
    if planned.trailers {
        bytes.extend(format!("{TRAILER}: {}\r\n", planned.id).bytes());
    }
    bytes.extend(b"\r\n");
    bytes
}

async fn read_all(
    ledger: &Ledger,
    version: HttpVersion,
    batch: &[ClientRequest],
    reader: &mut Reader<ReadHalf<Connection>>,
    progress: &watch::Sender<Progress>,
) -> Next {
    for planned in batch {
        let end = match read(ledger, version, planned, reader, progress).await {
            Ok(Next::Go) => continue,
            Ok(_) => return Next::Stop,
            Err(Broken::Fin) => ClientEnd::Fin,
            Err(Broken::Reset) => ClientEnd::Reset,
            Err(Broken::Malformed(what)) => {
                ledger.violation(Some(planned.id), format!("the client is sent {what}"));
                ClientEnd::Fin
            }
        };
        ledger.seen(planned.id, |seen| seen.end = Some(end));
        return Next::Stop;
    }
    Next::Go
}

async fn read(
    ledger: &Ledger,
    version: HttpVersion,
    planned: &ClientRequest,
    reader: &mut Reader<ReadHalf<Connection>>,
    progress: &watch::Sender<Progress>,
) -> Result<Next, Broken> {
    reader.width = 64 * 1024;
    let (status, head) = loop {
        let head = reader.head().await?;
        let status = status(&head)?;
        if status >= 200 || status == 101 && planned.kind == Kind::Upgrade {
            break (status, head);
        }
        ledger.seen(planned.id, |seen| seen.interim.push(status));
        if version == HttpVersion::Http10 || !planned.expects {
            ledger.violation(Some(planned.id), format!("{status} for nothing"));
        }
        progress.send_replace(Progress::Continue);
    };
    if status == 101 {
        // What the client has for the tunnel is still to be sent, and the server may be done first.
        ledger.actions(planned.id, |actions| actions.whole = false);
    }
    progress.send_replace(match status {
        101 => Progress::Switched,
        _ => Progress::Final,
    });
    let bodiless = planned.kind == Kind::Head || matches!(status, 204 | 304);
    let framing = match head.framing()? {
        _ if bodiless => None,
        Some(Framing::Chunked) if version == HttpVersion::Http10 => {
            let what = "chunks in answer to HTTP/1.0".to_owned();
            return Err(Broken::Malformed(what));
        }
        None => Some(Framing::UntilClose),
        framed => framed,
    };
    ledger.seen(planned.id, |seen| {
        seen.head = Some(ClientHead {
            status,
            generation: head.get("x-crossfade-generation").map(str::to_owned),
            tag: head.get(ANSWER).and_then(Tag::parse),
            is_events: head.get("content-type") == Some("text/event-stream"),
            may_have_trailers: framing == Some(Framing::Chunked),
        });
    });
    let mut pauses = PAUSES;
    let pause = match planned.reading {
        Reading::Fast => Duration::ZERO,
        Reading::Slow(width, pause) => {
            reader.width = width;
            pause
        }
        Reading::Stalls(time) => {
            sleep(time).await;
            Duration::ZERO
        }
    };
    reader.expect_body(framing);
    while let Some(piece) = reader.piece().await? {
        ledger.seen(planned.id, |seen| seen.body.extend(piece));
        if pauses > 0 && !pause.is_zero() {
            pauses -= 1;
            sleep(pause).await;
        } else {
            reader.width = 64 * 1024;
        }
    }
    let until_close = framing == Some(Framing::UntilClose);
    let end = if until_close {
        ClientEnd::Closed
    } else {
        ClientEnd::Whole
    };
    let trailers = std::mem::take(&mut reader.trailers);
    ledger.seen(planned.id, |seen| {
        seen.trailers = trailers;
        seen.end = Some(end);
    });
    let closes = until_close || head.get("connection") == Some("close");
    Ok(if closes { Next::Stop } else { Next::Go })
}

fn status(head: &Head) -> Result<u16, Broken> {
    let line = &head.first_line;
    let rest = line
        .strip_prefix("HTTP/1.1 ")
        .or(line.strip_prefix("HTTP/1.0 "));
    let digits = rest.and_then(|rest| rest.get(..3));
    digits
        .and_then(|digits| digits.parse().ok())
        .filter(|status| (100..600).contains(status))
        .ok_or_else(|| Broken::Malformed(format!("no status line: {line:?}")))
}
