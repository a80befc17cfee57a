//! Text for cells: safe, short, and of known width.

use muster_console::one_line;

/// Characters of one text that the model keeps.
const TEXT_CHARS_MAX: usize = 240;

/// Text of others as the model keeps it: one line, without control characters, of bounded length.
pub(crate) fn kept_text(text: &str) -> String {
    let mut shown: String = text.chars().take(TEXT_CHARS_MAX).collect();
    if shown.len() < text.len() {
        shown.push('…');
    }
    one_line(&shown)
}

/// How long something has lasted, in the largest unit that has a meaning.
pub(crate) fn age(from_ms: Option<u64>, until_ms: u64) -> String {
    let Some(from_ms) = from_ms else { return String::new() };
    let seconds = until_ms.saturating_sub(from_ms) / 1_000;
    match seconds {
        0..120 => format!("{seconds}s"),
        120..7_200 => format!("{}m", seconds / 60),
        7_200..172_800 => format!("{}h", seconds / 3_600),
        _ => format!("{}d", seconds / 86_400),
    }
}

/// Thousandths of devices as devices.
pub(crate) fn devices(milli: u64) -> String {
    muster_manifest::quantity::show_scaled(milli, 3)
}

/// A part of a whole in a bar of some cells: nothing is never a cell, and something is never none.
pub(crate) fn cells(part: u64, whole: u64, width: usize) -> usize {
    if part == 0 || whole == 0 || width == 0 {
        return 0;
    }
    let width = width as u128;
    let share = u128::from(part) * width / u128::from(whole);
    usize::try_from(share.clamp(1, width)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_of_others_is_one_harmless_line() {
        let hostile = "a\u{1b}[2Jb\nc\u{202e}d\u{200f}e\u{7}";
        let shown = kept_text(hostile);
        assert!(!shown.chars().any(|c| c.is_control() || c == '\u{202e}' || c == '\u{200f}'), "{shown:?}");
        assert_eq!(kept_text(&"x".repeat(1_000)).chars().count(), TEXT_CHARS_MAX + 1);
    }

    #[test]
    fn bars_show_a_little_of_a_lot_and_nothing_of_nothing() {
        assert_eq!(cells(0, 10, 10), 0);
        assert_eq!(cells(1, 1_000_000, 10), 1);
        assert_eq!(cells(5, 10, 10), 5);
        assert_eq!(cells(u64::MAX, 1, 10), 10);
        assert_eq!(cells(3, 0, 10), 0);
    }

    #[test]
    fn ages_are_short() {
        let shown = [0, 119_000, 120_000, 7_200_000, 172_800_000].map(|ms| age(Some(0), ms));
        assert_eq!(shown, ["0s", "119s", "2m", "2h", "2d"]);
        assert_eq!(age(Some(5), 1), "0s");
        assert_eq!(age(None, 1), "");
    }
}
