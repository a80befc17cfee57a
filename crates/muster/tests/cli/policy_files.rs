//! Policy files that are wrong by accident or on purpose: each is refused with its line, its field and what would be
//! right, before a cluster is asked, and nothing changes.

use super::{Fake, finish, with_stdin};

/// More than a refusal of any file needs.
const TOLD_BYTES_MAX: usize = 16 << 10;

fn policy(spec: &str) -> String {
    format!("apiVersion: muster.dev/v1\nkind: Policy\nspec:\n{spec}")
}

/// Tenants, each with its fields.
fn tenants(tenants: &[(&str, &str)]) -> String {
    let lines = tenants.iter().map(|(name, fields)| format!("    {name}: {fields}\n"));
    policy(&format!("  tenants:\n{}", lines.collect::<String>()))
}

/// Of one tenant with one quota.
fn quota(fields: &str) -> String {
    tenants(&[("a", &format!("{{quotas: [{{type: h100, {fields}}}]}}"))])
}

/// Each text is refused by every command that takes a policy, in a few words that have these parts.
fn refused(cases: &[(String, &[&str])]) {
    let fake = Fake::start();
    for (text, parts) in cases {
        let shown: String = text.chars().take(400).collect();
        for command in [["policy", "check", "-"].as_slice(), &["policy", "set", "-"]] {
            let ran = with_stdin(&fake, command, text);
            assert_eq!((ran.code, ran.out.as_str()), (2, ""), "{shown}\n{}", ran.err);
            for part in
                parts.iter().chain(&["error: the policy file is not valid\n", "\nnext: correct the file"])
            {
                assert!(ran.err.contains(part), "{part:?} of\n{shown}\nis missing in\n{}", ran.err);
            }
            assert!(ran.err.len() < TOLD_BYTES_MAX, "{} bytes of\n{shown}", ran.err.len());
            let commands_a_terminal = |c: char| c.is_control() && c != '\n';
            assert!(!ran.err.contains(commands_a_terminal), "{shown}\n{:?}", ran.err);
        }
    }
    assert!(fake.book.lock().policy.is_none(), "nothing was set");
}

#[test]
fn fields_that_do_not_exist_are_named_with_the_nearest_that_does() {
    refused(&[
        (policy("  tenats: {}\n"), &["stdin:4: tenats: unknown field; did you mean tenants?"]),
        (tenants(&[("a", "{wieght: 2}")]), &["stdin:5: wieght: unknown field; did you mean weight?"]),
        (quota("nominals: 4"), &["stdin:5: nominals: unknown field; did you mean nominal?"]),
        (quota("nominal: 4, borrowLimit: 0"), &["did you mean borrowingLimit?"]),
        (tenants(&[("a", "{rights: {tiermax: batch}}")]), &["did you mean tierMax?"]),
        (tenants(&[("a", "{limits: {runingJobs: 1}}")]), &["did you mean runningJobs?"]),
        (policy("  preemption: {victim: 3}\n"), &["did you mean victims?"]),
        (policy("  order: {fairshare: true}\n"), &["did you mean fairShare?"]),
        (
            "apiVersion: muster.dev/v1\nkind: Policy\nsepc: {}\n".to_owned(),
            &["stdin:3: sepc: unknown field", "known here: apiVersion, kind, metadata, spec"],
        ),
    ]);
}

#[test]
fn a_file_from_stdin_is_called_so() {
    let ran = with_stdin(&Fake::start(), &["policy", "check", "-"], &policy("  tenants: {a: {}}\n"));
    assert_eq!((ran.code, ran.err.as_str()), (0, "stdin is valid\n"));
}

#[test]
fn trees_that_are_none_are_refused() {
    refused(&[
        (
            tenants(&[("a", "{parent: a}")]),
            &["stdin:5: spec.tenants.a.parent: must not lead back to itself: a -> a"],
        ),
        (
            tenants(&[
                ("a", "{parent: b}"),
                ("b", "{parent: c}"),
                ("c", "{parent: a}"),
                ("d", "{parent: a}"),
            ]),
            &["spec.tenants.a.parent: must not lead back to itself: a -> b -> c -> a"],
        ),
        (tenants(&[("a", "{parent: b}")]), &["spec.tenants.a.parent", "got b: list b as well"]),
        (tenants(&[("a", "{}"), ("a", "{weight: 2}")]), &["stdin:6: a: is given twice"]),
        (
            tenants(&[("unlisted", "{parent: a}"), ("a", "{}")]),
            &["spec.tenants.unlisted.parent: must not be given"],
        ),
        (
            tenants(&[
                ("a", "{quotas: [{type: h100, nominal: 4}]}"),
                ("b", "{parent: a, quotas: [{type: h100, nominal: 5}]}"),
            ]),
            &[
                "spec.tenants.b.quotas[0].nominal: must be at most that of a",
                "at least what the tenants below it",
            ],
        ),
        (policy("  tenants: [a, b]\n"), &["stdin:4: "]),
        (policy("  tenants: all\n"), &["stdin:4: "]),
    ]);
}

#[test]
fn values_that_mean_nothing_are_refused_with_those_that_do() {
    let rights = |text: &str| tenants(&[("a", &format!("{{rights: {{{text}}}}}"))]);
    refused(&[
        (
            rights("tierMax: urgent"),
            &["stdin:5: spec.tenants.a.rights.tierMax: must be one of", "production", "urgent"],
        ),
        (
            rights("nonPreemptible: sometimes"),
            &["spec.tenants.a.rights.nonPreemptible: must be one of never, within"],
        ),
        (rights("deadlines: maybe"), &["spec.tenants.a.rights.deadlines: must be true or false"]),
        (policy("  order: {by: luck}\n"), &["spec.order.by: must be one of submission, predicted"]),
        (tenants(&[("a", "{quotas: [{nominal: 4}]}")]), &["spec.tenants.a.quotas[0].type: "]),
        (quota("region: eu"), &["spec.tenants.a.quotas[0].nominal: must be given"]),
        (
            tenants(&[("a", "{quotas: [{type: h100, nominal: 4}, {type: h100, nominal: 5}]}")]),
            &["spec.tenants.a.quotas[1]: must be the tenant's only quota for h100 in all regions"],
        ),
        (
            policy("  windows: [{name: w, startTime: +1h, endTime: +2h, scope: {region: eu}}]\n"),
            &["must say what it is for"],
        ),
        (
            policy(
                "  windows: [{name: w, startTime: +2h, endTime: +1h, scope: {region: eu}, maintenance: true}]\n",
            ),
            &["spec.windows[0].endTime: must be after"],
        ),
        (
            policy("  prices: [{type: h100, perDeviceHour: 1}, {type: h100, perDeviceHour: 2}]\n"),
            &["spec.prices[1]: must be the only price"],
        ),
    ]);
}

#[test]
fn numbers_below_zero_or_beyond_all_fleets_are_refused() {
    const NOMINAL: &str = "stdin:5: spec.tenants.a.quotas[0].nominal: must be ";
    let numbers =
        ["-1", "-0.5", "1e9", "1e400", ".inf", "-.inf", ".nan", "0x10", "1_000", "1.0005", "four", "\"\""];
    let long = "9".repeat(5_000);
    for number in numbers.into_iter().chain([long.as_str(), "18446744073709551616", "18446744073709552"]) {
        refused(&[(quota(&format!("nominal: {number}")), &[NOMINAL])]);
    }
    refused(&[
        (quota("nominal: 1000000001"), &[NOMINAL, "between 0 and 1000000000000", "(in thousandths)"]),
        (
            quota("nominal: 4, lendingLimit: 5"),
            &["quotas[0].lendingLimit: must be at most the nominal quota"],
        ),
        (quota("nominal: 4, borrowingLimit: -3"), &["quotas[0].borrowingLimit: must be a number"]),
        (tenants(&[("a", "{weight: -2}")]), &["spec.tenants.a.weight: must be a number"]),
        (tenants(&[("a", "{weight: 1000001}")]), &["spec.tenants.a.weight: must be between 0 and 1000000"]),
        (tenants(&[("a", "{limits: {runningJobs: -1}}")]), &["limits.runningJobs: must be a whole number"]),
        // A type of the same name as a setting that is called something else in the file.
        (
            policy("  spareHostsPerRack: {order: 1001}\n"),
            &["stdin:4: spec.spareHostsPerRack.order: must be between 0 and 1000"],
        ),
        (policy("  preemption: {victims: 4097}\n"), &["spec.preemption.victims: must be between 0 and 4096"]),
        (policy("  preemption: {minimumRun: -1s}\n"), &["spec.preemption.minimumRun: must be a duration"]),
        (policy("  preemption: {minimumRun: 400d}\n"), &["spec.preemption.minimumRun: must be between"]),
        (policy("  order: {usageHalfLife: 1s}\n"), &["spec.order.usageHalfLife: must be between"]),
        (policy("  backfill: {depth: 0}\n"), &["spec.backfill.depth: must be between 1 and"]),
        (policy("  weights: {packing: 1001}\n"), &["spec.weights.packing: must be between 0 and 1000"]),
        (
            policy("  prices: [{type: h100, perDeviceHour: -1}]\n"),
            &["spec.prices[0].perDeviceHour: must be dollars"],
        ),
    ]);
}

#[test]
fn names_that_look_like_others_or_command_a_terminal_are_refused() {
    const RULE: &str = "must be 1 to 63 lower-case letters, digits, '-', '_' or '.'";
    let long = "a".repeat(64);
    let longest = "x".repeat(900);
    let names = [
        "Research",
        "équipe",
        // Cyrillic.
        "rеsearch",
        // A space of no width, and an order to write from right to left.
        "\"res\u{200b}earch\"",
        "\"\u{202e}hcraeser\"",
        "\"res earch\"",
        "\"\\e[31mresearch\"",
        "\"research\\n  error: all is lost\"",
        "\"\"",
        "-research",
        "研究",
        "🦀",
        &long,
        &longest,
    ];
    for name in names {
        refused(&[(tenants(&[(name, "{weight: 2}")]), &["spec.tenants", RULE])]);
    }
    let kind = |kind: &str| tenants(&[("a", &format!("{{quotas: [{{type: {kind}, nominal: 1}}]}}"))]);
    for name in ["H100", "h\u{ff11}00", "\"h100 \"", "\"\\0\""] {
        refused(&[(kind(name), &["spec.tenants.a.quotas[0].type", RULE])]);
    }
    refused(&[(tenants(&[("a", "{parent: Ä}")]), &["spec.tenants.a.parent", RULE])]);
}

#[test]
fn files_that_are_no_policy_or_too_large_are_refused() {
    let many: Vec<String> = (0..10_001).map(|n| format!("t{n}")).collect();
    let many: Vec<(&str, &str)> = many.iter().map(|name| (name.as_str(), "{}")).collect();
    let mut bomb = String::from("  a: &a [x, x, x, x, x, x, x, x, x]\n");
    for (from, to) in "abcdefghi".chars().zip("bcdefghij".chars()) {
        bomb.push_str(&format!("  {to}: &{to} [{}]\n", vec![format!("*{from}"); 9].join(", ")));
    }
    refused(&[
        (String::new(), &[]),
        ("apiVersion: muster.dev/v1\nkind: Policy\n".to_owned(), &["spec: must be given"]),
        (
            "apiVersion: muster.dev/v2\nkind: Policy\nspec: {}\n".to_owned(),
            &["apiVersion: must be muster.dev/v1"],
        ),
        ("apiVersion: muster.dev/v1\nkind: Job\nspec: {}\n".to_owned(), &["kind: must be Policy"]),
        (format!("{0}---\n{0}", policy("  {}\n")), &["one document"]),
        (policy("  tenants: {a: [}\n"), &["stdin:4: "]),
        (policy(&bomb), &["stdin:"]),
        (policy(&format!("  tenants: {}\n", "[".repeat(100_000))), &["stdin:"]),
        (tenants(&many), &["spec.tenants: must be between 0 and 10000, got 10001"]),
        (
            policy(&format!("  tenants: {{}}\n{}", "# nothing\n".repeat(420_000))),
            &["the file is larger than 4 MiB"],
        ),
    ]);
}

/// Size alone is no fault: a fleet of many teams has a policy of many lines.
#[test]
fn a_policy_of_hundreds_of_kilobytes_is_taken_and_shown_again() {
    let fake = Fake::start();
    let teams: Vec<String> = (0..4_000).map(|n| format!("team-{n:04}")).collect();
    let quotas = "{weight: 1.5, quotas: [{type: h100, region: eu, nominal: 2, borrowingLimit: 4}]}";
    let many: Vec<(&str, &str)> = teams.iter().map(|team| (team.as_str(), quotas)).collect();
    let text = tenants(&many);
    assert!(text.len() > 256 << 10);
    let ran = with_stdin(&fake, &["policy", "set", "-"], &text);
    assert_eq!((ran.code, ran.out.as_str()), (0, "41\n"), "{}", ran.err);
    let shown = super::muster(&fake, &["policy", "show", "-o", "yaml"]);
    let again = with_stdin(&fake, &["policy", "set", "-", "--dry-run"], &shown.out);
    assert_eq!(again.code, 0, "{}", again.err);
    assert_eq!(fake.book.lock().policy.as_ref().unwrap().1.tenants.len(), teams.len());
}

#[test]
fn a_file_that_is_no_text_is_refused() {
    let directory = tempfile::TempDir::new().unwrap();
    let file = directory.path().join("policy.yaml");
    std::fs::write(&file, [policy("  tenants: {}\n").as_bytes(), b"# \xff\xfe\n"].concat()).unwrap();
    let ran = finish(super::command("127.0.0.1:1", &["policy", "check", file.to_str().unwrap()]));
    assert_eq!(ran.code, 2);
    assert!(ran.err.contains("policy.yaml:5: the file is not UTF-8 text"), "{}", ran.err);
}
