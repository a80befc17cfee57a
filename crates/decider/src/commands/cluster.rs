//! Commands for the cluster itself: formats and generations.

use alloc::format;
use muster_journal::{Decision, FORMAT_MIN};
use muster_types::{Refusal, RefusalCode, Requester, Violation};

use crate::commands::answer::Answer;
use crate::settle::job::settle_all;
use crate::speculation::Speculation;

/// Raises the record format. Saying it again changes nothing.
pub(super) fn raise_format(
    speculation: &mut Speculation,
    by: &Requester,
    format: u16,
) -> Result<Answer, Refusal> {
    let known = speculation.format_max();
    if !(FORMAT_MIN..=known).contains(&format) {
        let range = (u64::from(FORMAT_MIN), u64::from(known));
        return Err(Refusal::fields(alloc::vec![Violation::limit(
            "format",
            format.into(),
            range.0,
            range.1
        )]));
    }
    if format <= speculation.state().format() {
        return Ok(Answer::Done { at: speculation.last_index() });
    }
    let at = speculation.push(Decision::FormatRaised { by: by.clone(), format });
    Ok(Answer::Done { at })
}

/// Begins the generation of this replica's data directory. Repeating the command changes nothing.
pub(super) fn recover(speculation: &mut Speculation, generation: u32) -> Result<Answer, Refusal> {
    let (current, own) = (speculation.state().generation(), speculation.generation());
    if generation == current && !speculation.is_recovering() {
        return Ok(Answer::Done { at: speculation.last_index() });
    }
    if generation != own {
        let text = format!(
            "generation {generation} cannot begin: the log is in generation {current}, this replica's data directory \
             in {own}"
        );
        return Err(Refusal::new(RefusalCode::Fenced, text));
    }
    let at = speculation.push(Decision::ClusterRecovered { generation });
    settle_all(speculation);
    Ok(Answer::Done { at })
}
