//! Finds the values that an injection added, wherever they are now. A value that has changed since is not removed.

use std::collections::BTreeSet;

use serde_json::Value as Json;

use super::Undo;
use crate::inject::Note;
use crate::inject::path::{self, Path, Step, below};
use crate::inject::record::Record;
use crate::inject::sidecar::FRONTEND_PORTS;
use crate::inject::workload::Workload;

/// The longest value that a warning shows, in bytes.
const MAX_SHOWN: usize = 400;

/// Values that were added one after the other, to the end of a list whose items have no names. Any other value is alone.
struct Added<'r> {
    recorded: Vec<&'r str>,
    /// The list, and the index of the first one.
    place: Option<(&'r str, usize)>,
}

impl Added<'_> {
    fn all(recorded: &[String]) -> Vec<Added<'_>> {
        let mut all: Vec<Added<'_>> = Vec::new();
        for recorded in recorded {
            let place = item(recorded);
            if let (Some((list, index)), Some(last)) = (place, all.last_mut())
                && last.place == Some((list, index.wrapping_sub(last.recorded.len())))
            {
                last.recorded.push(recorded);
                continue;
            }
            let recorded = vec![recorded.as_str()];
            all.push(Added { recorded, place });
        }
        all
    }
}

/// The list of an item without a name, and the item's index.
pub(super) fn item(recorded: &str) -> Option<(&str, usize)> {
    let (list, item) = recorded.rsplit_once('/')?;
    let index = item.strip_prefix("[#")?.strip_suffix(']')?;
    Some((list, index.parse().ok()?))
}

impl Undo<'_> {
    /// The paths of everything that is removed.
    pub(super) fn gone(
        &self,
        workload: &Workload,
        record: &Record,
        note: &mut Note,
    ) -> BTreeSet<Path> {
        let mut gone = BTreeSet::new();
        for added in Added::all(&record.added) {
            match added.place {
                Some((list, index)) => {
                    gone.extend(self.items(workload, record, &added, list, index, note));
                }
                None => gone.extend(self.value(workload, record, added.recorded[0], note)),
            }
        }
        let find = |recorded: &String| path::find(self.root, &workload.base, recorded);
        let mut made: Vec<Path> = record.made.iter().filter_map(find).collect();
        made.sort_by_key(|path| std::cmp::Reverse(path.len()));
        for path in made {
            // A list item needs its name while it has any other member.
            let is_item = matches!(path.last(), Some(Step::Item(_)));
            let is_empty = match path::get(self.root, &path) {
                Some(Json::Object(map)) => map.keys().all(|key| {
                    gone.contains(&below(&path, [key.as_str()])) || is_item && key == "name"
                }),
                Some(Json::Array(list)) => {
                    (0..list.len()).all(|index| gone.contains(&below(&path, [index])))
                }
                _ => false,
            };
            if is_empty {
                gone.insert(path);
            }
        }
        gone
    }

    /// The path of an added value, unless it has changed.
    fn value(
        &self,
        workload: &Workload,
        record: &Record,
        recorded: &str,
        note: &mut Note,
    ) -> Option<Path> {
        let path = path::find(self.root, &workload.base, recorded)?;
        let now = path::get(self.root, &path)?;
        // Earlier versions did not record the values.
        let Some(added) = record.values.get(recorded) else {
            return Some(path);
        };
        if self.defaults(workload).is_unchanged(now, added) {
            return Some(path);
        }
        if is_for_crossfade(now, added) {
            note.warn(format!(
                "{recorded} has been changed since the injection, but is removed, because it has no effect without crossfade: it was {}",
                shown(now)
            ));
            return Some(path);
        }
        note.warn(format!(
            "{recorded} has been changed since it was added, and is kept: {}",
            shown(now)
        ));
        None
    }

    /// The paths of values that were added to a list at `index`, unless they have changed. They may have moved within the list.
    fn items(
        &self,
        workload: &Workload,
        record: &Record,
        added: &Added<'_>,
        list: &str,
        index: usize,
        note: &mut Note,
    ) -> Vec<Path> {
        let path = path::find(self.root, &workload.base, list);
        let items = path.as_ref().and_then(|path| path::get(self.root, path));
        let (Some(path), Some(items)) = (&path, items.and_then(Json::as_array)) else {
            return Vec::new();
        };
        let count = added.recorded.len();
        let values = added
            .recorded
            .iter()
            .map(|recorded| record.values.get(*recorded));
        let values: Option<Vec<&Json>> = values.collect();
        let defaults = self.defaults(workload);
        let is_it = |at: usize| {
            let Some(now) = items.get(at..at + count) else {
                return false;
            };
            match &values {
                Some(values) => now
                    .iter()
                    .zip(values)
                    .all(|(now, added)| defaults.is_unchanged(now, added)),
                None => is_port_argument(now, record) || now.iter().all(Json::is_object),
            }
        };
        let expected = || match &values {
            Some(values) => values
                .iter()
                .map(|value| shown(value))
                .collect::<Vec<_>>()
                .join(" "),
            None => "the argument for the port".to_owned(),
        };
        let at = match position(items.len(), index, is_it) {
            Ok(at) => at,
            Err(0) => {
                note.warn(format!(
                    "{list} has been changed since the injection and is kept: it does not contain {} as it was added",
                    expected()
                ));
                return Vec::new();
            }
            Err(count) => {
                note.warn(format!(
                    "{list} has been changed since the injection and is kept: it contains {} {count} times, and only one of them was added",
                    expected()
                ));
                return Vec::new();
            }
        };
        (at..at + count).map(|at| below(path, [at])).collect()
    }
}

/// Where an item of a list is: at `index` if it is there, or else in the only other place.
///
/// # Errors
/// The number of places, if it is not one.
pub(super) fn position(
    len: usize,
    index: usize,
    is_it: impl Fn(usize) -> bool,
) -> Result<usize, usize> {
    if is_it(index) {
        return Ok(index);
    }
    let places: Vec<_> = (0..len).filter(|at| is_it(*at)).collect();
    match places.as_slice() {
        [one] => Ok(*one),
        several => Err(several.len()),
    }
}

/// Whether these are the argument for a port that an earlier version added without recording its value.
fn is_port_argument(now: &[Json], record: &Record) -> bool {
    let [Json::String(flag), Json::String(port)] = now else {
        return false;
    };
    let is_flag = match &record.options.port_arg {
        Some(given) => given == flag,
        None => flag == "--port" || flag == "--http-port",
    };
    is_flag
        && FRONTEND_PORTS
            .iter()
            .any(|known| known.to_string() == *port)
}

/// Whether a probe or hook calls the same port as the one that was written, which has no meaning without crossfade.
pub(super) fn is_for_crossfade(now: &Json, written: &Json) -> bool {
    let port = &written["httpGet"]["port"];
    !port.is_null() && now["httpGet"]["port"] == *port
}

/// A value as a warning shows it.
pub(in crate::inject) fn shown(json: &Json) -> String {
    let text = match json {
        Json::String(text) => format!("'{text}'"),
        other => other.to_string(),
    };
    match text.char_indices().nth(MAX_SHOWN) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}
