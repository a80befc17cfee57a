//! What a job asks of its host, as its file says it.

use muster_types::FailureClass;
use muster_types::policy::PurchaseKind;
use muster_wire::closed::{number, of_word, words};
use muster_wire::v1;
use serde_saphyr::Spanned;

use super::quantity;
use super::reader::Reader;
use super::shape::{Capacity, Checkpoint, Notice, Retry, Text};

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

    pub fn capacity(&mut self, given: Spanned<Capacity>) -> v1::CapacityRules {
        const AT: &str = "spec.capacity";
        self.place(AT, given.referenced);
        let fields = match given.value {
            Capacity::Long(fields) => *fields,
            Capacity::Short(word) => {
                let purchase = of_word::<PurchaseKind>(&word);
                if purchase.is_none() {
                    let shown: String = word.chars().take(80).collect();
                    let text =
                        format!("must be one of {}, or a mapping, got {shown:?}", words::<PurchaseKind>());
                    self.problem(Some(given.referenced), AT, text);
                }
                let purchases = purchase.into_iter().map(number).collect();
                return v1::CapacityRules { purchases, ..v1::CapacityRules::default() };
            }
        };
        let most = format!("{AT}.maxInterruptionsPerDay");
        v1::CapacityRules {
            purchases: self.purchases(&format!("{AT}.purchases"), fields.purchases),
            fallback: fields.fallback.map(|fallback| v1::CapacityFallback {
                purchases: self.purchases(&format!("{AT}.fallback.purchases"), fallback.purchases),
                after: self.span(&format!("{AT}.fallback.after"), fallback.after),
            }),
            max_interruptions_per_day_milli: self.value(
                &most,
                fields.max_interruptions_per_day,
                quantity::milli_small,
            ),
        }
    }

    fn purchases(&mut self, at: &str, given: Option<Vec<Text>>) -> Vec<i32> {
        let given = given.unwrap_or_default();
        if let Some(first) = given.first() {
            self.place(at, first.referenced);
        }
        let texts = given.into_iter().enumerate();
        texts
            .map(|(index, text)| self.closed::<PurchaseKind>(&format!("{at}[{index}]"), Some(text)))
            .collect()
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
