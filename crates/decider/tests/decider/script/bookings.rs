//! Bookings, in words.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use muster_decider::{BookingOrder, Command, FleetHoldOrder, plan_booking};
use muster_types::{
    BookingAmount, BookingClearing, BookingShape, BookingSpec, BookingTimes, FleetHold, FleetPart,
    HoldTarget, LogTime, Name, Requester,
};

use super::{World, duration_ms};
use crate::support::name;

impl World {
    /// `NAME tenant=T`, without a tenant for maintenance, one of `nodes=A,B`, `hosts=N` and `devices=N` or none of them for all nodes
    /// of a place, and any of `type=KIND`, `region=R`, `cluster=C`,
    /// `label=KEY:VALUE`, `from=+D`, `for=D`, `every=DAYS:TIMES`, `notice=D`, `others=finish|stop|fill`, `user=U`, `jobs=A,B`, `shared`.
    fn booking_spec(&self, words: &[&str]) -> BookingSpec {
        let list = |prefix: &str| -> Vec<Name> {
            self.number(words, prefix).into_iter().flat_map(|text| text.split(',').map(name)).collect()
        };
        let of_place = |prefix: &str| self.number(words, prefix).map(name);
        let count = |prefix: &str| self.number(words, prefix).map(|text| text.parse().expect("a count"));
        let labels: BTreeMap<Name, String> = words
            .iter()
            .filter_map(|word| word.strip_prefix("label="))
            .map(|label| label.split_once(':').expect("label=KEY:VALUE"))
            .map(|(key, value)| (name(key), value.to_owned()))
            .collect();
        let amount =
            count("hosts=").map(BookingAmount::Hosts).or(count("devices=").map(BookingAmount::Devices));
        let shape = match amount {
            None if words.iter().any(|word| word.starts_with("nodes=")) => {
                BookingShape::Nodes(list("nodes="))
            }
            None => {
                BookingShape::Part(FleetPart { region: of_place("region="), cluster: of_place("cluster=") })
            }
            Some(amount) => BookingShape::Chosen {
                amount,
                kind: of_place("type="),
                region: of_place("region="),
                cluster: of_place("cluster="),
                labels,
            },
        };
        let start = self.number(words, "from=+").map(|after| self.now.plus_ms(duration_ms(after)));
        let (every_days, windows) = self.number(words, "every=").map_or((0, 1), |text| {
            let (days, times) = text.split_once(':').expect("every=DAYS:TIMES");
            (days.parse().expect("days"), times.parse().expect("a count"))
        });
        BookingSpec {
            tenant: self.number(words, "tenant=").map(name),
            user: self.number(words, "user=").map(str::to_owned),
            jobs: list("jobs="),
            is_shared: words.contains(&"shared"),
            shape,
            times: BookingTimes {
                every_days,
                windows,
                ..BookingTimes::once(
                    start.unwrap_or(LogTime(0)),
                    self.number(words, "for=").map_or(3_600_000, duration_ms),
                )
            },
            notice_ms: self.number(words, "notice=").map_or(0, duration_ms),
            clearing: self.number(words, "others=").map_or(BookingClearing::Stop, |text| {
                BookingClearing::from_name(text).expect("finish, stop or fill")
            }),
            reason: String::new(),
        }
    }

    /// Who asks: the operators, or with `as=TENANT` who acts for a tenant.
    fn booker(&self, words: &[&str]) -> (Requester, Option<Name>) {
        match self.number(words, "as=") {
            None => (Requester::named("admin/ada".to_owned(), true), None),
            Some(tenant) => {
                let who = format!("tenant/{tenant}/bob");
                let by = Requester::named(who, false);
                (by, Some(name(tenant)))
            }
        }
    }

    /// `book`, with the words of [`World::booking_spec`], `as=TENANT` and `request=N`.
    pub(super) fn book(&mut self, words: &[&str]) -> Command {
        let (by, acts_for) = self.booker(words);
        let request = self.request(words);
        let spec = self.booking_spec(words);
        Command::CreateBooking(Box::new(BookingOrder { request, by, acts_for, name: name(words[0]), spec }))
    }

    /// `unbook NAME`, with `as=TENANT` and `request=N`.
    pub(super) fn unbook(&mut self, words: &[&str]) -> Command {
        let (by, acts_for) = self.booker(words);
        let request = self.request(words);
        Command::DeleteBooking { request, by, acts_for, name: name(words[0]) }
    }

    /// `hold-place` and `release-place`, with `region=R`, `cluster=C` or `tenant=T`, and of a hold any of `reason=WORD`, `until=+D`, `drain`.
    pub(super) fn hold_place(&mut self, verb: &str, words: &[&str]) -> Command {
        let (by, _) = self.booker(&[]);
        let request = self.request(words);
        let of_place = |prefix: &str| self.number(words, prefix).map(name);
        let target = match of_place("tenant=") {
            Some(tenant) => HoldTarget::Tenant(tenant),
            None => {
                HoldTarget::Part(FleetPart { region: of_place("region="), cluster: of_place("cluster=") })
            }
        };
        let hold = (verb == "hold-place").then(|| FleetHold {
            reason: self.number(words, "reason=").unwrap_or_default().to_owned(),
            until: self.number(words, "until=+").map(|after| self.now.plus_ms(duration_ms(after))),
            stops_work: words.contains(&"drain"),
        });
        Command::SetFleetHold(Box::new(FleetHoldOrder { request, by, target, hold }))
    }

    /// `cost`, with the words of `book`: what it would cost others.
    pub(super) fn booking_cost(&self, words: &[&str]) -> String {
        let (_, acts_for) = self.booker(words);
        let spec = self.booking_spec(words);
        let whose = (acts_for.as_ref(), &name(words[0]));
        let kept = self.speculation.kept_reservations();
        let plan = match plan_booking(self.state(), self.now, whose, &spec, kept) {
            Ok(plan) => plan,
            Err(refusal) => return format!("refused: {refusal}\n"),
        };
        let nodes: Vec<&str> = plan.nodes.iter().map(Name::as_str).collect();
        let mut text = format!("nodes {}\n", nodes.join(" "));
        for met in &plan.met {
            writeln!(text, "  booking {met} has some of them then").unwrap();
        }
        for (job, end) in &plan.overrunning {
            let after = end.since_ms(self.now) / 60_000;
            writeln!(text, "  {} would still run, to +{after}m", self.label(*job)).unwrap();
        }
        for job in &plan.displaced {
            writeln!(text, "  {} would lose its place", self.label(*job)).unwrap();
        }
        text
    }

    pub(super) fn show_bookings(&self) -> String {
        let mut text = String::new();
        for (name, booking) in self.state().bookings() {
            let window = booking.current();
            let state = if booking.is_open { "open" } else { "ahead" };
            let after = |at: LogTime| at.since_ms(self.now) / 60_000;
            let nodes: Vec<&str> = booking.nodes.iter().map(Name::as_str).collect();
            writeln!(
                text,
                "{name}: {state}, window {} from +{}m to +{}m on {}",
                booking.window,
                after(window.from),
                after(window.until),
                nodes.join(" ")
            )
            .unwrap();
        }
        text
    }
}
