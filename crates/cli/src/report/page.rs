//! A report as one page that needs nothing else.

/// Bars of one chart: a page stays readable, and its table has all rows.
const BARS_MAX: usize = 40;
/// The length of the longest bar, and where bars begin, in pixels.
const BAR_LENGTH: u128 = 420;
const BAR_START: u128 = 260;
/// The height of a bar with the space below it, in pixels.
const BAR_HEIGHT: usize = 22;
/// Characters of a label that have space before the bars.
const LABEL_MAX: usize = 36;
/// Bars with the same last key have the same colour. They differ in brightness too.
const COLOURS: [&str; 6] = ["#1b5e8a", "#d9822b", "#3a8f5c", "#8a4fa3", "#b5453a", "#6b7780"];

/// One bar of a chart.
pub(super) struct Bar {
    /// What it is of.
    pub(super) label: String,
    /// Bars of the same group have the same colour.
    pub(super) group: String,
    /// How long it is, next to the others.
    pub(super) amount: u128,
    /// What stands at its end.
    pub(super) text: String,
}

/// Titles, a chart, rows of cells, and lines below them.
pub(super) fn page(
    title: &str,
    bars: &[Bar],
    header: &[String],
    rows: &[Vec<String>],
    lines: &[String],
) -> String {
    let row = |tag: &str, cells: &[String]| {
        let cells = cells.iter().map(|cell| format!("<{tag}>{}</{tag}>", escaped(cell)));
        format!("<tr>{}</tr>\n", cells.collect::<String>())
    };
    let rows: String = rows.iter().map(|cells| row("td", cells)).collect();
    let lines: String = lines.iter().map(|line| format!("<p>{}</p>\n", escaped(line))).collect();
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head><meta charset=\"utf-8\"><title>{title}</title></head>\n<body>\n\
         <h1>{title}</h1>\n{}<table>\n<thead>\n{}</thead>\n<tbody>\n{rows}</tbody>\n</table>\n{lines}</body>\n</html>",
        chart(title, bars),
        row("th", header),
        title = escaped(title),
    )
}

/// The bars in the order of the rows; nothing where none has a length. Of very many the longest are shown.
fn chart(title: &str, bars: &[Bar]) -> String {
    let longest = bars.iter().map(|bar| bar.amount).max().unwrap_or_default();
    if longest == 0 {
        return String::new();
    }
    let mut by_length: Vec<usize> = (0..bars.len()).collect();
    by_length.sort_by_key(|place| std::cmp::Reverse(bars.get(*place).map(|bar| bar.amount)));
    by_length.truncate(BARS_MAX);
    by_length.sort_unstable();
    let shown: Vec<&Bar> = by_length.iter().filter_map(|place| bars.get(*place)).collect();
    let mut groups: Vec<&str> = Vec::new();
    let mut svg = String::new();
    for (place, bar) in shown.iter().enumerate() {
        let group = groups.iter().position(|group| *group == bar.group).unwrap_or_else(|| {
            groups.push(&bar.group);
            groups.len() - 1
        });
        let colour = COLOURS.get(group % COLOURS.len()).copied().unwrap_or_default();
        let length = bar.amount.saturating_mul(BAR_LENGTH) / longest;
        let (top, text_at) = (place * BAR_HEIGHT, place * BAR_HEIGHT + BAR_HEIGHT * 2 / 3);
        let label = escaped(&shortened(&bar.label));
        svg.push_str(&format!(
            "<text x=\"{}\" y=\"{text_at}\" text-anchor=\"end\">{label}</text>\
             <rect x=\"{BAR_START}\" y=\"{}\" width=\"{length}\" height=\"{}\" fill=\"{colour}\"/>\
             <text x=\"{}\" y=\"{text_at}\">{}</text>\n",
            BAR_START - 8,
            top + 2,
            BAR_HEIGHT - 4,
            length + BAR_START + 6,
            escaped(&bar.text),
        ));
    }
    let height = shown.len() * BAR_HEIGHT;
    let left_out = bars.len() - shown.len();
    let rest =
        if left_out == 0 { String::new() } else { format!("<p>{left_out} shorter bars are left out</p>\n") };
    format!(
        "<svg role=\"img\" aria-label=\"{}\" width=\"820\" height=\"{height}\" viewBox=\"0 0 820 {height}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n{svg}</svg>\n{rest}",
        escaped(title),
    )
}

/// The beginning of a label that is too long.
fn shortened(label: &str) -> String {
    if label.chars().count() <= LABEL_MAX {
        return label.to_owned();
    }
    let begin: String = label.chars().take(LABEL_MAX - 3).collect();
    format!("{begin}...")
}

/// Text in a page, also within quotes.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bar(label: &str, group: &str, amount: u128) -> Bar {
        Bar { label: label.to_owned(), group: group.to_owned(), amount, text: amount.to_string() }
    }

    #[test]
    fn text_is_shown_as_text() {
        let bars = [bar("<a>", "kept", 1)];
        let made = page("a & b", &bars, &["<th>".to_owned()], &[vec!["1<2".to_owned()]], &["x>y".to_owned()]);
        for part in [
            "<title>a &amp; b</title>",
            "<th>&lt;th&gt;</th>",
            "<td>1&lt;2</td>",
            "<p>x&gt;y</p>",
            ">&lt;a&gt;</text>",
        ] {
            assert!(made.contains(part), "{part}: {made}");
        }
    }

    #[test]
    fn bars_are_as_long_as_their_amounts_and_coloured_by_group() {
        let made = chart("use", &[bar("a", "kept", 400), bar("b", "lost", 100), bar("c", "kept", 0)]);
        let rects: Vec<&str> = made.lines().filter(|line| line.contains("<rect")).collect();
        assert_eq!(rects.len(), 3, "{made}");
        for (rect, width, colour) in
            [(rects[0], 420, COLOURS[0]), (rects[1], 105, COLOURS[1]), (rects[2], 0, COLOURS[0])]
        {
            assert!(rect.contains(&format!("width=\"{width}\"")) && rect.contains(colour), "{rect}");
        }
        assert_eq!(chart("use", &[bar("a", "kept", 0)]), "");
        assert_eq!(chart("use", &[]), "");
    }

    #[test]
    fn of_very_many_the_longest_are_shown_in_their_order() {
        let bars: Vec<Bar> = (0..100).map(|n| bar(&format!("bar-{n}-"), "kept", n)).collect();
        let made = chart("use", &bars);
        assert_eq!(made.matches("<rect").count(), BARS_MAX);
        assert!(made.contains("60 shorter bars are left out") && !made.contains("bar-59-"), "{made}");
        let place = |label: &str| made.find(label).unwrap();
        assert!(place("bar-60-") < place("bar-99-"));
    }
}
