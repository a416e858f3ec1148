//! Clients whose behaviour follows from their numbers. They record everything they see.

pub mod http1;
pub mod http2;
pub mod request;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::sync::watch;

use crate::draw::Draw;
use crate::ledger::Ledger;
use crate::support::tls;
use crate::support::upstream::Io;
use crate::wire::Id;
use request::ClientRequest;

/// How long a client waits for anything, in seconds: long enough for a busy machine to send a response through windows of 2 KB.
pub const PATIENCE: u64 = 30;

/// State shared by all clients of a wave.
#[derive(Clone)]
pub struct Crowd {
    pub seed: u64,
    pub wave: usize,
    pub address: SocketAddr,
    /// Present if the proxy uses TLS: the configurations for HTTP/1.1 and for HTTP/2.
    pub tls: Option<[Arc<rustls::ClientConfig>; 2]>,
    pub ledger: Ledger,
    /// True once no more requests may be sent.
    pub over: watch::Receiver<bool>,
}

/// The HTTP version of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Speech {
    Http10,
    Http11,
    Http2,
}

impl Crowd {
    /// Runs one client: opens one connection after another until the wave is over.
    pub async fn client(self, number: usize) {
        let mut draw = Draw::of(&[self.seed, 2, self.wave as u64, number as u64]);
        let mut sequence = 0;
        while !*self.over.borrow() {
            let speech = match draw.within(0..=9) {
                0 => Speech::Http10,
                1..=3 => Speech::Http2,
                _ => Speech::Http11,
            };
            let requests = draw.within(1..=6);
            let depth = if draw.percent(25) {
                draw.within(2..=3)
            } else {
                1
            };
            let mut asks = Vec::new();
            for _ in 0..requests {
                let id = Id::new(self.wave, number, sequence);
                sequence += 1;
                let planned = ClientRequest::of(self.seed, id);
                asks.push(match speech {
                    Speech::Http10 => planned.in_http10(),
                    Speech::Http11 => planned,
                    Speech::Http2 => planned.in_http2(),
                });
            }
            let Some(io) = self.connect(speech).await else {
                tokio::time::sleep(Duration::from_millis(20)).await;
                continue;
            };
            match speech {
                Speech::Http2 => http2::converse(&self, asks, draw.clone(), io).await,
                _ => http1::converse(&self, speech, asks, depth, io).await,
            }
            tokio::time::sleep(draw.millis(0..=20)).await;
        }
    }

    async fn connect(&self, speech: Speech) -> Option<Box<dyn Io>> {
        if let Some(configs) = &self.tls {
            let stream = tls::connect(
                self.address,
                configs[usize::from(speech == Speech::Http2)].clone(),
            )
            .await;
            return Some(Box::new(stream.ok()?));
        }
        let stream = TcpStream::connect(self.address).await.ok()?;
        stream.set_nodelay(true).ok()?;
        Some(Box::new(stream))
    }
}
