//! Arguments that a script or Kubernetes replaces variables with.

use super::*;

fn script(script: &str, rest: &str) -> String {
    let script = script.replace('\n', "\n          ");
    deployment(&format!(
        "        image: vllm/vllm-openai\n        command:\n        - bash\n        - -c\n        - |\n          {script}\n{rest}"
    ))
}

#[test]
fn a_port_in_a_variable_of_the_manifest_is_changed_there() {
    let env = "        env: [{name: EXTRA, value: \"-x --port 8001\"}]\n";
    for (text, from, to, port) in [
        (
            script("ARGS=\"--model x --port 8001\"\nexec vllm serve $ARGS", ""),
            "ARGS=\"--model x --port 8001\"",
            "ARGS=\"--model x --port 8080\"",
            8001,
        ),
        (
            script(
                "args=(\n  --model x\n  --port 8001\n)\nvllm serve \"${args[@]}\"",
                "",
            ),
            "--port 8001\n",
            "--port 8080\n",
            8001,
        ),
        (
            script(
                "cmd=(vllm serve x\n  --y\n)\ncmd+=(--port 8001)\nexec \"${cmd[@]}\"",
                "",
            ),
            "cmd+=(--port 8001)",
            "cmd+=(--port 8080)",
            8001,
        ),
        (
            script(
                "cmd=(vllm serve x --port 8000)\nexec \"${cmd[@]}\" --port 8001",
                "",
            ),
            "\"${cmd[@]}\" --port 8001",
            "\"${cmd[@]}\" --port 8080",
            8001,
        ),
        (
            script("vllm serve x --port 8000 $EXTRA", env),
            "-x --port 8001",
            "-x --port 8080",
            8001,
        ),
        (
            script("EXTRA=\"$EXTRA --y\"\nvllm serve x $EXTRA", env),
            "-x --port 8001",
            "-x --port 8080",
            8001,
        ),
        (
            script("vllm serve x $EXTRA --port 8000", env),
            "$EXTRA --port 8000",
            "$EXTRA --port 8080",
            8000,
        ),
        (
            deployment(
                "        image: vllm/vllm-openai\n        args: [--model, x, $(EXTRA)]\n        env: [{name: EXTRA, value: --port=8001}]\n",
            ),
            "value: --port=8001",
            "value: --port=8080",
            8001,
        ),
    ] {
        let report = injected(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
        assert!(
            text.contains(from) && !report.text.contains(from),
            "{}",
            report.text
        );
        assert!(report.text.contains(to), "{}", report.text);
        let listens = format!("name: CROSSFADE_LISTEN\nvalue: \"0.0.0.0:{port}\"");
        assert!(flat(&report.text).contains(&listens), "{}", report.text);
        assert_eq!(injected(&report.text).unwrap().text, report.text);
        assert_eq!(uninject(&report.text).unwrap().text, text);
    }
}

#[test]
fn a_port_is_added_behind_arguments_that_are_not_in_the_manifest_and_a_warning_names_them() {
    let secret = "        env: [{name: EXTRA, valueFrom: {secretKeyRef: {name: s, key: k}}}]\n";
    let declared = "        ports: [{containerPort: 8000}]\n";
    for (text, new, unknown) in [
        (
            script("exec vllm serve x $EXTRA", secret),
            "exec vllm serve x $EXTRA --port 8080\n",
            Some("$EXTRA"),
        ),
        (
            script("vllm serve x --trust-remote-code $EXTRA", secret),
            "vllm serve x --trust-remote-code $EXTRA --port 8080\n",
            Some("$EXTRA"),
        ),
        (
            script("vllm serve \\\n  x $(cat args) \\\n  --y\nsleep 1", ""),
            "  --y --port 8080\n",
            Some("$(cat args)"),
        ),
        (
            script("exec vllm serve x $EXTRA", &format!("{secret}{declared}")),
            "exec vllm serve x $EXTRA --port 8080\n",
            None,
        ),
        (
            script("exec vllm serve $MODEL", secret),
            "vllm serve --port 8080 $MODEL\n",
            None,
        ),
        (
            deployment(&format!(
                "        image: vllm/vllm-openai\n        args: [$(EXTRA)]\n{secret}"
            )),
            "args: [$(EXTRA), \"--port\", \"8080\"]",
            Some("$(EXTRA)"),
        ),
    ] {
        let report = injected(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
        assert!(report.text.contains(new), "{}", report.text);
        let warnings = report.notes[0].warnings.join("\n");
        match unknown {
            Some(unknown) => {
                let expected = format!(
                    "its port may be set in {unknown} of its command line, which inject does not read"
                );
                assert!(warnings.contains(&expected), "{warnings}");
            }
            None => assert_eq!(warnings, ""),
        }
        assert_eq!(injected(&report.text).unwrap().text, report.text);
        assert_eq!(uninject(&report.text).unwrap().text, text);
        let options = Options {
            port: Some(8001),
            ..Options::default()
        };
        if let Ok(given) = injected_with(&text, &options) {
            assert!(!given.text.contains("0.0.0.0:8000"), "{}", given.text);
            assert!(given.notes[0].warnings.is_empty(), "{}", given.notes[0]);
        }
    }
}

#[test]
fn the_default_of_a_variable_is_changed_if_nothing_in_the_script_sets_it() {
    for before in [
        "",
        "source /venv/bin/activate && ",
        "find . -name x; ",
        "export PORT; echo read; ",
    ] {
        let line = format!("{before}vllm serve . --port ${{PORT:-8001}}");
        let report = injected(&script(&line, "")).unwrap_or_else(|error| panic!("{line}: {error}"));
        let moved = line.replace("8001", "8080");
        assert!(report.text.contains(&moved), "{}", report.text);
    }
}

#[test]
fn a_port_that_cannot_be_read_is_rejected_with_the_reason() {
    let env = "        env: [{name: PORT, value: \"8001\"}]\n";
    for (text, reason) in [
        (
            script("vllm serve x --port $((8000 + RANK))", ""),
            "its port is computed ($((8000 + RANK))): write it as a number",
        ),
        (
            script("vllm serve x --port $(cat /etc/port)", ""),
            "its port is computed ($(cat /etc/port)): write it as a number",
        ),
        (
            script(
                "A='--port 1'\nif x; then A='--port 2'; fi\nvllm serve x $A",
                "",
            ),
            "its script sets --port several times in the variable A",
        ),
        (
            script("PORT=8001; vllm serve x --port ${PORT:-8000}", ""),
            "its port is in the variable PORT, which its script sets: write it as a number where the server is started",
        ),
        (
            script("unset PORT\nvllm serve x --port ${PORT:-8000}", ""),
            "its port is in the variable PORT, which its script sets: write it",
        ),
        (
            script(": ${PORT:=8001}; vllm serve x --port ${PORT:-8000}", ""),
            "its port is in the variable PORT, which its script sets: write it",
        ),
        (
            script("bash -c \"PORT=1; vllm serve x --port ${PORT:-8000}\"", ""),
            "its port is in the variable PORT, which its script sets: write it",
        ),
        (
            script(
                "while read PORT; do :; done </p; vllm serve x --port $PORT",
                env,
            ),
            "its port is in the variable PORT, which its script sets: remove that from the script, so that its value in the \
             container's env counts",
        ),
        (
            script("PORT=8001; vllm serve x --port $PORT", ""),
            "its port is in the variable PORT, which its script sets: set it in the container's env instead",
        ),
        (
            script(
                "if true; then . /env.sh; fi; vllm serve x --port ${PORT:-8000}",
                "",
            ),
            "its port is in the variable PORT, which a file that its script reads may set: write it as a number where the \
             server is started",
        ),
        (
            script(
                "set -a; source /etc/vllm.env; vllm serve x --port ${PORT:-8000}",
                "",
            ),
            "which a file that its script reads may set",
        ),
        (
            script(". /env.sh && vllm serve x --port $PORT", ""),
            "which a file that its script reads may set: write it as a number where the server is started",
        ),
        (
            script("vllm serve x --port 0", ""),
            "it listens on port 0, which is any free port: set a fixed one",
        ),
    ] {
        let error = injected(&text).unwrap_err().to_string();
        assert!(error.contains(reason), "{error}");
    }
}

#[test]
fn every_way_in_which_a_script_sets_a_variable_is_recognized() {
    for before in [
        "export \"PORT=8001\"",
        "declare -x \"PORT=8001\"",
        "(( PORT = 8001 ))",
        "((PORT=8001))",
        "PORT+=1",
        "let \"PORT=8001\"",
        "let PORT++",
        "((PORT++))",
        "((--PORT))",
        ": $((PORT=8001))",
        ": $(( PORT += 1 ))",
        "read -r A \"PORT\" < f",
        "printf -v 'PORT' %s 8001",
        "declare -n R=PORT; R=8001",
    ] {
        let line = format!("{before}; vllm serve x --port ${{PORT:-8000}}");
        let error = injected(&script(&line, "")).unwrap_err().to_string();
        let expected = "its port is in the variable PORT, which its script sets: write it";
        assert!(error.contains(expected), "{line}: {error}");
    }
}

#[test]
fn a_variable_that_something_unknown_may_set_is_reported() {
    let env = "        env: [{name: PORT, value: \"8000\"}]\n";
    let file = "a file that its script reads";
    let computed = "a command with computed arguments (eval, export, env)";
    for (before, rest, by) in [
        (". ./env.sh", env, Some(file)),
        ("set -a; source /etc/vllm.env", env, Some(file)),
        ("eval \"$(cat f)\"", env, Some(computed)),
        ("eval \"$(cat f)\"", "", Some(computed)),
        ("export $(grep -v ^x .env | xargs)", "", Some(computed)),
        ("export `cat .env`", "", Some(computed)),
        (
            "while read -r l; do export \"$l\"; done < .env",
            env,
            Some(computed),
        ),
        (
            "for l in $(cat .env); do export $l; done",
            "",
            Some(computed),
        ),
        ("E=$(cat .env); export $E", "", Some(computed)),
        ("E=$(cat .env); X=1 eval \"$E\"", "", Some(computed)),
        ("P=PORT; declare \"$P=8001\"", "", Some(computed)),
        ("P=PORT; printf -v $P 8001", "", Some(computed)),
        ("P=PORT; read -r A \"$P\" < f", "", Some(computed)),
        ("until . ./env.sh; do :; done", env, Some(file)),
        ("time . ./env.sh", env, Some(file)),
        ("X=1 . ./env.sh", env, Some(file)),
        ("source .venv/bin/activate", env, None),
        ("export PATH=\"$PATH:/x\" \"B=$C\"", "", None),
        ("IFS=: read -r A B <<<\"$C\"", "", None),
        ("for a in $(cat f); do echo $a; done", "", None),
        ("printf '%s' \"$A\"; env A=$B date; ls .", "", None),
        (
            "if ((PORT == 8000)) && [ $((PORT+1)) -lt 9 ]; then :; fi",
            "",
            None,
        ),
        ("export A=$(hostname)", "", None),
        ("echo $(cat f)", "", None),
    ] {
        let text = script(
            &format!("{before}\nvllm serve x --port ${{PORT:-8000}}"),
            rest,
        );
        let report = injected(&text).unwrap_or_else(|error| panic!("{before}: {error}"));
        let warnings = report.notes[0].warnings.join("\n");
        match by {
            Some(by) => {
                let expected = format!(
                    "its port is in the variable PORT, which {by} may also set: if so, the frontend does not listen where crossfade \
                     expects it; write the port as a number where the server is started"
                );
                assert_eq!(warnings, expected, "{before}");
            }
            None => assert_eq!(warnings, "", "{before}"),
        }
        assert_eq!(uninject(&report.text).unwrap().text, text);
    }
    let nested = script(
        "env $(cat f) bash -c 'vllm serve x --port ${PORT:-8000}'",
        "",
    );
    let warnings = injected(&nested).unwrap().notes[0].warnings.join("\n");
    assert!(warnings.contains(computed), "{warnings}");
    let number = script(". ./env.sh; vllm serve x --port 8000", env);
    assert!(injected(&number).unwrap().notes[0].warnings.is_empty());
    // The server itself reads the variable.
    let dynamo = |before: &str, env: &str| {
        deployment(&format!(
            "        image: x\n        command: [bash, -c, '{before} exec python3 -m dynamo.frontend']\n{env}"
        ))
    };
    let env = "        env: [{name: DYN_HTTP_PORT, value: \"8000\"}]\n";
    for (text, by) in [
        (dynamo(". ./env.sh;", env), Some(file)),
        (dynamo("eval \"$(cat f)\";", env), Some(computed)),
        (dynamo("", env), None),
        (dynamo(". ./env.sh;", ""), None),
    ] {
        let warnings = injected(&text).unwrap().notes[0].warnings.join("\n");
        match by {
            Some(by) => {
                let expected = format!(
                    "its port is in the variable DYN_HTTP_PORT, which {by} may also set: if so, the frontend does not listen where \
                     crossfade expects it; make sure that it does not set the variable"
                );
                assert!(warnings.contains(&expected), "{warnings}");
            }
            None => assert!(
                !warnings.contains("its port is in the variable"),
                "{warnings}"
            ),
        }
    }
    let app = deployment(
        "        image: x\n        command: [bash, -c, '. ./env.sh; exec app']\n        env: [{name: PORT, value: \"8000\"}]\n",
    );
    let options = Options {
        port: Some(8000),
        port_env: Some("PORT".to_owned()),
        ..Options::default()
    };
    let warnings = injected_with(&app, &options).unwrap().notes[0]
        .warnings
        .join("\n");
    assert!(
        warnings.contains("make sure that it does not set the variable"),
        "{warnings}"
    );
}

#[test]
fn arguments_after_the_port_that_are_not_in_the_manifest_are_reported() {
    let after = |text: &str| -> Vec<String> {
        let report = injected(text).unwrap_or_else(|error| panic!("{error}\n{text}"));
        assert_eq!(uninject(&report.text).unwrap().text, text);
        let warnings = report.notes.into_iter().flat_map(|note| note.warnings);
        warnings
            .filter(|warning| warning.contains("its port may be set again in"))
            .collect()
    };
    let arguments = |args: &str| {
        deployment(&format!(
            "        image: vllm/vllm-openai\n        args: [{args}]\n"
        ))
    };
    for (text, word) in [
        (script("vllm serve x --port 8000 $EXTRA", ""), "$EXTRA"),
        (
            script("cat f | xargs vllm serve x --port 8000", ""),
            "xargs",
        ),
        (arguments("--port, '8000', $(EXTRA)"), "$(EXTRA)"),
        (
            arguments("--port=8000, --enforce-eager, $(EXTRA)"),
            "$(EXTRA)",
        ),
    ] {
        let warnings = after(&text);
        assert!(
            matches!(&warnings[..], [one] if one.contains(&format!("again in {word} of"))),
            "{text}: {warnings:?}"
        );
    }
    for text in [
        script("vllm serve x $EXTRA --port 8000", ""),
        script("vllm serve x --port 8000 --model $MODEL", ""),
        script(
            "A=$(echo \")\"; echo x)\nvllm serve x --port 8000 $((1 + 2))",
            "",
        ),
        arguments("$(EXTRA), --port, '8000', --model, $(MODEL)"),
    ] {
        assert!(after(&text).is_empty(), "{text}");
    }
    let report = injected(&script("cat f | xargs vllm serve x", "")).unwrap();
    let warnings = &report.notes[0].warnings;
    assert!(
        warnings
            .iter()
            .any(|warning| warning.contains("its port may be set in xargs")),
        "{warnings:?}"
    );
}
