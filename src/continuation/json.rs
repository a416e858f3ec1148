//! Finds the byte ranges of the members of a JSON object, so that single values can be replaced and all other bytes stay.

use std::borrow::Cow;
use std::ops::Range;

use memchr::{memchr2, memchr3};
use serde::de::IgnoredAny;

/// Maximum number of members that are read from an object. The members of a large body could take ten times its memory, without
/// being charged to the budget.
const MAX_MEMBERS: usize = 1024;

/// A member of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member<'a> {
    pub key: Cow<'a, str>,
    /// Where its key begins.
    pub start: usize,
    pub value: Range<usize>,
}

/// The members of an object.
#[derive(Clone, Debug)]
pub struct Object<'a> {
    pub text: &'a [u8],
    /// Its range in `text`, including the braces.
    pub range: Range<usize>,
    pub members: Vec<Member<'a>>,
}

/// Whether this is a single JSON value in UTF-8. Everything else here relies on it.
pub fn is_valid(text: &[u8]) -> bool {
    std::str::from_utf8(text).is_ok() && serde_json::from_slice::<IgnoredAny>(text).is_ok()
}

impl<'a> Object<'a> {
    /// The object that is all of a valid `text`.
    pub fn whole(text: &'a [u8]) -> Option<Self> {
        let start = after_blank(text, 0);
        let end = end_of_value(text, start)?;
        Self::at(text, start..end)
    }

    /// The object that lies there; `None` if it has too many members.
    pub fn at(text: &'a [u8], range: Range<usize>) -> Option<Self> {
        if text.get(range.start) != Some(&b'{') {
            return None;
        }
        let mut members = Vec::new();
        let mut at = after_blank(text, range.start + 1);
        while text.get(at)? != &b'}' {
            let start = at;
            let end = end_of_string(text, start)?;
            let key = string(&text[start..end])?;
            let colon = after_blank(text, end);
            let value = after_blank(text, colon + 1);
            let end = end_of_value(text, value)?;
            let value = value..end;
            if members.len() == MAX_MEMBERS {
                return None;
            }
            members.push(Member { key, start, value });
            at = after_comma(text, end)?;
        }
        Some(Self {
            text,
            range,
            members,
        })
    }

    /// The member of that name; the last one, if there are several.
    pub fn get(&self, key: &str) -> Option<&Member<'a>> {
        self.members.iter().rev().find(|member| member.key == key)
    }

    /// Whether it contains a name twice.
    pub fn repeats(&self) -> bool {
        let mut keys: Vec<&str> = self.members.iter().map(|member| &*member.key).collect();
        keys.sort_unstable();
        keys.windows(2).any(|pair| pair[0] == pair[1])
    }

    /// The bytes of the value of that name.
    pub fn value(&self, key: &str) -> Option<&'a [u8]> {
        self.get(key).map(|member| &self.text[member.value.clone()])
    }

    /// The value of that name, unless it is null.
    pub fn given(&self, key: &str) -> Option<&'a [u8]> {
        self.value(key).filter(|value| *value != b"null")
    }

    /// The object of that name.
    pub fn object(&self, key: &str) -> Option<Self> {
        Self::at(self.text, self.get(key)?.value.clone())
    }

    /// The edit that gives a member this value, or adds it at the end.
    pub fn set(&self, key: &str, value: &str) -> Edit {
        if let Some(member) = self.get(key) {
            return Edit::new(member.value.clone(), value);
        }
        let comma = if self.members.is_empty() { "" } else { "," };
        let end = self.range.end - 1;
        Edit::new(end..end, format!("{comma}\"{key}\":{value}"))
    }

    /// The edit that removes a member.
    pub fn remove(&self, key: &str) -> Option<Edit> {
        let at = self.members.iter().rposition(|member| member.key == key)?;
        let member = &self.members[at];
        let range = match (self.members.get(at + 1), at) {
            (Some(next), _) => member.start..next.start,
            (None, 0) => member.start..member.value.end,
            (None, _) => self.members[at - 1].value.end..member.value.end,
        };
        Some(Edit::new(range, ""))
    }
}

/// The elements of an array. They are not listed, because there may be millions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Elements {
    pub count: usize,
    pub last: Range<usize>,
}

impl Elements {
    /// The only element, if there is one and no other.
    pub fn only(self) -> Option<Range<usize>> {
        (self.count == 1).then_some(self.last)
    }

    /// The last element, if there is one.
    pub fn last(self) -> Option<Range<usize>> {
        (self.count > 0).then_some(self.last)
    }
}

/// The elements of the array that lies there.
pub fn elements(text: &[u8], range: Range<usize>) -> Option<Elements> {
    if text.get(range.start) != Some(&b'[') {
        return None;
    }
    let mut found = Elements::default();
    let mut at = after_blank(text, range.start + 1);
    while text.get(at)? != &b']' {
        let end = end_of_value(text, at)?;
        found.count += 1;
        found.last = at..end;
        at = after_comma(text, end)?;
    }
    Some(found)
}

/// The text of a string, quotes included.
pub fn string(quoted: &[u8]) -> Option<Cow<'_, str>> {
    let inner = quoted.strip_prefix(b"\"")?.strip_suffix(b"\"")?;
    if inner.contains(&b'\\') {
        return serde_json::from_slice::<String>(quoted)
            .ok()
            .map(Cow::Owned);
    }
    std::str::from_utf8(inner).ok().map(Cow::Borrowed)
}

/// Whether the value is null, or an empty string, list, or object.
pub fn is_blank(value: &[u8]) -> bool {
    match value {
        b"null" | b"\"\"" => true,
        [b'[', inner @ .., b']'] | [b'{', inner @ .., b'}'] => inner.trim_ascii().is_empty(),
        _ => false,
    }
}

/// A replacement for a part of a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Edit {
    at: Range<usize>,
    with: Vec<u8>,
}

impl Edit {
    pub fn new(at: Range<usize>, with: impl Into<Vec<u8>>) -> Self {
        Self {
            at,
            with: with.into(),
        }
    }
}

/// The text after all edits, which must not overlap. Edits at the same position keep their order.
pub fn edited(text: &[u8], mut edits: Vec<Edit>) -> Vec<u8> {
    edits.sort_by_key(|edit| edit.at.start);
    let added: usize = edits.iter().map(|edit| edit.with.len()).sum();
    let mut out = Vec::with_capacity(text.len() + added);
    let mut copied = 0;
    for edit in edits {
        out.extend_from_slice(&text[copied..edit.at.start]);
        out.extend_from_slice(&edit.with);
        copied = edit.at.end;
    }
    out.extend_from_slice(&text[copied..]);
    out
}

fn after_blank(text: &[u8], at: usize) -> usize {
    let rest = text.get(at..).unwrap_or_default();
    at + rest.len() - rest.trim_ascii_start().len()
}

/// Where the next member or element begins, or where the last one ends.
fn after_comma(text: &[u8], at: usize) -> Option<usize> {
    let at = after_blank(text, at);
    match text.get(at)? {
        b',' => Some(after_blank(text, at + 1)),
        b'}' | b']' => Some(at),
        _ => None,
    }
}

/// The end of the string that begins with the quote at `at`.
pub fn end_of_string(text: &[u8], at: usize) -> Option<usize> {
    if text.get(at) != Some(&b'"') {
        return None;
    }
    let mut at = at + 1;
    loop {
        at += memchr2(b'"', b'\\', text.get(at..)?)?;
        if text[at] == b'"' {
            return Some(at + 1);
        }
        at += 2;
    }
}

fn end_of_value(text: &[u8], at: usize) -> Option<usize> {
    let (open, close) = match text.get(at)? {
        b'"' => return end_of_string(text, at),
        b'{' => (b'{', b'}'),
        b'[' => (b'[', b']'),
        _ => {
            let ends = |byte: &u8| matches!(byte, b',' | b'}' | b']') || byte.is_ascii_whitespace();
            let rest = &text[at..];
            return Some(at + rest.iter().position(ends).unwrap_or(rest.len()));
        }
    };
    // In valid JSON, brackets of the other kind are balanced too, so only one kind needs counting.
    let mut depth = 0usize;
    let mut at = at;
    loop {
        at += memchr3(b'"', open, close, text.get(at..)?)?;
        match text[at] {
            b'"' => {
                at = end_of_string(text, at)?;
                continue;
            }
            byte if byte == open => depth += 1,
            _ => depth -= 1,
        }
        at += 1;
        if depth == 0 {
            return Some(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(text: &str) -> Vec<(String, &str)> {
        let object = Object::whole(text.as_bytes()).unwrap();
        let members = object.members.iter();
        members
            .map(|member| (member.key.to_string(), &text[member.value.clone()]))
            .collect()
    }

    #[test]
    fn members_are_found_whatever_lies_in_them() {
        let text =
            r#" { "a" : [1, {"b": "}]"}] ,"c\"":"x\\","\u0064" : -1.5e3, "e":{},"f":null } "#;
        let expected = [
            ("a", r#"[1, {"b": "}]"}]"#),
            ("c\"", r#""x\\""#),
            ("d", "-1.5e3"),
            ("e", "{}"),
            ("f", "null"),
        ];
        assert_eq!(keys(text), expected.map(|(key, value)| (key.into(), value)));
        assert_eq!(keys("{}"), []);
        assert_eq!(keys("{ }"), []);
        assert!(Object::whole(b"[1]").is_none());
        let list = elements(b"[1, \"]\" ,[2]]", 0..13).unwrap();
        assert_eq!((list.count, list.clone().last()), (3, Some(9..12)));
        assert_eq!(list.only(), None);
        assert_eq!(elements(b"[7]", 0..3).unwrap().only(), Some(1..2));
        assert_eq!(elements(b"[ ]", 0..3).unwrap().last(), None);
    }

    #[test]
    fn an_object_with_too_many_members_is_not_read() {
        let with = |count: usize| {
            let members: Vec<_> = (0..count).map(|key| format!("\"{key}\":0")).collect();
            format!("{{{}}}", members.join(","))
        };
        assert!(Object::whole(with(MAX_MEMBERS).as_bytes()).is_some());
        assert!(Object::whole(with(MAX_MEMBERS + 1).as_bytes()).is_none());
    }

    #[test]
    fn edits_change_only_what_they_name() {
        let text = br#"{ "a":1 , "b": 2,"c":3 }"#;
        let object = Object::whole(text).unwrap();
        let edit = |edits| String::from_utf8(edited(text, edits)).unwrap();
        let edits = vec![
            object.set("d", "4"),
            object.set("b", "20"),
            object.set("e", "5"),
        ];
        assert_eq!(edit(edits), r#"{ "a":1 , "b": 20,"c":3 ,"d":4,"e":5}"#);
        for (key, expected) in [
            ("a", r#"{ "b": 2,"c":3 }"#),
            ("b", r#"{ "a":1 , "c":3 }"#),
            ("c", r#"{ "a":1 , "b": 2 }"#),
        ] {
            assert_eq!(edit(vec![object.remove(key).unwrap()]), expected);
        }
        assert_eq!(object.remove("x"), None);
        let object = Object::whole(b"{}").unwrap();
        assert_eq!(edited(b"{}", vec![object.set("a", "1")]), br#"{"a":1}"#);
        let object = Object::whole(br#"{"a":1}"#).unwrap();
        assert_eq!(
            edited(object.text, vec![object.remove("a").unwrap()]),
            b"{}"
        );
    }

    #[test]
    fn a_name_that_comes_twice_is_noticed_even_if_it_is_escaped() {
        let repeats = |text: &str| Object::whole(text.as_bytes()).unwrap().repeats();
        assert!(repeats(r#"{"a":1,"b":2,"\u0061":3}"#));
        assert!(!repeats(r#"{"a":{"a":1},"b":2}"#));
    }

    proptest::proptest! {
        #[test]
        fn the_members_of_any_object_are_those_that_serde_finds(
            text in proptest::collection::vec(
                proptest::sample::select(vec![
                    "{", "}", "[", "]", ",", ":", "\"", "\\\"", "\\\\", "a", "1", " ", "null", "\"a\":", "é",
                ]),
                0..24,
            ),
        ) {
            let text = format!("{{{}}}", text.concat());
            if is_valid(text.as_bytes()) {
                let object = Object::whole(text.as_bytes()).expect("it is valid");
                let value: serde_json::Map<String, serde_json::Value> =
                    serde_json::from_str(&text).unwrap();
                for (key, value) in value {
                    let found = object.value(&key).expect("it is there");
                    let found: serde_json::Value = serde_json::from_slice(found).unwrap();
                    proptest::prop_assert_eq!(found, value);
                }
            } else {
                // Whatever the input is, it must not panic.
                let _ = Object::whole(text.as_bytes());
            }
        }
    }
}
