//! Rank 0 of the `mpi` form: `mpirun`, which reaches its hosts through the members.
//!
//! Its hosts are the ranks by name (`hostfile.ranks`), never resolved; it starts its daemon on each by
//! `remote`, rank 0's own included, so that two workers on one machine are two hosts. Told by variables,
//! which a user's own `mpirun` with more options reads just as well:
//!
//! - Open MPI 4 (`ompi_info --all`): `plm_rsh_*`, `orte_*`. One daemon starts no others (`no_tree_spawn`), since
//!   only rank 0 knows the hub; daemons stay attached, so that their end is seen.
//! - Open MPI 5 on PRRTE 3: the same by PRRTE's names.
//! - Hydra (MPICH, Intel MPI): `HYDRA_LAUNCHER_EXEC` and a host file in its own form.

use super::child::Event;
use super::hub::{COMMANDS_FROM, Hub};
use super::identity::Identity;
use super::remote::{HUB_VARIABLE, SECRET_VARIABLE};
use super::{Failure, GATHER_MAX, Gang, LAUNCH, REMOTE, child, say};
use nix::sys::signal::Signal;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

/// The number of `mpirun` among the children.
const MPIRUN: u64 = 1;

/// Programs that start MPI jobs by themselves: the command is executed as it stands.
const STARTERS: [&str; 6] = ["mpirun", "mpiexec", "orterun", "prterun", "mpiexec.hydra", "mpirun.openmpi"];

pub(super) fn first(gang: &mut Gang, command: &[String]) -> Result<i32, Failure> {
    let hub = Hub::open(&gang.identity, gang.children.events.clone())?;
    if !gather(gang, &hub)? {
        hub.end();
        return Ok(128 + Signal::SIGTERM as i32);
    }
    let mut mpirun = prepare(&gang.identity, &hub, command)?;
    gang.children.start(MPIRUN, &mut mpirun)?;
    let code = supervise(gang, &hub)?;
    part(gang, &hub);
    // There is none where nothing was run.
    let _ = std::fs::remove_dir_all(gang.identity.scratch());
    Ok(code)
}

/// Waits for every member; false when the worker is to stop before.
fn gather(gang: &Gang, hub: &Hub) -> Result<bool, Failure> {
    let end = Instant::now() + GATHER_MAX;
    while !hub.missing().is_empty() {
        match gang.incoming.recv_timeout(end.saturating_duration_since(Instant::now())) {
            Ok(Event::Stop) => return Ok(false),
            Ok(_) => {}
            Err(_) => {
                let missing = hub.missing();
                let shown: Vec<String> = missing.iter().take(16).map(ToString::to_string).collect();
                return Err(format!(
                    "{} of {} ranks did not come within {} s: {}",
                    missing.len(),
                    gang.identity.world(),
                    GATHER_MAX.as_secs(),
                    shown.join(", ")
                ));
            }
        }
    }
    Ok(true)
}

/// Until `mpirun` has ended.
fn supervise(gang: &mut Gang, hub: &Hub) -> Result<i32, Failure> {
    loop {
        match gang.incoming.recv().map_err(|_| "no more events".to_owned())? {
            Event::Stop => gang.children.signal(MPIRUN, Signal::SIGTERM),
            Event::Ended { id: MPIRUN, code } => {
                gang.children.ended(MPIRUN);
                return Ok(code);
            }
            Event::Ended { id, code } => {
                gang.children.ended(id);
                hub.ended_here(id, code);
            }
            Event::RunHere { id, shell } => {
                // Numbers of commands begin far above those of this launcher's children.
                debug_assert!(id > COMMANDS_FROM);
                if let Err(failure) =
                    gang.children.start(id, &mut child::shell(&shell, &gang.identity.scratch()))
                {
                    say(&failure);
                    hub.ended_here(id, 127);
                }
            }
            Event::KillHere { id } => gang.children.signal(id, Signal::SIGTERM),
            Event::Left { rank } => say(&format!("rank {rank} is gone")),
            Event::Joined | Event::Turn(_) | Event::Ready { .. } | Event::Marked { .. } | Event::Hub(_) => {}
        }
    }
}

/// Tells the members that the work is done, and waits until they have ended what they run.
pub(super) fn part(gang: &mut Gang, hub: &Hub) {
    let members = hub.end();
    child::wind_down(&mut gang.children, &gang.incoming, members);
}

/// The process that starts the MPI job, with everything it is told by.
fn prepare(identity: &Identity, hub: &Hub, command: &[String]) -> Result<Command, Failure> {
    let helper = identity.own_directory()?.join("remote");
    let own = crate::own_program::command().map_err(|e| format!("find the program of this launcher: {e}"))?;
    let shim: Vec<String> = std::env::args().skip(1).take_while(|word| word != LAUNCH).collect();
    write(&helper, &script(&own, &shim), 0o700)?;
    let hosts = identity.directory.join("hostfile.ranks");
    let hydra_hosts = identity.own_directory()?.join("hostfile.hydra");
    let listed = std::fs::read_to_string(&hosts).map_err(|e| format!("read {}: {e}", hosts.display()))?;
    write(&hydra_hosts, &listed.replace(" slots=", ":"), 0o600)?;
    let mut variables = variables(&helper, &hosts, &hydra_hosts, identity.stop_grace_ms);
    variables.push((HUB_VARIABLE, super::identity::endpoint(identity.hub(), identity.port)));
    variables.push((SECRET_VARIABLE, hub.secret.clone()));
    let (program, rest) = command.split_first().ok_or("the command is empty")?;
    let name = Path::new(program).file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let mut mpirun = if STARTERS.contains(&name) {
        Command::new(program)
    } else {
        let mut mpirun = Command::new("mpirun");
        mpirun.arg(program);
        mpirun
    };
    mpirun.args(rest).stdin(std::process::Stdio::null());
    for (name, value) in variables {
        // What the user set counts.
        if std::env::var_os(name).is_none() {
            mpirun.env(name, value);
        }
    }
    Ok(mpirun)
}

/// A program of one word in ssh's place, for starters that take no more.
fn script(own: &[String], shim: &[String]) -> String {
    let quoted = |text: &str| format!("'{}'", text.replace('\'', r"'\''"));
    let words = own.iter().chain(shim).map(|word| quoted(word));
    let words: Vec<String> = words.chain([LAUNCH.to_owned(), REMOTE.to_owned()]).collect();
    format!("#!/bin/sh\nexec {} \"$@\"\n", words.join(" "))
}

fn variables(helper: &Path, hosts: &Path, hydra_hosts: &Path, grace_ms: u64) -> Vec<(&'static str, String)> {
    let (helper, hosts) = (helper.display().to_string(), hosts.display().to_string());
    let yes = || "1".to_owned();
    vec![
        ("OMPI_MCA_plm", "rsh".to_owned()),
        ("OMPI_MCA_plm_rsh_agent", helper.clone()),
        ("OMPI_MCA_plm_rsh_no_tree_spawn", yes()),
        ("OMPI_MCA_orte_leave_session_attached", yes()),
        ("OMPI_MCA_orte_do_not_resolve", yes()),
        ("OMPI_MCA_orte_default_hostfile", hosts.clone()),
        // Whole seconds from SIGTERM to SIGKILL of the processes, when mpirun is asked to stop.
        ("OMPI_MCA_odls_base_sigkill_timeout", grace_ms.div_ceil(1_000).max(1).to_string()),
        ("PRTE_MCA_plm", "ssh".to_owned()),
        ("PRTE_MCA_plm_ssh_agent", helper.clone()),
        ("PRTE_MCA_plm_ssh_no_tree_spawn", yes()),
        ("PRTE_MCA_prte_leave_session_attached", yes()),
        ("PRTE_MCA_prte_do_not_resolve", yes()),
        ("PRTE_MCA_prte_default_hostfile", hosts),
        ("HYDRA_LAUNCHER", "rsh".to_owned()),
        ("HYDRA_LAUNCHER_EXEC", helper),
        ("HYDRA_HOST_FILE", hydra_hosts.display().to_string()),
    ]
}

fn write(path: &Path, text: &str, mode: u32) -> Result<(), Failure> {
    std::fs::write(path, text)
        .and_then(|()| std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)))
        .map_err(|e| format!("write {}: {e}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_mpirun_is_told() {
        let told = variables(Path::new("/t/remote"), Path::new("/t/hosts"), Path::new("/t/hydra"), 30_001);
        let text: String = told.iter().map(|(key, value)| format!("{key}={value}\n")).collect();
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/mpi_variables.txt");
        if std::env::var_os("UPDATE_EXPECT").is_some() {
            std::fs::write(&path, &text).unwrap();
        }
        assert_eq!(text, std::fs::read_to_string(&path).unwrap_or_default());
    }

    #[test]
    fn the_script_survives_any_path() {
        let text = script(&["/opt/it's a/muster".to_owned()], &["shim".to_owned()]);
        assert_eq!(text, "#!/bin/sh\nexec '/opt/it'\\''s a/muster' 'shim' launch remote \"$@\"\n");
    }
}
