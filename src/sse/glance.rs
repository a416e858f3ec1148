//! One look at a slice for what few events have, so that those in it need not be looked through one by one.
//!
//! Must not know: where in the slice events begin and end.

use std::sync::LazyLock;

use memchr::memmem::Finder;

use super::meaning::{late_by_error, late_by_form};
use super::{Api, Event, Late, Usage, usage};

/// What may be in the events that lie whole in a slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Glance {
    usage: bool,
    error: bool,
}

impl Glance {
    /// For an event that began in an earlier slice: anything may be in it.
    pub const NONE: Self = Self {
        usage: true,
        error: true,
    };

    /// Looks at a slice. Two passes over its bytes.
    #[must_use]
    pub fn at(slice: &[u8]) -> Self {
        static USAGE: LazyLock<Finder<'_>> = LazyLock::new(|| Finder::new(b"\"usage\""));
        static ERROR: LazyLock<Finder<'_>> = LazyLock::new(|| Finder::new(b"\"error\""));
        Self {
            usage: USAGE.find(slice).is_some(),
            error: ERROR.find(slice).is_some(),
        }
    }

    /// As [`usage`], for an event of the slice.
    #[must_use]
    #[inline]
    pub fn usage(self, api: Api, event: &Event<'_>) -> Option<Usage> {
        if self.usage {
            usage(api, event.data)
        } else {
            None
        }
    }

    /// As [`late_meaning`](super::late_meaning), for an event of the slice.
    #[must_use]
    #[inline]
    pub fn late_meaning(self, api: Api, event: &Event<'_>) -> Late {
        match late_by_form(api, event) {
            Some(late) => late,
            None if self.error => late_by_error(event),
            None => Late::Nothing,
        }
    }
}
