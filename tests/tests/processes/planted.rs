//! The product holds nothing of the rules that a special build breaks on purpose.

use muster_planted::{IS_ON, Rule, VARIABLE};
use std::process::Command;

use crate::support::{muster, run_to_end};

/// Which of these texts the program holds.
fn held(texts: &[&str]) -> String {
    // Some hundred megabytes with what debuggers need: a search in this program would take a minute.
    let mut grep = Command::new("grep");
    grep.args(["--text", "--only-matching", "--fixed-strings"]);
    for text in texts {
        grep.args(["-e", text]);
    }
    let found = grep.arg(muster()).output().expect("grep runs");
    assert!(matches!(found.status.code(), Some(0 | 1)), "{found:?}");
    String::from_utf8_lossy(&found.stdout).into_owned()
}

#[tokio::test]
async fn nothing_of_planted_bugs_is_in_the_product() {
    // The tests would be built with it as well, had somebody asked for it.
    let on = IS_ON;
    assert!(!on, "the tests are built with rules broken on purpose");
    assert!(!held(&["muster cluster watch"]).is_empty(), "texts are found where there are some");
    let mut texts = Rule::ALL.map(Rule::name).to_vec();
    texts.extend([VARIABLE, "BREAKS-RULES", "made-to-break-rules"]);
    assert_eq!(held(&texts), "", "that is in the product");
    let ran = run_to_end(&["--version"], "").await;
    assert_eq!(
        (ran.code, ran.out.trim()),
        (Some(0), concat!("muster ", env!("CARGO_PKG_VERSION"))),
        "{ran:#?}"
    );
}
