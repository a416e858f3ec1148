//! The sequence numbers of a stream, read without parsing its events.

use std::sync::LazyLock;

use memchr::{memmem, memrchr2};

use super::Api;

static KEY: LazyLock<memmem::Finder<'_>> =
    LazyLock::new(|| memmem::Finder::new(b"\"sequence_number\""));

/// The sequence number of the last of these complete events that has one; always `None` in families without such numbers.
///
/// Searches the lines from the end, usually only the last one.
#[must_use]
#[inline]
pub fn last_number(api: Api, events: &[u8]) -> Option<u64> {
    if api.is_numbered() {
        search(events)
    } else {
        None
    }
}

fn search(events: &[u8]) -> Option<u64> {
    let mut rest = events;
    loop {
        let before = memrchr2(b'\n', b'\r', rest);
        let line = before.map_or(rest, |end| &rest[end + 1..]);
        if let Some(number) = number(line) {
            return Some(number);
        }
        rest = &rest[..before?];
    }
}

/// The number in a line of data. Generated text cannot match: its quotes are escaped.
fn number(line: &[u8]) -> Option<u64> {
    KEY.find_iter(line).find_map(|at| {
        let after = line[at + KEY.needle().len()..].trim_ascii_start();
        let value = after.strip_prefix(b":")?.trim_ascii_start();
        let digits = value.iter().take_while(|byte| byte.is_ascii_digit());
        let text = std::str::from_utf8(&value[..digits.count()]).ok()?;
        text.parse().ok()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_is_that_of_the_last_event_that_has_one() {
        for (events, expected) in [
            ("", None),
            (": \n\n", None),
            ("data: {\"sequence_number\":7}\n\n", Some(7)),
            ("data: {\"sequence_number\" : 7, \"x\":1}\r\n\r\n", Some(7)),
            ("data: {\"sequence_number\":7}\r\r", Some(7)),
            (
                "data: {\"sequence_number\":7}\n\ndata: {\"sequence_number\":8}\n\n: \n\ndata: [DONE]\n\n",
                Some(8),
            ),
            (
                "data: {\"sequence_number\":7,\"delta\":\"\\\"sequence_number\\\":9\"}\n\n",
                Some(7),
            ),
            (
                "data: {\"x\":[\"sequence_number\"],\"y\":{\"sequence_number\":{}},\"sequence_number\":7}\n\n",
                Some(7),
            ),
            ("data: {\"sequence_number\":-7}\n\n", None),
            ("data: {\"sequence_number\":99999999999999999999}\n\n", None),
        ] {
            assert_eq!(
                last_number(Api::Responses, events.as_bytes()),
                expected,
                "{events}"
            );
            assert_eq!(last_number(Api::Chat, events.as_bytes()), None);
        }
    }
}
