//! Searches a whole slice for rare fields, so that its events need not be searched individually.

use super::meaning::{tail_by_error, tail_by_form};
use super::reported_error::ERROR_KEY;
use super::usage::USAGE_KEY;
use super::{Api, Decoder, Event, Tail, Usage, usage};

/// The possible contents of the slice around an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prescan {
    usage: bool,
    error: bool,
}

impl Prescan {
    /// Nothing was searched.
    const ANYTHING: Self = Self {
        usage: true,
        error: true,
    };

    /// Searches a slice, in two passes over its bytes.
    fn of(slice: &[u8]) -> Self {
        Self {
            usage: USAGE_KEY.find(slice).is_some(),
            error: ERROR_KEY.find(slice).is_some(),
        }
    }

    /// Same as [`usage`], for an event of the slice.
    #[must_use]
    #[inline]
    pub fn usage(self, api: Api, event: &Event<'_>) -> Option<Usage> {
        if self.usage {
            usage(api, event.data)
        } else {
            None
        }
    }

    /// Same as [`tail_meaning`](super::tail_meaning), for an event of the slice.
    #[must_use]
    #[inline]
    pub fn tail_meaning(self, api: Api, event: &Event<'_>) -> Tail {
        match tail_by_form(api, event) {
            Some(tail) => tail,
            None if self.error => tail_by_error(event),
            None => Tail::Nothing,
        }
    }
}

/// The prescans for the events that end in a slice, one after the other. All events that are entirely in the slice share one.
pub struct Prescans<'a> {
    slice: &'a [u8],
    /// The first event began in an earlier slice.
    began: bool,
    shared: Option<Prescan>,
}

impl<'a> Prescans<'a> {
    /// The prescans for the events of `slice`, which is about to be fed to `decoder`.
    #[must_use]
    pub const fn before(decoder: &Decoder, slice: &'a [u8]) -> Self {
        Self {
            slice,
            began: decoder.mid_event(),
            shared: None,
        }
    }

    /// The prescan for the next event.
    #[inline]
    pub fn for_next(&mut self) -> Prescan {
        if std::mem::take(&mut self.began) {
            return Prescan::ANYTHING;
        }
        *self.shared.get_or_insert_with(|| Prescan::of(self.slice))
    }
}
