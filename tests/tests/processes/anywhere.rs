//! One job on hosts, on Slurm and on Kubernetes: the files in `ops/examples/anywhere`, and what their workers leave.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use crate::support::{Agents, Cluster, all_jobs, eventually, heavy};

/// What the token of the tenant is.
const TOKEN: &str = "of research";
/// Workers of the job.
const WORKERS: usize = 2;

fn text_for(place: &str) -> String {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../ops/examples/anywhere");
    let path = directory.join(format!("{place}.yaml"));
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The store that is laid out.
pub fn store_in(scratch: &Path) -> PathBuf {
    scratch.join("store-anywhere")
}

/// Lays out a store and the tenant's secret, and returns the lines of an agent's configuration that name them.
pub fn lay_out(scratch: &Path) -> String {
    let (store, secrets) = (store_in(scratch), scratch.join("secrets-anywhere"));
    std::fs::create_dir_all(store.join("objects")).expect("a directory");
    std::fs::write(store.join("muster-store"), "muster store 1\n").expect("a store");
    std::fs::create_dir_all(secrets.join("research")).expect("a directory");
    let token = secrets.join("research/hub-token");
    std::fs::write(&token, format!("{TOKEN}\n")).expect("a file");
    std::fs::set_permissions(&token, std::fs::Permissions::from_mode(0o600)).expect("own file");
    format!("files = {{ store = {store:?} }}\nsecrets_dir = {secrets:?}\n")
}

fn words(path: &Path) -> &str {
    path.to_str().expect("a temporary path is text")
}

/// Submits the file of a place, and compares what its workers leave.
pub async fn run(cluster: &Cluster, place: &str, change: impl Fn(String) -> String) {
    let scratch = cluster.scratch.path();
    let (file, name) = (scratch.join(format!("{place}.yaml")), format!("anywhere-{place}"));
    std::fs::write(&file, change(text_for(place))).expect("a file");
    cluster.operated(&["submit", words(&file), "--name", &name, "--wait"]).await;
    let jobs = all_jobs(&cluster.client()).await;
    let job = jobs.iter().find(|job| job.name == name).expect("it was submitted");
    for rank in 0..WORKERS {
        let (back, number) = (scratch.join(format!("back-{place}-{rank}")), rank.to_string());
        let store = store_in(scratch);
        let get =
            ["artifacts", "get", &job.id, "--rank", &number, "-d", words(&back), "--store", words(&store)];
        cluster.operated(&get).await;
        let left = std::fs::read_to_string(back.join(format!("results/rank-{rank}.txt")));
        let wanted = format!(
            "rank {rank} of {WORKERS}, a token of {} characters\nloss 0.000000, y = 3.00 x + 1.00\n",
            TOKEN.len()
        );
        assert_eq!(left.expect("its file came back"), wanted, "{place}");
    }
}

/// Runs a command next to a worker, which may be refused for the first moments of that.
pub async fn runs_next_to(cluster: &Cluster, id: &str) {
    let words = ["exec", id, "--", "/bin/sh", "-c", "echo rank $MUSTER_RANK; exit 7"];
    eventually("no command runs next to the worker", || async {
        let ran = cluster.operate(&words).await;
        (ran.code == Some(7) && ran.out == "rank 0\n").then_some(())
    })
    .await;
}

#[test]
fn the_files_differ_in_the_one_line_that_names_the_place() {
    let first = text_for("hosts");
    for place in ["container", "slurm", "kubernetes"] {
        let other = text_for(place);
        let pairs = first.lines().zip(other.lines());
        let differing: Vec<_> = pairs.filter(|(one, two)| one != two).collect();
        assert_eq!(differing.len(), 1, "{place}: {differing:?}");
        assert_eq!(first.lines().count(), other.lines().count(), "{place}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_job_runs_on_hosts() {
    let _heavy = heavy().await;
    let mut cluster = Cluster::start(1).await;
    let (endpoints, settings) = (cluster.shown_endpoints(), lay_out(cluster.scratch.path()));
    let _agents = Agents::start_with(&cluster, &["h1"], |_| endpoints.clone(), |_, _| settings.clone()).await;
    run(&cluster, "hosts", |text| text).await;
    cluster.assert_digests_agree().await;
}
