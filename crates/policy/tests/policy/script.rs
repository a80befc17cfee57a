//! Scripts of who goes next. A line is a command; `order` is followed by what it must be.
//!
//! ```text
//! policy key=value ...                    order, ageing, fair-share, reserve-after, reserve-after-runs
//! tenant name [weight=n] [parent=t]       before the first submission
//! submit tenant name[*count] devices [tier=t] [expected=d] [deadline=d]
//! start job ... | end job ... | pass duration | renew
//! order: job job ...
//! ```

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use muster_types::policy::{Order, PolicyDraft, TenantPolicy};
use muster_types::{JobDraft, JobId, Name, PriorityTier};

use crate::support::{World, spec};

fn duration_ms(text: &str) -> u64 {
    let (number, unit) = text.split_at(text.len() - 1);
    let unit_ms = match unit {
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => panic!("{text}: s, m, h or d"),
    };
    number.parse::<u64>().unwrap() * unit_ms
}

#[derive(Default)]
struct Script {
    draft: PolicyDraft,
    world: Option<World>,
    jobs: BTreeMap<String, JobId>,
}

impl Script {
    fn world(&mut self) -> &mut World {
        self.world.get_or_insert_with(|| World::new(16, self.draft.clone()))
    }

    fn set(&mut self, key: &str, value: &str) {
        match key {
            "order" if value == "submission" => self.draft.order.order = Order::Submission,
            "order" => self.draft.order.order = Order::Predicted,
            "ageing" => self.draft.order.ageing_milli = value.parse().unwrap(),
            "fair-share" => self.draft.order.fair_share = value == "on",
            "reserve-after" => self.draft.backfill.reserve_after_ms = duration_ms(value),
            "reserve-after-runs" => self.draft.backfill.reserve_after_runs_milli = value.parse().unwrap(),
            _ => panic!("{key}"),
        }
    }

    fn tenant(&mut self, words: &[&str]) {
        let mut tenant = TenantPolicy::default();
        for word in &words[1..] {
            match word.split_once('=').unwrap() {
                ("weight", value) => tenant.weight_milli = value.parse::<u32>().unwrap() * 1_000,
                ("parent", value) => tenant.parent = Some(Name::new(value).unwrap()),
                (key, _) => panic!("{key}"),
            }
        }
        self.draft.tenants.insert(Name::new(words[0]).unwrap(), tenant);
    }

    fn submit(&mut self, words: &[&str]) {
        let (name, count) = words[1].split_once('*').map_or((words[1], None), |(n, c)| (n, Some(c)));
        let names: Vec<String> = match count {
            Some(count) => (1..=count.parse::<u32>().unwrap()).map(|n| format!("{name}{n}")).collect(),
            None => vec![name.to_string()],
        };
        let now = self.world().now;
        let specs = names.iter().map(|name| {
            let mut draft = spec(words[0], name, words[2].parse().unwrap());
            for word in &words[3..] {
                change(&mut draft, word, now);
            }
            draft.check().unwrap()
        });
        let specs = specs.collect();
        let jobs = self.world().submit(specs);
        self.jobs.extend(names.into_iter().zip(jobs));
    }

    fn each(&mut self, words: &[&str], action: fn(&mut World, JobId)) {
        for word in words {
            let job = self.jobs[*word];
            action(self.world(), job);
        }
    }

    fn order(&mut self) -> String {
        let order = self.world().order();
        let name = |job: &JobId| {
            let named = self.jobs.iter().find(|(_, known)| *known == job);
            named.map(|(name, _)| name.clone()).unwrap()
        };
        order.iter().map(name).collect::<Vec<_>>().join(" ")
    }

    fn run(&mut self, line: &str, place: &str) {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[0] {
            "policy" => {
                for word in &words[1..] {
                    let (key, value) = word.split_once('=').unwrap();
                    self.set(key, value);
                }
            }
            "tenant" => self.tenant(&words[1..]),
            "submit" => self.submit(&words[1..]),
            "start" => self.each(&words[1..], World::start),
            "end" => self.each(&words[1..], World::end),
            "pass" => self.world().pass(duration_ms(words[1])),
            "renew" => {
                self.world().renew();
            }
            "order:" => assert_eq!(self.order(), words[1..].join(" "), "{place}"),
            other => panic!("{place}: {other}"),
        }
        if let Some(world) = &self.world {
            assert_eq!(world.state.verify(), Ok(()), "{place}");
        }
    }
}

fn change(draft: &mut JobDraft, word: &str, now: muster_types::LogTime) {
    match word.split_once('=').unwrap() {
        ("expected", value) => draft.expected_run_ms = Some(duration_ms(value)),
        ("deadline", value) => draft.deadline = Some(now.plus_ms(duration_ms(value))),
        ("tier", value) => {
            let tiers = PriorityTier::ALL.iter();
            draft.tier = *tiers.clone().find(|tier| format!("{tier:?}").to_lowercase() == value).unwrap();
        }
        (key, _) => panic!("{key}"),
    }
}

#[test]
fn scripts() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata");
    let mut files: Vec<_> = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert!(!files.is_empty());
    for file in files {
        let mut script = Script::default();
        for (number, line) in fs::read_to_string(&file).unwrap().lines().enumerate() {
            let line = line.trim();
            if line == "new" {
                script = Script::default();
            } else if !line.is_empty() && !line.starts_with('#') {
                script.run(line, &format!("{}:{}", file.display(), number + 1));
            }
        }
    }
}
