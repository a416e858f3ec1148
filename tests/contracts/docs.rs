//! The documentation matches the program: metrics, causes, spans and plan files.

use std::collections::{BTreeMap, BTreeSet};

use crate::rig::proxy::run;
use crate::rig::*;
use crossfade::failover::Cause;
use crossfade::resource;
use crossfade::split::Reason;
use crossfade::sse::{Api, Outcome};
use crossfade::telemetry::Reject;
use serde_json::Value;

const README: &str = include_str!("../../README.md");
/// The pages with tables that are compared with the program.
const PAGES: &str = concat!(
    include_str!("../../docs/behaviour.md"),
    include_str!("../../docs/failures.md"),
    include_str!("../../docs/continuation.md"),
    include_str!("../../docs/plans.md"),
    include_str!("../../docs/controller.md"),
    include_str!("../../docs/deleting-old.md"),
    include_str!("../../docs/observability.md"),
);
const METRICS: &str = include_str!("../../src/telemetry/metrics/names.rs");
const ACCESS: &str = include_str!("../../src/telemetry/access.rs");
const SPANS: &str = include_str!("../../src/telemetry/trace/span.rs");
const EVERY_FIELD: &str = include_str!("../corpus/plan/good/every-field.yaml");

/// The cells of the rows of all tables with the head `| head …`.
fn rows(head: &str) -> Vec<Vec<&'static str>> {
    let mut rows = Vec::new();
    let mut inside = false;
    for line in PAGES.lines() {
        let Some(cells) = line.strip_prefix("| ") else {
            inside = false;
            continue;
        };
        if cells.starts_with(head) {
            inside = true;
        } else if inside && !cells.starts_with("---") {
            let cells = cells.trim_end_matches('|').split('|');
            rows.push(cells.map(str::trim).collect());
        }
    }
    assert!(!rows.is_empty(), "no table begins with | {head}");
    rows
}

/// The texts between backticks.
fn code(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

fn set<'a>(names: impl IntoIterator<Item = &'a str>) -> BTreeSet<&'a str> {
    names.into_iter().collect()
}

/// The type and label names of each metric, by name.
type Families = BTreeMap<String, (String, BTreeSet<String>)>;

fn families_shown(metrics: &crate::rig::proxy::Metrics) -> Families {
    let types = metrics.text.lines().filter_map(|line| {
        let (name, kind) = line.strip_prefix("# TYPE ")?.split_once(' ')?;
        Some((name.to_owned(), kind.to_owned()))
    });
    types
        .map(|(name, kind)| {
            let series = match kind.as_str() {
                "histogram" => format!("{name}_bucket"),
                _ => name.clone(),
            };
            let labels = metrics.of(&series).into_iter();
            let labels = labels.flat_map(|(labels, _)| labels.keys().cloned());
            let labels = labels.filter(|label| label != "le").collect();
            (name, (kind, labels))
        })
        .collect()
}

#[tokio::test]
async fn the_table_of_metrics_matches_the_metrics_page() {
    let old = Upstream::start(healthy("old")).await;
    let new = Upstream::start(healthy("new")).await;
    let plan = PlanFile::new(&manifest(&new.url(), 1, 1, "analysis: {}"));
    let proxy = Proxy::planned(&old, &plan, &[]).await;
    for _ in 0..2 {
        proxy.chat().await;
    }
    proxy.outcomes("completed", 2).await;
    proxy.counts("crossfade_analysis_verdict", &[], 1.0).await;
    let mut shown = families_shown(&proxy.metrics().await);
    let processes = shown.len();
    shown.retain(|name, _| !name.starts_with("process_"));
    assert!(shown.len() < processes, "no metrics of the process");

    let mut documented: Families = rows("metric | type")
        .into_iter()
        .map(|row| {
            let name = code(row[0]).next().unwrap().to_owned();
            let labels = row[2].split(", ").filter(|label| !label.is_empty());
            (
                name,
                (row[1].to_owned(), labels.map(str::to_owned).collect()),
            )
        })
        .collect();
    assert!(documented.remove("process_*").is_some());
    assert_eq!(documented, shown);

    let registered = METRICS.split('"').skip(1).step_by(2);
    let registered = set(registered.filter(|text| text.starts_with("crossfade_")));
    assert_eq!(registered, documented.keys().map(String::as_str).collect());
}

#[test]
fn the_readme_is_short() {
    assert!(README.len() <= 10_240, "{} bytes", README.len());
}

#[test]
fn closed_label_sets_are_documented() {
    let causes = rows("when | then | without a fallback,");
    let causes = set(causes
        .iter()
        .flat_map(|row| code(row.get(3).unwrap_or(&""))));
    assert_eq!(causes, set(Cause::ALL.map(Cause::as_str)));

    let rejects = rows("status | when");
    let rejects = set(rejects.iter().flat_map(|row| code(row[2])));
    assert_eq!(rejects, set(Reject::ALL.map(Reject::as_str)));

    let reasons = rows("reason | why");
    let reasons = set(reasons.iter().flat_map(|row| code(row[0])));
    // It is not the reason of a first assignment.
    let all = Reason::ALL.map(Reason::as_str).into_iter();
    assert_eq!(reasons, set(all.filter(|reason| *reason != "failover")));

    let closed = PAGES.split("labels are fixed").nth(1).unwrap();
    let closed = set(code(closed.split("\n\n").next().unwrap()));
    for name in Api::ALL
        .map(Api::as_str)
        .into_iter()
        .chain(Outcome::ALL.map(Outcome::as_str))
    {
        assert!(closed.contains(name), "{name}");
    }
}

#[test]
fn the_metrics_of_the_controller_are_documented() {
    let source = concat!(
        include_str!("../../src/controller/metrics.rs"),
        include_str!("../../src/controller/metrics/rollouts.rs"),
    );
    let registered = source.split('"').skip(1).step_by(2);
    let registered = set(registered.filter(|text| text.starts_with("crossfade_controller_")));
    let rows = rows("metric of the controller | type");
    let documented = set(rows.iter().flat_map(|row| code(row[0])));
    assert_eq!(documented, registered);
}

#[test]
fn the_attributes_of_spans_are_documented() {
    // Our own names are literals. Those of the semantic conventions are constants of their crate: `HTTP_ROUTE` is `http.route`.
    let as_constant = |name: &str| name.replace('.', "_").to_uppercase();
    let texts = SPANS.split('"').skip(1).step_by(2);
    let own = texts.filter(|text| text.starts_with("crossfade."));
    let words = SPANS.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let spaces = ["HTTP_", "URL_", "GEN_AI_", "ERROR_"];
    let constants = words.filter(|word| spaces.iter().any(|space| word.starts_with(space)));
    let made: BTreeSet<String> = own.chain(constants).map(as_constant).collect();
    let rows = rows("attribute | of");
    let documented: BTreeSet<String> = rows
        .iter()
        .flat_map(|row| code(row[0]))
        .map(as_constant)
        .collect();
    assert_eq!(documented, made);
}

#[test]
fn the_fields_of_access_lines_are_documented() {
    let written = ACCESS.split("name!(\"").skip(1);
    let written = written.map(|rest| rest.split('"').next().unwrap());
    // Every line begins with these.
    let fields = set(written.chain(["timestamp", "level", "target"]));
    let rows = rows("field | when");
    let documented = set(rows.iter().flat_map(|row| code(row[0])));
    assert_eq!(documented, fields);
}

#[test]
fn the_plans_on_the_pages_are_valid() {
    let text = [README, PAGES].concat();
    let blocks: Vec<&str> = text
        .split("```yaml\n")
        .skip(1)
        .map(|rest| rest.split("```").next().unwrap())
        // Skip manifests for other tools.
        .filter(|block| block.lines().any(|line| line == "kind: DynamoUpdateConfig"))
        .collect();
    assert_eq!(blocks.len(), 2);
    for block in blocks {
        let file = PlanFile::new(block);
        let output = run(&["check", &file.as_str()]);
        let printed = String::from_utf8_lossy(&output.stdout).into_owned();
        assert_eq!(output.status.code(), Some(0), "{printed}");
        assert!(printed.contains("25% to new"), "{printed}");
    }
}

#[test]
fn the_table_of_plan_fields_matches_the_schema() {
    let (manifest, _) = resource::load(EVERY_FIELD).unwrap();
    let in_a_cluster = set(manifest.without_effect.iter().copied());

    let mut fields = BTreeSet::new();
    for (name, schema) in properties(resource::schema()).unwrap() {
        // Some groups of fields have one row.
        let whole = name == "weights" || in_a_cluster.contains(name.as_str());
        if whole {
            fields.insert(name.clone());
        } else {
            fields_within(name, schema, &mut fields);
        }
    }
    fields.retain(|field| !in_a_cluster.contains(field.as_str()));
    let table = rows("field of `spec`");
    let table: BTreeSet<String> = table
        .iter()
        .flat_map(|row| code(row[0]))
        .map(str::to_owned)
        .collect();
    assert_eq!(table, fields);

    let paragraph = PAGES
        .split("\n\n")
        .find(|text| text.starts_with("Accepted in a file, but effective only"));
    let mut documented = set(code(paragraph.unwrap()));
    documented.remove("check");
    assert_eq!(documented, in_a_cluster);
}

/// Adds the names of the fields of the object `name`, or `name` itself if it is not an object.
fn fields_within(name: &str, schema: &Value, fields: &mut BTreeSet<String>) {
    match properties(schema) {
        None => drop(fields.insert(name.to_owned())),
        Some(inner) => {
            for (field, schema) in inner {
                fields_within(&format!("{name}.{field}"), schema, fields);
            }
        }
    }
}

/// The properties in the schema of an optional or required object.
fn properties(schema: &Value) -> Option<&serde_json::Map<String, Value>> {
    let found = schema.get("properties").and_then(Value::as_object);
    found.or_else(|| schema.get("anyOf")?.as_array()?.iter().find_map(properties))
}

/// `make analysis-table` writes it.
#[test]
fn the_table_of_simulated_rollouts_confirms_the_error_rates_of_the_verdict() {
    let page = include_str!("../../docs/analysis.md");
    let (_, table) = page
        .split_once("<!-- made by `make analysis-table` -->\n")
        .unwrap();
    let (table, _) = table.split_once("<!-- end -->").unwrap();
    let rows: Vec<Vec<&str>> = table
        .lines()
        .skip(2)
        .map(|row| row.trim_matches('|').split('|').map(str::trim).collect())
        .collect();
    let failed = |row: &[&str]| -> f64 { row[1].strip_suffix("%").unwrap().parse().unwrap() };
    let is_fine = |row: &&Vec<&str>| row[0].starts_with("equal") || row[0].ends_with("allows");
    let (fine, worse): (Vec<_>, Vec<_>) = rows.iter().partition(is_fine);
    assert!(fine.len() >= 4 && worse.len() >= 8, "{rows:#?}");
    for row in fine {
        assert!(row.len() == 4 && failed(row) <= 1.0, "{row:?}");
    }
    for row in worse {
        assert!(row.len() == 4 && failed(row) >= 99.0, "{row:?}");
        assert!(
            row[3].ends_with(" s") || row[3].ends_with(" min"),
            "{row:?}"
        );
    }
}
