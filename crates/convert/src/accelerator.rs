//! Names of accelerators: as products and labels have them, and as the nodes of a fleet do.

use muster_types::Name;
use muster_types::tpu::Generation;

/// Words of a product's name that are of its maker.
const BRANDS: [&str; 9] =
    ["nvidia", "tesla", "geforce", "quadro", "graphics", "device", "amd", "instinct", "radeon"];

/// `NVIDIA-H100-80GB-HBM3`, `nvidia-tesla-t4`, `AMD_Instinct_MI300X_OAM`, `tpu-v5p-slice`, `h100`: the type that nodes report, by
/// the same rule as agents find it.
pub fn of_product(product: &str) -> Option<String> {
    if let Some(generation) = Generation::of_kind(product) {
        return Some(generation.as_str().to_owned());
    }
    let lower = product.to_ascii_lowercase();
    let words: Vec<&str> = lower.split(['-', '_', ' ']).filter(|word| !word.is_empty()).collect();
    // A part of a device: its type is not that of the whole.
    if words.contains(&"mig") {
        return None;
    }
    let mut words = words.into_iter().skip_while(|word| BRANDS.contains(word));
    let first = words.next()?;
    if first == "rtx" {
        let rest: Vec<&str> = words.collect();
        let number = rest.iter().find(|word| word.starts_with(|c: char| c.is_ascii_digit()))?;
        let line = ["pro", "ada"].into_iter().find(|line| rest.contains(line));
        return Some(match line {
            Some("pro") => format!("rtx-pro-{number}"),
            Some(line) => format!("rtx-{number}-{line}"),
            None => format!("rtx-{number}"),
        });
    }
    let is_chip = first.bytes().any(|b| b.is_ascii_digit()) && first.bytes().any(|b| b.is_ascii_alphabetic());
    is_chip.then(|| Name::new(first)).flatten().map(|name| name.to_string())
}

#[cfg(test)]
mod tests {
    use super::of_product;

    #[test]
    fn products_have_the_names_that_nodes_report() {
        for (product, kind) in [
            ("NVIDIA-H100-80GB-HBM3", "h100"),
            ("nvidia-h100-mega-80gb", "h100"),
            ("nvidia_a100_sxm4_80gb", "a100"),
            ("nvidia-tesla-t4", "t4"),
            ("Tesla-V100-SXM2-16GB", "v100"),
            ("NVIDIA-GeForce-RTX-4090", "rtx-4090"),
            ("NVIDIA-RTX-6000-Ada-Generation", "rtx-6000-ada"),
            ("AMD_Instinct_MI300X_OAM", "mi300x"),
            ("tpu-v5p-slice", "v5p"),
            ("tpu-v5-lite-podslice", "v5e"),
            ("h200", "h200"),
        ] {
            assert_eq!(of_product(product).as_deref(), Some(kind), "{product}");
        }
        for product in ["NVIDIA-A100-SXM4-80GB-MIG-1g.5gb", "", "gpu", "80"] {
            assert_eq!(of_product(product), None, "{product}");
        }
    }
}
