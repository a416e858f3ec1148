//! The port of a server: how it is detected, when it must be given, and which fields follow it.

use super::*;

const VLLM: &str = "        image: vllm/vllm-openai\n";
const SHELL: &str = "        image: vllm/vllm-openai\n        command: [bash, -c]\n";

#[test]
fn the_port_is_read_only_from_the_command_that_starts_the_server() {
    for (script, port, expected) in [
        (
            "ray start --head --port=6379 && vllm serve X --port 8000",
            8000,
            "ray start --head --port=6379 && vllm serve X --port 8080",
        ),
        (
            "ray start --head --port=6379 && vllm serve X",
            8000,
            "ray start --head --port=6379 && vllm serve --port 8080 X",
        ),
        (
            "echo vllm serve; exec /bin/vllm serve X | tee --port 3",
            8000,
            "echo vllm serve; exec /bin/vllm serve --port 8080 X | tee --port 3",
        ),
        (
            "vllm serve X --port 7000 --port=7001 & wait --port 9",
            7001,
            "vllm serve X --port 7000 --port=8080 & wait --port 9",
        ),
        (
            "su u -c \"vllm serve X --port 7000\"",
            7000,
            "su u -c \"vllm serve X --port 8080\"",
        ),
    ] {
        let text = deployment(&format!("{SHELL}        args: ['{script}']\n"));
        let report = injected(&text).unwrap_or_else(|error| panic!("{script}: {error}"));
        assert!(
            report.text.contains(&format!("args: ['{expected}']\n")),
            "{}",
            report.text
        );
        let listens = format!("value: \"0.0.0.0:{port}\"");
        assert!(report.text.contains(&listens), "{}", report.text);
        assert_eq!(uninject(&report.text).unwrap().text, text);
    }
    let commented = format!(
        "{SHELL}        args:\n        - |\n          # --port 9000\n          vllm serve X \\\n            --port 7000 # --port 1\n"
    );
    let report = injected(&deployment(&commented)).unwrap();
    assert!(
        report.text.contains("            --port 8080 # --port 1\n"),
        "{}",
        report.text
    );
}

#[test]
fn a_here_document_counts_only_if_it_is_run() {
    let script = |lines: &[&str]| -> String {
        let lines: Vec<_> = lines
            .iter()
            .map(|line| format!("          {line}\n"))
            .collect();
        deployment(&format!(
            "{SHELL}        args:\n        - |\n{}",
            lines.concat()
        ))
    };
    let template = [
        "cat >/t.jinja <<'END'",
        "it's $( --port 7 vllm serve",
        "END",
    ];
    for (text, port, expected) in [
        (
            script(&[&template[..], &["vllm serve X --port 8001"]].concat()),
            8001,
            "vllm serve X --port 8080",
        ),
        (
            script(&[&template[..], &["exec vllm serve X"]].concat()),
            8000,
            "exec vllm serve --port 8080 X",
        ),
        (
            script(&[
                "cat >/a <<A; cat >/b << \"B\"",
                "vllm serve A --port 1",
                "A",
                "B",
                "vllm serve X --port 8001",
            ]),
            8001,
            "vllm serve X --port 8080",
        ),
        (
            script(&[
                "cat >/a <<A",
                "vllm serve A --port 1",
                "A",
                "bash -x <<-B",
                "vllm serve X --port 8001",
                "B",
            ]),
            8001,
            "vllm serve X --port 8080",
        ),
        // Run later by name.
        (
            script(&[
                "cat >/run <<END",
                "vllm serve X --port 8001",
                "END",
                "bash /run",
            ]),
            8001,
            "vllm serve X --port 8080",
        ),
    ] {
        let report = injected(&text).unwrap_or_else(|error| panic!("{text}\n{error}"));
        assert!(
            report.text.contains(&format!("          {expected}\n")),
            "{}",
            report.text
        );
        let listens = format!("value: \"0.0.0.0:{port}\"");
        assert!(report.text.contains(&listens), "{}", report.text);
        assert_eq!(uninject(&report.text).unwrap().text, text);
    }
}

#[test]
fn a_non_root_user_gets_permission_for_a_low_port() {
    const SYSCTL: &str = "net.ipv4.ip_unprivileged_port_start";
    let with = |spec: &str| {
        deployment(&format!("{VLLM}        args: [--port, '80']\n"))
            .replace("      containers:\n", &format!("{spec}      containers:\n"))
    };
    let text = with("");
    let report = injected(&text).unwrap();
    assert!(
        flat(&report.text).contains(&format!(
            "securityContext:\nsysctls:\n- name: {SYSCTL}\nvalue: \"80\""
        )),
        "{}",
        report.text
    );
    let details = &report.notes[0].details;
    assert!(
        details
            .iter()
            .any(|detail| detail.contains("port 80") && detail.contains(SYSCTL)),
        "{details:?}"
    );
    assert_eq!(injected(&report.text).unwrap().text, report.text);
    assert_eq!(uninject(&report.text).unwrap().text, text);
    // The sysctl is already set; and in the host network, it is that of the node.
    for (spec, warned) in [
        (
            format!("      securityContext: {{sysctls: [{{name: {SYSCTL}, value: '0'}}]}}\n"),
            false,
        ),
        (String::from("      hostNetwork: true\n"), true),
    ] {
        let text = with(&spec);
        let report = injected(&text).unwrap();
        assert_eq!(
            report.text.matches(SYSCTL).count(),
            text.matches(SYSCTL).count()
        );
        let warnings = &report.notes[0].warnings;
        assert_eq!(
            warnings.iter().any(|warning| warning.contains(SYSCTL)),
            warned,
            "{warnings:?}"
        );
    }
    let high = injected(&deployment(VLLM)).unwrap().text;
    assert!(!high.contains(SYSCTL), "{high}");
}

#[test]
fn the_explanation_names_every_probe_and_hook_that_changes() {
    let text = deployment(&format!(
        "{VLLM}        startupProbe: {{grpc: {{port: 8000}}}}\n        livenessProbe: {{exec: {{command: [curl, 'localhost:8000/health']}}}}\n        \
         lifecycle: {{postStart: {{httpGet: {{port: 8000}}}}}}\n"
    ));
    let report = injected(&text).unwrap();
    let grace = "startupProbe: {grpc: {port: 8080}, \"terminationGracePeriodSeconds\": 30}";
    assert!(report.text.contains(grace), "{}", report.text);
    assert_eq!(uninject(&report.text).unwrap().text, text);
    let details = report.notes[0].details.clone();
    for expected in [
        "startupProbe: follows the frontend to port 8080",
        "livenessProbe: follows the frontend to port 8080",
        "startupProbe: terminationGracePeriodSeconds: 30, because a frontend that hangs must not wait as long as the pod's streams",
        "livenessProbe: terminationGracePeriodSeconds: 30, because a frontend that hangs must not wait as long as the pod's streams",
        "postStart: follows the frontend to port 8080",
        "preStop: the frontend stays until its last stream has ended",
    ] {
        assert!(
            details.iter().any(|detail| detail == expected),
            "{expected}: {details:?}"
        );
    }
}

#[test]
fn with_several_servers_in_a_script_the_port_must_be_given() {
    let text = deployment(&format!(
        "{SHELL}        args: ['vllm serve A --port 7000 & vllm serve B --port 7001']\n"
    ));
    let error = injected(&text).unwrap_err().to_string();
    assert!(
        error.contains("several commands of its script have --port"),
        "{error}"
    );
    let options = Options {
        port: Some(7001),
        ..Options::default()
    };
    let report = injected_with(&text, &options).unwrap();
    assert!(
        report
            .text
            .contains("--port 7000 & vllm serve B --port 8080"),
        "{}",
        report.text
    );
    // Arguments after a script are not arguments of the server.
    let text = deployment(&format!(
        "{VLLM}        args: [bash, -c, 'vllm serve A & vllm serve B']\n"
    ));
    let error = injected(&text).unwrap_err().to_string();
    assert!(error.contains("write --port PORT into it"), "{error}");
}

#[test]
fn all_commands_that_start_the_server_on_the_same_port_are_edited() {
    let script = |lines: &str| {
        let lines = lines.replace('\n', "\n          ");
        deployment(&format!(
            "{SHELL}        args:\n        - |\n          {lines}\n"
        ))
    };
    let branches = "if [ \"$ROLE\" = draft ]; then\n  exec vllm serve small --port 8001\nelse\n  exec vllm serve big --port=8001\nfi";
    let line = "if x; then vllm serve a --port 8001; else vllm serve b --port 8001; fi";
    let variable = "        env: [{name: PORT, value: \"8001\"}]\n";
    let by_variable =
        script("if x; then\n  vllm serve a --port $PORT\nelse\n  vllm serve b --port $PORT\nfi")
            + variable;
    for (text, expected) in [
        (script(branches), branches.replace("8001", "8080")),
        (script(line), line.replace("8001", "8080")),
        (by_variable, variable.replace("8001", "8080")),
    ] {
        for port in [None, Some(8001)] {
            let options = Options {
                port,
                ..Options::default()
            };
            let report = injected_with(&text, &options).unwrap();
            assert!(
                flat(&report.text).contains(&flat(&expected)),
                "{}",
                report.text
            );
            assert!(report.text.contains("0.0.0.0:8001"), "{}", report.text);
            assert_eq!(injected(&report.text).unwrap().text, report.text);
            assert_eq!(uninject(&report.text).unwrap().text, text);
        }
    }
    // The part before the flag is the same, or a branch was edited by hand.
    for lines in [
        "if x; then\n  vllm serve m --port 8001 --y\nelse\n  vllm serve m --port 8001\nfi",
        "case $R in\n  a)\n    exec vllm serve m --port 8001 --a ;;\n  *)\n    exec vllm serve m --port 8001 ;;\nesac",
        "# --port 8001\nvllm serve m --port 8001 || vllm serve m --port 8001 --enforce-eager",
        "vllm serve m \\\n  --port 8001 \\\n  --y ||\nvllm serve m \\\n  --port 8001 \\\n  --z",
    ] {
        let text = script(lines);
        let report = injected(&text).unwrap_or_else(|error| panic!("{lines}: {error}"));
        let moved = flat(&lines.replace("8001", "8080")).replace("# --port 8080", "# --port 8001");
        assert!(flat(&report.text).contains(&moved), "{}", report.text);
        assert!(
            report.notes[0].to_string().contains(", in all 2 places"),
            "{}",
            report.notes[0]
        );
        assert_eq!(injected(&report.text).unwrap().text, report.text);
        assert_eq!(uninject(&report.text).unwrap().text, text);
        let by_hand = |text: &str| text.replacen("vllm serve m ", "vllm serve n ", 1);
        let edited = by_hand(&report.text);
        let back = uninject(&edited).unwrap();
        // After a comment with the flag, the model belongs to what was replaced.
        if lines.starts_with('#') {
            let warnings = back.notes[0].warnings.join(" ");
            assert!(warnings.contains("has been changed since"), "{warnings}");
        } else {
            assert_eq!(back.text, by_hand(&text));
            assert_eq!(injected(&edited).unwrap().text, edited);
        }
    }
    let different = script(
        "case $R in\n  a) vllm serve a --port 8000;;\n  b) vllm serve b --port 8001;;\nesac",
    );
    let options = Options {
        port: Some(8000),
        ..Options::default()
    };
    let report = injected_with(&different, &options).unwrap();
    assert!(
        report.text.contains("a --port 8080;;") && report.text.contains("b --port 8001;;"),
        "{}",
        report.text
    );
    let partly = script("if x; then\n  vllm serve a\nelse\n  vllm serve b --port 8000\nfi");
    for port in [None, Some(8000)] {
        let options = Options {
            port,
            ..Options::default()
        };
        let error = injected_with(&partly, &options).unwrap_err().to_string();
        let expected = "some of the commands of its script that start it have --port, and others do not: write --port 8000 into these";
        assert!(error.ends_with(expected), "{error}");
    }
}

#[test]
fn commands_that_do_not_serve_need_no_port() {
    for line in [
        "if [ $RANK -eq 0 ]; then vllm serve m --port 8001; else vllm serve m --headless; fi",
        "if [ $RANK -ne 0 ]; then vllm serve m --headless --port 8001; else vllm serve m --port 8001; fi",
        "vllm serve --help; vllm serve m --port 8001",
        "vllm serve --version && vllm serve m --port 8001",
    ] {
        let text = deployment(&format!("{SHELL}        args: ['{line}']\n"));
        let report = injected(&text).unwrap_or_else(|error| panic!("{line}: {error}"));
        let at = line.rfind("8001").unwrap();
        let moved = format!("{}8080{}", &line[..at], &line[at + 4..]);
        assert!(report.text.contains(&moved), "{}", report.text);
        assert!(report.text.contains("0.0.0.0:8001"), "{}", report.text);
        assert_eq!(injected(&report.text).unwrap().text, report.text);
        assert_eq!(uninject(&report.text).unwrap().text, text);
    }
}

#[test]
fn a_port_that_cannot_be_detected_must_be_declared_or_given() {
    for (container, port) in [
        (
            "        image: x/dynamo-frontend\n        envFrom: [{configMapRef: {name: c}}]\n",
            9000,
        ),
        (
            "        image: vllm/vllm-openai\n        args: [--config, /etc/c.yaml]\n",
            9000,
        ),
        ("        image: vllm/vllm-openai\n", 9000),
    ] {
        let declared = |ports: &str| deployment(&format!("{container}        ports: [{ports}]\n"));
        let text = declared("{name: http, containerPort: 9000}");
        let error = injected(&text).unwrap_err().to_string();
        assert!(
            error.contains("declares 9000: set the port with --port"),
            "{error}"
        );
        let options = Options {
            port: Some(port),
            ..Options::default()
        };
        let report = injected_with(&text, &options).unwrap();
        assert!(
            report.text.contains("value: \"0.0.0.0:9000\""),
            "{}",
            report.text
        );
        assert_eq!(uninject(&report.text).unwrap().text, text);
        injected(&declared("{containerPort: 9000}, {containerPort: 8000}")).unwrap();
    }
    for (container, warned) in [
        (
            "        image: x/dynamo-frontend\n        envFrom: [{configMapRef: {name: c}}]\n",
            "its envFrom",
        ),
        (
            "        image: vllm/vllm-openai\n        args: [--config=c]\n",
            "(--config)",
        ),
    ] {
        let report = injected(&deployment(container)).unwrap();
        let warnings = report.notes[0].warnings.join("\n");
        assert!(
            warnings.contains(warned) && warnings.contains("it assumes 8000"),
            "{warnings}"
        );
    }
}

#[test]
fn the_report_says_where_a_named_service_port_routes() {
    let service = "---\napiVersion: v1\nkind: Service\nmetadata: {name: s}\nspec:\n  selector: {app: a}\n  ports: [{port: 80, targetPort: http}]\n";
    let http = "        ports: [{name: http, containerPort: 9000}]\n";
    for (container, port, expected) in [
        // The port of crossfade gets this name if no port had it.
        (
            String::from(VLLM),
            None,
            "its targetPort http now routes to crossfade",
        ),
        (
            format!("{VLLM}{http}"),
            Some(8000),
            "its targetPort 'http' routes to port 9000 of Deployment/server, not to crossfade, which has port 8000",
        ),
        (
            format!("{VLLM}        ports: [{{name: api, containerPort: 8000}}]\n"),
            None,
            "its targetPort 'http' is not the name of a port of Deployment/server: write 8000",
        ),
    ] {
        let options = Options {
            port,
            ..Options::default()
        };
        let text = format!("{}{service}", deployment(&container));
        let report = injected_with(&text, &options).unwrap();
        let note = report.notes.iter().find(|note| note.object == "Service/s");
        let note = note.unwrap().to_string();
        assert!(note.contains(expected), "{note}");
    }
}

#[test]
fn a_service_that_leads_past_crossfade_is_a_warning() {
    let targets = |target: &str| {
        let service = format!(
            "---\napiVersion: v1\nkind: Service\nmetadata: {{name: s}}\nspec:\n  selector: {{app: a}}\n  ports: [{{port: 80, targetPort: {target}}}]\n"
        );
        let metrics = "        ports: [{name: metrics, containerPort: 9000}]\n";
        let args = "        args: [--port, '8000']\n";
        let text = format!("{}{service}", deployment(&format!("{VLLM}{args}{metrics}")));
        let report = injected(&text).unwrap();
        let note = report
            .notes
            .into_iter()
            .find(|note| note.object == "Service/s");
        note.map_or_else(Vec::new, |note| note.warnings)
    };
    for target in ["frontend", "8080"] {
        let warnings = targets(target);
        let expected = format!(
            "its targetPort {target} routes to the frontend of Deployment/server and bypasses crossfade, so that its requests are not \
             split: write 8000"
        );
        assert_eq!(warnings, [expected]);
    }
    for target in ["8000", "9000", "metrics"] {
        assert!(targets(target).is_empty(), "{target}");
    }
}

#[test]
fn the_commands_of_probes_follow_the_port_and_nothing_else() {
    for (args, command, expected, warned) in [
        (
            "'80'",
            "sh, -c, 'curl -f http://localhost:8000/metrics'",
            None,
            false,
        ),
        (
            "'80'",
            "curl, 'localhost:80/health'",
            Some("curl, 'localhost:8080/health'"),
            false,
        ),
        (
            "'80'",
            "sh, -c, 'curl localhost:8000/m && curl localhost:80/h'",
            Some("sh, -c, 'curl localhost:8000/m && curl localhost:8080/h'"),
            false,
        ),
        (
            "'8000'",
            "nc, -z, localhost, '8000'",
            Some("nc, -z, localhost, '8080'"),
            false,
        ),
        (
            "'8000'",
            "sh, -c, 'nc -z localhost 8000'",
            Some("sh, -c, 'nc -z localhost 8080'"),
            false,
        ),
        ("'8000'", "check, '8000'", None, true),
    ] {
        let text = deployment(&format!(
            "{VLLM}        args: [--port, {args}]\n        livenessProbe: {{exec: {{command: [{command}]}}}}\n"
        ));
        let report = injected(&text).unwrap_or_else(|error| panic!("{command}: {error}"));
        let expected = format!("command: [{}]", expected.unwrap_or(command));
        assert!(
            report.text.contains(&expected),
            "{expected}\n{}",
            report.text
        );
        let warnings = report.notes[0].warnings.join("\n");
        let is_warned = warnings.contains("the command of its livenessProbe contains 8000");
        assert_eq!(is_warned, warned, "{warnings}");
        assert_eq!(uninject(&report.text).unwrap().text, text);
    }
}

#[test]
fn a_port_of_another_protocol_and_a_server_without_an_api_are_unchanged() {
    let text = deployment(&format!(
        "{VLLM}        ports: [{{containerPort: 8000, protocol: UDP}}, {{containerPort: 8000}}, {{containerPort: 8080, protocol: UDP}}]\n"
    ));
    let report = injected(&text).unwrap();
    assert!(
        report
            .text
            .contains("[{containerPort: 8000, protocol: UDP}, {containerPort: 8080, "),
        "{}",
        report.text
    );
    assert_eq!(uninject(&report.text).unwrap().text, text);
    let headless = deployment("        image: x\n        command: [vllm, serve, x, --headless]\n");
    for port in [None, Some(8000)] {
        let options = Options {
            port,
            ..Options::default()
        };
        assert!(matches!(
            injected_with(&headless, &options),
            Err(Error::NoFrontend { .. })
        ));
    }
}

#[test]
fn if_no_frontend_is_found_the_responsible_options_are_named() {
    let text = deployment("        image: x\n        ports: [{containerPort: 1}]\n");
    for (port, container, expected) in [
        (None, None, "set its port with --port"),
        (
            Some(3000),
            None,
            "no container there declares port 3000 (--port)",
        ),
        (
            Some(1),
            Some("web"),
            "no pod there has a container 'web' (--frontend-container)",
        ),
    ] {
        let options = Options {
            port,
            container: container.map(str::to_owned),
            ..Options::default()
        };
        let error = injected_with(&text, &options).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
}

/// Deployments with one container each, as documents of one text.
fn several(containers: &[(&str, &str)]) -> String {
    let of = |(name, container): &(&str, &str)| {
        deployment(container).replace("name: server", &format!("name: {name}"))
    };
    containers.iter().map(of).collect::<Vec<_>>().join("---\n")
}

const UI: &str =
    "        image: open-webui\n        args: [start]\n        ports: [{containerPort: 8080}]\n";
const LLAMA: &str = "        image: llama.cpp\n        args: [--port, \"8080\"]\n        ports: [{containerPort: 8080}]\n";

fn by_port(port: u16) -> Options {
    Options {
        port: Some(port),
        port_arg: Some("--port".into()),
        ..Options::default()
    }
}

#[test]
fn a_port_that_several_objects_declare_does_not_tell_which_one_has_the_frontend() {
    let text = several(&[("ui", UI), ("llama", LLAMA)]);
    let error = injected_with(&text, &by_port(8080)).unwrap_err();
    assert!(matches!(error, Error::Ambiguous { .. }), "{error}");
    let expected = "several objects could be the one with the frontend on port 8080 (--port): Deployment/ui (container 'ui'), Deployment/llama (container 'llama'); name \
        the frontend's container with --frontend-container";
    assert_eq!(error.to_string(), expected);
    let options = Options {
        container: Some("llama".into()),
        ..by_port(8080)
    };
    let report = injected_with(&text, &options).unwrap();
    let (ui, _) = report.text.split_once("---\n").unwrap();
    assert_eq!(ui, several(&[("ui", UI)]));
    // A known server elsewhere is not what the port names.
    let elsewhere = "        image: vllm/vllm-openai\n        args: [--port, \"8000\"]\n";
    let text = several(&[("llama", LLAMA), ("vllm", elsewhere)]);
    let error = injected_with(&text, &by_port(8080))
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("Deployment/llama (container 'llama'), Deployment/vllm (container 'vllm')"),
        "{error}"
    );
}

#[test]
fn the_object_with_the_strongest_reason_is_the_one_with_the_frontend() {
    let vllm = "        image: vllm/vllm-openai\n        args: [--port, \"8080\"]\n";
    let bare = "        image: worker\n        args: [--queue, q]\n";
    for (text, chosen) in [
        (several(&[("ui", UI), ("vllm", vllm)]), "vllm"),
        (several(&[("vllm", vllm), ("ui", UI)]), "vllm"),
        (several(&[("bare", bare), ("llama", LLAMA)]), "llama"),
        (several(&[("ui", UI)]), "ui"),
        (several(&[("bare", bare)]), "bare"),
    ] {
        let report = injected_with(&text, &by_port(8080)).unwrap();
        for note in &report.notes {
            let name = format!("Deployment/{chosen}");
            let is_added = note.summary.contains("is added");
            assert_eq!(is_added, note.object == name, "{note}");
            let other = note.object.trim_start_matches("Deployment/");
            let expected = format!("name its container with --frontend-container {other}");
            assert!(is_added || note.summary.ends_with(&expected), "{note}");
        }
        let again = injected_with(&report.text, &by_port(8080)).unwrap();
        assert_eq!(again.text, report.text);
    }
    let text = several(&[("a", bare), ("b", bare)]);
    let error = injected_with(&text, &by_port(8080)).unwrap_err();
    assert!(matches!(error, Error::Ambiguous { .. }), "{error}");
}

#[test]
fn a_port_in_a_comment_or_of_another_command_of_a_script_does_not_prevent_the_edit() {
    for (script, moved) in [
        (
            "# vllm serve a --port 8000\nvllm serve b --port 8000\n",
            "# vllm serve a --port 8000\nvllm serve b --port 8080\n",
        ),
        (
            "exporter --port 8000 &\nvllm serve b --port 8000\n",
            "exporter --port 8000 &\nvllm serve b --port 8080\n",
        ),
        (
            "# vllm serve a --port 8000 --x\nvllm serve b \\\n  --port 8000 \\\n  --model x\n",
            "# vllm serve a --port 8000 --x\nvllm serve b \\\n  --port 8080 \\\n  --model x\n",
        ),
        (
            "# vllm serve --port=8000\nvllm serve x --port=8000\n",
            "# vllm serve --port=8000\nvllm serve x --port=8080\n",
        ),
    ] {
        let indented = |script: &str| script.replace('\n', "\n          ");
        let text = |script: &str| {
            let script = indented(script);
            format!(
                "{SHELL}        args:\n        - |\n          {}",
                script.trim_end()
            )
        };
        let (before, after) = (deployment(&text(script)), text(moved));
        let report = injected(&before).unwrap_or_else(|error| panic!("{script}{error}"));
        assert!(report.text.contains(&after), "{}", report.text);
        assert_eq!(uninject(&report.text).unwrap().text, before);
        assert_eq!(injected(&report.text).unwrap().text, report.text);
    }
}
