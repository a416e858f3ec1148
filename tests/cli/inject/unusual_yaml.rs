//! Unusual YAML is either edited correctly or rejected with its position, without output.

use super::*;

const SERVER: &str = "        image: vllm/vllm-openai\n";

/// Asserts that `text` is injected and can be uninjected, or is rejected with this message.
fn either(text: &str, output: Option<&str>) {
    match (injected(text), output) {
        (Ok(report), None) => {
            assert_eq!(uninject(&report.text).unwrap().text, text);
            assert_eq!(injected(&report.text).unwrap().text, report.text, "{text}");
        }
        (Err(error), Some(output)) => {
            assert!(error.to_string().contains(output), "{text}\n{error}")
        }
        (Ok(report), Some(output)) => panic!("not refused with {output}:\n{}", report.text),
        (Err(error), None) => panic!("{text}\n{error}"),
    }
}

#[test]
fn anchors_and_aliases_across_the_edited_part_are_rejected_and_others_are_not() {
    let with = |more: &str| deployment(&format!("{SERVER}{more}"));
    // Not affected by any edit.
    either(
        &with(
            "        resources: &r {limits: {cpu: 1}}\n      - {name: b, image: x, resources: *r}\n",
        ),
        None,
    );
    // An alias whose whole value is replaced is restored as an alias.
    either(
        &with(
            "        startupProbe: &p {httpGet: {path: /, port: 9000}}\n        readinessProbe: *p\n",
        ),
        None,
    );
    // Edited in one place and used in another.
    for more in [
        "        livenessProbe: &p {httpGet: {path: /health, port: 8000}}\n        startupProbe: *p\n",
        "        command: [python3, -m, dynamo.frontend]\n        env: &e\n        - {name: A, value: b}\n      - {name: b, image: x, env: *e}\n",
        "        ports: &p\n        - containerPort: 8000\n      - name: b\n        image: x\n        ports: *p\n",
    ] {
        let error = injected(&with(more)).unwrap_err().to_string();
        assert!(
            ["alias", "anchor", "another container"]
                .iter()
                .any(|word| error.contains(word)),
            "{more}\n{error}"
        );
    }
    let merged = with("        <<: {env: []}\n");
    either(&merged, Some("merge key"));
    // The server is known only by what the merge key adds.
    let image = "metadata: {name: server, annotations: &base {image: vllm/vllm-openai}}";
    for merge in ["*base", "[*base, {tty: true}]"] {
        let text = deployment(&format!("        <<: {merge}\n"));
        let text = text.replacen("metadata: {name: server}", image, 1);
        assert!(text.contains("&base"), "{text}");
        either(&text, Some("merge key"));
    }
    let shared = "apiVersion: v1\nkind: List\nitems:\n- apiVersion: apps/v1\n  kind: Deployment\n  metadata: {name: a}\n  spec: &spec\n    selector: {matchLabels: {app: a}}\n    template:\n      metadata: {labels: {app: a}}\n      spec:\n        containers:\n        - {name: a, image: vllm/vllm-openai}\n- apiVersion: apps/v1\n  kind: Deployment\n  metadata: {name: b}\n  spec: *spec\n";
    either(shared, Some("alias"));
    either(
        &shared.replace(
            "kind: Deployment\n  metadata: {name: b}",
            "kind: Other\n  metadata: {name: b}",
        ),
        Some("anchor"),
    );
}

#[test]
fn the_tag_of_a_value_sets_its_type() {
    let text = deployment(&format!(
        "{SERVER}        args: [--port, !!str 8000]\n        ports: [{{containerPort: !!int \"8000\"}}]\n"
    ));
    either(&text, None);
    assert!(injected(&text).unwrap().text.contains("!!int \"8080\""));
    let text = deployment(&format!(
        "{SERVER}        ports: [{{containerPort: !!str 8000}}]\n"
    ));
    either(
        &text,
        Some("containerPort must be a decimal number, not \"8000\""),
    );
}

#[test]
fn an_anchor_that_prevents_an_edit_is_reported_with_its_line() {
    for (more, line) in [
        (
            "        args: &a [--port, \"8000\"]\n      - {name: b, image: x, args: *a}\n",
            12,
        ),
        (
            "        command: [python3, -m, dynamo.frontend]\n        env: &e\n        - {name: A, value: b}\n      - {name: b, image: x, env: *e}\n",
            13,
        ),
    ] {
        let error = injected(&deployment(&format!("{SERVER}{more}"))).unwrap_err();
        let error = error.to_string();
        assert!(
            error.contains(&format!("Deployment/server, line {line}: a")),
            "{error}"
        );
    }
}

#[test]
fn containers_that_are_not_a_list_are_an_error() {
    let text = deployment(SERVER);
    let map = text.replace("- name: server\n  ", "  server:\n  ");
    for (text, path) in [
        (map, "spec/template/spec/containers"),
        (
            text.replace("containers:", "initContainers: {}\n      containers:"),
            "spec/template/spec/initContainers",
        ),
    ] {
        let error = injected(&text).unwrap_err().to_string();
        assert!(
            error.starts_with("document 1, Deployment/server, line ")
                && error.ends_with(&format!("{path} must be a list")),
            "{text}\n{error}"
        );
    }
}

/// A cluster returns values without anchors and aliases.
#[test]
fn an_alias_is_restored_as_its_value_where_its_anchor_is_gone() {
    let probe = "&p {httpGet: {path: /health, port: 8000}, periodSeconds: 7}";
    for probes in [
        format!("        livenessProbe: {probe}\n        readinessProbe: *p\n"),
        format!(
            "        lifecycle: {{}}\n        startupProbe: {probe}\n        readinessProbe: *p\n"
        ),
        format!(
            "        startupProbe: {}\n        readinessProbe: *p\n",
            probe.replace("8000", "9000")
        ),
    ] {
        let text = deployment(&format!(
            "{SERVER}        args: [--port, \"8000\"]\n{probes}"
        ));
        let report = injected(&text).unwrap();
        assert_eq!(uninject(&report.text).unwrap().text, text);
        let read = |text: &str| serde_saphyr::from_str::<serde_json::Value>(text).unwrap();
        let value = read(&report.text);
        for returned in [
            serde_saphyr::to_string(&value).unwrap(),
            serde_json::to_string(&value).unwrap(),
        ] {
            let restored = uninject(&returned).unwrap().text;
            assert_eq!(read(&restored), read(&text), "{restored}");
            assert_eq!(read(&injected(&returned).unwrap().text), value);
        }
    }
}

#[test]
fn a_text_with_an_escape_that_cannot_be_edited_is_refused_with_a_way_out() {
    let args = |text: &str| {
        deployment(&format!(
            "        image: x\n        command: [sh, -c]\n        args: [{text}]\n"
        ))
    };
    for (text, shown) in [
        (r#""vllm serve m --port \\\n 8000""#, r"'--port \\n 8000'"),
        (r#""vllm serve m --port \x38000""#, r"'--port 8000'"),
    ] {
        let error = injected(&args(text)).unwrap_err().to_string();
        let way = "because the text here is written with escapes: write it as a block (|), or in single quotes; from a cluster, read it \
            with kubectl get -o yaml";
        assert!(error.contains(shown) && error.ends_with(way), "{error}");
    }
    injected(&args("'vllm serve m --port \"8000\"'")).unwrap();
    injected(&args(r#""vllm serve \"m\" --port 8000""#)).unwrap();
}

#[test]
fn a_port_beside_an_escape_is_edited_and_restored() {
    for (text, moved) in [
        (
            r#""vllm serve m --port \"8000\"""#,
            r#""vllm serve m --port \"8080\"""#,
        ),
        (
            r#""vllm serve m\t--port\t8000""#,
            r#""vllm serve m\t--port\t8080""#,
        ),
        (
            r#""x \"$A\"; vllm serve \"m\" --x \"$A\"""#,
            r#""x \"$A\"; vllm serve --port 8080 \"m\" --x \"$A\"""#,
        ),
        (
            "'vllm serve m --port ''8000'''",
            "'vllm serve m --port ''8080'''",
        ),
    ] {
        let of = |text: &str| {
            deployment(&format!(
                "        image: x\n        command: [sh, -c]\n        args: [{text}]\n"
            ))
        };
        let report = injected(&of(text)).unwrap_or_else(|error| panic!("{text}: {error}"));
        assert!(
            report.text.contains(&format!("args: [{moved}]\n")),
            "{}",
            report.text
        );
        assert_eq!(uninject(&report.text).unwrap().text, of(text));
    }
}

#[test]
fn a_line_that_is_folded_anywhere_is_edited_and_restored() {
    let args = |text: &str| {
        deployment(&format!(
            "        image: x\n        command: [sh, -c]\n        args:\n        - {text}\n"
        ))
    };
    let read = |text: &str| {
        let documents = manifests(text).unwrap();
        let container = &documents[0].objects[0]["spec"]["template"]["spec"]["containers"][0];
        container["args"].clone()
    };
    for command in [
        "exec vllm serve org/model --port 8000 --trust-remote-code",
        "exec vllm serve org/model --trust-remote-code",
        "if x; then vllm serve a --port 8000; else vllm serve a --port 8000 --y; fi",
        "vllm serve m --headless || exec vllm serve m",
        "echo --port 8000; vllm serve --port 8000 $EXTRA",
    ] {
        let expected = read(&injected(&args(command)).unwrap().text);
        for (at, _) in command.match_indices(' ') {
            let (head, tail) = (&command[..at], &command[at + 1..]);
            for text in [
                format!("{head}\n          {tail}"),
                format!("'{head}\n          {tail}'"),
                format!("\"{head}\n          {tail}\""),
                format!("\"{head}\\\n          \\ {tail}\""),
                format!(">-\n          {head}\n          {tail}"),
            ] {
                let text = args(&text);
                let report = injected(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
                assert_eq!(read(&report.text), expected, "{text}");
                assert_eq!(injected(&report.text).unwrap().text, report.text);
                assert_eq!(uninject(&report.text).unwrap().text, text);
            }
        }
    }
}

#[test]
fn a_probe_with_the_port_on_both_sides_of_a_fold_is_edited_and_restored() {
    let probe = |text: &str| {
        deployment(&format!(
            "{SERVER}        livenessProbe:\n          exec:\n            command:\n            - sh\n            - -c\n            - {text}\n"
        ))
    };
    let command = "curl -sf http://localhost:8000/health >/dev/null && curl -sf http://localhost:8000/v1/models | grep x";
    for (at, _) in command.match_indices(' ') {
        let (head, tail) = (&command[..at], &command[at + 1..]);
        for written in [
            format!("{head}\n              {tail}"),
            format!(">-\n              {head}\n              {tail}"),
        ] {
            let text = probe(&written);
            let report = injected(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
            let changed = probe(&written.replace("8000", "8080"));
            let changed = changed.lines().find(|line| line.contains("curl")).unwrap();
            assert!(report.text.contains(changed), "{}", report.text);
            assert_eq!(uninject(&report.text).unwrap().text, text);
        }
    }
}

#[test]
fn rare_styles_are_edited_as_well() {
    for text in [
        // Deeply indented lists, block scalars of each kind in each position, blank lines, and comments everywhere.
        deployment(&format!(
            "{SERVER}        args:\n            - --model\n            - x # the model\n        # why\n\n      volumes:\n           - {{name: v, emptyDir: {{}}}} # v\n\n\n"
        )),
        deployment(&format!(
            "{SERVER}        args:\n        - |\n          x\n\n        - >+\n          y\n\n      # c\n"
        )),
        deployment(&format!("{SERVER}        args:\n        - |-\n          x")),
        deployment(&format!(
            "{SERVER}        args:\n        -   \"a\n            b\"\n        -\n          plain\n          text\n"
        )),
        deployment(&format!(
            "{SERVER}        \"env\" : [ ]\n        'ports': [ {{ \"containerPort\" : 8000 , }} , ]\n"
        )),
        deployment(&format!(
            "{SERVER}        env: # none\n        ports: ~ # none\n      volumes: null\n      initContainers: []\n"
        )),
        deployment(&format!(
            "{SERVER}        env: !!seq\n        - {{name: !!str A, value: !!str 1}}\n"
        )),
        deployment(&format!(
            "{SERVER}        ? ports\n        : - containerPort: 8000\n"
        )),
        deployment(&format!(
            "{SERVER}        readinessProbe:\t{{httpGet:\t{{port: 8000}}}}\t# tab\n"
        )),
        deployment(&format!(
            "{SERVER}        readinessProbe:\n\n          # c\n          httpGet: # d\n            port: 8000 # e\n"
        )),
        format!("--- # first\n{}...\n# end\n---\n---\n", deployment(SERVER)),
        format!("%YAML 1.2\n---\n{}", deployment(SERVER)),
        format!(
            "# only comments\n\n---\n{}---\n# more\n",
            deployment(SERVER)
        ),
        format!(
            "--- {{apiVersion: v1, kind: ConfigMap}}\n---\n{}",
            deployment(SERVER)
        ),
        deployment(SERVER).replace('\n', "\r\n"),
        format!("\u{feff}{}", deployment(SERVER)),
        deployment(SERVER).trim_end().to_owned(),
        deployment(SERVER)
            .replace('\n', "\r\n")
            .trim_end()
            .to_owned(),
        // In a list, with the dash in the column of the key.
        "kind: List\napiVersion: v1\nitems:\n    -   apiVersion: apps/v1\n        kind: Deployment\n        metadata:\n            name: a\n        spec:\n            selector: {}\n            template:\n                metadata:\n                    labels:\n                        app: a\n                spec:\n                    containers:\n                        -   image: vllm/vllm-openai\n                            name: a\n".to_owned(),
    ] {
        either(&text, None);
    }
}

#[test]
fn ports_in_another_notation_than_the_decimal_one_are_rejected() {
    for port in [
        "0x1F40", "0o17500", "017500", "8e3", "8_000", "8000.0", "'8000'", "http",
    ] {
        let shown = port.trim_matches('\'');
        for key in ["containerPort", "hostPort"] {
            let port = match key {
                "containerPort" => format!("{key}: {port}"),
                _ => format!("containerPort: 8000, {key}: {port}"),
            };
            let expected = format!("{key} must be a decimal number, not \"{shown}\"");
            let text = deployment(&format!("{SERVER}        ports:\n        - {{{port}}}\n"));
            either(&text, Some(&expected));
            either(&text, Some("Deployment/server, line 13: "));
            // In another container, it may be the port that crossfade would take.
            let other = format!("      - {{name: b, image: x, ports: [{{{port}}}]}}\n");
            either(&deployment(&format!("{SERVER}{other}")), Some(&expected));
        }
        let probe =
            format!("        livenessProbe: {{httpGet: {{path: /health, port: {port}}}}}\n");
        let text = deployment(&format!("{SERVER}{probe}"));
        let is_number = !["http", "'8000'"].contains(&port);
        let expected = format!("must be a name or a decimal number, not '{shown}'");
        either(&text, is_number.then_some(expected.as_str()));
    }
    let names = ["8080-tcp", "0-http", "1x"];
    for name in names {
        let text = format!(
            "{SERVER}        ports: [{{name: {name}, containerPort: 9000}}]\n        args: [--port, '8000']\n        livenessProbe: {{tcpSocket: {{port: {name}}}}}\n"
        );
        either(&deployment(&text), None);
    }
}

#[test]
fn invalid_yaml_is_rejected_with_document_and_line() {
    let good = deployment(SERVER);
    for (text, expected) in [
        (format!("{good}---\na: [1\n"), "document 2, line 1"),
        (format!("a: 1\n---\n{good}\tx: 1\n"), "document 2, line "),
        (
            good.replace("      containers:", "\tcontainers:"),
            "document 1, line 9: not valid YAML",
        ),
        (
            good.replace("      containers:", "\tcontainers:"),
            "is indented with a tab, but YAML allows only spaces there",
        ),
        (
            format!("{good}\targs: [x]\n"),
            "the next line is indented with a tab, but YAML allows only spaces there",
        ),
        (
            format!("{good}        image: again\n"),
            "document 1, Deployment/server, line 12: the key 'image' is set twice",
        ),
        (
            good.replace("      containers:\n", "      containers: &c\n") + "        env: *c\n",
            "alias",
        ),
        (
            good.replace(
                "selector: {matchLabels: {app: a}}",
                "replicas: {{ .Values.n }}",
            ),
            "line 5: a key must be plain text; a template must be rendered first, for example by helm template",
        ),
        (
            format!("{good}{{{{- if .Values.x }}}}\n"),
            "a template must be rendered first",
        ),
        ("a: &a [*a]".into(), "document 1, line 1: an alias"),
        (String::new(), "the input is empty"),
        ("# nothing\n---\n".into(), "the input is empty"),
        ("just text".into(), "no frontend was found"),
        ("[1, 2]".into(), "no frontend was found"),
        (
            "{\"kind\": \"Deployment\", \"apiVersion\": \"apps/v1\"}".into(),
            "no frontend was found in Deployment/?",
        ),
        // A stream of JSON objects, as from `jq -c`.
        ("{} {}".into(), "no frontend was found"),
        ("[".repeat(100_000), "document 1, line 1"),
        ("- ".repeat(100_000), "document 1, line 1"),
        ("? ".repeat(100_000), "document 1, line 1"),
    ] {
        let error = injected(&text).unwrap_err().to_string();
        let shown: String = text.chars().take(300).collect();
        assert!(error.contains(expected), "{shown}\n{error}");
    }
    let bomb = (1..40).fold("a0: &a0 [x, x]\n".to_owned(), |text, n| {
        format!("{text}a{n}: &a{n} [*a{0}, *a{0}]\n", n - 1)
    });
    either(&bomb, Some("aliases expand to too many values"));
}

#[test]
fn fields_of_the_wrong_type_are_rejected() {
    for container in [
        "        image: vllm/vllm-openai\n        ports: 8000\n",
        "        image: vllm/vllm-openai\n        env: {A: b}\n        args: text\n",
        "        image: vllm/vllm-openai\n        lifecycle: [1]\n",
        "        image: vllm/vllm-openai\n      volumes: {a: 1}\n",
        "        image: vllm/vllm-openai\n      initContainers: text\n",
        "        image: vllm/vllm-openai\n      terminationGracePeriodSeconds: soon\n",
        "        image: [vllm]\n        command: {a: 1}\n",
        "        image: vllm/vllm-openai\n        command: vllm serve m --port 8000\n",
        "        image: vllm/vllm-openai\n        args: --model m\n",
    ] {
        let error = injected(&deployment(container)).unwrap_err().to_string();
        assert!(error.contains("Deployment/server"), "{container}\n{error}");
        let is_grace = container.contains("soon");
        let is_named = error.contains("terminationGracePeriodSeconds must be a number");
        assert_eq!(is_grace, is_named, "{error}");
        if container.contains(" m") {
            assert!(
                error.contains("line 12: ") && error.ends_with("must be a list"),
                "{error}"
            );
        }
    }
}

#[test]
fn an_invalid_record_is_rejected() {
    let text = injected(&deployment(SERVER)).unwrap().text;
    let broken = text.replace("\\\"version\\\"", "version");
    assert_ne!(broken, text);
    let error = uninject(&broken).unwrap_err().to_string();
    assert!(
        error.contains("Deployment/server") && error.contains("crossfade/injected cannot be read"),
        "{error}"
    );
    assert!(injected(&broken).is_err());
}

#[test]
fn a_text_of_ten_megabytes_is_edited_in_time() {
    let filler = "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: c}\ndata:\n  text: |\n    some lines of text, and more of it\n";
    let long = format!(
        "{filler}{}",
        "    a line of a long text, of which there are many\n".repeat(200_000)
    );
    let text = format!("{}{long}---\n{}", filler.repeat(2_000), deployment(SERVER));
    assert!(text.len() > 10_000_000);
    let report = injected(&text).unwrap();
    assert!(uninject(&report.text).unwrap().text == text);
    assert!(matches!(
        injected(&"#".repeat((16 << 20) + 1)),
        Err(Error::TooLarge)
    ));
}
