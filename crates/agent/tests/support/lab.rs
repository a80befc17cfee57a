//! A private Slurm: munged, slurmctld and emulated nodes, in one directory, ended with the test.
//!
//! Debian's daemons are run through links with their plain names, for Slurm reads its own name when it
//! parses GRES; GPUs are copies of `/dev/null`, for GRES must be device files.
// Each test binary uses a part of it, and a panic is a test's report.
#![allow(dead_code, clippy::unwrap_used)]

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Nothing here takes this long.
const PATIENCE: Duration = Duration::from_secs(90);

/// What the cluster is to be.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub nodes: u16,
    pub gpus: u16,
    pub cpus: u16,
    pub memory_mib: u64,
}

impl Default for Shape {
    fn default() -> Shape {
        Shape { nodes: 2, gpus: 4, cpus: 64, memory_mib: 65_536 }
    }
}

/// A Slurm cluster of this test alone.
pub struct Lab {
    pub directory: tempfile::TempDir,
    pub shape: Shape,
    munged: Option<Child>,
    controller: Option<Child>,
    daemons: Vec<Child>,
}

/// Whether Slurm can be run here, installing it where that is possible; else why not.
pub fn available() -> Result<(), String> {
    if !nix::unistd::geteuid().is_root() {
        return Err("Slurm's daemons are started as root, which this is not".to_owned());
    }
    let is_here = || {
        let sbin =
            ["slurmctld", "slurmd", "munged"].iter().all(|name| Path::new("/usr/sbin").join(name).exists());
        sbin && Path::new("/usr/bin/sbatch").exists()
    };
    // Several test processes may come to this at once.
    let lock = std::fs::File::create(std::env::temp_dir().join("muster-slurm-install.lock"));
    let lock = lock.map_err(|e| format!("lock the installation: {e}"))?;
    lock.lock().map_err(|e| format!("lock the installation: {e}"))?;
    if !is_here() {
        let script = "apt-get update -qq && apt-get install -y -qq --no-install-recommends slurmctld slurmd slurm-client munge";
        let apt = Command::new("timeout")
            .args(["300", "sh", "-c", script])
            .env("DEBIAN_FRONTEND", "noninteractive")
            .stdin(Stdio::null())
            .output();
        match apt {
            Ok(output) if output.status.success() && is_here() => {}
            Ok(output) => return Err(format!("apt-get ended with {}", output.status)),
            Err(error) => return Err(format!("apt-get: {error}")),
        }
    }
    Ok(())
}

/// A cluster, or none where it cannot be, which is reported.
pub fn start_or_skip(shape: Shape) -> Option<Lab> {
    match available() {
        Ok(()) => Some(Lab::start(shape)),
        Err(why) => {
            let _ = writeln!(std::io::stderr().lock(), "skipped: Slurm: {why}");
            None
        }
    }
}

/// A port of the loopback address that nobody has.
pub fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}

fn daemon(name: &str) -> PathBuf {
    let plain = PathBuf::from(format!("/usr/sbin/{name}-wlm"));
    if plain.exists() { plain } else { PathBuf::from(format!("/usr/sbin/{name}")) }
}

impl Lab {
    fn start(shape: Shape) -> Lab {
        let directory = tempfile::tempdir().unwrap();
        let at = directory.path();
        std::fs::set_permissions(at, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        for name in ["etc", "run", "state", "spool", "log", "dev", "sbin"] {
            std::fs::create_dir(at.join(name)).unwrap();
        }
        for name in ["slurmctld", "slurmd", "slurmstepd"] {
            std::os::unix::fs::symlink(daemon(name), at.join("sbin").join(name)).unwrap();
        }
        use nix::sys::stat::{Mode, SFlag, makedev, mknod};
        for gpu in 0..shape.gpus {
            let mode = Mode::S_IRUSR | Mode::S_IWUSR;
            mknod(&at.join(format!("dev/gpu{gpu}")), SFlag::S_IFCHR, mode, makedev(1, 3)).unwrap();
        }
        let mut lab = Lab { shape, munged: None, controller: None, daemons: Vec::new(), directory };
        lab.munge();
        lab.configure();
        lab.start_controller();
        for node in 1..=shape.nodes {
            let name = format!("n{node}");
            std::fs::create_dir(lab.at("spool").join(&name)).unwrap();
            let mut command = Command::new(lab.at("sbin/slurmd"));
            command.arg("-D").arg("-d").arg(lab.at("sbin/slurmstepd")).args(["-N", &name]);
            let child = lab.spawn(command);
            lab.daemons.push(child);
        }
        lab.wait_for("every node to be idle", |lab| {
            let text = lab.slurm("sinfo", &["-h", "-N", "-p", "main", "-o", "%N %t"]).stdout;
            String::from_utf8_lossy(&text).lines().filter(|line| line.ends_with(" idle")).count()
                == usize::from(lab.shape.nodes)
        });
        lab
    }

    pub fn at(&self, path: &str) -> PathBuf {
        self.directory.path().join(path)
    }

    pub fn conf(&self) -> PathBuf {
        self.at("etc/slurm.conf")
    }

    fn munge(&mut self) {
        let mut key = vec![0; 1_024];
        std::io::Read::read_exact(&mut std::fs::File::open("/dev/urandom").unwrap(), &mut key).unwrap();
        std::fs::write(self.at("etc/munge.key"), key).unwrap();
        std::fs::set_permissions(
            self.at("etc/munge.key"),
            std::os::unix::fs::PermissionsExt::from_mode(0o400),
        )
        .unwrap();
        let path = |name: &str| self.at(name).display().to_string();
        let child = Command::new("/usr/sbin/munged")
            .arg("--foreground")
            .arg(format!("--key-file={}", path("etc/munge.key")))
            .arg(format!("--socket={}", path("run/munge.sock")))
            .arg(format!("--pid-file={}", path("run/munged.pid")))
            .arg(format!("--log-file={}", path("log/munged.log")))
            .arg(format!("--seed-file={}", path("run/seed")))
            .args(["--force", "--num-threads=2"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        self.munged = Some(child);
        self.wait_for("munged", |lab| lab.at("run/munge.sock").exists());
    }

    fn configure(&self) {
        let Shape { nodes, gpus, cpus, memory_mib } = self.shape;
        let directory = self.directory.path().display();
        let host = nix::unistd::gethostname().unwrap().into_string().unwrap();
        let host = host.split('.').next().unwrap_or_default();
        let mut text = format!(
            "ClusterName=lab\nSlurmctldHost={host}(127.0.0.1)\nSlurmctldPort={}\nAuthType=auth/munge\n\
             AuthInfo=socket={directory}/run/munge.sock\nCredType=cred/munge\nSlurmUser=root\nSlurmdUser=root\n\
             StateSaveLocation={directory}/state\nSlurmdSpoolDir={directory}/spool/%n\n\
             SlurmctldPidFile={directory}/run/slurmctld.pid\nSlurmdPidFile={directory}/run/slurmd.%n.pid\n\
             SlurmctldLogFile={directory}/log/slurmctld.log\nSlurmdLogFile={directory}/log/slurmd.%n.log\n\
             CommunicationParameters=NoCtldInAddrAny,NoInAddrAny\nMailProg=/bin/true\n\
             ProctrackType=proctrack/pgid\nTaskPlugin=task/none\nMpiDefault=none\n\
             JobAcctGatherType=jobacct_gather/none\nAccountingStorageType=accounting_storage/none\n\
             SchedulerType=sched/backfill\nSchedulerParameters=sched_min_interval=100000,batch_sched_delay=0\n\
             SelectType=select/cons_tres\nSelectTypeParameters=CR_Core_Memory\nSlurmdParameters=config_overrides\n\
             ReturnToService=2\nKillWait=5\nMessageTimeout=5\nDefMemPerCPU=64\n",
            free_port()
        );
        let mut gres = String::new();
        let has_gpus = if gpus == 0 {
            String::new()
        } else {
            let _ = writeln!(text, "GresTypes=gpu");
            let last = gpus - 1;
            let _ =
                writeln!(gres, "NodeName=n[1-{nodes}] Name=gpu Type=h100 File={directory}/dev/gpu[0-{last}]");
            format!("Gres=gpu:h100:{gpus}")
        };
        for node in 1..=nodes {
            let _ = writeln!(
                text,
                "NodeName=n{node} NodeHostname={host} NodeAddr=127.0.0.1 Port={} CPUs={cpus} Boards=1 Sockets=1 \
                 CoresPerSocket={cpus} ThreadsPerCore=1 RealMemory={memory_mib} {has_gpus} State=UNKNOWN",
                free_port()
            );
        }
        let _ = writeln!(text, "PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP");
        let _ = writeln!(text, "PartitionName=closed Nodes=ALL MaxTime=60 AllowAccounts=nobody State=UP");
        std::fs::write(self.conf(), text).unwrap();
        std::fs::write(self.at("etc/gres.conf"), gres).unwrap();
        std::fs::write(self.at("etc/cgroup.conf"), "CgroupPlugin=cgroup/v1\n").unwrap();
    }

    fn spawn(&self, mut command: Command) -> Child {
        command
            .env("SLURM_CONF", self.conf())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap()
    }

    /// Starts the controller, and waits until it answers.
    pub fn start_controller(&mut self) {
        let mut command = Command::new(self.at("sbin/slurmctld"));
        command.arg("-D");
        self.controller = Some(self.spawn(command));
        self.wait_for("the controller", |lab| lab.slurm("squeue", &["-h"]).status.success());
    }

    /// SIGKILL for the controller.
    pub fn kill_controller(&mut self) {
        let mut controller = self.controller.take().expect("the controller runs");
        controller.kill().unwrap();
        controller.wait().unwrap();
    }

    /// The controller is stopped, and goes on.
    pub fn pause_controller(&self, paused: bool) {
        let controller = self.controller.as_ref().expect("the controller runs");
        let signal = if paused { Signal::SIGSTOP } else { Signal::SIGCONT };
        kill(Pid::from_raw(controller.id().cast_signed()), signal).unwrap();
    }

    /// The controller forgets everything that it had saved.
    pub fn lose_state(&mut self) {
        self.kill_controller();
        std::fs::remove_dir_all(self.at("state")).unwrap();
        std::fs::create_dir(self.at("state")).unwrap();
        self.start_controller();
    }

    /// One of Slurm's commands.
    pub fn slurm(&self, program: &str, arguments: &[&str]) -> Output {
        let output = Command::new(program)
            .args(arguments)
            .env("SLURM_CONF", self.conf())
            .stdin(Stdio::null())
            .output();
        output.unwrap()
    }

    /// A job of somebody else; its id.
    pub fn foreign(&self, arguments: &[&str]) -> String {
        let sleep = "--wrap=exec sleep 600";
        let output = self.slurm("sbatch", &[&["--parsable", "-o", "/dev/null", sleep], arguments].concat());
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    /// Our jobs that are not over: id, state, name.
    pub fn jobs(&self) -> Vec<String> {
        let text = self.slurm("squeue", &["-h", "-o", "%i %T %j"]).stdout;
        String::from_utf8_lossy(&text).lines().map(str::to_owned).collect()
    }

    pub fn wait_for(&self, what: &str, condition: impl Fn(&Lab) -> bool) {
        let end = Instant::now() + PATIENCE;
        while !condition(self) {
            assert!(Instant::now() < end, "waited in vain for {what}:\n{}", self.complaints());
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn complaints(&self) -> String {
        let text = std::fs::read_to_string(self.at("log/slurmctld.log")).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(15)..].join("\n")
    }

    /// Steps of jobs outlive slurmd by design; these have this lab's configuration.
    fn end_steps(&self) {
        let mark = format!("{}/", self.directory.path().display());
        for entry in std::fs::read_dir("/proc").unwrap().flatten() {
            let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else {
                continue;
            };
            let name = std::fs::read_to_string(entry.path().join("comm")).unwrap_or_default();
            let environment = std::fs::read(entry.path().join("environ")).unwrap_or_default();
            let is_ours = String::from_utf8_lossy(&environment).contains(&mark);
            if name.starts_with("slurmstepd") && is_ours {
                let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
            }
        }
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        if self.controller.is_some() {
            self.pause_controller(false);
            let _ = self.slurm("scancel", &["--quiet", "--state=RUNNING"]);
            let _ = self.slurm("scancel", &["--quiet", "--state=PENDING"]);
        }
        for daemon in self.daemons.iter_mut().chain(self.controller.as_mut()) {
            let _ = daemon.kill();
            let _ = daemon.wait();
        }
        self.end_steps();
        if let Some(munged) = &mut self.munged {
            let _ = kill(Pid::from_raw(munged.id().cast_signed()), Signal::SIGTERM);
            let _ = munged.wait();
        }
    }
}
