//! Command-line arguments: which are accepted, which are rejected, and with which exit status.

use std::process::Output;

use crate::rig::proxy::{run, run_with_env};
use crate::rig::*;

pub fn texts(output: &Output) -> (Option<i32>, String, String) {
    (
        output.status.code(),
        String::from_utf8_lossy(&output.stdout).into_owned(),
        String::from_utf8_lossy(&output.stderr).into_owned(),
    )
}

#[test]
fn an_address_that_is_in_use_is_reported_with_its_flag() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken
        .local_addr()
        .map(|at| (at.to_string(), taken))
        .unwrap();
    let address = &*taken.0;
    for (flag, args) in [
        ("--listen", [address, "127.0.0.1:0"]),
        ("--admin", ["127.0.0.1:0", address]),
    ] {
        let [listen, admin] = args;
        let args = [
            "proxy",
            "--old",
            "127.0.0.1:1",
            "--listen",
            listen,
            "--admin",
            admin,
        ];
        let (status, _, stderr) = texts(&run(&args));
        let expected = format!("cannot listen on {address} ({flag}): Address already in use");
        assert!(status == Some(1) && stderr.contains(&expected), "{stderr}");
    }
}

#[test]
fn wrong_usage_exits_with_status_2_and_explains_the_error() {
    let file = PlanFile::new("");
    let plan = file.as_str();
    for (args, expected) in [
        (&["proxy"][..], "--old"),
        (&["proxy", "--old", "a:1", "--split", "5"], "--new"),
        (
            &["proxy", "--old", "a:1", "--new", "b:1", "--split", "101"],
            "101",
        ),
        (
            &["proxy", "--old", "a:1", "--new", "b:1", "--split", "-1"],
            "-1",
        ),
        (
            &["proxy", "--old", "a:1", "--max-connections", "0"],
            "--max-connections <N>': must be a whole number of at least 1",
        ),
        (
            &["proxy", "--old", "a:1", "--body-timeout", "0"],
            "--body-timeout",
        ),
        (
            &["proxy", "--old", "a:1", "--write-timeout", "0"],
            "--write-timeout <DURATION>': must be more than 0",
        ),
        (
            &["proxy", "--old", "a:1", "--tunnel-idle-timeout", "x"],
            "--tunnel-idle-timeout <DURATION>': is not a duration; use seconds, or a form such as 5s, 1m30s, 2h, or 500ms (units: d, h, m, s, ms)",
        ),
        (
            &["proxy", "--old", "a:1", "--max-requests", "0"],
            "--max-requests <N>': must be a whole number of at least 1",
        ),
        (
            &["proxy", "--old", "a:1", "--max-requests", "-4"],
            "--max-requests <N>': must be a whole number of at least 1",
        ),
        (
            &["proxy", "--old", "a:1", "--upstream-max-exchanges", "-4"],
            "--upstream-max-exchanges <N>': must be a whole number from 0 to 4294967295",
        ),
        (
            &["proxy", "--old", "a:1", "--replay-budget-bytes", "1GiB"],
            "--replay-budget-bytes <N>': must be a number of bytes without a unit, such as 1073741824",
        ),
        (
            &["proxy", "--old", "a:1", "--max-body-bytes", "64Mi"],
            "--max-body-bytes <N>': must be a number of bytes without a unit, such as 1073741824",
        ),
        (
            &["proxy", "--old", "a:1", "--max-body-bytes", "-1"],
            "--max-body-bytes <N>': must be a whole number from 0 to 18446744073709551615",
        ),
        (
            &["inject", "-", "--drain", "1.5"],
            "--drain <DURATION>': must be a whole number of seconds",
        ),
        (
            &["rbac", "-n", "A_b"],
            "'A_b' for '--namespace <NAME>': is not a name that Kubernetes accepts",
        ),
        (
            &["--context", "x", "rbac"],
            "--context before `rbac` has no effect",
        ),
        (
            &["proxy", "--old", "a:1", "--idle-timeout", "0.0001"],
            "--idle-timeout <DURATION>': must be at least 0.001",
        ),
        (
            &["proxy", "--old", "a:1", "--keep-alive-comments", "0.001"],
            "--keep-alive-comments <DURATION>': must be between 0.01 and 86400",
        ),
        (
            &["proxy", "--old", "a:1", "--probe-interval", "0.01"],
            "--probe-interval <DURATION>': must be between 0.1 and 86400",
        ),
        (
            &["proxy", "--old", "a:1", "--first-event-timeout", "0"],
            "--first-event-timeout <DURATION>': must be between 0.001 and 86400",
        ),
        (
            &["proxy", "--old", "a:1", "--gap-timeout", "86401"],
            "--gap-timeout <DURATION>': must be between 0.001 and 86400",
        ),
        (
            &["proxy", "--old", "a:1", "--hold", "nan"],
            "--hold <DURATION>': is not a duration",
        ),
        (
            &["proxy", "--old", "a:1", "--continuation", "always"],
            "invalid value 'always' for '--continuation <MODE>'",
        ),
        (
            &[
                "proxy",
                "--old",
                "a:1",
                "--continuation-max-text-bytes",
                "1023",
            ],
            "--continuation-max-text-bytes <N>': must be a whole number from 1024 to 67108864",
        ),
        (
            &[
                "proxy",
                "--old",
                "a:1",
                "--continuation-max-per-stream",
                "0",
            ],
            "--continuation-max-per-stream <N>': must be a whole number from 1 to 100",
        ),
        (
            &["proxy", "--old", "a:1", "--move-after", "169h"],
            "--move-after <DURATION>': must be between 0 and 604800 seconds",
        ),
        (
            &["proxy", "--old", "a:1", "--move-after", "0"],
            "--move-after needs --continuation any-generation",
        ),
        (
            &[
                "proxy",
                "--old",
                "a:1",
                "--move-after",
                "0",
                "--continuation",
                "same-generation",
            ],
            "--move-after needs --continuation any-generation",
        ),
        (
            &["proxy", "--old", "a:1", "--move-rate", "0"],
            "--move-rate <N>': must be a whole number from 1 to 10000",
        ),
        (
            &[
                "proxy",
                "--old",
                "a:1",
                "--plan",
                &plan,
                "--continuation",
                "off",
            ],
            "--continuation <MODE>",
        ),
        (
            &["proxy", "--old", "a:1", "--hold=-1"],
            "--hold <DURATION>': must be between 0 and 86400",
        ),
        (
            &["proxy", "--old", "a:1", "--retry-budget-percent", "101"],
            "--retry-budget-percent <N>': must be a whole number from 0 to 100",
        ),
        (
            &["proxy", "--old", "a:1", "--max-replay-bytes", "1073741825"],
            "--max-replay-bytes <N>': must be a whole number from 0 to 1073741824",
        ),
        (
            &["proxy", "--old", "a:1", "--affinity-header", "a b"],
            "--affinity-header <NAME>': invalid HTTP header name",
        ),
        (
            &["proxy", "--old", "a:1", "--affinity-header", "x-a,X-A"],
            "--affinity-header names 'x-a' twice",
        ),
        (
            &[
                "proxy",
                "--old",
                "a:1",
                "--affinity-body-field",
                "user,user",
            ],
            "--affinity-body-field names 'user' twice",
        ),
        (
            &["proxy", "--old", "a:1", "--affinity-body-field", ""],
            "--affinity-body-field <NAME>': must be a name of 1 to 256 bytes",
        ),
        (
            &["proxy", "--old", "a:1", "--inference-prefix", "/v1?x"],
            "--inference-prefix <PATH>': must be a path",
        ),
        (
            &["proxy", "--old", "a:1", "--inference-prefix", "v1"],
            "--inference-prefix <PATH>': must start with '/'",
        ),
        (
            &["proxy", "--old", "a:1", "--override-header", "host"],
            "--override-header <NAME>': 'host' is reserved",
        ),
        (
            &["controller", "--lease-seconds", "1"],
            "must be between 6 and 300 seconds",
        ),
        (
            &["demo", "--seconds", "1m30"],
            "--seconds <DURATION>': is not a duration",
        ),
        (
            &["demo", "--seconds", "4s"],
            "must be between 5 and 3600 seconds",
        ),
        (
            &["proxy", "--old", "a:1", "--new", "b:1", "--split", "12.5"],
            "with an exact ratio: spec: {\"weights\":{\"old\":7,\"new\":1}}",
        ),
        (
            &["proxy", "--old", "a:1", "--new", "b:1", "--split", "101"],
            "--split <PERCENT>': must be from 0 to 100",
        ),
        (
            &["set", "x", "--split", "-1"],
            "--split <PERCENT>': must be from 0 to 100",
        ),
        (
            &["rollout", "../chat"],
            "'../chat' for '[NAME]': is not a name that Kubernetes accepts",
        ),
        (
            &["rollout", "abort", "Chat", "--yes"],
            "'Chat' for '<NAME>': is not a name that Kubernetes accepts",
        ),
        (
            &["status", "a b"],
            "'a b' for '[NAME]': is not a name that Kubernetes accepts",
        ),
        (
            &["pause", "chat", "--namespace", "a/b"],
            "'a/b' for '--namespace <NAME>': is not a name that Kubernetes accepts",
        ),
        (
            &["rollout", "undo", "chat", "--to", "-1"],
            "'-1' for '--to <REVISION>': must be the number of a revision, such as 1",
        ),
        (
            &["simulate", "--rate", "-3"],
            "--rate <NUMBER>': must be from 0.001 to 1000000",
        ),
        (
            &["simulate", "--startup", "-1"],
            "--startup <DURATION>': must be between 0 and 2592000 seconds",
        ),
        (&["set", "x", "--split", "12.5"], "{\"old\":7,\"new\":1}"),
        (&["controller", "--proxy-selector", "app"], "NAME=VALUE"),
        (&["controller", "--resolve", "new=1.1.1.1:80"], "HOST:PORT"),
        (&["controller", "--admin", "x"], "IP:PORT"),
        (
            &["controller", "--namespace", "a", "--all-namespaces"],
            "--all-namespaces",
        ),
        (
            &[
                "controller",
                "--assume-isolated-namespace",
                "--all-namespaces",
            ],
            "--all-namespaces",
        ),
        (&["controller", "--quiet-period", "x"], "--quiet-period"),
        (
            &["proxy", "--old", "a:1", "--new", "b:1", "--split", "x"],
            "x",
        ),
        (
            &["proxy", "--old", "a", "--new", "b:1", "--split", "5"],
            "port",
        ),
        (
            &[
                "proxy",
                "--old",
                "ftp://a:1",
                "--new",
                "b:1",
                "--split",
                "5",
            ],
            "ftp",
        ),
        (
            &[
                "proxy", "--old", "a:1", "--new", "b:1", "--split", "5", "--plan", &plan,
            ],
            "--plan",
        ),
        (
            &["proxy", "--old", "a:1", "--plan", &plan, "--hold", "1"],
            "--hold",
        ),
        (
            &[
                "proxy",
                "--old",
                "a:1",
                "--plan",
                &plan,
                "--affinity-header",
                "x",
            ],
            "--affinity-header",
        ),
        (
            &[
                "proxy", "--old", "a:1", "--new", "b:1", "--split", "5", "--listen", "x",
            ],
            "x",
        ),
        (
            &[
                "proxy",
                "--old",
                "a:1",
                "--new",
                "b:1",
                "--split",
                "5",
                "--tls-cert",
                "x",
            ],
            "--tls-key",
        ),
        (
            &[
                "proxy",
                "--old",
                "a:1",
                "--new",
                "b:1",
                "--split",
                "5",
                "--override-header",
                "a b",
            ],
            "a b",
        ),
        (
            &[
                "proxy",
                "--old",
                "a:1",
                "--new",
                "b:1",
                "--split",
                "5",
                "--guard-key",
                "",
            ],
            "'--guard-key <TEXT>': must not be empty",
        ),
        (
            &[
                "proxy", "--old", "a:1", "--new", "b:1", "--split", "5", "--hold", "-1",
            ],
            "-1",
        ),
        (
            &[
                "proxy",
                "--old",
                "a:1",
                "--new",
                "b:1",
                "--split",
                "5",
                "--no-such-flag",
            ],
            "--no-such-flag",
        ),
        (&["proxy", "--old", "a:1", "--log", "inof"], "'inof'"),
        (&["proxy", "--old", "a:1", "--log", "info,h2"], "'h2'"),
        (&["controller", "--log", "crossfade=loud"], "loud"),
        (&["log-level", "loud"], "'loud'"),
        (
            &["proxy", "--old", "a:1", "--admin-host", "10.0.0.1"],
            "--admin-host",
        ),
        (&["controller", "--admin-host", "a b"], "--admin-host"),
        (&["no-such-command"], "no-such-command"),
        (&[], "proxy"),
        (&["check"], "FILE"),
    ] {
        let (status, stdout, stderr) = texts(&run(args));
        assert_eq!(status, Some(2), "{args:?}: {stdout}{stderr}");
        assert!(stderr.contains(expected), "{args:?}: {stderr}");
        assert_eq!(stdout, "", "{args:?}");
    }
}

#[test]
fn an_invalid_value_of_an_environment_variable_is_reported_with_its_name() {
    let tip = "tip: the value comes from the environment variable";
    for (args, variable) in [
        (&["proxy", "--old", "a:1"][..], "CROSSFADE_LISTEN"),
        (&["proxy", "--listen", ":0"], "CROSSFADE_OLD"),
        (&["proxy"], "CROSSFADE_LOG_FORMAT"),
        (&["status"], "CROSSFADE_NAMESPACE"),
        (&["rollout", "pause", "x"], "CROSSFADE_NAMESPACE"),
    ] {
        let (status, _, stderr) = texts(&run_with_env(args, &[(variable, "/?")]));
        assert_eq!(status, Some(2), "{variable}: {stderr}");
        assert!(stderr.contains(&format!("{tip} {variable}")), "{stderr}");
    }
    for (args, variables) in [
        (
            &["controller"][..],
            &[
                "CROSSFADE_NAMESPACE",
                "CROSSFADE_LEASE_NAME",
                "CROSSFADE_LEASE_NAMESPACE",
                "CROSSFADE_PROXY_PORT",
                "CROSSFADE_FRONTEND_PORT",
            ][..],
        ),
        (&["status"], &["CROSSFADE_CONTEXT"]),
        (&["proxy", "--old", "a:1"], &["CROSSFADE_KUBE_NAMESPACE"]),
    ] {
        for variable in variables {
            let (status, _, stderr) = texts(&run_with_env(args, &[(variable, "")]));
            let tip = format!("tip: the environment variable {variable} is empty");
            assert!(status == Some(2) && stderr.contains(&tip), "{stderr}");
        }
    }
    for (variable, value, tips) in [
        (
            "CROSSFADE_SPLIT",
            "",
            &[
                "tip: the environment variable CROSSFADE_SPLIT is empty: set it to a value, or remove it",
            ][..],
        ),
        (
            "CROSSFADE_STATE_DIR",
            "",
            &[
                "tip: the environment variable CROSSFADE_STATE_DIR is empty: set it to a value, or remove it",
            ],
        ),
        (
            "CROSSFADE_KUBE",
            "maybe",
            &[
                "tip: the value comes from the environment variable CROSSFADE_KUBE",
                "tip: use true or false",
            ],
        ),
    ] {
        let args = ["proxy", "--old", "a:1"];
        let (status, _, stderr) = texts(&run_with_env(&args, &[(variable, value)]));
        assert_eq!(status, Some(2), "{variable}: {stderr}");
        for tip in tips {
            assert!(stderr.contains(tip), "{stderr}");
        }
    }
    for args in [
        &["proxy", "--old", "a:1", "--listen", "/?"][..],
        &["proxy", "--old", "a:1", "--listen=/?"],
        &["proxy", "--old", "a:1", "--split", "200"],
        &["status", "-n/?"],
    ] {
        let set = [("CROSSFADE_LISTEN", "/"), ("CROSSFADE_NAMESPACE", "/")];
        let (status, _, stderr) = texts(&run_with_env(args, &set));
        let is_named = stderr.contains("invalid value") && stderr.contains(tip);
        // Clap checks all variables before it reports the first invalid flag.
        assert!(status == Some(2) && !is_named, "{args:?}: {stderr}");
    }
}

#[test]
fn simulate_with_a_file_as_an_argument_says_how_to_pass_it() {
    let (status, _, stderr) = texts(&run(&["simulate", "rollout.yaml"]));
    let tip = "tip: to read a manifest, use '--file rollout.yaml'";
    assert!(status == Some(2) && stderr.contains(tip), "{stderr}");
}

#[test]
fn an_error_found_after_parsing_shows_the_usage_of_its_subcommand() {
    for (args, usage) in [
        (&["status", "--proxy", ""][..], "Usage: crossfade status "),
        (&["judge", "x", "--proxy", "a:1"], "Usage: crossfade judge "),
        (
            &["proxy", "--old", "a:1", "--move-after", "5"],
            "Usage: crossfade proxy ",
        ),
        (&["-n", "x", "drain"], "Usage: crossfade drain "),
        (&["rollout", "chat", "pause"], "Usage: crossfade rollout "),
        (&["no-such-command"], "Usage: crossfade [OPTIONS] <COMMAND>"),
    ] {
        let (status, _, err) = texts(&run(args));
        assert_eq!(status, Some(2), "{args:?}: {err}");
        assert!(err.contains(usage), "{args:?}: {err}");
    }
}

#[tokio::test]
async fn a_failed_start_exits_with_status_1_and_says_why() {
    let old = Upstream::start(healthy("old")).await;
    let taken = old.url();
    let base = [
        "proxy",
        "--old",
        "https://127.0.0.1:1",
        "--new",
        "https://127.0.0.1:2",
        "--split",
        "5",
    ];
    for more in [
        &["--listen", &taken, "--admin", "127.0.0.1:0"][..],
        &["--listen", "127.0.0.1:0", "--admin", &taken],
        &[
            "--listen",
            "127.0.0.1:0",
            "--admin",
            "127.0.0.1:0",
            "--tls-cert",
            "/no/such",
            "--tls-key",
            "/no/such",
        ],
        &[
            "--listen",
            "127.0.0.1:0",
            "--admin",
            "127.0.0.1:0",
            "--upstream-ca",
            "/no/such",
        ],
    ] {
        let (status, stdout, stderr) = texts(&run(&[&base, more].concat()));
        assert_eq!(status, Some(1), "{more:?}: {stdout}{stderr}");
        let named = if more.contains(&&*taken) {
            &*taken
        } else {
            "/no/such"
        };
        assert!(stderr.contains(named), "{more:?}: {stderr}");
    }
}

#[test]
fn help_explains_every_flag_with_its_variable() {
    let (status, help, _) = texts(&run(&["--help"]));
    assert_eq!(status, Some(0));
    assert!(help.contains("proxy") && help.contains("check"), "{help}");
    let (status, help, _) = texts(&run(&["proxy", "--help"]));
    assert_eq!(status, Some(0));
    for flag in [
        "listen",
        "admin",
        "old",
        "new",
        "split",
        "plan",
        "old-peers",
        "state-dir",
        "threads",
        "inference-prefix",
        "affinity-header",
        "affinity-body-field",
        "override-header",
        "max-replay-bytes",
        "retry-budget-percent",
        "first-event-timeout",
        "gap-timeout",
        "hold",
        "retry-overloaded",
        "retry-old-server-errors",
        "continuation",
        "continuation-max-text-bytes",
        "continuation-max-per-stream",
        "no-continuation-comment",
        "move-after",
        "move-rate",
        "replay-budget-bytes",
        "keep-alive-comments",
        "connect-timeout",
        "upstream-head-timeout",
        "upstream-protocol",
        "upstream-ca",
        "upstream-cert",
        "upstream-key",
        "tls-cert",
        "tls-key",
        "tls-client-ca",
        "max-header-bytes",
        "max-body-bytes",
        "max-requests",
        "head-timeout",
        "probe-interval",
        "settle",
        "drain",
        "guard-key",
        "log-format",
        "log",
        "no-access-log",
    ] {
        let variable = format!("CROSSFADE_{}", flag.replace('-', "_").to_uppercase());
        assert!(
            help.contains(&format!("--{flag} ")) || help.contains(&format!("--{flag}\n")),
            "{flag}"
        );
        assert!(
            help.contains(&format!("{variable}=")) || help.contains(&format!("{variable}]")),
            "{variable}"
        );
    }
    let (status, version, _) = texts(&run(&["--version"]));
    assert_eq!(
        (status, version.trim()),
        (Some(0), concat!("crossfade ", env!("CARGO_PKG_VERSION")))
    );
}

#[test]
fn an_empty_guard_key_in_the_environment_is_rejected() {
    let args = ["proxy", "--old", "127.0.0.1:1", "--listen", "127.0.0.1:0"];
    let output = run_with_env(&args, &[("CROSSFADE_GUARD_KEY", "")]);
    let (status, _, stderr) = texts(&output);
    assert_eq!(status, Some(2), "{stderr}");
    assert!(
        stderr.contains("--guard-key <TEXT>': must not be empty"),
        "{stderr}"
    );
}

#[tokio::test]
async fn every_flag_may_come_from_the_environment() {
    let old = Upstream::start(healthy("old")).await;
    let new = Upstream::start(healthy("new")).await;
    let (old_url, new_url) = (old.url(), new.url());
    let env = [
        ("CROSSFADE_OLD", &*old_url),
        ("CROSSFADE_NEW", &*new_url),
        ("CROSSFADE_SPLIT", "100"),
        ("CROSSFADE_OVERRIDE_HEADER", "x-generation"),
        ("CROSSFADE_LOG_FORMAT", "json"),
    ];
    let proxy = Proxy::start_with_env(&[], &env).await;
    proxy.chat().await.assert_is(chat_text("new"));
    let headers = [("x-generation", "old")];
    let response = client::post(proxy.address, CHAT, &headers, STREAMING).await;
    response.assert_is(chat_text("old"));
    // A flag has precedence over its variable.
    let proxy = Proxy::start_with_env(&["--split", "0"], &env).await;
    proxy.chat().await.assert_is(chat_text("old"));
}

#[tokio::test]
async fn ipv6_literals_work_on_both_sides() {
    let old = Upstream::listen("[::1]:0", None, healthy("old")).await;
    let port = old.address.port();
    for url in [format!("[::1]:{port}"), format!("http://[::1]:{port}")] {
        let proxy = Proxy::start(&[
            "--listen",
            "[::1]:0",
            "--admin",
            "[::1]:0",
            "--old",
            &url,
            "--new",
            "127.0.0.1:9",
            "--split",
            "0",
        ])
        .await;
        assert!(proxy.address.is_ipv6() && proxy.admin.is_ipv6());
        proxy.chat().await.assert_is(chat_text("old"));
        assert_eq!(proxy.admin("/readyz").await.status, 200);
        assert_eq!(old.last().header("x-forwarded-for"), Some("::1"));
    }
}

/// Whether a text contains characters that control a terminal or change the reading direction.
pub fn steers(text: &str) -> bool {
    text.replace('\n', "").contains(|c: char| {
        c.is_control() || matches!(c, '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    })
}

/// A manifest with control characters and line breaks in every value that is printed.
pub fn hostile_manifest() -> String {
    let evil = r"\e[2J\u009b2J\u0085\u202e\u2028\r\nplan: ok: forged\n";
    let text = format!("\"{evil}\": 1\npaused: \"{evil}\"\nprobe: {{path: \"/{evil}\"}}");
    manifest("new:8000", 3, 1, &text).replace("new:8000", &format!("{evil}new:8000"))
}

#[test]
fn a_usage_error_prints_no_control_characters() {
    let evil = "\u{9b}31m\u{85}\u{202e}";
    let args = ["proxy", "--old", "a:1", "--new", "a:1", "--split"];
    for args in [
        &["version", evil][..],
        &[evil],
        &["log-level", evil, "--admin", "127.0.0.1:1"],
        &["rbac", evil],
        &[&args[..], &[evil]].concat(),
    ] {
        let (status, stdout, stderr) = texts(&run(args));
        assert_eq!((status, stdout.as_str()), (Some(2), ""), "{args:?}");
        assert!(!steers(&stderr), "{stderr:?}");
        assert!(stderr.contains(r"\u009b31m\u0085\u202e"), "{stderr}");
    }
    let variable = [("CROSSFADE_SPLIT", evil)];
    let (status, _, stderr) = texts(&run_with_env(&args[..5], &variable));
    assert_eq!(status, Some(2), "{stderr}");
    assert!(!steers(&stderr), "{stderr:?}");
}

#[tokio::test]
async fn no_client_input_controls_a_terminal_or_forges_a_log_line() {
    let old = Upstream::start(healthy("old")).await;
    for format in ["text", "json"] {
        let plan = PlanFile::new(&manifest("new:8000", 1, 1, ""));
        let flags = ["--log-format", format, "--log", "debug"];
        let proxy = Proxy::planned(&old, &plan, &flags).await;
        plan.write(&hostile_manifest());
        eventually("it is refused", async || {
            proxy.lines().iter().any(|line| line.contains("u009b2J"))
        })
        .await;
        let headers = [("x-session-id", "\u{9b}2J\u{202e}")];
        client::post(proxy.address, CHAT, &headers, STREAMING).await;
        eventually("an access line", async || {
            proxy.lines().iter().any(|line| line.contains("attempts"))
        })
        .await;
        for line in proxy.lines() {
            assert!(!steers(&line) && !line.starts_with("plan:"), "{line:?}");
        }
        let page = proxy.plan().await;
        assert!(!steers(&page), "{page:?}");
    }
}

#[test]
fn version_reports_which_program_it_is() {
    let (status, stdout, _) = texts(&run(&["version"]));
    assert_eq!(status, Some(0));
    assert!(
        stdout.starts_with(concat!("crossfade ", env!("CARGO_PKG_VERSION"), " (linux/")),
        "{stdout}"
    );
    let (_, stdout, _) = texts(&run(&["version", "--output", "json"]));
    let answer: serde_json::Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!(answer["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(answer["resource"], "nvidia.com/v1alpha1");
    let (_, stdout, _) = texts(&run(&["version", "-o", "yaml"]));
    let lines: Vec<&str> = stdout.lines().collect();
    let version = format!("version: \"{}\"", env!("CARGO_PKG_VERSION"));
    assert!(
        lines.contains(&&*version) && lines.contains(&"state: crossfade.v1"),
        "{stdout}"
    );
    assert_eq!(run(&["version", "-o", "xml"]).status.code(), Some(2));
}

#[test]
fn rbac_takes_a_namespace_before_and_after_the_command() {
    for args in [
        &["rbac", "default", "-n", "prod"][..],
        &["-n", "prod", "rbac", "default"],
        &["-n", "dev", "rbac", "default", "--namespace=prod"],
    ] {
        let (status, stdout, stderr) = texts(&run(args));
        assert_eq!(status, Some(0), "{stderr}");
        let count = stdout.matches("  namespace: \"prod\"\n").count();
        assert_eq!(count, 2, "{args:?}: {stdout}");
    }
    let (_, stdout, _) = texts(&run(&["rbac", "default"]));
    assert!(!stdout.contains("namespace"), "{stdout}");
}

#[test]
fn durations_are_seconds_or_have_units() {
    for (value, taken) in [
        ("90", true),
        ("1m30s", true),
        ("1500ms", true),
        ("1m30", false),
        ("soon", false),
    ] {
        // It exits because of a missing update or an invalid flag, not because of a missing server.
        let file = PlanFile::new("");
        let (status, _, stderr) = texts(&run(&[
            "proxy",
            "--old",
            "a:1",
            "--plan",
            &file.as_str(),
            "--drain",
            value,
        ]));
        assert_ne!(status, Some(0));
        assert_eq!(
            !stderr.contains("is not a duration"),
            taken,
            "{value}: {stderr}"
        );
    }
}
