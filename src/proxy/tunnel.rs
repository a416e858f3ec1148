//! What follows `101 Switching Protocols`: bytes both ways until both sides have ended.

use std::sync::{Arc, Mutex};

use http::Response;
use tokio::io::{AsyncRead, AsyncWrite, copy_bidirectional};

use super::body::SplitBody;
use super::exchange::Exchange;
use crate::sse::End;
use crate::upstream::Upgraded;

/// The model server's end of a tunnel, with the exchange that it belongs to. In the extensions of the answer.
#[derive(Clone)]
pub struct Tunnel(Arc<Mutex<Option<(Upgraded, Exchange)>>>);

/// The answer that switches protocols.
pub fn respond(mut parts: http::response::Parts, exchange: Exchange) -> Response<SplitBody> {
    if let Some(upgraded) = parts.extensions.remove::<Upgraded>() {
        let tunnel = Tunnel(Arc::new(Mutex::new(Some((upgraded, exchange)))));
        parts.extensions.insert(tunnel);
    }
    Response::from_parts(parts, SplitBody::own(bytes::Bytes::new()))
}

impl Tunnel {
    /// Joins the client's connection to the model server's, until both have ended or `ending` comes.
    pub async fn join<T>(self, mut client: T, ending: impl Future<Output = ()>)
    where
        T: AsyncRead + AsyncWrite + Unpin,
    {
        let taken = self.0.lock().ok().and_then(|mut slot| slot.take());
        let Some((upgraded, mut exchange)) = taken else {
            return;
        };
        let Some((mut upstream, _lease)) = upgraded.take() else {
            return;
        };
        tokio::select! {
            copied = copy_bidirectional(&mut client, &mut upstream) => {
                match copied {
                    Ok((_, down)) => {
                        exchange.timeline.add_bytes(down);
                        exchange.ended(End::Eof);
                    }
                    Err(error) => {
                        exchange.because(error.to_string());
                        exchange.ended(End::Cut);
                    }
                }
            }
            () = ending => {
                exchange.because("the proxy is shutting down");
                exchange.ended(End::Deadline);
            }
        }
    }
}
