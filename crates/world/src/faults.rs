//! What goes wrong, drawn from the seed.
//!
//! Safety has to hold whatever comes; what is kept to is only what no replicated log survives: damage to
//! more disks than a minority at a time.

use crate::agent::Machine;
use crate::cluster::Cluster;
use crate::operator::Operator;
use crate::runtime::{
    self, Host, below, chance, elapsed_ms, event, local_ns_of, now_ns, pick, set_rate, sleep_ms, spawn,
    spawn_on,
};
use crate::site::lock;
use muster_state::NodeStatus;
use muster_types::ReplicaId;
use muster_types::health::Finding;
use std::sync::Arc;

/// Looks, half a second apart, for a cluster that is well.
const CALM_LOOKS_MAX: usize = 24;
/// From a leader's death to the next leader: a lease, the turns, and what the clocks are apart.
const KILLED_MS_MAX: u64 = 6_000;
/// From a leader's deafness: the silence it allows itself before that.
const DEAF_MS_MAX: u64 = 12_000;
/// From a disk that went bad.
const BAD_DISK_MS_MAX: u64 = 10_000;
/// How long a worker is waited for that outlasts a fault.
const BUSY_MS_MAX: u64 = 6_000;
/// From the moment at which an agent is cut off: its lease, the margin, and what passes until its gangs run elsewhere.
const LOST_MS_MAX: u64 = 7_000;
/// The same where a leader is cut off with it: an election comes first.
const LOST_WITH_LEADER_MS_MAX: u64 = 14_000;
/// From a node's loss until its gangs run elsewhere.
const ELSEWHERE_MS: u64 = 1_500;
/// A flush takes about a second.
const SLOW_FACTOR: u64 = 1_200;
/// Clocks run apart by at most this many millionths: what the margin of a lease allows for two of them.
const RATE_PPM_MAX: u64 = 40_000;

/// Breaks things.
pub struct Faults {
    cluster: Arc<Cluster>,
    /// Machines with accelerators.
    machines: Vec<Arc<Machine>>,
    operator: Operator,
}

impl Faults {
    /// With the operator who repairs the membership.
    pub fn new(cluster: &Arc<Cluster>, machines: Vec<Arc<Machine>>, operator: Operator) -> Faults {
        Faults { cluster: Arc::clone(cluster), machines, operator }
    }

    /// Breaks things for so long.
    pub async fn run(&self, ms: u64) {
        let end = now_ns() + ms * 1_000_000;
        for host in self.cluster.site.replica_hosts() {
            self.drift(host);
        }
        for machine in &self.machines {
            let ppm = below(2 * RATE_PPM_MAX) as i64 - RATE_PPM_MAX as i64;
            set_rate(machine.agent, ppm);
            set_rate(machine.machine, ppm);
        }
        while now_ns() < end {
            sleep_ms(below(1_800)).await;
            self.one().await;
        }
    }

    fn drift(&self, host: Host) {
        let ppm = below(2 * RATE_PPM_MAX) as i64 - RATE_PPM_MAX as i64;
        set_rate(host, ppm);
    }

    /// Everything is well again.
    pub async fn heal(&self) {
        event("heal", format_args!("all"));
        lock(&self.cluster.site.network).heal();
        self.operator.want_all();
        for host in self.cluster.site.replica_hosts() {
            runtime::thaw(host);
            self.cluster.site.disk(host).mend();
        }
        for machine in &self.machines {
            machine.thaw(&self.cluster).await;
            machine.recover();
        }
        self.start_all().await;
    }

    /// Starts the replicas that are down, except those whose disk is damaged.
    pub async fn start_all(&self) {
        let damaged = self.cluster.damaged();
        for host in self.cluster.site.replica_hosts() {
            if self.cluster.replica(host).is_none() && !damaged.contains(&host) {
                self.cluster.boot(host).await;
            }
        }
    }

    fn leader_or_any(&self) -> Host {
        let leader = self.cluster.leader().filter(|_| chance(500)).map(|leader| leader.host);
        leader.or_else(|| pick(&self.cluster.site.replica_hosts())).unwrap_or(1)
    }

    /// A replica that ends itself from now on is started again, as the host's service manager would.
    pub fn supervise(self: Arc<Self>) {
        spawn(async move {
            loop {
                sleep_ms(1_000).await;
                self.start_all().await;
            }
        });
    }

    fn others(&self, host: Host) -> Vec<Host> {
        self.cluster.site.replica_hosts().into_iter().filter(|other| *other != host).collect()
    }

    async fn one(&self) {
        let host = self.leader_or_any();
        self.cluster.site.checks.count(|counts| counts.faults += 1);
        match below(31) {
            0..=2 if self.cluster.replica(host).is_some() => self.cluster.crash(host),
            0..=4 => self.start_all().await,
            5 => self.cut_one_way(host, true),
            6 => self.cut_one_way(host, false),
            7 => self.isolate(host).await,
            8 => self.split(),
            9 => self.cut_pairs(),
            10 => self.weather(),
            11 => self.pause(host),
            12 => self.clock(host),
            13 => self.fill(host),
            14 => self.fail_flush(host),
            15 => self.slow(host),
            16 => self.damage(host),
            17 => self.membership(host),
            18 => self.transfer().await,
            19 => self.snapshot_under_fire(host).await,
            20 => self.machine(),
            21 => self.kill_leader().await,
            22 => self.deafen_leader().await,
            23 => self.spoil_leaders_disk().await,
            24 => self.answer_after_thaw().await,
            25 => self.cut_power_of_all().await,
            26 => self.lose_machine().await,
            27 => self.lose_machine_with_leader().await,
            _ => {
                event("heal", format_args!("network"));
                lock(&self.cluster.site.network).heal();
            }
        }
    }

    /// Mends everything, and waits until all replicas are well; who leads them then. None when that takes too
    /// long: a bound on what follows would say nothing.
    async fn calm(&self) -> Option<Host> {
        lock(&self.cluster.site.network).heal();
        self.operator.want_all();
        for host in self.cluster.site.replica_hosts() {
            runtime::thaw(host);
            self.cluster.site.disk(host).mend();
        }
        for _ in 0..CALM_LOOKS_MAX {
            self.start_all().await;
            sleep_ms(500).await;
            if self.operator.is_settled()
                && let Some(leader) = self.cluster.leader()
            {
                // Until it has heard how the others fare.
                sleep_ms(2_000).await;
                let stays = self.cluster.leader().is_some_and(|now| now.host == leader.host);
                return (stays && self.operator.is_settled()).then_some(leader.host);
            }
        }
        None
    }

    /// Where all others are well, one of them leads before long.
    async fn another_leads(&self, old: Host, within_ms: u64, what: &str, again: impl Fn()) {
        let begun = elapsed_ms();
        while elapsed_ms() < begun + within_ms {
            // What an earlier fault mends in passing.
            again();
            sleep_ms(100).await;
            if self.cluster.leader().is_some_and(|leader| leader.host != old) {
                self.cluster.site.checks.count(|counts| counts.replaced_leaders += 1);
                return;
            }
        }
        self.cluster.site.checks.fail(format!("n{old} {what}, and nobody else leads after {within_ms} ms"));
    }

    /// A leader stands still, perhaps as soon as it is elected, until another leads; then it goes on, with everything
    /// that arrived meanwhile, and answers with what it knows. In half of all cases its clock stood still as well, as
    /// that of a virtual machine which is not told how long it was paused.
    async fn answer_after_thaw(&self) {
        let Some(mut leader) = self.calm().await else { return };
        if chance(500) {
            self.cluster.crash(leader);
            self.another_leads(leader, KILLED_MS_MAX, "was killed", || {}).await;
            let Some(new) = self.cluster.leader() else { return };
            leader = new.host;
            // The other is back before this one is missed: a majority goes on.
            self.start_all().await;
        }
        let stops = chance(500);
        event("fault", format_args!("leader n{leader} paused, its clock too {stops}"));
        runtime::freeze(leader);
        let begun = elapsed_ms();
        while elapsed_ms() < begun + KILLED_MS_MAX {
            sleep_ms(100).await;
            let leads = |other: &Host| {
                let replica = self.cluster.replica(*other);
                replica.is_some_and(|replica| replica.consensus.leadership().borrow().mine.is_some())
            };
            if self.others(leader).iter().any(leads) {
                break;
            }
        }
        // Until the new leader has told others what the old one does not know.
        sleep_ms(below(3_000)).await;
        event("fault", format_args!("n{leader} goes on"));
        if stops {
            runtime::thaw_without_time(leader)
        } else {
            runtime::thaw(leader)
        }
        self.cluster.site.checks.count(|counts| counts.thawed_leaders += 1);
        sleep_ms(500 + below(1_500)).await;
    }

    /// Every replica loses power at the same moment, and all come back: what was acknowledged is on their disks.
    async fn cut_power_of_all(&self) {
        event("fault", format_args!("power of all replicas"));
        for host in self.cluster.site.replica_hosts() {
            if self.cluster.replica(host).is_some() {
                self.cluster.crash(host);
            }
        }
        self.cluster.site.checks.count(|counts| counts.power_cuts += 1);
        sleep_ms(below(1_500)).await;
        self.start_all().await;
    }

    /// Ranked elections: one of the others has its turn.
    async fn kill_leader(&self) {
        let Some(leader) = self.calm().await else { return };
        event("fault", format_args!("leader n{leader} killed"));
        self.cluster.crash(leader);
        self.another_leads(leader, KILLED_MS_MAX, "was killed", || {}).await;
    }

    /// The gate: a leader that hears nobody falls silent, so that the others can elect.
    async fn deafen_leader(&self) {
        let Some(leader) = self.calm().await else { return };
        event("fault", format_args!("leader n{leader} deaf"));
        self.cut_one_way(leader, true);
        self.another_leads(leader, DEAF_MS_MAX, "hears nobody", || {}).await;
        lock(&self.cluster.site.network).heal();
    }

    /// Leadership transfer: a leader whose disk is full or very slow gives up leadership.
    async fn spoil_leaders_disk(&self) {
        let Some(leader) = self.calm().await else { return };
        let full = chance(500);
        event("fault", format_args!("leader n{leader} disk bad, full {full}"));
        let disk = self.cluster.site.disk(leader);
        let spoil = || if full { disk.set_full(true) } else { disk.set_slow(SLOW_FACTOR) };
        self.another_leads(leader, BAD_DISK_MS_MAX, "has a bad disk", spoil).await;
        disk.mend();
    }

    /// The host hears nobody of its peers, or nobody hears it.
    fn cut_one_way(&self, host: Host, deaf: bool) {
        event("fault", format_args!("n{host} {}", if deaf { "deaf" } else { "mute" }));
        let mut network = lock(&self.cluster.site.network);
        for other in self.others(host) {
            if deaf { network.cut(other, host) } else { network.cut(host, other) }
        }
    }

    /// Cut off from its peers, with some of the agents; the others lose it as well.
    async fn isolate(&self, host: Host) {
        event("fault", format_args!("n{host} isolated with some agents"));
        self.cut_off(host);
        // Long enough for the others to elect, and for leases to run out.
        sleep_ms(5_000 + below(3_000)).await;
    }

    fn cut_off(&self, host: Host) {
        let mut network = lock(&self.cluster.site.network);
        for other in self.others(host) {
            network.cut(other, host);
            network.cut(host, other);
        }
        for machine in &self.machines {
            let mine = chance(500);
            for replica in self.cluster.site.replica_hosts() {
                if mine != (replica == host) {
                    network.cut(machine.agent, replica);
                    network.cut(replica, machine.agent);
                }
            }
        }
    }

    /// A machine with a worker that runs for so much longer; waits a while for one.
    async fn busy_machine(&self, left_ms: u64) -> Option<Arc<Machine>> {
        let begun = elapsed_ms();
        while elapsed_ms() < begun + BUSY_MS_MAX {
            let is_busy = |machine: &&Arc<Machine>| {
                let until = machine.busy_until().unwrap_or(0);
                until > local_ns_of(machine.agent) + left_ms * 1_000_000
            };
            if let Some(machine) = self.machines.iter().find(is_busy) {
                return Some(Arc::clone(machine));
            }
            sleep_ms(100).await;
        }
        None
    }

    /// An agent reaches nobody while its workers go on, until its node is lost and its gangs run elsewhere: the lease alone
    /// ends those here.
    async fn lose_machine(&self) {
        if self.calm().await.is_none() {
            return;
        }
        let Some(machine) = self.busy_machine(LOST_MS_MAX).await else { return };
        event("fault", format_args!("agent {} cut off from all", machine.agent));
        self.cut_agent(&machine, &self.cluster.site.replica_hosts());
        self.until_lost(&machine, None, LOST_MS_MAX).await;
        lock(&self.cluster.site.network).heal();
    }

    /// A leader is cut off from its peers with an agent that reaches it alone, until another leads, the agent's node is lost
    /// there, and its gangs run elsewhere: the old leader may renew no lease.
    async fn lose_machine_with_leader(&self) {
        let Some(leader) = self.calm().await else { return };
        let Some(machine) = self.busy_machine(LOST_WITH_LEADER_MS_MAX).await else { return };
        event("fault", format_args!("leader n{leader} cut off with agent {}", machine.agent));
        let others = self.others(leader);
        {
            let mut network = lock(&self.cluster.site.network);
            for other in &others {
                network.cut(*other, leader);
                network.cut(leader, *other);
            }
        }
        self.cut_agent(&machine, &others);
        for other in self.machines.iter().filter(|other| other.agent != machine.agent) {
            self.cut_agent(other, &[leader]);
        }
        self.until_lost(&machine, Some(leader), LOST_WITH_LEADER_MS_MAX).await;
        lock(&self.cluster.site.network).heal();
    }

    fn cut_agent(&self, machine: &Machine, replicas: &[Host]) {
        let mut network = lock(&self.cluster.site.network);
        for replica in replicas {
            network.cut(machine.agent, *replica);
            network.cut(*replica, machine.agent);
        }
    }

    /// Until a replica other than `cut_off` has applied that the machine's node is lost, and a moment more; at most `within_ms`.
    async fn until_lost(&self, machine: &Machine, cut_off: Option<Host>, within_ms: u64) {
        let begun = elapsed_ms();
        while elapsed_ms() < begun + within_ms {
            sleep_ms(100).await;
            let mut others =
                self.cluster.replicas().into_iter().filter(|replica| Some(replica.host) != cut_off);
            let knows = others.any(|replica| {
                let state = replica.view.state();
                let mut nodes = state.nodes().iter();
                nodes.any(|(_, row)| row.spec.name == machine.spec.name && row.status != NodeStatus::Up)
            });
            if knows {
                self.cluster.site.checks.count(|counts| counts.lost_machines += 1);
                return sleep_ms(ELSEWHERE_MS).await;
            }
        }
    }

    /// Two sides that do not reach each other; every host is on one.
    fn split(&self) {
        event("fault", format_args!("split"));
        let mut hosts = self.cluster.site.replica_hosts();
        hosts.extend(self.machines.iter().map(|machine| machine.agent));
        let sides: Vec<(Host, bool)> = hosts.into_iter().map(|host| (host, chance(500))).collect();
        let mut network = lock(&self.cluster.site.network);
        for (from, side) in &sides {
            for (to, other) in &sides {
                if side != other {
                    network.cut(*from, *to);
                }
            }
        }
    }

    /// Some ordered pairs: partial partitions, bridges, agents that reach some replicas only.
    fn cut_pairs(&self) {
        event("fault", format_args!("pairs"));
        let mut hosts = self.cluster.site.replica_hosts();
        hosts.extend(self.machines.iter().map(|machine| machine.agent));
        let mut network = lock(&self.cluster.site.network);
        for _ in 0..=below(8) {
            if let (Some(from), Some(to)) = (pick(&hosts), pick(&hosts)) {
                network.cut(from, to);
            }
        }
    }

    fn weather(&self) {
        let mut network = lock(&self.cluster.site.network);
        network.loss_permille = below(250);
        network.twice_permille = below(200);
        network.jitter_ns = below(80_000_000);
        event(
            "fault",
            format_args!(
                "loss {} twice {} jitter {}",
                network.loss_permille, network.twice_permille, network.jitter_ns
            ),
        );
    }

    fn pause(&self, host: Host) {
        let ms = 300 + below(6_000);
        event("fault", format_args!("n{host} stands still for {ms} ms"));
        runtime::freeze(host);
        spawn(async move {
            sleep_ms(ms).await;
            runtime::thaw(host);
        });
    }

    fn clock(&self, host: Host) {
        let offset = below(7_200_000) as i64 - 3_600_000;
        // Every fourth is off by up to two days: beyond the retention of anything that a client relies on.
        let offset = if offset % 4 == 0 { offset * 48 } else { offset };
        event("fault", format_args!("n{host} wall clock {offset} ms off"));
        runtime::set_wall_offset(host, offset);
        self.drift(host);
    }

    fn fill(&self, host: Host) {
        event("fault", format_args!("n{host} disk full"));
        let disk = self.cluster.site.disk(host);
        disk.set_full(true);
        let ms = below(5_000);
        spawn(async move {
            sleep_ms(ms).await;
            disk.set_full(false);
        });
    }

    fn fail_flush(&self, host: Host) {
        event("fault", format_args!("n{host} flush error"));
        self.cluster.site.disk(host).fail_next_sync();
    }

    fn slow(&self, host: Host) {
        let factor = 10 + below(800);
        event("fault", format_args!("n{host} disk {factor} times slower"));
        let disk = self.cluster.site.disk(host);
        disk.set_slow(factor);
        let ms = below(6_000);
        spawn(async move {
            sleep_ms(ms).await;
            disk.set_slow(1);
        });
    }

    /// A bit of what was acknowledged turns over, found at the next start. Never beyond one replica.
    fn damage(&self, host: Host) {
        let hurt = !self.cluster.damaged().is_empty() || !self.cluster.returning().is_empty();
        if hurt || !self.operator.is_settled() {
            return;
        }
        let disk = self.cluster.site.disk(host);
        if !disk.flip_bit() {
            return;
        }
        event("fault", format_args!("n{host} bit flipped"));
        if self.cluster.replica(host).is_some() {
            self.cluster.crash(host);
        }
        let cluster = Arc::clone(&self.cluster);
        spawn(async move {
            sleep_ms(below(500)).await;
            if cluster.replica(host).is_none() && !cluster.damaged().contains(&host) {
                cluster.boot(host).await;
            }
        });
    }

    fn membership(&self, host: Host) {
        event("fault", format_args!("n{host} is taken out"));
        self.operator.take_out(host);
        let operator = self.operator.clone();
        let ms = 1_000 + below(5_000);
        spawn(async move {
            sleep_ms(ms).await;
            operator.want_all();
        });
    }

    async fn transfer(&self) {
        let Some(leader) = self.cluster.leader() else { return };
        let Some(to) = pick(&self.others(leader.host)) else { return };
        event("fault", format_args!("leadership from n{} to n{to}", leader.host));
        let consensus = leader.consensus.clone();
        spawn_on(leader.host, async move {
            // It may lead no more by then.
            let _ = consensus.transfer_leadership(ReplicaId(u64::from(to))).await;
        });
    }

    /// The log is cut to its snapshot while a replica is away, which needs the snapshot then; and perhaps it
    /// dies again while it installs.
    async fn snapshot_under_fire(&self, host: Host) {
        event("fault", format_args!("snapshot under fire of n{host}"));
        if self.cluster.replica(host).is_some() {
            self.cluster.crash(host);
        }
        sleep_ms(1_500 + below(2_000)).await;
        for replica in self.cluster.replicas() {
            let consensus = replica.consensus.clone();
            let upto = *replica.machine.applied().borrow();
            spawn_on(replica.host, async move {
                consensus.trigger_snapshot().await;
                sleep_ms(20).await;
                // A replica that stops purges nothing.
                let _ = consensus.raft().trigger().purge_log(upto).await;
            });
        }
        sleep_ms(50 + below(100)).await;
        self.start_all().await;
        if chance(500) {
            sleep_ms(below(400)).await;
            if self.cluster.replica(host).is_some() {
                self.cluster.crash(host);
            }
        }
    }

    fn machine(&self) {
        let Some(machine) = pick(&self.machines) else { return };
        match below(5) {
            4 => {
                if let Some(finding) = pick(&Finding::KINDS) {
                    machine.fall_ill(finding);
                }
            }
            0 => {
                let cluster = Arc::clone(&self.cluster);
                machine.kill_agent();
                let ms = below(5_000);
                spawn(async move {
                    sleep_ms(ms).await;
                    machine.start_agent(&cluster);
                });
            }
            1 => {
                event("fault", format_args!("machine {} reboots", machine.machine));
                machine.reboot(&self.cluster);
            }
            2 => self.stand_still(machine, true),
            _ => self.stand_still(machine, false),
        }
    }

    /// The agent alone, or the machine with its workers.
    fn stand_still(&self, machine: Arc<Machine>, whole: bool) {
        let ms = 500 + below(8_000);
        event("fault", format_args!("{} stands still for {ms} ms, whole {whole}", machine.agent));
        let cluster = Arc::clone(&self.cluster);
        if whole {
            machine.freeze(&cluster);
        } else {
            runtime::freeze(machine.agent);
        }
        spawn(async move {
            sleep_ms(ms).await;
            if whole {
                machine.thaw(&cluster).await;
            } else {
                runtime::thaw(machine.agent);
            }
        });
    }
}
