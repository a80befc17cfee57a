//! Every bound on what users, nodes and the network can hand us, in one place.
//!
//! A bound is part of the record format: a replica refuses a record that breaks one, so none may be
//! lowered without a new format.

/// Bytes of a name (tenant, region, cluster, accelerator type, job, label key).
pub const NAME_BYTES_MAX: usize = 63;
/// Jobs in one batch submission; below `JobId::PER_RECORD`, which derives their ids.
pub const BATCH_JOBS_MAX: usize = 1_000;
/// Members of one array, and jobs of one submission with the members of its arrays.
pub const ARRAY_MEMBERS_MAX: u32 = 100_000;
/// Ranges in the list of an array's indices.
pub const ARRAY_RANGES_MAX: usize = 256;
/// Bytes of the text that lists an array's indices.
pub const ARRAY_TEXT_BYTES_MAX: usize = 8 << 10;
/// The highest index of an array's member.
pub const ARRAY_INDEX_MAX: u32 = 4_000_000;
/// Members of an array that a leader lets be in the pending queue at a time: what a pass looks at of an array.
pub const ARRAY_WINDOW: u32 = 256;
/// Members of an array that may wait as jobs at a time, unless somebody holds them: those of the window, and those that are in
/// back-off, wait for members of other arrays, or have capacity promised.
pub const ARRAY_CREATED_MAX: u32 = 1_024;
/// Those who are kept of all who cancelled members of an array that were not created: the first of them, and the last.
pub const ARRAY_CANCELLERS_MAX: usize = 8;
/// Members of an array whose ends are in one row.
pub const ARRAY_ENDS_PER_ROW: u32 = 1_024;
/// Members of all arrays that are not created: sums over them, such as that of the devices that they ask for, stay far below 2^64.
pub const UNCREATED_MEMBERS_MAX: u64 = 1_000_000_000;
/// Arrays of which one record asks something. Each may end members in a hundred rows.
pub const CONTROLLED_ARRAYS_MAX: usize = 100;
/// The shortest time in which the workers of a gang may have to be ready, in milliseconds.
pub const READINESS_MS_MIN: u64 = 1_000;
/// The longest such time: a week.
pub const READINESS_MS_MAX: u64 = 7 * 86_400_000;
/// The nice value of a job, upwards and downwards.
pub const NICE_MAX: u8 = 100;
/// Workers of one gang, over all its task groups.
pub const GANG_WORKERS_MAX: u32 = 16_384;
/// Task groups of one job.
pub const TASK_GROUPS_MAX: usize = 16;
/// Steps from the fewest workers of an elastic gang of several groups to all of them.
pub const ELASTIC_STEPS_MAX: u32 = 63;
/// Segments within segments that a job keeps together: one for each level.
pub const SEGMENTS_MAX: usize = 3;
/// Words of one command line.
pub const COMMAND_WORDS_MAX: usize = 256;
/// Bytes of one command word, environment value or path.
pub const TEXT_BYTES_MAX: usize = 4_096;
/// Bytes of a reference to an image.
pub const IMAGE_BYTES_MAX: usize = 512;
/// Images that a node says to hold: those that were asked for last.
pub const IMAGES_HELD_MAX: usize = 128;
/// Images that a node is asked to fetch ahead at a time.
pub const IMAGES_AHEAD_MAX: usize = 8;
/// Bytes of a /dev/shm that a worker with an image has for itself, at least: 1 MiB.
pub const SHARED_MEMORY_BYTES_MIN: u64 = 1 << 20;
/// What the workers of one task group see of their hosts in addition to their image.
pub const CONTAINER_MOUNTS_MAX: usize = 32;
/// Environment variables of one task group.
pub const ENVIRONMENT_MAX: usize = 128;
/// Bytes of all commands and environments of one job together: keeps a record far below an entry.
pub const JOB_TEXT_BYTES_MAX: usize = 32 * 1_024;
/// Regions one job may name.
pub const JOB_REGIONS_MAX: usize = 64;
/// Accelerators of one host: a [`DeviceSet`](crate::fleet::DeviceSet) is one machine word.
pub const HOST_DEVICES_MAX: u16 = 64;
/// Milli-CPUs of one host or worker.
pub const CPU_MILLI_MAX: u64 = 4_096_000;
/// Bytes of memory of one host or worker: 64 TiB.
pub const MEMORY_BYTES_MAX: u64 = 64 << 40;
/// Bytes of scratch of a host, and of one worker.
pub const SCRATCH_BYTES_MAX: u64 = 1 << 50;
/// Labels that an agent says of its node.
pub const NODE_LABELS_MAX: usize = 64;
/// Labels that operators have set on one node, apart from those of its agent.
pub const NODE_OVERRIDE_LABELS_MAX: usize = 64;
/// Bytes of a label's value.
pub const LABEL_BYTES_MAX: usize = 256;
/// Labels of one job.
pub const LABELS_MAX: usize = 32;
/// Bytes of the key of a job's label or annotation, with its prefix.
pub const LABEL_KEY_BYTES_MAX: usize = 63;
/// Bytes of the value of a job's label.
pub const LABEL_VALUE_BYTES_MAX: usize = 63;
/// Bytes of all annotations of one job, keys and values.
pub const ANNOTATIONS_BYTES_MAX: usize = 8 << 10;
/// Bytes of a command that is run next to a worker, with the variables that it brings.
pub const EXEC_BYTES_MAX: usize = 64 << 10;
/// Variables that it brings.
pub const EXEC_VARIABLES_MAX: usize = 256;
/// Bytes of the command that its record has: what it begins with.
pub const EXEC_TEXT_BYTES_MAX: usize = 256;
/// Paths of the files of its workers that one job wants back.
pub const ARTIFACT_PATHS_MAX: usize = 32;
/// Bytes of one of them.
pub const ARTIFACT_PATH_BYTES_MAX: usize = 256;
/// Names in one of them.
pub const ARTIFACT_PATH_NAMES_MAX: usize = 16;
/// Workers of a job that wants files back: what became of them is kept for each.
pub const ARTIFACT_WORKERS_MAX: u32 = 1_024;
/// Bytes of the principal that submitted a job: the longest is a tenant's user with the id of a token.
pub const CREATOR_BYTES_MAX: usize = 160;
/// Jobs that one record holds, releases, requeues or cancels.
pub const CONTROLLED_JOBS_MAX: usize = BATCH_JOBS_MAX;
/// Entries about where other jobs are that one job may have.
pub const JOB_AFFINITY_MAX: usize = 8;
/// The largest weight of one of them.
pub const AFFINITY_WEIGHT_MAX: u8 = 100;
/// Jobs that hold devices and that one such entry looks at, by tenant and id.
pub const AFFINITY_JOBS_MAX: usize = 10_000;
/// Bytes of a selector of labels.
pub const SELECTOR_BYTES_MAX: usize = 4_096;
/// Terms of a selector of labels.
pub const SELECTOR_TERMS_MAX: usize = 32;
/// Rules by which nodes are admitted.
pub const ADMISSION_RULES_MAX: usize = 256;
/// Nodes that an operator has approved or rejected by name.
pub const APPROVALS_MAX: usize = 65_536;
/// Certificates that are revoked and have not ended.
pub const REVOCATIONS_MAX: usize = 16_384;
/// Bytes of the name in a revoked certificate, as it is remembered.
pub const REVOCATION_TEXT_BYTES_MAX: usize = 192;
/// Tokens that have not expired.
pub const TOKENS_MAX: usize = 10_000;
/// Tokens of one tenant that have not expired; those without a tenant count together.
pub const TENANT_TOKENS_MAX: usize = 100;
/// Shortest lifetime of a token: a minute.
pub const TOKEN_LIFETIME_MS_MIN: u64 = 60_000;
/// Longest lifetime of a token: a year.
pub const TOKEN_LIFETIME_MS_MAX: u64 = 366 * 24 * 3_600 * 1_000;
/// Lifetime of a token whose request says none: 30 days.
pub const TOKEN_LIFETIME_MS_DEFAULT: u64 = 30 * 24 * 3_600 * 1_000;
/// Bookings that are not over.
pub const BOOKINGS_MAX: usize = 256;
/// Most holds of parts of the fleet and of tenants.
pub const FLEET_HOLDS_MAX: usize = 64;
/// Bookings of one tenant that are not over.
pub const TENANT_BOOKINGS_MAX: usize = 32;
/// Nodes of one booking.
pub const BOOKING_NODES_MAX: usize = 1_024;
/// Nodes of all bookings that are not over together, each counted with the most that it may have: keeps a list of them far below
/// a message.
pub const BOOKED_NODES_MAX: usize = 16_384;
/// Names of jobs of one booking.
pub const BOOKING_JOBS_MAX: usize = 64;
/// Labels that the nodes of a booking are chosen by.
pub const BOOKING_LABELS_MAX: usize = 16;
/// Windows of one booking.
pub const BOOKING_WINDOWS_MAX: u16 = 366;
/// Most days from one window of a booking to the next.
pub const BOOKING_EVERY_DAYS_MAX: u16 = 28;
/// Shortest window of a booking: a minute.
pub const BOOKING_LENGTH_MS_MIN: u64 = 60_000;
/// Longest window of a booking: thirty days.
pub const BOOKING_LENGTH_MS_MAX: u64 = 30 * 24 * 3_600 * 1_000;
/// Shortest wait before what a job takes as a fallback: a second.
pub const CAPACITY_FALLBACK_MS_MIN: u64 = 1_000;
/// Longest wait before what a job takes as a fallback: thirty days.
pub const CAPACITY_FALLBACK_MS_MAX: u64 = 30 * 24 * 3_600 * 1_000;
/// Most interruptions of a node in a day that a job or a policy may name, in thousandths.
pub const INTERRUPTIONS_MILLI_MAX: u32 = 1_000_000;
/// Longest notice of a booking: thirty days.
pub const BOOKING_NOTICE_MS_MAX: u64 = 30 * 24 * 3_600 * 1_000;
/// How far ahead the last window of a booking ends at most: 366 days.
pub const BOOKING_HORIZON_MS: u64 = 366 * 24 * 3_600 * 1_000;
/// Schedules of the cluster.
pub const SCHEDULES_MAX: usize = 4_096;
/// Schedules of one tenant.
pub const TENANT_SCHEDULES_MAX: usize = 100;
/// Bytes of a schedule, its job and the labels and annotations of that included.
pub const SCHEDULE_BYTES_MAX: usize = 64 << 10;
/// Bytes of a cron expression.
pub const CRON_BYTES_MAX: usize = 256;
/// Bytes of the name of a time zone.
pub const ZONE_BYTES_MAX: usize = 64;
/// Shortest and longest time after its moment in which a run of a schedule may be made: a second, a week.
pub const STARTING_DEADLINE_MS: (u64, u64) = (1_000, 7 * 24 * 3_600 * 1_000);
/// The same where a request says none: ten minutes.
pub const STARTING_DEADLINE_MS_DEFAULT: u64 = 600_000;
/// Most runs that a schedule lists.
pub const SCHEDULE_RUNS_MAX: u16 = 50;
/// Runs that a schedule lists where a request says none.
pub const SCHEDULE_RUNS_DEFAULT: u16 = 10;
/// Jobs of one schedule that are not over; beyond, its runs are left out.
pub const SCHEDULE_JOBS_MAX: usize = 32;
/// Taints that an agent says of its node, and tolerations of one job.
pub const NODE_TAINTS_MAX: usize = 32;
/// Taints that operators have set on one node, apart from those of its agent.
pub const NODE_OVERRIDE_TAINTS_MAX: usize = 16;
/// Values of one label that a job accepts.
pub const SELECTOR_VALUES_MAX: usize = 32;
/// Tests of labels of nodes that one job has.
pub const NODE_EXPRESSIONS_MAX: usize = 32;
/// Nodes that one job names as the only ones, and as many that it excludes.
pub const NODES_NAMED_MAX: usize = 1_024;
/// Accelerator types that one worker accepts.
pub const ACCELERATOR_CHOICES_MAX: usize = 16;
/// Highest throughput of an accelerator type against another: a thousand times.
pub const THROUGHPUT_MILLI_MAX: u32 = 1_000_000;
/// Counted resources that one job asks for.
pub const JOB_LICENCES_MAX: usize = 16;
/// The largest number of one counted resource, and of what one job asks for of it.
pub const LICENCE_COUNT_MAX: u32 = 1_000_000;
/// Data sets that one job reads.
pub const JOB_DATASETS_MAX: usize = 32;
/// Jobs that one job waits for.
pub const JOB_DEPENDENCIES_MAX: usize = 64;
/// Gangs that one record preempts, moves or resizes.
pub const REARRANGED_STOPS_MAX: usize = 4_096;
/// Gangs that one record promises capacity to.
pub const REARRANGED_PROMISES_MAX: usize = 64;
/// Workers of all gangs together that one record promises capacity to.
pub const REARRANGED_WORKERS_MAX: usize = 2 * GANG_WORKERS_MAX as usize;
/// Waiting jobs that one record moves to other places in the order.
pub const TURNS_CHANGED_MAX: usize = 8_192;
/// Nodes of one cluster.
pub const NODES_MAX: u32 = 1 << 20;
/// Longest run-time limit: one year.
pub const RUN_TIME_LIMIT_MS_MAX: u64 = 366 * 24 * 3_600 * 1_000;
/// Longest grace between SIGTERM and SIGKILL: ten minutes.
pub const STOP_GRACE_MS_MAX: u64 = 600_000;
/// Most retries after failures of the application.
pub const FAILURE_RETRIES_MAX: u32 = 1_000;
/// Longest wait between two attempts: a day.
pub const BACKOFF_MS_MAX: u64 = 24 * 3_600 * 1_000;
/// Longest time that a job keeps away from a node: a week.
pub const AVOID_MS_MAX: u64 = 7 * 24 * 3_600 * 1_000;
/// Longest step, save, and time between two checkpoints: a week.
pub const CHECKPOINT_MS_MAX: u64 = 7 * 24 * 3_600 * 1_000;
/// Slow ranks that are remembered of one gang.
pub const STRAGGLERS_MAX: usize = 64;
/// Faults of one node nearer to one another than this are one: many gangs may meet it.
pub const NODE_FAULT_APART_MS: u64 = 60_000;
/// Faults that are remembered of one node.
pub const NODE_FAULTS_KEPT: usize = 32;
/// Bytes of the path that a notice is posted to.
pub const NOTICE_PATH_BYTES_MAX: usize = 256;
/// Receivers of notifications that one job names.
pub const JOB_NOTIFICATIONS_MAX: usize = 8;
/// Spares of one gang.
pub const SPARES_MAX: u32 = 64;
/// Fewest open files that a job may leave each of its processes: a shell with less cannot do much.
pub const ULIMIT_OPEN_FILES_MIN: u64 = 64;
/// The most that it may ask for; the kernel has another bound.
pub const ULIMIT_OPEN_FILES_MAX: u64 = 1 << 30;
/// The smallest stack that a job may ask for.
pub const ULIMIT_STACK_BYTES_MIN: u64 = 64 << 10;
/// Bytes that a job may ask for as the limit of one process.
pub const ULIMIT_BYTES_MAX: u64 = 1 << 50;
/// Nodes that one job keeps away from at a time.
pub const AVOIDED_NODES_MAX: usize = 16;
/// Bytes of an error text that an agent reports.
pub const DETAIL_BYTES_MAX: usize = 512;
/// Bytes of the sentence that says how a job failed: a rank, its detail and the count of failures.
pub const OUTCOME_BYTES_MAX: usize = 1_024;
/// Ranks in one report of an agent.
pub const REPORT_RANKS_MAX: usize = 1_024;
/// Rows that one pruning record removes.
pub const PRUNE_ROWS_MAX: u32 = 1_000;
/// Things that are wrong with one node at once: four for each device that a host may have.
pub const HEALTH_CONDITIONS_MAX: usize = 256;
/// Events in one health report.
pub const HEALTH_EVENTS_MAX: usize = 64;
/// Events of a node that are remembered though they ask for nothing.
pub const HEALTH_RECENT_MAX: usize = 8;
/// Bytes of the sentence of one observation.
pub const HEALTH_DETAIL_BYTES_MAX: usize = 160;
/// Of the nodes of a pool, of a fleet cluster and of the whole fleet, the most that are kept away from work for their
/// network: one of this many, and at least one.
pub const NETWORK_BLAMED_ONE_OF: u64 = 20;
/// A pool of fewer nodes loses none of them for its network: there are too few others to tell.
pub const NETWORK_BLAMED_POOL_MIN: u64 = 4;
/// A node is kept away from work for its network when a second check finds it so, at least this long after the first
/// one, in milliseconds.
pub const NETWORK_CONFIRMED_AFTER_MS: u64 = 30_000;
/// What a check found longer ago than this, in milliseconds, confirms nothing.
pub const NETWORK_CONFIRMED_WITHIN_MS: u64 = 86_400_000;
/// XIDs that a health policy may have lines for.
pub const HEALTH_XIDS_MAX: usize = 1_024;
/// Most reboots after which a finding asks for a person.
pub const HEALTH_REBOOTS_MAX: u16 = 100;
/// Longest time that a drain may leave to what runs: thirty days.
pub const DRAIN_MS_MAX: u64 = 30 * 24 * 3_600 * 1_000;

/// Requests for quota of one tenant that nobody has answered.
pub const TENANT_QUOTA_REQUESTS_MAX: usize = 16;
/// Grants of quota of one tenant that are in force.
pub const TENANT_QUOTA_GRANTS_MAX: usize = 64;
/// Requests for quota of one user, for whichever tenants, that nobody has answered.
pub const USER_QUOTA_REQUESTS_MAX: usize = 64;
/// Grants of quota of all tenants that are in force.
pub const QUOTA_GRANTS_MAX: usize = 1_024;
/// Those of them that administrators of one tenant of the first level, and of tenants below it, have made: operators can always
/// make more.
pub const QUOTA_GRANTS_GIVEN_MAX: usize = QUOTA_GRANTS_MAX / 2;
/// Requests for quota of one tenant that were denied, and grants of it that have ended, which are remembered.
pub const TENANT_QUOTA_HISTORY_MAX: usize = 64;
/// Requests for quota and grants of all tenants together, of whatever kind.
pub const QUOTA_ROWS_MAX: usize = 16_384;
/// Requests and grants that are not over, from which on no other request is taken: the rest is for grants.
pub const QUOTA_REQUESTS_MAX: usize = QUOTA_ROWS_MAX - QUOTA_GRANTS_MAX;
/// Grants of quota that end with one record of time alone; those that came out of them end as well.
pub const QUOTA_GRANTS_ENDED_MAX: usize = 256;
/// Users of one tenant whose accelerator time is counted in a window: jobs of others wait for the next one.
pub const BUDGET_USERS_MAX: u32 = 4_096;
/// Users of one tenant of whom it is remembered what they have used, where they share what the tenant gets. Those of whom something
/// runs are always among them.
pub const SHARING_USERS_MAX: usize = 1_024;

const _: () = assert!(BATCH_JOBS_MAX < crate::ids::JobId::PER_RECORD as usize);
const _: () = assert!(HOST_DEVICES_MAX as u32 <= u64::BITS);
