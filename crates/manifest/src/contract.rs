//! What a job asks of whoever runs it, as its file says it.

use muster_wire::v1;

use super::quantity;
use super::reader::Reader;
use super::shape::{Checkpoint, Notice, Retry, Text};

/// The fields of a file that become a contract.
pub struct Fields {
    pub launch: Option<Text>,
    pub retry: Option<Retry>,
    pub checkpoint: Option<Checkpoint>,
    pub notice: Option<Notice>,
    pub spares: Option<Text>,
    pub preflight: Option<Text>,
}

/// The field of the file that a field of the contract's message comes from.
pub fn path_in_file(rest: &str) -> String {
    const RENAMED: [(&str, &str); 8] = [
        ("retry.backoff_ms", "retry.backoff"),
        ("retry.backoff_max_ms", "retry.backoffMax"),
        ("retry.avoid_ms", "retry.avoid"),
        ("checkpoint.step_ms", "checkpoint.step"),
        ("checkpoint.save_ms", "checkpoint.save"),
        ("checkpoint.interval_ms", "checkpoint.interval"),
        ("notice.http_port", "notice.httpPort"),
        ("notice.http_path", "notice.httpPath"),
    ];
    let renamed = RENAMED.iter().find(|(name, _)| *name == rest).map_or(rest, |(_, renamed)| *renamed);
    format!("spec.{renamed}")
}

impl Reader<'_> {
    /// None when the file says nothing of it.
    pub fn contract(&mut self, fields: Fields) -> Option<v1::JobContract> {
        let Fields { launch, retry, checkpoint, notice, spares, preflight } = fields;
        let said = v1::JobContract {
            launch: self.text("spec.launch", launch),
            retry: retry.map(|rules| self.retry(rules)),
            checkpoint: checkpoint.map(|rules| self.checkpoint(rules)),
            notice: notice.map(|rules| self.notice(rules)),
            spares: self.value("spec.spares", spares, quantity::count).unwrap_or_default(),
            preflight: self.text("spec.preflight", preflight),
        };
        (said != v1::JobContract::default()).then_some(said)
    }

    fn retry(&mut self, rules: Retry) -> v1::RetryRules {
        let mut limits = std::collections::HashMap::new();
        for (class, retries) in rules.limits.unwrap_or_default() {
            self.place("spec.retry.limits", retries.referenced);
            let shown: String = class.chars().take(80).collect();
            let field = format!("spec.retry.limits.{shown}");
            limits.insert(class, self.value(&field, Some(retries), quantity::count).unwrap_or_default());
        }
        v1::RetryRules {
            limits,
            backoff_ms: self.value("spec.retry.backoff", rules.backoff, quantity::duration_ms),
            backoff_max_ms: self.value("spec.retry.backoffMax", rules.backoff_max, quantity::duration_ms),
            avoid_ms: self.value("spec.retry.avoid", rules.avoid, quantity::duration_ms),
        }
    }

    fn checkpoint(&mut self, rules: Checkpoint) -> v1::CheckpointRules {
        let advice = "leave it out when it is not known";
        let mut time = |field: &str, text| self.above_zero(field, text, quantity::duration_ms, advice);
        v1::CheckpointRules {
            step_ms: time("spec.checkpoint.step", rules.step),
            save_ms: time("spec.checkpoint.save", rules.save),
            interval_ms: time("spec.checkpoint.interval", rules.interval),
            place: self.text("spec.checkpoint.place", rules.place),
        }
    }

    fn notice(&mut self, rules: Notice) -> v1::NoticeRules {
        let advice = "leave the notice out when nobody listens";
        v1::NoticeRules {
            http_port: self.above_zero("spec.notice.httpPort", rules.http_port, quantity::count, advice),
            http_path: self.text("spec.notice.httpPath", rules.http_path),
        }
    }
}
