//! The list of the state's tables. What goes over all of them is made from it: the fields of
//! [`State`](crate::state::State), the digest, the frames of a snapshot, restore, and the check of the rows' hashes.

/// Calls a macro with every table: its name, key and row, what is derived from a row, the number of its frames in a
/// snapshot, and what one of its rows is called in errors. A number is never used for another table. The order is that
/// of the digest and of the snapshot.
macro_rules! tables {
    ($then:ident) => {
        $then! {
            /// Hosts.
            nodes: NodeId => NodeRow, NodeFacts; 2, "node row";
            /// Jobs, apart from what was submitted.
            jobs: JobId => JobRow, (); 3, "job row";
            /// Apart from the rows: hashed once, shared by every version of the row.
            specs: JobId => Arc<JobSpec>, SpecFacts; 4, "job spec";
            /// Requests that were carried out.
            requests: RequestId => RequestRow, (); 5, "request row";
            /// What tenants have used, decayed.
            tenants: Name => TenantUsage, (); 7, "tenant row";
            /// What run times were seen.
            history: HistoryKey => HistoryRow, (); 8, "history row";
            /// Submission groups of two or more jobs, and jobs that were changed while they were in one.
            submission_groups: JobId => BurstRow, (); 10, "submission group row";
            /// The contracts of jobs; jobs with the default contract are not here.
            contracts: JobId => Arc<JobContract>, (); 11, "job contract";
            /// What became of attempts.
            recoveries: JobId => RecoveryRow, (); 12, "row of recoveries";
            /// Spares of gangs.
            spares: JobId => Vec<WorkerSlot>, (); 13, "spare";
            /// Faults of nodes that jobs met.
            node_faults: NodeId => Vec<LogTime>, (); 14, "fault of a node";
            /// What restricts nodes.
            restrictions: NodeId => RestrictionRow, (); 15, "row of restrictions";
            /// The health policy, once one was set.
            health_policy: () => HealthPolicyRow, (); 16, "health policy";
            /// What happened to jobs when.
            times: JobId => JobTimes, (); 17, "times of a job";
            /// Admitted nodes and revoked certificates.
            doors: DoorKey => DoorRow, (); 18, "row of admission";
            /// Labels, annotations and creators of jobs; jobs without any are not here.
            metadata: JobId => Arc<JobMetadata>, MetadataBits; 19, "metadata of a job";
            /// What people have asked of jobs.
            controls: JobId => ControlRow, (); 20, "row of controls";
            /// Arrays.
            arrays: ArrayId => ArrayRow, ArrayFacts; 21, "array";
            /// How members of arrays ended, by array and a range of ordinals; one in which none has ended is not here.
            array_ends: (ArrayId, u32) => MemberEnds, (); 22, "ends of members of an array";
            /// How far each receiver of notifications that the policy names has come.
            notifications: Name => NotificationProgress, (); 23, "progress of a receiver";
            /// Bearer tokens.
            tokens: TokenId => Token, (); 24, "token";
            /// Bookings that are not over.
            bookings: Name => Booking, (); 25, "booking";
            /// Requests for quota, grants of it, and what was used of budgets.
            quotas: QuotaKey => QuotaRow, (); 26, "row of quotas";
            /// Schedules.
            schedules: ScheduleKey => ScheduleRow, (); 27, "schedule";
            /// What was seen of nodes that their providers take away.
            capacity: CapacityKey => CapacityRow, (); 28, "row of capacity";
            /// What operators hold until further notice.
            fleet_holds: HoldTarget => FleetHoldRow, (); 30, "hold of a part of the fleet";
            /// What users have used, decayed, by tenant and user, of tenants whose users share what they get.
            user_usage: UserKey => TenantUsage, (); 31, "use of a user";
        }
    };
}

pub(crate) use tables;
