//! The sentences for fields that no conversion reads, by their names.

/// The sentence for a field of a Kubernetes object that nothing was read of.
pub fn of_field(name: &str) -> String {
    let advice = match name {
        "livenessProbe" => "workers have no probes; a worker that hangs is ended by `runTimeLimit`",
        "readinessProbe" | "startupProbe" => {
            "workers have no probes; with `readiness: {timeout}` each has to state that it is ready (`muster ctl ready`)"
        }
        "stdin" | "stdinOnce" | "tty" => "`terminal: true` gives each worker a terminal (`muster attach`)",
        "lifecycle" => "there are no hooks; before it is stopped a worker gets SIGTERM and `stopGrace`",
        "ports" => "ports are not reserved; a worker opens those of its host, and MASTER_PORT is the gang's",
        "serviceAccountName" | "serviceAccount" | "automountServiceAccountToken" => {
            "workers have no identity of that cluster; give them a secret (`muster-secret://NAME`)"
        }
        "imagePullPolicy" => "images are taken over where `--images` asks for it",
        "imagePullSecrets" => {
            "nodes pull images with what their own container runtime is allowed, or with a secret of the tenant \
             (`container: {credentials}`)"
        }
        "initContainers" => {
            "no step runs before the worker; make it a job that this one waits for (`after`), or put it into the command"
        }
        "runAsUser" | "runAsGroup" | "fsGroup" | "runAsNonRoot" | "supplementalGroups" => {
            "workers run as the user that their host has for the tenant (`uid_range` of the agent)"
        }
        "capabilities" | "seccompProfile" | "seLinuxOptions" | "appArmorProfile" => {
            "workers have no privileges to add or to drop"
        }
        "securityContext" => "workers run without privileges, as the user that their host has for the tenant",
        "topologySpreadConstraints" => "use `topology: {spread: {level, maxWorkers}}`",
        "podAntiAffinity" | "podAffinity" => "use `affinity: [{jobs, level, rule}]`",
        "ttlSecondsAfterFinished" => "jobs that ended are kept as long as the cluster keeps history",
        "podFailurePolicy" => "use `retry: {limits}`, which counts by classes of failures",
        "successPolicy" => "a job has succeeded when every worker ended with code 0",
        "maxFailedIndexes" => "each member of an array fails for itself",
        "managedBy" | "schedulerName" => "Muster manages and places the job itself",
        "dnsPolicy" | "dnsConfig" | "hostAliases" | "hostname" | "subdomain" | "setHostnameAsFQDN" => {
            "workers have the names of their hosts, and find each other by MASTER_ADDR and MUSTER_RANK_MAP"
        }
        "cleanPodPolicy" => "workers end with their job",
        "envFrom" => "variables are not taken from objects of that cluster; name each under `environment`",
        "finalizers" | "ownerReferences" => "objects of that cluster do not own jobs here",
        "terminationMessagePath" | "terminationMessagePolicy" => {
            "the end of a worker's output is kept (`muster logs`)"
        }
        "runtimeClassName" => "a node has one container runtime, so there is no class of them",
        "overhead" => "what a worker asks for is all that is counted",
        "runtimeEnvYAML" => "put variables under `environment`, and packages on the nodes",
        "rayStartParams" => "Ray nodes start with the CPUs, memory and accelerators of their workers",
        "autoscalerOptions" | "enableInTreeAutoscaling" => "the Ray cluster of a job keeps its size",
        "metrics" => "an elastic job changes its size by policy, not by metrics",
        "networkConfig" | "network" => {
            "workers have the names of their hosts, and find each other by MASTER_ADDR and MUSTER_RANK_MAP"
        }
        "readOnly" | "subPath" | "subPathExpr" | "mountPropagation" => {
            "nothing is mounted, so nothing is mounted in another way"
        }
        "preferredDuringSchedulingIgnoredDuringExecution" => {
            "a selector is a condition that nodes meet or not, and prefers none of them"
        }
        "volumeClaimTemplates" => "no volumes are made; mount storage on the nodes",
        _ => "a job document has no such field",
    };
    advice.to_owned()
}
