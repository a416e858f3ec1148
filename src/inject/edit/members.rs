//! The positions of the members of mappings and lists.

use crate::inject::cut;
use crate::inject::tree::{Node, Value};

/// The range of the members of a mapping or list.
pub(super) struct Members {
    pub flow: bool,
    pub count: usize,
    /// The first key, dash or item.
    pub first: usize,
    /// The position after the last member, or after the opening bracket.
    pub end: usize,
}

impl Members {
    pub fn of(text: &str, node: &Node) -> Option<Self> {
        let (flow, count, first, end) = match &node.value {
            Value::Map { flow, entries } => (
                *flow,
                entries.len(),
                entries.first().map(|entry| entry.key_span.start),
                entries.last().map(|entry| entry.node.span.end),
            ),
            Value::List { flow, items } => {
                let first = items.first().map(|item| match flow {
                    true => item.span.start,
                    false => cut::dash(text, item.span.start),
                });
                (
                    *flow,
                    items.len(),
                    first,
                    items.last().map(|item| item.span.end),
                )
            }
            _ => return None,
        };
        Some(Self {
            flow,
            count,
            first: first.unwrap_or(node.span.start + 1),
            end: end.unwrap_or(node.span.start + 1),
        })
    }
}
