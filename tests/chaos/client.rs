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
pub struct WaveContext {
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
pub enum HttpVersion {
    Http10,
    Http11,
    Http2,
}

impl WaveContext {
    /// Runs one client: opens one connection after another until the wave is over.
    pub async fn client(self, number: usize) {
        let mut draw = Draw::of(&[self.seed, 2, self.wave as u64, number as u64]);
        let mut sequence = 0;
        while !*self.over.borrow() {
            let version = match draw.within(0..=9) {
                0 => HttpVersion::Http10,
                1..=3 => HttpVersion::Http2,
                _ => HttpVersion::Http11,
            };
            let count = draw.within(1..=6);
            let depth = if draw.percent(25) {
                draw.within(2..=3)
            } else {
                1
            };
            let mut requests = Vec::new();
            for _ in 0..count {
                let id = Id::new(self.wave, number, sequence);
                sequence += 1;
                let planned = ClientRequest::of(self.seed, id);
                requests.push(match version {
                    HttpVersion::Http10 => planned.in_http10(),
                    HttpVersion::Http11 => planned,
                    HttpVersion::Http2 => planned.in_http2(),
                });
            }
            let Some(io) = self.connect(version).await else {
                // The proxy refuses connections, for example while it drains. Do not retry in a busy loop.
                tokio::time::sleep(Duration::from_millis(20)).await;
                continue;
            };
            match version {
                HttpVersion::Http2 => http2::converse(&self, requests, draw.clone(), io).await,
                _ => http1::converse(&self, version, requests, depth, io).await,
            }
            // A random pause between connections, as the seed says.
            tokio::time::sleep(draw.millis(0..=20)).await;
        }
    }

    async fn connect(&self, version: HttpVersion) -> Option<Box<dyn Io>> {
        if let Some(configs) = &self.tls {
            let stream = tls::connect(
                self.address,
                configs[usize::from(version == HttpVersion::Http2)].clone(),
            )
            .await;
            return Some(Box::new(stream.ok()?));
        }
        let stream = TcpStream::connect(self.address).await.ok()?;
        stream.set_nodelay(true).ok()?;
        Some(Box::new(stream))
    }
}
