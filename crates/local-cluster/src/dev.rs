//! `muster dev`: a cluster on this machine for trying things, in the foreground until Ctrl-C.
//!
//! One replica, or three, and some hosts with declared accelerators, as real processes. While it runs, commands
//! without an endpoint use it ([`local`]), and jobs start in the directory that they are submitted from, because
//! the hosts are this machine.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use muster_client::{Client, Endpoints, Options};
use muster_console::local;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::fleet::{Ended, Fleet, REGION_HOSTS_MAX, REGIONS, Region, Shape, wait_for_hosts, wait_for_leader};

/// The region of a cluster with one replica.
const REGION: &str = "local";
const HOSTS: u8 = 2;
const ACCELERATORS: &str = "h100:8";
/// Longest start of a part.
const PATIENCE: Duration = Duration::from_secs(30);
/// Held by the process that runs a directory's fleet.
const LOCK: &str = "lock";
/// Lines of a log that are shown when its process has ended.
const LOG_LINES: usize = 5;

/// Runs a cluster on this machine to try things with, until Ctrl-C. Its accelerators are declared: nothing checks
/// that they exist.
#[derive(Debug, clap::Args)]
#[command(after_help = "EXAMPLES:\n  \
    muster dev\n  \
    muster dev --replicas 3 --hosts 6 --accelerators a100:4\n  \
    muster dev --dir ./cluster      keeps its data, and continues from it the next time\n\n\
    In another terminal, in any directory:\n  \
    muster run -- python train.py\n  \
    muster run --workers 2 --accelerators h100:4 -- python train.py\n  \
    muster job list\n\n\
    Commands that name no endpoint use the running `muster dev`. Jobs start in the directory of the command, with\n\
    its PATH. Ctrl-C ends every process, and removes the data unless --dir names where to keep it.")]
pub struct DevArgs {
    /// Replicas of the scheduler, one in each region: 1 or 3 [default: 1]
    #[arg(long, value_name = "N", value_parser = replicas)]
    replicas: Option<u8>,
    /// Hosts, spread over the regions [default: 2]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=i64::from(REGION_HOSTS_MAX)))]
    hosts: Option<u8>,
    /// Type and count of the accelerators that each host declares [default: h100:8]
    #[arg(long, value_name = "TYPE:COUNT", value_parser = accelerators)]
    accelerators: Option<(String, u16)>,
    /// Directory for data and logs, kept afterwards; continues the cluster that is in it
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

fn replicas(text: &str) -> Result<u8, String> {
    match text {
        "1" => Ok(1),
        "3" => Ok(3),
        _ => Err("must be 1 or 3".to_owned()),
    }
}

fn accelerators(text: &str) -> Result<(String, u16), String> {
    let most = muster_types::limits::HOST_DEVICES_MAX;
    let wrong = || format!("must be like {ACCELERATORS}, with a count from 1 to {most}");
    let (kind, count) = text.split_once(':').ok_or_else(wrong)?;
    let kind = muster_types::Name::new(kind).ok_or_else(wrong)?;
    let count = count.parse().map_err(|_| wrong())?;
    if !(1..=most).contains(&count) {
        return Err(wrong());
    }
    Ok((kind.as_str().to_owned(), count))
}

impl DevArgs {
    /// The shape that the options ask for, on top of what an earlier run had.
    fn shape(&self, earlier: Option<&Shape>) -> Shape {
        let replicas =
            self.replicas.map_or_else(|| earlier.map_or(1, |shape| shape.regions.len()), usize::from);
        let hosts = self.hosts.map_or_else(|| earlier.map_or(usize::from(HOSTS), Shape::hosts), usize::from);
        let names: &[&str] = if replicas == 1 { &[REGION] } else { &REGIONS };
        let (accelerator, devices_per_host) = match (&self.accelerators, earlier) {
            (Some((kind, count)), _) => (kind.clone(), *count),
            (None, Some(shape)) => (shape.accelerator.clone(), shape.devices_per_host),
            (None, None) => accelerators(ACCELERATORS).expect("the default is a type and a count"),
        };
        let share = |place: usize| hosts / names.len() + usize::from(place < hosts % names.len());
        let region =
            |(place, name): (usize, &&str)| Region { name: (*name).to_owned(), hosts: share(place) as u8 };
        Shape { regions: names.iter().enumerate().map(region).collect(), accelerator, devices_per_host }
    }
}

/// The directory of the data, and what becomes of it at the end.
enum DataDirectory {
    Kept(PathBuf),
    Scratch(tempfile::TempDir),
}

impl DataDirectory {
    fn new(dir: Option<&Path>) -> Result<DataDirectory> {
        let Some(dir) = dir else {
            let scratch = tempfile::Builder::new().prefix("muster-dev-").tempdir();
            return Ok(DataDirectory::Scratch(scratch.context("making a directory")?));
        };
        std::fs::create_dir_all(dir).with_context(|| format!("creating {}", dir.display()))?;
        Ok(DataDirectory::Kept(dir.canonicalize().with_context(|| format!("finding {}", dir.display()))?))
    }

    fn path(&self) -> &Path {
        match self {
            DataDirectory::Kept(path) => path,
            DataDirectory::Scratch(scratch) => scratch.path(),
        }
    }
}

/// Runs the cluster until it is told to stop; 0 then.
pub async fn run(args: DevArgs, shutdown: CancellationToken) -> Result<ExitCode> {
    // Orphans of killed agents come to this process, so that none is left behind unnoticed.
    nix::sys::prctl::set_child_subreaper(true).context("becoming the parent of orphans")?;
    let root = DataDirectory::new(args.dir.as_deref())?;
    let dir = root.path();
    let _lock = lock(dir)?;
    let mut fleet = fleet(&args, dir)?;
    let ran = tokio::select! {
        ran = serve(&mut fleet, &root) => ran.map(|never| match never {}),
        () = shutdown.cancelled() => Ok(()),
    };
    eprintln!("stopping every process");
    fleet.stop();
    if let Err(error) = ran {
        let kept = dir.display().to_string();
        if let DataDirectory::Scratch(scratch) = root {
            // The logs say why: keep them.
            let _ = scratch.keep();
        }
        return Err(error.context(format!("the cluster did not keep running; logs are in {kept}")));
    }
    if let DataDirectory::Kept(dir) = &root {
        eprintln!("the data is kept; `muster dev --dir {}` continues the cluster", dir.display());
    }
    Ok(ExitCode::SUCCESS)
}

/// One process at a time runs the fleet of a directory.
fn lock(dir: &Path) -> Result<File> {
    let path = dir.join(LOCK);
    let file = File::create(&path).with_context(|| format!("opening {}", path.display()))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(std::fs::TryLockError::WouldBlock) => {
            bail!("another `muster dev` runs in {}; end it, or name another --dir", dir.display())
        }
        Err(std::fs::TryLockError::Error(error)) => {
            Err(error).with_context(|| format!("locking {}", path.display()))
        }
    }
}

/// The fleet that is in the directory, or a new one. One that is there keeps its shape.
fn fleet(args: &DevArgs, dir: &Path) -> Result<Fleet> {
    let Some(fleet) = Fleet::open(dir)? else {
        let others = std::fs::read_dir(dir).context("reading the directory")?.flatten();
        let others = others.filter(|entry| entry.file_name() != LOCK).count();
        ensure!(others == 0, "{} is not empty and holds no cluster of `muster dev`", dir.display());
        return Fleet::create(dir, args.shape(None), "");
    };
    let (has, asked) = (fleet.shape(), args.shape(Some(fleet.shape())));
    ensure!(
        *has == asked,
        "{} holds a cluster of {}; leave the options away, or name another --dir",
        dir.display(),
        describe(has)
    );
    Ok(fleet)
}

fn describe(shape: &Shape) -> String {
    let replicas = match shape.regions.len() {
        1 => "one replica".to_owned(),
        replicas => format!("{replicas} replicas"),
    };
    let hosts = match shape.hosts() {
        1 => "one host".to_owned(),
        hosts => format!("{hosts} hosts"),
    };
    format!("{replicas} and {hosts} with {} declared {} each", shape.devices_per_host, shape.accelerator)
}

/// Starts everything, tells how to use it, and returns only with an error.
async fn serve(fleet: &mut Fleet, root: &DataDirectory) -> Result<std::convert::Infallible> {
    let mut children = signal(SignalKind::child()).context("listening for children")?;
    eprintln!("starting {}", describe(fleet.shape()));
    let client = Client::lazy(Endpoints::parse(&fleet.endpoints())?, Options::STANDARD);
    for id in fleet.replica_ids() {
        let first = !fleet.has_data(id);
        fleet.start_replica(id, first)?;
    }
    let leader = or_ended(&mut children, fleet, wait_for_leader(&client, PATIENCE)).await?;
    eprintln!("replica {leader} leads; starting an agent for each host");
    let regions: Vec<String> = fleet.shape().regions.iter().map(|region| region.name.clone()).collect();
    for region in &regions {
        fleet.start_agents(region)?;
    }
    let hosts = fleet.shape().hosts();
    or_ended(&mut children, fleet, wait_for_hosts(&client, hosts, PATIENCE)).await?;
    let announced = local::announce(&fleet.endpoints(), &fleet.web(), &fleet.files());
    eprintln!("{}", usage(fleet, root, announced.is_some()));
    watch(&mut children, fleet).await
}

/// Reports parts that end, and goes on with the others; an error once no replica is left.
async fn watch(
    children: &mut tokio::signal::unix::Signal,
    fleet: &mut Fleet,
) -> Result<std::convert::Infallible> {
    loop {
        for ended in fleet.ended() {
            eprintln!("{}", describe_end(&ended));
        }
        ensure!(fleet.has_replica(), "no replica is left");
        children.recv().await;
    }
}

/// What `work` comes to; an error as soon as a part of the fleet ends before that.
async fn or_ended<T>(
    children: &mut tokio::signal::unix::Signal,
    fleet: &mut Fleet,
    work: impl Future<Output = Result<T>>,
) -> Result<T> {
    let mut work = std::pin::pin!(work);
    loop {
        tokio::select! {
            done = &mut work => return done,
            _ = children.recv() => {
                if let Some(ended) = fleet.ended().into_iter().next() {
                    bail!(describe_end(&ended));
                }
            }
        }
    }
}

fn describe_end(ended: &Ended) -> String {
    format!(
        "{} has ended ({}); its log {} ends: {}",
        ended.name,
        ended.status,
        ended.log.display(),
        last_lines(&ended.log)
    )
}

/// The end of a log, on one line.
fn last_lines(path: &Path) -> String {
    let text = std::fs::read(path).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(LOG_LINES)..].join("; ")
}

/// How to use what runs now.
fn usage(fleet: &Fleet, root: &DataDirectory, is_announced: bool) -> String {
    let endpoints = fleet.endpoints().join(",").replace("http://", "");
    let data = match root {
        DataDirectory::Kept(dir) => dir.display().to_string(),
        DataDirectory::Scratch(scratch) => format!("{} (removed at the end)", scratch.path().display()),
    };
    let export = if is_announced {
        "In another terminal:".to_owned()
    } else {
        format!("In another terminal:\n  export MUSTER_ENDPOINTS={endpoints}")
    };
    let kind = &fleet.shape().accelerator;
    format!(
        "ready: {}\n  endpoints {endpoints}\n  data      {data}\n\n{export}\n  \
         muster run -- hostname\n  \
         muster run --workers 2 --accelerators {kind}:1 -- python train.py\n  \
         muster job list\n  \
         muster cluster status\n\n\
         Jobs start in the directory that you submit them from. Ctrl-C stops everything.",
        describe(fleet.shape())
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(replicas: Option<u8>, hosts: Option<u8>) -> DevArgs {
        DevArgs { replicas, hosts, accelerators: None, dir: None }
    }

    #[test]
    fn hosts_are_spread_over_regions_and_no_region_has_too_many() {
        let hosts = |replicas, hosts| -> Vec<u8> {
            let shape = args(Some(replicas), Some(hosts)).shape(None);
            shape.regions.iter().map(|region| region.hosts).collect()
        };
        assert_eq!(hosts(1, 2), [2]);
        assert_eq!(hosts(3, 2), [1, 1, 0]);
        assert_eq!(hosts(3, 16), [6, 5, 5]);
        assert_eq!(hosts(1, 16), [REGION_HOSTS_MAX]);
    }

    #[test]
    fn a_later_run_has_the_shape_of_the_first_unless_it_asks_for_another() {
        let mut first = args(Some(3), Some(5));
        first.accelerators = Some(("a100".to_owned(), 4));
        let shape = first.shape(None);
        assert_eq!(args(None, None).shape(Some(&shape)), shape);
        assert_ne!(args(None, Some(6)).shape(Some(&shape)), shape);
        assert_ne!(args(Some(1), None).shape(Some(&shape)), shape);
    }

    #[test]
    fn accelerators_are_a_type_and_a_count() {
        assert_eq!(accelerators("h100:8"), Ok(("h100".to_owned(), 8)));
        for wrong in ["h100", "h100:0", "h100:65", "h100:x", ":8", "H 1:8", ""] {
            assert!(accelerators(wrong).is_err(), "{wrong:?}");
        }
        assert_eq!(accelerators(ACCELERATORS), Ok(("h100".to_owned(), 8)));
    }

    #[test]
    fn a_directory_is_used_by_one_process_and_never_one_with_other_files() {
        let directory = tempfile::tempdir().unwrap();
        let held = lock(directory.path()).unwrap();
        assert!(lock(directory.path()).unwrap_err().to_string().contains("another `muster dev`"));
        drop(held);
        // A process that another test starts holds a copy of the lock until it becomes its program.
        let began = std::time::Instant::now();
        let _again = loop {
            match lock(directory.path()) {
                Ok(again) => break again,
                Err(_) if began.elapsed() < std::time::Duration::from_secs(30) => std::thread::yield_now(),
                Err(refused) => panic!("{refused}"),
            }
        };
        std::fs::write(directory.path().join("thesis.tex"), "").unwrap();
        let refused = fleet(&args(None, None), directory.path()).map(|_| ()).unwrap_err();
        assert!(refused.to_string().contains("is not empty"), "{refused}");
    }
}
