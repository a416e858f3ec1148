//! The memory limit holds however clients and model servers behave: the memory budget, plus 64 MiB for the process, 4 MiB for each
//! thread beyond the fourth, and 16 KiB for each client connection, or with HTTP/2 64 KiB for each connection and 16 KiB for each open
//! request. TLS adds up to 64 KiB for each direction of a connection whose client stalls.

mod expanded;

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use crate::rig::*;
use frames::{
    DATA, END_STREAM, Frames, GOAWAY, HEADERS, PREFACE, RST_STREAM, SETTINGS, block, frame,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, JoinSet};

const MIB: u64 = 1024 * 1024;
/// The memory budget of the proxy under attack, in bytes.
const BUDGET: u64 = 8 * MIB;
/// The pages of the program that a release build has in memory, in bytes. A debug build has more of them.
const PROGRAM: u64 = 12 * MIB;

/// How a model server treats its connections.
#[derive(Clone, Copy)]
enum Manner {
    /// Reads everything and never responds.
    ReadsOn,
    /// Reads a head and nothing more.
    ReadsHead,
    /// Reads a head and sends this beginning of a response, then this number of bytes, then nothing.
    Sends(&'static str, u64),
}

/// A model server that does not store what it receives.
struct Server {
    address: SocketAddr,
    accepting: JoinHandle<()>,
}

impl Server {
    async fn start(manner: Manner) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let accepting = tokio::spawn(async move {
            let mut open = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                open.spawn(serve(stream, manner));
            }
        });
        Self { address, accepting }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn serve(mut stream: TcpStream, manner: Manner) {
    let mut buffer = vec![0; 16 * 1024];
    let mut seen = Vec::<u8>::new();
    loop {
        match stream.read(&mut buffer).await {
            Ok(count @ 1..) if !matches!(manner, Manner::ReadsOn) => {
                seen.extend(&buffer[..count]);
                if seen.windows(4).any(|window| window == b"\r\n\r\n") {
                    break;
                }
            }
            Ok(1..) => {}
            _ => return,
        }
    }
    if let Manner::Sends(beginning, count) = manner {
        let _ = stream.write_all(beginning.as_bytes()).await;
        // The proxy should read what follows separately. The server cannot see when the proxy has read.
        tokio::time::sleep(Duration::from_millis(5)).await;
        let piece = [b'x'; 16 * 1024];
        let mut left = usize::try_from(count).unwrap();
        while left > 0 {
            let here = left.min(piece.len());
            if stream.write_all(&piece[..here]).await.is_err() {
                return;
            }
            left -= here;
        }
    }
    std::future::pending::<()>().await;
}

/// A proxy in front of such a server, and its memory before the attack.
struct Fixture {
    proxy: Proxy,
    before: u64,
    threads: u64,
    /// The memory that a client connection may take, in bytes.
    per_connection: u64,
    servers: [Server; 2],
}

impl Fixture {
    async fn start(manner: Manner, more: &[&str]) -> Self {
        let servers = [Server::start(manner).await, Server::start(manner).await];
        let [old, new] = servers.each_ref().map(|server| server.address.to_string());
        let budget = BUDGET.to_string();
        let mut flags = vec!["--replay-budget-bytes", &budget, "--no-access-log"];
        if !more.contains(&"--old") {
            flags.extend(["--old", &old, "--new", &new, "--split", "50"]);
        }
        flags.extend(more);
        let threads = more.windows(2).find(|pair| pair[0] == "--threads");
        let proxy = Proxy::start(&flags).await;
        let response = client::get(proxy.admin, "/metrics").await;
        assert_eq!(response.status, 200);
        Self {
            before: proxy.memory(),
            threads: threads.map_or(1, |pair| pair[1].parse().unwrap()),
            per_connection: 16 * 1024,
            proxy,
            servers,
        }
    }

    /// Lets `count` clients connect and send `bytes` as far as the proxy reads them, and asserts the memory limit.
    async fn attack(&self, count: u64, bytes: impl Fn(u64) -> Vec<u8>) -> Vec<TcpStream> {
        let mut sending = JoinSet::new();
        for number in 0..count {
            let bytes = bytes(number);
            let address = self.proxy.address;
            sending.spawn(async move {
                let mut stream = TcpStream::connect(address).await.unwrap();
                let mut left = &bytes[..];
                // A client that has been blocked for a while will not continue.
                while !left.is_empty() {
                    let writing = stream.write(left);
                    match tokio::time::timeout(Duration::from_secs(2), writing).await {
                        Ok(Ok(written)) => left = &left[written..],
                        _ => break,
                    }
                }
                stream
            });
            if number % 64 == 63 {
                tokio::task::yield_now().await;
            }
        }
        let streams = sending.join_all().await;
        self.settled().await;
        self.assert_bounded(count).await;
        streams
    }

    /// Waits until the process is idle.
    async fn settled(&self) {
        let mut last = self.cpu();
        let mut rests = 0;
        // Longer than the usual patience, because the machine may be busy.
        for _ in 0..600 {
            tokio::time::sleep(Duration::from_millis(100)).await;
            let now = self.cpu();
            let quiet = std::mem::replace(&mut last, now) + 1 >= now;
            rests = if quiet { rests + 1 } else { 0 };
            if rests == 3 {
                return;
            }
        }
        panic!("the proxy does not become idle");
    }

    /// The processor time that it has used, in hundredths of a second.
    fn cpu(&self) -> u64 {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.proxy.pid())).unwrap();
        let fields = stat.rsplit_once(") ").unwrap().1.split(' ');
        let times = fields.skip(11).take(2);
        times.map(|field| field.parse::<u64>().unwrap()).sum()
    }

    /// The memory limit with clients that may take this many bytes.
    fn bound(&self, of_clients: u64) -> u64 {
        let more_threads = self.threads.saturating_sub(4);
        let own = (64 + 4 * more_threads) * MIB;
        let debug = self.proxy.memory_of_files().saturating_sub(PROGRAM);
        BUDGET + own + of_clients + debug
    }

    async fn assert_bounded(&self, connections: u64) {
        let peak = self.proxy.memory_peak();
        let bound = self.bound(connections * self.per_connection);
        let used = self
            .proxy
            .metrics()
            .await
            .sum("crossfade_memory_bytes", &[("kind", "used")]);
        eprintln!(
            "before {} MiB, at most {} MiB, bound {} MiB, used {:.1} MiB",
            self.before / MIB,
            peak / MIB,
            bound / MIB,
            used / MIB as f64,
        );
        assert!(
            peak <= bound,
            "held {} MiB, may hold {} MiB",
            peak / MIB,
            bound / MIB
        );
    }

    /// Asserts that the whole budget is returned once clients and servers have disconnected.
    async fn gives_back(self) {
        // The proxy cannot notice the disconnect of a client whose bytes it does not read.
        drop(self.servers);
        let labels = [("kind", "used")];
        self.proxy
            .counts("crossfade_memory_bytes", &labels, 0.0)
            .await;
    }

    async fn refused(&self, purpose: &str) -> f64 {
        let labels = [("purpose", purpose)];
        let metrics = self.proxy.metrics().await;
        metrics.sum("crossfade_memory_refused_total", &labels)
    }
}

fn chunked() -> Vec<u8> {
    format!("POST {CHAT} HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n").into_bytes()
}

fn sized(length: u64, here: u64) -> Vec<u8> {
    let mut bytes =
        format!("POST {CHAT} HTTP/1.1\r\nhost: a\r\ncontent-length: {length}\r\n\r\n").into_bytes();
    bytes.resize(bytes.len() + usize::try_from(here).unwrap(), b'x');
    bytes
}

#[tokio::test]
async fn bodies_in_chunks_of_one_byte_cost_about_their_length() {
    let _machine = crate::shared().await;
    let fixture = Fixture::start(Manner::ReadsOn, &[]).await;
    let streams = fixture
        .attack(4, |_| [chunked(), b"1\r\nx\r\n".repeat(1_000_000)].concat())
        .await;
    drop(streams);
    fixture.gives_back().await;
}

/// The proxy reads each chunk separately, as far as the machine allows.
#[tokio::test]
async fn paced_chunks_of_one_byte_cost_about_their_length() {
    let _machine = crate::shared().await;
    let fixture = Fixture::start(Manner::ReadsHead, &[]).await;
    let extended = format!("1;{}\r\nx\r\n", "e".repeat(1000));
    for chunk in ["1\r\nx\r\n", &extended] {
        let mut stream = TcpStream::connect(fixture.proxy.address).await.unwrap();
        stream.set_nodelay(true).unwrap();
        stream.write_all(&chunked()).await.unwrap();
        for _ in 0..20_000 {
            // The proxy disconnects a client with too many extensions.
            if stream.write_all(chunk.as_bytes()).await.is_err() {
                break;
            }
            tokio::task::yield_now().await;
        }
        fixture.settled().await;
        fixture.assert_bounded(2).await;
        let metrics = fixture.proxy.metrics().await;
        let used = metrics.sum("crossfade_memory_bytes", &[("kind", "used")]);
        assert!(used < 400_000.0, "{used} for 20 kB");
    }
    fixture.gives_back().await;
}

#[tokio::test]
async fn chunk_extensions_are_not_held() {
    let _machine = crate::shared().await;
    let fixture = Fixture::start(Manner::ReadsOn, &[]).await;
    let chunk = format!("1;{}\r\nx\r\n", "e".repeat(1000));
    let streams = fixture
        .attack(8, |_| {
            [chunked(), chunk.repeat(24_000).into_bytes()].concat()
        })
        .await;
    drop(streams);
    fixture.gives_back().await;
}

#[tokio::test]
async fn names_in_connection_fields_are_not_kept() {
    let _machine = crate::shared().await;
    let fixture = Fixture::start(Manner::ReadsOn, &[]).await;
    let names = "a,b,c,".repeat(10_000);
    let head = format!(
        "POST {CHAT} HTTP/1.1\r\nhost: a\r\nconnection: {names}\r\ntransfer-encoding: chunked\r\n\r\n1\r\nx\r\n"
    );
    // Each kept name would take 64 bytes.
    let clients = fixture.attack(300, |_| head.clone().into_bytes()).await;
    drop(clients);
    fixture.gives_back().await;
}

#[tokio::test]
async fn a_body_read_for_affinity_is_not_parsed_into_a_tree() {
    let _machine = crate::shared().await;
    let more = ["--affinity-body-field", "user"];
    let fixture = Fixture::start(Manner::ReadsOn, &more).await;
    // A tree of these values takes 150 times their text.
    let values = r#"{"":{"":{"":{}}}},"#.repeat(50_000);
    let body = format!(r#"{{"user":[{values}{{}}]}}"#);
    let mut request = sized(body.len() as u64, 0);
    request.extend_from_slice(body.as_bytes());
    let clients = fixture.attack(4, |_| request.clone()).await;
    drop(clients);
    fixture.gives_back().await;
}

#[tokio::test]
async fn bodies_read_for_affinity_share_the_budget_and_those_beyond_it_pass_without_affinity() {
    let _machine = crate::shared().await;
    let flags = ["--affinity-body-field", "user"];
    let fixture = Fixture::start(Manner::ReadsOn, &flags).await;
    let streams = fixture.attack(300, |_| sized(MIB, MIB - 1)).await;
    assert!(fixture.refused("affinity").await > 0.0);
    drop(streams);
    fixture.gives_back().await;
}

#[tokio::test]
async fn small_bodies_whose_model_server_does_not_respond_share_the_budget() {
    let _machine = crate::shared().await;
    let fixture = Fixture::start(Manner::ReadsOn, &[]).await;
    let streams = fixture.attack(2000, |_| sized(64_000, 64_000)).await;
    assert!(fixture.refused("request_body").await > 0.0);
    drop(streams);
    fixture.gives_back().await;
}

#[tokio::test]
async fn bodies_without_a_failover_target_are_not_kept() {
    let _machine = crate::shared().await;
    for (split, is_kept) in [("0", false), ("50", true)] {
        let servers = [
            Server::start(Manner::ReadsOn).await,
            Server::start(Manner::ReadsOn).await,
        ];
        let [old, new] = servers.each_ref().map(|server| server.address.to_string());
        let flags = ["--old", &old, "--new", &new, "--split", split];
        let fixture = Fixture::start(Manner::ReadsOn, &flags).await;
        let streams = fixture.attack(4, |_| sized(MIB, MIB)).await;
        let metrics = fixture.proxy.metrics().await;
        let used = metrics.sum("crossfade_memory_bytes", &[("kind", "used")]);
        let kept = 4.0 * MIB as f64;
        assert_eq!(used >= kept, is_kept, "{used} at {split}%");
        assert!(is_kept || used < kept / 16.0, "{used} at {split}%");
        drop((streams, servers));
        fixture.gives_back().await;
    }
}

#[tokio::test]
async fn bodies_that_a_model_server_does_not_read_share_the_budget() {
    let _machine = crate::shared().await;
    let fixture = Fixture::start(Manner::ReadsHead, &[]).await;
    let streams = fixture.attack(400, |_| sized(16 * MIB, 8 * MIB)).await;
    drop(streams);
    fixture.gives_back().await;
}

#[tokio::test]
async fn no_body_is_buffered_for_a_request_beyond_the_request_limit() {
    let _machine = crate::shared().await;
    let flags = ["--max-requests", "10"];
    let fixture = Fixture::start(Manner::ReadsOn, &flags).await;
    let mut streams = fixture.attack(2000, |_| sized(64_000, 1000)).await;
    let used = fixture.proxy.metrics().await;
    let used = used.sum("crossfade_memory_bytes", &[("kind", "used")]);
    assert!(used < 10.0 * 80_000.0, "{used}");
    let mut refused = 0;
    for stream in &mut streams {
        let mut head = [0; 12];
        let reading = stream.read_exact(&mut head);
        let read = tokio::time::timeout(Duration::from_millis(20), reading).await;
        refused += usize::from(matches!(read, Ok(Ok(_))) && head.ends_with(b"503"));
    }
    assert_eq!(refused, 1990);
}

#[tokio::test]
async fn incomplete_events_share_the_budget_and_those_beyond_it_pass_at_once() {
    let _machine = crate::shared().await;
    const HEAD: &str = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\ndata: ";
    // The allocator retains memory per thread.
    let fixture = Fixture::start(Manner::Sends(HEAD, 900_000), &["--threads", "16"]).await;
    let streams = fixture.attack(400, |_| sized(2, 2)).await;
    // Clients whose event is held get nothing yet.
    let mut reading = JoinSet::new();
    for mut stream in streams {
        reading.spawn(async move {
            let reading = stream.read_exact(&mut [0; 1000]).await.map(|_| stream);
            reading.unwrap()
        });
    }
    let mut passed = Vec::new();
    within("most half events pass", async {
        while passed.len() < 380 {
            passed.push(reading.join_next().await.unwrap().unwrap());
        }
    })
    .await;
    assert!(fixture.refused("event").await > 0.0);
    fixture.assert_bounded(400).await;
    drop((reading, passed));
    fixture.gives_back().await;
}

#[tokio::test]
async fn responses_that_clients_do_not_read_share_the_budget() {
    let _machine = crate::shared().await;
    const HEAD: &str = "HTTP/1.1 200 OK\r\ncontent-length: 100000000\r\n\r\n";
    let fixture = Fixture::start(Manner::Sends(HEAD, 10 * MIB), &[]).await;
    let streams = fixture.attack(800, |_| sized(2, 2)).await;
    drop(streams);
    fixture.gives_back().await;
}

/// Clients that do not read, of a server that does not read either.
#[tokio::test]
async fn clients_that_stall_over_tls_take_64_kib_more_in_each_direction() {
    const COUNT: u64 = 200;
    let _machine = crate::shared().await;
    const HEAD: &str = "HTTP/1.1 200 OK\r\ncontent-length: 100000000\r\n\r\n";
    let authority = tls::Authority::new();
    let files = authority.issue("proxy");
    let flags = ["--tls-cert", files.cert(), "--tls-key", files.key()];
    let mut fixture = Fixture::start(Manner::Sends(HEAD, 10 * MIB), &flags).await;
    fixture.per_connection += 2 * 64 * 1024;
    let config = authority.client(&["http/1.1"], None);
    let mut sending = JoinSet::new();
    for _ in 0..COUNT {
        // One after another, so that no handshake takes too long.
        let connecting = tls::connect(fixture.proxy.address, config.clone());
        let mut stream = connecting.await.unwrap();
        stream.write_all(&sized(16 * MIB, 2)).await.unwrap();
        sending.spawn(async move {
            let body = [b'x'; 16 * 1024];
            let writing = async { while stream.write_all(&body).await.is_ok() {} };
            // A client that has been blocked for a while will not continue.
            let _ = tokio::time::timeout(Duration::from_secs(2), writing).await;
            stream
        });
    }
    let streams = sending.join_all().await;
    fixture.settled().await;
    fixture.assert_bounded(COUNT).await;
    drop(streams);
    fixture.gives_back().await;
}

/// A slice of a read buffer keeps the whole buffer alive, even an empty slice.
#[tokio::test]
async fn idle_responses_retain_nothing_that_was_forwarded() {
    const HEAD: &str = "HTTP/1.1 200 OK\r\ncontent-length: 100000000\r\n\r\n";
    const PASSED: u64 = 256 * 1024;
    const COUNT: u64 = 1000;
    let _machine = crate::alone().await;
    let fixture = Fixture::start(Manner::Sends(HEAD, PASSED), &[]).await;
    let mut open = Vec::new();
    let mut body = vec![0; usize::try_from(PASSED).unwrap()];
    // One after another, so that no buffer contains several heads.
    for _ in 0..COUNT {
        let mut stream = TcpStream::connect(fixture.proxy.address).await.unwrap();
        stream.write_all(&sized(2, 2)).await.unwrap();
        stream.read_exact(&mut body).await.unwrap();
        open.push(stream);
    }
    fixture.settled().await;
    let held = fixture.proxy.memory().saturating_sub(fixture.before);
    let most = COUNT * 16 * 1024;
    assert!(held <= most, "{} KiB each", held / COUNT / 1024);
    drop(open);
    fixture.gives_back().await;
}

/// Data that arrives with a response head is read before the proxy knows whether the client reads.
#[tokio::test]
async fn unread_responses_whose_data_arrives_with_the_head_share_the_budget() {
    let _machine = crate::shared().await;
    let head = "HTTP/1.1 200 OK\r\ncontent-length: 100000000\r\n\r\n";
    let beginning: &'static str = format!("{head}{}", "x".repeat(200_000)).leak();
    let fixture = Fixture::start(Manner::Sends(beginning, MIB), &[]).await;
    let mut open = Vec::new();
    for _ in 0..16 {
        let settings = [(frames::INITIAL_WINDOW_SIZE, 0)];
        let mut frames = Frames::connect(fixture.proxy.address, &settings).await;
        for stream in (1..2 * STREAMS).step_by(2) {
            assert!(frames.request(stream, END_STREAM, "POST", CHAT).await);
        }
        open.push(frames);
    }
    let streams = u64::from(16 * STREAMS);
    fixture
        .proxy
        .counts("crossfade_open_streams", &[], streams as f64)
        .await;
    fixture.settled().await;
    fixture.assert_bounded(16 + streams).await;
    let metrics = fixture.proxy.metrics().await;
    let used = metrics.sum("crossfade_memory_bytes", &[("kind", "used")]);
    // The reserve beyond the budget.
    assert!(used <= (BUDGET + 16 * MIB) as f64, "{used}");
    drop(open);
    fixture.gives_back().await;
}

/// Error events are held while unresponsive servers are asked to continue the streams.
#[tokio::test]
async fn held_error_events_share_the_budget() {
    let _machine = crate::shared().await;
    let large = format!(
        "data: {{\"error\":{{\"message\":\"{}\",\"code\":503}}}}",
        "x".repeat(900_000)
    );
    let large: &'static str = large.leak();
    let breaks = move |request: &Received| {
        if request.target == MODELS {
            return models(&["tiny"]);
        }
        Script::by_body(move |request| {
            let body = String::from_utf8_lossy(&request.body()).into_owned();
            let is_set = |field: &str| body.contains(&format!("\"{field}\":true"));
            match (
                is_set("continue_final_message"),
                is_set("add_generation_prompt"),
            ) {
                (true, true) => {
                    let both = "Cannot set both `continue_final_message` and `add_generation_prompt` to True.";
                    Script::new().json(400, &format!("{{\"message\":\"{both}\",\"code\":400}}"))
                }
                (true, false) => Script::new().hang(),
                _ => Script::new()
                    .sse()
                    .event(
                        r#"data: {"model":"tiny","choices":[{"index":0,"delta":{"content":"a"}}]}"#,
                    )
                    .event(large)
                    .hang(),
            }
        })
    };
    let [old, new] = [Upstream::start(breaks).await, Upstream::start(breaks).await];
    let (old_url, new_url) = (old.url(), new.url());
    let flags = [
        "--old",
        &old_url,
        "--new",
        &new_url,
        "--continuation",
        "any-generation",
    ];
    let fixture = Fixture::start(Manner::ReadsOn, &flags).await;
    let supported = [("api", "chat"), ("state", "supported")];
    let proven = "crossfade_continuation_capability";
    fixture.proxy.counts(proven, &supported, 2.0).await;
    let body = r#"{"model":"tiny","stream":true,"messages":[{"role":"user","content":"a"}]}"#;
    let head = format!(
        "POST {CHAT} HTTP/1.1\r\nhost: a\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    let streams = fixture.attack(200, |_| head.clone().into_bytes()).await;
    assert!(fixture.refused("event").await > 0.0);
    drop((streams, old, new));
    fixture.gives_back().await;
}

#[tokio::test]
async fn incomplete_heads_share_the_budget() {
    let _machine = crate::shared().await;
    let fixture = Fixture::start(Manner::ReadsOn, &[]).await;
    let streams = fixture
        .attack(2000, |_| {
            format!("GET / HTTP/1.1\r\nhost: a\r\nx: {}", "x".repeat(60_000)).into_bytes()
        })
        .await;
    let labels = [("cause", "no_memory")];
    let metrics = fixture.proxy.metrics().await;
    let refused = metrics.sum("crossfade_rejected_requests_total", &labels);
    assert!(refused > 1000.0, "{refused}");
    // Rejected clients got a Retry-After.
    let mut rejected = 0;
    for mut stream in streams {
        let mut answer = [0; 1024];
        let reading = tokio::time::timeout(Duration::from_millis(1), stream.read(&mut answer));
        if let Ok(Ok(length @ 1..)) = reading.await {
            let answer = String::from_utf8_lossy(&answer[..length]);
            if answer.starts_with("HTTP/1.1 503 ") {
                assert!(answer.contains("retry-after: 1\r\n"), "{answer}");
                rejected += 1;
            }
        }
    }
    assert!(rejected > 0);
    fixture.gives_back().await;
}

#[tokio::test]
async fn incomplete_response_heads_and_trailers_share_the_budget() {
    const HEAD: &str = "HTTP/1.1 200 OK\r\nx: ";
    const TRAILERS: &str =
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\nx\r\n0\r\nx: ";
    const INTERIM: &str = "HTTP/1.1 103 Early Hints\r\nlink: a\r\n\r\nHTTP/1.1 103 b\r\nx: ";
    for (beginning, length) in [(HEAD, 60_000), (TRAILERS, 16_000), (INTERIM, 60_000)] {
        let fixture = Fixture::start(Manner::Sends(beginning, length), &[]).await;
        let streams = fixture.attack(1500, |_| sized(2, 2)).await;
        drop(streams);
        fixture.gives_back().await;
    }
}

#[tokio::test]
async fn request_trailers_share_the_budget() {
    let fields = format!("x: {}\r\n", "x".repeat(16_000));
    for end in ["", "\r\n"] {
        let fixture = Fixture::start(Manner::ReadsOn, &[]).await;
        let trailers = format!("1\r\nx\r\n0\r\n{fields}{end}");
        let streams = fixture
            .attack(3000, |_| {
                [chunked(), trailers.clone().into_bytes()].concat()
            })
            .await;
        drop(streams);
        fixture.gives_back().await;
    }
}

#[tokio::test]
async fn pipelined_requests_behind_a_waiting_one_are_not_read() {
    let fixture = Fixture::start(Manner::ReadsOn, &[]).await;
    let ahead = format!(
        "GET /y HTTP/1.1\r\nhost: a\r\nx: {}\r\n\r\n",
        "x".repeat(60_000)
    );
    let streams = fixture
        .attack(500, |_| {
            [sized(2, 2), ahead.repeat(2).into_bytes()].concat()
        })
        .await;
    drop(streams);
    fixture.gives_back().await;
}

/// The opening of a stream is kept in case another target recovers it.
#[tokio::test]
async fn opening_events_that_were_sent_share_the_budget() {
    use std::fmt::Write;
    let mut answer = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n".to_owned();
    for number in 0..64 {
        let id = format!("{number:0>250}");
        let _ = write!(
            answer,
            "data: {{\"type\":\"response.output_item.added\",\"output_index\":{number},\"item\":{{\"id\":\"{id}\",\"call_id\":\"{id}\"}}}}\n\n"
        );
    }
    let beginning: &'static str = answer.leak();
    let flags = ["--hold", "0"];
    let fixture = Fixture::start(Manner::Sends(beginning, 0), &flags).await;
    let streams = fixture
        .attack(2000, |_| {
            let head = "POST /v1/responses HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\n\r\n{}";
            head.as_bytes().to_vec()
        })
        .await;
    assert!(fixture.refused("event").await > 0.0);
    drop(streams);
    fixture.gives_back().await;
}

#[tokio::test]
async fn uploads_over_http2_share_the_budget() {
    let _machine = crate::shared().await;
    let mut fixture = Fixture::start(Manner::ReadsHead, &[]).await;
    fixture.per_connection = 64 * 1024 + 4 * 16 * 1024;
    let mut uploads = JoinSet::new();
    for _ in 0..64 {
        let client = Arc::new(client::http2::Client::connect(fixture.proxy.address).await);
        for _ in 0..4 {
            let client = client.clone();
            uploads.spawn(async move {
                let _ = client.send("POST", CHAT, &[], vec![b'x'; 2 << 20]).await;
            });
        }
    }
    fixture
        .proxy
        .counts("crossfade_open_streams", &[], 256.0)
        .await;
    fixture.settled().await;
    fixture.assert_bounded(64).await;
    uploads.abort_all();
    fixture.gives_back().await;
}

/// An HTTP/2 server with large windows that reads nothing.
async fn opens_its_windows() -> Server {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let accepting = tokio::spawn(async move {
        let mut open = Vec::new();
        while let Ok((mut stream, _)) = listener.accept().await {
            let settings = [
                &[0, 4][..],
                &0x7fff_ffffu32.to_be_bytes(),
                &[0, 3],
                &1000u32.to_be_bytes(),
            ]
            .concat();
            let window = (0x7fff_ffffu32 - 65_535).to_be_bytes();
            let frames = [
                frame(SETTINGS, 0, 0, &settings),
                frame(frames::WINDOW_UPDATE, 0, 0, &window),
                frame(SETTINGS, frames::ACK, 0, &[]),
            ];
            stream.write_all(&frames.concat()).await.unwrap();
            open.push(stream);
        }
    });
    Server { address, accepting }
}

#[tokio::test]
async fn uploads_to_an_http2_server_that_stops_reading_share_the_budget() {
    const COUNT: u64 = 2000;
    let _machine = crate::alone().await;
    crate::streams::raise_file_limit();
    // In large pieces, and in pieces that are small enough to be free of charge.
    for size in [64 * 1024, 3000] {
        let server = opens_its_windows().await;
        let url = server.address.to_string();
        let flags = ["--old", &url, "--upstream-protocol", "http2"];
        let fixture = Fixture::start(Manner::ReadsOn, &flags).await;
        let mut clients = Vec::new();
        for _ in 0..COUNT {
            let mut client = TcpStream::connect(fixture.proxy.address).await.unwrap();
            client.write_all(&sized(10_000_000, 0)).await.unwrap();
            clients.push(client);
        }
        let piece = vec![b'x'; size];
        for _ in 0..30 {
            for client in &clients {
                let _ = client.try_write(&piece);
            }
            tokio::time::sleep(Duration::from_millis(30)).await;
        }
        fixture.settled().await;
        fixture.assert_bounded(COUNT).await;
        drop((clients, server));
        fixture.gives_back().await;
    }
}

/// Opens `count` HTTP/2 connections, each with this number of requests without a response.
async fn over_http2(fixture: &Fixture, count: u64, requests: u32) -> Vec<Frames> {
    let mut open = Vec::new();
    for _ in 0..count {
        let mut frames = Frames::connect(fixture.proxy.address, &[]).await;
        // The proxy has sent its settings and window.
        frames.next_of(&[frames::WINDOW_UPDATE]).await.unwrap();
        for stream in (1..2 * requests).step_by(2) {
            assert!(frames.request(stream, END_STREAM, "POST", CHAT).await);
        }
        open.push(frames);
    }
    let streams = f64::from(requests) * count as f64;
    let has = |metrics: &proxy::Metrics| metrics.sum("crossfade_open_streams", &[]) >= streams;
    eventually("all are open", async || has(&fixture.proxy.metrics().await)).await;
    fixture.settled().await;
    open
}

#[tokio::test]
async fn an_http2_connection_needs_64_kib_and_each_of_its_requests_16() {
    const COUNT: u64 = 1500;
    let _machine = crate::alone().await;
    crate::streams::raise_file_limit();
    let fixture = Fixture::start(Manner::ReadsOn, &[]).await;
    let bound = |connections, requests| connections * 64 * 1024 + requests * 16 * 1024;
    let mut all = Vec::new();
    for requests in [0, 1] {
        let before = fixture.proxy.memory();
        all.push(over_http2(&fixture, COUNT, requests).await);
        let held = fixture.proxy.memory().saturating_sub(before);
        let each = held / COUNT / 1024;
        eprintln!("{each} KiB for each connection with {requests} requests");
        let most = bound(COUNT, COUNT * u64::from(requests));
        assert!(held <= most, "{each} KiB each");
    }
    all.push(over_http2(&fixture, 15, 100).await);
    let metrics = fixture.proxy.metrics().await;
    let open = metrics.sum("crossfade_connections", &[]);
    assert_eq!(open, (2 * COUNT + 15) as f64);
    let most = fixture.bound(bound(2 * COUNT + 15, COUNT + 1500));
    let peak = fixture.proxy.memory_peak();
    assert!(peak <= most, "{} MiB", peak / MIB);
    drop(all);
    fixture.gives_back().await;
}

/// Responses of the admin port are not charged to the budget. Their number is limited instead.
#[tokio::test]
async fn unread_responses_of_the_admin_port_are_limited() {
    let _machine = crate::shared().await;
    for window in [0, 1] {
        let fixture = Fixture::start(Manner::ReadsOn, &[]).await;
        let mut open = Vec::new();
        let fields = [
            (":method", "GET"),
            (":scheme", "http"),
            (":path", "/metrics"),
            (":authority", "localhost"),
        ];
        for _ in 0..100 {
            let settings = [(frames::INITIAL_WINDOW_SIZE, window)];
            let mut frames = Frames::connect(fixture.proxy.admin, &settings).await;
            for stream in (1..2 * STREAMS).step_by(2) {
                let _ = frames.headers(stream, END_STREAM, &fields).await;
            }
            open.push(frames);
        }
        fixture.settled().await;
        let held = fixture.proxy.memory().saturating_sub(fixture.before);
        assert!(held < 64 * MIB, "{} MiB at {window}", held / MIB);
        drop(open);
        fixture.gives_back().await;
    }
}

/// An address that accepts no connection because its backlog is full.
struct Deaf {
    address: SocketAddr,
    _listener: TcpListener,
    _queued: Vec<TcpStream>,
}

impl Deaf {
    async fn start() -> Self {
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.bind((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
        let listener = socket.listen(1).unwrap();
        let address = listener.local_addr().unwrap();
        let mut queued = Vec::new();
        while let Ok(stream) =
            tokio::time::timeout(Duration::from_millis(500), TcpStream::connect(address)).await
        {
            queued.push(stream.unwrap());
        }
        Self {
            address,
            _listener: listener,
            _queued: queued,
        }
    }
}

/// The number of streams per connection: the proxy's maximum.
const STREAMS: u32 = 128;

/// The frames of `STREAMS` requests, and then those of `body` for each.
fn begun(body: impl Fn(u32) -> Vec<u8>) -> Vec<u8> {
    let mut bytes = Vec::new();
    let block = block(&[
        (":method", "POST"),
        (":scheme", "http"),
        (":path", CHAT),
        (":authority", "a"),
    ]);
    for stream in (1..2 * STREAMS).step_by(2) {
        bytes.extend(frame(HEADERS, frames::END_HEADERS, stream, &block));
    }
    for stream in (1..2 * STREAMS).step_by(2) {
        bytes.extend(body(stream));
    }
    bytes
}

/// Attacks a proxy over `count` connections. The proxy cannot connect to its model servers.
async fn attack_over_http2(count: u64, bytes: Vec<u8>) {
    let [old, new] = [Deaf::start().await, Deaf::start().await];
    let [old_url, new_url] = [&old, &new].map(|deaf| deaf.address.to_string());
    let flags = [
        "--old",
        &old_url,
        "--new",
        &new_url,
        "--connect-timeout",
        "100",
    ];
    let fixture = Fixture::start(Manner::ReadsOn, &flags).await;
    let bytes = Arc::new(bytes);
    let mut sending = JoinSet::new();
    for _ in 0..count {
        let mut frames = Frames::connect(fixture.proxy.address, &[]).await;
        let bytes = Arc::clone(&bytes);
        sending.spawn(async move {
            // Before that, the connection has the default window.
            frames.next_of(&[frames::WINDOW_UPDATE]).await.unwrap();
            let _ = tokio::time::timeout(Duration::from_secs(30), frames.raw(&bytes)).await;
            frames
        });
    }
    let clients = sending.join_all().await;
    fixture.settled().await;
    fixture
        .assert_bounded(count * (1 + u64::from(STREAMS)))
        .await;
    drop(clients);
    fixture.gives_back().await;
}

#[tokio::test]
async fn unread_bodies_over_http2_share_the_budget() {
    let _machine = crate::shared().await;
    let body = |stream| {
        let piece = frame(DATA, 0, stream, &[b'x'; 16_000]);
        piece.repeat(4)
    };
    attack_over_http2(24, begun(body)).await;
}

#[tokio::test]
async fn frames_of_one_byte_do_not_retain_their_read_buffers() {
    let _machine = crate::shared().await;
    const UNKNOWN: u8 = 0xfa;
    let body = |stream| {
        let byte = frame(DATA, 0, stream, b"x");
        let beside = frame(UNKNOWN, 0, 0, &[0; 16_000]);
        [byte, beside].concat().repeat(40)
    };
    attack_over_http2(2, begun(body)).await;
}

#[tokio::test]
async fn incomplete_header_blocks_share_the_budget() {
    let _machine = crate::shared().await;
    let value = "x".repeat(15_000);
    let fields = [
        ("a", &*value),
        ("b", &*value),
        ("c", &*value),
        ("d", &*value),
    ];
    let block = block(&fields);
    let (first, rest) = block.split_at(16_000);
    let bytes = [
        PREFACE,
        &frame(SETTINGS, 0, 0, &[]),
        &frame(HEADERS, 0, 1, first),
        &frame(frames::CONTINUATION, 0, 1, &rest[..16_000]),
        &frame(frames::CONTINUATION, 0, 1, &rest[16_000..32_000]),
    ]
    .concat();
    let fixture = Fixture::start(Manner::ReadsOn, &[]).await;
    let streams = fixture.attack(3000, |_| bytes.clone()).await;
    assert!(fixture.refused("head").await > 0.0);
    drop(streams);
    fixture.gives_back().await;
}

#[tokio::test]
async fn single_bytes_of_one_stream_do_not_end_the_connection_for_others() {
    let _machine = crate::shared().await;
    let [old, new] = [Deaf::start().await, Deaf::start().await];
    let [old_url, new_url] = [&old, &new].map(|deaf| deaf.address.to_string());
    let flags = [
        "--old",
        &old_url,
        "--new",
        &new_url,
        "--connect-timeout",
        "100",
    ];
    let proxy = Proxy::start(&flags).await;
    let mut frames = Frames::connect(proxy.address, &[]).await;
    assert!(frames.request(1, 0, "POST", CHAT).await);
    let bytes = frame(DATA, 0, 1, b"x").repeat(500);
    for _ in 0..100 {
        assert!(frames.raw(&bytes).await);
    }
    // The proxy itself rejects this one.
    assert!(frames.request(3, END_STREAM, "POST", "nowhere").await);
    let answer = frames.next_of(&[HEADERS, RST_STREAM, GOAWAY]).await;
    assert_eq!(answer.unwrap().stream, 3);
}
