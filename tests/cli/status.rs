//! `crossfade status` and related commands, as far as they need no real API server.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use crate::rig::proxy::{output_text, program, run};
use crate::rig::*;
use crate::terminal::Terminal;
use serde_json::{Value, json};

#[tokio::test]
async fn with_addresses_it_sums_the_proxies_and_names_those_that_do_not_respond() {
    let old = Upstream::start(healthy("old")).await;
    let new = Upstream::start(healthy("new")).await;
    let one = Proxy::split(&old, &new, 50).await;
    let other = Proxy::split(&old, &new, 50).await;
    for proxy in [&one, &other] {
        for _ in 0..4 {
            proxy.chat().await;
        }
        proxy.outcomes("completed", 4).await;
    }
    // Nothing listens on the discard port.
    let addresses = format!("{},{},127.0.0.1:9", one.admin, other.admin);
    let output = run(&["status", "--proxy", &addresses, "--output", "json"]);
    assert_eq!(output.status.code(), Some(0), "{}", output_text(&output));
    let status: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(status["total"]["split"]["wanted"], 0.5);
    assert_eq!(
        status["total"]["assignedLastMinute"],
        json!({"old": 4, "new": 4})
    );
    for generation in ["old", "new"] {
        let mut count = 0.0;
        for proxy in [&one, &other] {
            let name = "crossfade_time_to_first_event_seconds_count";
            count += proxy
                .metrics()
                .await
                .sum(name, &[("generation", generation)]);
        }
        assert_eq!(
            status["total"][generation]["firstEvent"]["count"].as_f64(),
            Some(count)
        );
        assert_eq!(status["total"][generation]["outcomes"]["completed"], 4);
    }
    assert_eq!(status["proxies"].as_array().unwrap().len(), 3);
    assert!(
        status["proxies"][2]["error"]
            .as_str()
            .unwrap()
            .contains("refused")
    );

    let text = output_text(&run(&["status", "--proxy", &addresses]));
    for part in [
        "2 of 3 proxies, queried by address",
        "wanted     50.0%",
        "4 of 8 requests in 60 s",
        "127.0.0.1:9 ",
        "p99",
    ] {
        assert!(text.contains(part), "{part:?} is not in\n{text}");
    }
    assert!(!text.contains('\x1b'), "{text}");
    let yaml = output_text(&run(&["status", "--proxy", &addresses, "-o", "yaml"]));
    assert!(
        yaml.starts_with("---\n") && yaml.contains("wanted: 0.5"),
        "{yaml}"
    );

    // With the URL of the page, and with a trailing comma.
    let page = format!("http://{}/,", one.admin);
    let text = output_text(&run(&["status", "--proxy", &page]));
    assert!(text.contains("1 proxy, queried by address"), "{text}");
}

#[test]
fn if_no_proxy_responds_it_says_so_and_fails() {
    let output = run(&["status", "--proxy", "127.0.0.1:9"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        output_text(&output).contains("cannot be reached"),
        "{}",
        output_text(&output)
    );
    for wrong in [
        &["status", "--proxy", "127.0.0.1:9", "name"][..],
        &["status", "--proxy", "127.0.0.1:9", "-n", "name"],
        &["status", "--proxy", "127.0.0.1:9", "--kubeconfig", "file"],
        &["-n", "name", "status", "--proxy", "127.0.0.1:9"],
        &["--context", "name", "crd"],
        &["status", "--proxy", "127.0.0.1"],
        &["status", "--proxy", ","],
        &["status", "--output", "xml"],
        &["status", "--interval", "0"],
        &["set", "name"],
        &["set", "name", "--split", "101"],
        &["completions", "dos"],
    ] {
        assert_eq!(run(wrong).status.code(), Some(2), "{wrong:?}");
    }
}

#[test]
fn arguments_override_the_environment() {
    let status = |args: &[&str], env: &[(&str, &str)]| {
        let mut command = program();
        command.arg("status").args(args).envs(env.iter().copied());
        command.env("KUBECONFIG", "/does/not/exist");
        output_text(&command.stdin(Stdio::null()).output().unwrap())
    };
    let nobody = [("CROSSFADE_PROXY", "127.0.0.1:9")];
    let unreachable = "127.0.0.1:9 cannot be reached: connection refused\n";
    assert_eq!(status(&[], &nobody), unreachable);
    let asked = status(&["--proxy", "127.0.0.1:9"], &[("CROSSFADE_NAMESPACE", "x")]);
    assert_eq!(asked, unreachable);
    for args in [&["name"][..], &["-n", "x"], &["--context", "x"]] {
        let text = status(args, &nobody);
        assert!(
            text.contains("cannot load a kubeconfig"),
            "{args:?}: {text}"
        );
    }
}

#[test]
fn an_endless_kubeconfig_is_refused_and_a_pipe_is_read() {
    let zero = "/dev/zero is larger than 16 MiB";
    for args in [
        &["status"][..],
        &["set", "u", "--split", "5"],
        &["judge", "u"],
        &["rollout", "status"],
    ] {
        let output = run(&[args, &["--kubeconfig", "/dev/zero"]].concat());
        let text = output_text(&output);
        assert!(text.contains(zero), "{args:?}: {text}");
    }
    let listed = program()
        .arg("status")
        .env("KUBECONFIG", "/dev/null:/dev/zero")
        .output();
    let text = output_text(&listed.unwrap());
    assert!(text.contains(zero), "{text}");

    // The shell passes a pipe as a file.
    let mut piped = program();
    piped.args(["status", "--kubeconfig", "/dev/stdin"]);
    let mut piped = piped
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let file = "kind: Config\ncurrent-context: \"there\\nnot\"\n";
    let mut input = piped.stdin.take().unwrap();
    input.write_all(file.as_bytes()).unwrap();
    drop(input);
    let text = output_text(&piped.wait_with_output().unwrap());
    assert!(text.contains(r"no context 'there\nnot'"), "{text}");
}

#[tokio::test]
async fn a_watch_on_a_terminal_keeps_the_last_good_state_and_reports_errors() {
    let server = ApiServer::start().await;
    server.apply(
        "my-update",
        json!({"newFrontendService": "new:8000", "trafficSplitPercent": 25}),
    );
    let watch = |rows| {
        let mut command = program();
        command.args(["status", "--watch", "--interval", "0.05"]);
        Terminal::run(command.envs(server.env()), 100, rows)
    };
    let terminal = watch(60);
    let calm = terminal
        .shows(&[
            "update      my-update in namespace default",
            "wanted     25.0%",
        ])
        .await;
    assert!(!calm.contains("! "), "{calm}");
    // Missing permissions are reported, not hidden.
    assert!(calm.contains("cannot list the pods"), "{calm}");
    assert!(calm.contains("unknown: cannot list the events"), "{calm}");
    let low = watch(5);
    let cut = low.shows(&["more lines: enlarge the terminal"]).await;
    assert_eq!(cut.lines().count(), 4, "{cut}");
    assert!(cut.starts_with("update      my-update"), "{cut}");

    server.stop().await;
    let seen = "below is the state as of";
    terminal
        .shows(&["! ", "cannot list the updates", seen, "wanted     25.0%"])
        .await;
    // A watch that starts now has nothing to show yet.
    watch(60)
        .shows(&["cannot list the updates", "there is no earlier state"])
        .await;
    server.restart().await;
    server.apply(
        "my-update",
        json!({"newFrontendService": "new:8000", "trafficSplitPercent": 40}),
    );
    let again = terminal.shows(&["wanted     40.0%"]).await;
    assert!(!again.contains(seen), "{again}");
}

#[tokio::test]
async fn an_unreadable_update_is_reported_in_one_line() {
    let server = ApiServer::start().await;
    server.apply("u", json!({"newFrontendService": "new:8000"}));
    server.phase("u", "Odd\ncrossfade: all is well\u{1b}[31m");
    for args in [&["status"][..], &["status", "-o", "json"]] {
        let mut command = program();
        command.args(args).envs(server.env()).stdin(Stdio::null());
        let output = tokio::task::spawn_blocking(move || command.output());
        let text = output_text(&output.await.unwrap().unwrap());
        assert!(
            text.contains(r"unknown variant `Odd\ncrossfade: all is well\u001b[31m`"),
            "{args:?}: {text}"
        );
        assert_eq!(text.trim_end().lines().count(), 1, "{args:?}: {text}");
    }
}

#[tokio::test]
async fn several_updates_are_listed_in_every_format_and_watched() {
    let server = ApiServer::start().await;
    let weights = json!({"old": 3, "new": 1});
    server.apply(
        "one",
        json!({"newFrontendService": "new:8000", "weights": weights}),
    );
    server.apply(
        "two",
        json!({"newFrontendService": "new:8000", "trafficSplitPercent": 5}),
    );
    // The server runs on this thread, which must not block.
    let status = async |args: &[&str]| {
        let mut command = program();
        command.arg("status").args(args).envs(server.env());
        let output = tokio::task::spawn_blocking(move || command.stdin(Stdio::null()).output());
        output_text(&output.await.unwrap().unwrap())
    };
    let text = status(&[]).await;
    assert!(
        text.contains("one                              -                25%"),
        "{text}"
    );
    let json: Value = serde_json::from_str(&status(&["-o", "json"]).await).unwrap();
    assert_eq!(json["updates"][1]["spec"]["trafficSplitPercent"], 5);
    let yaml = status(&["-o", "yaml"]).await;
    let read: Value = serde_saphyr::from_str(&yaml).unwrap();
    assert_eq!(read, json);

    let mut command = program();
    command.args(["status", "--watch", "--interval", "0.05"]);
    let terminal = Terminal::run(command.envs(server.env()), 100, 30);
    terminal.shows(&["one", "5%"]).await;
    server.apply(
        "two",
        json!({"newFrontendService": "new:8000", "trafficSplitPercent": 15}),
    );
    terminal.shows(&["one", "15%"]).await;
    // A single remaining update is shown in full.
    server.delete("one");
    terminal
        .shows(&["update      two in namespace default"])
        .await;
}

#[tokio::test]
async fn a_watch_reports_changes_until_its_output_is_closed() {
    let old = Upstream::start(healthy("old")).await;
    let proxy = Proxy::before(&old, &[]).await;
    let admin = proxy.admin.to_string();
    let args = [
        "status",
        "--proxy",
        &admin,
        "--watch",
        "--interval",
        "0.05",
        "-o",
        "json",
    ];
    let mut child = program().args(args).stdout(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let (began, begins) = tokio::sync::oneshot::channel();
    let seen = std::thread::spawn(move || {
        // Dropping the iterator closes the pipe.
        let mut counts = lines.map_while(Result::ok).map(|line| {
            let status: Value = serde_json::from_str(&line).unwrap();
            status["total"]["old"]["outcomes"]["completed"]
                .as_u64()
                .unwrap()
        });
        began.send(counts.next()).unwrap();
        counts.any(|count| count == 1)
    });
    assert_eq!(begins.await, Ok(Some(0)));
    proxy.chat().await;
    proxy.outcomes("completed", 1).await;
    eventually("the watch ends", async || {
        child.try_wait().unwrap().is_some()
    })
    .await;
    assert!(seen.join().unwrap());
}

#[test]
fn it_describes_itself_in_every_shell_and_under_the_name_of_kubectls_plugin() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let completions = output_text(&run(&["completions", shell]));
        assert!(
            completions.contains("status") && completions.contains("resume"),
            "{shell}"
        );
        // Each installed shell checks its own script.
        let mut reader = Command::new(shell);
        let Ok(mut reader) = reader.arg("-n").stdin(Stdio::piped()).spawn() else {
            assert_ne!(shell, "bash");
            continue;
        };
        let mut script = reader.stdin.take().unwrap();
        script.write_all(completions.as_bytes()).unwrap();
        drop(script);
        assert!(reader.wait().unwrap().success(), "{shell}");
    }
    assert!(output_text(&run(&["man"])).contains(".TH crossfade 1"));
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().to_str().unwrap();
    assert!(run(&["man", path]).status.success());
    let file = directory.path().join("crossfade.1");
    let failed = output_text(&run(&["man", file.to_str().unwrap()]));
    let expected = format!("cannot write the manual to {}: ", file.display());
    assert!(failed.contains(&expected), "{failed}");
    let page = std::fs::read_to_string(directory.path().join("crossfade-status.1")).unwrap();
    let head = format!("\"crossfade {}\"", env!("CARGO_PKG_VERSION"));
    assert!(page.contains(&head), "{page}");
    assert!(page.contains("CROSSFADE_NAMESPACE"), "{page}");
    let rollout = directory.path().join("crossfade-rollout.1");
    let rollout = std::fs::read_to_string(rollout).unwrap().replace('\\', "");
    let others = rollout
        .split_whitespace()
        .filter_map(|word| word.strip_suffix("(1)"));
    let others: Vec<_> = others.collect();
    assert!(others.contains(&"crossfade-rollout-pause"), "{rollout}");
    for other in others {
        assert!(
            directory.path().join(format!("{other}.1")).exists(),
            "{other}"
        );
    }

    let mut plugin = program();
    let output = plugin
        .arg0("kubectl-crossfade")
        .args(["status", "--help"])
        .output();
    let help = output_text(&output.unwrap());
    assert!(help.contains("kubectl crossfade status"), "{help}");
}

#[test]
fn kubectl_completes_its_plugin() {
    let directory = tempfile::tempdir().unwrap();
    let program = directory.path().join("kubectl_complete-crossfade");
    std::fs::write(&program, run(&["completions", "kubectl"]).stdout).unwrap();
    let built = std::path::Path::new(env!("CARGO_BIN_EXE_crossfade"));
    std::os::unix::fs::symlink(built, directory.path().join("crossfade")).unwrap();
    let path = format!(
        "{}:{}",
        directory.path().display(),
        std::env::var("PATH").unwrap()
    );
    let completed = |words: &[&str]| {
        let mut command = Command::new("bash");
        let output = command
            .arg(&program)
            .args(words)
            .env("PATH", &path)
            .output();
        let text = output_text(&output.unwrap());
        text.lines().map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(completed(&["st"]), ["status", ":0"]);
    let flags = completed(&["status", "--na"]);
    assert_eq!(flags, ["--namespace", ":0"]);
    let forms = completed(&["status", "--output", ""]);
    assert_eq!(forms, ["text", "json", "yaml", ":0"]);
}

#[tokio::test]
async fn a_port_that_is_not_an_admin_port_is_reported() {
    // An HTTP/1.1-only server, and the client port of a proxy.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let wrong = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            // Reads all that the client sends first, so that the close causes no reset.
            let mut received = [0; 4096];
            let _ = std::io::Read::read(&mut stream, &mut received);
            let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n");
        }
    });
    let old = Upstream::start(healthy("old")).await;
    let new = Upstream::start(healthy("new")).await;
    let proxy = Proxy::split(&old, &new, 5).await;
    // The client port of a proxy whose model server responds to everything.
    let any = Upstream::always(Script::new().json(200, "{}")).await;
    let before_any = Proxy::before(&any, &[]).await;
    for address in [
        wrong.clone(),
        proxy.address.to_string(),
        before_any.address.to_string(),
    ] {
        let output = run(&["status", "--proxy", &address]);
        let text = output_text(&output);
        assert_eq!(output.status.code(), Some(1), "{text}");
        let expected = format!("{address} is not the admin port (by default 9464) of a crossfade ");
        assert!(text.starts_with(&expected), "{text}");
        // One line without a table, and without the details of a library.
        assert_eq!(text.lines().count(), 1, "{text}");
        assert!(!text.contains("error"), "{text}");
    }
    for args in [
        &["drain", "--admin", &wrong][..],
        &["log-level", "debug", "--admin", &wrong],
    ] {
        let output = run(args);
        let text = output_text(&output);
        assert_eq!(output.status.code(), Some(1), "{text}");
        let expected =
            format!("no crossfade process on this machine listens on the admin port {wrong}");
        assert!(text.contains(&expected), "{text}");
    }
}

#[test]
fn an_error_in_a_kubeconfig_does_not_show_the_token_beside_it() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("config");
    let file = "users:\n- name: a\n  user:\n    token: hunter2\n   bad: [\n";
    std::fs::write(&path, file).unwrap();
    let path = path.to_str().unwrap();
    let text = output_text(&run(&["status", "--kubeconfig", path]));
    assert!(
        text.contains("cannot parse the kubeconfig: line 5"),
        "{text}"
    );
    assert!(!text.contains("hunter2"), "{text}");
}

#[test]
fn a_token_that_no_header_can_hold_is_reported_and_not_shown() {
    let folder = tempfile::tempdir().unwrap();
    let status = |user: &str| {
        let path = folder.path().join("config");
        let file = format!(
            "clusters: [{{name: c, cluster: {{server: 'http://127.0.0.1:1'}}}}]\ncurrent-context: c\n\
             contexts: [{{name: c, context: {{cluster: c, user: u}}}}]\nusers:\n- name: u\n  user:\n{user}"
        );
        std::fs::write(&path, file).unwrap();
        let output = run(&["status", "--kubeconfig", path.to_str().unwrap()]);
        let text = output_text(&output);
        assert_eq!(output.status.code(), Some(1), "{text}");
        assert!(!text.contains("hunter2"), "{text}");
        text
    };
    let text = status("    token: |\n      hunter2\n");
    assert!(
        text.contains("the token of the kubeconfig contains a line break"),
        "{text}"
    );
    std::fs::write(folder.path().join("token"), "hunter2\nhunter2").unwrap();
    let text = status("    tokenFile: token\n");
    assert!(text.contains("/token contains a line break"), "{text}");
    // A line break at the end of a file does not belong to the token.
    std::fs::write(folder.path().join("token"), "hunter2\n").unwrap();
    let text = status("    tokenFile: token\n");
    assert!(text.contains("Connection refused"), "{text}");
    assert!(
        text.contains("cannot reach the API server http://127.0.0.1:1/ (context 'c'): "),
        "{text}"
    );
}

#[test]
fn an_endless_file_that_a_kubeconfig_names_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config");
    for (cluster, user) in [
        ("certificate-authority: /dev/zero", ""),
        ("", "tokenFile: /dev/zero"),
        (
            "",
            "client-certificate: /dev/zero, client-key-data: aGlkZGVu",
        ),
        (
            "",
            "client-certificate-data: aGlkZGVu, client-key: /dev/zero",
        ),
    ] {
        let file = format!(
            "clusters: [{{name: c, cluster: {{server: 'https://127.0.0.1:1', {cluster}}}}}]\ncurrent-context: c\n\
             contexts: [{{name: c, context: {{cluster: c, user: u}}}}]\nusers: [{{name: u, user: {{{user}}}}}]\n"
        );
        std::fs::write(&path, file).unwrap();
        let output = run(&["status", "--kubeconfig", path.to_str().unwrap()]);
        let text = output_text(&output);
        assert!(
            text.contains("/dev/zero is not a regular file"),
            "{cluster}{user}: {text}"
        );
        assert!(!text.contains("aGlkZGVu"), "{text}");
    }
}

#[test]
fn without_a_kubeconfig_the_error_explains_the_use_without_a_cluster() {
    let output = program()
        .arg("status")
        .env("KUBECONFIG", "/does/not/exist")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let text = output_text(&output);
    assert!(
        text.contains("to query proxies without a cluster, use --proxy HOST:PORT"),
        "{text}"
    );
    assert!(
        text.contains("cannot read /does/not/exist: No such file"),
        "{text}"
    );
    assert_eq!(text.matches("/does/not/exist").count(), 1, "{text}");
}

#[test]
fn of_several_kubeconfigs_those_that_do_not_exist_are_skipped() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config");
    std::fs::write(&path, "kind: Config\ncurrent-context: there\n").unwrap();
    let status = |list: &str| {
        let mut command = program();
        command.arg("status").env("KUBECONFIG", list);
        output_text(&command.stdin(Stdio::null()).output().unwrap())
    };
    let text = status(&format!("/not/here:{}:/nor/here", path.display()));
    assert!(text.contains("no context 'there'"), "{text}");
    let text = status("/not/here:/nor/here");
    assert!(
        text.contains("cannot read /not/here: No such file"),
        "{text}"
    );
}

#[test]
fn a_command_that_needs_a_cluster_does_not_suggest_the_use_without_one() {
    for args in [
        &["rollout"][..],
        &["pause", "x"],
        &["rollout", "pause", "x"],
    ] {
        let mut command = program();
        command.args(args).env("KUBECONFIG", "/does/not/exist");
        let output = command.stdin(Stdio::null()).output().unwrap();
        let text = output_text(&output);
        assert!(text.contains("cannot load a kubeconfig: "), "{text}");
        assert!(!text.contains("--proxy"), "{text}");
    }
}

#[test]
fn a_mistyped_subcommand_of_rollout_is_explained() {
    for args in [["rollout", "puase", "chat"], ["rollout", "chat", "pause"]] {
        let output = program().args(args).stdin(Stdio::null()).output().unwrap();
        let text = output_text(&output);
        assert_eq!(output.status.code(), Some(2), "{text}");
        assert!(
            text.contains("`rollout VERB NAME` with one of the verbs pause, resume,"),
            "{text}"
        );
    }
}

#[tokio::test]
async fn status_is_coloured_on_a_terminal_that_supports_it() {
    let server = ApiServer::start().await;
    server.apply(
        "my-update",
        json!({"newFrontendService": "new:8000", "trafficSplitPercent": 25}),
    );
    let command = || {
        let mut command = program();
        command.arg("status").envs(server.env());
        command
    };
    for (variable, value, is_coloured) in [
        ("NO_COLOR", "", true),
        ("NO_COLOR", "1", false),
        ("TERM", "dumb", false),
    ] {
        let mut command = command();
        command
            .env("NO_COLOR", "")
            .env("TERM", "xterm")
            .env(variable, value);
        let terminal = Terminal::run(&mut command, 100, 40);
        let name = if is_coloured {
            "\u{1b}[1mupdate\u{1b}[0m "
        } else {
            "update "
        };
        until(name, async || terminal.all().contains(name).then_some(())).await;
        assert_eq!(
            terminal.all().contains('\u{1b}'),
            is_coloured,
            "{variable}={value}"
        );
    }
    let mut piped = command();
    let output = piped
        .env("TERM", "xterm")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(!output_text(&output).contains('\u{1b}'));
}
