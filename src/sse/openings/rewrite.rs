//! Replaces IDs, sequence numbers, and shared members in the JSON of events without parsing the rest.

use memchr::memchr;

use super::members::Members;

/// The same bytes with every ID for which `known` returns another one, every sequence number, and every member that is in `members`
/// replaced; `None` if nothing changes.
///
/// Only complete values of these keys are replaced, so generated text cannot be affected.
pub(super) fn rewrite<'a>(
    bytes: &[u8],
    known: impl Fn(&[u8]) -> Option<&'a [u8]>,
    mut number: impl FnMut(u64) -> u64,
    members: &Members,
) -> Option<Vec<u8>> {
    let mut out = Vec::new();
    // Everything before this offset has been copied to `out`.
    let mut copied = 0;
    let mut at = 0;
    let mut nesting = Nesting::default();
    while let Some((key, after)) = next_string(bytes, at) {
        nesting.follow(bytes, at, after - key.len() - 2);
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
            _ => {
                let Some(known) = members.value(key).filter(|_| nesting.depth == 1) else {
                    continue;
                };
                let Some(end) = end_of_scalar(bytes, value) else {
                    continue;
                };
                at = end;
                if bytes[value..end] != *known {
                    out.extend_from_slice(&bytes[copied..value]);
                    out.extend_from_slice(known);
                    copied = end;
                }
            }
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

/// The nesting depth of the JSON in the data of an event, which may have several lines.
#[derive(Default)]
struct Nesting {
    depth: u32,
    /// The current line is a data field.
    is_data: bool,
}

impl Nesting {
    /// Follows `bytes[from..to]`, which contains no strings.
    fn follow(&mut self, bytes: &[u8], from: usize, to: usize) {
        for at in from..to {
            let begins_line = match at.checked_sub(1).map(|before| bytes[before]) {
                None | Some(b'\n') => true,
                Some(b'\r') => bytes[at] != b'\n',
                Some(_) => false,
            };
            if begins_line {
                self.begin_line(&bytes[at..]);
            }
            match bytes[at] {
                b'{' | b'[' => self.depth += 1,
                b'}' | b']' => self.depth = self.depth.saturating_sub(1),
                _ => {}
            }
        }
    }

    fn begin_line(&mut self, line: &[u8]) {
        let continues = self.is_data;
        self.is_data = line.starts_with(b"data:");
        if !(continues && self.is_data) {
            self.depth = 0;
        }
    }
}

/// Where the value that begins at `from` ends; `None` if it is an object, a list, or incomplete.
fn end_of_scalar(bytes: &[u8], from: usize) -> Option<usize> {
    match bytes.get(from)? {
        b'"' => next_string(bytes, from).map(|(_, after)| after),
        b'{' | b'[' => None,
        _ => {
            let is_end = |byte: &u8| matches!(byte, b',' | b'}' | b' ' | b'\t' | b'\r' | b'\n');
            let length = bytes[from..].iter().position(is_end)?;
            Some(from + length)
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
        let mut members = Members::default();
        members.learn(br#"{"created":1,"model":"first","system_fingerprint":null}"#);
        let changed = rewrite(text.as_bytes(), known, |number| number + 2, &members);
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

    #[test]
    fn shared_members_change_only_at_the_top_of_an_event() {
        for (text, expected) in [
            (
                r#"data: {"created":22,"model":"second","x":1}"#,
                r#"data: {"created":1,"model":"first","x":1}"#,
            ),
            (
                r#"data: {"x":[{"y":"{"}], "created" : 22 }"#,
                r#"data: {"x":[{"y":"{"}], "created" : 1 }"#,
            ),
            (
                "data: {\"system_fingerprint\":\"fp\"}\r\n\r\n",
                "data: {\"system_fingerprint\":null}\r\n\r\n",
            ),
            (
                ": {\"\ndata: {\"model\":\"a\\\"b\"}\n\n",
                ": {\"\ndata: {\"model\":\"first\"}\n\n",
            ),
            (
                "data: {\"x\": {\ndata: \"model\":\"second\"},\ndata: \"model\":\"second\"}\n\n",
                "data: {\"x\": {\ndata: \"model\":\"second\"},\ndata: \"model\":\"first\"}\n\n",
            ),
            (
                "data: {\r\ndata: \"created\":22}\r\n\r\ndata: {\"created\":22}\r\n\r\n",
                "data: {\r\ndata: \"created\":1}\r\n\r\ndata: {\"created\":1}\r\n\r\n",
            ),
            (
                "data: {{\n\ndata: {\"created\":22}\n\n",
                "data: {{\n\ndata: {\"created\":1}\n\n",
            ),
            (
                r#"data: {"x":{"model":"second"}}"#,
                r#"data: {"x":{"model":"second"}}"#,
            ),
            (
                r#"data: {"delta":"\"model\":\"second\""}"#,
                r#"data: {"delta":"\"model\":\"second\""}"#,
            ),
            (
                r#"data: {"model":{"x":1},"created":[2]}"#,
                r#"data: {"model":{"x":1},"created":[2]}"#,
            ),
            (r#"data: {"created":22"#, r#"data: {"created":22"#),
        ] {
            assert_eq!(changed(text), expected);
        }
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_are_taken(bytes in proptest::collection::vec(
            proptest::sample::select(&b"\"\\id:s \n{}1"[..]), 0..60,
        )) {
            let same = rewrite(&bytes, |_| None, |number| number, &Members::default());
            proptest::prop_assert_eq!(same, None);
        }
    }
}
