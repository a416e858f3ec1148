//! Processes the documents of a text: finds the objects that create pods of frontends, edits them, and collects the explanation.

mod lost;
mod record;
mod repeated;
mod survey;
mod uninject;

use serde_json::Value as Json;

use self::record::{added_arguments, annotate, prove, reading_hint, start};
use self::survey::Survey;
use super::documents::{Document, Lines, content, split};
use super::edit::Editor;
use super::path::Path;
use super::pod::{Injection, choose};
use super::record::Record;
use super::tree::Tree;
use super::workload::{Found, Unsupported, Workload, find};
use super::{
    Error, MAX_BYTES, Note, Options, Position, Refused, Report, live, path, policies, services,
    sidecar, tree,
};

/// One run over all documents.
#[derive(Default)]
pub(super) struct Run {
    document: usize,
    /// Whether a document contains more than comments.
    pub has_objects: bool,
    notes: Vec<Note>,
    /// The result of an injection.
    pub injected: Vec<services::Injected>,
    /// What tells the frontends from other servers with the same port.
    survey: Survey,
    /// How many already had a sidecar that inject did not add.
    pub present: usize,
    /// The objects that create pods and were left unchanged.
    pub seen: Vec<String>,
    /// Why some of them cannot be edited.
    pub unsupported: Vec<Unsupported>,
    services: Vec<(usize, Json)>,
    accounts: Vec<(usize, Json)>,
    policies: Vec<(usize, Json)>,
    other_policies: Vec<(usize, Json)>,
}

impl Run {
    pub fn all(
        &mut self,
        text: &str,
        edit: impl Fn(&mut Self, Document<'_>) -> Result<Option<String>, Error>,
    ) -> Result<Report, Error> {
        if text.len() > MAX_BYTES {
            return Err(Error::TooLarge);
        }
        let (mark, text) = match text.strip_prefix('\u{feff}') {
            Some(rest) => ("\u{feff}", rest),
            None => ("", text),
        };
        let mut result = String::with_capacity(text.len() + 8192);
        result.push_str(mark);
        for document in split(text) {
            let inner = content(document.text);
            if inner.is_empty() {
                result.push_str(document.text);
                continue;
            }
            self.document += 1;
            let edited = edit(
                self,
                Document {
                    text: inner,
                    ..document
                },
            )?;
            result.push_str(edited.as_deref().unwrap_or(inner));
            result.push_str(&document.text[inner.len()..]);
        }
        self.notes
            .extend(services::notes(&self.services, &self.injected));
        self.notes
            .extend(services::of_accounts(&self.accounts, &self.injected));
        self.notes
            .extend(policies::notes(&self.policies, &self.injected));
        self.notes
            .extend(policies::of_others(&self.other_policies, &self.injected));
        Ok(Report {
            text: result,
            notes: std::mem::take(&mut self.notes),
        })
    }

    fn read<'a>(&self, document: Document<'a>) -> Result<Option<(Tree<'a>, Json)>, Error> {
        let unreadable = |error: tree::Unreadable| Error::Unreadable {
            document: self.document,
            line: Lines::of(document).line(error.at),
            message: error.message + reading_hint(document.text, error.at),
        };
        let Some(tree) = Tree::read(document.text).map_err(unreadable)? else {
            return Ok(None);
        };
        let json = tree.json().map_err(unreadable)?;
        Ok(Some((tree, json)))
    }

    fn refused(
        &self,
        document: Document<'_>,
        tree: &Tree<'_>,
        object: &str,
        refused: Refused,
    ) -> Error {
        let at = match refused.place {
            Position::Byte(at) => at,
            Position::Path(path) => start(tree, &path),
        };
        Error::Refused {
            document: self.document,
            object: object.to_owned(),
            line: Lines::of(document).line(at),
            message: refused.message,
        }
    }

    pub fn inject(
        &mut self,
        document: Document<'_>,
        options: &Options,
        image: Option<&str>,
    ) -> Result<Option<String>, Error> {
        let Some((tree, json)) = self.read(document)? else {
            return Ok(None);
        };
        self.has_objects = true;
        let mut workloads = Vec::new();
        let lines = Lines::of(document);
        let object = |path: Path, kind: &str| {
            let mut object = path::get(&json, &path).cloned().unwrap_or_default();
            if object["kind"].is_null() {
                object["kind"] = kind.into();
            }
            (lines.line(start(&tree, &path)), object)
        };
        for found in find(&json) {
            match found {
                Found::Workload(workload) => {
                    if let Some(reason) = self.survey.not_named(&json, &workload, options) {
                        let at = lines.line(start(&tree, &workload.base));
                        self.seen.push(workload.name.clone());
                        self.notes.push(Note::new(&workload.name, at, reason));
                    } else {
                        workloads.push(*workload);
                    }
                }
                Found::Service(path) => self.services.push(object(path, "Service")),
                Found::ServiceAccount(path) => {
                    self.accounts.push(object(path, "ServiceAccount"));
                }
                Found::NetworkPolicy(path) => {
                    self.policies.push(object(path, policies::KIND));
                }
                Found::OtherPolicy(path) => {
                    self.other_policies.push(object(path, "?"));
                }
                Found::Unsupported { name, why } => {
                    let at = lines.line(tree.root.span.start);
                    let summary = format!("left as it is: {}", why.reason());
                    self.notes.push(Note::new(&name, at, summary));
                    self.seen.push(name);
                    self.unsupported.push(why);
                }
                Found::Other => {}
            }
        }
        if workloads.is_empty() {
            return Ok(None);
        }
        if let Some((key, at)) = &tree.twice {
            let refused = Refused::at(*at, format!("the key '{key}' is set twice"));
            return Err(self.refused(document, &tree, &workloads[0].name, refused));
        }
        for workload in &workloads {
            if let Some(path) = workload.malformed(&json) {
                let message = format!("{} must be a list", path::record_path(&json, &[], &path));
                let refused = Refused::of(&path, message);
                return Err(self.refused(document, &tree, &workload.name, refused));
            }
        }
        self.edit(document, &tree, &json, &workloads, options, image)
    }

    /// Adds one note for each workload. Also returns which of them have been injected.
    #[allow(clippy::too_many_arguments, reason = "there is only one call")]
    fn add(
        &mut self,
        document: Document<'_>,
        tree: &Tree<'_>,
        json: &Json,
        workloads: &[Workload],
        earlier: &[Option<(Record, Option<u16>)>],
        options: &Options,
        image: Option<&str>,
    ) -> Result<(String, Vec<bool>), Error> {
        let mut added = vec![false; workloads.len()];
        let mut editor = Editor::new(tree, json.clone());
        let lines = Lines::of(document);
        let mut last = "";
        for ((workload, earlier), added) in workloads.iter().zip(earlier).zip(&mut added) {
            let earlier_port = earlier.as_ref().and_then(|(_, port)| *port);
            let earlier = earlier.as_ref().map(|(earlier, _)| earlier);
            let options =
                earlier.map_or_else(|| options.clone(), |earlier| options.or(&earlier.options));
            let at = lines.line(start(tree, &workload.base));
            let refuse = |refused| self.refused(document, tree, &workload.name, refused);
            let by_hand = workload
                .everywhere(json)
                .into_iter()
                .any(|(_, container)| container["name"] == sidecar::NAME);
            if by_hand {
                let summary =
                    "left as it is: it has a container 'crossfade' that was not added by inject";
                self.notes.push(Note::new(&workload.name, at, summary));
                self.present += 1;
                continue;
            }
            let Some(frontend) = choose(json, workload, &options).map_err(refuse)? else {
                self.seen.push(workload.name.clone());
                let and = options
                    .port
                    .map(|port| format!(", and no container with port {port} (--port)"));
                let reason = format!(
                    "left as it is: it has no known frontend{}",
                    and.unwrap_or_default()
                );
                self.notes.push(Note::new(&workload.name, at, reason));
                continue;
            };
            if earlier.is_none()
                && let Some(reason) = self.survey.reason_against(&frontend, &options)
            {
                self.seen.push(workload.name.clone());
                self.notes.push(Note::new(&workload.name, at, reason));
                continue;
            }
            let Some(image) = options.image.as_deref().or(image) else {
                return Err(Error::NoImage);
            };
            let how = match options.plain_container {
                true => "a plain container",
                false => "a native sidecar, for Kubernetes 1.33 or later",
            };
            let mut note = Note::new(
                &workload.name,
                at,
                format!("crossfade {} is added as {how}", env!("CARGO_PKG_VERSION")),
            );
            let object = path::get(json, &workload.object);
            note.warnings.extend(object.and_then(live::before_inject));
            note.warnings.extend(object.and_then(live::owned));
            let containers = workload.containers(json);
            let list = containers
                .iter()
                .rev()
                .map(|(path, _)| &path[..path.len() - 1])
                .next()
                .unwrap_or(&[]);
            editor.begin(&workload.base, list).map_err(refuse)?;
            let mut injection = Injection {
                editor: &mut editor,
                root: json,
                workload,
                frontend: &frontend,
                image,
                options: &options,
                earlier_port,
                was_alone: earlier.is_some_and(|earlier| added_arguments(earlier, &options)),
                note: &mut note,
            };
            injection.run().map_err(refuse)?;
            annotate(&mut editor, workload, &options, earlier).map_err(refuse)?;
            self.injected
                .push(services::Injected::new(&editor, workload));
            self.notes.push(note);
            last = &workload.name;
            *added = true;
        }
        let refuse = |refused| self.refused(document, tree, last, refused);
        let text = editor.finish().map_err(refuse)?;
        prove(&text, workloads, document.text).map_err(refuse)?;
        Ok((text, added))
    }
}
