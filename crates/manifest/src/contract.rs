//! What a job asks of whoever runs it, as its file says it.

use muster_types::{FailureClass, LaunchForm, Preflight};
use muster_wire::closed::{number, of_word, words};
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
    const RENAMED: [(&str, &str); 3] = [
        ("retry.backoff_max", "retry.backoffMax"),
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
            launch: self.closed::<LaunchForm>("spec.launch", launch),
            retry: retry.map(|rules| self.retry(rules)),
            checkpoint: checkpoint.map(|rules| self.checkpoint(rules)),
            notice: notice.map(|rules| self.notice(rules)),
            spares: self.value("spec.spares", spares, quantity::count).unwrap_or_default(),
            preflight: self.closed::<Preflight>("spec.preflight", preflight),
        };
        (said != v1::JobContract::default()).then_some(said)
    }

    fn retry(&mut self, rules: Retry) -> v1::RetryRules {
        let mut limits = Vec::new();
        for (class, retries) in rules.limits.unwrap_or_default() {
            self.place("spec.retry.limits", retries.referenced);
            let shown: String = class.chars().take(80).collect();
            let field = format!("spec.retry.limits.{shown}");
            let place = retries.referenced;
            let retries = self.value(&field, Some(retries), quantity::count).unwrap_or_default();
            match of_word::<FailureClass>(&class) {
                Some(class) => limits.push(v1::RetryLimit { failure_class: number(class), retries }),
                None => {
                    let text = format!("has classes {}, not {shown:?}", words::<FailureClass>());
                    self.problem(Some(place), "spec.retry.limits", text);
                }
            }
        }
        v1::RetryRules {
            limits,
            backoff: self.span("spec.retry.backoff", rules.backoff),
            backoff_max: self.span("spec.retry.backoffMax", rules.backoff_max),
            avoid: self.span("spec.retry.avoid", rules.avoid),
        }
    }

    fn checkpoint(&mut self, rules: Checkpoint) -> v1::CheckpointRules {
        let advice = "leave it out when it is not known";
        let mut time = |field: &str, text| self.span_above_zero(field, text, advice);
        v1::CheckpointRules {
            step: time("spec.checkpoint.step", rules.step),
            save: time("spec.checkpoint.save", rules.save),
            interval: time("spec.checkpoint.interval", rules.interval),
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
