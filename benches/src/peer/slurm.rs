//! One controller of Slurm on this machine, without hosts: held jobs, submitted through its own library.
//!
//! What is compared is not the same promise: Slurm answers before it has written anything; its state is
//! saved every five seconds.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::{Value, json};

use crate::cluster::free_address;
use crate::figures::{Latencies, rounded};
use crate::load::Part;
use crate::options::Common;
use crate::peer::installed;

/// How to get it on Debian; its services need not run.
const INSTALL: &str = "apt-get install slurmctld slurm-client munge libslurm-perl";
/// Longest wait for the controller.
const PATIENCE: Duration = Duration::from_secs(60);
/// Jobs that one client submits at most: the controller has a limit on all.
const JOBS_PER_CLIENT_MAX: u32 = 20_000;
/// Clients are processes here, each with its own library: more than this would measure the machine's memory.
const CLIENTS_MAX: u32 = 16;

/// Submits held jobs one after another for some seconds; prints the latency of each in microseconds.
const CLIENT: &str = r##"
use strict; use warnings; use Time::HiRes qw(time); use Slurm;
my ($seconds, $most) = @ARGV;
my $slurm = Slurm::new() or die "no library";
my $end = time + $seconds;
for (1 .. $most) {
    my $begun = time;
    last if $begun > $end;
    my $answer = $slurm->submit_batch_job({ name => 'bench', min_nodes => 1, num_tasks => 1, priority => 0,
        user_id => $>, group_id => $) + 0, script => "#!/bin/sh\npython3 train.py --config base.yaml\n",
        work_dir => '/tmp', std_out => '/dev/null', std_err => '/dev/null', time_limit => 60,
        environment => { PATH => '/usr/bin:/bin' } });
    printf "%d %d\n", $answer ? 1 : 0, (time - $begun) * 1e6;
}
"##;

/// The controller and its authentication; they end with this value.
struct Slurm {
    dir: tempfile::TempDir,
    processes: Vec<Child>,
}

impl Drop for Slurm {
    fn drop(&mut self) {
        for child in self.processes.iter_mut().rev() {
            // It may have ended by itself; either way it is collected.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn all_installed() -> bool {
    let programs = ["slurmctld", "scontrol", "munged", "perl"];
    // Loading the library needs a configuration, which there is not yet.
    let find = "-e $_ . '/Slurm.pm' and exit 0 for @INC; exit 1";
    let library = Command::new("perl").args(["-e", find]).stderr(Stdio::null()).status();
    programs.iter().all(|program| installed(program).is_some())
        && library.is_ok_and(|status| status.success())
}

/// The daemon's real name on Debian ends in `-wlm`; under that name it drops the devices of its nodes.
fn daemon(dir: &Path) -> Result<PathBuf> {
    let program =
        installed("slurmctld-wlm").or_else(|| installed("slurmctld")).context("slurmctld is gone")?;
    let link = dir.join("slurmctld");
    symlink(&program, &link).context("linking the controller")?;
    Ok(link)
}

impl Slurm {
    fn start(directory: Option<&Path>) -> Result<Slurm> {
        let builder = tempfile::Builder::new().prefix("muster-bench-slurm-").to_owned();
        let dir = directory.map_or_else(|| builder.tempdir(), |directory| builder.tempdir_in(directory));
        let dir = dir.context("making a directory for the data")?;
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755))
            .context("opening the directory")?;
        let mut slurm = Slurm { dir, processes: Vec::new() };
        slurm.authenticate()?;
        slurm.configure()?;
        let controller = daemon(slurm.dir.path())?;
        let child = slurm.command(&controller).arg("-D").spawn().context("starting the controller")?;
        slurm.processes.push(child);
        let begun = Instant::now();
        while begun.elapsed() < PATIENCE {
            let ping = slurm.command(Path::new("scontrol")).arg("ping").stdout(Stdio::piped()).output();
            if ping.is_ok_and(|ping| String::from_utf8_lossy(&ping.stdout).contains(" UP")) {
                return Ok(slurm);
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        bail!("the controller did not come up within {} s", PATIENCE.as_secs())
    }

    fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        command.env("SLURM_CONF", self.dir.path().join("slurm.conf"));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command
    }

    fn authenticate(&mut self) -> Result<()> {
        let dir = self.dir.path();
        let key = dir.join("munge.key");
        let secret: Vec<u8> = (0..64).flat_map(|_| uuid::Uuid::new_v4().into_bytes()).collect();
        fs::write(&key, secret).context("writing a key")?;
        fs::set_permissions(&key, fs::Permissions::from_mode(0o400)).context("closing the key")?;
        let place = |name: &str, file: &str| format!("--{name}={}", dir.join(file).display());
        let child = Command::new("munged")
            .args(["-F", "--force", "--num-threads=2"])
            .args([place("key-file", "munge.key"), place("socket", "munge.sock"), place("seed-file", "seed")])
            .args([place("pid-file", "munged.pid"), place("log-file", "munged.log")])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context("starting munged")?;
        let socket = dir.join("munge.sock");
        self.processes.push(child);
        let begun = Instant::now();
        while !socket.exists() {
            ensure!(begun.elapsed() < PATIENCE, "munged did not come up");
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    fn configure(&self) -> Result<()> {
        let dir = self.dir.path();
        let host = nix::sys::utsname::uname().context("asking for the host's name")?;
        let host = host.nodename().to_string_lossy().into_owned();
        let host = host.split('.').next().unwrap_or("localhost");
        let port = free_address([127, 0, 0, 1].into())?.port();
        fs::create_dir(dir.join("state")).context("making a directory for the state")?;
        let at = dir.display();
        let text = format!(
            "ClusterName=bench\nSlurmctldHost={host}(127.0.0.1)\nSlurmctldPort={port}\nAuthType=auth/munge\n\
             AuthInfo=socket={at}/munge.sock\nCredType=cred/munge\nSlurmUser=root\nSlurmdUser=root\n\
             StateSaveLocation={at}/state\nSlurmctldPidFile={at}/slurmctld.pid\nSlurmctldLogFile={at}/slurmctld.log\n\
             CommunicationParameters=NoCtldInAddrAny,NoInAddrAny\nMailProg=/bin/true\nProctrackType=proctrack/pgid\n\
             TaskPlugin=task/none\nMpiDefault=none\nJobAcctGatherType=jobacct_gather/none\n\
             AccountingStorageType=accounting_storage/none\nSchedulerType=sched/backfill\n\
             SelectType=select/cons_tres\nSelectTypeParameters=CR_Core\nMaxJobCount=1000000\n\
             SuspendProgram=/bin/true\nResumeProgram=/bin/true\nSuspendTime=864000\nResumeTimeout=36000\n\
             NodeName=n[1-8] CPUs=64 RealMemory=1000000 State=CLOUD\n\
             PartitionName=p Nodes=ALL Default=YES MaxTime=INFINITE State=UP\n"
        );
        fs::write(dir.join("slurm.conf"), text).context("writing a configuration")?;
        fs::write(dir.join("cgroup.conf"), "CgroupPlugin=cgroup/v1\n").context("writing a configuration")
    }

    /// Measures with `clients` clients at once.
    fn measure(&self, clients: u32, length: Duration) -> Result<(f64, Latencies, u64)> {
        let begun = Instant::now();
        let start = || {
            self.command(Path::new("perl"))
                .args(["-e", CLIENT, &length.as_secs().to_string(), &JOBS_PER_CLIENT_MAX.to_string()])
                .stdout(Stdio::piped())
                .spawn()
        };
        let children: Vec<Child> =
            (0..clients).map(|_| start().context("starting a client")).collect::<Result<_>>()?;
        let mut latencies = Latencies::new()?;
        let mut failed = 0;
        for child in children {
            let output = child.wait_with_output().context("waiting for a client")?;
            for line in String::from_utf8_lossy(&output.stdout).lines() {
                let Some((done, us)) = line.split_once(' ') else { continue };
                let us: u64 = us.parse().context("a latency")?;
                if done == "1" { latencies.record(Duration::from_micros(us)) } else { failed += 1 }
            }
        }
        Ok((latencies.count() as f64 / begun.elapsed().as_secs_f64(), latencies, failed))
    }
}

/// Submissions at the same numbers of clients as Muster's; prints ratios.
pub(crate) fn submissions(common: &Common, ours: &[(u32, Part)]) -> Result<Value> {
    if !all_installed() {
        println!("\nslurm: skipped, not installed; {INSTALL}");
        return Ok(json!({ "skipped": INSTALL }));
    }
    let slurm = Slurm::start(common.dir.as_deref())?;
    println!(
        "\nslurm: one controller, held jobs through its own library; answers before anything is written"
    );
    let mut rows = Vec::new();
    for (clients, ours) in ours {
        let processes = (*clients).min(CLIENTS_MAX);
        let (per_s, latency, failed) = slurm.measure(processes, common.length())?;
        let ratio = rounded(ours.per_s / per_s);
        println!(
            "{processes} clients: {per_s:.0}/s, p50 {:.2} ms, p99 {:.2} ms, {failed} failed; muster at {clients} clients: {ratio} times as many",
            latency.ms(0.5),
            latency.ms(0.99)
        );
        rows.push(json!({
            "clients": processes,
            "muster_clients": clients,
            "per_s": rounded(per_s),
            "failed": failed,
            "latency": latency.json(),
            "muster_times_as_many_per_s": ratio,
        }));
    }
    Ok(json!(rows))
}
