//! Dynamo graphs, whose operator builds the container of a frontend from several parts of the manifest.

use super::*;

/// A `v1alpha1` graph with additional fields in its spec, its frontend, and the frontend's container.
fn alpha(spec: &str, component: &str, container: &str) -> String {
    format!(
        "apiVersion: nvidia.com/v1alpha1\nkind: DynamoGraphDeployment\nmetadata: {{name: g}}\nspec:\n{spec}  services:\n    Frontend:\n      \
         componentType: frontend\n{component}      extraPodSpec:\n        mainContainer:\n          image: x/dynamo-frontend\n{container}    \
         Worker:\n      componentType: worker\n"
    )
}

fn beta(spec: &str, container: &str) -> String {
    format!(
        "apiVersion: nvidia.com/v1beta1\nkind: DynamoGraphDeployment\nmetadata: {{name: g}}\nspec:\n{spec}  components:\n  - name: Frontend\n    \
         type: frontend\n    podTemplate:\n      spec:\n        containers:\n        - name: main\n          image: x\n{container}"
    )
}

fn port(port: u16) -> String {
    format!("[{{name: DYN_HTTP_PORT, value: \"{port}\"}}]\n")
}

#[test]
fn the_port_is_read_from_the_variables_of_a_component_and_its_graph() {
    let (of_graph, of_component, own) = (
        format!("  envs: {}", port(9000)),
        format!("      envs: {}", port(9001)),
        format!("          env: {}", port(9002)),
    );
    let moved = |text: &str, from: u16| text.replace(&from.to_string(), "8080");
    for (text, listens, expected) in [
        (
            alpha("", &of_component, &own),
            9001,
            moved(&of_component, 9001),
        ),
        (
            alpha(&of_graph, &of_component, ""),
            9001,
            moved(&of_component, 9001),
        ),
        (alpha("", "", &own), 9002, moved(&own, 9002)),
        // The workers use the variable of the graph, too, so the frontend gets its own, which overrides it.
        (
            alpha(&of_graph, "", &own),
            9000,
            String::from("      envs:\n      - name: DYN_HTTP_PORT\n        value: \"8080\"\n"),
        ),
        (
            beta(&format!("  env: {}", port(9000)), &own),
            9002,
            moved(&own, 9002),
        ),
        (
            beta(&format!("  env: {}", port(9000)), ""),
            9000,
            String::from(
                "          env:\n          - name: DYN_HTTP_PORT\n            value: \"8080\"\n",
            ),
        ),
    ] {
        let report = injected(&text).unwrap_or_else(|error| panic!("{text}\n{error}"));
        let expected = expected.trim_end_matches("]\n");
        assert!(
            report.text.contains(expected),
            "{expected}\n{}",
            report.text
        );
        let listens = format!("value: \"0.0.0.0:{listens}\"");
        assert!(report.text.contains(&listens), "{listens}\n{}", report.text);
        assert_eq!(
            text.contains("9000"),
            report.text.contains("\"9000\""),
            "{}",
            report.text
        );
        assert_eq!(injected(&report.text).unwrap().text, report.text);
        assert_eq!(uninject(&report.text).unwrap().text, text);
    }
}

#[test]
fn the_probes_of_a_component_replace_those_of_its_container() {
    let probes = "      livenessProbe: {httpGet: {path: /live, port: 8000}}\n      readinessProbe: {httpGet: {path: /health, port: http}}\n";
    let text = alpha("", probes, "");
    let report = injected(&text).unwrap();
    assert!(
        report
            .text
            .contains("      livenessProbe: {httpGet: {path: /live, port: 8080}, "),
        "{}",
        report.text
    );
    assert!(
        report
            .text
            .contains("      readinessProbe:\n        httpGet:\n          path: /readyz\n"),
        "{}",
        report.text
    );
    let main = report.text.split("mainContainer:").nth(1).unwrap();
    let main = main.split("initContainers:").next().unwrap();
    assert!(
        !main.contains("livenessProbe") && !main.contains("readinessProbe"),
        "{main}"
    );
    assert_eq!(injected(&report.text).unwrap().text, report.text);
    assert_eq!(uninject(&report.text).unwrap().text, text);
    // By the operator's name of the port.
    let named = alpha(
        "",
        "      livenessProbe: {httpGet: {path: /live, port: http}}\n",
        "",
    );
    let report = injected(&named).unwrap();
    assert!(
        report.text.contains("path: /live, port: frontend}"),
        "{}",
        report.text
    );
}

#[test]
fn a_component_whose_container_the_operator_builds_is_injected() {
    let whole = alpha("", "", "");
    let at = whole.find("      extraPodSpec:").unwrap();
    let end = whole.find("    Worker:").unwrap();
    for spec in [
        "",
        "      extraPodSpec: {nodeSelector: {a: b}}\n",
        "      extraPodSpec:\n        mainContainer:\n",
        "      extraPodSpec:\n        containers:\n        - {name: logs, image: x}\n",
        "      envs: [{name: DYN_HTTP_PORT, value: \"8000\"}]\n",
    ] {
        let text = format!("{}{spec}{}", &whole[..at], &whole[end..]);
        let report = injected(&text).unwrap_or_else(|error| panic!("{text}\n{error}"));
        let manifests = crossfade::inject::manifests(&report.text).unwrap();
        let object: &Value = &manifests[0].objects[0];
        let component = &object["spec"]["services"]["Frontend"];
        let main = &component["extraPodSpec"]["mainContainer"];
        assert_eq!(main["ports"][0]["containerPort"], 8080, "{}", report.text);
        let variables = if spec.contains("envs") {
            &component["envs"]
        } else {
            &main["env"]
        };
        assert_eq!(variables[0]["name"], "DYN_HTTP_PORT", "{}", report.text);
        assert_eq!(variables[0]["value"], "8080", "{}", report.text);
        assert_eq!(
            component["extraPodSpec"]["initContainers"][0]["name"],
            "crossfade"
        );
        assert_eq!(injected(&report.text).unwrap().text, report.text);
        assert_eq!(uninject(&report.text).unwrap().text, text);
    }
    let options = Options {
        container: Some("other".to_owned()),
        ..Options::default()
    };
    let text = format!("{}{}", &whole[..at], &whole[end..]);
    assert!(injected_with(&text, &options).is_err());
}

#[test]
fn a_container_that_the_operator_builds_is_written_to_the_list_of_containers() {
    let whole = beta("", "");
    let at = whole.find("    podTemplate:").unwrap();
    let flow = "    podTemplate: {spec: {containers: [{name: logs, image: x}]}}\n";
    let block = "    podTemplate:\n      spec:\n        containers:\n          - name: logs\n            image: x\n";
    for (template, before) in [
        ("", 0),
        ("    podTemplate:\n", 0),
        ("    podTemplate: {}\n", 0),
        ("    podTemplate:\n      metadata: {labels: {a: b}}\n", 0),
        ("    podTemplate:\n      spec:\n", 0),
        ("    podTemplate: {spec: {containers: []}}\n", 0),
        ("    podTemplate:\n      spec:\n        containers:\n", 0),
        // The operator adds `main` to them.
        (flow, 1),
        (block, 1),
    ] {
        let text = format!("{}{template}", &whole[..at]);
        for plain_container in [false, true] {
            let options = Options {
                plain_container,
                ..Options::default()
            };
            let report =
                injected_with(&text, &options).unwrap_or_else(|error| panic!("{text}\n{error}"));
            let manifests = crossfade::inject::manifests(&report.text).unwrap();
            let object: &Value = &manifests[0].objects[0];
            let spec = &object["spec"]["components"][0]["podTemplate"]["spec"];
            let containers = spec["containers"].as_array().unwrap();
            assert_eq!(
                containers.len(),
                before + 1 + usize::from(plain_container),
                "{}",
                report.text
            );
            let main = &containers[before];
            assert_eq!(main["name"], "main", "{}", report.text);
            assert_eq!(main["env"][0]["name"], "DYN_HTTP_PORT");
            assert_eq!(main["ports"][0]["containerPort"], 8080);
            assert_eq!(main["readinessProbe"]["httpGet"]["path"], "/readyz");
            let again = injected_with(&report.text, &options).unwrap();
            assert_eq!(again.text, report.text);
            assert_eq!(uninject(&report.text).unwrap().text, text);
        }
    }
    // Later additions by others stay, with the container's name.
    let text = whole[..at].to_owned();
    let report = injected(&text).unwrap();
    let (name, image) = ("name: main\n", "          image: x\n");
    assert_eq!(report.text.matches(name).count(), 1, "{}", report.text);
    let edited = report.text.replace(name, &format!("{name}{image}"));
    let removed = uninject(&edited).unwrap().text;
    assert!(removed.ends_with(&format!("- {name}{image}")), "{removed}");
}
