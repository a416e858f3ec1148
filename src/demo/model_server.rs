//! An OpenAI-compatible model server without a model: real HTTP, real chunks, a realistic pace. It can be killed.

mod completion;
mod token_stream;

use std::convert::Infallible;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Either, Full, Limited};
use hyper::body::Incoming;
use hyper::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use socket2::{Domain, Protocol, Socket, Type};

use super::Error;
use super::worker::Worker;
use crate::split::Generation;
use completion::{Api, Completion, LastMessage};
use token_stream::TokenStream;

/// The one model that both generations serve.
pub(super) const MODEL: &str = "demo";
/// Largest request body, in bytes.
const MAX_REQUEST: usize = 1 << 20;

type Body = Either<Full<Bytes>, TokenStream>;

/// One server of one generation, on a port of 127.0.0.1 and its own thread.
#[derive(Debug)]
pub struct ModelServer {
    generation: Generation,
    address: SocketAddr,
    /// Bound but not listening: keeps the port while the server is down and makes the kernel refuse connections.
    reserved: Socket,
    running: Option<Worker>,
}

impl ModelServer {
    /// Serves on a free port.
    ///
    /// # Errors
    /// [`Error::Serve`] without a port or a thread.
    pub fn start(generation: Generation) -> Result<Self, Error> {
        let (reserved, address) = bind((Ipv4Addr::LOCALHOST, 0).into()).map_err(Error::Serve)?;
        let mut server = Self {
            generation,
            address,
            reserved,
            running: None,
        };
        server.restart()?;
        Ok(server)
    }

    /// Its address, which [`ModelServer::restart`] keeps.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Closes the port and all connections immediately, mid-word, as SIGKILL does. Does nothing if the server is down.
    pub fn kill(&mut self) {
        self.running = None;
    }

    /// Serves again, on the same port. Does nothing if the server is up.
    ///
    /// # Errors
    /// [`Error::Serve`] without the port or a thread.
    pub fn restart(&mut self) -> Result<(), Error> {
        if self.running.is_none() {
            self.running = Some(self.serve().map_err(Error::Serve)?);
        }
        Ok(())
    }

    fn serve(&self) -> io::Result<Worker> {
        let (socket, _) = bind(
            self.reserved
                .local_addr()?
                .as_socket()
                .unwrap_or(self.address),
        )?;
        socket.listen(1024)?;
        let listener = TcpListener::from(socket);
        listener.set_nonblocking(true)?;
        let generation = self.generation;
        let name = format!("model-{}", generation.as_str());
        Worker::spawn(&name, move || accept(listener, generation))
    }
}

/// A socket on `address`, which it shares with our other sockets, one of which listens.
fn bind(address: SocketAddr) -> io::Result<(Socket, SocketAddr)> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(true)?;
    socket.bind(&address.into())?;
    let bound = socket.local_addr()?.as_socket().unwrap_or(address);
    Ok((socket, bound))
}

async fn accept(listener: TcpListener, generation: Generation) {
    let listener = tokio::net::TcpListener::from_std(listener)
        .expect("a non-blocking listener inside of a runtime");
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            // Most likely out of descriptors: other connections have to close first.
            tokio::time::sleep(Duration::from_millis(10)).await;
            continue;
        };
        // Without it each token waits for the acknowledgement of the one before. If it fails, the server is only slower.
        let _ = stream.set_nodelay(true);
        let service = service_fn(move |request| respond(request, generation));
        tokio::spawn(
            hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(stream), service),
        );
    }
}

async fn respond(
    request: Request<Incoming>,
    generation: Generation,
) -> Result<Response<Body>, Infallible> {
    let (head, body) = request.into_parts();
    let response = match (&head.method, head.uri.path()) {
        (&Method::POST, "/v1/chat/completions") => generate(Api::Chat, body, generation).await,
        (&Method::POST, "/v1/completions") => generate(Api::Completions, body, generation).await,
        (&Method::GET, "/v1/models") => json_response(
            StatusCode::OK,
            &json!({"object": "list", "data": [completion::model(generation)]}),
        ),
        (&Method::GET, "/health" | "/live") => {
            json_response(StatusCode::OK, &json!({"status": "healthy"}))
        }
        _ => error_response(StatusCode::NOT_FOUND, "no such route"),
    };
    Ok(response)
}

async fn generate(api: Api, body: Incoming, generation: Generation) -> Response<Body> {
    let body = match Limited::new(body, MAX_REQUEST).collect().await {
        Ok(body) => body.to_bytes(),
        Err(_) => {
            return error_response(StatusCode::PAYLOAD_TOO_LARGE, "cannot read the request");
        }
    };
    let Ok(request) = serde_json::from_slice::<Value>(&body) else {
        return error_response(StatusCode::BAD_REQUEST, "the request is not JSON");
    };
    if request.get("model").and_then(Value::as_str) != Some(MODEL) {
        return error_response(StatusCode::NOT_FOUND, "Model not found");
    }
    if api == Api::Chat && LastMessage::of(&request) == LastMessage::Both {
        let both = "Cannot set both `continue_final_message` and `add_generation_prompt` to True.";
        return error_response(StatusCode::BAD_REQUEST, both);
    }
    let speech = TokenStream::new(Completion::to(&request, api, generation));
    if request.get("stream").and_then(Value::as_bool) == Some(true) {
        let mut response = Response::new(Either::Right(speech));
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
        return response;
    }
    json_response(StatusCode::OK, &speech.whole().await)
}

fn error_response(status: StatusCode, message: &str) -> Response<Body> {
    let error =
        json!({"message": message, "type": "invalid_request_error", "code": status.as_u16()});
    json_response(status, &json!({ "error": error }))
}

fn json_response(status: StatusCode, value: &Value) -> Response<Body> {
    let mut response = Response::new(Either::Left(Full::from(value.to_string())));
    *response.status_mut() = status;
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

#[cfg(test)]
mod tests;
