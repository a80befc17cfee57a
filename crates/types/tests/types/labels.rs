//! Labels, annotations and selectors.

use muster_types::metadata::{is_label_key, is_label_value};
use muster_types::{JobMetadata, LabelSelector, limits};
use proptest::prelude::*;
use std::collections::BTreeMap;

fn texts(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect()
}

fn labels(pairs: &[(&str, &str)]) -> JobMetadata {
    JobMetadata { labels: texts(pairs), ..JobMetadata::default() }
}

fn annotations(pairs: &[(&str, &str)]) -> JobMetadata {
    JobMetadata { annotations: texts(pairs), ..JobMetadata::default() }
}

#[test]
fn keys_and_values_are_those_of_kubernetes() {
    let long = "a".repeat(63);
    for key in ["team", "Team_1.x", "a", "0", "team.example/experiment", "a-b.c/X", long.as_str()] {
        assert!(is_label_key(key), "{key}");
    }
    let too_long = "a".repeat(64);
    let prefix_too_long = format!("{}/abcd", "a".repeat(60));
    for key in [
        "",
        "-a",
        "a-",
        ".a",
        "a.",
        "_",
        "a b",
        "ä",
        "a\u{7}",
        "a\n",
        "a/",
        "/a",
        "a//b",
        "a/b/c",
        "A/b",
        "a..b/c",
        "-a/b",
        too_long.as_str(),
        prefix_too_long.as_str(),
    ] {
        assert!(!is_label_key(key), "{key:?}");
    }
    for value in ["", "a", "V1.2_x-y", long.as_str()] {
        assert!(is_label_value(value), "{value}");
    }
    for value in [" ", "a ", "-", "a=b", "a,b", "ß", "a\0", too_long.as_str()] {
        assert!(!is_label_value(value), "{value:?}");
    }
}

#[test]
fn violations_name_the_key() {
    let many: BTreeMap<String, String> = (0..33).map(|n| (format!("k{n}"), String::new())).collect();
    let many = JobMetadata { labels: many, ..JobMetadata::default() };
    assert_eq!(many.violations()[0].to_string(), "labels: must be between 0 and 32 labels, got 33");
    let fields = |metadata: &JobMetadata| -> Vec<String> {
        metadata.violations().into_iter().map(|violation| violation.field).collect()
    };
    assert_eq!(fields(&labels(&[("good", "x"), ("team", "a b")])), ["labels.team"]);
    assert_eq!(fields(&labels(&[("", "x")])), ["labels.\"\""]);
    assert_eq!(fields(&labels(&[("é\u{1b}", "x")])), ["labels.é\\u{1b}"]);
    let long = "k".repeat(64);
    assert_eq!(fields(&labels(&[(&long, "x")])), [format!("labels.{long}")]);
    let longer = fields(&labels(&[(&"k".repeat(5_000), "x")]));
    assert!(longer[0].len() < 200, "{longer:?}");
    assert_eq!(fields(&annotations(&[("note", "two\nlines\tand ünïcode")])), Vec::<String>::new());
    assert_eq!(fields(&annotations(&[("note", "\u{1b}[31m")])), ["annotations.note"]);
    assert_eq!(fields(&annotations(&[("no te", "x")])), ["annotations.no te"]);
    let most = "x".repeat(limits::ANNOTATIONS_BYTES_MAX - 4);
    assert_eq!(fields(&annotations(&[("note", &most)])), Vec::<String>::new());
    assert_eq!(fields(&annotations(&[("note", &format!("{most}x"))])), ["annotations"]);
    let creator = |creator: &str| JobMetadata { creator: creator.to_owned(), ..JobMetadata::default() };
    let longest = format!("tenant/{}/{}", "t".repeat(63), "u".repeat(63));
    assert_eq!(fields(&creator(&longest)), Vec::<String>::new());
    assert_eq!(fields(&creator("an ill name")), ["creator"]);
    assert_eq!(fields(&creator(&"x".repeat(161))), ["creator"]);
    assert_eq!((creator("").creator(), creator("admin/ops").creator()), ("anonymous", "admin/ops"));
}

#[test]
fn selectors_select() {
    let job = texts(&[("team", "vision"), ("stage", "train"), ("a.b/c", ""), ("in", "x")]);
    for (text, expected) in [
        ("", true),
        ("   ", true),
        ("team=vision", true),
        ("team == vision , stage=train", true),
        ("team=speech", false),
        ("team=vision,stage=eval", false),
        ("team!=speech", true),
        ("team != vision", false),
        ("owner!=ada", true),
        ("stage in (train, eval)", true),
        ("stage in(train)", true),
        ("stage notin (train,eval)", false),
        ("owner notin (ada)", true),
        ("team", true),
        ("owner", false),
        ("!owner", true),
        ("! team", false),
        ("a.b/c=", true),
        ("a.b/c in ()", true),
        ("team=", false),
        ("in", true),
        ("in in (x)", true),
        ("notin", false),
    ] {
        let selector = LabelSelector::parse(text).unwrap_or_else(|e| panic!("{text}: {e}"));
        assert_eq!(selector.matches(&job), expected, "{text}");
        assert_eq!(LabelSelector::parse(&selector.to_string()), Ok(selector.clone()), "{text}");
        if selector.needs_labels() {
            assert!(!selector.matches(&BTreeMap::new()), "{text}");
        }
    }
    let selector = LabelSelector::parse("!owner").unwrap();
    assert!(!selector.needs_labels() && selector.matches(&BTreeMap::new()));
}

#[test]
fn errors_of_selectors_point_at_the_place() {
    for (text, at, expected) in [
        (",", 1, "expected the key of a label, found \",\""),
        ("team=a,", 8, "expected the key of a label, found the end"),
        ("team=a,,b", 8, "expected the key of a label, found \",b\""),
        ("team is a", 6, "expected =, !=, in, notin, `,` or the end, found \"is a\""),
        ("team in a", 9, "expected `(` and values, like (a,b), found \"a\""),
        ("team in (a", 11, "expected `,` and another value, or `)`, found the end"),
        ("team in (a b)", 12, "expected `,` and another value, or `)`, found \"b)\""),
        ("team in (a))", 12, "expected `,` and another term, or the end, found \")\""),
        ("é=1", 1, "expected the key of a label, found \"é=1\"; it must be 1 to 63"),
        ("a=é", 3, "expected the value of a label, found \"é\"; it must be empty"),
        ("a=b=c", 4, "expected `,` and another term, or the end, found \"=c\""),
        ("a!b", 2, "expected `,` and another term, or the end, found \"!b\""),
        ("!", 2, "expected the key of a label, found the end"),
        ("!!a", 2, "expected the key of a label, found \"!a\""),
        ("a=\u{7}", 3, "expected the value of a label, found \"\\u{7}\""),
    ] {
        let error = LabelSelector::parse(text).expect_err(text);
        assert_eq!(error.at, at, "{text}: {error}");
        assert!(error.description.starts_with(expected), "{text}: {error}");
    }
    let many = vec!["a"; 33].join(",");
    assert_eq!(LabelSelector::parse(&many).unwrap_err().at, 65);
    assert!(LabelSelector::parse(&vec!["a"; 32].join(",")).is_ok());
    let long = LabelSelector::parse(&format!("a in ({})", "b,".repeat(4_000))).unwrap_err();
    assert_eq!(long.to_string(), "character 1: a selector has at most 4096 bytes, this one 8007");
}

proptest! {
    #[test]
    fn no_text_makes_a_selector_panic(text in "[a-c=!,() é\u{0}\t]{0,40}|\\PC{0,40}") {
        if let Ok(selector) = LabelSelector::parse(&text) {
            prop_assert_eq!(LabelSelector::parse(&selector.to_string()), Ok(selector));
        }
    }
}
