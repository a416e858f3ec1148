//! HTTP/1.1 for the scripted server.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http::Version;
use tokio::io::{AsyncReadExt, AsyncWriteExt, ReadHalf, WriteHalf};

use super::{Connection, Io, Received, Script, Step};

/// How a script ended.
enum Ending {
    /// The connection may carry another request.
    Whole,
    Close,
    Echo,
}

#[derive(Clone, Copy, PartialEq)]
enum Framing {
    /// The body has nothing to end.
    None,
    Chunked,
    UntilClose,
}

pub async fn serve(io: impl Io, connection: Connection) {
    let (reader, writer) = tokio::io::split(io);
    let mut reader = Reader {
        half: reader,
        buffer: Vec::new(),
        connection: &connection,
    };
    let mut writer = Writer {
        half: writer,
        framing: Framing::None,
        connection: &connection,
    };
    while let Some(received) = reader.head().await {
        let received = Arc::new(received);
        let script = connection.receive(received.clone());
        if !script.leaves_body {
            if received.header("expect").is_some() {
                let _ = writer.write(b"HTTP/1.1 100 Continue\r\n\r\n").await;
            }
            if reader.body(&received).await.is_none() {
                received.leave();
                return;
            }
        }
        let leaves_body = script.leaves_body;
        let ending = tokio::select! {
            biased;
            ending = writer.play(script, &received) => ending,
            () = reader.watch(), if !leaves_body => None,
        };
        match ending {
            Some(Ending::Whole) if !leaves_body => {}
            Some(Ending::Whole) => {
                // Wait, so that a reset caused by unread data does not overtake the response.
                let _ = tokio::time::timeout(Duration::from_secs(5), reader.watch()).await;
                return;
            }
            Some(Ending::Close) => return,
            Some(Ending::Echo) => return echo(reader, writer).await,
            None => return received.leave(),
        }
    }
}

async fn echo<R: Io>(mut reader: Reader<'_, R>, mut writer: Writer<'_, R>) {
    loop {
        let bytes = std::mem::take(&mut reader.buffer);
        if writer.half.write_all(&bytes).await.is_err() || !reader.fill().await {
            return;
        }
    }
}

struct Reader<'a, T> {
    half: ReadHalf<T>,
    buffer: Vec<u8>,
    connection: &'a Connection,
}

impl<T: Io> Reader<'_, T> {
    /// Reads more. Returns false if there is no more.
    async fn fill(&mut self) -> bool {
        match self.half.read_buf(&mut self.buffer).await {
            Ok(0) | Err(_) => false,
            Ok(count) => {
                let bytes = &self.connection.log.bytes;
                bytes.fetch_add(count as u64, Ordering::Relaxed);
                true
            }
        }
    }

    /// Returns when the peer is gone.
    async fn watch(&mut self) {
        while self.fill().await {}
    }

    async fn head(&mut self) -> Option<Received> {
        let length = loop {
            match find(&self.buffer, b"\r\n\r\n") {
                Some(at) => break at + 4,
                None if !self.fill().await => return None,
                None => {}
            }
        };
        let head = String::from_utf8_lossy(&self.buffer[..length]).into_owned();
        self.buffer.drain(..length);
        let mut lines = head.trim_end().split("\r\n");
        let mut words = lines.next()?.split(' ').map(str::to_owned);
        let headers = lines
            .filter_map(|line| line.split_once(':'))
            .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
            .collect();
        Some(Received {
            method: words.next()?,
            target: words.next()?,
            version: Version::HTTP_11,
            headers,
            connection: self.connection.number,
            body: Mutex::default(),
            trailers: Mutex::default(),
            complete: false.into(),
            gone: false.into(),
            head,
        })
    }

    async fn body(&mut self, received: &Received) -> Option<()> {
        if received.header("transfer-encoding").is_some() {
            loop {
                let size = self.line().await?;
                let size = size.split(';').next().unwrap_or_default().trim();
                let size = usize::from_str_radix(size, 16).ok()?;
                if size == 0 {
                    break;
                }
                self.take(size, received).await?;
                self.line().await.filter(String::is_empty)?;
            }
            loop {
                let line = self.line().await?;
                let Some((name, value)) = line.split_once(':') else {
                    break;
                };
                let field = (name.to_ascii_lowercase(), value.trim().to_owned());
                received.trailers.lock().unwrap().push(field);
            }
        } else if let Some(length) = received.header("content-length") {
            self.take(length.parse().ok()?, received).await?;
        }
        received.complete();
        Some(())
    }

    async fn take(&mut self, mut count: usize, received: &Received) -> Option<()> {
        while count > 0 {
            if self.buffer.is_empty() && !self.fill().await {
                return None;
            }
            let now = count.min(self.buffer.len());
            received
                .body
                .lock()
                .unwrap()
                .extend(self.buffer.drain(..now));
            count -= now;
        }
        Some(())
    }

    async fn line(&mut self) -> Option<String> {
        loop {
            if let Some(at) = find(&self.buffer, b"\r\n") {
                let line = String::from_utf8_lossy(&self.buffer[..at]).into_owned();
                self.buffer.drain(..at + 2);
                return Some(line);
            }
            if !self.fill().await {
                return None;
            }
        }
    }
}

fn find(bytes: &[u8], what: &[u8]) -> Option<usize> {
    bytes.windows(what.len()).position(|window| window == what)
}

struct Writer<'a, T> {
    half: WriteHalf<T>,
    framing: Framing,
    connection: &'a Connection,
}

impl<T: Io> Writer<'_, T> {
    /// Returns `None` if the peer is gone.
    async fn play(&mut self, script: Script, received: &Received) -> Option<Ending> {
        self.framing = Framing::None;
        let mut steps: VecDeque<Step> = script.steps.into();
        while let Some(step) = steps.pop_front() {
            match step {
                Step::Head(status, headers) => self.head(status, &headers, received).await?,
                Step::Chunk(bytes) => self.data(&bytes).await?,
                Step::Raw(bytes) => self.write(&bytes).await?,
                Step::Flood(bytes, times, sent) => {
                    for _ in 0..times {
                        self.data(&bytes).await?;
                        sent.fetch_add(bytes.len() as u64, Ordering::Relaxed);
                    }
                }
                Step::Pause(duration) => tokio::time::sleep(duration).await,
                Step::Wait(gate) => gate.wait().await,
                Step::Then(choose) => {
                    for step in choose(received).steps.into_iter().rev() {
                        steps.push_front(step);
                    }
                }
                Step::End(trailers) => {
                    steps.clear();
                    self.end(&trailers).await?;
                }
                Step::Eof => {
                    let _ = self.half.shutdown().await;
                    return Some(Ending::Close);
                }
                Step::Reset => {
                    self.connection.reset_on_close();
                    return Some(Ending::Close);
                }
                Step::Hang => std::future::pending().await,
                Step::Echo => return Some(Ending::Echo),
            }
        }
        self.end(&[]).await?;
        if self.framing == Framing::UntilClose {
            let _ = self.half.shutdown().await;
            return Some(Ending::Close);
        }
        Some(Ending::Whole)
    }

    async fn head(
        &mut self,
        status: u16,
        headers: &[(String, String)],
        received: &Received,
    ) -> Option<()> {
        let has = |wanted: &str| headers.iter().any(|(name, _)| name == wanted);
        let mut text = format!("HTTP/1.1 {status} Scripted\r\n");
        for (name, value) in headers {
            text += &format!("{name}: {value}\r\n");
        }
        self.framing = if has("content-length") || received.method == "HEAD" || status == 204 {
            Framing::None
        } else if has("connection") {
            Framing::UntilClose
        } else {
            text += "transfer-encoding: chunked\r\n";
            Framing::Chunked
        };
        text += "\r\n";
        self.write(text.as_bytes()).await
    }

    async fn data(&mut self, bytes: &Bytes) -> Option<()> {
        if self.framing == Framing::Chunked {
            let mut framed = format!("{:X}\r\n", bytes.len()).into_bytes();
            framed.extend_from_slice(bytes);
            framed.extend(b"\r\n");
            self.write(&framed).await
        } else {
            self.write(bytes).await
        }
    }

    async fn end(&mut self, trailers: &[(String, String)]) -> Option<()> {
        if self.framing == Framing::Chunked {
            self.framing = Framing::None;
            let mut text = "0\r\n".to_owned();
            for (name, value) in trailers {
                text += &format!("{name}: {value}\r\n");
            }
            text += "\r\n";
            self.write(text.as_bytes()).await?;
        }
        Some(())
    }

    async fn write(&mut self, bytes: &[u8]) -> Option<()> {
        self.half.write_all(bytes).await.ok()?;
        self.half.flush().await.ok()
    }
}
