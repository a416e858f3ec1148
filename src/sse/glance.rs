//! One look at a slice for what few events have, so that those in it need not be looked through one by one.
//!
//! Must not know: where in the slice events begin and end.

use super::meaning::{ERROR_KEY, late_by_error, late_by_form};
use super::usage::USAGE_KEY;
use super::{Api, Decoder, Event, Late, Usage, usage};

/// What may be in an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Glance {
    usage: bool,
    error: bool,
}

impl Glance {
    /// Nothing was looked at.
    const ANYTHING: Self = Self {
        usage: true,
        error: true,
    };

    /// Looks at a slice. Two passes over its bytes.
    fn at(slice: &[u8]) -> Self {
        Self {
            usage: USAGE_KEY.find(slice).is_some(),
            error: ERROR_KEY.find(slice).is_some(),
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

/// The glances for the events that end in a slice, one after the other. All that lie whole in it share one.
pub struct Glances<'a> {
    slice: &'a [u8],
    /// The first event began in an earlier slice.
    began: bool,
    around: Option<Glance>,
}

impl<'a> Glances<'a> {
    /// For the events of `slice`, which `decoder` is about to be fed.
    #[must_use]
    pub const fn before(decoder: &Decoder, slice: &'a [u8]) -> Self {
        Self {
            slice,
            began: decoder.mid_event(),
            around: None,
        }
    }

    /// For the next event.
    #[inline]
    pub fn of_next(&mut self) -> Glance {
        if std::mem::take(&mut self.began) {
            return Glance::ANYTHING;
        }
        *self.around.get_or_insert_with(|| Glance::at(self.slice))
    }
}
