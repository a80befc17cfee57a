//! A report as one page that needs nothing else.

/// Titles, rows of cells, and lines below them.
pub(super) fn page(title: &str, header: &[String], rows: &[Vec<String>], lines: &[String]) -> String {
    let row = |tag: &str, cells: &[String]| {
        let cells = cells.iter().map(|cell| format!("<{tag}>{}</{tag}>", escaped(cell)));
        format!("<tr>{}</tr>\n", cells.collect::<String>())
    };
    let rows: String = rows.iter().map(|cells| row("td", cells)).collect();
    let lines: String = lines.iter().map(|line| format!("<p>{}</p>\n", escaped(line))).collect();
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head><meta charset=\"utf-8\"><title>{title}</title></head>\n<body>\n\
         <h1>{title}</h1>\n<table>\n<thead>\n{}</thead>\n<tbody>\n{rows}</tbody>\n</table>\n{lines}</body>\n</html>",
        row("th", header),
        title = escaped(title),
    )
}

/// Text in a page.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_shown_as_text() {
        let made = page("a & b", &["<th>".to_owned()], &[vec!["1<2".to_owned()]], &["x>y".to_owned()]);
        for part in ["<title>a &amp; b</title>", "<th>&lt;th&gt;</th>", "<td>1&lt;2</td>", "<p>x&gt;y</p>"] {
            assert!(made.contains(part), "{part}: {made}");
        }
    }
}
