//! Files that were written for other schedulers: converted before they are read, with what is lost said on stderr.

use std::collections::BTreeMap;

use clap::Args;
use muster_console::{Console, Failure};
use muster_convert::{Conversion, FindingKind, Options, Source};
use muster_types::{NAME_RULE, Name, PriorityTier};

use super::file_arguments::{Arguments, called};

/// Options for files of other schedulers.
#[derive(Args, Clone, Default)]
pub struct ForeignArgs {
    /// Of a file for another scheduler: refuse it when a field of it is not honoured
    #[arg(long)]
    pub strict: bool,
    /// Of a file for another scheduler: the tier of a priority class or quality of service; repeat it
    #[arg(long, value_name = "CLASS=TIER", value_parser = class)]
    pub tier_of: Vec<(String, PriorityTier)>,
    /// Of a file for another scheduler: the type of accelerators where it names none, like h100
    #[arg(long, value_name = "TYPE", value_parser = accelerator)]
    pub accelerator: Option<String>,
    /// Of a file of Kubernetes: run the command in the image of its container, on nodes with a container runtime
    #[arg(long)]
    pub images: bool,
}

fn accelerator(text: &str) -> Result<String, String> {
    Name::new(text).map(|name| name.to_string()).ok_or_else(|| format!("must be {NAME_RULE}"))
}

fn class(text: &str) -> Result<(String, PriorityTier), String> {
    let (class, tier) =
        text.rsplit_once('=').ok_or("a class and a tier have `=` between them, like high=production")?;
    Ok((class.to_owned(), muster_manifest::tier(tier)?))
}

/// The job documents of a file for another scheduler; none for a file that is Muster's already.
pub fn documents(
    console: &Console,
    file: &str,
    bytes: &[u8],
    arguments: Arguments<'_>,
    args: &ForeignArgs,
) -> Result<Option<String>, Failure> {
    let Some(source) = muster_convert::recognise(bytes) else {
        if muster_convert::directives_of_both(bytes) {
            console.progress(&format!(
                "note: {}: #MUSTER lines describe the job, and #SBATCH lines do not",
                called(file)
            ));
        }
        return Ok(None);
    };
    if source == Source::Manifest && !arguments.words.is_empty() {
        return Err(arguments.refused(file, "manifest"));
    }
    let options = Options {
        name: Some(file.to_owned()).filter(|file| file != "-"),
        arguments: arguments.words.to_vec(),
        accelerator: args.accelerator.clone(),
        images: args.images,
        tiers: args.tier_of.iter().cloned().collect::<BTreeMap<String, PriorityTier>>(),
    };
    let text = std::str::from_utf8(bytes).unwrap_or_default();
    let conversion = muster_convert::convert_with(text, &options)
        .map_err(|error| Failure::usage(format!("{}: {error}", called(file))))?;
    for finding in &conversion.findings {
        console.error(&format!("{}: {finding}", called(file)));
    }
    judge(file, &conversion, args.strict)?;
    Ok(Some(conversion.text()))
}

fn judge(file: &str, conversion: &Conversion, is_strict: bool) -> Result<(), Failure> {
    let count = |kind| conversion.findings.iter().filter(|finding| finding.kind == kind).count();
    let refused = count(FindingKind::Refused);
    if refused > 0 {
        return Err(Failure::usage(format!("{}: {refused} of its fields cannot be had (refused)", called(file)))
            .with_next("leave these fields out, or write what they are for in a job document; `muster schema job` describes one"));
    }
    let lost = count(FindingKind::NotHonoured);
    if is_strict && lost > 0 {
        return Err(Failure::usage(format!(
            "{}: {lost} of its fields are not honoured, and --strict is given",
            called(file)
        ))
        .with_next("leave these fields out, or --strict; `--dry-run` prints the job document without them"));
    }
    Ok(())
}
