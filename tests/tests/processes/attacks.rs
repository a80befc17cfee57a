//! What a tenant's worker may try against its host, its agent and other tenants, on a host whose agent gives each tenant
//! a user: every attempt is in a table with its name, and every one must fail.
//!
//! A script says `BROKEN` with what it has reached; what it prints else is nobody's business. Where this is not root, or
//! where no namespaces can be made, there is nothing to hold, which is said.

use muster_client::Client;
use muster_wire::v1::{self, JobPhase};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use crate::support::{Agents, Cluster, eventually, follow_until, heavy, is_finished, job, say, wait_for_job};

/// Users that nobody here has.
const UID_FIRST: u32 = 1_500_000_000;
/// In the environment of the victim.
const SECRET: &str = "the-victims-own-token";

/// An attempt: its name, and the script of the worker that makes it.
type Attempt = (&'static str, &'static str);

/// Reading what is another's.
const READ: &[Attempt] = &[
    ("read the agent's key", "cat $HOME_OF_AGENT/tls.key && echo BROKEN"),
    ("read the victim's launch", "cat $VICTIM/spec && echo BROKEN"),
    ("read every launch", "cat $STATE/tasks/*/spec && echo BROKEN"),
    ("read the victim's output", "head -c 9 $VICTIM/output && echo BROKEN"),
    ("read the victim's folder", "ls $VICTIM/work && echo BROKEN"),
    ("list the host's workers", "ls $STATE/tasks && echo BROKEN"),
    ("list the agent's folder", "ls $STATE && echo BROKEN"),
    ("read environments", "grep -l $WANTED /proc/[0-9]*/environ && echo BROKEN"),
    ("read through the first process", "ls /proc/1/root/proc/1/cwd && cat /proc/1/environ && echo BROKEN"),
    ("find the victim's files in /tmp", "test -e /tmp/of-victim && echo BROKEN"),
    ("find the victim's shared memory", "test -e /dev/shm/of-victim && echo BROKEN"),
    ("see the host's processes", "test $(ls -d /proc/[0-9]* | wc -l) -gt 12 && echo BROKEN"),
    ("read as root of a namespace", "unshare --user --map-root-user cat $VICTIM/spec && echo BROKEN"),
];

/// Writing what only the agent or a shim may.
const FORGE: &[Attempt] = &[
    ("forge the lease", "echo x > $STATE/lease && echo BROKEN"),
    ("forge the fences", "echo x > $STATE/jobs/log && echo BROKEN"),
    ("forge the holder", "echo x > $STATE/holder && echo BROKEN"),
    ("forge an end of its own", "echo x > ../exit && echo BROKEN"),
    ("forge the victim's end", "echo x > $VICTIM/exit && echo BROKEN"),
    ("stop the victim by its pipe", "echo 12345678 > $VICTIM/control && echo BROKEN"),
    ("change its own launch", "echo x > ../spec && echo BROKEN"),
    ("change a launch that waits", "echo x > $STATE/tasks/.new_ready_1/spec && echo BROKEN"),
    ("make a folder of a worker", "mkdir $STATE/tasks/job-1_1.1_0 && echo BROKEN"),
    ("replace its folder", "mv ../work ../gone && echo BROKEN"),
    ("replace the socket", "rm -f $MUSTER_AGENT_SOCKET && echo BROKEN"),
    (
        "speak for the victim",
        "perl -MIO::Socket::UNIX -e '$s = IO::Socket::UNIX->new($ENV{MUSTER_AGENT_SOCKET}) or exit; \
         print $s qq({\"job_id\":\"$ENV{VICTIM_JOB}\",\"fencing_token\":\"$ENV{VICTIM_TOKEN}\",\"rank\":0,\"checkpoint_committed\":{}}\\n); \
         print \"BROKEN\\n\" if <$s> =~ /ok/'",
    ),
];

/// Getting out, or up.
const ESCAPE: &[Attempt] = &[
    ("stop its first process", "kill -STOP 1; kill -9 1; sleep 0.1"),
    ("kill the victim", "kill -9 $VICTIM_PID && echo BROKEN"),
    ("kill the victim's shim", "kill -9 $VICTIM_SHIM && echo BROKEN"),
    ("stop the agent", "kill -STOP $AGENT_PID && echo BROKEN"),
    (
        "become root by a program",
        "for p in su sudo mount; do $p -c true root < /dev/null; done; test $(id -u) = 0 && echo BROKEN",
    ),
    (
        "have a capability",
        "grep -E '^Cap(Eff|Prm|Bnd|Amb)' /proc/self/status | grep -qv '0000000000000000' && echo BROKEN",
    ),
    ("unmount /proc", "umount -l /proc && echo BROKEN"),
    ("unmount /tmp", "umount -l /tmp && echo BROKEN"),
    ("mount over the agent's folder", "mount -t tmpfs x $STATE && echo BROKEN"),
    ("make a device", "mknod mem c 1 1 && head -c 1 mem && echo BROKEN"),
    ("read the host's memory", "head -c 1 /dev/mem && echo BROKEN"),
    (
        "join the host's namespaces",
        "nsenter --target 1 --all true && nsenter --mount=/proc/1/ns/mnt cat $VICTIM/spec && echo BROKEN",
    ),
    (
        "leave its control group",
        "for g in $(find /sys/fs/cgroup -name cgroup.procs 2> /dev/null | head -50); do echo $$ > $g && echo BROKEN; done",
    ),
    ("write to the kernel", "echo x > /proc/sys/kernel/core_pattern && echo BROKEN"),
];

/// Taking what everybody needs. What comes of it is looked at behind all of them.
const EXHAUST: &[Attempt] = &[
    ("a tree deeper than any path", "perl -e 'for (1 .. 5000) { mkdir \"d\" or last; chdir \"d\" or last }'"),
    ("very many files", "perl -e 'for (1 .. 40000) { open F, \">\", \"f$_\" or last }'"),
    ("a file larger than the disk", "truncate -s 100T sparse"),
    ("closed folders", "mkdir -p a/b/c; touch a/b/c/f; chmod 0 a/b a"),
    ("links out of its folder", "ln -s $STATE/tasks tasks; ln -s / root; mkdir x; ln -s $VICTIM x/y"),
    ("very many processes", "for i in $(seq 300); do sleep 600 & done"),
    (
        "every connection to the agent",
        "perl -MIO::Socket::UNIX -e '@s = map { IO::Socket::UNIX->new($ENV{MUSTER_AGENT_SOCKET}) } 1 .. 600; sleep 1'",
    ),
];

/// The host, its victim, and who attacks them.
struct Scene<'a> {
    client: &'a Client,
    agents: &'a Agents,
    environment: Vec<(String, String)>,
}

fn script(tenant: &str, text: &str) -> v1::JobSpec {
    let mut spec = job("attempt", &["sh", "-c", text]);
    spec.tenant = tenant.to_owned();
    spec.groups[0].memory_bytes = 256 << 20;
    spec.stop_grace_ms = Some(500);
    spec
}

async fn submit(client: &Client, spec: v1::JobSpec) -> String {
    let request = v1::SubmitJobRequest { spec: Some(spec), ..Default::default() };
    client.submit_job(request).await.expect("a job that fits is accepted").job_ids.remove(0)
}

async fn output(client: &Client, id: &str) -> String {
    let request = v1::ReadLogsRequest { job_id: id.to_owned(), ..Default::default() };
    let mut stream = client.read_logs(request).await.expect("output can be read");
    let mut bytes = Vec::new();
    while let Some(piece) = stream.next().await.expect("output comes to its end") {
        bytes.extend_from_slice(&piece.data);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

impl Scene<'_> {
    /// Makes every attempt, one behind another; those that reached something are the failure.
    async fn try_all(&self, what: &str, attempts: &[Attempt]) {
        let mut broken = Vec::new();
        for (name, text) in attempts {
            let mut spec = script("eve", &format!("({text}) 2> /dev/null; echo tried"));
            spec.groups[0].environment.extend(self.environment.iter().cloned());
            let id = submit(self.client, spec).await;
            let ended = follow_until(self.client, &id, is_finished).await.pop().expect("its end was seen");
            let said = output(self.client, &id).await;
            if said.contains("BROKEN") || !said.contains("tried") || ended.phase() != JobPhase::Succeeded {
                broken.push(format!("{name}: {said} {:?} {}", ended.phase(), ended.status_detail));
            }
        }
        assert!(broken.is_empty(), "{what}: {broken:#?}");
        say(&format!("{what}: {} attempts, none of which reached anything", attempts.len()));
    }

    /// The folder of a job's only worker, and the process ids of its shim and of itself.
    fn worker_of(&self, id: &str) -> (PathBuf, i32, i32) {
        let tasks = self.agents.state_of("h1").join("tasks");
        let mut folders =
            std::fs::read_dir(tasks).expect("the agent's folder").flatten().map(|entry| entry.path());
        let folder =
            folders.find(|path| path.to_string_lossy().contains(&format!("/{id}_"))).expect("it is here");
        let running = std::fs::read_to_string(folder.join("running")).expect("it runs");
        let running = running.split_once('\n').expect("a record has a head").1;
        let number = |key: &str| {
            let rest = running.split_once(&format!("\"{key}\":")).expect("the record has it").1;
            let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
            digits.parse().expect("a number")
        };
        (folder, number("shim_pid"), number("worker_pid"))
    }

    async fn running(&self, spec: v1::JobSpec) -> String {
        let id = submit(self.client, spec).await;
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

/// Waits until a worker has written this, which it does once it stands as it wants to.
async fn says(client: &Client, id: &str, what: &str) {
    eventually("the worker did not begin", || async {
        output(client, id).await.contains(what).then_some(())
    })
    .await;
}

fn passable(path: &Path) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o711)).expect("a folder of this test");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_attempt_of_a_worker_reaches_its_host_or_another_tenant() {
    let namespaces =
        std::process::Command::new("unshare").args(["--mount", "--pid", "--fork", "true"]).output();
    if !nix::unistd::geteuid().is_root() || !namespaces.is_ok_and(|ran| ran.status.success()) {
        return say("skipped: attacks of workers (this takes root, and namespaces)");
    }
    let _heavy = heavy().await;
    let mut cluster = Cluster::start(1).await;
    passable(cluster.scratch.path());
    let workers = format!(
        "workers = {{ isolation = \"required\", uid_range = {{ first = {UID_FIRST}, count = 100000000 }} }}\nlogs = {{ ended_bytes_max = 4194304 }}\n"
    );
    let endpoints = cluster.endpoints();
    let mut agents =
        Agents::start_with(&cluster, &["h1"], |_| endpoints.clone(), |_, _| workers.clone()).await;
    let client = cluster.client();
    let home = agents.home("h1").to_owned();
    passable(&home);
    let key = home.join("tls.key");
    std::fs::write(&key, "key").expect("a file can be written");
    std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o600)).expect("own file");

    let mut victim = script("bob", "touch /tmp/of-victim /dev/shm/of-victim; echo mine; exec sleep 600");
    victim.groups[0].environment.insert("TOKEN".to_owned(), SECRET.to_owned());
    let scene = Scene { client: &client, agents: &agents, environment: Vec::new() };
    let victim = scene.running(victim).await;
    says(&client, &victim, "mine").await;
    let (folder, shim, worker) = scene.worker_of(&victim);
    let agent = agents.processes("h1").into_iter().min().expect("an agent runs");
    let token =
        folder.file_name().and_then(|name| name.to_str()?.split('_').nth(1)).expect("a token").to_owned();
    let state = agents.state_of("h1");
    let text = |path: &Path| path.to_str().expect("the test's folder is text").to_owned();
    // What is wanted is asked for in two parts: the script's own command line is no find.
    let environment = [
        ("STATE", text(&state)),
        ("VICTIM", text(&folder)),
        ("HOME_OF_AGENT", text(&home)),
        ("WANTED", format!("{}[-]{}", &SECRET[..3], &SECRET[4..])),
        ("VICTIM_PID", worker.to_string()),
        ("VICTIM_SHIM", shim.to_string()),
        ("AGENT_PID", agent.to_string()),
        ("VICTIM_JOB", victim.clone()),
        ("VICTIM_TOKEN", token),
    ];
    let environment = environment.map(|(name, value)| (name.to_owned(), value)).to_vec();
    let scene = Scene { client: &client, agents: &agents, environment };
    Box::pin(scene.try_all("reading", READ)).await;
    Box::pin(scene.try_all("forging", FORGE)).await;
    Box::pin(scene.try_all("escaping", ESCAPE)).await;
    Box::pin(scene.try_all("exhausting", EXHAUST)).await;
    Box::pin(outlive(&scene)).await;
    assert!(is_alive(worker) && is_alive(shim), "the victim is as it was");
    assert!(!Path::new("/tmp/of-victim").exists() && !Path::new("/dev/shm/of-victim").exists());

    // The agent is started again in the midst of what was left, and is there at once; the victim went on.
    agents.kill("h1").await;
    agents.start_agent("h1");
    agents.wait_status("h1", v1::NodeStatus::Up).await;
    let request = v1::GetJobRequest { job_id: victim.clone(), read: None };
    let job = client.get_job(request).await.expect("it is kept").job.expect("with all of it");
    assert_eq!((job.phase(), job.attempt), (JobPhase::Running, 1), "{job:#?}");
    assert_eq!(output(&client, &victim).await, "mine\n");
    // What was left goes, beside everything else.
    eventually("what workers have left is still there", || async {
        let entries = std::fs::read_dir(state.join("tasks")).ok()?.flatten();
        let mut names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
        (!names.any(|name| name.starts_with(".old_"))).then_some(())
    })
    .await;
    drop(agents);
    cluster.assert_digests_agree().await;
}

/// Going on when the shim, the lease or the operator has ended the worker.
async fn outlive(scene: &Scene<'_>) {
    let client = scene.client;
    let word = |number: u32| format!("7{:06}{number}", std::process::id());
    // Shares nothing with its shim, is deaf, and an orphan of an orphan.
    let away = |word: &str| {
        format!(
            "(setsid env -i sh -c 'trap \"\" TERM HUP; (sleep {word} & ) ; sleep {word}' > /dev/null 2>&1 &);"
        )
    };
    // It ends by itself and leaves that behind.
    let first = word(1);
    let id = submit(client, script("eve", &format!("{} sleep 0.1; echo left", away(&first)))).await;
    wait_for_job(client, &id, is_finished).await;
    assert_eq!(output(client, &id).await, "left\n");
    assert_eq!(with_word(&first), [0; 0], "outlive an end");
    // It is cancelled.
    let second = word(2);
    let id =
        scene.running(script("eve", &format!("trap '' TERM; {} echo there; sleep 600", away(&second)))).await;
    says(client, &id, "there").await;
    client
        .cancel_job(v1::CancelJobRequest { job_id: id.clone(), ..Default::default() })
        .await
        .expect("cancelled");
    wait_for_job(client, &id, is_finished).await;
    assert_eq!(with_word(&second), [0; 0], "outlive a stop");
    // Its shim is killed, as by an operator who kills everything called so: no agent is needed to end the rest.
    let third = word(3);
    let id = scene.running(script("eve", &format!("{} echo there; sleep 600", away(&third)))).await;
    says(client, &id, "there").await;
    let (_, shim, worker) = scene.worker_of(&id);
    let mut of_the_attempt = with_word(&third);
    of_the_attempt.push(worker);
    kill(Pid::from_raw(shim), Signal::SIGKILL).expect("a process of this test");
    // The loss is the host's, so the job is started again, with the same word: only the first attempt has to be gone.
    eventually("the worker outlives its shim", || async {
        (!of_the_attempt.iter().any(|pid| is_alive(*pid))).then_some(())
    })
    .await;
    let again = wait_for_job(client, &id, |job| job.attempt > 1 || is_finished(job)).await;
    assert!(!is_finished(&again), "a lost worker is no failure of the job: {again:#?}");
    client
        .cancel_job(v1::CancelJobRequest { job_id: id.clone(), ..Default::default() })
        .await
        .expect("cancelled");
    wait_for_job(client, &id, is_finished).await;
    // Its shim is stopped: the stop comes through all the same.
    let fourth = word(4);
    let id = scene.running(script("eve", &format!("{} echo there; sleep 600", away(&fourth)))).await;
    says(client, &id, "there").await;
    let (_, shim, _) = scene.worker_of(&id);
    kill(Pid::from_raw(shim), Signal::SIGSTOP).expect("a process of this test");
    client
        .cancel_job(v1::CancelJobRequest { job_id: id.clone(), ..Default::default() })
        .await
        .expect("cancelled");
    wait_for_job(client, &id, is_finished).await;
    assert_eq!(with_word(&fourth), [0; 0], "outlive a stopped shim");
    say("outliving: 4 attempts, none of which reached anything");
}
