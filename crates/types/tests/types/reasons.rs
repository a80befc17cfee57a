use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use muster_types::{Refusal, RefusalCode, Violation};

/// Every code has a page for users, and every page is of a code; its title names both.
#[test]
fn every_code_has_its_page() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/reasons");
    let mut pages = BTreeMap::new();
    for entry in std::fs::read_dir(&directory).unwrap() {
        let path = entry.unwrap().path();
        let file = path.file_name().unwrap().to_str().unwrap().to_string();
        pages.insert(file, std::fs::read_to_string(&path).unwrap());
    }
    let expected: BTreeSet<String> = RefusalCode::ALL.iter().map(|c| format!("{}.md", c.number())).collect();
    assert_eq!(pages.keys().cloned().collect::<BTreeSet<_>>(), expected);
    for code in RefusalCode::ALL {
        let page = &pages[&format!("{}.md", code.number())];
        let title = format!("# {} {}", code.number(), code.name());
        assert_eq!(page.lines().next(), Some(title.as_str()));
        assert_eq!(page.lines().filter(|line| line.starts_with("# ")).count(), 1);
        assert!(page.contains("\n## What to do\n"), "{code} says what to do next");
        let section =
            page.split("\n## Facts\n").nth(1).and_then(|rest| rest.split("\n## ").next()).unwrap_or_default();
        let listed: Vec<&str> =
            section.lines().filter_map(|line| line.strip_prefix("- `")?.split('`').next()).collect();
        assert_eq!(listed, code.facts(), "{code} explains its facts");
    }
}

#[test]
fn numbers_and_names_are_unique_and_well_formed() {
    let numbers: BTreeSet<&str> = RefusalCode::ALL.iter().map(|c| c.number()).collect();
    let names: BTreeSet<&str> = RefusalCode::ALL.iter().map(|c| c.name()).collect();
    assert_eq!((numbers.len(), names.len()), (RefusalCode::ALL.len(), RefusalCode::ALL.len()));
    for code in RefusalCode::ALL {
        let digits = code.number().strip_prefix("MS-").unwrap();
        assert!(digits.len() == 4 && digits.bytes().all(|b| b.is_ascii_digit()), "{}", code.number());
        assert!(code.name().bytes().all(|b| b.is_ascii_uppercase() || b == b'_'), "{}", code.name());
    }
}

#[test]
fn a_refusal_says_first_what_is_wrong() {
    let one = vec![Violation::new("groups", "must be something else")];
    assert_eq!(
        Refusal::fields(one.clone()).to_string(),
        "MS-1001 INVALID_FIELD: groups: must be something else"
    );
    let two = vec![one[0].clone(), Violation::limit("workers", 0, 1, 5).under("groups[0]")];
    let refusal = Refusal::fields(two);
    assert_eq!(refusal.message, "groups: must be something else (and 1 more)");
    assert_eq!(refusal.violations[1].to_string(), "groups[0].workers: must be between 1 and 5, got 0");
    let refusal = Refusal::new(RefusalCode::PolicyChanged, "it has changed").with("version", 7);
    assert_eq!(refusal.metadata, [("version", "7".to_string())]);
}

#[test]
#[should_panic(expected = "lists no fact")]
fn a_fact_that_is_not_listed_is_noticed() {
    let _ = Refusal::new(RefusalCode::JobNotFound, "there is none").with("versoin", 7);
}
