//! The parameters of an address, decoded. What is not known, comes twice or is no text is refused with its name.

use axum::http::Uri;

use super::Problem;

/// Parameters of one address; more are refused.
const PARAMETERS_MAX: usize = 16;
/// Text of an address that a refusal repeats.
const SHOWN_CHARS_MAX: usize = 80;

/// The moment of the past that an address asks for.
const MOMENT: &str = "at";

/// The parameters of an address that may have these; each is empty where it was left out.
pub(super) fn parameters<const N: usize>(uri: &Uri, known: [&str; N]) -> Result<[String; N], Problem> {
    read(uri, known, false).map(|(values, _)| values)
}

/// The same of an address that may also ask for a moment of the past.
pub(super) fn with_moment<const N: usize>(
    uri: &Uri,
    known: [&str; N],
) -> Result<([String; N], Option<String>), Problem> {
    read(uri, known, true)
}

fn read<const N: usize>(
    uri: &Uri,
    known: [&str; N],
    takes_moment: bool,
) -> Result<([String; N], Option<String>), Problem> {
    let mut values = [const { None::<String> }; N];
    let mut moment = None;
    let given = uri.query().unwrap_or_default().split('&').filter(|pair| !pair.is_empty());
    for (place, pair) in given.enumerate() {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let name = decoded(name).ok_or_else(|| Problem::field(&shown(name), "is no text in UTF-8"))?;
        let at = known.iter().position(|known| **known == *name);
        let slot = match at {
            None if takes_moment && name == MOMENT => Some(&mut moment),
            at => at.and_then(|at| values.get_mut(at)),
        };
        let Some(slot) = slot.filter(|_| place < PARAMETERS_MAX) else {
            let all: Vec<&str> = known.iter().copied().chain(takes_moment.then_some(MOMENT)).collect();
            let text = match all.is_empty() {
                true => "is not known: this address has no parameters".to_owned(),
                false => format!("is not one of {}", all.join(", ")),
            };
            return Err(Problem::field(&shown(&name), text));
        };
        let value = decoded(value).ok_or_else(|| Problem::field(&name, "is no text in UTF-8"))?;
        if slot.replace(value).is_some() {
            return Err(Problem::field(&name, "is given twice"));
        }
    }
    Ok((values.map(Option::unwrap_or_default), moment))
}

/// What a form makes of a text: bytes behind a percent sign, and a plus sign for a space.
fn decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((byte, behind)) = rest.split_first() {
        rest = behind;
        match byte {
            b'+' => bytes.push(b' '),
            b'%' => {
                let (digits, behind) = rest.split_at_checked(2)?;
                let hex =
                    std::str::from_utf8(digits).ok().filter(|hex| hex.bytes().all(|b| b.is_ascii_hexdigit()));
                bytes.push(u8::from_str_radix(hex?, 16).ok()?);
                rest = behind;
            }
            byte => bytes.push(*byte),
        }
    }
    String::from_utf8(bytes).ok()
}

fn shown(text: &str) -> String {
    text.chars().take(SHOWN_CHARS_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(query: &str) -> Result<[String; 2], (String, String)> {
        let uri: Uri = format!("/jobs?{query}").parse().expect("an address");
        parameters(&uri, ["tenant", "labels"]).map_err(|problem| problem.fields[0].clone())
    }

    #[test]
    fn a_moment_is_known_where_a_page_has_a_past() {
        let read = |query: &str| {
            let uri: Uri = format!("/jobs?{query}").parse().expect("an address");
            with_moment(&uri, ["tenant"]).map_err(|problem| problem.fields[0].1.clone())
        };
        assert_eq!(read("at=7&tenant=a"), Ok((["a".to_owned()], Some("7".to_owned()))));
        assert_eq!(read("at="), Ok(([String::new()], Some(String::new()))));
        assert_eq!(read("at=1&at=2"), Err("is given twice".to_owned()));
        assert_eq!(read("x=1"), Err("is not one of tenant, at".to_owned()));
    }

    #[test]
    fn parameters_are_decoded_or_refused_by_name() {
        let owned = |a: &str, b: &str| Ok([a.to_owned(), b.to_owned()]);
        assert_eq!(read(""), owned("", ""));
        assert_eq!(read("labels=team%20in+%28a%2Cb%29&tenant=lab&"), owned("lab", "team in (a,b)"));
        assert_eq!(read("tenant=%C3%BC&labels"), owned("ü", ""));
        for (query, field, text) in [
            ("tenants=a", "tenants", "is not one of tenant, labels"),
            ("tenant=a&tenant=b", "tenant", "is given twice"),
            ("tenant=%FF%FE", "tenant", "is no text in UTF-8"),
            ("tenant=%4", "tenant", "is no text in UTF-8"),
            ("tenant=%zz", "tenant", "is no text in UTF-8"),
            ("tenant=%+1", "tenant", "is no text in UTF-8"),
            ("%FF=1", "%FF", "is no text in UTF-8"),
        ] {
            assert_eq!(read(query), Err((field.to_owned(), text.to_owned())), "{query}");
        }
        let long = "x".repeat(10_000);
        assert_eq!(read(&long).expect_err("it is refused").0.len(), SHOWN_CHARS_MAX);
        let many = "tenant=&".repeat(1_000);
        assert!(read(&many).is_err());
    }
}
