use muster_types::limits::NAME_BYTES_MAX;
use muster_types::{
    ClusterId, FencingToken, JobId, LogIndex, LogTime, Name, NodeId, PriorityTier, ReplicaId, RequestId,
};
use proptest::prelude::*;

/// What the rule says, the long way.
fn is_name(text: &str) -> bool {
    let edge = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    let inner = |c: char| edge(c) || "-_.".contains(c);
    (1..=NAME_BYTES_MAX).contains(&text.len())
        && text.chars().all(inner)
        && text.starts_with(edge)
        && text.ends_with(edge)
}

proptest! {
    #[test]
    fn a_name_is_what_the_rule_says(text in "[a-zA-Z0-9._/é-]{0,70}") {
        let name = Name::new(&text);
        prop_assert_eq!(name.is_some(), is_name(&text));
        if let Some(name) = name {
            prop_assert_eq!(name.as_str(), text.as_str());
            prop_assert_eq!(name.to_string(), text.clone());
            prop_assert_eq!(format!("{name:?}"), format!("{text:?}"));
        }
    }

    #[test]
    fn ids_come_back_from_their_text(job: u64, node: u32, wide: u128, generation: u32, index: u64) {
        prop_assert_eq!(JobId(job).to_string().parse(), Ok(JobId(job)));
        prop_assert_eq!(NodeId(node).to_string().parse(), Ok(NodeId(node)));
        prop_assert_eq!(ClusterId(wide).to_string().parse(), Ok(ClusterId(wide)));
        prop_assert_eq!(RequestId(wide).to_string().parse(), Ok(RequestId(wide)));
        prop_assert_eq!(RequestId(wide).to_string().replace('-', "").parse(), Ok(RequestId(wide)));
        let token = FencingToken { generation, log_index: LogIndex(index) };
        prop_assert_eq!(token.to_string().parse(), Ok(token));
    }

    #[test]
    fn any_text_that_is_an_id_is_its_only_text(text in "(job-|node-|lease-|)[0-9a-zA-Z.+-]{0,15}") {
        if let Ok(job) = text.parse::<JobId>() {
            prop_assert_eq!(job.to_string(), text.to_ascii_lowercase());
        }
        if let Ok(node) = text.parse::<NodeId>() {
            prop_assert_eq!(node.to_string(), text.to_ascii_lowercase());
        }
    }

    #[test]
    fn any_text_that_is_a_token_is_its_only_text(text in "[+0-9]{0,12}[.][+0-9]{0,22}") {
        if let Ok(token) = text.parse::<FencingToken>() {
            prop_assert_eq!(token.to_string(), text);
        }
    }

    #[test]
    fn tokens_order_like_their_records(a: (u32, u64), b: (u32, u64)) {
        let token = |(generation, index): (u32, u64)| FencingToken { generation, log_index: LogIndex(index) };
        prop_assert_eq!(token(a).cmp(&token(b)), a.cmp(&b));
    }

    #[test]
    fn a_job_knows_the_record_that_made_it(index in 0u64..1 << 40, ordinal in 0usize..1_024, generation: u32) {
        let id = JobId::derive(LogIndex(index), ordinal);
        prop_assert_eq!(id.submitted_at(), LogIndex(index));
        prop_assert_eq!(id.0 % JobId::PER_RECORD, ordinal as u64);
        prop_assert_eq!(JobId::derive_in(generation, LogIndex(index), ordinal).submitted_at(), LogIndex(index));
    }

    #[test]
    fn no_two_generations_give_one_id(
        (a, b) in (0u32..1 << 14, 0u32..1 << 14),
        (first, second) in (0u64..1 << 40, 0u64..1 << 40),
        (m, n) in (0usize..1_024, 0usize..1_024),
    ) {
        // Before its founding a cluster has no generation and no jobs.
        let ids = (JobId::derive_in(a + 1, LogIndex(first), m), JobId::derive_in(b + 1, LogIndex(second), n));
        prop_assert_eq!(ids.0.cmp(&ids.1), (a, first, m).cmp(&(b, second, n)));
    }

    #[test]
    fn log_time_never_wraps(at: u64, ms: u64) {
        let time = LogTime(at);
        prop_assert!(time.plus_ms(ms) >= time && time.minus_ms(ms) <= time);
        prop_assert_eq!(time.since_ms(time.plus_ms(ms)), 0);
    }
}

#[test]
fn names_at_their_bounds() {
    let longest = "x".repeat(NAME_BYTES_MAX);
    assert!(Name::new(&longest).is_some());
    assert!(Name::new(&format!("{longest}x")).is_none());
    for bad in ["", "-a", "a-", ".", "_a", "a b", "A", "ä", "a\n", "a/b", "a\0"] {
        assert!(Name::new(bad).is_none(), "{bad:?}");
    }
    for good in ["0", "a", "h100", "v5p", "eu-west.1", "a_b"] {
        assert_eq!(Name::new(good).unwrap().as_str(), good);
    }
    assert_eq!(format!("[{:>4}]", Name::literal("ab")), "[  ab]");
}

#[test]
fn texts_that_are_no_ids() {
    for bad in [
        "",
        "job-",
        "job",
        "node-1",
        "lease-1",
        "1",
        "JOB-1",
        "Job-1",
        "job- 1",
        "job-1 ",
        " job-1",
        "job--1",
        // Leading zeros, letters that look like digits, and too much for 64 bits.
        "job-01",
        "job-00",
        "job-i",
        "job-l",
        "job-o",
        "job-u",
        "job-g0000000000000",
        "job-zzzzzzzzzzzzz",
        "job-00000000000000",
        "job-é",
    ] {
        assert!(bad.parse::<JobId>().is_err(), "{bad:?}");
    }
    assert_eq!("job-0".parse(), Ok(JobId(0)));
    assert_eq!("job-fzzzzzzzzzzzz".parse(), Ok(JobId(u64::MAX)));
    assert_eq!("job-FZZZZZZZZZZZZ".parse(), Ok(JobId(u64::MAX)));
    assert_eq!("node-3zzzzzz".parse(), Ok(NodeId(u32::MAX)));
    for bad in ["node-4000000", "job-1", "node-", "node-01", "r1"] {
        assert!(bad.parse::<NodeId>().is_err(), "{bad:?}");
    }
    let error = "job-1".parse::<NodeId>().unwrap_err();
    assert_eq!(error.to_string(), "expected node-<base 32 digits>");
    let hex = "0123456789abcdef0123456789abcdef";
    assert!(hex.parse::<ClusterId>().is_ok() && hex.to_uppercase().parse::<ClusterId>().is_ok());
    for bad in ["", &hex[1..], &format!("{hex}0"), &format!("+{}", &hex[1..]), &hex.replace('0', "g")] {
        assert!(bad.parse::<ClusterId>().is_err() && bad.parse::<RequestId>().is_err(), "{bad:?}");
    }
    assert_eq!(
        RequestId(0x0123_4567_89ab_cdef_0123_4567_89ab_cdef).to_string(),
        "01234567-89ab-cdef-0123-456789abcdef"
    );
    for bad in [
        "",
        "1",
        ".",
        "1.",
        ".1",
        "1.2.3",
        "+1.2",
        "1.+2",
        "01.2",
        "1.02",
        "-1.2",
        "4294967296.1",
        "1.18446744073709551616",
    ] {
        assert!(bad.parse::<FencingToken>().is_err(), "{bad:?}");
    }
    assert_eq!(ReplicaId(3).to_string(), "r3");
}

#[test]
fn tiers_order_and_spell() {
    assert!(PriorityTier::ALL.is_sorted());
    for tier in PriorityTier::ALL {
        assert_eq!(PriorityTier::parse(tier.as_str()), Some(tier));
    }
    assert_eq!(PriorityTier::parse("urgent"), None);
    assert_eq!(PriorityTier::default(), PriorityTier::Standard);
}

#[test]
#[should_panic(expected = "fewer than 1024")]
fn a_record_submits_fewer_jobs_than_it_has_ids() {
    let _ = JobId::derive(LogIndex(1), 1_024);
}
