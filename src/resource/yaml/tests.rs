//! Tests which texts are read, and with which lines and values.

use proptest::prelude::*;

use super::*;

fn read(text: &str) -> Result<Node, String> {
    let mut problems = Problems::default();
    match parse(text, &mut problems) {
        Some(node) if problems.is_empty() => Ok(node),
        _ => Err(problems.to_string()),
    }
}

#[test]
fn scalars_follow_the_core_schema() {
    for (text, shown) in [
        ("25", "25"),
        ("-25", "-25"),
        ("+25", "25"),
        ("0x1F", "31"),
        ("0o17", "15"),
        ("0", "0"),
        ("0.5", "0.5"),
        (".5", "0.5"),
        ("1e3", "1000.0"),
        ("-.inf", "-inf"),
        (".nan", "NaN"),
        ("99999999999999999999", "1e20"),
        ("true", "true"),
        ("FALSE", "false"),
        ("~", "null"),
        ("yes", "the text \"yes\""),
        ("\"25\"", "the text \"25\""),
        ("!!str 25", "the text \"25\""),
        ("010", "the text \"010\""),
        ("infinity", "the text \"infinity\""),
        ("1_000", "the text \"1_000\""),
        ("0xyz", "the text \"0xyz\""),
        (".", "the text \".\""),
        ("[1]", "a list"),
        ("{}", "an object"),
    ] {
        let Value::List(items) = read(&format!("- {text}")).unwrap().value else {
            panic!("a list");
        };
        assert_eq!(items[0].value.to_string(), shown, "{text}");
    }
}

#[test]
fn a_path_leads_to_its_line_or_that_of_its_nearest_parent() {
    let text = "spec:\n  a:\n    b: 1\n  list:\n  - x\n  - c: 1\n    d: {e: 1,\n      f: 2}\nblock: |\n  x\n\nafter: 1\n";
    for line_end in ["\n", "\r\n"] {
        let root = read(&text.replace('\n', line_end)).unwrap();
        for (path, line) in [
            ("spec", 1),
            ("spec.a", 2),
            ("spec.a.b", 3),
            ("spec.a.missing", 2),
            ("spec.list[0]", 5),
            ("spec.list[1].c", 6),
            ("spec.list[1].d.f", 8),
            ("spec.list[9]", 4),
            ("other", 1),
            ("after", 12),
        ] {
            assert_eq!(root.line_of(path), Some(line), "{path}");
        }
    }
}

#[test]
fn an_alias_stands_for_its_anchor() {
    let root = read("a: &x {b: [1]}\nc: *x\nd: *x").unwrap();
    assert_eq!(root.line_of("c"), Some(2));
    assert!(matches!(
        root.get("d").unwrap().get("b").unwrap().value,
        Value::List(_)
    ));
}

#[test]
fn only_a_single_bounded_document_is_accepted() {
    let bomb: String = (1..30).fold("a0: &a0 [x, x]\n".into(), |text, n| {
        let before = n - 1;
        text + &format!("a{n}: &a{n} [*a{before}, *a{before}]\n")
    });
    let long = "x".repeat(MAX_BYTES / 2);
    for (text, message) in [
        ("", "contains no document"),
        ("# only a comment\n", "contains no document"),
        ("---\n---\n", "contains no document"),
        ("a: 1\n---\nb: 2\n", "line 3: a second document"),
        ("a: 1\n---\nb: [1\n", "not valid YAML"),
        ("a: 1\nb: [1\n", "not valid YAML"),
        ("a: 1\n b: 2\n", "line 2: not valid YAML"),
        ("a: *nothing", "line 1: not valid YAML"),
        ("a: &x [*x]", "line 1: an alias of an anchor"),
        ("? [a]\n: 1", "line 1: the name of a field"),
        (
            "a: 1\nb:\n  c: 1\n  c: 2\n",
            "line 4: b.c: is already set on line 3",
        ),
        (&bomb, "expand to more than"),
        (
            &format!("a: &x {long}\nb: [*x, *x, *x]"),
            "line 2: anchors and aliases expand to more than",
        ),
        (&"[".repeat(MAX_BYTES), "not valid YAML: recursion limit"),
        (
            &"{a: ".repeat(MAX_BYTES / 4),
            "not valid YAML: recursion limit",
        ),
        (&"- ".repeat(MAX_BYTES / 2), "nested deeper than 64"),
        (&"? ".repeat(MAX_BYTES / 2), "the name of a field"),
        (&"x".repeat(MAX_BYTES + 1), "too large"),
    ] {
        let shown = text.chars().take(30).collect::<String>();
        let error = read(text).expect_err(&shown);
        assert!(error.contains(message), "{shown}: {error}");
    }
}

#[test]
fn empty_documents_and_a_byte_order_mark_do_not_count() {
    for text in [
        "---\na: 1\n",
        "a: 1\n---\n",
        "\u{feff}a: 1",
        "---\n---\na: 1\n...\n",
    ] {
        assert!(read(text).unwrap().get("a").is_some(), "{text}");
    }
}

proptest! {
    #[test]
    fn no_text_makes_it_panic(text in "([a-c:,{}\\[\\]&*!?|>'\"#%@-]|\\PC|  |: |- |\n){0,60}") {
        let _ = read(&text);
    }
}
