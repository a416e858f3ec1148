//! Records the changes, and proves that they can be undone.

use serde_json::Value as Json;

use crate::inject::edit::Editor;
use crate::inject::path::{self, Path, below};
use crate::inject::record::{ANNOTATION, Record, Replaced};
use crate::inject::tree::Tree;
use crate::inject::undo::{self, Undo};
use crate::inject::workload::Workload;
use crate::inject::{Note, Options, Refused, live, pod, sidecar};

/// Verifies that removal restores the text byte for byte; otherwise nothing is injected.
pub(super) fn prove(text: &str, workloads: &[Workload], before: &str) -> Result<(), Refused> {
    let odd_at = |at: usize| {
        Refused::at(
            at,
            "what is written here must change, and uninject could not restore it byte for byte: write it on one line, or as a \
             block (|)",
        )
    };
    let odd = || odd_at(0);
    let tree = Tree::read(text).ok().flatten().ok_or_else(odd)?;
    let json = tree.json().map_err(|_| odd())?;
    let mut undo = Undo::new(&tree, &json);
    let mut note = Note::new("", 0, "");
    for workload in workloads {
        if let Some(record) = undo::record(&json, workload)? {
            undo.take_back(workload, &record, &mut note)?;
        }
    }
    let restored = undo.finish();
    if restored == before {
        return Ok(());
    }
    let pairs = before.bytes().zip(restored.bytes());
    Err(odd_at(
        pairs.take_while(|(one, other)| one == other).count(),
    ))
}

/// Writes the record of the changes. `earlier` is the record of the injection that this one replaces.
pub(super) fn annotate(
    editor: &mut Editor<'_>,
    workload: &Workload,
    options: &Options,
    earlier: Option<&Record>,
) -> Result<(), Refused> {
    let place = below(&workload.annotations, [ANNOTATION]);
    editor.put(&place, "".into())?;
    let mut record: Record = editor.record().clone();
    // It cannot contain its own value.
    if let Some(own) = record.added.last() {
        record.values.remove(own);
    }
    env!("CARGO_PKG_VERSION").clone_into(&mut record.version);
    record.options = Options {
        image: None,
        ..options.clone()
    };
    if let Some(earlier) = earlier {
        keep_texts(&mut record, earlier);
    }
    let text = serde_json::to_string(&record).unwrap_or_default();
    editor.fill(&place, text.into())
}

/// Whether a frontend listens on its original port after an injection has been undone; `false` if its port is unknown.
///
/// # Errors
/// Where it listens instead, which clients do not expect.
pub(super) fn is_where_it_was(
    root: &Json,
    workload: &Workload,
    record: &Record,
) -> Result<bool, String> {
    let was = record.port;
    match pod::port(root, workload, &record.options) {
        Some(port) if port != was => Err(format!(
            "its port has been changed since the injection, so without crossfade, the frontend listens on port {port}, but \
             clients use port {was}"
        )),
        port => Ok(port.is_some()),
    }
}

/// Whether an earlier injection added the list of arguments, for the same flag.
pub(super) fn added_arguments(earlier: &Record, options: &Options) -> bool {
    let mut all = earlier.added.iter().chain(&earlier.made);
    options.port_arg.is_some()
        && options.port_arg == earlier.options.port_arg
        && all.any(|path| path.ends_with("/args"))
}

/// Keeps the text of each replaced value as the earlier record has it, unless the value has changed. An API server writes the
/// same value in another style, and a record with that text would change the pods and so restart them.
fn keep_texts(record: &mut Record, earlier: &Record) {
    for replaced in &mut record.replaced {
        let of_path = |earlier: &&Replaced| earlier.path == replaced.path;
        let Some(earlier) = earlier.replaced.iter().find(of_path) else {
            continue;
        };
        let value = replaced.original();
        if value.is_some() && value == earlier.original() {
            let new = replaced.new.take();
            *replaced = Replaced {
                new,
                ..earlier.clone()
            };
        }
    }
}

/// States in the note on an injected object that it is unchanged, so that nothing has to be applied.
pub(super) fn unchanged(note: &mut Note) {
    let version = env!("CARGO_PKG_VERSION");
    note.summary = format!("left as it is: it already has crossfade {version}");
    note.details.clear();
    note.warnings
        .retain(|warning| !live::is_about_writing(warning));
}

/// Whether the pods of a workload have the label for policies.
pub(super) fn has_label(document: &Json, workload: &Workload) -> bool {
    path::get(document, &below(&workload.labels, [pod::PROXY])).is_some()
}

/// The warning on pods that got crossfade from an earlier build, without the label for policies.
pub(super) fn without_label() -> String {
    format!(
        "its pods lack the label {}, so no NetworkPolicy can select them by it: an earlier build added crossfade; to add the label, \
         which restarts the pods, remove crossfade with uninject, and inject it again",
        pod::PROXY
    )
}

/// The document as if this version had written its records, without the parts that earlier versions did not record, and without
/// the indices of list items. A new version alone must not change the pods, which would restart them; neither must the label for
/// policies, which earlier versions did not add.
pub(super) fn with_this_version(mut document: Json, workloads: &[Workload]) -> Json {
    let label = path::record_path(&Json::Null, &[], &below(&[], ["labels", pod::PROXY]));
    for workload in workloads {
        if let Some(Json::Object(labels)) = path::get_mut(&mut document, &workload.labels) {
            labels.remove(pod::PROXY);
        }
        name_api_version(&mut document, workload);
        let place = below(&workload.annotations, [ANNOTATION]);
        if let Some(Json::String(text)) = path::get_mut(&mut document, &place)
            && let Ok(mut record) = serde_json::from_str::<Record>(text)
        {
            env!("CARGO_PKG_VERSION").clone_into(&mut record.version);
            record.added.retain(|recorded| !recorded.ends_with(&label));
            let written = serde_json::to_string(&record.without_values());
            *text = without_indices(&written.unwrap_or_default());
        }
    }
    document
}

/// Adds the version of a reference in crossfade's container, which earlier versions left to the API server.
fn name_api_version(document: &mut Json, workload: &Workload) {
    let all = workload.everywhere(document).into_iter();
    let own = all.filter(|(_, container)| container["name"] == sidecar::NAME);
    let own: Vec<_> = own.map(|(path, _)| below(&path, ["env"])).collect();
    for path in own {
        let variables = path::get_mut(document, &path).and_then(Json::as_array_mut);
        for variable in variables.into_iter().flatten() {
            if let Some(Json::Object(field)) = variable.pointer_mut("/valueFrom/fieldRef") {
                field.entry("apiVersion").or_insert_with(|| "v1".into());
            }
        }
    }
}

/// Whether a workload in `before` contains everything that it has in `after`, both from [`with_this_version`]. The rest of `before`
/// is what an API server adds, such as defaults.
pub(super) fn is_in(before: &Json, after: &Json, workload: &Workload) -> bool {
    let before = path::get(before, &workload.base);
    let after = path::get(after, &workload.base);
    matches!((before, after), (Some(before), Some(after)) if is_part(before, after))
}

/// Whether `all` contains `part`. The items of a list may have another order: what others have added after crossfade's items would
/// precede them if these were added again.
fn is_part(all: &Json, part: &Json) -> bool {
    match (all, part) {
        (Json::Object(all), Json::Object(part)) => {
            let is_there = |(key, part)| all.get(key).is_some_and(|all| is_part(all, part));
            part.iter().all(is_there)
        }
        (Json::Array(all), Json::Array(part)) => {
            let mut left: Vec<_> = all.iter().collect();
            let is_there = |part| {
                let at = left.iter().position(|all| is_part(all, part));
                at.map(|at| left.remove(at)).is_some()
            };
            all.len() == part.len() && part.iter().all(is_there)
        }
        (all, part) => all == part,
    }
}

/// The text of a record with `[#]` in place of `[#1]`.
fn without_indices(record: &str) -> String {
    let mut parts = record.split("[#");
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        text += "[#";
        text += part.trim_start_matches(|c: char| c.is_ascii_digit());
    }
    text
}

/// What is reused of the sidecar that a pod already has.
#[derive(Clone, Debug, Default)]
pub(super) struct Reused {
    pub image: Option<String>,
    /// The port of the frontend behind it.
    pub frontend_port: Option<u16>,
}

impl Reused {
    pub fn of(json: &Json, workload: &Workload) -> Self {
        let containers = workload.everywhere(json);
        let mut containers = containers.into_iter().map(|(_, container)| container);
        let Some(own) = containers.find(|container| container["name"] == sidecar::NAME) else {
            return Self::default();
        };
        let image = own["image"].as_str().map(str::to_owned);
        let mut variables = own["env"].as_array().into_iter().flatten();
        let old = variables.find(|variable| variable["name"] == "CROSSFADE_OLD");
        let old = old.and_then(|old| old["value"].as_str()?.rsplit(':').next());
        let frontend_port = old.and_then(|port| port.parse().ok());
        Self {
            image,
            frontend_port,
        }
    }
}

/// The start of the value at `path`.
pub(super) fn start(tree: &Tree<'_>, path: &Path) -> usize {
    let depths = (0..=path.len()).rev();
    let mut nodes = depths.filter_map(|depth| path::node(&tree.root, &path[..depth]).ok()?);
    nodes.next().map_or(0, |node| node.span.start)
}

/// What to do about a line that looks like one of a template, or that is indented with a tab.
pub(super) fn reading_hint(text: &str, at: usize) -> &'static str {
    let lines = text.split('\n').scan(0, |end, line| {
        *end += line.len() + 1;
        Some((*end, line))
    });
    let mut lines = lines
        .skip_while(|(end, _)| *end <= at)
        .map(|(_, line)| line);
    let has_tab = |line: &str| line.trim_start_matches(' ').starts_with('\t');
    let (first, second) = (
        lines.next().unwrap_or_default(),
        lines.next().unwrap_or_default(),
    );
    if first.contains("{{") {
        "; a template must be rendered first, for example by helm template"
    } else if has_tab(first) {
        "; the line is indented with a tab, but YAML allows only spaces there"
    } else if has_tab(second) {
        "; the next line is indented with a tab, but YAML allows only spaces there"
    } else {
        ""
    }
}
