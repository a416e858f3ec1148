//! The proxies under test: what is installed, equivalent configurations, starting and stopping them.

use std::fs;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::machine;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, clap::ValueEnum)]
pub enum Peer {
    Crossfade,
    /// crossfade that keeps the text of every stream, so that it can be continued.
    CrossfadeContinuing,
    Haproxy,
    Nginx,
    Envoy,
    /// No proxy: what the rest costs.
    Direct,
}

impl Peer {
    pub const ALL: [Self; 6] = [
        Self::Crossfade,
        Self::CrossfadeContinuing,
        Self::Haproxy,
        Self::Nginx,
        Self::Envoy,
        Self::Direct,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::Crossfade => "crossfade",
            Self::CrossfadeContinuing => "crossfade-continuing",
            Self::Haproxy => "haproxy",
            Self::Nginx => "nginx",
            Self::Envoy => "envoy",
            Self::Direct => "direct",
        }
    }

    /// Where its program is, if it is installed.
    pub fn program(self, crossfade: &Path) -> Option<PathBuf> {
        let places = match self {
            Self::Direct => return Some(PathBuf::new()),
            Self::Crossfade | Self::CrossfadeContinuing => vec![crossfade.to_owned()],
            Self::Envoy => vec![cache().join("envoy")],
            _ => ["/usr/sbin", "/usr/local/sbin", "/usr/local/bin", "/usr/bin"]
                .map(|directory| Path::new(directory).join(self.name()))
                .to_vec(),
        };
        places.into_iter().find(|place| place.exists())
    }

    pub fn version(self, program: &Path) -> String {
        let (argument, from) = match self {
            Self::Direct => return String::new(),
            Self::Nginx => ("-v", "nginx/"),
            Self::Haproxy => ("-v", "version "),
            Self::Envoy => ("--version", "version: "),
            Self::Crossfade | Self::CrossfadeContinuing => ("--version", "crossfade "),
        };
        let Ok(output) = Command::new(program).arg(argument).output() else {
            return "?".into();
        };
        let text = [output.stdout, output.stderr].concat();
        let text = String::from_utf8_lossy(&text);
        // Envoy's is `PATH  version: COMMIT/1.40.0/…`.
        let rest = text.split_once(from).map_or("?", |(_, rest)| rest);
        let rest = if self == Self::Envoy {
            rest.split('/').nth(1).unwrap_or("?")
        } else {
            rest
        };
        rest.split([' ', '-', '\n'])
            .next()
            .unwrap_or("?")
            .to_owned()
    }
}

/// Where `benches/install.sh` puts what it installs.
fn cache() -> PathBuf {
    let home = || PathBuf::from(std::env::var_os("HOME").unwrap_or_default()).join(".cache");
    let base = std::env::var_os("XDG_CACHE_HOME").map_or_else(home, PathBuf::from);
    base.join("crossfade/bench")
}

/// What the proxy listens for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Front {
    pub tls: bool,
    pub http2: bool,
}

pub struct Start<'a> {
    pub program: &'a Path,
    pub upstreams: [SocketAddr; 2],
    pub front: Front,
    /// Certificate, key, and both in one file.
    pub certificate: [&'a Path; 3],
    /// For configuration files.
    pub directory: &'a Path,
    pub threads: usize,
    pub cores: &'a [usize],
    /// crossfade alone: a file in place of the fixed split.
    pub plan: Option<&'a Path>,
}

/// A running proxy; ended when dropped.
pub struct Proxy {
    child: Option<Child>,
    pub address: SocketAddr,
}

impl Drop for Proxy {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let group = i32::try_from(child.id()).expect("a process id");
            // SAFETY: a call without pointers; the group is of our making.
            unsafe { libc::kill(-group, libc::SIGKILL) };
            let _ = child.wait();
        }
    }
}

impl Proxy {
    /// The ID of its first process.
    pub fn id(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    /// Starts `peer` and waits until it accepts connections.
    pub fn start(peer: Peer, start: &Start<'_>) -> io::Result<Self> {
        if peer == Peer::Direct {
            return Ok(Self {
                child: None,
                address: start.upstreams[0],
            });
        }
        let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        let mut command = Command::new(start.program);
        command.args(arguments(peer, start, address)?);
        let errors = fs::File::create(start.directory.join(format!("{}.log", peer.name())))?;
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(errors)
            .process_group(0);
        let cores = start.cores.to_vec();
        // SAFETY: only system calls between fork and exec.
        unsafe {
            command.pre_exec(move || {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                machine::pin(&cores)
            });
        }
        let proxy = Self {
            child: Some(command.spawn()?),
            address,
        };
        let deadline = Instant::now() + Duration::from_secs(15);
        while TcpStream::connect(address).is_err() {
            if Instant::now() > deadline {
                return Err(io::Error::other(format!("{} does not start", peer.name())));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(proxy)
    }
}

/// The end of what `peer` said of itself.
pub fn last_words(peer: Peer, directory: &Path) -> String {
    let said = fs::read_to_string(directory.join(format!("{}.log", peer.name())));
    let said = said.unwrap_or_default();
    let start = said.char_indices().rev().nth(300).map_or(0, |(at, _)| at);
    said[start..].trim().to_owned()
}

/// What the command line is; writes the configuration.
fn arguments(peer: Peer, start: &Start<'_>, address: SocketAddr) -> io::Result<Vec<String>> {
    let file = |text: String, ending: &str| {
        let path = start.directory.join(format!("{}.{ending}", peer.name()));
        fs::write(&path, text).map(|()| path.display().to_string())
    };
    Ok(match peer {
        Peer::Crossfade => crossfade(start, address, false),
        Peer::CrossfadeContinuing => crossfade(start, address, true),
        Peer::Haproxy => vec![
            "-db".into(),
            "-f".into(),
            file(haproxy(start, address), "cfg")?,
        ],
        Peer::Nginx => vec!["-c".into(), file(nginx(start, address), "conf")?],
        Peer::Envoy => {
            let path = file(envoy(start, address).to_string(), "json")?;
            let flags = [
                "--disable-hot-restart",
                "--log-level",
                "error",
                "--concurrency",
            ];
            let mut all = vec!["-c".to_owned(), path];
            all.extend(flags.map(str::to_owned));
            all.push(start.threads.to_string());
            all
        }
        Peer::Direct => Vec::new(),
    })
}

fn crossfade(start: &Start<'_>, address: SocketAddr, continues: bool) -> Vec<String> {
    let [old, new] = start.upstreams;
    let mut all: Vec<String> = vec!["proxy".into()];
    let mut flag = |name: &str, value: String| all.extend([format!("--{name}"), value]);
    flag("listen", address.to_string());
    flag("admin", "127.0.0.1:0".into());
    flag("threads", start.threads.to_string());
    flag("old", format!("http://{old}"));
    if let Some(plan) = start.plan {
        flag("plan", plan.display().to_string());
    } else {
        flag("new", format!("http://{new}"));
        flag("split", "25".into());
    }
    if continues {
        flag("continuation", "any-generation".into());
    }
    if start.front.tls {
        flag("tls-cert", start.certificate[0].display().to_string());
        flag("tls-key", start.certificate[1].display().to_string());
    }
    all
}

fn haproxy(start: &Start<'_>, address: SocketAddr) -> String {
    let [old, new] = start.upstreams;
    let both = start.certificate[2].display();
    let bind = match (start.front.tls, start.front.http2) {
        (false, false) => String::new(),
        (false, true) => " proto h2".into(),
        (true, false) => format!(" ssl crt {both} alpn http/1.1"),
        (true, true) => format!(" ssl crt {both} alpn h2"),
    };
    format!(
        "global
    nbthread {threads}
    maxconn 9800
    log stdout format raw local0 emerg
defaults
    mode http
    no log
    timeout connect 5s
    timeout client 10m
    timeout server 10m
    http-reuse always
    option http-no-delay
frontend in
    bind {address}{bind}
    default_backend out
backend out
    balance roundrobin
    server old {old} weight 75
    server new {new} weight 25
",
        threads = start.threads
    )
}

fn nginx(start: &Start<'_>, address: SocketAddr) -> String {
    let [old, new] = start.upstreams;
    let directory = start.directory.display();
    let listen = match (start.front.tls, start.front.http2) {
        (false, false) => "",
        (false, true) => " http2",
        (true, false) => " ssl",
        (true, true) => " ssl http2",
    };
    let certificate = if start.front.tls {
        let [certificate, key, _] = start.certificate.map(Path::display);
        format!("ssl_certificate {certificate}; ssl_certificate_key {key}; ssl_protocols TLSv1.3;")
    } else {
        String::new()
    };
    // SAFETY: a call without pointers.
    let user = if unsafe { libc::geteuid() } == 0 {
        "user root;"
    } else {
        ""
    };
    format!(
        "{user}
daemon off;
pid {directory}/nginx.pid;
error_log stderr alert;
worker_processes {threads};
events {{ worker_connections 19000; }}
http {{
  access_log off;
  client_body_temp_path {directory}/body;
  proxy_temp_path {directory}/proxy;
  fastcgi_temp_path {directory}/fastcgi;
  uwsgi_temp_path {directory}/uwsgi;
  scgi_temp_path {directory}/scgi;
  keepalive_requests 1000000000;
  client_max_body_size 0;
  client_body_buffer_size 512k;
  upstream out {{
    server {old} weight=3;
    server {new} weight=1;
    keepalive 10000;
    keepalive_requests 1000000000;
  }}
  server {{
    listen {address}{listen} backlog=4096;
    {certificate}
    location / {{
      proxy_pass http://out;
      proxy_http_version 1.1;
      proxy_set_header Connection \"\";
      proxy_buffering off;
      proxy_read_timeout 10m;
    }}
  }}
}}
",
        threads = start.threads
    )
}

fn envoy(start: &Start<'_>, address: SocketAddr) -> Value {
    let socket = |address: SocketAddr| json!({"socket_address": {"address": address.ip().to_string(), "port_value": address.port()}});
    let cluster = |name: &str, address: SocketAddr| {
        let many = 1_000_000;
        json!({
            "name": name, "type": "STATIC", "connect_timeout": "5s",
            "circuit_breakers": {"thresholds": [{
                "max_connections": many, "max_pending_requests": many, "max_requests": many
            }]},
            "load_assignment": {"cluster_name": name, "endpoints": [{
                "lb_endpoints": [{"endpoint": {"address": socket(address)}}]
            }]}
        })
    };
    let route = json!({
        "match": {"prefix": "/"},
        "route": {"timeout": "0s", "weighted_clusters": {"clusters": [
            {"name": "old", "weight": 75}, {"name": "new", "weight": 25}
        ]}}
    });
    let manager = json!({
        "@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "in", "codec_type": "AUTO", "stream_idle_timeout": "0s",
        "route_config": {"virtual_hosts": [{"name": "all", "domains": ["*"], "routes": [route]}]},
        "http_filters": [{"name": "envoy.filters.http.router", "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"
        }}]
    });
    let mut chain = json!({"filters": [{
        "name": "envoy.filters.network.http_connection_manager", "typed_config": manager
    }]});
    if start.front.tls {
        let [certificate, key, _] = start.certificate.map(|path| path.display().to_string());
        let protocol = if start.front.http2 { "h2" } else { "http/1.1" };
        chain["transport_socket"] = json!({"name": "envoy.transport_sockets.tls", "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext",
            "common_tls_context": {
                "alpn_protocols": [protocol],
                "tls_certificates": [{
                    "certificate_chain": {"filename": certificate}, "private_key": {"filename": key}
                }]
            }
        }});
    }
    let [old, new] = start.upstreams;
    json!({"static_resources": {
        "listeners": [{
            "name": "in", "address": socket(address), "filter_chains": [chain],
            "tcp_backlog_size": 4096
        }],
        "clusters": [cluster("old", old), cluster("new", new)]
    }})
}
