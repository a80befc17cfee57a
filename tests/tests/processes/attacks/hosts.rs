//! What a tenant's worker may try against its host, its agent and other tenants, on a host whose agent gives each tenant
//! a user.
//!
//! An attack is a script. It says `BROKEN` with what it has reached. What stopped it has to be seen as well: the words of
//! the kernel or of the agent in what it says, and before it, from outside, that its target is there: an attack that
//! misses is no defence. Where this is not root, or where no namespaces can be made, there is nothing to hold, and the
//! test reports that.

use muster_client::Client;
use muster_wire::time::duration;
use muster_wire::v1::{self, JobPhase};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::table::{Kind, Outcome, Table};
use crate::support::{
    Agents, Cluster, accelerators, eventually, follow_until, free_address, heavy, is_finished, job, output,
    say, submit, wait_for_job,
};

/// Users that nobody here has.
const UID_FIRST: u32 = 1_500_000_000;
/// In the environment of the victim.
const SECRET: &str = "the-victims-own-token";
/// Output kept of one worker.
const KEPT_BYTES: usize = 64 << 10;

/// What the files of one worker may take.
const DISK_BYTES_MAX: usize = 48 << 20;

/// Where a daemon listens that starts containers, for everybody: one of the paths at which such daemons do.
const DAEMON: &str = "/run/crio/crio.sock";

/// Listens there; gone with this. None where there is one already.
struct Daemon {
    _listener: UnixListener,
}

impl Daemon {
    fn listen() -> Option<Daemon> {
        let socket = Path::new(DAEMON);
        std::fs::create_dir_all(socket.parent()?).ok()?;
        let listener = UnixListener::bind(socket).ok()?;
        let everybody = std::fs::Permissions::from_mode(0o666);
        let daemon = Daemon { _listener: listener };
        std::fs::set_permissions(socket, everybody).ok().map(|()| daemon)
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(DAEMON);
        // It stays where something else is in it.
        let _ = Path::new(DAEMON).parent().map(std::fs::remove_dir);
    }
}

/// An attack.
struct Attack {
    name: &'static str,
    /// The script of the worker that makes it.
    script: &'static str,
    /// What the kernel or the agent prints when it stops the attack; one of these.
    seen: &'static [&'static str],
    /// Shows from outside, as root, that the target is there. Empty where that needs no showing.
    target: &'static str,
}

const fn attack(
    name: &'static str,
    script: &'static str,
    seen: &'static [&'static str],
    target: &'static str,
) -> Attack {
    Attack { name, script, seen, target }
}

const DENIED: &[&str] = &["Permission denied"];
const NOT_PERMITTED: &[&str] = &["not permitted"];
const ABSENT: &[&str] = &["No such file"];
/// Of what programs say that want to mount something.
const NO_MOUNTS: &[&str] = &["superuser", "ermission denied", "not permitted"];

const READ: &[Attack] = &[
    attack("the agent's key", "cat $STATE/tls.key && echo BROKEN", DENIED, "test -s $STATE/tls.key"),
    attack(
        "a tenant's secret in a file",
        "cat $STATE/secrets/bob/token && echo BROKEN",
        DENIED,
        "test -s $STATE/secrets/bob/token",
    ),
    attack("the victim's launch", "cat $VICTIM/spec && echo BROKEN", DENIED, "test -s $VICTIM/spec"),
    attack("every launch", "cat $STATE/tasks/*/spec && echo BROKEN", ABSENT, "ls $STATE/tasks/*/spec"),
    attack(
        "the victim's output",
        "head -c 9 $VICTIM/output && echo BROKEN",
        DENIED,
        "grep -q mine $VICTIM/output",
    ),
    attack(
        "the victim's directory",
        "ls $VICTIM/work && echo BROKEN",
        DENIED,
        "test -e $VICTIM/work/of-victim",
    ),
    attack("which workers the host has", "ls $STATE/tasks && echo BROKEN", DENIED, "ls $STATE/tasks"),
    attack("the agent's directory", "ls $STATE && echo BROKEN", DENIED, "ls $STATE"),
    attack(
        "environments of other processes",
        "grep -l $WANTED /proc/[0-9]*/environ && echo BROKEN; test -e /proc/$VICTIM_PID || echo unseen",
        &["unseen"],
        "grep -q $WANTED /proc/$VICTIM_PID/environ",
    ),
    attack(
        "the victim's memory",
        "head -c 1 /proc/$VICTIM_PID/mem && echo BROKEN",
        ABSENT,
        "test -e /proc/$VICTIM_PID/mem",
    ),
    attack("the environment of its first process", "cat /proc/1/environ && echo BROKEN", DENIED, ""),
    attack("files through its first process", "ls /proc/1/root/ && echo BROKEN", DENIED, "ls /proc/1/root/"),
    attack(
        "the victim's files in /tmp",
        "ls /tmp/of-victim && echo BROKEN",
        ABSENT,
        "test -e $VICTIM/tmp/of-victim",
    ),
    attack(
        "the victim's shared memory",
        "ls /dev/shm/of-victim && echo BROKEN; ls $VICTIM_SHM && echo BROKEN",
        ABSENT,
        "test -e $VICTIM_SHM/of-victim",
    ),
    attack(
        "which processes the host has",
        "test $(ls -d /proc/[0-9]* | wc -l) -gt 12 && echo BROKEN; test $(ls -d /proc/[0-9]* | wc -l) -le 12 && echo few",
        &["few"],
        "test $(ls -d /proc/[0-9]* | wc -l) -gt 12",
    ),
    attack(
        "the victim's launch as root of a namespace",
        "unshare --user --map-root-user cat $VICTIM/spec && echo BROKEN",
        &["Permission denied", "not permitted"],
        "test -s $VICTIM/spec",
    ),
    attack(
        "the host's disk",
        "head -c 1 $DISK && echo BROKEN",
        &["Permission denied", "not permitted"],
        "head -c 1 $DISK",
    ),
    attack("the host's memory", "head -c 1 /proc/kcore && echo BROKEN", DENIED, "head -c 1 /proc/kcore"),
];

/// What the kernel refuses by the worker's control group.
const DEVICES: &[Attack] = &[
    attack(
        "the victim's accelerator",
        "true < $ACCELERATOR && echo BROKEN",
        NOT_PERMITTED,
        "true < $ACCELERATOR",
    ),
    attack(
        "the victim's accelerator by another name",
        "ln -s $ACCELERATOR mine; head -c 0 mine && echo BROKEN",
        NOT_PERMITTED,
        "head -c 0 $ACCELERATOR",
    ),
    attack(
        "the kernel's log",
        "head -c 1 /dev/kmsg && echo BROKEN",
        NOT_PERMITTED,
        "test -c /dev/kmsg && true < /dev/kmsg",
    ),
];

const FORGE: &[Attack] = &[
    attack(
        "the lease",
        "echo x > $LEASE && echo BROKEN",
        &["Permission denied", "nonexistent"],
        "test -s $LEASE",
    ),
    attack("the fences", "echo x > $STATE/jobs/log && echo BROKEN", DENIED, "test -e $STATE/jobs/log"),
    attack("the holder", "echo x > $STATE/holder && echo BROKEN", DENIED, "test -e $STATE/holder"),
    attack("its own end", "echo x > ../exit && echo BROKEN", DENIED, ""),
    attack("the victim's end", "echo x > $VICTIM/exit && echo BROKEN", DENIED, "test -d $VICTIM"),
    attack("its own launch", "echo x > ../spec && echo BROKEN", DENIED, ""),
    attack("its own rank map", "echo x > $MUSTER_RANK_MAP && echo BROKEN", DENIED, ""),
    attack(
        "a launch that waits",
        // Whether one waits at the moment is up to the agent.
        "for t in $(seq 100); do for n in $(seq 300); do if [ -d $STATE/tasks/.new_ready_$n ]; then \
         echo x > $STATE/tasks/.new_ready_$n/spec && echo BROKEN; exit; fi; done; sleep 0.05; done",
        DENIED,
        "ls $STATE/tasks/.new_ready_*/spec",
    ),
    attack(
        "a directory of a worker",
        "mkdir $STATE/tasks/job-1_1.1_0 && echo BROKEN",
        DENIED,
        "test -d $STATE/tasks",
    ),
    attack(
        "another directory in place of its work directory",
        "mv ../work ../gone && echo BROKEN",
        DENIED,
        "",
    ),
    attack("the agent's socket", "rm -f $MUSTER_AGENT_SOCKET && echo BROKEN", DENIED, ""),
    attack(
        "a word of the victim",
        "perl -MIO::Socket::UNIX -e '$s = IO::Socket::UNIX->new($ENV{MUSTER_AGENT_SOCKET}) or exit; \
         print $s qq({\"job_id\":\"$ENV{VICTIM_JOB}\",\"fencing_token\":\"$ENV{VICTIM_TOKEN}\",\"rank\":0,\"checkpoint_committed\":{}}\\n); \
         $_ = <$s>; print; print \"BROKEN\\n\" if /\"ok\"/'",
        &["is not one of worker"],
        "test -S $STATE/agent.sock",
    ),
];

const ESCAPE: &[Attack] = &[
    attack(
        "root by a program of root's",
        "for p in su sudo mount; do $p -c true root < /dev/null; done; test $(id -u) = 0 && echo BROKEN; \
         grep NoNewPrivs /proc/self/status | tr -d '\\t'",
        &["NoNewPrivs:1"],
        "",
    ),
    attack(
        "a capability",
        "grep -E '^Cap(Eff|Prm|Bnd|Amb)' /proc/self/status | grep -qv '0000000000000000' && echo BROKEN; \
         grep CapBnd /proc/self/status | tr -d '\\t'",
        &["CapBnd:0000000000000000"],
        "",
    ),
    attack("its /proc off the host's", "umount -l /proc && echo BROKEN", NO_MOUNTS, ""),
    attack("its /tmp off the host's", "umount -l /tmp && echo BROKEN", NO_MOUNTS, ""),
    attack(
        "its /tmp off the host's, in new namespaces",
        "unshare --user --map-root-user --mount sh -c 'umount /tmp && ls /tmp && echo BROKEN'",
        &["not mounted", "nvalid argument", "not permitted", "ermission denied", "no mount point"],
        "",
    ),
    attack("a mount over the agent's directory", "mount -t tmpfs x $STATE && echo BROKEN", NO_MOUNTS, ""),
    attack("a new device file", "mknod mem c 1 1; head -c 1 mem && echo BROKEN", NOT_PERMITTED, ""),
    attack(
        "the host's namespaces",
        "nsenter --target 1 --all true && echo BROKEN; nsenter --mount=/proc/1/ns/mnt true && echo BROKEN",
        &["ermission denied", "not permitted"],
        "test -e /proc/1/ns/mnt",
    ),
    attack(
        "another control group",
        "for g in $(find /sys/fs/cgroup -name cgroup.procs 2> /dev/null | head -50); do echo $$ > $g && echo BROKEN; done",
        DENIED,
        "find /sys/fs/cgroup -name cgroup.procs | grep -q .",
    ),
    attack(
        "a daemon that starts containers",
        "perl -MIO::Socket::UNIX -e 'print IO::Socket::UNIX->new($ENV{DAEMON}) ? \"BROKEN\\n\" : \"$!\\n\"'",
        &["Connection refused"],
        "perl -MIO::Socket::UNIX -e 'exit !IO::Socket::UNIX->new($ENV{DAEMON})'",
    ),
    attack("a setting of the kernel", "echo x > /proc/sys/kernel/core_pattern && echo BROKEN", DENIED, ""),
    attack("the host's name", "echo evil > /proc/sys/kernel/hostname && echo BROKEN", DENIED, ""),
    attack("the host's clock", "date -s @1 && echo BROKEN", NOT_PERMITTED, ""),
    attack(
        "a raw socket",
        "perl -e 'socket(S, 2, 3, 255) and print \"BROKEN\\n\"; print \"$!\\n\"'",
        NOT_PERMITTED,
        "perl -e 'socket(S, 2, 3, 255) or exit 1'",
    ),
    attack(
        "more open files than it may have",
        "ulimit -Hn 2000000 && echo BROKEN",
        &["not permitted", "ermission"],
        "",
    ),
];

const STOP: &[Attack] = &[
    attack("its first process", "kill -STOP 1 && echo BROKEN; kill -9 1 && echo BROKEN", NOT_PERMITTED, ""),
    attack("the victim", "kill -9 $VICTIM_PID && echo BROKEN", &["No such process"], "kill -0 $VICTIM_PID"),
    attack(
        "the victim's shim",
        "kill -9 $VICTIM_SHIM && echo BROKEN",
        &["No such process"],
        "kill -0 $VICTIM_SHIM",
    ),
    attack("the agent", "kill -STOP $AGENT_PID && echo BROKEN", &["No such process"], "kill -0 $AGENT_PID"),
    attack(
        "the victim by its pipe",
        "echo 12345678 > $VICTIM/control && echo BROKEN",
        DENIED,
        "test -p $VICTIM/control",
    ),
];

const DELETE: &[Attack] = &[
    attack("the victim's directory", "rm -r $VICTIM && echo BROKEN", DENIED, "test -d $VICTIM"),
    attack("the victim's output", "rm $VICTIM/output && echo BROKEN", DENIED, "test -s $VICTIM/output"),
    attack(
        "what the victim has said",
        "true > $VICTIM/output && echo BROKEN",
        DENIED,
        "test -s $VICTIM/output",
    ),
    attack("the victim's shared memory", "rm -r $VICTIM_SHM && echo BROKEN", ABSENT, "test -d $VICTIM_SHM"),
    attack("the agent's records", "rm -r $STATE/jobs && echo BROKEN", DENIED, "test -d $STATE/jobs"),
    attack("the lease", "rm $LEASE && echo BROKEN", &["Permission denied", "No such file"], "test -s $LEASE"),
    attack(
        "every worker's directory",
        "mv $STATE/tasks $STATE/gone && echo BROKEN",
        DENIED,
        "test -d $STATE/tasks",
    ),
    attack(
        "the victim's control group",
        "rmdir $VICTIM_GROUP && echo BROKEN",
        &["ermission denied", "not permitted", "busy"],
        "test -d $VICTIM_GROUP",
    ),
];

/// Taking what everybody needs. What is left of it is looked at behind all of them; that it was made is what it says.
const EXHAUST: &[Attack] = &[
    attack(
        "the agent's stack, by a tree deeper than any path",
        "perl -e 'for (1 .. 5000) { mkdir \"d\" or last; chdir \"d\" or last; $n = $_ } print \"made $n\\n\"'",
        &["made 5000"],
        "",
    ),
    attack(
        "the agent's time, by very many files",
        "perl -e 'for (1 .. 40000) { open F, \">\", \"f$_\" or last; $n = $_ } print \"made $n\\n\"'",
        &["made 40000"],
        "",
    ),
    attack(
        "the disk, by a file larger than it",
        "truncate -s 10T sparse; stat -c 'made %s' sparse",
        &["made 10995116277760"],
        "",
    ),
    attack(
        "the agent's way, by closed directories",
        "mkdir -p a/b/c; touch a/b/c/f; chmod 0 a/b a; echo made",
        &["made"],
        "",
    ),
    attack(
        "the agent's way, by links out of its directory",
        "ln -s $STATE/tasks tasks; ln -s / root; mkdir x; ln -s $VICTIM x/y; echo made",
        &["made"],
        "",
    ),
    attack(
        "the host's processes",
        "n=0; while test $n -lt 700; do sleep 600 & n=$((n + 1)); done; echo BROKEN",
        &["annot fork", "temporarily unavailable"],
        "",
    ),
    attack(
        "open files",
        "perl -e 'while (@f < 9000) { open my $f, \"<\", \"/dev/null\" or last; push @f, $f } print \"$!\\n\"; print \"BROKEN\\n\" if @f >= 9000'",
        &["Too many open files"],
        "",
    ),
    attack(
        "the disk, by core files",
        "ulimit -c unlimited && echo BROKEN; sh -c 'kill -SEGV $$'; ls core* && echo BROKEN",
        &["not permitted", "ermission"],
        "",
    ),
    attack(
        "connections to the agent",
        "perl -MIO::Socket::UNIX -e '@s = map { IO::Socket::UNIX->new($ENV{MUSTER_AGENT_SOCKET}) } 1 .. 200; sleep 1; \
         for (@s) { $_->blocking(0); $r = sysread $_, $b, 1; $n++ if defined $r and $r == 0 } print \"closed\\n\" if $n >= 100'",
        &["closed"],
        "test -S $STATE/agent.sock",
    ),
    attack(
        "connections to the agent, as many shims",
        "for i in $(seq 9); do setsid perl -MIO::Socket::UNIX -e '@s = map { IO::Socket::UNIX->new($ENV{MUSTER_AGENT_SOCKET}) } 1 .. 64; sleep 1; \
         for (@s) { $_->blocking(0); $r = sysread $_, $b, 1; $n++ if defined $r and $r == 0 } print \"closed all\\n\" if $n == 64' run $STATE/tasks/job-1_1.1_0 & done; wait",
        &["closed all"],
        "test -S $STATE/agent.sock",
    ),
    attack(
        "the agent's memory, by a line without an end",
        "perl -MIO::Socket::UNIX -e '$s = IO::Socket::UNIX->new($ENV{MUSTER_AGENT_SOCKET}); $SIG{PIPE} = q(IGNORE); \
         syswrite $s, \"x\" x 4096; print scalar <$s>; $n = 0; $n++ while $n < 100 and syswrite $s, \"x\" x 65536; print \"BROKEN\\n\" if $n == 100'",
        &["a line must end"],
        "test -S $STATE/agent.sock",
    ),
];

/// The host, its victim, and who attacks them.
struct Scene<'a> {
    client: &'a Client,
    agents: &'a Agents,
    environment: Vec<(String, String)>,
    table: Table,
}

fn script(tenant: &str, text: &str) -> v1::Job {
    let mut wanted = job("attempt", &["sh", "-c", text]);
    wanted.tenant = tenant.to_owned();
    wanted.spec_mut().groups[0].resources_mut().memory_bytes = 256 << 20;
    wanted.spec_mut().stop_grace = Some(duration(500));
    wanted
}

impl Scene<'_> {
    /// Makes all attacks of a kind, concurrently.
    async fn try_all(&mut self, kind: Kind, attacks: &[Attack]) {
        let mut begun = Vec::new();
        for attack in attacks {
            if let Some(id) = self.begin(kind, attack).await {
                begun.push((attack, id));
            }
        }
        for (attack, id) in begun {
            let outcome = self.outcome(attack, &id).await;
            self.table.note(kind, attack.name, outcome);
        }
    }

    /// Makes all attacks of a kind, one behind another.
    async fn try_each(&mut self, kind: Kind, attacks: &[Attack]) {
        for attack in attacks {
            self.try_all(kind, std::slice::from_ref(attack)).await;
        }
    }

    /// Submits one, once its target is there.
    async fn begin(&mut self, kind: Kind, attack: &Attack) -> Option<String> {
        if !attack.target.is_empty() && !self.is_there(attack.target).await {
            let why = format!("its target is not here: {}", attack.target);
            self.table.skip(kind, attack.name, &why);
            return None;
        }
        let mut wanted = script("eve", &format!("({}) 2>&1; echo tried", attack.script));
        wanted.spec_mut().groups[0]
            .environment
            .extend(self.environment.iter().cloned().map(v1::EnvVar::from));
        Some(submit(self.client, wanted).await)
    }

    async fn outcome(&self, attack: &Attack, id: &str) -> Outcome {
        let ended = follow_until(self.client, id, is_finished).await.pop().expect("its end was seen");
        let said = output(self.client, id).await;
        let went = said.contains("tried") && ended.phase() == JobPhase::Succeeded;
        let stopped = said.lines().find(|line| attack.seen.iter().any(|words| line.contains(words)));
        match stopped {
            Some(line) if went && !said.contains("BROKEN") => Ok(line.to_owned()),
            _ => Err(format!("{said} {:?} {}", ended.phase(), ended.status().message)),
        }
    }

    /// Whether a script succeeds outside of any worker; some targets come and go.
    async fn is_there(&self, text: &str) -> bool {
        for _ in 0..40 {
            let ran = Command::new("sh").args(["-c", text]).envs(self.environment.iter().cloned()).output();
            if ran.is_ok_and(|ran| ran.status.success()) {
                return true;
            }
            tokio::time::sleep(crate::support::LOOK_AGAIN).await;
        }
        false
    }

    /// The record of a job's only worker under this name.
    fn record_of(&self, id: &str, name: &str) -> (PathBuf, String) {
        let tasks = self.agents.state_of("h1").join("tasks");
        let mut directories =
            std::fs::read_dir(tasks).expect("the agent's directory").flatten().map(|entry| entry.path());
        let directory =
            directories.find(|path| path.to_string_lossy().contains(&format!("/{id}_"))).expect("it is here");
        let record = std::fs::read_to_string(directory.join(name)).expect("it runs");
        let record = record.split_once('\n').expect("a record has a head").1.to_owned();
        (directory, record)
    }

    /// The directory of a job's only worker, and the process ids of its shim and of itself.
    fn worker_of(&self, id: &str) -> (PathBuf, i32, i32) {
        let (directory, running) = self.record_of(id, "running");
        let number = |key: &str| {
            let rest = running.split_once(&format!("\"{key}\":")).expect("the record has it").1;
            let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
            digits.parse().expect("a number")
        };
        (directory, number("shim_pid"), number("worker_pid"))
    }

    async fn running(&self, wanted: v1::Job) -> String {
        let id = submit(self.client, wanted).await;
        let job =
            wait_for_job(self.client, &id, |job| job.phase() == JobPhase::Running || is_finished(job)).await;
        assert_eq!(job.phase(), JobPhase::Running, "{job:#?}");
        id
    }
}

fn is_alive(pid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit(')').next().unwrap_or_default().trim();
    !state.is_empty() && !state.starts_with('Z')
}

/// The living processes that were started with this word.
fn with_word(word: &str) -> Vec<i32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let processes = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let has_word = |pid: &i32| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        line.split(|byte| *byte == 0).any(|part| part == word.as_bytes())
    };
    processes.filter(has_word).collect()
}

/// Waits until what an attacker sends away is there: the attacker prints its line before that has begun.
async fn is_away(word: &str) {
    let both = || async { (with_word(word).len() >= 2).then_some(()) };
    eventually("what the attacker sends away did not begin", both).await;
}

/// Waits until a worker has written this, which it does once it stands as it wants to.
async fn says(client: &Client, id: &str, what: &str) {
    eventually("the worker did not begin", || async {
        output(client, id).await.contains(what).then_some(())
    })
    .await;
}

fn passable(path: &Path) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o711)).expect("a directory of this test");
}

fn private(path: &Path, text: &str) {
    std::fs::create_dir_all(path.parent().expect("below a directory")).expect("a directory can be made");
    std::fs::write(path, text).expect("a file can be written");
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).expect("own file");
}

/// Accelerators as NVIDIA's driver shows them below `root`, each with the numbers of a device that the host has and
/// anybody could open.
fn make_devices(root: &Path) {
    let numbers: Vec<String> =
        ["fuse", "loop-control", "btrfs-control", "autofs", "vga_arbiter", "userfaultfd"]
            .iter()
            .filter_map(|name| std::fs::metadata(format!("/dev/{name}")).ok())
            .filter(|found| found.file_type().is_char_device())
            .map(|found| {
                let (major, minor) =
                    (nix::sys::stat::major(found.rdev()), nix::sys::stat::minor(found.rdev()));
                format!("c {major} {minor}")
            })
            .collect();
    std::fs::create_dir_all(root.join("dev")).expect("a directory can be made");
    for at in 0..4usize {
        let bus = root.join(format!("proc/driver/nvidia/gpus/0000:0{at}:00.0"));
        std::fs::create_dir_all(&bus).expect("a directory can be made");
        let text = format!("Model: \t NVIDIA H100 80GB HBM3\nDevice Minor: \t {at}\n");
        std::fs::write(bus.join("information"), text).expect("a file can be written");
        let device = root.join(format!("dev/nvidia{at}"));
        let made = numbers.get(at).map(|numbers| {
            let words = numbers.split(' ').map(str::to_owned);
            Command::new("mknod").args(["-m", "0666"]).arg(&device).args(words).output()
        });
        if !made.is_some_and(|ran| ran.is_ok_and(|ran| ran.status.success())) {
            std::fs::write(&device, "").expect("a file can be written");
        }
    }
}

/// A disk of this machine, or a file that is none.
fn disk() -> String {
    let partitions = std::fs::read_to_string("/proc/partitions").unwrap_or_default();
    let mut names = partitions.lines().skip(2).filter_map(|line| line.split_whitespace().nth(3));
    let is_disk = |name: &&str| {
        let found = std::fs::metadata(format!("/dev/{name}"));
        found.is_ok_and(|found| found.file_type().is_block_device())
            && std::fs::File::open(format!("/dev/{name}")).is_ok()
    };
    names.find(is_disk).map_or("/nowhere".to_owned(), |name| format!("/dev/{name}"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_attack_of_a_worker_reaches_its_host_or_another_tenant() {
    let namespaces = Command::new("unshare").args(["--mount", "--pid", "--fork", "true"]).output();
    if !nix::unistd::geteuid().is_root() || !namespaces.is_ok_and(|ran| ran.status.success()) {
        return say("skipped: attacks of workers (this takes root, and namespaces)");
    }
    let _heavy = heavy().await;
    let _daemon = Daemon::listen();
    let mut cluster = Cluster::start(1).await;
    passable(cluster.scratch.path());
    let home = cluster.scratch.path().join("agent-h1");
    let state = home.join("state");
    let (secrets, host) = (state.join("secrets"), state.join("host"));
    private(&secrets.join("bob/token"), "of bob");
    private(&state.join("tls.key"), "key");
    make_devices(&host);
    let settings = format!(
        "host_root = {host:?}\nsecrets_dir = {secrets:?}\n\
         logs = {{ ended_size_max = \"4Mi\", worker_size_max = {KEPT_BYTES} }}\n\
         workers = {{ isolation = \"required\", uid_range = {{ first = {UID_FIRST}, count = 100000000 }}, \
         rlimits = {{ open_files = 4096, processes = 400 }}, disk_size_max = {DISK_BYTES_MAX} }}\n"
    );
    let endpoints = cluster.endpoints();
    let mut agents =
        Agents::start_with(&cluster, &["h1"], |_| endpoints.clone(), |_, _| settings.clone()).await;
    let client = cluster.client();
    passable(&home);

    let mut victim =
        script("bob", "touch of-victim /tmp/of-victim /dev/shm/of-victim; echo mine; exec sleep 600");
    victim.spec_mut().groups[0].set_variable("TOKEN".to_owned(), SECRET.to_owned());
    victim.spec_mut().groups[0].resources_mut().accelerators = Some(accelerators("h100", 1));
    let mut scene =
        Scene { client: &client, agents: &agents, environment: Vec::new(), table: Table::default() };
    let victim = scene.running(victim).await;
    says(&client, &victim, "mine").await;
    let (directory, shim, worker) = scene.worker_of(&victim);
    scene.environment = environment_of(&scene, &victim);
    let request = v1::GetNodeRequest { node: "h1".to_owned(), read: None };
    let node = client.get_node(request).await.expect("it is there").node.expect("with all of it");
    let labels = node.description.expect("what it said").labels;
    assert_eq!(labels["isolation.user"], "own");
    Box::pin(scene.try_all(Kind::Read, READ)).await;
    if labels["isolation.devices"] == "filtered" {
        // One that has an accelerator, and one that has none.
        Box::pin(scene.try_all(Kind::Read, DEVICES)).await;
        Box::pin(other_devices(&mut scene)).await;
    } else {
        for attack in DEVICES {
            scene.table.skip(Kind::Read, attack.name, "no control group keeps workers from devices here");
        }
    }
    Box::pin(scene.try_all(Kind::Forge, FORGE)).await;
    Box::pin(scene.try_all(Kind::Escape, ESCAPE)).await;
    Box::pin(scene.try_all(Kind::Stop, STOP)).await;
    Box::pin(scene.try_all(Kind::Delete, DELETE)).await;
    Box::pin(scene.try_each(Kind::Exhaust, EXHAUST)).await;
    Box::pin(too_much(&mut scene)).await;
    Box::pin(anothers_notice(&mut scene)).await;
    Box::pin(outlive(&mut scene)).await;
    assert!(is_alive(worker) && is_alive(shim), "the victim is as it was");
    assert!(!Path::new("/tmp/of-victim").exists() && !Path::new("/dev/shm/of-victim").exists());
    assert!(directory.join("tmp/of-victim").exists());
    let table = std::mem::take(&mut scene.table);
    let made = table.made();
    table.conclude("attacks of workers");
    // Of some eighty; those that this machine has no target for were skipped.
    assert!(made >= 60, "{made}");

    // The agent is started again in the midst of what was left, and is there at once; the victim went on.
    agents.kill("h1").await;
    agents.start_agent("h1");
    agents.wait_status("h1", v1::NodeStatus::Up).await;
    let request = v1::GetJobRequest { job_id: victim.clone(), read: None };
    let job = client.get_job(request).await.expect("it is kept").job.expect("with all of it");
    assert_eq!((job.phase(), job.status().attempt), (JobPhase::Running, 1), "{job:#?}");
    assert_eq!(output(&client, &victim).await, "mine\n");
    // What was left is removed, and everything else as well.
    eventually("what workers have left is still there", || async {
        let entries = std::fs::read_dir(state.join("tasks")).ok()?.flatten();
        let mut names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
        (!names.any(|name| name.starts_with(".old_"))).then_some(())
    })
    .await;
    drop(agents);
    cluster.assert_digests_agree().await;
}

/// What attackers know of the host and of the victim.
fn environment_of(scene: &Scene<'_>, victim: &str) -> Vec<(String, String)> {
    let (directory, shim, worker) = scene.worker_of(victim);
    let (_, running) = scene.record_of(victim, "running");
    let (_, launch) = scene.record_of(victim, "spec");
    let value = |record: &str, key: &str| {
        let rest = record.split_once(&format!("\"{key}\":\"")).map(|(_, rest)| rest);
        rest.and_then(|rest| rest.split('"').next()).unwrap_or("/nowhere").to_owned()
    };
    let agent = scene.agents.processes("h1").into_iter().min().expect("an agent runs");
    let name = directory.file_name().and_then(|name| name.to_str()).expect("a name");
    let token = name.split('_').nth(1).expect("a token").to_owned();
    let state = scene.agents.state_of("h1");
    let shared = std::fs::read_dir("/dev/shm").into_iter().flatten().flatten();
    let shared = shared.map(|entry| entry.path()).find(|path| path.join("of-victim").exists());
    let text = |path: &Path| path.to_str().expect("the test's directory is text").to_owned();
    // The lowest that are free, so the victim has the first.
    let accelerator = state.join("host/dev/nvidia0");
    // What is wanted is asked for in two parts: the script's own command line is no find.
    let known = [
        ("STATE", text(&state)),
        ("VICTIM", text(&directory)),
        ("WANTED", format!("{}[-]{}", &SECRET[..3], &SECRET[4..])),
        ("VICTIM_PID", worker.to_string()),
        ("VICTIM_SHIM", shim.to_string()),
        ("VICTIM_SHM", text(&shared.expect("the victim's shared memory"))),
        ("VICTIM_GROUP", value(&running, "cgroup")),
        ("AGENT_PID", agent.to_string()),
        ("VICTIM_JOB", victim.to_owned()),
        ("VICTIM_TOKEN", token),
        ("LEASE", value(&launch, "lease_path")),
        ("ACCELERATOR", text(&accelerator)),
        ("DISK", disk()),
        ("DAEMON", DAEMON.to_owned()),
    ];
    known.map(|(name, value)| (name.to_owned(), value)).to_vec()
}

/// A worker that has an accelerator opens that one, and not the victim's.
async fn other_devices(scene: &mut Scene<'_>) {
    let name = "the victim's accelerator, by a worker that has another";
    let mut wanted = script(
        "eve",
        "(for n in 0 1 2 3; do true < $STATE/host/dev/nvidia$n && echo opened $n; done) 2>&1; echo sees $CUDA_VISIBLE_DEVICES",
    );
    wanted.spec_mut().groups[0].environment.extend(scene.environment.iter().cloned().map(v1::EnvVar::from));
    wanted.spec_mut().groups[0].resources_mut().accelerators = Some(accelerators("h100", 1));
    let id = submit(scene.client, wanted).await;
    follow_until(scene.client, &id, is_finished).await;
    let said = output(scene.client, &id).await;
    // Its own is the second of the host's, and the first of those that it can open.
    let is_held = said.matches("opened").count() == 1
        && said.contains("opened 1")
        && said.contains("sees 0")
        && said.matches("not permitted").count() == 3;
    let outcome =
        if is_held { Ok("it opens its own alone: Operation not permitted".to_owned()) } else { Err(said) };
    scene.table.note(Kind::Read, name, outcome);
}

/// More output than is kept, more memory than it was promised, more of the disk than it may have.
async fn too_much(scene: &mut Scene<'_>) {
    let client = scene.client;
    let id = submit(client, script("eve", "yes | head -c 8000000; echo tried")).await;
    follow_until(client, &id, is_finished).await;
    let said = output(client, &id).await;
    let outcome = match said.len() {
        kept if said.ends_with("tried\n") && kept <= KEPT_BYTES => {
            Ok(format!("{kept} of 8000006 bytes are kept"))
        }
        kept => Err(format!("{kept} bytes are kept")),
    };
    scene.table.note(Kind::Exhaust, "the disk, by output", outcome);
    let eat = "perl -e '$x = \"x\" x (1 << 30); print length $x; sleep 600'";
    let id = submit(client, script("eve", eat)).await;
    let ended = follow_until(client, &id, is_finished).await.pop().expect("its end was seen");
    let outcome = match ended.phase() {
        JobPhase::Failed if ended.status().message.contains("memory") => Ok(ended.status().message.clone()),
        other => Err(format!("{other:?} {}", ended.status().message)),
    };
    scene.table.note(Kind::Exhaust, "the host's memory", outcome);
    for (name, place) in [("the disk, by files", "."), ("the disk, by files in /tmp", "/tmp")] {
        let fill =
            format!("head -c {} /dev/zero > {place}/large; echo full; sleep 600", DISK_BYTES_MAX + (1 << 20));
        let id = submit(client, script("eve", &fill)).await;
        let ended = follow_until(client, &id, is_finished).await.pop().expect("its end was seen");
        let said = output(client, &id).await;
        let line = said.lines().find(|line| line.contains("of the disk"));
        let outcome = match (ended.phase(), line) {
            (JobPhase::Failed, Some(line)) => Ok(line.to_owned()),
            (phase, _) => Err(format!("{phase:?} {said} {}", ended.status().message)),
        };
        scene.table.note(Kind::Exhaust, name, outcome);
    }
}

/// Listens where the victim is to be told that it has to stop.
async fn anothers_notice(scene: &mut Scene<'_>) {
    let client = scene.client;
    let port = free_address(std::net::Ipv4Addr::LOCALHOST).port();
    let listen = format!(
        "perl -MIO::Socket::INET -e '$l = IO::Socket::INET->new(Listen => 5, LocalAddr => \"127.0.0.1\", LocalPort => {port}) \
         or die; $| = 1; print \"listens\\n\"; while ($s = $l->accept) {{ print \"BROKEN \", scalar <$s> }}'"
    );
    let thief = scene.running(script("eve", &listen)).await;
    says(client, &thief, "listens").await;
    let mut victim = script("bob", "echo there; exec sleep 600");
    let notice = v1::NoticeRules { http_port: port.into(), http_path: "/stop".to_owned() };
    victim.spec_mut().notice = Some(notice);
    let victim = scene.running(victim).await;
    says(client, &victim, "there").await;
    cancel(client, &victim).await;
    cancel(client, &thief).await;
    let said = output(client, &thief).await;
    let log = std::fs::read_to_string(scene.agents.home("h1").join("log")).unwrap_or_default();
    let outcome = match log.contains("the port is not the worker's") {
        true if !said.contains("BROKEN") => Ok("no notice by HTTP: the port is not the worker's".to_owned()),
        seen => Err(format!("{said}, seen: {seen}")),
    };
    scene.table.note(Kind::Forge, "the receiver of the victim's notice", outcome);
}

async fn cancel(client: &Client, id: &str) {
    let request = v1::CancelJobRequest { job_id: id.to_owned(), ..Default::default() };
    client.cancel_job(request).await.expect("cancelled");
    wait_for_job(client, id, is_finished).await;
}

/// Going on when the shim, the lease or the operator has ended the worker.
async fn outlive(scene: &mut Scene<'_>) {
    let client = scene.client;
    let word = |number: u32| format!("7{:06}{number}", std::process::id());
    // Shares nothing with its shim, is deaf, and an orphan of an orphan.
    let away = |word: &str| {
        format!(
            "(setsid env -i sh -c 'trap \"\" TERM HUP; (sleep {word} & ) ; sleep {word}' > /dev/null 2>&1 &);"
        )
    };
    let gone = |word: &str| match with_word(word).as_slice() {
        [] => Ok("nothing of it is left".to_owned()),
        left => Err(format!("{left:?} are left")),
    };
    let first = word(1);
    let id = submit(client, script("eve", &format!("{} sleep 0.3; echo left", away(&first)))).await;
    wait_for_job(client, &id, is_finished).await;
    assert_eq!(output(client, &id).await, "left\n");
    scene.table.note(Kind::Outlive, "its own end", gone(&first));

    let second = word(2);
    let id =
        scene.running(script("eve", &format!("trap '' TERM; {} echo there; sleep 600", away(&second)))).await;
    says(client, &id, "there").await;
    is_away(&second).await;
    cancel(client, &id).await;
    scene.table.note(Kind::Outlive, "a stop", gone(&second));

    // As by an operator who kills everything called so: no agent is needed to end the rest.
    let third = word(3);
    let id = scene.running(script("eve", &format!("{} echo there; sleep 600", away(&third)))).await;
    says(client, &id, "there").await;
    let (_, shim, worker) = scene.worker_of(&id);
    is_away(&third).await;
    let mut of_the_attempt = with_word(&third);
    of_the_attempt.push(worker);
    kill(Pid::from_raw(shim), Signal::SIGKILL).expect("a process of this test");
    // The loss is the host's, so the job is started again, with the same word: only the first attempt has to be gone.
    eventually("the worker outlives its shim", || async {
        (!of_the_attempt.iter().any(|pid| is_alive(*pid))).then_some(())
    })
    .await;
    scene.table.note(Kind::Outlive, "its shim", Ok("the kernel ended all of it".to_owned()));
    let again = wait_for_job(client, &id, |job| job.status().attempt > 1 || is_finished(job)).await;
    assert!(!is_finished(&again), "a lost worker is no failure of the job: {again:#?}");
    cancel(client, &id).await;

    let fourth = word(4);
    let id = scene.running(script("eve", &format!("{} echo there; sleep 600", away(&fourth)))).await;
    says(client, &id, "there").await;
    is_away(&fourth).await;
    let (_, shim, _) = scene.worker_of(&id);
    kill(Pid::from_raw(shim), Signal::SIGSTOP).expect("a process of this test");
    cancel(client, &id).await;
    scene.table.note(Kind::Outlive, "a stop, with a shim that stands still", gone(&fourth));

    // Its shim stands still and nobody stops it: it is woken.
    let id = scene.running(script("eve", "echo there; exec sleep 600")).await;
    says(client, &id, "there").await;
    let (_, shim, _) = scene.worker_of(&id);
    kill(Pid::from_raw(shim), Signal::SIGSTOP).expect("a process of this test");
    eventually("a shim that stands still is not woken", || async {
        let stat = std::fs::read_to_string(format!("/proc/{shim}/stat")).unwrap_or_default();
        let state = stat.rsplit(')').next().unwrap_or_default().trim().chars().next();
        state.is_some_and(|state| state != 'T').then_some(())
    })
    .await;
    scene.table.note(
        Kind::Outlive,
        "its lease, with a shim that stands still",
        Ok("it was woken".to_owned()),
    );
    cancel(client, &id).await;
}
