//! One connection of an HTTP/1.1 server: checks each request to the last byte and responds as its behavior says.

mod tunnel;

use std::io;
use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use super::behavior::{After, Answer, AnswerFraming, Behavior, Break, Fault};
use super::{BODY_PATIENCE, ServerContext};
use crate::client::request::{ClientRequest, Kind};
use crate::http1::{Broken, Head, Reader};
use crate::ledger::{Ledger, VisitEnd};
use crate::server::check;
use crate::wire::{ANSWER, TRAILER, Tag};

/// Maximum number of pauses in one response.
const PAUSES: usize = 12;

/// Why reading the body of a request, or watching for what must not follow it, ended.
enum Reading {
    /// The peer went away.
    Gone,
    Malformed(String),
    /// Data arrived before the response was complete.
    Surplus,
}

/// What to do with the connection next.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Next {
    Go,
    Close,
    Reset,
    /// Closes after this long, whatever arrives in the meantime.
    Vanish(Duration),
}

/// Serves a connection to its end.
pub async fn serve(
    number: usize,
    connection: usize,
    context: &ServerContext,
    mut stream: TcpStream,
) {
    let mut resets = false;
    let (reader, mut writer) = stream.split();
    let mut reader = Reader::new(reader);
    loop {
        let head = match reader.head().await {
            Ok(head) => head,
            Err(Broken::Malformed(what)) => {
                let what = format!("server {number}, connection {connection}: a head with {what}");
                context.ledger.violation(None, what);
                break;
            }
            // A request that was cut off is the last one.
            Err(_) => break,
        };
        match one(number, connection, context, head, &mut reader, &mut writer).await {
            Next::Go => {}
            Next::Close => break,
            Next::Reset => {
                resets = true;
                break;
            }
            Next::Vanish(time) => {
                sleep(time).await;
                break;
            }
        }
    }
    if resets {
        let _ = socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO));
    }
}

async fn one(
    number: usize,
    connection: usize,
    context: &ServerContext,
    head: Head,
    reader: &mut Reader<ReadHalf<'_>>,
    writer: &mut WriteHalf<'_>,
) -> Next {
    let ledger = &context.ledger;
    let found = check::request_line(&head).and_then(|line| check::head(ledger, line, &head));
    let (planned, visit) = match found {
        Ok(found) => found,
        Err((id, what)) => {
            let what = format!("server {number}, connection {connection}: {what}: {head:?}");
            ledger.violation(id, what);
            return Next::Close;
        }
    };
    let framing = match check::framing(&planned, &head) {
        Ok(framing) => framing,
        Err(what) => {
            ledger.violation(Some(planned.id), what);
            return Next::Close;
        }
    };
    let (behavior, tag, answer) = context.visited([number, connection], &planned, visit);
    if behavior.switches {
        return tunnel::serve(ledger, &behavior, tag, &planned, &answer, reader, writer).await;
    }
    reader.expect_body(framing);
    let (comes, has_come) = watch::channel(false);
    let reading = read(ledger, tag, &planned, reader, &comes);
    let expects = head.get("expect").is_some();
    let playing = play(
        ledger,
        &behavior,
        tag,
        &planned,
        expects,
        answer,
        writer,
        has_come.clone(),
    );
    let _discards = DiscardsUnread { ledger, tag };
    answer_while_reading(ledger, tag, &behavior, reading, playing, has_come).await
}

/// Closing with unread data may discard the end of the response, also when the whole server stops.
struct DiscardsUnread<'l> {
    ledger: &'l Ledger,
    tag: Tag,
}

impl Drop for DiscardsUnread<'_> {
    fn drop(&mut self) {
        self.ledger.visited(self.tag, |visit| {
            if !visit.whole && visit.end == VisitEnd::Whole {
                visit.end = VisitEnd::Cut;
            }
        });
    }
}

async fn answer_while_reading(
    ledger: &Ledger,
    tag: Tag,
    behavior: &Behavior,
    reading: impl Future<Output = Reading>,
    playing: impl Future<Output = io::Result<Next>>,
    mut has_come: watch::Receiver<bool>,
) -> Next {
    let mut reading = std::pin::pin!(reading);
    let mut playing = std::pin::pin!(playing);
    let ended = |reading: Reading| {
        match reading {
            Reading::Gone => {}
            Reading::Malformed(what) => ledger.violation(Some(tag.id), what),
            Reading::Surplus => {
                let what = "bytes follow the request before its answer is complete";
                ledger.violation(Some(tag.id), what);
            }
        }
        Next::Close
    };
    let next = tokio::select! {
        biased;
        played = &mut playing => played.unwrap_or(Next::Close),
        read = &mut reading, if !behavior.leaves_body => return ended(read),
    };
    if next != Next::Go || *has_come.borrow() {
        return next;
    }
    // The response was early: the rest of the request precedes the next one.
    let rest = async {
        tokio::select! {
            biased;
            _ = has_come.wait_for(|come| *come) => Next::Go,
            read = &mut reading => match read {
                // The response is complete by now.
                Reading::Surplus => Next::Go,
                read => ended(read),
            },
        }
    };
    timeout(BODY_PATIENCE, rest).await.unwrap_or(Next::Close)
}

/// Reads the body of the request, which must be the one that the client sends, and watches for data that must not follow it.
async fn read(
    ledger: &Ledger,
    tag: Tag,
    planned: &ClientRequest,
    reader: &mut Reader<ReadHalf<'_>>,
    comes: &watch::Sender<bool>,
) -> Reading {
    let wanted = planned.body();
    let mut read = 0;
    loop {
        match reader.piece().await {
            Ok(Some(piece)) => {
                if wanted.get(read..read + piece.len()) != Some(&piece[..]) {
                    let shown = String::from_utf8_lossy(&piece[..piece.len().min(80)]).into_owned();
                    return Reading::Malformed(format!(
                        "from byte {read} on its body at the server is another one: {shown:?}"
                    ));
                }
                read += piece.len();
                ledger.visited(tag, |visit| visit.body_bytes = read);
            }
            Ok(None) if read == wanted.len() => break,
            Ok(None) => {
                return Reading::Malformed(format!("its body ends cleanly after {read} bytes"));
            }
            Err(Broken::Malformed(what)) => {
                return Reading::Malformed(format!("its body has {what}"));
            }
            Err(_) => return Reading::Gone,
        }
    }
    ledger.visited(tag, |visit| visit.whole = true);
    comes.send_replace(true);
    if !reader.buffer.is_empty() {
        return Reading::Surplus;
    }
    match reader.fill().await {
        Ok(()) => Reading::Surplus,
        Err(_) => Reading::Gone,
    }
}

/// Responds as the behavior says.
#[expect(clippy::too_many_arguments)]
async fn play(
    ledger: &Ledger,
    behavior: &Behavior,
    tag: Tag,
    planned: &ClientRequest,
    expects: bool,
    answer: Vec<u8>,
    writer: &mut WriteHalf<'_>,
    mut has_come: watch::Receiver<bool>,
) -> io::Result<Next> {
    if expects && !behavior.early {
        writer.write_all(b"HTTP/1.1 100 Continue\r\n\r\n").await?;
    }
    for status in &behavior.interim {
        let interim = format!("HTTP/1.1 {status} Interim\r\nx-chaos-interim: {tag}\r\n\r\n");
        writer.write_all(interim.as_bytes()).await?;
    }
    if !behavior.early && has_come.wait_for(|come| *come).await.is_err() {
        return Ok(Next::Close);
    }
    sleep(behavior.wait).await;
    let cut = |how| break_off(ledger, tag, how);
    if let Fault::NoAnswer(how) = behavior.fault {
        return Ok(cut(how).await);
    }
    let head = head(behavior, tag);
    if let Fault::HalfHead(how) = behavior.fault {
        writer.write_all(&head.as_bytes()[..head.len() / 2]).await?;
        return Ok(cut(how).await);
    }
    let (pieces, framing) = encode(behavior, tag, planned, &answer);
    let mut bytes = head.into_bytes();
    if pieces.is_empty() {
        if behavior.fault == Fault::Twice && framing != AnswerFraming::UntilClose {
            bytes.extend(second(tag));
        }
        writer.write_all(&bytes).await?;
        return Ok(finish(ledger, tag, behavior));
    }
    // The head is sent with the first piece, as by most servers.
    let length: usize = pieces.iter().map(Vec::len).sum();
    let mut left = match behavior.fault {
        Fault::Half(percent, _) => (length * percent / 100).min(length - 1),
        _ => usize::MAX,
    };
    let count = pieces.len();
    for (index, piece) in pieces.into_iter().enumerate() {
        let here = piece.len().min(left);
        left -= here;
        bytes.extend(&piece[..here]);
        if index + 1 == count
            && behavior.fault == Fault::Twice
            && framing != AnswerFraming::UntilClose
        {
            bytes.extend(second(tag));
        }
        writer.write_all(&std::mem::take(&mut bytes)).await?;
        if left == 0 {
            break;
        }
        if index < PAUSES && index + 1 < count && !behavior.pause.is_zero() {
            sleep(behavior.pause).await;
        }
    }
    match behavior.fault {
        // In a response that ends with its connection, an early end looks like the right one.
        Fault::Half(_, Break::Fin) if framing == AnswerFraming::UntilClose => {
            Ok(cut(Break::Reset).await)
        }
        Fault::Half(_, how) => Ok(cut(how).await),
        _ => Ok(finish(ledger, tag, behavior)),
    }
}

async fn break_off(ledger: &Ledger, tag: Tag, how: Break) -> Next {
    if let Break::Silence(time) = how {
        sleep(time).await;
    }
    ledger.visited(tag, |visit| visit.end = VisitEnd::Cut);
    match how {
        Break::Fin => Next::Close,
        Break::Reset | Break::Silence(_) => Next::Reset,
    }
}

fn finish(ledger: &Ledger, tag: Tag, behavior: &Behavior) -> Next {
    ledger.visited(tag, |visit| visit.end = VisitEnd::Whole);
    match behavior.after {
        After::Keeps => Next::Go,
        After::Closes => Next::Close,
        After::Vanishes(time) => Next::Vanish(time),
    }
}

fn head(behavior: &Behavior, tag: Tag) -> String {
    let mut head = format!(
        "HTTP/1.1 {} Chaos\r\n{ANSWER}: {tag}\r\n",
        behavior.status()
    );
    if behavior.after == After::Closes {
        head += "connection: close\r\n";
    }
    match behavior.answer {
        Answer::Events { .. } => {
            head += "content-type: text/event-stream\r\ntransfer-encoding: chunked\r\n";
        }
        Answer::Whole {
            length, framing, ..
        } => {
            head += "content-type: application/octet-stream\r\n";
            match framing {
                AnswerFraming::Length => head += &format!("content-length: {length}\r\n"),
                AnswerFraming::Chunked => head += "transfer-encoding: chunked\r\n",
                AnswerFraming::UntilClose => {}
            }
        }
    }
    head + "\r\n"
}

/// The body of the response, split into the pieces to send.
fn encode(
    behavior: &Behavior,
    tag: Tag,
    planned: &ClientRequest,
    answer: &[u8],
) -> (Vec<Vec<u8>>, AnswerFraming) {
    let framing = match behavior.answer {
        Answer::Events { .. } => AnswerFraming::Chunked,
        Answer::Whole { framing, .. } => framing,
    };
    if planned.kind == Kind::Head {
        return (Vec::new(), framing);
    }
    let slices = answer.chunks(behavior.width);
    let pieces = match framing {
        AnswerFraming::Chunked => {
            let chunk = |slice: &[u8]| {
                let mut piece = format!("{:x}\r\n", slice.len()).into_bytes();
                piece.extend(slice);
                piece.extend(b"\r\n");
                piece
            };
            let trailers = if behavior.trailers {
                format!("{TRAILER}: {tag}\r\n")
            } else {
                String::new()
            };
            let last = format!("0\r\n{trailers}\r\n").into_bytes();
            slices.map(chunk).chain([last]).collect()
        }
        _ => slices.map(<[u8]>::to_vec).collect(),
    };
    (pieces, framing)
}

/// A response without a request.
fn second(tag: Tag) -> Vec<u8> {
    let body = format!("{tag} a second time");
    format!(
        "HTTP/1.1 200 Again\r\n{ANSWER}: {tag}\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
    .into_bytes()
}
