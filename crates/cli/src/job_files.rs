//! Job files and policy files on this machine: read, checked, and refusals in their words.

use std::io::Read as _;
use std::path::Path;
use std::time::SystemTime;

use muster_client::{CallError, Client};
use muster_console::{Console, Failure};
use muster_manifest::{FILE_BYTES_MAX, Manifest, Overrides, Problem};
use muster_transport::{Role, Security};

pub use super::file_arguments::{Arguments, called};
use super::foreign::{self, ForeignArgs};

/// A server's refusal in the words of the file. `only` is the document it is about, when it is one.
pub fn refused(error: CallError, file: &str, manifests: &[Manifest], only: Option<usize>) -> Failure {
    let CallError::Refused { refused, .. } = &error else {
        return Failure::from(error);
    };
    let explain = |violation: &muster_types::Violation| {
        let (index, path) = muster_manifest::split_batch_path(&violation.field)
            .unwrap_or_else(|| (0, violation.field.clone()));
        let index = only.unwrap_or(index);
        let violation = muster_types::Violation::new(path, violation.description.clone());
        match manifests.get(index) {
            Some(manifest) => located(file, &manifest.explain(&violation)),
            None => violation.to_string(),
        }
    };
    Failure::refused_with(refused, refused.violations.iter().map(explain).collect())
}

/// `file:line: field: what is wrong`, as compilers write it.
pub fn located(file: &str, problem: &Problem) -> String {
    let file = called(file);
    let field = if problem.field.is_empty() { String::new() } else { format!("{}: ", problem.field) };
    match problem.line {
        Some(line) => format!("{file}:{line}: {field}{}", problem.description),
        None => format!("{file}: {field}{}", problem.description),
    }
}

/// The jobs of a file, each checked as the server would.
pub fn read_manifests(
    console: &Console,
    file: &str,
    overrides: &Overrides,
) -> Result<Vec<Manifest>, Failure> {
    read_manifests_with(console, file, Arguments::NONE, overrides, &ForeignArgs::default())
}

/// The same; `arguments` are those of the script that the file is. A file for another scheduler is converted first.
pub fn read_manifests_with(
    console: &Console,
    file: &str,
    arguments: Arguments<'_>,
    overrides: &Overrides,
    foreign: &ForeignArgs,
) -> Result<Vec<Manifest>, Failure> {
    let bytes = read(file)?;
    if muster_manifest::is_script(&bytes) {
        arguments.note_misspelt(console);
    }
    if let Some(text) = foreign::documents(console, file, &bytes, arguments, foreign)? {
        let wrong = |problems: Vec<Problem>| {
            // The lines would be those of a file that nobody has seen.
            let problems = problems.into_iter().map(|problem| Problem { line: None, ..problem });
            Failure::usage("the job document that this file becomes is not valid")
                .with_details(problems.map(|problem| located(file, &problem)))
                .with_next("change what the field comes from, or write a job document; `muster schema job` describes one")
        };
        let manifests = muster_manifest::parse(text.as_bytes(), now_ms()).map_err(|error| wrong(error.0))?;
        return checked(manifests, overrides).map_err(wrong);
    }
    let wrong = |problems: Vec<Problem>| {
        Failure::usage("the job file is not valid")
            .with_details(problems.iter().map(|p| located(file, p)))
            .with_next("correct the file; `muster submit --validate-only FILE` checks it without submitting")
    };
    let parsed = if muster_manifest::is_script(&bytes) {
        muster_manifest::parse_script(&bytes, file, arguments.words, now_ms()).map(|job| vec![job])
    } else if arguments.words.is_empty() {
        muster_manifest::parse(&bytes, now_ms())
    } else {
        return Err(arguments.refused(file, "job file"));
    };
    checked(parsed.map_err(|e| wrong(e.0))?, overrides).map_err(wrong)
}

/// The jobs with what the command line says over them, each checked as the server would.
fn checked(mut manifests: Vec<Manifest>, overrides: &Overrides) -> Result<Vec<Manifest>, Vec<Problem>> {
    let mut problems = Vec::new();
    for manifest in &mut manifests {
        manifest.apply(overrides);
        if let Err(error) = manifest.check() {
            problems.extend(error.0);
        }
    }
    problems.truncate(100);
    if problems.is_empty() { Ok(manifests) } else { Err(problems) }
}

/// Milliseconds since the Unix epoch, by this machine's clock: what `+2h` in a file counts from.
pub fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// The bytes of a file, or of stdin; one more than is allowed when there are more.
pub fn read(file: &str) -> Result<Vec<u8>, Failure> {
    let failed = |error: std::io::Error| {
        Failure::usage(format!("{} could not be read: {error}", called(file)))
            .with_next("name a file, or - to read one from stdin")
    };
    // One byte more than is allowed shows that there is more than is allowed.
    let limit = FILE_BYTES_MAX as u64 + 1;
    let mut bytes = Vec::new();
    if file == "-" {
        std::io::stdin().lock().take(limit).read_to_end(&mut bytes).map_err(failed)?;
    } else {
        let opened = std::fs::File::open(Path::new(file)).map_err(failed)?;
        opened.take(limit).read_to_end(&mut bytes).map_err(failed)?;
    }
    Ok(bytes)
}

/// The tenant that the user's certificate acts for. A token does not say which that is.
pub fn own_tenant(client: &Client) -> Option<String> {
    let Security::Tls(tls) = client.endpoints().security() else { return None };
    match tls.name().map(|name| name.role) {
        Some(Role::TenantClient { tenant, .. }) => Some(tenant.to_string()),
        _ => None,
    }
}

/// A job that names no tenant is of the one that the user's certificate acts for.
pub fn name_own_tenant(client: &Client, manifests: &mut [Manifest]) {
    let Some(tenant) = own_tenant(client) else { return };
    for manifest in manifests.iter_mut().filter(|manifest| manifest.message.tenant.is_empty()) {
        manifest.message.tenant.clone_from(&tenant);
    }
}
