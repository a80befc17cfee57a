//! Pods that are one job: their groups, ranks, and what they ask of the job as a whole.

use super::draft::{Draft, Rules};
use super::field::Field;
use super::pod::Pod;
use super::variables::Index;

/// Pods of one template.
pub struct Part<'a> {
    /// The name of the group.
    pub name: String,
    /// How many.
    pub workers: u32,
    /// Workers of one job of a JobSet; 0 for all of them.
    pub per_job: u32,
    /// What each is.
    pub pod: Pod,
    /// The template, to name what does not go together.
    pub template: Field<'a>,
}

/// Makes the parts the groups of the job, in the order of their ranks.
pub fn assemble(draft: &mut Draft, parts: &[Part<'_>]) {
    let mut first = 0;
    for part in parts {
        let index = Index::Rank { first, of: part.per_job };
        let mut group = part.pod.group(&part.name, part.workers, &index);
        if let Some(shape) = &part.pod.slice {
            slice(&mut group, shape, part);
        }
        draft.groups.push(group);
        first = first.saturating_add(part.workers);
        join(&mut draft.rules, &part.pod.rules, &part.template, part.name == parts[0].name);
    }
}

/// TPU slices that the workers of a group form.
fn slice(group: &mut super::draft::Group, shape: &str, part: &Part<'_>) {
    let chips = muster_types::tpu::SliceShape::parse(shape).map(|shape| u64::from(shape.chips()));
    let per_worker =
        group.needs.accelerators.as_deref().and_then(|text| text.rsplit(':').next()?.parse::<u64>().ok());
    let (Some(chips), Some(per_worker)) = (chips, per_worker) else {
        part.template.refuse(format!(
            "the shape of a slice is two or three numbers, such as 4x4x8, and not {shape:?}"
        ));
        return;
    };
    let all = per_worker.saturating_mul(u64::from(part.workers));
    if chips == 0 || all % chips != 0 {
        part.template.refuse(format!(
            "{} workers with {per_worker} chips do not form slices of {shape}, which has {chips}",
            part.workers
        ));
        return;
    }
    group.workers = None;
    group.slice = Some((shape.to_owned(), u32::try_from(all / chips).unwrap_or(u32::MAX)));
}

/// What one part asks of the job as a whole. What parts do not agree on is the first one's, and the others are told.
fn join(rules: &mut Rules, of: &Rules, template: &Field<'_>, is_first: bool) {
    if is_first {
        let mut of = of.clone();
        // The object itself may have said these already.
        of.tier = of.tier.or_else(|| rules.tier.take());
        of.required = of.required.or(rules.required);
        of.preferred = of.preferred.or(rules.preferred);
        *rules = of;
        return;
    }
    rules.tolerations.extend(of.tolerations.iter().cloned());
    let spec = template.get("spec");
    let differs = |field: Field<'_>, is_like: bool, what: &str| {
        if !is_like {
            field.drop(format!(
                "{what} is the same for all groups of a job, and another group has it otherwise"
            ));
        }
    };
    differs(spec.get("priorityClassName"), of.tier.is_none() || rules.tier == of.tier, "the tier");
    differs(
        spec.get("terminationGracePeriodSeconds"),
        rules.stop_grace_s == of.stop_grace_s,
        "the time to stop",
    );
    differs(
        spec.get("activeDeadlineSeconds"),
        rules.run_time_limit_s == of.run_time_limit_s,
        "the limit of a run",
    );
    differs(spec.get("containers"), rules.working_directory == of.working_directory, "the working directory");
    if !rules.asks_like(of) {
        let field = if spec.get("nodeSelector").is_given() { spec.get("nodeSelector") } else { spec.clone() };
        field.refuse(
            "nodes are selected for all groups of a job together, and its groups do not ask for the same",
        );
    }
    rules.required = rules.required.or(of.required);
    rules.preferred = rules.preferred.or(of.preferred);
}
