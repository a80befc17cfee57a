use muster_ledger::{IdleCause, LossCause, Selection};
use muster_types::{Name, PriorityTier};

use super::*;

const HOUR: u128 = 3_600_000_000;

fn used(job: u64, tenant: &'static str, activity: Activity, milli_ms: u128) -> UsageRow {
    UsageRow {
        day: 20_000,
        tenant: Some(Name::literal(tenant)),
        tier: Some(PriorityTier::Standard),
        kind: Name::literal("h100"),
        region: Name::literal("eu"),
        activity,
        purchase: None,
        period: 0,
        job: Some(JobId(job)),
        milli_ms,
    }
}

fn asked(job: Option<u64>, tenant: &'static str, kind: Selection, milli_ms: u128) -> DemandRow {
    DemandRow {
        day: 20_000,
        tenant: Name::literal(tenant),
        tier: PriorityTier::Standard,
        kind,
        region: Selection::Any,
        job: job.map(JobId),
        milli_ms,
    }
}

fn view() -> View {
    let idle = UsageRow { tenant: None, tier: None, job: None, ..used(0, "a", Activity::Kept, 9 * HOUR) };
    let h100 = || Selection::One(Name::literal("h100"));
    View {
        usage: vec![
            used(1, "a", Activity::Kept, 6 * HOUR),
            used(1, "a", Activity::Lost(LossCause::Preempted), HOUR),
            used(1, "a", Activity::Starting, HOUR),
            used(1, "a", Activity::Stopping, HOUR),
            used(2, "b", Activity::Kept, 2 * HOUR),
            used(2, "b", Activity::Provisional, 2 * HOUR),
            used(2, "b", Activity::Spare, 5 * HOUR),
            UsageRow { activity: Activity::Idle(IdleCause::NoDemand), ..idle },
        ],
        waits: Vec::new(),
        demand: vec![asked(Some(1), "a", h100(), HOUR), asked(None, "b", Selection::Any, 4 * HOUR)],
        capacity: Vec::new(),
    }
}

/// The first job did its steps in 4/3 of what they take at best.
fn steps() -> BTreeMap<JobId, StepSums> {
    BTreeMap::from([(JobId(1), StepSums { steps: 30, actual_ms: 40_000, ideal_ms: 30_000 })])
}

fn shown(rows: &[GoodputRow]) -> Vec<String> {
    rows.iter().map(|row| row.cells().join(" ")).collect()
}

#[test]
fn the_factors_are_of_what_they_are_said_to_be_of() {
    // Of a: wanted 10, all running 8, kept 6, and 4.5 at best. Of b: wanted 8, all running 4, kept 2 to 4.
    assert_eq!(
        shown(&rows(&[view()], &steps(), &[GoodputDimension::Tenant])),
        ["a 10.000 80.0 75.0 75.0 100.0 45.0", "b 8.000 50.0 50.0 to 100.0 not reported 0.0 not reported"]
    );
    // What waits for any type has a line for itself.
    assert_eq!(
        shown(&rows(&[view()], &BTreeMap::new(), &[GoodputDimension::Type])),
        [
            "(any) 4.000 0.0 - not reported - not reported",
            "h100 14.000 85.7 66.6 to 83.3 not reported 0.0 not reported"
        ]
    );
    assert_eq!(rows(&[], &steps(), &[]), []);
}

#[test]
fn rows_add_up_to_the_total_however_they_are_divided() {
    use GoodputDimension::{Day, Job, Region, Tenant, Tier, Type};
    let whole = rows(&[view(), view()], &steps(), &[]);
    assert_eq!(whole.len(), 1);
    let total = whole[0].amounts;
    assert_eq!(total.wanted(), 2 * 18 * HOUR);
    for by in [&[Tenant][..], &[Type], &[Region, Tier], &[Job, Day], &[Tenant, Type, Region, Job]] {
        let mut sum = Amounts::default();
        rows(&[view(), view()], &steps(), by).iter().for_each(|row| sum.add(&row.amounts));
        assert_eq!(sum, total, "{by:?}");
    }
    // Each part is one of what it is a part of.
    assert!(total.kept + total.provisional <= total.running && total.ideal <= total.measured);
    assert!(total.measured <= total.kept);
}

#[test]
fn the_product_is_rounded_once_and_no_factor_is_above_one() {
    for kept in [1u128, 7, 999, HOUR, 1 << 90] {
        let amounts = Amounts {
            demand: kept,
            running: 2 * kept,
            kept,
            measured: kept,
            ideal: kept,
            ..Amounts::default()
        };
        let found = amounts.factors();
        assert_eq!((found.scheduling, found.runtime, found.program), (Some(666), Some(500), Some(1_000)));
        assert_eq!(found.goodput, Some(333), "of {kept}");
    }
    assert_eq!(Amounts::default().factors(), Factors::default());
}
