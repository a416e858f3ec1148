//! Finds the position for an addition, and writes it in the style of its surroundings.

use serde_json::Value as Json;

use super::members::Members;
use super::{Addition, Editor};
use crate::inject::Refused;
use crate::inject::cut::{Cut, column, line_end};
use crate::inject::emit;
use crate::inject::path;
use crate::inject::tree::Node;

impl Editor<'_> {
    pub(super) fn add(&mut self, addition: &Addition, before: usize) -> Result<(), Refused> {
        let Addition { parent, value, .. } = addition;
        if let Some(key) = addition.key()
            && let Some((_, entry)) = self.entry(&path::below(parent, [key]))?
        {
            // The key exists, without a value.
            let new = format!(" {}", emit::flow(value, None, &self.style));
            self.cut(entry.colon..entry.node.span.end, new, parent.len());
            return Ok(());
        }
        let Some(node) = self.node(parent)? else {
            return Err(self.no_place(parent, "there"));
        };
        let cut = match Members::of(self.tree.text, node) {
            Some(members) if members.flow => self.in_flow(&members, node, addition, before),
            Some(members) => self.in_block(&members, addition),
            None => return Err(self.no_place(parent, "a mapping or a list")),
        };
        self.cuts.push(cut);
        Ok(())
    }

    /// The position after the last member of a block-style mapping or list, on separate lines.
    fn in_block(&self, members: &Members, addition: &Addition) -> Cut {
        let text = self.tree.text;
        let column = column(text, members.first);
        let lines = match addition.key() {
            Some(key) => emit::entry(key, &addition.value, column, &self.style),
            None => emit::item(&addition.value, column, &self.style),
        };
        let at = line_end(text, members.end);
        let newline = self.style.newline;
        Cut {
            range: at..at,
            text: match at > 0 && text.as_bytes()[at - 1] != b'\n' {
                // The last line has no line break and does not get one.
                true => format!("{newline}{}", lines.trim_end_matches(['\r', '\n'])),
                false => lines,
            },
            depth: addition.parent.len(),
        }
    }

    /// The position after the last member of a flow-style mapping or list, where `before` others have already been added.
    fn in_flow(&self, members: &Members, node: &Node, addition: &Addition, before: usize) -> Cut {
        let text = self.tree.text;
        let own_lines = text[node.span.start..members.first].contains('\n');
        let column = own_lines.then(|| column(text, members.first));
        let value = emit::flow(&addition.value, column, &self.style);
        let value = match addition.key() {
            Some(key) => format!("{}: {value}", Json::from(key)),
            None => value,
        };
        let is_first = members.count == 0 && before == 0;
        let text = match (is_first, column) {
            (true, _) => value,
            (false, None) => format!(", {value}"),
            (false, Some(column)) => {
                format!(",{}{}{value}", self.style.newline, " ".repeat(column))
            }
        };
        Cut {
            range: members.end..members.end,
            text,
            depth: addition.parent.len(),
        }
    }
}
