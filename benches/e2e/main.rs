//! Measures crossfade beside `HAProxy`, nginx and Envoy: `make bench`. `benches/README.md` explains what it
//! measures and how.

mod client;
mod engine;
mod h1;
mod h2;
mod machine;
mod measure;
mod metric;
mod payload;
mod peers;
mod plan;
mod quiet;
mod report;
mod server;
mod wire;
mod workloads;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::{Parser, ValueEnum};
use rustls::pki_types::CertificateDer;
use rustls::{ClientConfig, RootCertStore};
use serde_json::json;

use peers::Peer;
use quiet::{Quiet, SLOWDOWN};
use report::Results;
use workloads::{Context, Round, Workload};

/// Tries of a round that others disturbed.
const TRIES: usize = 8;

/// Measures crossfade beside other proxies on this machine
#[derive(Parser)]
struct Arguments {
    /// Rounds of each workload with each proxy
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Length of a measurement
    #[arg(long, default_value_t = 3.0)]
    seconds: f64,
    /// Only these workloads
    #[arg(long, value_enum)]
    only: Vec<Workload>,
    /// Only these proxies
    #[arg(long, value_enum)]
    peer: Vec<Peer>,
    /// The program to measure
    #[arg(long, default_value = option_env!("CARGO_BIN_EXE_crossfade").unwrap_or("target/release/crossfade"))]
    crossfade: PathBuf,
    /// Where the JSON goes
    #[arg(long, default_value = "target/bench.json")]
    json: PathBuf,
    /// Also keep rounds in which the machine was busy otherwise
    #[arg(long)]
    keep_disturbed: bool,
    /// How long a workload may be held up by a machine that is not quiet, in seconds
    #[arg(long, default_value_t = 120)]
    patience: u64,
    /// The load side never sleeps: sharper times, but not what a proxy's clients do
    #[arg(long)]
    spin: bool,
    /// Model servers keep Nagle's algorithm on, as Dynamo's frontend does
    #[arg(long)]
    nagle: bool,
    /// What `cargo bench` passes
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match run(&arguments) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Runs all; `false` if a round failed.
fn run(arguments: &Arguments) -> Result<bool, Box<dyn std::error::Error>> {
    let peers = installed(arguments);
    let files = machine::raise_limits();
    if files < 19_000 {
        eprintln!("note: only {files} open files are allowed; idle needs 19000");
    }
    let mut quiet = Quiet::new()?;
    let directory = tempfile::tempdir()?;
    let context = context(arguments, directory.path())?;
    let workloads: &[Workload] = match &*arguments.only {
        [] => Workload::value_variants(),
        only => only,
    };
    let mut results = Results::default();
    let mut number = usize::try_from(std::process::id())?;
    for workload in workloads {
        eprintln!("{}: {}", workload.name(), workload.about());
        let mut taking: Vec<Peer> = peers
            .iter()
            .copied()
            .filter(|peer| workload.includes(*peer))
            .collect();
        quiet.patience = Duration::from_secs(arguments.patience);
        for _ in 0..arguments.rounds {
            for peer in &taking {
                number += 1;
                one(
                    *workload,
                    *peer,
                    number,
                    arguments,
                    &context,
                    &mut quiet,
                    &mut results,
                );
            }
            // Who came first comes last: nobody always follows the same one.
            taking.rotate_left(1);
        }
    }
    write(arguments, &context, &peers, &results)?;
    Ok(results.failures.is_empty())
}

fn installed(arguments: &Arguments) -> Vec<Peer> {
    let wanted: &[Peer] = match &*arguments.peer {
        [] => &Peer::ALL,
        peers => peers,
    };
    let (there, missing): (Vec<Peer>, Vec<Peer>) = wanted
        .iter()
        .partition(|peer| peer.program(&arguments.crossfade).is_some());
    for peer in missing {
        eprintln!(
            "note: {} is not installed: see benches/install.sh",
            peer.name()
        );
    }
    there
}

/// One round, again if it was disturbed. If all are, the one that was least.
fn one(
    workload: Workload,
    peer: Peer,
    number: usize,
    arguments: &Arguments,
    context: &Context,
    quiet: &mut Quiet,
    results: &mut Results,
) {
    let name = format!("{} {}", workload.name(), peer.name());
    let mut least: Option<(f64, Round)> = None;
    for attempt in 1..=TRIES {
        let keep = arguments.keep_disturbed || attempt == TRIES || quiet.is_given_up();
        let slowdown = if arguments.keep_disturbed {
            quiet.slowdown()
        } else {
            quiet.wait()
        };
        let begun = Instant::now();
        match workloads::round(workload, peer, number + attempt * 37, context) {
            Ok(mut round) => {
                let slowdown = slowdown.max(quiet.slowdown());
                let disturbed = slowdown > SLOWDOWN || round.others.disturb(arguments.seconds);
                if disturbed {
                    eprintln!(
                        "  {name}: disturbed: others used {:.2} s, {} forks, {:.2} s stolen, {slowdown:.2} times as slow",
                        round.others.cpu, round.others.forks, round.others.steal
                    );
                    let lost = round.others.cpu + round.others.steal;
                    let disturbance = slowdown + lost / arguments.seconds;
                    let (disturbance, kept) = least
                        .take()
                        .filter(|(known, _)| *known < disturbance)
                        .unwrap_or((disturbance, round));
                    if !keep {
                        least = Some((disturbance, kept));
                        results.discarded += 1;
                        quiet.lose(begun.elapsed());
                        continue;
                    }
                    round = kept;
                    results.disturbed.push(name.clone());
                }
                let values: Vec<String> = round
                    .values
                    .iter()
                    .map(|(metric, value)| format!("{} {value:.2}", metric.key()))
                    .collect();
                eprintln!("  {name}: {}", values.join(", "));
                results.add(workload, peer, &round.values, round.share);
            }
            Err(error) => {
                let said = peers::last_words(peer, &context.directory);
                let error = if said.is_empty() {
                    error
                } else {
                    format!("{error}; it said: {said}")
                };
                eprintln!("  {name}: FAILED: {error}");
                results.failures.push(format!("{name}: {error}"));
            }
        }
        return;
    }
}

fn context(arguments: &Arguments, directory: &Path) -> Result<Context, Box<dyn std::error::Error>> {
    let made = rcgen::generate_simple_self_signed(vec!["localhost".into()])?;
    let (certificate, key) = (made.cert.pem(), made.signing_key.serialize_pem());
    let names = ["certificate.pem", "key.pem", "both.pem"].map(|name| directory.join(name));
    fs::write(&names[0], &certificate)?;
    fs::write(&names[1], &key)?;
    fs::write(&names[2], certificate + &key)?;
    let der = made.cert.der();
    Ok(Context {
        crossfade: arguments.crossfade.clone(),
        directory: directory.to_owned(),
        certificate: names,
        tls: [client(der, b"http/1.1")?, client(der, b"h2")?],
        window: Duration::from_secs_f64(arguments.seconds),
        spin: arguments.spin,
        nagle: arguments.nagle,
    })
}

/// A client that offers one cipher suite, so that all proxies do the same work.
fn client(
    certificate: &CertificateDer<'static>,
    protocol: &[u8],
) -> Result<Arc<ClientConfig>, Box<dyn std::error::Error>> {
    let mut provider = rustls::crypto::ring::default_provider();
    provider.cipher_suites = vec![rustls::crypto::ring::cipher_suite::TLS13_AES_128_GCM_SHA256];
    let mut roots = RootCertStore::empty();
    roots.add(certificate.clone())?;
    let mut config = ClientConfig::builder_with_provider(Arc::new(provider))
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![protocol.to_vec()];
    Ok(Arc::new(config))
}

/// Prints the table and writes the JSON.
fn write(
    arguments: &Arguments,
    context: &Context,
    peers: &[Peer],
    results: &Results,
) -> std::io::Result<()> {
    let (cpu, kernel) = machine::description();
    let versions: serde_json::Map<_, _> = peers
        .iter()
        .filter(|peer| **peer != Peer::Direct)
        .filter_map(|peer| Some((peer, peer.program(&context.crossfade)?)))
        .map(|(peer, program)| (peer.name().to_owned(), json!(peer.version(&program))))
        .collect();
    let named: Vec<String> = versions
        .iter()
        .map(|(name, version)| format!("{name} {}", version.as_str().unwrap_or("?")))
        .collect();
    println!(
        "{cpu}, Linux {kernel}; {}; medians of {} rounds of {} s (lowest–highest), × HAProxy\n",
        named.join(", "),
        arguments.rounds,
        arguments.seconds
    );
    print!("{}", results.markdown());
    for failure in &results.failures {
        println!("\nFAILED: {failure}");
    }
    if !results.disturbed.is_empty() {
        println!(
            "\nKept although the machine was busy otherwise: {}",
            results.disturbed.join(", ")
        );
    }
    let mut all = json!({
        "machine": {"cpu": cpu, "kernel": kernel}, "versions": versions,
        "rounds": arguments.rounds, "seconds": arguments.seconds, "spin": arguments.spin,
        "nagle": arguments.nagle
    });
    if let (Some(all), Some(rest)) = (all.as_object_mut(), results.json().as_object()) {
        all.extend(rest.clone());
    }
    let path = &arguments.json;
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent)?;
    }
    fs::write(path, serde_json::to_string_pretty(&all)? + "\n")?;
    eprintln!("written: {}", path.display());
    Ok(())
}
