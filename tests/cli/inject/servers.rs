//! The known servers, how their port is changed, and what is reported.

use super::*;

/// The lines of the new manifest that differ.
fn new_lines(before: &str, after: &str) -> String {
    let known: Vec<_> = before.lines().collect();
    let new = after.lines().filter(|line| !known.contains(line));
    new.map(str::trim).collect::<Vec<_>>().join("\n")
}

#[test]
fn each_server_gets_its_new_port_in_its_own_way() {
    for (container, expected) in [
        (
            "        image: vllm/vllm-openai:v0.11.0\n",
            "args:\n- \"--port\"\n- \"8080\"",
        ),
        (
            "        image: vllm/vllm-openai\n        args: [--model, x]\n",
            "args: [--model, x, \"--port\", \"8080\"]",
        ),
        (
            "        image: x\n        command: [vllm, serve, x, --port=8000]\n",
            "command: [vllm, serve, x, --port=8080]",
        ),
        (
            "        image: x\n        command: [python3, -m, vllm.entrypoints.openai.api_server]\n",
            "vllm.entrypoints.openai.api_server, \"--port\", \"8080\"]",
        ),
        (
            "        image: x\n        args: [sh, -c, 'vllm serve x --port \"8000\" | tee log']\n",
            "'vllm serve x --port \"8080\" | tee log'",
        ),
        (
            "        image: x\n        args:\n        - >-\n          vllm serve x\n          --port 8000\n",
            "--port 8080",
        ),
        (
            "        image: x\n        args: [sh, -c, 'P=${P:-9}; vllm serve x --port $P']\n        env: [{name: P, value: \"8000\"}]\n",
            "env: [{name: P, value: \"8080\"}]",
        ),
        (
            "        image: x\n        args: [\"vllm serve x --port $(P)\"]\n        env: [{name: P, value: \"8000\"}]\n",
            "env: [{name: P, value: \"8080\"}]",
        ),
        (
            "        image: x\n        command: [python3, -m, sglang.launch_server]\n",
            "value: \"0.0.0.0:30000\"",
        ),
        (
            "        image: x\n        command: [python3, -m, dynamo.frontend]\n",
            "- name: DYN_HTTP_PORT\nvalue: \"8080\"",
        ),
        (
            "        image: x\n        args: [python3 -m dynamo.frontend --http-port=8001]\n",
            "value: \"0.0.0.0:8001\"",
        ),
        (
            "        image: x\n        env:\n        - name: DYN_HTTP_PORT\n          value: '8000'\n",
            "value: '8080'",
        ),
    ] {
        let text = deployment(container);
        let report = injected(&text).unwrap_or_else(|error| panic!("{container}: {error}"));
        let new = new_lines(&text, &report.text);
        assert!(new.contains(expected), "{container}\n{new}");
        assert!(
            flat(&report.text).contains("name: CROSSFADE_OLD\nvalue: \"127.0.0.1:8080\""),
            "{container}"
        );
        assert_eq!(uninject(&report.text).unwrap().text, text);
    }
}

#[test]
fn any_other_server_is_injected_if_its_port_and_the_option_for_it_are_given() {
    let text = deployment(
        "        image: tgi\n        args: [--listen, \"3000\"]\n        ports: [{containerPort: 3000}]\n",
    );
    let error = injected(&text).unwrap_err().to_string();
    assert!(
        error.contains("no frontend was found in Deployment/server") && error.contains("--port"),
        "{error}"
    );
    let mut options = Options {
        port: Some(3000),
        ..Options::default()
    };
    let error = injected_with(&text, &options).unwrap_err().to_string();
    assert!(
        error.contains("Deployment/server, line 10") && error.contains("--port-arg"),
        "{error}"
    );

    options.port_arg = Some("--listen".into());
    options.health = Some("/healthz".into());
    let report = injected_with(&text, &options).unwrap();
    assert!(
        report.text.contains("args: [--listen, \"8080\"]"),
        "{}",
        report.text
    );
    assert!(flat(&report.text).contains("livenessProbe:\nhttpGet:\npath: /healthz\nport: 8080"));
    // Given options are recorded and used from then on.
    assert_eq!(injected(&report.text).unwrap().text, report.text);
    assert_eq!(uninject(&report.text).unwrap().text, text);

    options = Options {
        port: Some(3000),
        port_env: Some("PORT".into()),
        ..Options::default()
    };
    let report = injected_with(&text, &options).unwrap();
    assert!(
        flat(&report.text).contains("env:\n- name: PORT\nvalue: \"8080\""),
        "{}",
        report.text
    );
    options.port_arg = Some("--listen".into());
    options.port = Some(4000);
    let error = injected_with(&text, &options).unwrap_err().to_string();
    assert!(error.contains("no frontend"), "{error}");
    options.container = Some("server".into());
    let error = injected_with(&text, &options).unwrap_err().to_string();
    assert!(
        error.contains("--port is 4000, but according to the manifest, it listens on 3000"),
        "{error}"
    );
}

#[test]
fn an_argument_is_not_added_where_it_would_replace_the_command_of_the_image() {
    let by = |flag: Option<&str>, variable: Option<&str>| Options {
        port: Some(3000),
        port_arg: flag.map(str::to_owned),
        port_env: variable.map(str::to_owned),
        ..Options::default()
    };
    let text = deployment("        image: x\n        ports: [{containerPort: 3000}]\n");
    let error = injected_with(&text, &by(Some("--port"), None)).unwrap_err();
    let expected = "it has neither command nor args, and args with --port could replace those of the image: write its command out, \
        or set a variable with --port-env NAME instead of --port-arg";
    assert!(error.to_string().ends_with(expected), "{error}");
    injected_with(&text, &by(None, Some("PORT"))).unwrap();
    // An earlier build added them.
    let known =
        deployment("        image: vllm/vllm-openai\n        ports: [{containerPort: 3000}]\n");
    let earlier = injected_with(&known, &by(Some("--port"), None))
        .unwrap()
        .text;
    let earlier = earlier.replace("vllm/vllm-openai", "x");
    let again = injected(&earlier).unwrap_or_else(|error| panic!("{error}\n{earlier}"));
    assert_eq!(again.text, earlier);
    let changed = injected_with(&earlier, &by(Some("--listen"), None)).unwrap_err();
    assert!(
        changed
            .to_string()
            .contains("it has neither command nor args"),
        "{changed}"
    );
    for list in ["command: [serve]", "args: [serve]"] {
        let text = deployment(&format!("        image: x\n        {list}\n"));
        let report = injected_with(&text, &by(Some("--port"), None)).unwrap();
        let expected = list.replace(']', ", \"--port\", \"8080\"]");
        assert!(report.text.contains(&expected), "{}", report.text);
    }
}

#[test]
fn the_usual_argument_of_an_unknown_server_needs_no_option() {
    let tgi = |arguments: &str| {
        deployment(&format!(
            "        image: ghcr.io/huggingface/text-generation-inference:3\n        args: [--model-id, m, {arguments}]\n"
        ))
    };
    let options = Options {
        port: Some(3000),
        ..Options::default()
    };
    for (given, moved) in [
        ("--port, \"3000\"", "--port, \"8080\""),
        ("--port=3000", "--port=8080"),
    ] {
        let text = tgi(given);
        let report = injected_with(&text, &options).unwrap();
        assert!(report.text.contains(moved), "{}", report.text);
        assert_eq!(injected(&report.text).unwrap().text, report.text);
        assert_eq!(uninject(&report.text).unwrap().text, text);
    }
    for (given, expected) in [
        (
            "--port, \"3001\"",
            "--port is 3000, but according to the manifest, it listens on 3001",
        ),
        (
            "--listen, \"3000\"",
            "use --port-arg FLAG or --port-env NAME",
        ),
    ] {
        let error = injected_with(&tgi(given), &options)
            .unwrap_err()
            .to_string();
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn workers_and_unknown_kinds_are_unchanged_and_mentioned() {
    let frontend = deployment("        image: vllm/vllm-openai\n");
    for (other, expected) in [
        (deployment("        image: x\n        command: [python3, -m, dynamo.vllm]\n").replace("name: server}", "name: worker}"), "Deployment/worker"),
        ("apiVersion: argoproj.io/v1alpha1\nkind: Rollout\nmetadata: {name: r}\nspec: {template: {spec: {containers: []}}}\n".into(), "Rollout/r"),
        ("apiVersion: serving.knative.dev/v1\nkind: Service\nmetadata: {name: k}\nspec: {template: {spec: {containers: []}}}\n".into(), "Service/k"),
        ("apiVersion: ray.io/v1\nkind: RayService\nmetadata: {name: r}\nspec: {rayClusterConfig: {}}\n".into(), "RayService/r"),
        ("apiVersion: serving.kserve.io/v1alpha1\nkind: LLMInferenceService\nmetadata: {name: l}\nspec: {model: {uri: x}}\n".into(), "LLMInferenceService/l"),
        ("apiVersion: nvidia.com/v1beta1\nkind: DynamoGraphDeploymentRequest\nmetadata: {name: d}\nspec: {model: x}\n".into(), "DynamoGraphDeploymentRequest/d"),
        ("apiVersion: v1\nkind: Pod\nmetadata: {generateName: p-}\nspec: {containers: []}\n".into(), "Pod/p-"),
    ] {
        let error = injected(&other).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
        let both = format!("{other}---\n{frontend}");
        let report = injected(&both).unwrap();
        assert!(report.text.starts_with(&other));
        let note = report.notes.iter().find(|note| note.object == expected).expect(expected);
        assert!(note.summary.starts_with("left as it is"), "{note}");
    }
}

#[test]
fn if_no_option_can_help_the_error_says_why() {
    let sidecar = "services: {W: {componentType: worker, frontendSidecar: {image: x}}}";
    let kind = "inject supports Deployments, StatefulSets, and DynamoGraphDeployments: run crossfade proxy in pods of its own instead";
    let beside = "inject does not support frontends in the pods of workers (frontendSidecar): run crossfade proxy in pods of its own \
        instead";
    let old = "its apiVersion must be apps/v1: Kubernetes no longer serves extensions/v1beta1";
    let graph = |version: &str, spec: &str| {
        format!(
            "apiVersion: nvidia.com/{version}\nkind: DynamoGraphDeployment\nmetadata: {{name: g}}\nspec:\n  {spec}\n"
        )
    };
    let beta = "components: [{name: w, type: decode, frontendSidecar: sidecar-frontend}]";
    for (text, expected) in [
        (
            "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {containers: []}\n".into(),
            kind,
        ),
        (
            "apiVersion: ray.io/v1\nkind: RayService\nmetadata: {name: r}\nspec: {}\n".into(),
            kind,
        ),
        (graph("v1beta1", "components: []"), kind),
        (graph("v1alpha1", sidecar), beside),
        (graph("v1beta1", beta), beside),
        (
            deployment("        image: vllm/vllm-openai\n")
                .replace("apps/v1", "extensions/v1beta1"),
            old,
        ),
    ] {
        for options in [
            Options::default(),
            Options {
                container: Some("sidecar-frontend".into()),
                ..Options::default()
            },
        ] {
            let error = injected_with(&text, &options).unwrap_err().to_string();
            assert!(error.ends_with(&format!("; {expected}")), "{error}");
        }
        // Another object may be the one that is meant.
        let both = format!("{text}---\n{}", deployment("        image: x\n"));
        let error = injected(&both).unwrap_err().to_string();
        assert!(error.ends_with("set its port with --port"), "{error}");
        let both = format!(
            "{text}---\n{}",
            deployment("        image: vllm/vllm-openai\n")
        );
        let note = injected(&both).unwrap().notes[0].summary.clone();
        let reason = expected.split(": ").next().unwrap();
        assert_eq!(note, format!("left as it is: {reason}"));
    }
}

#[test]
fn used_ports_are_avoided() {
    let text = deployment(
        "        image: vllm/vllm-openai\n        ports: [{containerPort: 8000, name: frontend}]\n      - name: other\n        image: x\n        \
         ports: [{containerPort: 8080, name: http}, {containerPort: 9464}]\n",
    );
    let report = injected(&text).unwrap();
    let flat = flat(&report.text);
    assert!(
        flat.contains("value: \"127.0.0.1:18080\"") && flat.contains("value: \"0.0.0.0:19464\""),
        "{flat}"
    );
    // Services with the target port 'frontend' now route to crossfade.
    assert!(
        flat.contains(
            "ports:\n- name: frontend\ncontainerPort: 8000\n- name: crossfade\ncontainerPort: 19464"
        ),
        "{flat}"
    );
    assert!(flat.contains("ports: [{containerPort: 18080, name: frontend-http}]"));
    let warned = report
        .notes
        .iter()
        .flat_map(|note| &note.warnings)
        .any(|warning| warning.contains("--frontend-port frontend-http"));
    assert!(warned, "{:?}", report.notes);
    assert_eq!(uninject(&report.text).unwrap().text, text);
}

#[test]
fn a_port_that_is_used_without_being_declared_is_avoided() {
    for container in [
        "        args: [--metrics-port, \"8080\"]\n",
        "        args: [x]\n      - name: other\n        image: x\n        args: [\"--http-address=0.0.0.0:8080\"]\n",
        "        env: [{name: OTHER_PORT, value: \"8080\"}]\n",
    ] {
        let text = deployment(&format!("        image: vllm/vllm-openai\n{container}"));
        let report = injected(&text).unwrap();
        assert!(
            flat(&report.text).contains("value: \"127.0.0.1:18080\""),
            "{}",
            report.text
        );
        assert_eq!(injected(&report.text).unwrap().text, report.text);
        assert_eq!(uninject(&report.text).unwrap().text, text);
    }
    let longer =
        deployment("        image: vllm/vllm-openai\n        args: [--x, \"18080\", --y, v8080]\n");
    let report = injected(&longer).unwrap();
    assert!(
        flat(&report.text).contains("value: \"127.0.0.1:8080\""),
        "{}",
        report.text
    );
}

#[test]
fn a_port_that_is_declared_twice_is_refused_with_the_right_reason() {
    let ports = "{name: http, containerPort: 8000}, {name: metrics, containerPort: 8000}";
    let text = deployment(&format!(
        "        image: vllm/vllm-openai\n        ports: [{ports}]\n"
    ));
    let error = injected(&text).unwrap_err().to_string();
    let expected = "its container declares port 8000 more than once: keep one entry, and use its name in Services and probes";
    assert!(error.ends_with(expected), "{error}");
    let other = "        image: vllm/vllm-openai\n      - {name: b, image: x, ports: [{containerPort: 8000}]}\n";
    let error = injected(&deployment(other)).unwrap_err().to_string();
    assert!(
        error.ends_with("another container of the pod also uses port 8000"),
        "{error}"
    );
}

#[test]
fn an_unsupported_pod_is_rejected_with_its_name_and_line() {
    for (container, expected) in [
        (
            "        image: vllm/vllm-openai\n        args: [--ssl-keyfile, k]\n",
            "line 10: it speaks TLS",
        ),
        (
            "        image: vllm/vllm-openai\n        livenessProbe: {httpGet: {port: 8000, scheme: HTTPS}}\n",
            "it speaks TLS",
        ),
        (
            "        image: vllm/vllm-openai\n        lifecycle: {preStop: {exec: {command: [save-cache]}}}\n",
            "--replace-pre-stop",
        ),
        (
            "        image: vllm/vllm-openai\n      os: {name: windows}\n",
            "Windows",
        ),
        (
            "        image: vllm/vllm-openai\n      volumes: [{name: crossfade}]\n",
            "a volume 'crossfade'",
        ),
        (
            "        image: vllm/vllm-openai\n  volumeClaimTemplates: [{metadata: {name: crossfade}}]\n",
            "a volume 'crossfade'",
        ),
        (
            "        image: vllm/vllm-openai\n        ports: [{containerPort: 8000}, {containerPort: 1, name: frontend}, {containerPort: 2, name: frontend-http}]\n",
            "already has ports named 'frontend' and 'frontend-http': rename one of them",
        ),
        (
            "        image: vllm/vllm-openai\n        args: [--port, \"80\"]\n      securityContext: {sysctls: [{name: net.ipv4.ip_unprivileged_port_start, value: \"443\"}]}\n",
            "its sysctl net.ipv4.ip_unprivileged_port_start is 443, but crossfade does not run as root and must listen on port 80",
        ),
        (
            "        image: vllm/vllm-openai\n        ports: [{containerPort: 8000}, {containerPort: 1, name: crossfade}]\n",
            "already has a port named 'crossfade'",
        ),
        (
            "        image: vllm/vllm-openai\n      - name: b\n        image: vllm/vllm-openai\n",
            "several containers could be the frontend: server, b",
        ),
        (
            "        image: vllm/vllm-openai\n      - name: b\n        image: x\n        ports: [{containerPort: 8000}, {containerPort: 8000}]\n",
            "another container of the pod also uses port 8000",
        ),
        (
            "        image: vllm/vllm-openai\n        args: [--port, http]\n",
            "its port 'http' is not a number",
        ),
        (
            "        image: vllm/vllm-openai\n        args: [--port, '70000']\n",
            "its port '70000' is not a whole number from 1 to 65535",
        ),
        (
            "        image: vllm/vllm-openai\n        args: [--port, '-1']\n",
            "its port '-1' is not a whole number from 1 to 65535",
        ),
        (
            "        image: dynamo-frontend\n        env: [{name: DYN_HTTP_PORT, value: '70000'}]\n",
            "the variable DYN_HTTP_PORT is not a whole number from 1 to 65535: '70000'",
        ),
        (
            "        image: dynamo-frontend\n        env: [{name: DYN_HTTP_PORT, value: $(P)}, {name: P, value: '8001'}]\n",
            "the variable DYN_HTTP_PORT is not a number: '$(P)'",
        ),
        (
            "        image: vllm/vllm-openai\n        args: [--port]\n",
            "--port has no value",
        ),
        (
            "        image: vllm/vllm-openai\n        args: [--port, $(P)]\n        envFrom: [{secretRef: {name: s}}]\n",
            "the variable P, which has no value in the container's env: set it there",
        ),
        (
            "        image: x\n        args: [sh, -c, 'P=8000; vllm serve x --port \"$P\"']\n        env: [{name: P, value: '9000'}]\n",
            "the variable P, which its script sets: remove that from the script, so that its value in the container's env counts",
        ),
        (
            "        image: x\n        args: [sh, -c, 'export DYN_HTTP_PORT=9000; python3 -m dynamo.frontend']\n",
            "the variable DYN_HTTP_PORT, which its script sets: set it in the container's env instead",
        ),
        (
            "        image: vllm/vllm-openai\n        args: [--uds, /tmp/vllm.sock]\n",
            "it listens only on a Unix socket (--uds)",
        ),
        (
            "        image: x\n        args: [sh, -c, 'vllm serve x --uds=/tmp/vllm.sock']\n",
            "it listens only on a Unix socket (--uds)",
        ),
        (
            "        image: x\n        command: [sh, -c, \"exec /start vllm.entrypoints.openai.api_server; vllm.entrypoints.openai.api_server\"]\n",
            "write --port PORT into it",
        ),
    ] {
        let error = injected(&deployment(container)).unwrap_err().to_string();
        assert!(
            error.starts_with("document 1, Deployment/server, line ") && error.contains(expected),
            "{container}\n{error}"
        );
    }
    let text = deployment(
        "        image: vllm/vllm-openai\n        lifecycle: {preStop: {exec: {command: [save-cache]}}}\n",
    );
    let options = Options {
        replace_pre_stop: true,
        ..Options::default()
    };
    let report = injected_with(&text, &options).unwrap();
    assert_eq!(uninject(&report.text).unwrap().text, text);
    assert!(matches!(inject(&text, &options, None), Err(Error::NoImage)));
}

#[test]
fn a_manually_added_sidecar_is_unchanged() {
    let by_hand = include_str!("../../../deploy/examples/dgd-v1beta1.yaml");
    let report = injected(by_hand).unwrap();
    assert_eq!(report.text, by_hand);
    assert!(
        report.notes[0].summary.contains("not added by inject"),
        "{}",
        report.notes[0]
    );
}

#[test]
fn a_host_port_moves_to_crossfade_and_possible_problems_are_reported() {
    let text = deployment(
        "        image: vllm/vllm-openai\n        ports: [{containerPort: 8000, hostPort: 80}]\n      hostNetwork: true\n      automountServiceAccountToken: false\n      terminationGracePeriodSeconds: 3600\n",
    );
    let report = injected(&text).unwrap();
    assert!(
        flat(&report.text).contains("- name: http\ncontainerPort: 8000\nhostPort: 80\n"),
        "{}",
        report.text
    );
    assert!(
        report
            .text
            .contains("terminationGracePeriodSeconds: 3600\n")
    );
    let warnings = report.notes[0].warnings.join("\n");
    assert!(
        warnings.contains("hostNetwork") && warnings.contains("automountServiceAccountToken"),
        "{warnings}"
    );
    let cannot_resolve = "cannot resolve the new frontend's Service";
    assert!(warnings.contains(cannot_resolve), "{warnings}");
    let resolves = format!("{text}      dnsPolicy: ClusterFirstWithHostNet\n");
    let note = injected(&resolves).unwrap().notes[0].to_string();
    assert!(!note.contains(cannot_resolve), "{note}");
}

#[test]
fn a_server_of_several_nodes_is_refused() {
    let sglang = |nodes: &str| {
        deployment(&format!(
            "        image: lmsysorg/sglang\n        args: [--model-path, x, {nodes}, --node-rank, $(RANK)]\n"
        ))
    };
    for several in ["--nnodes, '2'", "--nnodes=2"] {
        let error = injected(&sglang(several)).unwrap_err().to_string();
        assert!(
            error.contains("one of 2 nodes that form one server (--nnodes)"),
            "{error}"
        );
    }
    injected(&sglang("--nnodes, '1'")).unwrap();
}

#[test]
fn the_host_port_of_a_pod_with_its_own_network_moves_to_crossfade_and_is_restored() {
    let text = deployment(
        "        image: vllm/vllm-openai\n        ports:\n        - {containerPort: 9000, hostPort: 9000}\n        - containerPort: 8000 # clients\n          hostPort: 80\n          hostIP: 10.0.0.1\n",
    );
    let report = injected(&text).unwrap();
    let mut all = flat(&report.text);
    // The record of the original fields.
    let record = all.lines().find(|line| line.contains("crossfade/injected"));
    all = all.replace(record.unwrap(), "");
    let of_crossfade = "- name: http\ncontainerPort: 8000\nhostPort: 80\nhostIP: \"10.0.0.1\"\n";
    assert!(all.contains(of_crossfade), "{all}");
    assert_eq!(all.matches("hostPort: 80\n").count(), 1, "{all}");
    // The host port of another container port stays.
    assert_eq!(all.matches("hostPort: 9000").count(), 1, "{all}");
    let note = report.notes[0].details.join("\n");
    assert!(
        note.contains("port 80 of the node routes to crossfade"),
        "{note}"
    );
    assert_eq!(uninject(&report.text).unwrap().text, text);
    assert_eq!(injected(&report.text).unwrap().text, report.text);
}

#[test]
fn with_a_frontend_on_ipv6_crossfade_connects_and_listens_on_ipv6() {
    let sidecar = |args: &str| {
        let report = injected(&deployment(args)).unwrap();
        (flat(&report.text), report.notes[0].warnings.join("\n"))
    };
    for args in [
        "        image: vllm/vllm-openai\n        args: [--host, '::']\n",
        "        image: x\n        args: ['vllm serve x --host=:: --port 8000']\n",
        "        image: vllm/vllm-openai\n        args: [--host, $(H)]\n        env: [{name: H, value: '::'}]\n",
        "        image: x\n        command: [python3, -m, dynamo.frontend]\n        env: [{name: DYN_HTTP_HOST, value: '::'}]\n",
    ] {
        let (text, warnings) = sidecar(args);
        for value in ["[::]:8000", "[::1]:8080", "[::]:9464"] {
            assert!(text.contains(&format!("value: \"{value}\"")), "{text}");
        }
        assert_eq!(warnings, "");
    }
    for (args, warned) in [
        (
            "        image: vllm/vllm-openai\n        args: [--host, 0.0.0.0]\n",
            false,
        ),
        (
            "        image: vllm/vllm-openai\n        args: [--hosts, '::']\n",
            false,
        ),
        (
            "        image: vllm/vllm-openai\n        args: [--host, $(POD_IP)]\n",
            true,
        ),
        (
            "        image: vllm/vllm-openai\n        args: [--host, 10.0.0.1]\n",
            true,
        ),
        // Another container of the pod may have been all that reached it.
        (
            "        image: vllm/vllm-openai\n        args: [--host, 127.0.0.1]\n",
            true,
        ),
        (
            "        image: vllm/vllm-openai\n        args: [--host, localhost]\n",
            true,
        ),
    ] {
        let (text, warnings) = sidecar(args);
        assert!(text.contains("value: \"127.0.0.1:8080\""), "{text}");
        assert_eq!(
            warnings.contains("make it listen on 0.0.0.0"),
            warned,
            "{warnings}"
        );
    }
}

#[test]
fn an_address_before_the_port_that_crossfade_cannot_reach_is_reported() {
    const LISTEN: Option<&str> = Some("--listen");
    for (container, expected) in [
        (
            "args: [--listen, '10.0.0.3:3000']",
            "it listens on '10.0.0.3', but crossfade connects to it at 127.0.0.1",
        ),
        (
            "args: [--listen, '$(POD_IP):3000']",
            "it listens on '$(POD_IP)', but crossfade connects to it at 127.0.0.1",
        ),
        (
            "args: [--listen, '127.0.0.2:3000']",
            "it listens on '127.0.0.2', but crossfade connects to it at 127.0.0.1",
        ),
        (
            "args: [--listen, '[::ffff:127.0.0.1]:3000']",
            "it listens on '127.0.0.1', which only its own pod can reach",
        ),
        (
            "args: [--listen, '$(IP):3000']\n        env: [{name: IP, value: localhost}]",
            "it listens on 'localhost', which only its own pod can reach",
        ),
        ("args: [--listen, ':3000']", ""),
        ("args: [--listen, '*:3000']", ""),
        ("args: [--listen, '[::]:3000']", ""),
        ("args: [--listen, 'http://0.0.0.0:3000']", ""),
        (
            "args: [--listen, '3000']\n        env: [{name: LLAMA_ARG_HOST, value: 127.0.0.1}]",
            "it listens on '127.0.0.1', which only its own pod can reach",
        ),
        (
            "args: [--listen, '3000']\n        env: [{name: HOSTNAME, value: '::1'}]",
            "it listens on '::1', which only its own pod can reach",
        ),
        (
            "args: [--listen, '3000']\n        env: [{name: HOSTNAME, value: server-1}]",
            "",
        ),
        (
            "command: [sh, -c, 'app --listen 3000 --host ${H:-127.0.0.1}']",
            "it listens on '127.0.0.1', which only its own pod can reach",
        ),
    ] {
        let options = Options {
            port: Some(3000),
            port_arg: LISTEN.map(str::to_owned),
            ..Options::default()
        };
        let text = deployment(&format!("        image: x\n        {container}\n"));
        let report = injected_with(&text, &options).unwrap();
        let warnings = report.notes[0].warnings.iter();
        let mut warnings = warnings.filter(|warning| warning.contains("it listens on"));
        match warnings.next() {
            Some(warning) => assert!(
                !expected.is_empty() && warning.starts_with(expected),
                "{container}: {warning}"
            ),
            None => assert_eq!(expected, "", "{container}"),
        }
    }
}

#[test]
fn a_loopback_address_before_the_port_is_reported() {
    for (container, flag, name, warned) in [
        (
            "args: [--listen, '127.0.0.1:3000']",
            Some("--listen"),
            None,
            true,
        ),
        (
            "args: [--listen=localhost:3000]",
            Some("--listen"),
            None,
            true,
        ),
        (
            "args: [--listen, '0.0.0.0:3000']",
            Some("--listen"),
            None,
            false,
        ),
        (
            "env: [{name: OLLAMA_HOST, value: '127.0.0.1:3000'}]",
            None,
            Some("OLLAMA_HOST"),
            true,
        ),
        (
            "env: [{name: OLLAMA_HOST, value: '0.0.0.0:3000'}]",
            None,
            Some("OLLAMA_HOST"),
            false,
        ),
    ] {
        let options = Options {
            port: Some(3000),
            port_arg: flag.map(str::to_owned),
            port_env: name.map(str::to_owned),
            ..Options::default()
        };
        let text = deployment(&format!("        image: x\n        {container}\n"));
        let report = injected_with(&text, &options).unwrap();
        let warnings = report.notes[0].warnings.join("\n");
        let expected = "which only its own pod can reach";
        assert_eq!(
            warnings.contains(expected),
            warned,
            "{container}: {warnings}"
        );
    }
}

#[test]
fn a_port_with_an_address_or_as_a_default_is_changed_as_well() {
    for (container, options, expected) in [
        (
            "        image: x\n        args: [--listen=0.0.0.0:3000]\n",
            ("--listen", ""),
            "args: [--listen=0.0.0.0:8080]",
        ),
        (
            "        image: x\n        args: [--listen, ':3000']\n",
            ("--listen", ""),
            "args: [--listen, ':8080']",
        ),
        (
            "        image: ollama/ollama\n        env: [{name: OLLAMA_HOST, value: '[::]:3000'}]\n",
            ("", "OLLAMA_HOST"),
            "env: [{name: OLLAMA_HOST, value: '[::]:8080'}]",
        ),
        (
            "        image: ollama/ollama\n        env: []\n",
            ("", "OLLAMA_HOST"),
            "env: [{\"name\":\"OLLAMA_HOST\",\"value\":\"0.0.0.0:8080\"}]",
        ),
        (
            "        image: x\n        args: ['vllm serve x --port ${PORT:-3000}']\n",
            ("--port", ""),
            "args: ['vllm serve x --port ${PORT:-8080}']",
        ),
        (
            "        image: x/dynamo-frontend\n        env: [{name: P, value: '3000'}, {name: DYN_HTTP_PORT, value: $(P)}]\n",
            ("", ""),
            "env: [{name: P, value: '8080'}, {name: DYN_HTTP_PORT, value: $(P)}, ",
        ),
        (
            "        image: x\n        args: ['vllm serve x --port ${PORT:-9}']\n        env: [{name: PORT, value: '3000'}]\n",
            ("--port", ""),
            "env: [{name: PORT, value: '8080'}]",
        ),
    ] {
        let text = deployment(container);
        let given = |name: &str| (!name.is_empty()).then(|| name.to_owned());
        let options = Options {
            port: Some(3000),
            port_arg: given(options.0),
            port_env: given(options.1),
            ..Options::default()
        };
        let report = injected_with(&text, &options).unwrap();
        assert!(report.text.contains(expected), "{}", report.text);
        assert_eq!(uninject(&report.text).unwrap().text, text);
    }
    let by_host = Options {
        port: Some(11434),
        port_env: Some("OLLAMA_HOST".into()),
        ..Options::default()
    };
    for address in ["0.0.0.0", "[::]", "localhost"] {
        let text = deployment(&format!(
            "        image: ollama/ollama\n        env: [{{name: OLLAMA_HOST, value: '{address}'}}]\n"
        ));
        let error = injected_with(&text, &by_host).unwrap_err().to_string();
        let expected = format!(
            "the variable OLLAMA_HOST has no port: write {address}:11434 if the server listens on 11434 now"
        );
        assert!(error.ends_with(&expected), "{error}");
    }
    // The variable may override the default.
    let unknown = deployment(
        "        image: x\n        args: ['vllm serve x --port ${PORT:-8000}']\n        envFrom: [{configMapRef: {name: c}}]\n",
    );
    let error = injected(&unknown).unwrap_err().to_string();
    assert!(
        error.contains("variable PORT, which has no value in the container's env"),
        "{error}"
    );
}

#[test]
fn a_prometheus_annotation_for_the_frontend_is_mentioned() {
    let server = deployment("        image: vllm/vllm-openai\n");
    for (port, warned) in [("8000", true), ("9400", false)] {
        let labels = format!(
            "metadata: {{labels: {{app: a}}, annotations: {{prometheus.io/port: \"{port}\"}}}}"
        );
        let text = server.replace("metadata: {labels: {app: a}}", &labels);
        let report = injected(&text).unwrap();
        let warnings = report.notes[0].warnings.join("\n");
        let expected =
            "set it to 8080 for the metrics of the frontend, or to 9464 for those of crossfade";
        assert_eq!(warnings.contains(expected), warned, "{warnings}");
    }
}

#[test]
fn services_are_mentioned_and_never_changed() {
    let service = |target: &str| {
        format!(
            "---\napiVersion: v1\nkind: Service\nmetadata: {{name: s}}\nspec:\n  selector: {{app: a}}\n  ports: [{{port: 80, targetPort: {target}}}]\n"
        )
    };
    let server = deployment(
        "        image: vllm/vllm-openai\n        ports: [{containerPort: 8000, name: api}]\n",
    );
    let udp = service("8000").replace("{port: 80,", "{port: 53, protocol: UDP,");
    let report = injected(&format!("{server}{udp}")).unwrap();
    let note = report.notes[1].to_string();
    let expected = "its UDP port 53 does not route to crossfade, which serves TCP";
    assert!(note.ends_with(expected), "{note}");
    for (target, expected) in [
        ("8000", "its targetPort 8000 now routes to crossfade"),
        ("api", "its targetPort api now routes to crossfade"),
        ("9000", "left as it is"),
    ] {
        let text = format!("{server}{}", service(target));
        let report = injected(&text).unwrap();
        assert!(report.text.ends_with(&service(target)));
        let note = report
            .notes
            .iter()
            .find(|note| note.object == "Service/s")
            .unwrap();
        assert!(note.to_string().contains(expected), "{note}");
    }
}

#[test]
fn later_changes_are_kept_and_mentioned() {
    let text = deployment(
        "        image: vllm/vllm-openai\n        args: [--port, \"8000\"]\n        readinessProbe: {httpGet: {path: /health, port: 8000}}\n",
    );
    let report = injected(&text).unwrap();
    // A user has added another port, an init container, a variable and a volume.
    let edited = report
        .text
        .replace("[--port, \"8080\"]", "[--port, \"8888\"]")
        .replace(
            "      initContainers:\n",
            "      initContainers:\n      - name: mine\n        image: x\n",
        );
    let back = uninject(&edited).unwrap();
    assert!(
        back.text.contains("[--port, \"8888\"]") && back.text.contains("      - name: mine\n"),
        "{}",
        back.text
    );
    assert!(!back.text.contains("crossfade"), "{}", back.text);
    assert!(
        back.text
            .contains("readinessProbe: {httpGet: {path: /health, port: 8000}}")
    );
    let warnings = back.notes[0].warnings.join("\n");
    assert!(
        warnings.contains("args/[#1] has been changed since") && warnings.contains("'8000'"),
        "{warnings}"
    );
}

#[test]
fn a_script_that_starts_a_dynamo_frontend_beside_a_worker_is_a_frontend() {
    let text = deployment(
        "        image: x/vllm-runtime\n        command: [bash, -c]\n        args:\n        - |\n          python3 -m dynamo.frontend --http-port 8000 &\n          python3 -m dynamo.vllm --model x\n",
    );
    let report = injected(&text).unwrap();
    assert!(
        report
            .text
            .contains("python3 -m dynamo.frontend --http-port 8080 &"),
        "{}",
        report.text
    );
    assert_eq!(uninject(&report.text).unwrap().text, text);
    let worker = text.replace("dynamo.frontend", "dynamo.router");
    assert!(injected(&worker).is_err());
}

#[test]
fn the_loss_of_the_class_guaranteed_is_reported() {
    let with = |resources: &str| {
        let text = deployment(&format!(
            "        image: vllm/vllm-openai\n        resources: {resources}\n"
        ));
        let warnings = injected(&text).unwrap().notes[0].warnings.join("\n");
        warnings.contains("QoS class Guaranteed")
    };
    assert!(with("{limits: {cpu: 4, memory: 8Gi}}"));
    assert!(with(
        "{limits: {cpu: 4, memory: 8Gi}, requests: {cpu: 4, memory: 8Gi}}"
    ));
    assert!(!with("{limits: {cpu: 4, memory: 8Gi}, requests: {cpu: 2}}"));
    assert!(with(
        "{limits: {cpu: 4, memory: 8Gi}, requests: {cpu: 4000m, memory: \"8192Mi\"}}"
    ));
    assert!(!with("{limits: {nvidia.com/gpu: 1}}"));
    // The operator decides about the resources of a container that is not in the manifest.
    let graph = |version: &str, frontend: &str| {
        let text = format!(
            "apiVersion: nvidia.com/{version}\nkind: DynamoGraphDeployment\nmetadata: {{name: g}}\nspec:\n  {frontend}\n"
        );
        let warnings = injected(&text).unwrap().notes[0].warnings.join("\n");
        warnings.contains("QoS class Guaranteed")
    };
    let resources =
        "resources: {limits: {cpu: \"1\", memory: 1Gi}, requests: {cpu: \"1\", memory: 1Gi}}";
    let alpha = |rest: &str| format!("services: {{F: {{componentType: frontend{rest}}}}}");
    let beta = |rest: &str| format!("components: [{{name: F, type: frontend{rest}}}]");
    assert!(!graph("v1alpha1", &alpha("")));
    assert!(!graph("v1beta1", &beta("")));
    assert!(!graph(
        "v1alpha1",
        &alpha(", extraPodSpec: {mainContainer: {image: x}}")
    ));
    assert!(graph("v1alpha1", &alpha(&format!(", {resources}"))));
    assert!(graph(
        "v1alpha1",
        &alpha(&format!(
            ", {resources}, extraPodSpec: {{mainContainer: {{image: x}}}}"
        ))
    ));
    let pod = format!("podTemplate: {{spec: {{containers: [{{name: main, {resources}}}]}}}}");
    assert!(graph("v1beta1", &beta(&format!(", {pod}"))));
}

#[test]
fn resources_of_the_whole_pod_are_reported() {
    let with = |resources: &str| {
        let text = deployment(&format!(
            "        image: vllm/vllm-openai\n        resources: {{limits: {{cpu: 4, memory: 8Gi}}}}\n      resources: {resources}\n"
        ));
        injected(&text).unwrap().notes[0].warnings.join("\n")
    };
    let warnings = with("{limits: {cpu: 4, memory: 8Gi}}");
    assert!(
        warnings.contains(
            "raise its requests by 500m CPU and 128Mi of memory, and its limits, if any, by at least 500m CPU and by 1Gi of memory"
        ),
        "{warnings}"
    );
    // The class depends only on the resources of the whole pod.
    assert!(!warnings.contains("Guaranteed"), "{warnings}");
    let warnings = with("{limits: {cpu: 4, memory: 8Gi}, requests: {cpu: \"4000m\", memory: 8Gi}}");
    assert!(
        warnings.contains(
            "raise its requests and limits by 500m CPU and by 1Gi of memory; otherwise, Kubernetes may reject the pods, or the \
             frontend lacks these resources; its pods keep the QoS class Guaranteed only if requests and limits remain the same"
        ),
        "{warnings}"
    );
    assert!(with("{}").contains("Guaranteed"));
}

#[test]
fn another_command_of_the_image_is_no_server() {
    for args in [
        "[vllm, bench, serve, --port, \"8000\"]",
        "[bench, serve]",
        "[/usr/bin/vllm, run-batch, -i, x]",
    ] {
        let text = deployment(&format!(
            "        image: vllm/vllm-openai\n        args: {args}\n"
        ));
        let error = injected(&text).unwrap_err().to_string();
        assert!(
            error.starts_with("no frontend was found in Deployment/server"),
            "{args}: {error}"
        );
    }
    let text = deployment("        image: vllm/vllm-openai\n        args: [--model, bench]\n");
    assert!(injected(&text).is_ok());
}
