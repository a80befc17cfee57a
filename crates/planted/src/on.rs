//! A build that breaks rules.

use crate::rule::names;
use crate::{Refusal, Rule, VARIABLE};
use std::cell::Cell;
use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// What the variable may say when nothing is to be broken: the control.
const NONE: &str = "none";
/// The mark lies next to a directory that such a build has made, and not in it: what is in it belongs to the
/// product.
const MARK: &str = "made-to-break-rules";

/// What the variable says; read once, when it is first asked for.
fn told() -> &'static Result<Option<Rule>, Refusal> {
    static TOLD: OnceLock<Result<Option<Rule>, Refusal>> = OnceLock::new();
    TOLD.get_or_init(|| {
        let text = std::env::var(VARIABLE).unwrap_or_default();
        match text.as_str() {
            "" => Err(Refusal::NotTold { variable: VARIABLE, known: names() }),
            NONE => Ok(None),
            name => Ok(Some(name.parse()?)),
        }
    })
}

thread_local! { static HERE: Cell<Option<Rule>> = const { Cell::new(None) }; }

/// Breaks a rule on this thread alone, whatever the variable says: for simulations, each of which is one
/// thread.
pub fn break_here(rule: Option<Rule>) {
    HERE.set(rule);
}

/// Whether this process breaks `rule`.
#[must_use]
pub fn breaks(rule: Rule) -> bool {
    HERE.get() == Some(rule) || matches!(told(), Ok(Some(broken)) if *broken == rule)
}

/// What this process says of itself before anything else.
#[must_use]
pub fn confess() -> Option<String> {
    Some(match told() {
        Ok(Some(rule)) => {
            format!("THIS BUILD BREAKS A RULE ON PURPOSE ({rule}): for drills alone, never for work")
        }
        Ok(None) => format!("this build can break rules on purpose; {VARIABLE}={NONE}, so it breaks none"),
        Err(refusal) => refusal.to_string(),
    })
}

fn mark_of(directory: &Path) -> PathBuf {
    let mut name = directory.file_name().unwrap_or_default().to_owned();
    name.push(".");
    name.push(MARK);
    directory.with_file_name(name)
}

fn is_empty(directory: &Path) -> Result<bool, Refusal> {
    match fs::read_dir(directory) {
        // The file system of a separate disk makes this.
        Ok(mut entries) => Ok(entries.all(|entry| entry.is_ok_and(|e| e.file_name() == "lost+found"))),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(true),
        Err(source) => Err(Refusal::Look { path: directory.to_owned(), source }),
    }
}

/// Whether this process may work in `directory`: it was told what to break, and the directory is empty or was
/// made by such a build.
///
/// # Errors
/// When it was not told, or the directory may be somebody's.
pub fn admit(directory: &Path) -> Result<(), Refusal> {
    match told() {
        Ok(_) => {}
        Err(Refusal::Unknown(unknown)) => return Err(unknown.clone().into()),
        Err(_) => return Err(Refusal::NotTold { variable: VARIABLE, known: names() }),
    }
    let mark = mark_of(directory);
    if mark.exists() {
        return Ok(());
    }
    if !is_empty(directory)? {
        return Err(Refusal::ForeignDirectory { directory: directory.to_owned() });
    }
    make(&mark).map_err(|source| Refusal::Look { path: mark.clone(), source })
}

/// Durably: a drill may cut the power right behind it.
fn make(mark: &Path) -> std::io::Result<()> {
    let parent = mark.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    fs::create_dir_all(parent)?;
    let mut file = File::create(mark)?;
    file.write_all(b"what lies next to this was made by a build that breaks rules on purpose\n")?;
    file.sync_all()?;
    File::open(parent)?.sync_all()
}
