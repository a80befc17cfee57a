//! Texts for where they stand.

/// For the text of HTML and SVG, and for attributes in double quotes.
pub(super) fn html(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            c if c.is_control() && c != '\n' => safe.push('\u{fffd}'),
            c => safe.push(c),
        }
    }
    safe
}

/// For a line or a cell of Markdown: nothing in it is formatted, and it stays one line.
#[must_use]
pub fn markdown(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            // HTML that stands in Markdown is HTML.
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '&' => safe.push_str("&amp;"),
            '\\' | '`' | '*' | '_' | '[' | ']' | '|' | '#' | '~' | '$' | '!' => {
                safe.push('\\');
                safe.push(c);
            }
            '\n' | '\r' | '\t' => safe.push(' '),
            c if c.is_control() => safe.push('\u{fffd}'),
            c => safe.push(c),
        }
    }
    safe
}

/// Milliseconds as people read them.
pub(super) fn milliseconds(ms: u64) -> String {
    match ms {
        0..10_000 => format!("{ms} ms"),
        10_000..600_000 => format!("{}.{} s", ms / 1_000, ms % 1_000 / 100),
        _ => format!("{} min", ms / 60_000),
    }
}

/// Microseconds as milliseconds with a place.
pub(super) fn microseconds(us: u64) -> String {
    if us < 10_000 { format!("{}.{} ms", us / 1_000, us % 1_000 / 100) } else { milliseconds(us / 1_000) }
}

/// Accelerator time.
pub(super) fn accelerator_time(ms: u64) -> String {
    format!("{}.{} s", ms / 1_000, ms % 1_000 / 100)
}
