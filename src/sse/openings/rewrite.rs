//! Replaces ids and sequence numbers in the JSON of events without parsing the rest.

use memchr::memchr;

/// The same bytes with every id for which `known` returns another one, and every sequence number, replaced; `None` if nothing
/// changes.
///
/// Only complete values of the keys for ids are replaced, so generated text cannot be affected.
pub(super) fn rewrite<'a>(
    bytes: &[u8],
    known: impl Fn(&[u8]) -> Option<&'a [u8]>,
    mut number: impl FnMut(u64) -> u64,
) -> Option<Vec<u8>> {
    let mut out = Vec::new();
    // Everything before this offset has been copied to `out`.
    let mut copied = 0;
    let mut at = 0;
    while let Some((key, after)) = next_string(bytes, at) {
        at = after;
        let Some(value) = value_of_key(bytes, after) else {
            continue;
        };
        match key {
            b"id" | b"item_id" | b"response_id" | b"call_id" if bytes.get(value) == Some(&b'"') => {
                let Some((id, after)) = next_string(bytes, value) else {
                    continue;
                };
                at = after;
                if let Some(known) = known(id) {
                    out.extend_from_slice(&bytes[copied..=value]);
                    out.extend_from_slice(known);
                    copied = after - 1;
                }
            }
            b"sequence_number" => {
                let digits = bytes[value..]
                    .iter()
                    .take_while(|byte| byte.is_ascii_digit());
                let end = value + digits.count();
                let text = std::str::from_utf8(&bytes[value..end]).unwrap_or_default();
                let Ok(own) = text.parse() else { continue };
                let shown = number(own);
                if shown != own {
                    out.extend_from_slice(&bytes[copied..value]);
                    out.extend_from_slice(shown.to_string().as_bytes());
                    copied = end;
                }
            }
            _ => {}
        }
    }
    if copied == 0 {
        return None;
    }
    out.extend_from_slice(&bytes[copied..]);
    Some(out)
}

/// The next JSON string from `at` on, still escaped, and the offset after it. JSON strings have no line ends, so an
/// unterminated one on a line is skipped.
fn next_string(bytes: &[u8], at: usize) -> Option<(&[u8], usize)> {
    let mut start = at + memchr(b'"', &bytes[at..])? + 1;
    let mut end = start;
    loop {
        let rest = bytes.get(end..)?;
        let is_special = |byte: &u8| matches!(byte, b'"' | b'\\' | b'\n' | b'\r');
        end += rest.iter().position(is_special)?;
        match bytes[end] {
            b'"' => return Some((&bytes[start..end], end + 1)),
            b'\\' => end += 2,
            _ => {
                start = end + memchr(b'"', &bytes[end..])? + 1;
                end = start;
            }
        }
    }
}

/// Where the value begins, if the string that ended before `after` is a key.
fn value_of_key(bytes: &[u8], after: usize) -> Option<usize> {
    let skip = |from: usize| {
        let rest = bytes.get(from..)?;
        let blank = rest.iter().take_while(|byte| matches!(byte, b' ' | b'\t'));
        Some(from + blank.count())
    };
    let colon = skip(after)?;
    (bytes.get(colon) == Some(&b':')).then(|| skip(colon + 1))?
}

#[cfg(test)]
mod tests {
    use super::*;

    fn changed(text: &str) -> String {
        let known = |id: &[u8]| (id == b"second").then_some(&b"first"[..]);
        let changed = rewrite(text.as_bytes(), known, |number| number + 2);
        changed.map_or(text.to_owned(), |bytes| String::from_utf8(bytes).unwrap())
    }

    #[test]
    fn only_ids_that_are_the_whole_value_of_their_keys_change() {
        for (text, expected) in [
            (r#"{"id":"second"}"#, r#"{"id":"first"}"#),
            (
                r#"{"id" : "second","item_id":"second"}"#,
                r#"{"id" : "first","item_id":"first"}"#,
            ),
            (r#"{"id":"second2"}"#, r#"{"id":"second2"}"#),
            (r#"{"delta":"second"}"#, r#"{"delta":"second"}"#),
            (
                r#"{"delta":"\"id\":\"second\""}"#,
                r#"{"delta":"\"id\":\"second\""}"#,
            ),
            (
                r#"{"delta":"\\","id":"second"}"#,
                r#"{"delta":"\\","id":"first"}"#,
            ),
            (r#"{"x":["id","second"]}"#, r#"{"x":["id","second"]}"#),
            (r#"{"id":"#, r#"{"id":"#),
            (r#"{"id":"second"#, r#"{"id":"second"#),
            (r#"{"id":"second\"#, r#"{"id":"second\"#),
            (
                ": it\"s\ndata: {\"id\":\"second\"}\n\n",
                ": it\"s\ndata: {\"id\":\"first\"}\n\n",
            ),
            (
                ": it\"s\r\rdata: {\"id\":\"second\"}\r\r",
                ": it\"s\r\rdata: {\"id\":\"first\"}\r\r",
            ),
            (
                r#"{"sequence_number":9,"x":1}"#,
                r#"{"sequence_number":11,"x":1}"#,
            ),
            (r#"{"sequence_number":"9"}"#, r#"{"sequence_number":"9"}"#),
        ] {
            assert_eq!(changed(text), expected);
        }
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_are_taken(bytes in proptest::collection::vec(
            proptest::sample::select(&b"\"\\id:s \n{}1"[..]), 0..60,
        )) {
            let same = rewrite(&bytes, |_| None, |number| number);
            proptest::prop_assert_eq!(same, None);
        }
    }
}
