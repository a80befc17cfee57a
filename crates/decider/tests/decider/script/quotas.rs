//! Quota for some time, in words.

use std::fmt::Write as _;

use muster_decider::{Command, QuotaAnswerOrder, QuotaOrder, quota_impact};
use muster_state::QuotaGrantStatus;
use muster_types::policy::QuotaGrant;
use muster_types::{LogIndex, Requester};

use super::{World, duration_ms};
use crate::support::name;

impl World {
    /// `TENANT KIND=DEVICES[@REGION] until=+D`.
    fn grant(&self, words: &[&str]) -> QuotaGrant {
        let (kind, amount) = words[1].split_once('=').expect("KIND=DEVICES");
        let (devices, region) = match amount.split_once('@') {
            Some((devices, region)) => (devices, Some(name(region))),
            None => (amount, None),
        };
        let until = self.number(words, "until=").expect("an end");
        let until = match until.strip_prefix('-') {
            Some(ago) => self.now.minus_ms(duration_ms(ago)),
            None => self.now.plus_ms(duration_ms(until.strip_prefix('+').expect("+D or -D"))),
        };
        QuotaGrant {
            tenant: name(words[0]),
            kind: name(kind),
            region,
            amount_milli: devices.parse::<u64>().unwrap().saturating_mul(1_000),
            until,
            reason: "a deadline".to_owned(),
        }
    }

    /// `ask` and `grant TENANT KIND=DEVICES[@REGION] until=+D`, with `by=TENANT` for one who acts for a tenant and `request=N`.
    pub(super) fn quota(&mut self, verb: &str, words: &[&str]) -> String {
        let (by, acts_for) = who(self.number(words, "by="));
        let order = QuotaOrder { request: self.request(words), by, acts_for, grant: self.grant(words) };
        let command = match verb {
            "ask" => Command::RequestQuota(Box::new(order)),
            _ => Command::GrantQuota(Box::new(order)),
        };
        self.carry_out(&command)
    }

    /// `approve` and `deny NUMBER`, with the same.
    pub(super) fn answer_quota(&mut self, verb: &str, words: &[&str]) -> String {
        let (by, acts_for) = who(self.number(words, "by="));
        let order = QuotaAnswerOrder {
            request: self.request(words),
            by,
            acts_for,
            id: LogIndex(words[0].parse().unwrap()),
            approved: verb == "approve",
            reason: "as agreed".to_owned(),
        };
        self.carry_out(&Command::AnswerQuota(Box::new(order)))
    }

    /// What a grant would displace.
    pub(super) fn impact(&self, words: &[&str]) -> String {
        let impact = quota_impact(self.state(), &self.grant(words));
        let mut text = format!(
            "{} of {} free, {} guaranteed, {} displaced\n",
            impact.free_milli, impact.capacity_milli, impact.guaranteed_milli, impact.displaced_milli
        );
        for borrower in &impact.borrowers {
            let (tenant, milli, jobs) = (&borrower.tenant, borrower.devices_milli, borrower.jobs);
            writeln!(text, "  {tenant} holds {milli} in {jobs} jobs").unwrap();
        }
        for job in &impact.jobs {
            writeln!(text, "  {} could be stopped", self.label(*job)).unwrap();
        }
        text
    }

    /// Every request and grant, and the quotas that follow.
    pub(super) fn show_grants(&self) -> String {
        let mut text = String::new();
        for (id, row) in self.state().quota_grants() {
            let end = match row.status {
                QuotaGrantStatus::Ended { cause, .. } => format!(" ({})", cause.name()),
                _ => String::new(),
            };
            let grant = &row.grant;
            let (status, milli) = (row.status.name(), grant.amount_milli);
            writeln!(text, "{id} {} {} +{milli}: {status}{end}", grant.tenant, grant.kind).unwrap();
        }
        for (tenant, settings) in &self.state().effective_policy().tenants {
            for quota in &settings.quotas {
                writeln!(text, "{tenant} {}: {}", quota.kind, quota.nominal_milli).unwrap();
            }
        }
        text
    }
}

fn who(tenant: Option<&str>) -> (Requester, Option<muster_types::Name>) {
    match tenant {
        Some(tenant) => {
            let who = format!("tenant/{tenant}/ada");
            (Requester::named(who, false), Some(name(tenant)))
        }
        None => (Requester::named("admin/ops".to_owned(), true), None),
    }
}
