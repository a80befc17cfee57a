//! What several replays come to, tenant by tenant.

use std::collections::BTreeMap;

use crate::queue::Report;
use crate::tenants::TenantReport;

/// A tenant in each of several reports.
#[derive(Clone, Debug)]
pub struct TenantRow<'a> {
    /// Which tenant.
    pub tenant: &'a str,
    /// What each report says of it, in their order.
    pub reports: Vec<Option<&'a TenantReport>>,
}

/// The tenants of several reports, in the order of the first report that names them.
#[must_use]
pub fn side_by_side(reports: &[Report]) -> Vec<TenantRow<'_>> {
    let mut places: BTreeMap<&str, usize> = BTreeMap::new();
    let mut rows: Vec<TenantRow<'_>> = Vec::new();
    for (place, report) in reports.iter().enumerate() {
        for tenant in &report.tenants {
            let row = *places.entry(&tenant.tenant).or_insert_with(|| {
                rows.push(TenantRow { tenant: &tenant.tenant, reports: vec![None; reports.len()] });
                rows.len() - 1
            });
            rows[row].reports[place] = Some(tenant);
        }
    }
    rows
}
