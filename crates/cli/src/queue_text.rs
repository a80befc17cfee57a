//! Numbers of queues, as people write them.

use crate::view;

/// In use of nominal, by type and region: `h100:12/16@eu-north`.
pub(crate) fn quotas(queue: &view::Queue) -> String {
    let shown = queue.quotas.iter().map(|quota| {
        let at = if quota.region.is_empty() { String::new() } else { format!("@{}", quota.region) };
        format!("{}:{}/{}{at}", quota.r#type, milli(quota.used_milli), milli(quota.nominal_milli))
    });
    shown.collect::<Vec<_>>().join(",")
}

/// As a decimal: `4`, `0.25`.
pub(crate) fn milli(value: u64) -> String {
    let (whole, part) = (value / 1_000, value % 1_000);
    if part == 0 { whole.to_string() } else { format!("{whole}.{part:03}").trim_end_matches('0').to_owned() }
}

/// A part of the fleet, in per cent.
pub(crate) fn share(billionths: u64) -> String {
    format!("{}.{:03}%", billionths / 10_000_000, billionths % 10_000_000 / 10_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_as_people_write_them() {
        assert_eq!([0, 250, 1_000, 12_500].map(milli), ["0", "0.25", "1", "12.5"]);
        assert_eq!(
            [0, 1_000_000_000, 125_000_000, 10_000].map(share),
            ["0.000%", "100.000%", "12.500%", "0.001%"]
        );
    }
}
