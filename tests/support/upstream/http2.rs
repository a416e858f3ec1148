//! HTTP/2 for the scripted server.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response};
use http_body::{Body, Frame};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::server::conn::http2::Builder;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::sync::{Notify, mpsc};

use super::{Connection, Io, Received, Script, Step};

type Sent = Result<Frame<Bytes>, &'static str>;

pub async fn serve(io: impl Io, connection: Connection) {
    let cut = Arc::new(Notify::new());
    let service = service_fn({
        let (connection, cut) = (connection.clone(), cut.clone());
        move |request| respond(request, connection.clone(), cut.clone())
    });
    let serving = Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(io), service);
    tokio::select! {
        _ = serving => {}
        () = cut.notified() => {}
    }
}

async fn respond(
    request: Request<Incoming>,
    connection: Connection,
    cut: Arc<Notify>,
) -> Result<Response<Outgoing>, &'static str> {
    let (received, mut body) = record(request, &connection);
    let script = connection.receive(received.clone());
    let watch = Watch::new(received.clone());
    let mut steps: VecDeque<Step> = script.steps.into();
    if script.leaves_body {
        // Held but not read: dropping it would reset the stream.
        tokio::spawn(async move {
            let _body = body;
            std::future::pending::<Infallible>().await
        });
    } else {
        read(&mut body, &received)
            .await
            .ok_or("the request broke off")?;
    }
    while let Some(step) = steps.pop_front() {
        match step {
            Step::Head(status, headers) => {
                let (sender, receiver) = mpsc::channel(1);
                let is_over = watch.over.clone();
                tokio::spawn(play(steps, sender, received.clone(), cut, is_over));
                let mut response = Response::builder().status(status);
                for (name, value) in headers.iter().filter(|(name, _)| name != "connection") {
                    response = response.header(name, value);
                }
                let body = Outgoing { receiver, watch };
                return Ok(response.body(body).unwrap());
            }
            Step::Pause(duration) => tokio::time::sleep(duration).await,
            Step::Wait(gate) => gate.wait().await,
            Step::Then(choose) => {
                for step in choose(&received).steps.into_iter().rev() {
                    steps.push_front(step);
                }
            }
            Step::Reset => {
                watch.over();
                return Err("scripted reset");
            }
            Step::Eof => {
                watch.over();
                cut.notify_one();
                std::future::pending().await
            }
            _ => std::future::pending().await,
        }
    }
    Err("a script without a head")
}

/// Runs the steps after the head. Returns `None` if the peer is gone.
async fn play(
    mut steps: VecDeque<Step>,
    sender: mpsc::Sender<Sent>,
    received: Arc<Received>,
    cut: Arc<Notify>,
    is_over: Arc<AtomicBool>,
) -> Option<()> {
    while let Some(step) = steps.pop_front() {
        match step {
            Step::Head(..) => unreachable!("one head only"),
            Step::Chunk(bytes) | Step::Raw(bytes) => {
                sender.send(Ok(Frame::data(bytes))).await.ok()?;
            }
            Step::Flood(bytes, times, sent) => {
                for _ in 0..times {
                    sender.send(Ok(Frame::data(bytes.clone()))).await.ok()?;
                    sent.fetch_add(bytes.len() as u64, Ordering::Relaxed);
                }
            }
            Step::Pause(duration) => tokio::time::sleep(duration).await,
            Step::Wait(gate) => tokio::select! {
                () = gate.wait() => {}
                () = sender.closed() => return None,
            },
            Step::Then(choose) => {
                for step in choose(&received).steps.into_iter().rev() {
                    steps.push_front(step);
                }
            }
            Step::End(trailers) => {
                if !trailers.is_empty() {
                    let trailers: HeaderMap = trailers
                        .into_iter()
                        .map(|(name, value)| {
                            let name: HeaderName = name.parse().unwrap();
                            (name, HeaderValue::from_str(&value).unwrap())
                        })
                        .collect();
                    sender.send(Ok(Frame::trailers(trailers))).await.ok()?;
                }
                break;
            }
            Step::Eof => {
                // Everything sent so far should be on the wire first. hyper does not report when it is.
                sender.reserve().await.ok()?;
                tokio::time::sleep(std::time::Duration::from_millis(20)).await;
                is_over.store(true, Ordering::Relaxed);
                cut.notify_one();
                std::future::pending::<Infallible>().await;
            }
            Step::Reset => {
                // As above.
                sender.reserve().await.ok()?;
                tokio::time::sleep(std::time::Duration::from_millis(20)).await;
                is_over.store(true, Ordering::Relaxed);
                sender.send(Err("scripted reset")).await.ok()?;
                sender.closed().await;
            }
            Step::Hang | Step::Echo => {
                sender.closed().await;
                return None;
            }
        }
    }
    is_over.store(true, Ordering::Relaxed);
    Some(())
}

fn record(request: Request<Incoming>, connection: &Connection) -> (Arc<Received>, Incoming) {
    let (parts, body) = request.into_parts();
    let mut head = format!("{} {} HTTP/2\r\n", parts.method, parts.uri);
    let mut headers = Vec::new();
    if let Some(authority) = parts.uri.authority() {
        headers.push((":authority".to_owned(), authority.to_string()));
    }
    for (name, value) in &parts.headers {
        let value = String::from_utf8_lossy(value.as_bytes()).into_owned();
        head += &format!("{name}: {value}\r\n");
        headers.push((name.to_string(), value));
    }
    let target = parts.uri.path_and_query().map_or("/", |path| path.as_str());
    let received = Received {
        head,
        method: parts.method.to_string(),
        target: target.to_owned(),
        version: parts.version,
        headers,
        connection: connection.number,
        body: Mutex::default(),
        trailers: Mutex::default(),
        complete: false.into(),
        gone: false.into(),
    };
    (Arc::new(received), body)
}

async fn read(body: &mut Incoming, received: &Received) -> Option<()> {
    while let Some(frame) = body.frame().await {
        match frame.ok()?.into_data() {
            Ok(bytes) => received.body.lock().unwrap().extend_from_slice(&bytes),
            Err(frame) => {
                for (name, value) in &frame.into_trailers().ok()? {
                    let value = String::from_utf8_lossy(value.as_bytes()).into_owned();
                    let mut trailers = received.trailers.lock().unwrap();
                    trailers.push((name.to_string(), value));
                }
            }
        }
    }
    received.complete();
    Some(())
}

/// When dropped before the script is complete, records that the peer is gone.
struct Watch {
    received: Arc<Received>,
    over: Arc<AtomicBool>,
}

impl Watch {
    fn new(received: Arc<Received>) -> Self {
        Self {
            received,
            over: Arc::default(),
        }
    }

    fn over(&self) {
        self.over.store(true, Ordering::Relaxed);
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        if !self.over.load(Ordering::Relaxed) {
            self.received.leave();
        }
    }
}

struct Outgoing {
    receiver: mpsc::Receiver<Sent>,
    watch: Watch,
}

impl Body for Outgoing {
    type Data = Bytes;
    type Error = &'static str;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, &'static str>>> {
        self.receiver.poll_recv(cx)
    }
}
