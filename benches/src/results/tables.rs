//! What the page of results shows of each scenario.

/// The part of the page that one scenario fills.
#[derive(Clone, Copy, Debug)]
pub(super) struct Table {
    pub(super) scenario: &'static str,
    pub(super) title: &'static str,
    pub(super) rows: &'static [Row],
    /// What a reader has to know to read the figures right.
    pub(super) note: &'static str,
}

/// A row; `figure` is a template over the result (`super::filled`).
#[derive(Clone, Copy, Debug)]
pub(super) struct Row {
    pub(super) what: &'static str,
    pub(super) figure: &'static str,
    pub(super) aim: &'static str,
}

const fn row(what: &'static str, figure: &'static str, aim: &'static str) -> Row {
    Row { what, figure, aim }
}

/// A trace of devices and shares, filled until nothing more fits.
const fn pack(scenario: &'static str, title: &'static str, published: &'static str) -> Table {
    Table {
        scenario,
        title,
        rows: &[Row {
            what: "accelerators allocated when 130 % have arrived",
            figure: "{/runs/0/allocated_percent_at_130} %",
            aim: "more than the published methods",
        }],
        note: published,
    }
}

const QUICKSTART: &[Row] = &[
    row(
        "acknowledged jobs that finished, lost, ran twice",
        "{/runs/*/finished} of {/runs/*/acknowledged}, {/runs/*/lost}, {/runs/*/overlaps}",
        "all, 0, 0",
    ),
    row("resumed losses equal, digests equal", "{/runs/0/losses_agree}, {/runs/0/digests_agree}", "yes, yes"),
    row(
        "preemption: the urgent job is placed, the preempted one runs again",
        "{/runs/*/preemption/placed_ms} ms, {/runs/*/preemption/resumed_ms} ms",
        "",
    ),
    row("leader killed to next acknowledged submission", "{/runs/*/leader_kill/submit_ms} ms", "1,300 ms"),
    row("region lost to next acknowledged submission", "{/runs/*/region_loss/submit_ms} ms", ""),
    row(
        "region lost until its last gang runs again, leases of 2 s and a margin of 1 s",
        "{/runs/*/region_loss/resumed_ms} ms",
        "",
    ),
];

const SUBMIT_ETCD: &[Row] = &[
    row(
        "durable single submissions, 256 clients over streams",
        "{/muster/closed_over_streams/2/things_per_s}/s, p50 {/muster/closed_over_streams/2/latency/p50_ms} ms; etcd's puts {/etcd/closed/2/things_per_s}/s: {/muster_over_etcd/closed_over_streams/2/times_as_many_per_s} times",
        "2 times",
    ),
    row(
        "the same, a call each",
        "{/muster/closed/2/things_per_s}/s: {/muster_over_etcd/closed/2/times_as_many_per_s} times",
        "2 times",
    ),
    row(
        "16 clients over streams, as calls",
        "{/muster/closed_over_streams/1/things_per_s}/s, {/muster/closed/1/things_per_s}/s; etcd {/etcd/closed/1/things_per_s}/s: {/muster_over_etcd/closed_over_streams/1/times_as_many_per_s}, {/muster_over_etcd/closed/1/times_as_many_per_s} times",
        "",
    ),
    row(
        "1 client over a stream, as calls",
        "{/muster/closed_over_streams/0/things_per_s}/s, {/muster/closed/0/things_per_s}/s; etcd {/etcd/closed/0/things_per_s}/s: {/muster_over_etcd/closed_over_streams/0/times_as_many_per_s}, {/muster_over_etcd/closed/0/times_as_many_per_s} times",
        "",
    ),
    row(
        "batches of 100, 16 clients",
        "{/muster/batches/things_per_s} jobs/s; etcd {/etcd/batches/things_per_s} keys/s: {/muster_over_etcd/batches} times",
        "100,000 jobs/s",
    ),
    row(
        "open loop at half of the peak of each",
        "p50 {/muster/open_at_half_of_peak/latency/p50_ms} ms, p99 {/muster/open_at_half_of_peak/latency/p99_ms} ms at {/muster/open_at_half_of_peak/things_per_s}/s; etcd p50 {/etcd/open_at_half_of_peak/latency/p50_ms} ms, p99 {/etcd/open_at_half_of_peak/latency/p99_ms} ms at {/etcd/open_at_half_of_peak/things_per_s}/s",
        "p99 25 ms",
    ),
    row(
        "processor time of a submission over a stream: leader, follower",
        "{/muster/closed_over_streams/2/processor_us_per_operation/leader} us, {/muster/closed_over_streams/2/processor_us_per_operation/follower 2} us",
        "",
    ),
];

const SUBMIT_SLURM: &[Row] = &[
    row(
        "1 client: Slurm, Muster over a stream",
        "{/slurm/0/per_s}/s, {/muster/closed_over_streams/0/things_per_s}/s",
        "",
    ),
    row(
        "8 clients: Slurm, Muster over streams",
        "{/slurm/1/per_s}/s, {/muster/closed_over_streams/1/things_per_s}/s",
        "",
    ),
];

const READ_ETCD: &[Row] = &[
    row(
        "on a follower, any age against serializable, 64 clients",
        "{/muster/1/things_per_s}/s; etcd {/etcd/1/things_per_s}/s: {/muster_over_etcd/1/times_as_many_per_s} times",
        "2 times",
    ),
    row(
        "on a follower, linearizable, 64 clients",
        "{/muster/5/things_per_s}/s; etcd {/etcd/5/things_per_s}/s: {/muster_over_etcd/5/times_as_many_per_s} times",
        "1.5 times",
    ),
    row(
        "on a follower, linearizable, 1 client",
        "{/muster/4/things_per_s}/s; etcd {/etcd/4/things_per_s}/s: {/muster_over_etcd/4/times_as_many_per_s} times",
        "",
    ),
    row(
        "on the leader, linearizable, 64 clients",
        "{/muster/9/things_per_s}/s; etcd {/etcd/9/things_per_s}/s: {/muster_over_etcd/9/times_as_many_per_s} times",
        "",
    ),
];

const LAUNCH: &[Row] = &[
    row(
        "submission to the first instruction of one worker",
        "median {/one_worker/first_instruction/p50_ms} ms, p99 {/one_worker/first_instruction/p99_ms} ms (acknowledged after {/one_worker/acknowledged/p50_ms} ms)",
        "10 ms; 40 ms",
    ),
    row(
        "64 workers over 16 agents, first instruction of the last one",
        "median {/gang/last_first_instruction/p50_ms} ms, worst {/gang/last_first_instruction/max_ms} ms of {/gang/last_first_instruction/count}",
        "300 ms",
    ),
    row(
        "the same, one gang right behind another; behind the check of the network",
        "median {/gang/one_behind_another/p50_ms} ms, worst {/gang/one_behind_another/max_ms} ms; median {/gang/behind_network_check/p50_ms} ms, worst {/gang/behind_network_check/max_ms} ms",
        "",
    ),
    row(
        "host dies until its gang runs elsewhere, lease and margin of {/host_death/lease_ms} ms",
        "{/host_death/gang_elsewhere_ms/*} ms",
        "lease + 3 s",
    ),
    row(
        "memory of an agent",
        "{/memory/resident_mib_max} MiB, {/memory/own_mib_max} MiB of it not the text of its program",
        "20 MiB",
    ),
];

const QUEUE: &[Row] = &[
    row("average wait", "{/runs/0/queue_avg_s} s", "180 s"),
    row("p99 wait", "{/runs/0/queue_p99_s} s", ""),
    row("longest wait", "{/runs/0/queue_max_s} s", ""),
];

/// Where every job stays in its home cluster. The aim was given up for the bound on every gang's wait.
const QUEUE_HOME: &[Row] = &[
    row("average wait", "{/runs/0/queue_avg_s} s", "14,000 s"),
    row("p99 wait", "{/runs/0/queue_p99_s} s", ""),
    row("longest wait", "{/runs/0/queue_max_s} s", ""),
];

const QUEUE_HOME_NOTE: &str = "The aim is missed: on a cluster that is full for days gangs are served nearly in the order of submission, so that none of \
    them waits longer than it is promised. ops/decisions/2026-11-23-reservations-keep-their-nodes.md says what would change that.";

const QUEUE_NOTE: &str = "41,446 jobs of ten clusters in 30 days on 1,600 devices, as one fleet. The trace's authors give 535 s on average \
    and 9,055 s at p99 for first come first served on one fleet, and 37,954 s and 485,392 s where every job stays in its home cluster.";

/// In the order of the page.
pub(super) const TABLES: &[Table] = &[
    Table { scenario: "quickstart", title: "Quickstart", rows: QUICKSTART, note: "" },
    Table {
        scenario: "failover",
        title: "Loss of the leader under load",
        rows: &[row(
            "leader killed to the next acknowledged submission, open loop of {/submissions_per_s}/s",
            "{/gaps_ms/*} ms; {/submissions} submissions, {/failed} failed",
            "1,300 ms",
        )],
        note: "",
    },
    Table {
        scenario: "failover-held",
        title: "Loss of the leader with a million jobs held",
        rows: &[row(
            "leader killed to the next acknowledged submission, {/jobs_held} jobs held",
            "{/gaps_ms/*} ms; {/submissions} submissions, {/failed} failed",
            "1,300 ms",
        )],
        note: "",
    },
    Table {
        scenario: "submit-etcd",
        title: "Submissions next to etcd 3.4",
        rows: SUBMIT_ETCD,
        note: "Three members of each, real gRPC and real flushes, one after the other on the same processors. Streams are compared with single puts, for etcd has no streams of puts.",
    },
    Table {
        scenario: "submit-slurm",
        title: "Submissions next to Slurm",
        rows: SUBMIT_SLURM,
        note: "Slurm acknowledges before it has written anything.",
    },
    Table { scenario: "read-etcd", title: "Reads next to etcd 3.4", rows: READ_ETCD, note: "" },
    Table {
        scenario: "watch",
        title: "Watches",
        rows: &[row(
            "{/watchers} watchers on a follower: acknowledged to seen",
            "p50 {/acknowledged_to_seen/p50_ms} ms, p99 {/acknowledged_to_seen/p99_ms} ms, {/events_per_s} events/s",
            "",
        )],
        note: "",
    },
    Table {
        scenario: "restart",
        title: "Restart, memory and snapshots",
        rows: &[
            row(
                "a replica with {/jobs} jobs, SIGKILL until it has caught up",
                "{/restarts/*/caught_up_s} s",
                "6 s",
            ),
            row(
                "resident memory for a waiting job: leader, follower",
                "{/resident_bytes_per_job/leader} bytes, {/resident_bytes_per_job/follower 2} bytes",
                "1,536 bytes",
            ),
            row(
                "longest submission while a snapshot is made",
                "{/snapshot/longest_submission_ms_while_made} ms",
                "",
            ),
        ],
        note: "",
    },
    Table {
        scenario: "disk",
        title: "Bytes on disk",
        rows: &[
            row(
                "log for a job, one at a time",
                "{/rows/0/log_bytes_per_job} bytes, {/rows/0/times} times its encoded records",
                "3 times",
            ),
            row(
                "log for a job, batches of 100",
                "{/rows/1/log_bytes_per_job} bytes, {/rows/1/times} times its encoded records",
                "3 times",
            ),
        ],
        note: "",
    },
    Table { scenario: "launch", title: "Launch", rows: LAUNCH, note: "" },
    Table {
        scenario: "agents",
        title: "Ten thousand agents",
        rows: &[row(
            "{/agents} agents, a heartbeat each {/interval_ms} ms: processor of the leader, acknowledgement",
            "{/cores/leader} of a core, p99 {/acknowledgement/p99_ms} ms",
            "1 core",
        )],
        note: "",
    },
    Table {
        scenario: "controls",
        title: "Arrays, and what people ask of jobs",
        rows: &[],
        note: "Real processes and real flushes, but for the state and the rounds of an array that waits: those are of one thread. The answer to an array has the id of every member. Selectors go over single jobs, each with its own row and with labels that no other has.",
    },
    Table {
        scenario: "pages",
        title: "Web pages, scrapes and streams of events",
        rows: &[],
        note: "One replica over loopback, each request on a new connection. To the first byte and to the whole page.",
    },
    Table {
        scenario: "place",
        title: "The scheduler by itself",
        rows: &[],
        note: "Processor time of one thread through decider, guard and fold. Figures of Kueue and KAI are those that they publish; theirs include the Kubernetes API server and its store.",
    },
    Table { scenario: "replay", title: "Replay, snapshot and restore", rows: &[], note: "" },
    Table { scenario: "queue-learned", title: "Queueing, run times learned", rows: QUEUE, note: QUEUE_NOTE },
    Table { scenario: "queue-known", title: "Queueing, run times known", rows: QUEUE, note: "" },
    Table {
        scenario: "queue-home",
        title: "Queueing, each job in its home cluster, run times learned",
        rows: QUEUE_HOME,
        note: QUEUE_HOME_NOTE,
    },
    Table {
        scenario: "starvation",
        title: "Waits of large gangs over generated worlds",
        rows: &[],
        note: "",
    },
    Table { scenario: "making-room", title: "What preemption costs the scheduler", rows: &[], note: "" },
    Table { scenario: "passes", title: "Passes over many different requests", rows: &[], note: "" },
    Table {
        scenario: "year",
        title: "A year, scaled down",
        rows: &[],
        note: "One year of a cluster with a million jobs a day, with jobs and nodes fewer by the same factor: what a leader keeps does not grow.",
    },
    Table { scenario: "memory", title: "Memory of a finished job", rows: &[], note: "" },
    Table {
        scenario: "whatif",
        title: "A month replayed under a change",
        rows: &[],
        note: "Both replays, without the change and with it, of the month that the queueing figures are of.",
    },
    Table {
        scenario: "token",
        title: "The check of a token",
        rows: &[],
        note: "To be at most 5,000 ns on the way of a submission. A token of an issuer is verified once and then remembered.",
    },
    Table {
        scenario: "browser",
        title: "Web pages in a browser",
        rows: &[],
        note: "Chromium on this machine, without a graphics processor, next to a cluster of programs without optimisation.",
    },
    Table {
        scenario: "monitoring",
        title: "Alerts that arrive and end",
        rows: &[],
        note: "With Prometheus and Alertmanager. MusterNoLeader has the times of its rule; those of the others are shortened.",
    },
    Table {
        scenario: "images",
        title: "Starts in images",
        rows: &[],
        note: "To be at most 150 ms with podman. Programs without optimisation.",
    },
    Table {
        scenario: "kubernetes",
        title: "Pods of Kubernetes",
        rows: &[],
        note: "64 pods are to be bound within 3 s of the decision. Programs without optimisation, next to the control plane.",
    },
    Table {
        scenario: "kubernetes-nodes",
        title: "An agent of 5,000 nodes of Kubernetes",
        rows: &[],
        note: "To be at most 40 MiB with 10,000 pods.",
    },
    pack(
        "pack-default",
        "Packing, trace default",
        "95.39 % (fragmentation gradient descent), 93.08 % (best fit), as published",
    ),
    pack(
        "pack-cpu100",
        "Packing, trace cpu100",
        "95.35 % (fragmentation gradient descent), 93.44 % (best fit), as published",
    ),
    pack(
        "pack-gpushare40",
        "Packing, trace gpushare40",
        "94.15 % (fragmentation gradient descent), 91.69 % (best fit), as published",
    ),
    pack(
        "pack-multigpu20",
        "Packing, trace multigpu20",
        "95.65 % (fragmentation gradient descent), 93.93 % (best fit), as published",
    ),
    pack(
        "pack-gpuspec10",
        "Packing, trace gpuspec10",
        "94.95 % (fragmentation gradient descent), 93.31 % (best fit), as published",
    ),
];
