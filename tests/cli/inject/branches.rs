//! Scripts with several commands that start the server: all of them move, or none does.

use super::*;

fn script(script: &str, rest: &str) -> String {
    let script = script.replace('\n', "\n          ");
    deployment(&format!(
        "        image: vllm/vllm-openai\n        command: [bash, -c]\n        args:\n        - |\n          {script}\n{rest}"
    ))
}

fn branches(one: &str, other: &str) -> String {
    format!("if [ \"$LORA\" ]; then\n  exec vllm serve {one}\nelse\n  exec vllm serve {other}\nfi")
}

fn with_port(port: Option<u16>) -> Options {
    Options {
        port,
        ..Options::default()
    }
}

#[test]
fn branches_with_the_same_port_in_different_notations_all_move() {
    let one = "        env: [{name: PORT, value: \"8000\"}]\n";
    let two = "        env: [{name: PORT, value: \"8000\"}, {name: OTHER, value: \"8000\"}]\n";
    for (env, first, second) in [
        (one, "m --port 8000 --x", "m --port \"$PORT\""),
        (one, "m --port \"$PORT\" --x", "m --port 8000"),
        (one, "m --port 8000", "m --port $(PORT)"),
        (one, "m --port \"$PORT\"", "m --port $PORT"),
        (one, "m --port ${PORT}", "m --port=$PORT"),
        (one, "m --port ${PORT:-9}", "m --port 8000"),
        (two, "m --port $PORT", "m --port ${OTHER}"),
        ("", "m --port ${PORT:-8000}", "m --port 8000 --x"),
        ("", "m --port ${PORT:-8000}", "m --port \"${PORT:-8000}\""),
        ("", "m --port ${PORT:-8000}", "m --port ${OTHER:-8000}"),
    ] {
        let lines = branches(first, second);
        let text = script(&lines, env);
        for port in [None, Some(8000)] {
            let report = injected_with(&text, &with_port(port))
                .unwrap_or_else(|error| panic!("{lines}: {error}"));
            let expected = script(&lines, env).replace("8000", "8080");
            let moved = |text: &str| -> Vec<String> {
                let is_it = |line: &&str| line.contains("vllm serve") || line.contains("env: [");
                text.lines().filter(is_it).map(str::to_owned).collect()
            };
            assert_eq!(moved(&report.text), moved(&expected), "{lines}");
            assert!(report.text.contains("0.0.0.0:8000"), "{}", report.text);
            assert_eq!(injected(&report.text).unwrap().text, report.text);
            assert_eq!(uninject(&report.text).unwrap().text, text);
        }
    }
}

#[test]
fn a_branch_with_an_unknown_port_is_not_left_behind() {
    for (lines, port, expected) in [
        (
            branches("m --port 8000", "m --port $PORT"),
            Some(8000),
            "its port is in the variable PORT, which has no value in the container's env: set it there",
        ),
        (
            branches("m --port $(cat /port)", "m --port 8000"),
            Some(8000),
            "its port is computed ($(cat /port)): write it as a number",
        ),
        (
            branches("m --port ${PORT:-8000}", "m --port ${PORT:-8001}"),
            None,
            "it is unclear which one is the server's: set its port with --port",
        ),
        (
            branches("m --port 8001", "m --port 8002"),
            Some(8000),
            "--port is 8000, but according to the manifest, it listens on 8001 or 8002",
        ),
    ] {
        let error = injected_with(&script(&lines, ""), &with_port(port)).unwrap_err();
        assert!(error.to_string().contains(expected), "{lines}: {error}");
    }
    // A branch is left behind only if the user says so.
    let text = script(&branches("m --port 8001", "m --port 8000 --x"), "");
    let report = injected_with(&text, &with_port(Some(8000))).unwrap();
    let expected = "several commands of its script start the server on different ports: only those on port 8000 move behind crossfade";
    assert_eq!(report.notes[0].warnings, [expected]);
    let text = script(&branches("m --port 8000", "m --port 8000 --x"), "");
    let report = injected_with(&text, &with_port(Some(8000))).unwrap();
    assert!(report.notes[0].warnings.is_empty());
    // Without a known server, another command may have the same flag.
    let text = deployment(
        "        image: x\n        command: [sh, -c, 'wait-for --port $DB_PORT; app --port 3000']\n",
    );
    let report = injected_with(&text, &with_port(Some(3000))).unwrap();
    assert!(report.text.contains("app --port 8080"), "{}", report.text);
}

#[test]
fn a_model_whose_name_ends_with_that_of_another_branch_is_told_apart() {
    let with_note = |one: &str, other: &str| {
        format!(
            "# Serve on --port 8000.\n{}",
            branches(
                &format!("{one} --port 8000 --x"),
                &format!("{other} --port 8000")
            )
        )
    };
    for lines in [
        with_note("/models/llama", "llama"),
        with_note("llama", "/models/llama"),
        with_note("org/llama", "org2/llama"),
        with_note("llm", "m"),
        with_note("m", "llm"),
        "echo on --port 8000\ncase $M in\n  a) vllm serve a/llm --port 8000;;\n  *) vllm serve m --port 8000;;\nesac".to_owned(),
    ] {
        let text = script(&lines, "");
        let report = injected(&text).unwrap_or_else(|error| panic!("{lines}: {error}"));
        let serving = |text: &str| -> Vec<String> {
            let lines = text.lines().filter(|line| line.contains("vllm serve"));
            lines.map(str::to_owned).collect()
        };
        assert_eq!(serving(&report.text), serving(&text.replace("8000", "8080")), "{lines}");
        assert!(report.text.contains("--port 8000"), "{}", report.text);
        assert_eq!(injected(&report.text).unwrap().text, report.text);
        assert_eq!(uninject(&report.text).unwrap().text, text);
    }
}

#[test]
fn a_branch_that_does_not_serve_is_no_obstacle() {
    for (lines, expected) in [
        (
            branches("m --headless", "m"),
            branches("--port 8080 m --headless", "--port 8080 m"),
        ),
        (
            branches("m", "m --headless"),
            branches("--port 8080 m", "--port 8080 m --headless"),
        ),
        (
            "if x; then vllm serve m --headless; else vllm serve m; fi".to_owned(),
            "if x; then vllm serve m --headless; else vllm serve --port 8080 m; fi".to_owned(),
        ),
        (
            "vllm serve m -h; vllm serve m".to_owned(),
            "vllm serve m -h; vllm serve --port 8080 m".to_owned(),
        ),
    ] {
        let text = script(&lines, "");
        let report = injected(&text).unwrap_or_else(|error| panic!("{lines}: {error}"));
        let expected = script(&expected, "");
        let expected = expected.split("args:\n").nth(1).unwrap().trim_end();
        assert!(report.text.contains(expected), "{}", report.text);
        assert_eq!(injected(&report.text).unwrap().text, report.text);
        assert_eq!(uninject(&report.text).unwrap().text, text);
    }
}
