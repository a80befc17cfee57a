//! What a job asks of its host, as its file says it.

use muster_types::FailureClass;
use muster_wire::closed::{number, of_word, words};
use muster_wire::v1;

use super::quantity;
use super::reader::Reader;
use super::shape::{Checkpoint, Notice, Retry};

impl Reader<'_> {
    pub fn retry(&mut self, rules: Retry) -> v1::RetryPolicy {
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
        v1::RetryPolicy {
            max_failures: self
                .value("spec.retry.maxFailures", rules.max_failures, quantity::count)
                .unwrap_or_default(),
            limits,
            backoff: self.span("spec.retry.backoff", rules.backoff),
            max_backoff: self.span("spec.retry.maxBackoff", rules.max_backoff),
            avoid: self.span("spec.retry.avoid", rules.avoid),
        }
    }

    pub fn checkpoint(&mut self, rules: Checkpoint) -> v1::CheckpointPolicy {
        let advice = "leave it out when it is not known";
        let mut time = |field: &str, text| self.span_above_zero(field, text, advice);
        v1::CheckpointPolicy {
            step: time("spec.checkpoint.step", rules.step),
            save: time("spec.checkpoint.save", rules.save),
            interval: time("spec.checkpoint.interval", rules.interval),
            directory: self.text("spec.checkpoint.directory", rules.directory),
            dataset: self.text("spec.checkpoint.dataset", rules.dataset),
        }
    }

    pub fn notice(&mut self, rules: Notice) -> v1::NoticeRules {
        let advice = "leave the notice out when nobody listens";
        v1::NoticeRules {
            http_port: self.above_zero("spec.notice.httpPort", rules.http_port, quantity::count, advice),
            http_path: self.text("spec.notice.httpPath", rules.http_path),
        }
    }
}
