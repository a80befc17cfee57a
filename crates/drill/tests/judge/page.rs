//! Pages: what stands on them, and that nothing from outside is taken for part of them.

use muster_drill::judge::Verdict;
use muster_drill::report::{Page, Summary};

use crate::support::{Sample, sample};

fn verdict_of(sample: &Sample) -> Verdict {
    sample.judge()
}

/// Compares with a file that people can look at; `UPDATE_EXPECT=1` writes it. The name of one that was written: a
/// run that writes what it expects shows nothing.
fn expect(name: &'static str, actual: &str) -> Option<&'static str> {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata").join(name);
    if std::env::var_os("UPDATE_EXPECT").is_some() {
        std::fs::create_dir_all(path.parent().expect("it has a directory")).expect("a directory");
        std::fs::write(&path, actual).expect("a file");
        return Some(name);
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(expected == actual, "{name} is not what it was: look at it, and UPDATE_EXPECT=1 to keep it");
    None
}

#[test]
fn pages_are_as_people_have_seen_them() {
    let sample = sample(7, 150);
    let verdict = verdict_of(&sample);
    let page = Page::new(&sample.scenario, &sample.run, &sample.history, &verdict);
    let mut written = vec![expect("held.html", &page.html()), expect("held.md", &page.markdown())];
    let mut broken = sample.clone();
    crate::broken::BREACHES[0].2(&mut broken).expect("something was acknowledged");
    let verdict = verdict_of(&broken);
    let page = Page::new(&broken.scenario, &broken.run, &broken.history, &verdict);
    written.push(expect("broken.md", &page.markdown()));
    let mut summary = Summary::of([(&sample.scenario, &verdict)]);
    summary.rows[0].operations = 0;
    written.push(expect("summary.md", &summary.markdown()));
    let written: Vec<&str> = written.into_iter().flatten().collect();
    assert!(written.is_empty(), "look at what was written, and run again without UPDATE_EXPECT: {written:?}");
}

#[test]
fn what_comes_from_outside_stays_text() {
    let hostile = "<script>alert(1)</script> & \"quoted\" | `cell` [link](x)\n# head";
    let mut sample = sample(7, 80);
    sample.scenario.title = hostile.into();
    sample.scenario.story = hostile.into();
    sample.run.place = hostile.into();
    sample.run.version = hostile.into();
    sample.run.skipped.push(hostile.into());
    for step in &mut sample.run.steps {
        (step.text, step.verb) = (hostile.into(), hostile.into());
    }
    for operation in &mut sample.history.operations {
        operation.region = hostile.into();
    }
    crate::broken::BREACHES[0].2(&mut sample).expect("something was acknowledged");
    let verdict = verdict_of(&sample);
    assert!(!verdict.held);
    let page = Page::new(&sample.scenario, &sample.run, &sample.history, &verdict);
    let html = page.html();
    assert!(!html.contains("<script") && html.contains("&lt;script&gt;"));
    let tags = |name: &str| html.matches(&format!("<{name}")).count();
    for name in ["table", "svg", "figure", "ul", "div"] {
        assert_eq!(tags(name), html.matches(&format!("</{name}>")).count(), "{name} is not closed");
    }
    let markdown = page.markdown();
    assert!(!markdown.contains("<script"));
    assert!(!markdown.lines().any(|line| line.starts_with("# head")));
    let json: serde_json::Value = serde_json::from_str(&page.json()).expect("it is JSON");
    assert_eq!(json["title"], hostile);
    assert_eq!(json["verdict"]["held"], false);
}

#[test]
fn a_page_needs_nothing_from_elsewhere() {
    let sample = sample(9, 80);
    let verdict = verdict_of(&sample);
    let html = Page::new(&sample.scenario, &sample.run, &sample.history, &verdict).html();
    for outside in ["http:", "https:", "src=", "@import", "url("] {
        assert!(!html.contains(outside), "{outside}");
    }
}

#[test]
fn a_summary_holds_medians_against_bars() {
    let runs: Vec<Sample> = (0..3).map(|seed| sample(seed, 100)).collect();
    let verdicts: Vec<Verdict> = runs.iter().map(verdict_of).collect();
    let summary = Summary::of(runs.iter().zip(&verdicts).map(|(run, verdict)| (&run.scenario, verdict)));
    let [row] = summary.rows.as_slice() else { panic!("{summary:#?}") };
    assert_eq!((row.runs, row.held, row.linearizable, row.lost, row.overlaps), (3, 3, 3, 0, 0));
    assert_eq!((row.submissions.measured, row.submissions.is_met), (3, Some(true)));
    assert!(row.is_met());
    let mut strict = runs[0].scenario.clone();
    strict.expect.submission_again.as_mut().expect("it has a bar").median_ms = Some(100);
    let summary = Summary::of(verdicts.iter().map(|verdict| (&strict, verdict)));
    assert_eq!(summary.rows[0].submissions.is_met, Some(false));
    assert!(!summary.rows[0].is_met() && summary.markdown().contains("**no**"));
    assert!(Summary::of([]).rows.is_empty());
}

#[test]
fn a_summary_says_what_was_never_looked_at() {
    let run = sample(3, 100);
    let mut verdict = verdict_of(&run);
    verdict.checked.session_reads = 0;
    let summary = Summary::of([(&run.scenario, &verdict), (&run.scenario, &verdict)]);
    assert_eq!(summary.looked_at["contents"], 2 * verdict.checked.contents);
    let page = summary.markdown();
    let (some, never) = page.split_once("Never looked at").expect("something was not");
    assert!(never.contains("session reads") && !some.contains("session reads"), "{page}");
    assert!(some.contains(&format!("contents {}", 2 * verdict.checked.contents)), "{page}");
}
