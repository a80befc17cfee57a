//! The configuration files of the packages and of the Kubernetes manifests are what server and agent read: every key in them is
//! one that exists, and every key that exists is in them.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use muster_agent::{AgentConfig, ControlGroups};
use muster_server::ServerConfig;

fn packages() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../ops/packages")
}

fn text_of(path: &str) -> String {
    std::fs::read_to_string(packages().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The settings that a file shows as comments become settings: `#key = value` and `#[table]`, which prose never looks like.
fn with_all_settings(text: &str) -> String {
    let mut lines: Vec<&str> = Vec::new();
    for line in text.lines() {
        let setting = line.strip_prefix('#').filter(|rest| {
            let key = rest.split(" = ").next().unwrap_or_default();
            let is_key = rest.contains(" = ") && key.chars().all(|c| c.is_ascii_lowercase() || c == '_');
            is_key || rest.starts_with('[')
        });
        lines.push(setting.unwrap_or(line));
    }
    lines.join("\n")
}

fn server(text: &str) -> Result<ServerConfig, String> {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("server.toml");
    std::fs::write(&path, text).expect("writing");
    ServerConfig::read(&path).map_err(|error| error.to_string())
}

fn agent(text: &str) -> Result<AgentConfig, String> {
    toml::from_str(text).map_err(|error| error.to_string())
}

/// With what the binary fills in, as `muster agent` does before it checks the rest.
fn checked(mut config: AgentConfig) -> Result<muster_types::NodeSpec, String> {
    if config.shim_command.is_empty() {
        config.shim_command = vec!["/usr/bin/muster".to_owned(), "shim".to_owned()];
    }
    // The directory is of the host that the package is for.
    config.control_groups = ControlGroups::Auto;
    config.check(Path::new("/nowhere")).map_err(|error| error.to_string())
}

/// The keys that a reader knows in a table, from its refusal of one that it does not know.
fn known_keys(text: &str, table: &str, read: impl Fn(&str) -> Result<(), String>) -> BTreeSet<String> {
    const UNKNOWN: &str = "no_such_key = 1\n";
    let text = match table {
        "" => format!("{UNKNOWN}{text}"),
        table => text.replacen(&format!("{table}\n"), &format!("{table}\n{UNKNOWN}"), 1),
    };
    let refusal = read(&text).expect_err("a key that does not exist is refused");
    let (_, expected) = refusal.split_once("expected").unwrap_or_else(|| panic!("{table}: {refusal}"));
    expected.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

/// Each key that the reader knows is in the file, in its table.
fn assert_complete(
    text: &str,
    tables: &[&str],
    not_shown: &[&str],
    read: impl Fn(&str) -> Result<(), String>,
) {
    for table in tables {
        let start = match *table {
            "" => 0,
            table => text.find(&format!("\n{table}\n")).unwrap_or_else(|| panic!("{table} is missing")) + 1,
        };
        let end = text[start + 1..].find("\n[").map_or(text.len(), |end| start + 1 + end);
        let shown = &text[start..end];
        for key in known_keys(text, table, &read) {
            // A separate table, or one in place.
            let is_table = text.contains(&format!("\n[{key}]")) || text.contains(&format!("\n[[{key}]]"));
            let is_inner = text.contains(&format!("\n{}.{key}]", table.trim_end_matches(']')));
            let is_shown = shown.lines().any(|line| line.starts_with(&format!("{key} = ")));
            assert!(
                is_table || is_inner || is_shown || not_shown.contains(&key.as_str()),
                "{table}: {key} is not shown"
            );
        }
    }
}

#[test]
fn the_packaged_server_configuration_is_read_as_it_is_and_with_every_key() {
    let text = text_of("etc/server.toml");
    let config = server(&text).expect("it is read as it is installed");
    // What starts without certificates is reached from this machine alone.
    assert_eq!(config.members.len(), 1);
    assert!(
        config.tls.is_none()
            && config.client_listen.ip().is_loopback()
            && config.peer_listen.ip().is_loopback()
    );
    assert_eq!(config.data_dir, Path::new("/var/lib/muster/server"));

    let all = with_all_settings(&text).replace("http://", "https://");
    let config = server(&all).expect("it is read with every setting");
    assert_eq!((config.members.len(), config.tls.is_some()), (3, true));
    // What is shown as the usual value is the usual value.
    let usual = server(&text).expect("it is read");
    assert_eq!(config.parameters, usual.parameters);
    assert_eq!(format!("{:?}", config.api), format!("{:?}", usual.api));
    let tables = [
        "",
        "[[members]]",
        "[tls]",
        "[timing]",
        "[parameters]",
        "[snapshots]",
        "[leader]",
        "[archive]",
        "[recovery]",
        "[upgrade]",
        "[limits]",
        "[notifications]",
        "[audit]",
        "[[oidc]]",
        "[[oidc.rules]]",
        "[traces]",
    ];
    assert_complete(&all, &tables, &[], |text| server(text).map(|_| ()));
}

#[test]
fn the_packaged_agent_configuration_is_read_as_it_is_and_with_every_key() {
    let text = text_of("etc/agent.toml");
    let config = agent(&text).expect("it is read as it is installed");
    checked(config).expect("it is complete");

    let all = with_all_settings(&text);
    let config = agent(&all).expect("it is read with every setting");
    assert!(
        config.tls.is_some()
            && config.workers.uid_range.is_some()
            && config.health.maintenance_file.is_some()
    );
    let tables = [
        "",
        "[tls]",
        "[node]",
        "[node.pod]",
        "[workers]",
        "[images]",
        "[prolog]",
        "[epilog]",
        "[job_prolog]",
        "[job_epilog]",
        "[logs]",
        "[health]",
        "[traces]",
    ];
    assert_complete(&all, &tables, &["slurm", "kubernetes"], |text| agent(text).map(|_| ()));
}

#[test]
fn a_key_that_a_file_does_not_show_is_noticed() {
    let all = with_all_settings(&text_of("etc/server.toml")).replace("http://", "https://");
    let lacking = all.replace("jobs_held_max = 4000000\n", "");
    assert_ne!(all, lacking);
    let looked = std::panic::catch_unwind(|| {
        assert_complete(&lacking, &["[parameters]"], &[], |text| server(text).map(|_| ()));
    });
    assert!(looked.is_err(), "the missing key was not noticed");
    // And one that does not exist is refused by the reader itself.
    let wrong = text_of("etc/server.toml").replace("data_dir", "data_directory");
    assert!(server(&wrong).expect_err("it is no key").contains("unknown field `data_directory`"));
}

#[test]
fn the_configurations_of_the_kubernetes_manifests_are_read() {
    for id in 0..3_u64 {
        let path = format!("kubernetes/base/config/muster-{id}.toml");
        let config = server(&text_of(&path)).unwrap_or_else(|error| panic!("{path}: {error}"));
        assert_eq!((config.replica_id.0, config.members.len()), (id + 1, 3), "{path}");
        assert!(config.tls.is_some(), "{path}");
        let own = &config.members[&config.replica_id];
        assert!(
            own.peer_endpoint.starts_with(&format!("https://muster-{id}.muster-replicas.muster.svc:")),
            "{path}"
        );
        // But for the replica's id the three are one file.
        let first = text_of("kubernetes/base/config/muster-0.toml")
            .replace("pod muster-0", &format!("pod muster-{id}"));
        let same = first.replace("replica_id = 1", &format!("replica_id = {}", id + 1));
        assert_eq!(text_of(&path), same, "{path}");
    }
    let template = text_of("kubernetes/base/config/agent.toml");
    let text = template.replace("@NODE_NAME@", "node-1.example.org").replace("@HOST_IP@", "10.0.0.7");
    let mut config = agent(&text).expect("it is read");
    // Users of tenants need an agent that is root, which a test need not be.
    config.workers.uid_range = None;
    assert_eq!(checked(config).expect("it is complete").name.as_str(), "node-1.example.org");
}

#[test]
fn the_configurations_of_agents_for_kubernetes_are_read_and_complete() {
    let read = |text: &str| {
        let config = agent(text).expect("it is read").kubernetes.expect("it is for Kubernetes");
        assert_eq!(config.rule_broken(), None);
        config
    };
    let packaged = read(&text_of("kubernetes/workers/config/agent.toml"));
    let rights = text_of("kubernetes/workers/rights.yaml");
    assert!(
        rights.contains(&format!("namespace: {}", packaged.namespace)),
        "the rights are for its namespace"
    );
    assert!(packaged.kubeconfig.is_none(), "it has a service account");
    let example = read(&text_of("../examples/kubernetes-agent.toml"));
    assert_eq!(example.name, packaged.name);
}

fn man(dir: &Path) -> std::process::Output {
    let program = env!("CARGO_BIN_EXE_muster");
    std::process::Command::new(program).args(["man", "--dir"]).arg(dir).output().expect("the program runs")
}

#[test]
fn manual_pages_are_those_of_the_commands() {
    let dir = tempfile::tempdir().expect("a directory");
    let pages = dir.path().join("share/man1");
    let ran = man(&pages);
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    let page = |name: &str| std::fs::read_to_string(pages.join(name));
    for name in
        ["muster.1", "muster-server.1", "muster-agent.1", "muster-job-list.1", "muster-cluster-watch.1"]
    {
        let text = page(name).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(text.contains(".SH NAME") && text.contains(".SH OPTIONS"), "{name}:\n{text}");
    }
    assert!(page("muster-server.1").expect("it is there").contains("bootstrap"));
    // Options that every command takes are on its page, and commands for programs have none.
    assert!(page("muster-job-list.1").expect("it is there").contains(r"\-\-endpoint"));
    for hidden in ["muster-shim.1", "muster-man.1", "muster-help.1"] {
        assert!(page(hidden).is_err(), "{hidden}");
    }
    // Where no directory can be.
    let file = dir.path().join("file");
    std::fs::write(&file, "kept").expect("writing");
    let refused = man(&file);
    assert_eq!(refused.status.code(), Some(1));
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(said.contains("writing manual pages to") && said.contains("file"), "{said}");
    assert_eq!(std::fs::read_to_string(&file).expect("it is there"), "kept");
}
