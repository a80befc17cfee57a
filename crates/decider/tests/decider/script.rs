//! Runs the scripts in `testdata/`: each command is followed by exactly what it led to.
//!
//! `UPDATE_EXPECT=1` rewrites the outcomes; read the difference before committing it.
//!
//! Every command is one round, which also goes through its bytes to a second replica.

mod bookings;
mod commands;
mod controls;
mod policies;
mod quotas;
mod records;
mod shown;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use muster_decider::{
    Answer, BootstrapConfig, Command, DrainOrder, Pass, RepairOrder, Speculation, handle, schedule,
    settle_all, tick,
};
use muster_journal::RankUpdate;
use muster_planner::Budget;
use muster_state::State;
use muster_types::health::{Finding, HealthAction, XidRule};
use muster_types::policy::NotificationProgress;
use muster_types::{
    ArtifactFault, Artifacts, DeviceSet, ExitStatus, JobId, LogIndex, LogTime, Name, NodeId, RefusalCode,
    Requester,
};

use crate::support::{self, BOOTSTRAP, commit, leadership, name, request};

#[test]
fn scripts() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata");
    let update = std::env::var_os("UPDATE_EXPECT").is_some();
    let mut paths: Vec<_> = std::fs::read_dir(&directory)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|e| e == "txt"))
        .collect();
    paths.sort();
    assert!(!paths.is_empty(), "there are scripts");
    let mut wrong = Vec::new();
    for path in paths {
        let expected = std::fs::read_to_string(&path).unwrap();
        let actual = run(&expected, &path.display().to_string());
        if actual == expected {
            continue;
        }
        if update {
            std::fs::write(&path, &actual).unwrap();
        } else {
            let differs = expected.lines().zip(actual.lines()).position(|(e, a)| e != a);
            let line = differs.unwrap_or(expected.lines().count().min(actual.lines().count()));
            wrong.push(format!(
                "{}:{}\n  expected: {}\n  actual:   {}",
                path.display(),
                line + 1,
                expected.lines().nth(line).unwrap_or("(end)"),
                actual.lines().nth(line).unwrap_or("(end)")
            ));
        }
    }
    assert!(wrong.is_empty(), "{}\nUPDATE_EXPECT=1 rewrites", wrong.join("\n"));
}

fn run(script: &str, origin: &str) -> String {
    let mut world = World::new();
    let mut text = String::new();
    for (number, line) in script.lines().enumerate() {
        if line.starts_with('#') || line.is_empty() {
            text.push_str(line);
            text.push('\n');
        } else if let Some(command) = line.strip_prefix("> ") {
            text.push_str(line);
            text.push('\n');
            let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| world.run(command)));
            match result {
                Ok(output) => text.push_str(&output),
                Err(panic) => {
                    eprintln!("at {origin}:{}: {line}", number + 1);
                    std::panic::resume_unwind(panic);
                }
            }
        }
    }
    text
}

struct World {
    speculation: Speculation,
    replica: State,
    now: LogTime,
    jobs: BTreeMap<String, JobId>,
    labels: BTreeMap<JobId, String>,
    requests: u128,
    bootstrap: BootstrapConfig,
}

impl World {
    fn new() -> World {
        World::of(support::founded())
    }

    fn of((speculation, replica): (Speculation, State)) -> World {
        World {
            now: speculation.now(),
            speculation,
            replica,
            jobs: BTreeMap::new(),
            labels: BTreeMap::new(),
            requests: 1_000,
            bootstrap: BOOTSTRAP,
        }
    }

    fn run(&mut self, line: &str) -> String {
        let words: Vec<&str> = line.split_whitespace().collect();
        let (verb, rest) = words.split_first().expect("a command has a verb");
        match *verb {
            // In place of the cluster that every script begins with: one for which nobody has set a policy.
            "cluster" => {
                assert_eq!(rest, ["new"], "no other cluster is known");
                *self = World::of(support::founded_as(BOOTSTRAP));
                String::new()
            }
            "node" => {
                let command = self.node(rest);
                self.carry_out(&command)
            }
            // `lost where JOB`: the node that its first rank is on.
            "lost" if rest[0] == "where" => {
                let job = self.job_id(rest[1]);
                let node =
                    self.state().job(job).and_then(|row| row.placement.as_ref()).expect("a placed job");
                let (node, incarnation) = (node.slots[0].node, node.slots[0].incarnation);
                self.carry_out(&Command::SessionOver { node, incarnation })
            }
            "lost" => {
                let node = self.node_id(rest[0]);
                let incarnation = self.number(rest, "incarnation=").map_or_else(
                    || self.state().node(node).unwrap().incarnation,
                    |text| text.parse().unwrap(),
                );
                self.carry_out(&Command::SessionOver { node, incarnation })
            }
            "lapsed" => {
                let nodes: Vec<NodeId> = rest.iter().map(|name| self.node_id(name)).collect();
                self.speculation.set_silent(nodes.clone());
                self.speculation.set_lapsed(nodes);
                self.speculation.want_schedule();
                String::new()
            }
            "silent" => {
                let nodes: Vec<NodeId> = rest.iter().map(|name| self.node_id(name)).collect();
                self.speculation.set_silent(nodes);
                String::new()
            }
            "forget" => {
                let node = self.node_id(rest[0]);
                self.carry_out(&Command::ForgetNode {
                    request: None,
                    by: muster_types::Requester::default(),
                    node,
                })
            }
            "format" => self.carry_out(&Command::RaiseFormat {
                by: muster_types::Requester::default(),
                format: rest[0].parse().unwrap(),
            }),
            "recover" => self.carry_out(&Command::Recover { generation: rest[0].parse().unwrap() }),
            "cordon" | "uncordon" => {
                let node = self.node_id(rest[0]);
                let request = self.request(rest);
                let by = muster_types::Requester::default();
                let (cordoned, reason) = (*verb == "cordon", reason_of(rest));
                self.carry_out(&Command::SetCordon { request, by, node, cordoned, reason })
            }
            "label" | "taint" => {
                let command = self.overrides(verb, rest);
                self.carry_out(&command)
            }
            "health" => {
                let command = self.health(rest);
                self.carry_out(&command)
            }
            "drain" | "undrain" => {
                let node = self.node_id(rest[0]);
                let request = self.request(rest);
                let deadline_ms = self.number(rest, "deadline=").map(duration_ms);
                let order =
                    if *verb == "drain" { DrainOrder::Begin { deadline_ms } } else { DrainOrder::End };
                let (by, reason) = (muster_types::Requester::default(), reason_of(rest));
                self.carry_out(&Command::SetDrain { request, by, node, order, reason })
            }
            "quarantine" | "release" => {
                let node = self.node_id(rest[0]);
                let request = self.request(rest);
                let words: Vec<&str> = rest[1..].iter().filter(|w| !w.contains('=')).copied().collect();
                let reason = (*verb == "quarantine").then(|| words.join(" "));
                self.carry_out(&Command::SetQuarantine {
                    request,
                    by: muster_types::Requester::default(),
                    node,
                    reason,
                })
            }
            "repair" => {
                let node = self.node_id(rest[0]);
                let request = self.request(rest);
                let order = match rest.get(1) {
                    Some(&"done") => RepairOrder::Done,
                    Some(&"failed") => RepairOrder::Failed { detail: rest[2..].join(" ") },
                    _ => RepairOrder::Begin {
                        action: self.number(rest, "action=").and_then(HealthAction::of_name),
                        devices: DeviceSet::EMPTY,
                        deadline_ms: self.number(rest, "deadline=").map(duration_ms),
                    },
                };
                self.carry_out(&Command::SetRepair {
                    request,
                    by: muster_types::Requester::default(),
                    node,
                    order,
                })
            }
            "health-policy" => {
                let mut policy = (*self.state().health_policy().policy).clone();
                for word in rest {
                    let Some((finding, action)) = word.split_once('=') else { continue };
                    match finding.parse().expect("a finding") {
                        Finding::Xid(code) => {
                            policy.xids.insert(code, XidRule::of_name(action).expect("a rule"));
                        }
                        other => {
                            policy.findings.insert(other, HealthAction::of_name(action).expect("an action"));
                        }
                    }
                }
                let request = self.request(&[]);
                let expected_version = None;
                let policy = Box::new(policy);
                self.carry_out(&Command::SetHealthPolicy {
                    request,
                    by: muster_types::Requester::default(),
                    policy,
                    expected_version,
                })
            }
            "submit" => self.submit(rest),
            "cancel" | "hold" | "resume" | "requeue" | "suspend" => self.control(verb, rest),
            "modify" => self.modify(rest),
            "checkpoint" => {
                let job = self.job_id(rest[0]);
                let token =
                    self.state().job(job).and_then(|row| row.placement.clone()).expect("a placed job").token;
                let step = rest.get(1).map(|step| step.parse().expect("a step"));
                self.carry_out(&Command::CommitCheckpoint { job, token, step })
            }
            "exec" => {
                let job = self.job_id(rest[0]);
                let token =
                    self.state().job(job).and_then(|row| row.placement.clone()).expect("a placed job").token;
                let by = Requester::named("tenant/vision/ada".into(), false);
                let (rank, command) = (rest[1].parse().unwrap(), rest[2..].join(" "));
                self.carry_out(&Command::OpenExec { by, job, token, rank, command })
            }
            "port-forward" => {
                let job = self.job_id(rest[0]);
                let token =
                    self.state().job(job).and_then(|row| row.placement.clone()).expect("a placed job").token;
                let by = Requester::named("tenant/vision/ada".into(), false);
                let (rank, port) = (rest[1].parse().unwrap(), rest[2].parse().unwrap());
                self.carry_out(&Command::OpenPortForward { by, job, token, rank, port })
            }
            "artifacts" => {
                // JOB RANK FILES BYTES, and a fault with the number of its path.
                let job = self.job_id(rest[0]);
                let token =
                    self.state().job(job).and_then(|row| row.placement.clone()).expect("a placed job").token;
                let number = |at: usize| rest[at].parse::<u32>().unwrap();
                let fault =
                    rest.get(4).map(|word| (ArtifactFault::of_word(word).expect("a fault"), number(5)));
                let (files, bytes) = (number(2), number(3).into());
                let artifacts = Artifacts { digest: None, files, bytes, left_out: 0, fault };
                self.carry_out(&Command::KeepArtifacts { job, token, rank: number(1), artifacts })
            }
            "straggler" => {
                let job = self.job_id(rest[0]);
                let token =
                    self.state().job(job).and_then(|row| row.placement.clone()).expect("a placed job").token;
                let (rank, slow_milli) = (rest[1].parse().unwrap(), rest[2].parse().ok());
                self.carry_out(&Command::NoteStraggler { job, token, rank, slow_milli })
            }
            "notified" => {
                // NAME@INDEX, acknowledged, given up and skipped.
                let progress = rest.chunks(4).map(|words| {
                    let (name, delivered) = words[0].split_once('@').expect("a receiver and an index");
                    let number = |at: usize| words.get(at).map_or(0, |word| word.parse().unwrap());
                    let progress = NotificationProgress {
                        delivered: LogIndex(delivered.parse().unwrap()),
                        acknowledged: number(1),
                        given_up: number(2),
                        skipped: number(3),
                    };
                    (Name::new(name).expect("a name"), progress)
                });
                let progress = progress.collect();
                self.carry_out(&Command::NoteNotifications { progress })
            }
            "sound" => {
                let nodes = rest.iter().map(|text| self.node_id(text)).collect();
                self.carry_out(&Command::NoteSoundNetwork { nodes })
            }
            "foreign" => {
                let command = self.foreign(rest);
                self.carry_out(&command)
            }
            "policy" => self.policy(rest),
            "ask" | "grant" => self.quota(verb, rest),
            "approve" | "deny" => self.answer_quota(verb, rest),
            "impact" => self.impact(rest),
            "book" => {
                let command = self.book(rest);
                self.carry_out(&command)
            }
            "unbook" => {
                let command = self.unbook(rest);
                self.carry_out(&command)
            }
            "hold-place" | "release-place" => {
                let command = self.hold_place(verb, rest);
                self.carry_out(&command)
            }
            "cost" => self.booking_cost(rest),
            "report" => {
                let command = self.report(rest);
                self.carry_out(&command)
            }
            "running" => self.report_all(rest, &RankUpdate::Running),
            "stopped" => self.report_all(rest, &RankUpdate::Exited(ExitStatus::Signal(15))),
            "done" => self.report_all(rest, &RankUpdate::Exited(ExitStatus::Code(0))),
            "reset" => {
                *self = World::new();
                String::new()
            }
            "schedule" => self.schedule(rest),
            "tick" => self.tick(rest),
            "leader" => self.leader(rest),
            "why" => self.why(rest[0]),
            "show" => match rest[0] {
                "jobs" => self.show_jobs(),
                "array" => self.show_array(rest[1]),
                "nodes" => self.show_nodes(),
                "bookings" => self.show_bookings(),
                "recoveries" => self.show_recoveries(),
                "spares" => self.show_spares(),
                "grants" => self.show_grants(),
                "advice" => self.show_advice(rest[1]),
                "estimate" => self.show_estimate(rest[1]),
                other => panic!("cannot show {other}"),
            },
            other => panic!("unknown command {other}"),
        }
    }

    fn state(&self) -> &State {
        self.speculation.state()
    }

    fn number<'a>(&self, words: &[&'a str], prefix: &str) -> Option<&'a str> {
        words.iter().find_map(|word| word.strip_prefix(prefix))
    }

    fn request(&mut self, words: &[&str]) -> muster_types::RequestId {
        self.requests += 1;
        let n = self.number(words, "request=").map_or(self.requests, |text| text.parse().unwrap());
        request(n)
    }

    fn node_id(&self, text: &str) -> NodeId {
        // One that is gone goes by the id it had.
        let id = |text: &str| text.parse::<NodeId>().ok();
        self.state().node_named(&name(text)).or_else(|| id(text)).unwrap_or(NodeId(999))
    }

    fn job_id(&self, text: &str) -> JobId {
        self.jobs.get(text).copied().unwrap_or(JobId(999_999))
    }

    fn label(&self, job: JobId) -> String {
        self.labels.get(&job).cloned().unwrap_or_else(|| job.to_string())
    }

    fn node_label(&self, node: NodeId) -> String {
        self.state().node(node).map_or_else(|| node.to_string(), |row| row.spec.name.to_string())
    }

    fn carry_out(&mut self, command: &Command) -> String {
        let answer = handle(&mut self.speculation, command);
        self.finish(answer.map(Some))
    }

    fn schedule(&mut self, words: &[&str]) -> String {
        let visits = self.number(words, "visits=").map_or(10_000, |text| text.parse().unwrap());
        let pass = schedule(&mut self.speculation, &mut Budget::new(visits));
        let mut text = self.finish(Ok(None));
        if let Pass::Interrupted { .. } = pass {
            text.push_str("interrupted\n");
        }
        text
    }

    fn tick(&mut self, words: &[&str]) -> String {
        let ahead = words.first().and_then(|word| word.strip_prefix('+')).map_or(0, duration_ms);
        self.now = self.now.plus_ms(ahead);
        self.speculation.set_now(self.now);
        tick(&mut self.speculation);
        self.finish(Ok(None))
    }

    /// Another replica leads from here on; it has applied everything. `generation=N`: its data directory is of that
    /// generation; `knows=N`: its binary knows formats up to that.
    fn leader(&mut self, words: &[&str]) -> String {
        let replica = words[0].strip_prefix('r').unwrap().parse().unwrap();
        let term = self.speculation.leadership().term + 1;
        if let Some(generation) = self.number(words, "generation=") {
            self.bootstrap.generation = generation.parse().unwrap();
        }
        if let Some(format_max) = self.number(words, "knows=") {
            self.bootstrap.format_max = format_max.parse().unwrap();
        }
        self.speculation =
            Speculation::begin(self.replica.clone(), leadership(term, replica), self.now, self.bootstrap);
        settle_all(&mut self.speculation);
        self.finish(Ok(None))
    }

    fn finish(&mut self, answer: Result<Option<Answer>, muster_types::Refusal>) -> String {
        let round = commit(&mut self.speculation, &mut self.replica);
        let mut text = String::new();
        match &round {
            Some(round) => {
                for (n, decision) in round.decisions.iter().enumerate() {
                    let index = round.first_index.0 + n as u64;
                    writeln!(text, "{index} {}{}", decision.name(), self.short(decision)).unwrap();
                }
            }
            None => match &answer {
                Ok(Some(answer)) => {
                    writeln!(text, "no record; the answer stands at {}", answer.at()).unwrap()
                }
                Ok(None) => text.push_str("no record\n"),
                Err(_) => {}
            },
        }
        if let Err(refusal) = answer {
            assert!(round.is_none(), "a refusal pushes nothing");
            assert!(RefusalCode::ALL.contains(&refusal.code));
            writeln!(text, "refused: {refusal}").unwrap();
        }
        text
    }
}

/// The reason that a line gives: `reason=power-work`.
fn reason_of(words: &[&str]) -> Option<String> {
    words.iter().find_map(|word| word.strip_prefix("reason=")).map(str::to_owned)
}

fn duration_ms(text: &str) -> u64 {
    let (number, unit) = text.split_at(text.len() - 1);
    let seconds = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3_600,
        "d" => 86_400,
        other => panic!("unknown unit {other}"),
    };
    number.parse::<u64>().unwrap() * seconds * 1_000
}
