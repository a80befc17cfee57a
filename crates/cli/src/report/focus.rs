//! Cost as CSV in the columns of FOCUS 1.0, the FinOps Open Cost and Usage Specification.
//!
//! A line is one day at one price, of one owner, type, region, purchase and state. Time without a price has no line, since a
//! line must state what was billed; it is reported next to the file.

use muster_types::LogTime;
use muster_types::policy::PurchaseKind;

use super::cost::{Charge, HOUR, Prices, day_start, dollars, state_word};

const CURRENCY: &str = "USD";
const ISSUER: &str = "Muster";
/// There is one account: that of who operates the cluster.
const ACCOUNT: &str = "muster";

/// Columns, in the order of their names; those that begin with `x_` are not of FOCUS.
pub(super) const COLUMNS: [&str; 36] = [
    "BilledCost",
    "BillingAccountId",
    "BillingAccountName",
    "BillingCurrency",
    "BillingPeriodEnd",
    "BillingPeriodStart",
    "ChargeCategory",
    "ChargeClass",
    "ChargeDescription",
    "ChargeFrequency",
    "ChargePeriodEnd",
    "ChargePeriodStart",
    "ConsumedQuantity",
    "ConsumedUnit",
    "ContractedCost",
    "ContractedUnitPrice",
    "EffectiveCost",
    "InvoiceIssuerName",
    "ListCost",
    "ListUnitPrice",
    "PricingCategory",
    "PricingQuantity",
    "PricingUnit",
    "ProviderName",
    "PublisherName",
    "RegionId",
    "RegionName",
    "ResourceId",
    "ResourceType",
    "ServiceCategory",
    "ServiceName",
    "SubAccountId",
    "SubAccountName",
    "x_Purchase",
    "x_State",
    "x_Tier",
];

/// The category of a price. FOCUS has none for what is the operator's own.
fn category(purchase: Option<PurchaseKind>) -> &'static str {
    match purchase {
        None | Some(PurchaseKind::OnDemand) => "Standard",
        Some(PurchaseKind::Spot) => "Dynamic",
        Some(PurchaseKind::Reserved) => "Committed",
        Some(PurchaseKind::Owned) => "Other",
    }
}

/// The first moment of the month of a time, and of the next month.
fn month(time: LogTime) -> (String, String) {
    let text = time.to_string();
    let mut parts = text.split('-').map(|part| part.parse::<u32>().unwrap_or_default());
    let (year, month) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    let next = if month == 12 { (year + 1, 1) } else { (year, month + 1) };
    let first = |(year, month): (u32, u32)| format!("{year:04}-{month:02}-01T00:00:00Z");
    (first((year, month)), first(next))
}

/// Accelerator-hours with six decimals, rounded down.
fn hours(milli_ms: u128) -> String {
    let millionths = milli_ms * 1_000_000 / HOUR;
    format!("{}.{:06}", millionths / 1_000_000, millionths % 1_000_000)
}

/// One line. A day is cut at the ends of the report and where prices change.
pub(super) fn line(charge: &Charge, prices: &Prices, (from, to): (LogTime, LogTime)) -> String {
    let row = &charge.row;
    let (begin, end) = prices.period(row.period);
    let day = (day_start(row.day), day_start(row.day.saturating_add(1)));
    let (begin, end) = (day.0.max(begin).max(from), day.1.min(end).min(to));
    let (month_begin, month_end) = month(day.0);
    let (cost, quantity) = (dollars(charge.micro_dollars), hours(charge.amount.priced));
    let state = state_word(row.activity);
    let text = |value: Option<String>| value.unwrap_or_default();
    let unit_price = dollars(charge.price.into());
    let owner = row.tenant.as_ref().map_or("(idle)", |tenant| tenant.as_str());
    let cells: [String; COLUMNS.len()] = [
        cost.clone(),
        ACCOUNT.to_owned(),
        ISSUER.to_owned(),
        CURRENCY.to_owned(),
        month_end,
        month_begin,
        "Usage".to_owned(),
        // Nothing here corrects an earlier charge.
        String::new(),
        format!("{} in {}: {state}", row.kind, row.region),
        "Usage-Based".to_owned(),
        end.to_string(),
        begin.to_string(),
        quantity.clone(),
        "Hours".to_owned(),
        cost.clone(),
        unit_price.clone(),
        cost.clone(),
        ISSUER.to_owned(),
        cost,
        unit_price,
        category(row.purchase).to_owned(),
        quantity,
        "Hours".to_owned(),
        ISSUER.to_owned(),
        ISSUER.to_owned(),
        row.region.to_string(),
        row.region.to_string(),
        text(row.job.map(|job| job.to_string())),
        row.kind.to_string(),
        "Compute".to_owned(),
        "Accelerators".to_owned(),
        owner.to_owned(),
        owner.to_owned(),
        text(row.purchase.map(|purchase| purchase.to_string())),
        row.activity.to_string(),
        text(row.tier.map(|tier| tier.to_string())),
    ];
    // Names, words and numbers have neither commas nor quotes.
    cells.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_month_ends_where_the_next_one_begins() {
        let months = |day: u32| month(day_start(day));
        assert_eq!(months(0), ("1970-01-01T00:00:00Z".into(), "1970-02-01T00:00:00Z".into()));
        assert_eq!(months(364), ("1970-12-01T00:00:00Z".into(), "1971-01-01T00:00:00Z".into()));
    }

    #[test]
    fn every_mandatory_column_is_there_and_they_are_in_order() {
        let mandatory = [
            "BilledCost",
            "BillingAccountId",
            "BillingAccountName",
            "BillingCurrency",
            "BillingPeriodEnd",
            "BillingPeriodStart",
            "ChargeCategory",
            "ChargeClass",
            "ChargeDescription",
            "ChargePeriodEnd",
            "ChargePeriodStart",
            "ContractedCost",
            "EffectiveCost",
            "InvoiceIssuerName",
            "ListCost",
            "PricingQuantity",
            "PricingUnit",
            "ProviderName",
            "PublisherName",
            "ServiceCategory",
            "ServiceName",
        ];
        for column in mandatory {
            assert!(COLUMNS.contains(&column), "{column}");
        }
        assert!(COLUMNS.is_sorted());
    }

    #[test]
    fn hours_keep_six_decimals() {
        assert_eq!(hours(HOUR * 3 / 2), "1.500000");
        assert_eq!(hours(HOUR / 3), "0.333333");
        assert_eq!(hours(1), "0.000000");
    }
}
