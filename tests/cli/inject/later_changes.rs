//! Changes that users make to a manifest after an injection: they are kept and reported, and never mistaken for those of inject.

use super::*;

#[test]
fn a_container_that_was_named_is_still_the_only_frontend_in_later_injections() {
    let proxy = "        image: litellm\n        args: [--port, \"4000\"]\n";
    let of = |name: &str, container: &str| {
        deployment(container).replace("name: server", &format!("name: {name}"))
    };
    let vllm = of("vllm", "        image: vllm/vllm-openai\n");
    let text = format!("{}---\n{vllm}", of("litellm", proxy));
    let named = |name: &str| Options {
        container: Some(name.into()),
        ..Options::default()
    };
    let by_port = Options {
        port: Some(4000),
        ..named("litellm")
    };
    let once = injected_with(&text, &by_port).unwrap();
    let note = once.notes[1].to_string();
    let expected = "left as it is: it has no container 'litellm' (--frontend-container)";
    assert!(note.ends_with(expected), "{note}");
    assert!(once.text.ends_with(&vllm), "{}", once.text);
    // Without the flag, also with another image.
    let again = injected(&once.text).unwrap();
    assert_eq!(again.text, once.text);
    let note = again.notes[1].to_string();
    let expected = "left as it is: the frontend was chosen with --frontend-container litellm, which is not a container of it; to add \
        crossfade to it as well, name its container";
    assert!(note.ends_with(expected), "{note}");
    let image = Options {
        image: Some("registry.example/crossfade:2".into()),
        ..Options::default()
    };
    let updated = injected_with(&once.text, &image).unwrap().text;
    assert!(
        updated.ends_with(&vllm) && updated.contains("crossfade:2"),
        "{updated}"
    );
    // Another container gets its own sidecar, and the first one keeps it.
    let both = injected_with(&once.text, &named("vllm")).unwrap();
    let (first, second) = both.text.split_once("---\n").unwrap();
    assert!(once.text.starts_with(first), "{first}");
    assert_eq!(second, injected_with(&vllm, &named("vllm")).unwrap().text);
    assert_eq!(injected(&both.text).unwrap().text, both.text);
    assert_eq!(uninject(&both.text).unwrap().text, text);
}

const PROBES: &str = "        livenessProbe: {httpGet: {path: /health, port: 8000}}\n        readinessProbe: {httpGet: {path: /health, port: 8000}}\n";

fn vllm(args: &str) -> String {
    deployment(&format!(
        "        image: vllm/vllm-openai\n        args: {args}\n{PROBES}"
    ))
}

fn replaced(text: &str, from: &str, to: &str) -> String {
    assert_eq!(text.matches(from).count(), 1, "{from}\n{text}");
    text.replace(from, to)
}

/// The text as an earlier version wrote it, which did not record the values.
fn without_values(text: &str) -> String {
    let start = text.find(",\\\"values\\\":").unwrap();
    let end = start + text[start..].find(",\\\"made\\\":").unwrap();
    let text = format!("{}{}", &text[..start], &text[end..]);
    let text = text.replace(",\\\"whole\\\":true", "");
    match text.find(",\\\"after\\\":") {
        Some(start) => {
            let end = start + text[start..].find('}').unwrap();
            format!("{}{}", &text[..start], &text[end..])
        }
        None => text,
    }
}

#[test]
fn the_port_argument_is_found_where_other_arguments_have_moved_it() {
    let drain = Options {
        drain: Some(600),
        ..Options::default()
    };
    for (before, after) in [
        ("[--model, x]", "[--model, x, \"--port\", \"8080\"]"),
        (
            "[--model, x, --port, \"8000\"]",
            "[--model, x, --port, \"8080\"]",
        ),
        (
            "[--model, x, --port=8000, --max-model-len, \"8000\"]",
            "[--model, x, --port=8080, --max-model-len, \"8000\"]",
        ),
    ] {
        let text = vllm(before);
        let report = injected(&text).unwrap();
        let todays = report.text;
        for todays in [todays.clone(), without_values(&todays)] {
            for (from, to) in [
                ("[--model, x", "[--enable-prefix-caching, --model, x"),
                ("[--model, x", "[--model=x"),
                ("[--model, x", "[x"),
                ("[--model, x", "[--max-num-seqs, \"18080\", --model, x"),
            ] {
                let edit = |list: &str| replaced(list, from, to);
                let edited = replaced(&todays, after, &edit(after));
                let back = uninject(&edited).unwrap();
                assert_eq!(back.text, vllm(&edit(before)));
                let note = &back.notes[0];
                assert!(note.warnings.is_empty(), "{note}");
                let again = injected_with(&edited, &drain).unwrap();
                let expected = injected_with(&vllm(&edit(before)), &drain).unwrap();
                assert_eq!(again.text, expected.text);
            }
        }
    }
}

#[test]
fn a_port_argument_that_cannot_be_found_is_kept_and_the_sidecar_is_not_moved_to_it() {
    let text = vllm("[--model, x]");
    let todays = injected(&text).unwrap().text;
    let was = "[--model, x, \"--port\", \"8080\"]";
    for (now, port, reason) in [
        (
            "[--model, x, --port=8080]",
            "8080",
            "does not contain '--port' '8080' as it was added",
        ),
        (
            "[--enforce-eager, --port, \"8080\", --port, \"8080\"]",
            "8080",
            "contains '--port' '8080' 2 times",
        ),
        (
            "[--model, x, --port, \"8081\"]",
            "8081",
            "does not contain '--port' '8080' as it was added",
        ),
    ] {
        let edited = replaced(&todays, was, now);
        let back = uninject(&edited).unwrap();
        assert_eq!(back.text, vllm(now));
        let note = back.notes[0].to_string();
        let moved = format!("the frontend listens on port {port}, but clients use port 8000");
        assert!(note.contains(reason) && note.contains(&moved), "{note}");
        assert!(!note.contains("listens on port 8000 again"), "{note}");
        let error = injected(&edited).unwrap_err().to_string();
        assert!(
            error.contains(&moved) && error.contains("set the port for clients with --port"),
            "{error}"
        );
        let options = Options {
            port: port.parse().ok(),
            ..Options::default()
        };
        let again = injected_with(&edited, &options).unwrap().text;
        let listens = format!("name: CROSSFADE_LISTEN\nvalue: \"0.0.0.0:{port}\"");
        assert!(flat(&again).contains(&listens), "{again}");
    }
}

#[test]
fn an_argument_that_only_looks_like_the_changed_one_is_kept() {
    let todays = injected(&vllm("[--port, \"8000\", --model, x]"))
        .unwrap()
        .text;
    let edited = replaced(
        &todays,
        "[--port, \"8080\", --model, x]",
        "[--max-num-seqs, \"8080\", --model, x]",
    );
    let back = uninject(&edited).unwrap();
    assert_eq!(back.text, vllm("[--max-num-seqs, \"8080\", --model, x]"));
    let warnings = back.notes[0].warnings.join("\n");
    assert!(
        warnings.contains("args/[#1] has been changed since the injection and is kept"),
        "{warnings}"
    );
    // A part of a longer number.
    let text =
        deployment("        image: vllm/vllm-openai\n        ports: [{containerPort: 8000}]\n");
    let todays = injected(&text).unwrap().text;
    let edited = replaced(&todays, "containerPort: 8080", "containerPort: 18080");
    let back = uninject(&edited).unwrap();
    assert!(back.text.contains("containerPort: 18080"), "{}", back.text);
}

#[test]
fn values_that_were_changed_since_are_kept_or_their_loss_is_reported() {
    let dynamo = deployment(&format!(
        "        image: x/dynamo-frontend\n        env: [{{name: A, value: b}}]\n{PROBES}      terminationGracePeriodSeconds:\n"
    ));
    for (text, from, to, kept, warning) in [
        (
            vllm("[]"),
            "terminationGracePeriodSeconds: 900",
            "terminationGracePeriodSeconds: 1200",
            true,
            "spec/template/spec/terminationGracePeriodSeconds has been changed since it was added, and is kept: 1200",
        ),
        (
            dynamo.clone(),
            "terminationGracePeriodSeconds: 900",
            "terminationGracePeriodSeconds: 1200",
            true,
            "spec/template/spec/terminationGracePeriodSeconds has been changed since the injection, so its original value is not restored: it was null before",
        ),
        (
            vllm("[]"),
            "\"terminationGracePeriodSeconds\": 30",
            "\"terminationGracePeriodSeconds\": 90",
            true,
            "livenessProbe/terminationGracePeriodSeconds has been changed since it was added, and is kept: 90",
        ),
        (
            dynamo,
            "SHUTDOWN_TIMEOUT_SECS\",\"value\":\"30\"",
            "SHUTDOWN_TIMEOUT_SECS\",\"value\":\"45\"",
            true,
            "SHUTDOWN_TIMEOUT_SECS] has been changed since it was added, and is kept: {",
        ),
        (
            vllm("[]"),
            "            httpGet:\n              path: /drained\n              port: 9464\n",
            "            sleep:\n              seconds: 45\n",
            true,
            "lifecycle/preStop has been changed since it was added, and is kept: {",
        ),
        (
            vllm("[]"),
            "              path: /drained\n",
            "              path: /drained\n              httpHeaders: []\n",
            true,
            "",
        ),
        (
            vllm("[]"),
            "          containerPort: 8080\n",
            "          containerPort: 8080\n          hostPort: 8080\n",
            true,
            "ports/[frontend] has been changed since it was added, and is kept: {",
        ),
        (
            vllm("[]"),
            "            port: 9464\n          periodSeconds: 2\n",
            "            port: 9464\n          periodSeconds: 2\n          timeoutSeconds: 17\n",
            false,
            "readinessProbe has been changed since the injection, but its original value is restored, because it has no effect without crossfade: it was {",
        ),
        (
            vllm("[]"),
            "            port: 9464\n          periodSeconds: 2\n",
            "            port: 9464\n          periodSeconds: 2\n          timeoutSeconds: 1\n",
            true,
            "",
        ),
        (
            vllm("[]"),
            "path: /drained\n",
            "path: /drained?x\n",
            false,
            "lifecycle/preStop has been changed since the injection, but is removed, because it has no effect without crossfade: it was {",
        ),
        (
            vllm("[]"),
            "            port: 9464\n          periodSeconds: 2\n",
            "            port: 9464\n          periodSeconds: 7\n",
            false,
            "readinessProbe has been changed since the injection, but its original value is restored, because it has no effect without crossfade: it was {",
        ),
        (
            vllm("[]"),
            "          httpGet:\n            path: /readyz\n            port: 9464\n",
            "          tcpSocket: {port: 8080}\n",
            true,
            "readinessProbe has been changed since the injection, so its original value is not restored: it was {\"httpGet\":{\"path\":\"/health\",\"port\":8000}} before",
        ),
    ] {
        let todays = injected(&text).unwrap().text;
        let edited = replaced(&todays, from, to);
        let back = uninject(&edited).unwrap();
        let warnings = back.notes[0].warnings.join("\n");
        if warning.is_empty() {
            // An API server adds members of its own.
            assert_eq!((back.text, &*warnings), (text, ""));
            continue;
        }
        assert!(warnings.contains(warning), "{warnings}");
        assert_eq!(back.text.contains(to.trim_end()), kept, "{}", back.text);
        if !kept {
            assert_eq!(back.text, text);
        }
        if let Ok(again) = injected(&edited) {
            let all: Vec<_> = again.notes.iter().flat_map(|note| &note.warnings).collect();
            assert!(all.iter().any(|note| note.contains(warning)), "{all:?}");
        }
    }
}

#[test]
fn a_renamed_container_is_reported_with_what_remains_in_it() {
    let todays = injected(&vllm("[--port, \"8000\"]")).unwrap().text;
    let edited = replaced(
        &todays,
        "- name: server\n        image",
        "- name: main\n        image",
    );
    let back = uninject(&edited).unwrap();
    let warnings = back.notes[0].warnings.join("\n");
    assert!(
        warnings.contains(
            "spec/template/spec/containers/[server] has been renamed or removed since the injection, so these changes made by inject are not undone: \
             ports/[frontend], \
             livenessProbe/terminationGracePeriodSeconds, lifecycle/preStop, args/[#1], livenessProbe/httpGet/port, readinessProbe"
        ),
        "{warnings}"
    );
    assert!(
        warnings.contains("the frontend listens on port 8080, but clients use port 8000"),
        "{warnings}"
    );
    assert!(
        !back.text.contains("name: crossfade") && back.text.contains("path: /readyz"),
        "{}",
        back.text
    );
}

#[test]
fn an_unknown_port_is_not_reported_as_the_original_one() {
    let todays = injected(&vllm("[--port, \"8000\"]")).unwrap().text;
    let edited = replaced(&todays, "[--port, \"8080\"]", "[--port, --user, \"8080\"]");
    let note = uninject(&edited).unwrap().notes[0].to_string();
    assert!(
        note.contains(
            "cannot determine the port on which the frontend would listen without crossfade: clients use port 8000"
        ),
        "{note}"
    );
    assert!(!note.contains("again"), "{note}");
}

#[test]
fn a_mention_of_the_frontends_port_does_not_move_it_again() {
    let todays = injected(&vllm("[]")).unwrap().text;
    let edited = replaced(
        &todays,
        "      initContainers:\n",
        "      initContainers:\n      - name: exporter\n        image: x\n        restartPolicy: Always\n        args: [--target=http://localhost:8080/metrics]\n",
    );
    assert_eq!(injected(&edited).unwrap().text, edited);
    let options = Options {
        drain: Some(60),
        ..Options::default()
    };
    let again = injected_with(&edited, &options).unwrap().text;
    assert!(again.contains("127.0.0.1:8080"), "{again}");
}

#[test]
fn a_port_named_http_that_is_not_the_frontends_is_reported() {
    let text = deployment(
        "        image: vllm/vllm-openai\n        args: [--port, \"8000\"]\n        ports: [{name: http, containerPort: 8090}]\n",
    );
    let note = injected(&text).unwrap().notes[0].to_string();
    assert!(
        note.contains("its container declares port 8090 as 'http', but it listens on port 8000"),
        "{note}"
    );
}

#[test]
fn a_port_that_was_added_beside_replaced_ones_is_kept() {
    let ports = "        ports: [{name: http, containerPort: 8000, hostPort: 80}]\n";
    let text = deployment(&format!("        image: vllm/vllm-openai\n{ports}"));
    let todays = injected(&text).unwrap().text;
    let edited = replaced(
        &todays,
        "          containerPort: 8080\n",
        "          containerPort: 8080\n          protocol: TCP\n        - name: metrics\n          containerPort: 9000\n",
    );
    let back = uninject(&edited).unwrap();
    let note = &back.notes[0];
    assert!(note.warnings.is_empty(), "{note}");
    let read = &manifests(&back.text).unwrap()[0].objects[0];
    assert_eq!(
        read["spec"]["template"]["spec"]["containers"][0]["ports"],
        serde_json::json!([
            {"name": "http", "containerPort": 8000, "hostPort": 80},
            {"name": "metrics", "containerPort": 9000},
        ])
    );
}

#[test]
fn additions_after_those_of_crossfade_do_not_change_the_pods_again() {
    let text = deployment(
        "        image: vllm/vllm-openai\n        args:\n        - --model=x\n      initContainers:\n      - name: first\n        image: x\n",
    );
    let todays = injected(&text).unwrap().text;
    for (from, to) in [
        (
            "        - \"8080\"\n",
            "        - \"8080\"\n        - --enforce-eager\n",
        ),
        (
            "        - --model=x\n",
            "        - --model=x\n        - --enforce-eager\n",
        ),
        (
            "      - name: first\n",
            "      - name: other\n        image: y\n      - name: first\n",
        ),
        (
            "      - name: crossfade\n        emptyDir:\n          sizeLimit: \"16Mi\"\n",
            "      - name: crossfade\n        emptyDir:\n          sizeLimit: \"16Mi\"\n      - name: other\n        emptyDir: {}\n",
        ),
    ] {
        let edited = replaced(&todays, from, to);
        let again = injected(&edited).unwrap();
        assert_eq!(again.text, edited);
        assert!(
            again.notes[0].summary.starts_with("left as it is"),
            "{}",
            again.notes[0]
        );
        let back = uninject(&edited).unwrap();
        assert!(back.notes[0].warnings.is_empty(), "{}", back.notes[0]);
        assert!(
            !back.text.contains("crossfade") && !back.text.contains("8080"),
            "{}",
            back.text
        );
        // A real change takes all of it into account.
        let options = Options {
            drain: Some(60),
            ..Options::default()
        };
        let changed = injected_with(&edited, &options).unwrap().text;
        assert_eq!(uninject(&changed).unwrap().text, back.text);
    }
}

#[test]
fn a_record_without_values_alone_does_not_change_the_pods() {
    let todays = injected(&vllm("[--model, x]")).unwrap().text;
    let earlier = without_values(&todays);
    assert_ne!(earlier, todays);
    assert_eq!(injected(&earlier).unwrap().text, earlier);
    assert_eq!(uninject(&earlier).unwrap().text, vllm("[--model, x]"));
}

#[test]
fn a_comment_with_the_new_port_is_no_change_of_the_port() {
    let script = |lines: &str| {
        deployment(&format!(
            "        image: vllm/vllm-openai\n        command: [bash, -c]\n        args:\n        - |\n{lines}"
        ))
    };
    let text = script("          exec vllm serve m --port 8000\n");
    let once = injected(&text).unwrap().text;
    let comment = "          # moved: --port 8080\n";
    let commented = replaced(
        &once,
        "          exec vllm",
        &format!("{comment}          exec vllm"),
    );
    let image = Options {
        image: Some("registry.example/crossfade:2".into()),
        ..Options::default()
    };
    let updated = injected_with(&commented, &image).unwrap().text;
    let moved = format!("{comment}          exec vllm serve m --port 8080\n");
    assert!(updated.contains(&moved), "{updated}");
    for injected in [commented, updated] {
        let back = uninject(&injected).unwrap();
        let expected = script(&format!(
            "{comment}          exec vllm serve m --port 8000\n"
        ));
        assert_eq!(back.text, expected);
        assert!(
            back.notes[0].warnings.is_empty(),
            "{:?}",
            back.notes[0].warnings
        );
    }
    // Without comments, it may be a change.
    let echoed = replaced(
        &once,
        "          exec vllm",
        "          echo --port 8080; exec vllm",
    );
    let back = uninject(&echoed).unwrap();
    let warnings = back.notes[0].warnings.join("\n");
    assert!(
        warnings.contains("has been changed since the injection"),
        "{warnings}"
    );
}
