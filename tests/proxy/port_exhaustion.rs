//! A host that has no more ports for connections to a model server. Runs in its own network namespace, so that other tests keep
//! their ports.

use std::process::Command;

use crate::rig::*;
use client::http2::Client as Http2;

/// Set in the separate process in which a test runs.
const ALONE: &str = "CROSSFADE_TEST_OWN_NETWORK";

/// Ports for connections to one address.
const PORTS: usize = 20;
const RANGE: &str = "41000 41019";

/// Returns true in a network namespace. Otherwise, runs this test again in one and returns false.
fn is_in_own_network(this: &str) -> bool {
    if std::env::var_os(ALONE).is_some() {
        loopback_up();
        return true;
    }
    // As root of a user namespace, so that it needs no privileges.
    let possible = Command::new("unshare").args(["-rn", "true"]).status();
    if !possible.is_ok_and(|status| status.success()) {
        eprintln!("SKIPPED: {this}: no network namespace can be made here");
        return false;
    }
    let (_, this) = this.split_once("::").unwrap();
    let output = Command::new("unshare")
        .arg("-rn")
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", this, "--nocapture"])
        .env(ALONE, "1")
        .output()
        .unwrap();
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text);
    assert!(output.status.success(), "{text}");
    assert!(text.contains("1 passed"), "no test is called {this}");
    false
}

/// Brings up the loopback interface of a new network namespace.
fn loopback_up() {
    // SAFETY: `request` is initialised, and outlives the calls that read and write it.
    unsafe {
        let socket = libc::socket(libc::AF_INET, libc::SOCK_DGRAM, 0);
        let mut request: libc::ifreq = std::mem::zeroed();
        request.ifr_name[0] = b'l' as libc::c_char;
        request.ifr_name[1] = b'o' as libc::c_char;
        request.ifr_ifru.ifru_flags = libc::IFF_UP as libc::c_short;
        assert_eq!(libc::ioctl(socket, libc::SIOCSIFFLAGS, &request), 0);
        libc::close(socket);
    }
}

/// A server whose responses start at once and continue once the gate is open.
async fn slow(name: &'static str, gate: &Gate) -> Upstream {
    let rest = chat_text(name).replace(&role(name), "");
    let begun = role(name) + &content(name, 9);
    let script = stream_of(&begun).wait(gate).chunk(rest);
    Upstream::always(script).await
}

fn has_healthy(plan: &str, server: &Upstream) -> bool {
    let page: serde_json::Value = serde_json::from_str(plan).unwrap();
    let endpoints = page["endpoints"].as_array().unwrap();
    let address = server.address.to_string();
    let mut found = endpoints.iter().filter(|one| one["address"] == *address);
    found.next().unwrap()["healthy"] == true
}

#[tokio::test]
async fn a_host_without_ports_for_a_server_does_not_eject_it() {
    let this = concat!(
        module_path!(),
        "::a_host_without_ports_for_a_server_does_not_eject_it"
    );
    if !is_in_own_network(this) {
        return;
    }
    for with_new in [false, true] {
        std::fs::write("/proc/sys/net/ipv4/ip_local_port_range", "32768 60999").unwrap();
        let gate = Gate::closed();
        let old = slow("old", &gate).await;
        let new = Upstream::start(healthy("new")).await;
        let proxy = match with_new {
            true => Proxy::split(&old, &new, 1).await,
            false => Proxy::before(&old, &[]).await,
        };
        let client = Http2::connect(proxy.address).await;
        std::fs::write("/proc/sys/net/ipv4/ip_local_port_range", RANGE).unwrap();
        let mut open = Vec::new();
        let mut refused = 0;
        for _ in 0..2 * PORTS {
            let stream = client.chat().await;
            match (stream.status, stream.headers.get("x-crossfade-generation")) {
                (200, Some("old")) => open.push(stream),
                (200, Some("new")) if with_new => refused += 1,
                (503, _) if !with_new => {
                    let error = stream.response().await.own_error();
                    let message = error["message"].as_str().unwrap().to_owned();
                    assert!(message.contains("cannot open a connection"), "{message}");
                    refused += 1;
                }
                (status, by) => panic!("{status} by {by:?}"),
            }
        }
        assert!(open.len() <= PORTS && refused >= PORTS, "{}", open.len());
        assert!(has_healthy(&proxy.plan().await, &old));
        if with_new {
            let cause = [("cause", "local_ports")];
            assert!(proxy.recovered(&cause).await >= (PORTS - 2) as f64);
        }
        gate.open();
        for stream in open {
            let response = stream.response().await;
            assert_eq!(response.end, End::Clean);
            assert!(response.text().ends_with(DONE));
        }
        let again = client.chat().await;
        assert_eq!(again.headers.get("x-crossfade-generation"), Some("old"));
        let ejected = [("state", "ejected")];
        let metrics = proxy.metrics().await;
        assert_eq!(metrics.sum("crossfade_pool_endpoints", &ejected), 0.0);
    }
}
