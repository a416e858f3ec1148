//! Problems of a manifest as a whole: its target, its envelope, and their order.

use super::*;

#[test]
fn a_wrong_target_is_named_with_its_reason() {
    for (service, expected) in [
        ("''", "must not be empty"),
        ("new", "'new' has no port; write host:port"),
        ("'a:1,b'", "'b' has no port"),
        ("'a:1,a:1'", "names http://a:1 twice"),
        ("'a:1,https://a'", "mixes http and https"),
        ("http://a/v1", "'http://a/v1' has a path"),
        ("8000", "must be text, not 8000; put it in quotes"),
        ("", "is required"),
    ] {
        let found = problems(&format!(
            "{HEAD}  trafficSplitPercent: 1\n  newFrontendService: {service}\n"
        ));
        let line = if service.is_empty() { 3 } else { 5 };
        let expected = format!("line {line}: spec.newFrontendService: {expected}");
        assert_eq!(found.len(), 1, "{service}: {found:#?}");
        assert!(found[0].starts_with(&expected), "{service}: {}", found[0]);
    }
}

#[test]
fn tls_needs_a_certificate_with_its_key_and_a_name_that_is_one() {
    let found = problems(&format!(
        "{HEAD}  newFrontendService: https://new\n  trafficSplitPercent: 1\n  tls:\n    \
         serverName: a b\n    clientCertFile: c.pem\n"
    ));
    assert_eq!(found.len(), 2, "{found:#?}");
    assert!(found[0].starts_with("line 6: spec.tls: clientCertFile also needs clientKeyFile"));
    assert!(found[1].starts_with("line 7: spec.tls.serverName: 'a b' has the host"));
}

#[test]
fn consequences_of_another_problem_are_omitted() {
    for fields in [
        "  trafficSplitPercent: 250",
        "  weights: {old: 1}",
        "  weights: 3",
        "  weights: {old: 1, new: x}",
        "  trafficSplitPercent: 25\n  tls: {clientKeyFile: 3, clientCertFile: a}\n",
        "  trafficSplitPercent: 25\n  failover: {continuation: {mode: Any}}\n  drain: {moveAfterSeconds: 1}\n",
    ] {
        let found = problems(&format!(
            "{HEAD}  newFrontendService: https://new\n{fields}"
        ));
        assert_eq!(found.len(), 1, "{fields}: {found:#?}");
    }
    let found = problems(&format!("{HEAD}  trafficSplitPercent: 1\n  tls: {{}}\n"));
    assert_eq!(found, ["line 3: spec.newFrontendService: is required"]);
}

#[test]
fn without_any_split_a_manifest_is_refused() {
    for split in ["", "  weights: null\n", "  unknown: 1\n"] {
        let found = problems(&format!("{HEAD}  newFrontendService: new:1\n{split}"));
        let expected = "line 3: spec.trafficSplitPercent: is required, unless weights is given: only in a cluster can the \
                        split be left to the controller";
        assert!(found.iter().any(|found| found == expected), "{found:#?}");
    }
}

#[test]
fn the_envelope_must_be_that_of_the_resource() {
    let spec = "spec: {newFrontendService: new:1, trafficSplitPercent: 1}\n";
    for (text, expected) in [
        (
            format!("kind: DynamoUpdateConfig\n{spec}"),
            "line 1: apiVersion: is required, and must be nvidia.com/v1alpha1",
        ),
        (
            format!("apiVersion: nvidia.com/v1\nkind: DynamoUpdateConfig\n{spec}"),
            "line 1: apiVersion: must be nvidia.com/v1alpha1, not the text \"nvidia.com/v1\"",
        ),
        (
            format!("apiVersion: nvidia.com/v1alpha1\nkind: Pod\n{spec}"),
            "line 2: kind: must be DynamoUpdateConfig, not the text \"Pod\"",
        ),
        (HEAD.to_owned(), "line 3: spec: must be an object, not null"),
        (
            HEAD.replace("spec:", "specs:"),
            "line 3: specs: unknown field; did you mean 'spec'?",
        ),
        (
            format!("{}{spec}paused: true\n", HEAD.replace("spec:\n", "")),
            "line 4: paused: unknown field; it belongs under 'spec'",
        ),
        (
            format!("{}{spec}data: {{}}\n", HEAD.replace("spec:\n", "")),
            "line 4: data: unknown field",
        ),
        (
            format!("{}{spec}kind: Pod\n", HEAD.replace("spec:\n", "")),
            "line 4: kind: is already set on line 2",
        ),
        (
            "a list".into(),
            "line 1: must be a DynamoUpdateConfig, not the text \"a list\"",
        ),
        ("kind: List\n".into(), "line 1: items: must be a list"),
        (
            "kind: List\nitems: []\n".into(),
            "line 2: items: must contain exactly one DynamoUpdateConfig, contains 0",
        ),
        (
            "kind: List\nitems: [{}, {}]\n".into(),
            "line 2: items: must contain exactly one DynamoUpdateConfig, contains 2",
        ),
    ] {
        let found = problems(&text);
        assert!(
            found.iter().any(|found| found == expected),
            "{text}: {found:#?}"
        );
    }
}

#[test]
fn the_fields_of_a_resource_of_another_kind_are_not_reported() {
    let found =
        problems("apiVersion: apps/v1\nkind: Deployment\nspec: {replicas: 1}\nstatuss: {}\n");
    let expected = "line 2: kind: must be DynamoUpdateConfig, not the text \"Deployment\"";
    assert_eq!(found, [expected]);
}

#[test]
fn all_problems_come_at_once_in_the_order_of_lines() {
    let found = problems(
        "apiVersion: v1\nkind: DynamoUpdateConfig\nstatuss: {}\nspec:\n  weights: {old: 0, new: 0}\n  \
         newFrontendService: new\n  probe: {path: x}\n  models: [1]\n  color: red\n  color: blue\n  \
         failover: {holdSeconds: -1}\n",
    );
    let lines: Vec<_> = found
        .iter()
        .map(|found| found.split(':').next().unwrap())
        .collect();
    let expected: Vec<_> = [1, 3, 5, 6, 7, 8, 9, 10, 11]
        .map(|line| format!("line {line}"))
        .into();
    assert_eq!(lines, expected, "{found:#?}");
}
