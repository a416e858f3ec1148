//! Observes a stream of server-sent events: where events end, what they mean in each API family, and how the stream ended. Pure:
//! bytes and instants are arguments. Never alters the bytes.

mod byte_order_mark;
mod decoder;
mod event_type;
mod family;
mod keep_alive;
mod meaning;
mod openings;
mod postcommit;
mod precommit;
mod prescan;
mod reported_error;
mod sequence;
mod timeline;
mod usage;

#[cfg(test)]
mod reference;
#[cfg(test)]
mod tests;

pub use byte_order_mark::ByteOrderMark;
pub use decoder::{Decoder, Event, Events};
pub use family::{Api, DONE, error_body, error_event};
pub use meaning::{Meaning, Tail, is_terminal, meaning, tail_meaning};
pub use openings::Openings;
pub use postcommit::{TailAction, TailPolicy};
pub use precommit::{EventAction, HoldPolicy};
pub use prescan::{Prescan, Prescans};
pub use sequence::last_number;
pub use timeline::{End, Outcome, Timeline};
pub use usage::{Usage, model, usage, usage_of_json_body};
