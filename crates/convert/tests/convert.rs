//! The inputs in `testdata`, each with the job documents that it becomes and with what became of its fields.
//!
//! `UPDATE_EXPECT=1` rewrites the outcomes; read the difference before committing it.
#![allow(clippy::unwrap_used, reason = "a panic is the report of a test")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use muster_convert::{
    Conversion, ConvertError, FindingKind, INPUT_BYTES_MAX, Options, Source, convert, convert_with, recognise,
};
use muster_fuzz::{Draw, damage};
use muster_types::PriorityTier;
use serde_json::{Value, json};

/// 2027-01-15T08:00:00Z.
const NOW_MS: u64 = 1_800_000_000_000;

fn inputs() -> Vec<(PathBuf, String)> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata");
    let mut paths: Vec<PathBuf> = fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|ending| ending == "yaml" || ending == "sh"))
        .collect();
    paths.sort();
    assert!(paths.len() > 15, "{paths:?}");
    paths.into_iter().map(|path| (path.clone(), fs::read_to_string(path).unwrap())).collect()
}

fn options(path: &Path) -> Options {
    Options {
        name: path.file_name().map(|name| name.to_string_lossy().into_owned()),
        arguments: Vec::new(),
        accelerator: None,
        images: false,
        tiers: [("high".to_owned(), PriorityTier::Production)].into(),
    }
}

fn converted(path: &Path, text: &str) -> Conversion {
    convert_with(text, &options(path)).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The documents as `muster submit --dry-run` prints them, then the findings.
fn outcome(conversion: &Conversion) -> String {
    let mut text = String::new();
    match muster_manifest::parse(conversion.text().as_bytes(), NOW_MS) {
        Ok(manifests) => {
            for manifest in &manifests {
                let shown = muster_manifest::job_file(&manifest.message, Value::Null);
                text += &format!("---\n{}", serde_saphyr::to_string(&shown).unwrap());
                if let Err(error) = manifest.check() {
                    error.0.iter().for_each(|problem| text += &format!("# {problem}\n"));
                }
            }
        }
        Err(error) => error.0.iter().for_each(|problem| text += &format!("# {problem}\n")),
    }
    text += "---\n";
    for finding in &conversion.findings {
        text += &format!("{finding}\n");
    }
    text
}

#[test]
fn inputs_become_what_is_written_down() {
    let update = std::env::var_os("UPDATE_EXPECT").is_some();
    let mut wrong = Vec::new();
    for (path, text) in inputs() {
        let actual = outcome(&converted(&path, &text));
        let expected_path = path.with_extension("expect.txt");
        let expected = fs::read_to_string(&expected_path).unwrap_or_default();
        if actual == expected {
            continue;
        }
        if update {
            fs::write(&expected_path, &actual).unwrap();
            continue;
        }
        let differs = expected.lines().zip(actual.lines()).position(|(e, a)| e != a);
        let line = differs.unwrap_or(expected.lines().count().min(actual.lines().count()));
        let of = |text: &str| text.lines().nth(line).unwrap_or("(end)").to_owned();
        wrong.push(format!(
            "{}:{}\n- {}\n+ {}",
            expected_path.display(),
            line + 1,
            of(&expected),
            of(&actual)
        ));
    }
    assert!(wrong.is_empty(), "{}\nUPDATE_EXPECT=1 rewrites", wrong.join("\n"));
}

/// What is printed can be submitted, and is the same job when it is printed again.
#[test]
fn documents_are_job_documents() {
    for (path, text) in inputs() {
        let conversion = converted(&path, &text);
        if conversion.has(FindingKind::Refused) {
            continue;
        }
        let shown = |text: &str| -> Vec<String> {
            let manifests = muster_manifest::parse(text.as_bytes(), NOW_MS)
                .unwrap_or_else(|error| panic!("{}: {error:?}\n{text}", path.display()));
            let file = |manifest: &muster_manifest::Manifest| {
                manifest.check().unwrap_or_else(|error| panic!("{}: {error:?}\n{text}", path.display()));
                serde_saphyr::to_string(&muster_manifest::job_file(&manifest.message, Value::Null)).unwrap()
            };
            manifests.iter().map(file).collect()
        };
        let once = shown(&conversion.text());
        // A script has every kind of character: none of it may change on the way through YAML.
        let read = muster_manifest::parse(once.join("---\n").as_bytes(), NOW_MS).unwrap();
        for (manifest, document) in read.iter().zip(&conversion.documents) {
            let spec = &document["spec"];
            let groups = spec["groups"].as_array().cloned().unwrap_or_else(|| vec![spec.clone()]);
            let words: Vec<Value> = groups.iter().map(|group| group["command"].clone()).collect();
            let groups = manifest.message.spec.as_ref().unwrap().groups.iter();
            let same: Vec<Value> = groups.map(|group| json!(group.command())).collect();
            assert_eq!(same, words, "{}", path.display());
        }
        assert_eq!(once, shown(&once.join("---\n")), "{}", path.display());
        assert_eq!(recognise(once.join("---\n").as_bytes()), None, "a job document is not converted again");
    }
}

/// The scalars of a value, by paths as findings have them.
fn leaves(value: &Value, path: &str, found: &mut Vec<String>) {
    match value {
        Value::Null => {}
        Value::Array(items) => {
            items
                .iter()
                .enumerate()
                .for_each(|(index, item)| leaves(item, &format!("{path}[{index}]"), found));
        }
        Value::Object(fields) => {
            fields.iter().for_each(|(key, value)| leaves(value, &below(path, key), found))
        }
        _ => found.push(path.to_owned()),
    }
}

fn below(path: &str, key: &str) -> String {
    let is_plain = key.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-');
    match (is_plain, path.is_empty() || path.ends_with(": ")) {
        (true, true) => format!("{path}{key}"),
        (true, false) => format!("{path}.{key}"),
        (false, _) => format!("{path}[{key}]"),
    }
}

fn is_below(path: &str, above: &str) -> bool {
    path.strip_prefix(above).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[', ':']))
}

fn values(text: &str) -> Vec<Value> {
    serde_saphyr::from_multiple(text).unwrap()
}

#[test]
fn every_value_is_honoured_or_named_in_a_finding() {
    let mut checked = 0;
    for (path, text) in inputs().iter().filter(|(path, _)| path.extension().unwrap() == "yaml") {
        let conversion = converted(path, text);
        let mut all = Vec::new();
        let documents = values(text);
        for (number, document) in documents.iter().enumerate() {
            let prefix =
                if documents.len() == 1 { String::new() } else { format!("document {}: ", number + 1) };
            leaves(document, &prefix, &mut all);
        }
        for leaf in all {
            checked += 1;
            let is_list = ["apiVersion", "kind"].iter().any(|name| leaf == format!("document 2: {name}"));
            let named = conversion.findings.iter().any(|finding| is_below(&leaf, &finding.path));
            let honoured = conversion.honoured.contains(&leaf);
            assert!(named || honoured || is_list, "{}: {leaf} is neither", path.display());
        }
    }
    assert!(checked > 300, "{checked} values");
}

/// Whether a value only says what the object and its container are called.
fn is_name(leaf: &str) -> bool {
    ["apiVersion", "kind"].contains(&leaf) || leaf.ends_with("].name") && leaf.contains("ontainers[")
}

/// What is called honoured matters: with another value the documents or the findings are others.
#[test]
fn an_honoured_value_makes_a_difference() {
    let mut checked = 0;
    for (path, text) in inputs().iter().filter(|(path, _)| path.extension().unwrap() == "yaml") {
        let documents = values(text);
        let [document] = documents.as_slice() else { continue };
        let plain = converted(path, &document.to_string());
        for leaf in &plain.honoured {
            if is_name(leaf) || plain.findings.iter().any(|finding| is_below(leaf, &finding.path)) {
                continue;
            }
            let is_other = |way| {
                let mut changed = document.clone();
                change(&mut changed, "", leaf, way);
                let other = convert_with(&changed.to_string(), &options(path)).unwrap();
                other.documents != plain.documents || other.findings != plain.findings
            };
            let differs = [false, true].into_iter().any(is_other);
            assert!(differs, "{}: {leaf} is called honoured, and makes no difference", path.display());
            checked += 1;
        }
    }
    assert!(checked > 150, "{checked} values");
}

/// Puts another value at a path: one that is a little different, or one `far` from it.
fn change(value: &mut Value, path: &str, leaf: &str, far: bool) {
    match value {
        Value::Array(items) => {
            for (index, item) in items.iter_mut().enumerate() {
                change(item, &format!("{path}[{index}]"), leaf, far);
            }
        }
        Value::Object(fields) => {
            fields.iter_mut().for_each(|(key, value)| change(value, &below(path, key), leaf, far));
        }
        other if path == leaf => {
            let number = |number: u64| if far { 1 } else { number + 3 };
            *other = match other.clone() {
                Value::Bool(flag) => json!(!flag),
                Value::Number(count) => json!(number(count.as_u64().unwrap_or(0))),
                Value::String(text) => match text.parse::<u64>() {
                    Ok(count) => json!(number(count).to_string()),
                    Err(_) => json!(if far { "zz9".to_owned() } else { format!("{text}x") }),
                },
                other => other,
            };
        }
        _ => {}
    }
}

/// The same for scripts: a directive counts, or is named.
#[test]
fn every_directive_is_honoured_or_named_in_a_finding() {
    for (path, text) in inputs().iter().filter(|(path, _)| path.extension().unwrap() == "sh") {
        let conversion = converted(path, text);
        for (number, line) in (1..).zip(text.lines()).filter(|(_, line)| line.starts_with("#SBATCH")) {
            let line = line.split(" # ").next().unwrap();
            let options = line.split(' ').skip(1).map(str::trim);
            for option in options.filter(|word| word.starts_with('-') && !word.starts_with("---")) {
                let name = match option.strip_prefix("--") {
                    Some(_) => option.split('=').next().unwrap(),
                    None => &option[..2],
                };
                let at = format!("line {number}: {name}");
                let named = conversion.findings.iter().any(|f| {
                    f.path == at
                        || f.path.starts_with(&format!("{at}="))
                        || f.path == format!("line {number}: #SBATCH")
                });
                assert!(named || conversion.honoured.contains(&at), "{}: {at}", path.display());
            }
        }
    }
}

#[test]
fn functions_stand_in_for_the_programs_of_slurm() {
    let script = "#!/bin/bash\n#SBATCH -n 2\nset -eu\nsrun -n 2 --mem 1G --cpu-bind=none -N1 printf '%s|' \"$1\" b\n\
        scontrol show hostnames\nscontrol show hostnames x,y\necho \"line $LINENO\"\nsrun -l -- false\n";
    let script = &script.replace("-N1 printf", "-N1 --container-image x/y:1 --licenses ansys:2 printf");
    let options = Options { arguments: vec!["a a".to_owned()], ..Options::default() };
    let conversion = convert_with(script, &options).unwrap();
    assert!(!conversion.has(FindingKind::Refused), "{:?}", conversion.findings);
    let command = conversion.documents[0]["spec"]["command"].as_array().unwrap();
    let words: Vec<&str> = command.iter().filter_map(Value::as_str).collect();
    let directory = tempfile::tempdir().unwrap();
    let ran = Command::new(words[0])
        .args(&words[1..])
        .env("TMPDIR", directory.path())
        .env("SLURM_JOB_NODELIST", "10.0.0.1,10.0.0.2")
        .output()
        .unwrap();
    assert_eq!(String::from_utf8_lossy(&ran.stdout), "a a|b|10.0.0.1\n10.0.0.2\nx\ny\nline 7\n", "{ran:?}");
    assert_eq!(ran.status.code(), Some(1), "the code of a step is that of its command");
}

#[test]
fn images_are_taken_over_where_that_is_asked_for() {
    let options = Options { images: true, ..Options::default() };
    let converted = |fields: &str, more: &str| {
        let text = format!("{}{more}", job_with(fields));
        let conversion = convert_with(&text, &options).unwrap();
        let findings: Vec<String> = conversion.findings.iter().map(ToString::to_string).collect();
        (conversion.documents[0]["spec"].clone(), findings)
    };
    for (image, expected, pull) in [
        ("train", "docker.io/library/train:latest", "always"),
        ("team/train:1", "docker.io/team/train:1", ""),
        ("localhost:5000/train:1", "localhost:5000/train:1", ""),
    ] {
        let (spec, findings) = converted(&format!("image: \"{image}\""), "");
        assert_eq!(spec["container"]["image"], *expected, "{findings:?}");
        assert_eq!(spec["container"]["pull"].as_str().unwrap_or_default(), pull);
        assert_eq!(spec["command"], Value::Null);
    }
    let fields = "image: \"x.example.org/a:1\", imagePullPolicy: Never, command: [run], volumeMounts: [{name: v, mountPath: /mnt, subPath: s, readOnly: true}]";
    let (spec, findings) = converted(fields, "      volumes: [{name: v, hostPath: {path: /data}}]\n");
    let mount = json!({"source": "/data/s", "target": "/mnt", "readOnly": true});
    let expected = json!({"image": "x.example.org/a:1", "pull": "never", "mounts": [mount]});
    assert_eq!(spec["container"], expected, "{findings:?}");
    for (fields, part) in [
        ("image: \"Bad:1\"", "must be a reference"),
        ("image: \"a:1\", args: [x]", "has no `command`"),
        (
            "image: \"a:1\", env: [{name: A, valueFrom: {resourceFieldRef: {resource: requests.memory}}}]",
            "has no `command`",
        ),
        ("image: \"a:1\", imagePullPolicy: Often", "must be Always, IfNotPresent or Never"),
    ] {
        let (_, findings) = converted(fields, "");
        assert!(findings.iter().any(|finding| finding.contains(part)), "{fields}: {findings:?}");
    }
}

#[test]
fn options_say_what_inputs_cannot() {
    let options = Options { accelerator: Some("h200".to_owned()), ..Options::default() };
    for (name, expected) in
        [("job-gang.yaml", "h200:8"), ("job-single.yaml", "h100:2"), ("sbatch-everything.sh", "h200:1")]
    {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata").join(name);
        let conversion = convert_with(&fs::read_to_string(path).unwrap(), &options).unwrap();
        assert_eq!(conversion.documents[0]["spec"]["accelerators"], *expected, "{name}");
    }
}

#[test]
fn a_worker_fills_in_its_own_variables() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/job-set-gang.yaml");
    let conversion = converted(&path, &fs::read_to_string(&path).unwrap());
    let group = &conversion.documents[0]["spec"]["groups"][1];
    let mut words: Vec<String> =
        group["command"].as_array().unwrap().iter().map(|word| word.as_str().unwrap().to_owned()).collect();
    words.pop();
    words.extend(["sh", "-c", "echo $JOB_COMPLETION_INDEX $JOB"].map(ToOwned::to_owned));
    // The leader has rank 0; the jobs have four workers each.
    for (rank, expected) in [(1, "0 0"), (4, "3 0"), (5, "0 1"), (8, "3 1")] {
        let ran =
            Command::new(&words[0]).args(&words[1..]).env("MUSTER_RANK", rank.to_string()).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&ran.stdout).trim(), expected, "{rank}: {words:?} {ran:?}");
    }
}

#[test]
fn inputs_are_recognised_by_what_they_hold() {
    for (path, text) in inputs() {
        let expected = if path.extension().unwrap() == "sh" { Source::Script } else { Source::Manifest };
        assert_eq!(recognise(text.as_bytes()), Some(expected), "{}", path.display());
    }
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../ops/examples");
    for entry in fs::read_dir(examples).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            continue;
        }
        assert_eq!(recognise(&fs::read(&path).unwrap()), None, "{}", path.display());
    }
    let both = "#!/bin/sh\n#SBATCH -n 2\n#MUSTER workers: 2\n";
    assert_eq!(recognise(both.as_bytes()), None);
    assert!(muster_convert::directives_of_both(both.as_bytes()));
    assert_eq!(recognise(b"#!/bin/sh\ntrue\n"), None);
    assert_eq!(recognise(b"\xff\xfe"), None);
    assert_eq!(recognise(b"apiVersion: apps/v1\nkind: Deployment\n"), Some(Source::Manifest));
}

#[test]
fn what_cannot_be_converted_says_why() {
    let error = |text: &str| convert(text).unwrap_err().to_string();
    let deployment = error("apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: x}\n");
    assert!(
        deployment.starts_with("Deployment (apps/v1) is not converted; these are: Job (batch/v1)"),
        "{deployment}"
    );
    assert!(error("").starts_with("an empty file is not converted"));
    assert!(error("#!/bin/sh\ntrue\n").starts_with("a script without #SBATCH lines is not converted"));
    assert_eq!(convert(&" ".repeat(INPUT_BYTES_MAX + 1)).unwrap_err(), ConvertError::TooLarge);
    assert!(matches!(convert("a: [\n").unwrap_err(), ConvertError::Malformed { .. }));
}

fn findings(text: &str) -> Vec<String> {
    convert(text).unwrap().findings.iter().map(ToString::to_string).collect()
}

/// A Job whose container has a name and these fields.
fn job_with(fields: &str) -> String {
    format!(
        "apiVersion: batch/v1\nkind: Job\nmetadata: {{name: x}}\nspec:\n  template:\n    spec:\n      containers:\n        - \
         {{name: c, {fields}}}\n"
    )
}

#[test]
fn unusual_ways_of_writing_lose_nothing() {
    let spec = |text: &str| convert(text).unwrap().documents[0]["spec"].clone();
    let has = |text: &str, part: &str| {
        let all = findings(text);
        assert!(all.iter().any(|finding| finding.contains(part)), "{part}: {all:#?}");
    };
    // Beginnings of options that can only be one.
    let short = "#!/bin/sh\n#SBATCH --gpus-per-n=h100:8 --nodes=2 --cpus-per-t=4\ntrue\n";
    assert_eq!(
        (spec(short)["accelerators"].clone(), spec(short)["workers"].clone()),
        (json!("h100:8"), json!(2))
    );
    has("#!/bin/sh\n#SBATCH --node=2\ntrue\n", "line 2: --node: refused: write the option in full");
    // Directives end at the first command, and a function in front of it may use srun.
    let late = "#!/bin/sh\nstep() { srun true; }\n#SBATCH -n 4\nstep\n";
    has(late, "line 3: #SBATCH: not honoured: sbatch itself does not read it");
    assert_eq!(spec(late)["workers"], Value::Null, "one worker");
    let words = spec(late)["command"].clone();
    let script =
        words.as_array().unwrap().iter().filter_map(Value::as_str).find(|word| word.starts_with("#!"));
    let lines: Vec<&str> = script.unwrap().lines().collect();
    assert!(lines[1].starts_with("srun() {") && lines[1].ends_with("; step() { srun true; }"), "{lines:?}");
    assert_eq!(lines.len(), 4, "{lines:?}");
    // Variables that nothing sets.
    let variables = "#!/bin/sh\n#SBATCH -n 1\necho $SBATCH_ACCOUNT $SLURMD_NODENAME $SLURM_PROCID\n";
    has(variables, "line 3: $SBATCH_ACCOUNT: not honoured");
    has(variables, "line 3: $SLURMD_NODENAME: not honoured");
    assert!(!findings(variables).iter().any(|finding| finding.contains("SLURM_PROCID")));
    let signal = "#!/bin/sh\n#SBATCH --signal=B:BUS@900\ntrue\n";
    has(signal, "600 s later SIGKILL (`stopGrace`); nothing is sent before the limit, and BUS is not sent");
    assert_eq!(spec(signal)["stopGrace"], json!(muster_types::Span(600_000).to_string()));
    has("#!/bin/sh\n#SBATCH -a 0-9%0\ntrue\n", "-a: refused: with %0 no member would run");
    // Two options about devices.
    let same = "#!/bin/sh\n#SBATCH --gpus-per-node=8 --gres=gpu:h100:8\ntrue\n";
    assert_eq!(spec(same)["accelerators"], json!("h100:8"));
    has(
        "#!/bin/sh\n#SBATCH --gpus-per-node=8 --gres=gpu:h100:4\ntrue\n",
        "--gres: refused: it comes to h100:4 for a worker, and --gpus-per-node to any:8",
    );
    // A script that does not say what runs it.
    let bare = "#SBATCH -n 2\nsrun true\n";
    assert_eq!(recognise(bare.as_bytes()), Some(Source::Script));
    assert_eq!(convert(bare).unwrap_err(), ConvertError::NoInterpreter);

    let job = job_with("command: [a]");
    let indented = job.replace('\n', "\n    ");
    has(
        &format!("kind: List\napiVersion: v1\nextra: 1\nitems:\n  - {indented}\n"),
        "extra: not honoured: a list has",
    );
    for (kind, api) in [
        ("Deployment", "apps/v1"),
        ("StatefulSet", "apps/v1"),
        ("DaemonSet", "apps/v1"),
        ("ReplicaSet", "apps/v1"),
    ]
    .into_iter()
    .chain([("CronJob", "batch/v1"), ("Pod", "v1")])
    {
        let other = format!("{job}---\napiVersion: {api}\nkind: {kind}\nmetadata: {{name: y}}\n");
        has(&other, &format!("document 2: refused: {kind} ({api}) runs work and is not converted"));
    }
    // Scalars without quotes: as they are written, or refused at their place.
    let plain = job_with("command: [echo, y, on, \"010\"]");
    assert_eq!(spec(&plain)["command"], json!(["echo", "y", "on", "010"]));
    for word in ["1", "1.10", "0x1F", "true", "True", "null", "~"] {
        has(&job_with(&format!("command: [echo, {word}]")), "command[1]: refused: must be a text");
    }
    for word in ["010", "+5", "1_000", "1e3"] {
        let text = job_with(&format!("command: [echo, {word}]"));
        let is_refused = findings(&text).iter().any(|finding| finding.contains("command[1]: refused"));
        assert!(is_refused || spec(&text)["command"][1] == json!(word), "{word}: {:?}", spec(&text));
    }
    let numbers =
        job_with("command: [a], env: [{name: N, value: 4}], resources: {limits: {cpu: 2, memory: 1Gi}}");
    has(&numbers, "env[0].value: refused: must be a text");
    assert_eq!(spec(&numbers)["cpu"], json!("2000m"));
    let label = job.replace("metadata: {name: x}", "metadata: {name: x, labels: {a: null}}");
    has(&label, "metadata.labels.a: not honoured: it has no value (null)");
}

/// As JobSet documents it: the annotation of exclusive placement is of each of the jobs.
#[test]
fn jobs_of_a_set_are_kept_together_each_and_not_all_of_them() {
    let spec = |replicas: u32, parallelism: u32, node_selector: &str, resource: &str| {
        let text = format!(
            "apiVersion: jobset.x-k8s.io/v1alpha2\nkind: JobSet\nmetadata:\n  name: x\n  annotations:\n    \
             alpha.jobset.sigs.k8s.io/exclusive-topology: cloud.example.com/rack\nspec:\n  replicatedJobs:\n    - name: w\n      \
             replicas: {replicas}\n      template:\n        spec:\n          parallelism: {parallelism}\n          \
             completions: {parallelism}\n          backoffLimit: 0\n          template:\n            spec:\n              \
             restartPolicy: Never\n              nodeSelector: {{{node_selector}}}\n              containers:\n                \
             - {{name: c, command: [a], resources: {{limits: {{{resource}}}}}}}\n"
        );
        convert(&text).unwrap().documents[0]["spec"]["topology"].clone()
    };
    let gpus = "nvidia.com/gpu: 8";
    assert_eq!(spec(4, 8, "", gpus), json!({"segments": [{"level": "rack", "workers": 8}]}));
    assert_eq!(spec(1, 8, "", gpus), json!({"required": "rack"}), "it is one job");
    assert_eq!(spec(4, 1, "", gpus), Value::Null, "one worker is in one rack");
    let tpus =
        "cloud.google.com/gke-tpu-accelerator: tpu-v5p-slice, cloud.google.com/gke-tpu-topology: 4x4x4";
    assert_eq!(spec(2, 16, tpus, "google.com/tpu: 4"), Value::Null, "a slice is in one pod");
}

#[test]
fn whole_hosts_are_asked_for_where_a_worker_has_one() {
    let spec = |lines: &str| {
        let conversion = convert(&format!("#!/bin/sh\n{lines}\ntrue\n")).unwrap();
        let named: Vec<String> = conversion.findings.iter().map(ToString::to_string).collect();
        (conversion.documents[0]["spec"].clone(), named)
    };
    let (one, _) = spec("#SBATCH --exclusive --nodes=2 --ntasks-per-node=1");
    assert_eq!((one["exclusive"].clone(), one["workers"].clone()), (json!(true), json!(2)));
    // As MPI jobs ask for it: these would be 128 hosts.
    let (many, named) = spec("#SBATCH --exclusive --nodes=2 --ntasks-per-node=64");
    assert_eq!((many["exclusive"].clone(), many["workers"].clone()), (Value::Null, json!(128)));
    let part = "line 2: --exclusive: not honoured: a task is a worker";
    assert!(named.iter().any(|text| text.starts_with(part)), "{named:?}");
}

#[test]
fn the_environment_of_a_user_comes_from_a_login_shell() {
    let conversion = convert("#!/bin/sh\n#SBATCH --get-user-env\ntrue\n").unwrap();
    assert_eq!(conversion.documents[0]["spec"]["shell"], json!("login"));
}

#[test]
fn tasks_that_share_a_node_get_no_hosts_to_themselves() {
    let script = |options: &str| format!("#!/bin/sh\n#SBATCH --exclusive {options}\ntrue\n");
    let exclusive =
        |options: &str| convert(&script(options)).unwrap().documents[0]["spec"]["exclusive"].clone();
    assert_eq!(exclusive("--nodes=2"), json!(true));
    for options in ["--nodes=2 --ntasks-per-node=4", "--nodes=2 --ntasks=8"] {
        assert_eq!(exclusive(options), Value::Null, "{options}");
        let all = findings(&script(options));
        let part = "line 2: --exclusive: not honoured: a task is a worker";
        assert!(all.iter().any(|finding| finding.contains(part)), "{options}: {all:#?}");
    }
}

#[test]
fn a_reservation_is_the_booking_of_that_name() {
    let named = |value: &str| format!("#!/bin/sh\n#SBATCH --reservation={value}\ntrue\n");
    let booking = |value: &str| convert(&named(value)).unwrap().documents[0]["spec"]["booking"].clone();
    assert_eq!((booking("demo"), booking("Demo_1")), (json!("demo"), json!("demo_1")));
    assert!(!findings(&named("demo")).iter().any(|finding| finding.contains("--reservation")));
    for several in ["demo,night", "-"] {
        assert_eq!(booking(several), Value::Null, "{several}");
        let all = findings(&named(several));
        let part = "line 2: --reservation: not honoured: a job names one booking";
        assert!(all.iter().any(|finding| finding.contains(part)), "{several}: {all:#?}");
    }
}

/// Depth, and what aliases bring in, have bounds that hold before memory is taken.
#[test]
fn inputs_have_bounds() {
    let deep = format!("a: {}1{}", "[".repeat(100), "]".repeat(100));
    assert!(matches!(convert(&deep).unwrap_err(), ConvertError::Malformed { .. }));
    let mut laughs = String::from("a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n");
    for level in 1..10 {
        let before = format!("*a{}", level - 1);
        laughs += &format!("a{level}: &a{level} [{}]\n", vec![before; 10].join(", "));
    }
    assert!(matches!(convert(&laughs).unwrap_err(), ConvertError::Malformed { .. }));
    // Each variable is twice the one before.
    let mut doubled = String::from("            - {name: V0, value: x}\n");
    for number in 1..40 {
        let before = format!("$(V{})", number - 1);
        doubled += &format!("            - {{name: V{number}, value: {before}{before}}}\n");
    }
    let job = format!(
        "apiVersion: batch/v1\nkind: Job\nmetadata: {{name: x}}\nspec:\n  template:\n    spec:\n      containers:\n        - \
         command: [x]\n          env:\n{doubled}"
    );
    assert!(convert(&job).unwrap().has(FindingKind::Refused));
    let many = "a: b\n---\n".repeat(2_000);
    assert!(matches!(convert(&many).unwrap_err(), ConvertError::Malformed { .. }));
}

/// Damaged inputs are converted or refused; nothing panics, and what has no refusal is read by `muster-manifest` without a panic.
#[test]
fn no_bytes_panic() {
    let inputs = inputs();
    let rounds: usize =
        std::env::var("MUSTER_FUZZ_ROUNDS").ok().and_then(|text| text.parse().ok()).unwrap_or(3_000);
    let mut draw = Draw::new(0x6d75_7374_6572);
    let mut accepted = 0;
    for round in 0..rounds {
        let (path, text) = &inputs[round % inputs.len()];
        let (_, other) = &inputs[draw.below(inputs.len())];
        let mut bytes = text.clone().into_bytes();
        damage(&mut draw, &mut bytes, other.as_bytes());
        let _ = recognise(&bytes);
        let text = String::from_utf8_lossy(&bytes);
        if let Ok(conversion) = convert_with(&text, &options(path)) {
            accepted += 1;
            let _ = muster_manifest::parse(conversion.text().as_bytes(), NOW_MS).map(|manifests| {
                manifests.iter().for_each(|manifest| drop(manifest.check()));
            });
        }
    }
    assert!(accepted > rounds / 5, "{accepted} of {rounds} were converted");
}
