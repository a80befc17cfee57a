//! The dashboards under `ops/dashboards` are made from the table below: `UPDATE_EXPECT=1` writes them. They name series that
//! replicas or agents have; `.ci/monitoring` asks a Prometheus that watches a cluster for each of their expressions.
#![allow(clippy::unwrap_used, reason = "a panic is the report of a test")]

use muster_metrics::{AGENT_FAMILIES, FAMILIES, Kind};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// The version of the format that is written.
const SCHEMA_VERSION: u32 = 39;
const WIDTH: usize = 12;
const HEIGHT: usize = 8;

struct Dashboard {
    file: &'static str,
    title: &'static str,
    panels: &'static [Panel],
}

/// A title, the unit as Grafana names it, and legends with their expressions.
struct Panel(&'static str, &'static str, &'static [(&'static str, &'static str)]);

const DASHBOARDS: &[Dashboard] = &[
    Dashboard {
        file: "fleet",
        title: "Muster: fleet",
        panels: &[
            Panel(
                "Accelerators",
                "short",
                &[
                    (
                        "{{region}} {{type}}",
                        "max by (region, type) (sum by (instance, region, type) (muster_accelerators))",
                    ),
                    (
                        "{{region}} {{type}} free",
                        "max by (region, type) (sum by (instance, region, type) (muster_accelerators_free))",
                    ),
                ],
            ),
            Panel(
                "Accelerators by state",
                "short",
                &[(
                    "{{type}} {{state}}",
                    "max by (type, state) (sum by (instance, type, state) (muster_accelerators_by_state))",
                )],
            ),
            Panel(
                "Share in use",
                "percentunit",
                &[(
                    "{{type}}",
                    "max by (type) (muster_accelerators_used) / max by (type) (sum by (instance, type) (muster_accelerators))",
                )],
            ),
            Panel(
                "Free accelerators that are no whole ones",
                "short",
                &[(
                    "{{region}} {{cluster}} {{type}}",
                    "max by (region, cluster, type) (muster_accelerators_free - muster_accelerators_idle)",
                )],
            ),
            Panel(
                "Free accelerators by why no job has them",
                "short",
                &[(
                    "{{type}} {{cause}}",
                    "max by (type, cause) (sum by (instance, type, cause) (muster_accelerators_stranded))",
                )],
            ),
            Panel(
                "Share of the free accelerators that the best rack has",
                "percentunit",
                &[(
                    "{{region}} {{cluster}} {{type}}",
                    "max by (region, cluster, type) (muster_accelerators_idle_rack) / max by (region, cluster, type) (muster_accelerators_idle)",
                )],
            ),
            Panel("Nodes", "short", &[("{{state}}", "max by (state) (muster_nodes)")]),
            Panel(
                "Nodes kept from work",
                "short",
                &[
                    ("restricted or draining", "max(muster_nodes_restricted)"),
                    ("awaiting admission", "max(muster_nodes_awaiting_admission)"),
                ],
            ),
            Panel(
                "Nodes lost per hour",
                "short",
                &[("{{cause}}", "max by (cause) (increase(muster_nodes_lost_total[1h]))")],
            ),
        ],
    },
    Dashboard {
        file: "cost",
        title: "Muster: cost",
        panels: &[
            Panel(
                "Price of an accelerator for an hour",
                "currencyUSD",
                &[("{{region}} {{type}}", "max by (region, type) (muster_accelerator_price_dollars)")],
            ),
            Panel(
                "Cost of the fleet for an hour, by region and type",
                "currencyUSD",
                &[(
                    "{{region}} {{type}}",
                    "max by (region, type) (sum by (instance, region, type) (muster_accelerators * muster_accelerator_price_dollars))",
                )],
            ),
            Panel(
                "Cost of what is free for an hour, by region and type",
                "currencyUSD",
                &[(
                    "{{region}} {{type}}",
                    "max by (region, type) (sum by (instance, region, type) (muster_accelerators_free * muster_accelerator_price_dollars))",
                )],
            ),
            Panel(
                "Cost of what a tenant holds for an hour, by the mean price of the type",
                "currencyUSD",
                &[(
                    "{{tenant}}",
                    "topk(10, max by (tenant) (sum by (instance, tenant) (muster_tenant_accelerators * on (instance, type) group_left () avg by (instance, type) (muster_accelerator_price_dollars))))",
                )],
            ),
        ],
    },
    Dashboard {
        file: "queues",
        title: "Muster: queues and fairness",
        panels: &[
            Panel("Jobs", "short", &[("{{state}}", "max by (state) (muster_jobs{state!=\"finished\"})")]),
            Panel(
                "Pending jobs by what holds them back",
                "short",
                &[("{{reason}}", "max by (reason) (muster_jobs_pending)")],
            ),
            Panel(
                "Pending jobs by tenant",
                "short",
                &[("{{tenant}}", "topk(10, max by (tenant) (muster_tenant_jobs{state=\"pending\"}))")],
            ),
            Panel(
                "Accelerators that pending jobs ask for",
                "short",
                &[("{{tenant}}", "topk(10, max by (tenant) (muster_tenant_pending_accelerators))")],
            ),
            Panel(
                "Accelerators that jobs wait for and nothing else holds back",
                "short",
                &[(
                    "{{tenant}} {{type}}",
                    "topk(10, max by (tenant, type) (muster_tenant_eligible_accelerators))",
                )],
            ),
            Panel(
                "Submissions per second",
                "short",
                &[("{{tier}}", "max by (tier) (rate(muster_jobs_submitted_total[5m]))")],
            ),
            Panel(
                "Gangs stopped before their end, per hour",
                "short",
                &[("{{cause}}", "max by (cause) (increase(muster_gangs_stopped_total[1h]))")],
            ),
            Panel(
                "From the order to stop a gang until it has ended, p90",
                "s",
                &[(
                    "{{cause}}",
                    "histogram_quantile(0.9, max by (cause, le) (increase(muster_gang_stop_duration_seconds_bucket[1h])))",
                )],
            ),
            Panel(
                "What fair share goes by: those with most",
                "percentunit",
                &[("{{tenant}}", "topk(10, max by (tenant) (muster_tenant_share))")],
            ),
            Panel(
                "Quota",
                "short",
                &[
                    (
                        "{{tenant}} {{type}} {{region}} used",
                        "max by (tenant, type, region) (muster_quota_used_accelerators)",
                    ),
                    (
                        "{{tenant}} {{type}} {{region}} guaranteed",
                        "max by (tenant, type, region) (muster_quota_nominal_accelerators)",
                    ),
                ],
            ),
        ],
    },
    Dashboard {
        file: "starts",
        title: "Muster: how long jobs wait and start",
        panels: &[
            Panel(
                "Wait for capacity, p50 and p90",
                "s",
                &[
                    (
                        "{{tier}} p50",
                        "histogram_quantile(0.5, max by (tier, le) (increase(muster_job_queue_duration_seconds_bucket[1h])))",
                    ),
                    (
                        "{{tier}} p90",
                        "histogram_quantile(0.9, max by (tier, le) (increase(muster_job_queue_duration_seconds_bucket[1h])))",
                    ),
                ],
            ),
            Panel(
                "From placement to the last worker, p50 and p99",
                "s",
                &[
                    (
                        "{{tier}} p50",
                        "histogram_quantile(0.5, max by (tier, le) (increase(muster_job_start_duration_seconds_bucket[1h])))",
                    ),
                    (
                        "{{tier}} p99",
                        "histogram_quantile(0.99, max by (tier, le) (increase(muster_job_start_duration_seconds_bucket[1h])))",
                    ),
                ],
            ),
            Panel(
                "Placements per minute",
                "short",
                &[("{{tier}}", "60 * max by (tier) (rate(muster_job_queue_duration_seconds_count[5m]))")],
            ),
            Panel(
                "Jobs that ended, per hour",
                "short",
                &[("{{outcome}}", "max by (outcome) (increase(muster_jobs_finished_total[1h]))")],
            ),
            Panel(
                "Failed attempts per hour",
                "short",
                &[("{{class}}", "max by (class) (increase(muster_attempts_failed_total[1h]))")],
            ),
        ],
    },
    Dashboard {
        file: "replicas",
        title: "Muster: replicas",
        panels: &[
            Panel("Leader", "short", &[("{{instance}}", "muster_raft_is_leader")]),
            Panel("Term", "short", &[("{{instance}}", "muster_raft_term")]),
            Panel(
                "Entries committed and not applied",
                "short",
                &[("{{instance}}", "muster_raft_committed_index - muster_raft_applied_index")],
            ),
            Panel(
                "Entries behind the leader",
                "short",
                &[("replica {{replica}}", "max by (replica) (muster_raft_peer_lag_entries)")],
            ),
            Panel(
                "Records per second",
                "short",
                &[("{{decision}}", "topk(8, max by (decision) (rate(muster_log_records_total[5m])))")],
            ),
            Panel(
                "Flush to disk, p50 and p99",
                "s",
                &[
                    (
                        "{{instance}} p50",
                        "histogram_quantile(0.5, sum by (instance, le) (rate(muster_storage_flush_duration_seconds_bucket[5m])))",
                    ),
                    (
                        "{{instance}} p99",
                        "histogram_quantile(0.99, sum by (instance, le) (rate(muster_storage_flush_duration_seconds_bucket[5m])))",
                    ),
                ],
            ),
            Panel(
                "From a proposal until it is applied, p50 and p99",
                "s",
                &[
                    (
                        "p50",
                        "histogram_quantile(0.5, sum by (le) (rate(muster_raft_proposal_duration_seconds_bucket[5m])))",
                    ),
                    (
                        "p99",
                        "histogram_quantile(0.99, sum by (le) (rate(muster_raft_proposal_duration_seconds_bucket[5m])))",
                    ),
                ],
            ),
            Panel(
                "Decision of a round, p99",
                "s",
                &[(
                    "p99",
                    "histogram_quantile(0.99, sum by (le) (rate(muster_rounds_duration_seconds_bucket[5m])))",
                )],
            ),
            Panel(
                "Commands that wait for the decision loop",
                "short",
                &[("{{instance}} {{lane}}", "muster_inbox_commands")],
            ),
            Panel("Free disk", "bytes", &[("{{instance}}", "muster_storage_free_bytes")]),
            Panel("Log on disk", "bytes", &[("{{instance}}", "muster_raft_log_bytes")]),
            Panel(
                "Bytes of entries that reach the log per second",
                "Bps",
                &[("{{instance}}", "rate(muster_raft_log_appended_bytes_total[5m])")],
            ),
            Panel(
                "Entries since the last snapshot",
                "short",
                &[("{{instance}}", "muster_raft_applied_index - muster_raft_snapshot_index")],
            ),
            Panel(
                "Archive",
                "short",
                &[
                    ("{{instance}} failing", "muster_archive_failing"),
                    ("{{instance}} not moved away", "muster_archive_offload_failing"),
                    ("{{instance}} damaged objects", "muster_archive_damaged_objects"),
                ],
            ),
            Panel(
                "Broken invariants while deciding",
                "short",
                &[("{{instance}}", "muster_decision_faults_total")],
            ),
            Panel(
                "Memory",
                "bytes",
                &[("{{instance}}", "process_resident_memory_bytes and on (instance) muster_raft_term")],
            ),
            Panel(
                "Processors in use",
                "short",
                &[("{{instance}}", "rate(process_cpu_seconds_total[5m]) and on (instance) muster_raft_term")],
            ),
        ],
    },
    Dashboard {
        file: "agents",
        title: "Muster: agents",
        panels: &[
            Panel(
                "Nodes without a session",
                "short",
                &[("{{instance}}", "topk(10, muster_agent_nodes - muster_agent_sessions_connected)")],
            ),
            Panel(
                "Attempts to open a session, per minute",
                "short",
                &[("{{outcome}}", "60 * sum by (outcome) (rate(muster_agent_sessions_opened_total[5m]))")],
            ),
            Panel(
                "Shortest leases",
                "s",
                &[("{{instance}}", "bottomk(10, muster_agent_lease_left_seconds)")],
            ),
            Panel("Workers", "short", &[("{{state}}", "sum by (state) (muster_agent_workers)")]),
            Panel(
                "Starts per minute",
                "short",
                &[("{{outcome}}", "60 * sum by (outcome) (rate(muster_agent_worker_starts_total[5m]))")],
            ),
            Panel(
                "From the order until the program runs, p50 and p99",
                "s",
                &[
                    (
                        "p50",
                        "histogram_quantile(0.5, sum by (le) (rate(muster_agent_launch_duration_seconds_bucket[5m])))",
                    ),
                    (
                        "p99",
                        "histogram_quantile(0.99, sum by (le) (rate(muster_agent_launch_duration_seconds_bucket[5m])))",
                    ),
                ],
            ),
            Panel(
                "Stages of starts from images, p90",
                "s",
                &[(
                    "{{stage}}",
                    "histogram_quantile(0.9, sum by (le, stage) (rate(muster_agent_start_stage_duration_seconds_bucket[5m])))",
                )],
            ),
            Panel(
                "Ends of workers per hour",
                "short",
                &[("{{cause}}", "sum by (cause) (increase(muster_agent_worker_ends_total[1h]))")],
            ),
            Panel(
                "Accelerators that are not healthy",
                "short",
                &[(
                    "{{type}} {{health}}",
                    "sum by (type, health) (muster_agent_accelerators{health!=\"healthy\"})",
                )],
            ),
            Panel(
                "Output of workers per second",
                "bytes",
                &[("{{fate}}", "sum by (fate) (rate(muster_agent_output_bytes_total[5m]))")],
            ),
            Panel(
                "Least space for the state directory",
                "bytes",
                &[("{{instance}}", "bottomk(10, muster_agent_state_free_bytes)")],
            ),
            Panel(
                "Uploads and refused notes",
                "short",
                &[
                    ("uploads", "sum(muster_agent_uploads_pending)"),
                    (
                        "notes refused per hour",
                        "sum(increase(muster_agent_checkpoint_notes_refused_total[1h]))",
                    ),
                ],
            ),
            Panel(
                "Most memory",
                "bytes",
                &[(
                    "{{instance}}",
                    "topk(10, process_resident_memory_bytes and on (instance) muster_agent_nodes)",
                )],
            ),
        ],
    },
    Dashboard {
        file: "calls",
        title: "Muster: calls and failover",
        panels: &[
            Panel(
                "Calls per second",
                "short",
                &[("{{method}}", "topk(8, sum by (method) (rate(muster_grpc_calls_total[5m])))")],
            ),
            Panel(
                "Calls that failed, per second",
                "short",
                &[(
                    "{{code}}",
                    "sum by (code) (rate(muster_grpc_calls_total{code!~\"OK|CANCELLED\"}[5m])) or vector(0)",
                )],
            ),
            Panel(
                "Duration of submissions, p50 and p99",
                "s",
                &[
                    (
                        "p50",
                        "histogram_quantile(0.5, sum by (le) (rate(muster_grpc_call_duration_seconds_bucket{method=~\".*/(SubmitJobs?|SubmitStream/submission)\"}[5m])))",
                    ),
                    (
                        "p99",
                        "histogram_quantile(0.99, sum by (le) (rate(muster_grpc_call_duration_seconds_bucket{method=~\".*/(SubmitJobs?|SubmitStream/submission)\"}[5m])))",
                    ),
                ],
            ),
            Panel(
                "Refusals per second",
                "short",
                &[("{{reason}}", "sum by (reason) (rate(muster_refusals_total[5m])) or vector(0)")],
            ),
            Panel("Open calls and streams", "short", &[("{{instance}}", "muster_grpc_calls_open")]),
            Panel(
                "Leaderships within ten minutes",
                "short",
                &[("{{instance}}", "muster_raft_leaderships_recent")],
            ),
            Panel("Silence of the leader", "s", &[("{{instance}}", "muster_raft_leader_silent_seconds")]),
        ],
    },
    Dashboard {
        file: "notifications",
        title: "Muster: notifications",
        panels: &[
            Panel(
                "Records that the last receiver lacks",
                "short",
                &[("records", "max(muster_notification_lag_records)")],
            ),
            Panel(
                "Events per minute",
                "short",
                &[("{{result}}", "60 * max by (result) (rate(muster_notifications_total[5m]))")],
            ),
        ],
    },
];

fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../ops/dashboards")
}

fn panel(at: usize, Panel(title, unit, queries): &Panel) -> Value {
    let targets: Vec<Value> = (b'A'..)
        .zip(*queries)
        .map(|(letter, (legend, expression))| {
            json!({ "refId": char::from(letter).to_string(), "legendFormat": legend, "expr": expression })
        })
        .collect();
    json!({
        "id": at + 1,
        "type": "timeseries",
        "title": title,
        "datasource": { "type": "prometheus", "uid": "${datasource}" },
        "gridPos": { "x": at % 2 * WIDTH, "y": at / 2 * HEIGHT, "w": WIDTH, "h": HEIGHT },
        "fieldConfig": { "defaults": { "unit": unit, "min": 0 }, "overrides": [] },
        "targets": targets,
    })
}

fn rendered(dashboard: &Dashboard) -> String {
    let panels: Vec<Value> = dashboard.panels.iter().enumerate().map(|(at, one)| panel(at, one)).collect();
    let document = json!({
        "uid": format!("muster-{}", dashboard.file),
        "title": dashboard.title,
        "tags": ["muster"],
        "schemaVersion": SCHEMA_VERSION,
        "time": { "from": "now-6h", "to": "now" },
        "refresh": "30s",
        "templating": { "list": [{ "name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus" }] },
        "panels": panels,
    });
    format!("{}\n", serde_json::to_string_pretty(&document).unwrap())
}

#[test]
fn the_files_are_what_the_table_gives() {
    let mut wanted = BTreeSet::new();
    for dashboard in DASHBOARDS {
        let path = directory().join(format!("{}.json", dashboard.file));
        let text = rendered(dashboard);
        if std::env::var_os("UPDATE_EXPECT").is_some() {
            fs::write(&path, &text).unwrap();
        }
        assert_eq!(fs::read_to_string(&path).unwrap(), text, "{}", path.display());
        wanted.insert(path.file_name().unwrap().to_owned());
    }
    let there: BTreeSet<_> =
        fs::read_dir(directory()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    let there: BTreeSet<_> =
        there.into_iter().filter(|name| name.to_str().unwrap().ends_with(".json")).collect();
    assert_eq!(there, wanted, "no other dashboards are there");
}

#[test]
fn every_series_of_a_dashboard_is_one_that_a_replica_or_an_agent_exposes() {
    let suffixes = |kind| match kind {
        Kind::Gauge => &[""][..],
        Kind::Counter => &["_total"],
        Kind::Histogram => &["_bucket", "_count", "_sum"],
        Kind::Info => &["_info"],
    };
    let exposed: BTreeSet<String> = FAMILIES
        .iter()
        .chain(AGENT_FAMILIES)
        .flat_map(|family| suffixes(family.kind).iter().map(move |suffix| format!("{}{suffix}", family.name)))
        .collect();
    let mut named = BTreeSet::new();
    for (_, expression) in DASHBOARDS.iter().flat_map(|dashboard| dashboard.panels).flat_map(|panel| panel.2)
    {
        let words = expression.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_');
        let series: Vec<&str> =
            words.filter(|word| word.starts_with("muster_") || word.starts_with("process_")).collect();
        assert!(!series.is_empty(), "{expression}");
        named.extend(series);
    }
    for series in &named {
        assert!(exposed.contains(*series), "nothing exposes {series}");
    }
    assert!(named.len() > 30, "{named:?}");
}
