//! The server at an address is replaced after the proof that it can continue.

use std::sync::Arc;

use super::*;
use crate::rig::tls::Authority;

const CAPABILITY: &str = "crossfade_continuation_capability";
const PROBE: &str = "x-crossfade-probe";
/// A header of the client, which distinguishes probes for its stream from the proxy's own probes.
const CLIENT_HEADER: (&str, &str) = ("x-asked-by", "client");

async fn assert_new_is(proxy: &Proxy, state: &str) {
    let labels = [("generation", "new"), ("state", state)];
    proxy.counts(CAPABILITY, &labels, 1.0).await;
}

/// An old server that breaks off after five words once `gate` is open, and cannot continue.
fn breaking(gate: &Gate) -> Counting {
    let gate = gate.clone();
    Counting {
        flags: Flags::Ignored,
        ..Counting::new("old", 20).breaking(5, move |script| script.wait(&gate).reset())
    }
}

fn ignoring(name: &'static str) -> Counting {
    Counting {
        flags: Flags::Ignored,
        ..Counting::new(name, 20)
    }
}

/// The probes that a server got because a stream of a client broke.
fn questions_in_need(server: &Upstream) -> Vec<Arc<Received>> {
    let mut requests = server.requests();
    requests.retain(|received| {
        received.header(PROBE).is_some() && received.header(CLIENT_HEADER.0).is_some()
    });
    requests
}

#[tokio::test]
async fn a_replacement_of_a_server_with_a_proof_gets_no_continuation() {
    for protocol in PROTOCOLS {
        let gate = Gate::closed();
        let old = Upstream::start(breaking(&gate).handler()).await;
        let port = Port::take();
        let new = Upstream::at(port.address, Counting::new("new", 20).handler()).await;
        let flags = ["--upstream-protocol", protocol];
        let proxy = Proxy::planned(&old, &mostly_old(&new, ANY), &flags).await;
        assert_new_is(&proxy, "supported").await;
        let mut client = Client::connect(proxy.address).await;
        client.post(CHAT, &[], asking(json!({}))).await;
        let head = client.head().await;
        drop(new);
        let new = Upstream::at(port.address, ignoring("new").handler()).await;
        gate.open();
        let response = client.rest(head).await;
        assert_ended(&response, 5, protocol);
        assert_eq!(request_count(&new), 0, "{protocol}");
        assert_counted(&proxy, "ended", "not_supported").await;
        // The proof is revoked, and the endpoint is probed again.
        assert_new_is(&proxy, "unsupported").await;
    }
}

#[tokio::test]
async fn a_proof_does_not_hold_for_other_servers_behind_the_same_address() {
    for protocol in PROTOCOLS {
        let gate = Gate::closed();
        gate.open();
        let old = Upstream::start(breaking(&gate).handler()).await;
        let known = Counting::new("new", 20).handler();
        let ignoring = ignoring("new").handler();
        // The connection of the proxy's own probes reaches one server, all other connections reach another one.
        let new = Upstream::start(move |received| match received.connection {
            1 => known(received),
            _ => ignoring(received),
        })
        .await;
        let flags = ["--upstream-protocol", protocol];
        let proxy = Proxy::planned(&old, &mostly_old(&new, ANY), &flags).await;
        assert_new_is(&proxy, "supported").await;
        let response = client::post(proxy.address, CHAT, &[], asking(json!({}))).await;
        assert_ended(&response, 5, protocol);
        assert_eq!(request_count(&new), 0, "{protocol}");
    }
}

#[tokio::test]
async fn a_continuation_is_sent_on_the_connection_of_its_proof() {
    let authority = Authority::new();
    let (files, ca) = (authority.issue("upstream"), authority.file());
    for (protocol, tls) in [
        ("http1", false),
        ("http2", false),
        ("http1", true),
        ("http2", true),
        ("auto", true),
    ] {
        let what = format!("{protocol}, TLS: {tls}");
        let gate = Gate::closed();
        gate.open();
        let config = tls.then(|| authority.server(&files, &["h2", "http/1.1"], false));
        let listen =
            |server: Counting| Upstream::listen("127.0.0.1:0", config.clone(), server.handler());
        let old = listen(breaking(&gate)).await;
        let new = listen(Counting::new("new", 20)).await;
        let url = |server: &Upstream| match tls {
            true => format!("https://{}", server.url()),
            false => server.url(),
        };
        let plan = PlanFile::new(&manifest(&url(&new), 999_999_999, 1, ANY));
        let (old_url, plan_path) = (url(&old), plan.as_str());
        let mut args = vec!["--old", &old_url, "--plan", &plan_path];
        args.extend(["--upstream-protocol", protocol]);
        if tls {
            args.extend(["--upstream-ca", &ca]);
        }
        let proxy = Proxy::start(&args).await;
        assert_new_is(&proxy, "supported").await;
        for stream in 1..4 {
            let response =
                client::post(proxy.address, CHAT, &[CLIENT_HEADER], asking(json!({}))).await;
            assert_one(&response, 20, &what);
            let (questions, answers) = (questions_in_need(&new), answers(&new));
            assert_eq!((questions.len(), answers.len()), (stream, stream), "{what}");
            for (question, answer) in questions.iter().zip(&answers) {
                assert_eq!(question.connection, answer.connection, "{what}");
            }
        }
    }
}

#[tokio::test]
async fn a_server_that_closes_the_connection_after_its_proof_gets_no_continuation() {
    let gate = Gate::closed();
    gate.open();
    let old = Upstream::start(breaking(&gate).handler()).await;
    let new = Upstream::start(|received| match received.target.as_str() {
        MODELS => models(&["tiny"]),
        _ => {
            let both = r#"{"message":"Cannot set both `continue_final_message` and `add_generation_prompt` to True.","code":400}"#;
            let length = both.len().to_string();
            let fields = [("content-length", length.as_str()), ("connection", "close")];
            Script::new().head(400, &fields).chunk(both).eof()
        }
    })
    .await;
    let proxy = Proxy::planned(&old, &mostly_old(&new, ANY), &[]).await;
    assert_new_is(&proxy, "supported").await;
    let response = client::post(proxy.address, CHAT, &[], asking(json!({}))).await;
    assert_ended(&response, 5, "closed");
    assert_eq!(request_count(&new), 0);
    assert_counted(&proxy, "ended", "attempts_failed").await;
}

#[tokio::test]
async fn no_endpoint_is_probed_while_another_one_has_a_proof() {
    let server = || {
        let mut server = Counting::new("old", 20).breaking(5, Script::reset);
        server.flags = Flags::Hangs;
        Upstream::start(server.handler())
    };
    let pair = [server().await, server().await];
    let new = Upstream::start(Counting::new("new", 20).handler()).await;
    let old = format!("{},{}", pair[0].url(), pair[1].url());
    let plan = mostly_old(&new, ANY);
    let proxy = Proxy::start(&["--old", &old, "--plan", &plan.as_str()]).await;
    assert_new_is(&proxy, "supported").await;
    for _ in 0..3 {
        let response = client::post(proxy.address, CHAT, &[CLIENT_HEADER], asking(json!({}))).await;
        let seen = assert_one(&response, 20, "another");
        assert_eq!(
            seen.comments,
            ["crossfade continued (old → new, connection)"]
        );
    }
    for server in &pair {
        assert_eq!(questions_in_need(server).len(), 0);
    }
    assert_eq!(questions_in_need(&new).len(), 3);
}

#[tokio::test]
async fn a_server_that_does_not_respond_to_the_probe_is_tried_last() {
    let old = Counting::new("old", 20).breaking(5, Script::reset);
    let old = Upstream::start(old.handler()).await;
    let hanging = Counting {
        flags: Flags::Hangs,
        ..Counting::new("new", 20)
    };
    let new = Upstream::start(hanging.handler()).await;
    let proxy = Proxy::planned(&old, &mostly_old(&new, ANY), &[]).await;
    eventually("the first question has been given up", async || {
        let mut questions = new.requests();
        questions.retain(|received| received.method == "POST");
        questions.len() > 1
    })
    .await;
    let response = client::post(proxy.address, CHAT, &[CLIENT_HEADER], asking(json!({}))).await;
    // The server that broke off has thereby lost its proof.
    let seen = assert_one(&response, 20, "the same");
    assert_eq!(
        seen.comments,
        ["crossfade continued (old → old, connection)"]
    );
    assert_eq!(questions_in_need(&new).len(), 0);
}
