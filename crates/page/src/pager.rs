//! Lists that go on on another page.

use maud::{Markup, html};

use crate::text;

/// Where a list is, and where it goes on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pager {
    /// The path of the list.
    pub path: &'static str,
    /// What it is narrowed to, in the order of the address; what is empty is left out.
    pub parameters: Vec<(&'static str, String)>,
    /// The token of this page; empty for the first.
    pub page: String,
    /// The token of the next page; empty for none.
    pub next: String,
}

impl Pager {
    /// The address of the page with this token.
    fn address(&self, page: &str) -> String {
        let parameters = self.parameters.iter().map(|(key, value)| (*key, value.as_str()));
        text::address(self.path, parameters.chain([("page", page)]))
    }

    /// Links to the first page and to the next; nothing where there is but one page.
    pub(crate) fn links(&self, first: &str, next: &str) -> Markup {
        html! {
            @if !self.page.is_empty() || !self.next.is_empty() {
                nav aria-label="Pages of the list" {
                    @if !self.page.is_empty() { a href=(self.address("")) { (first) } " " }
                    @if !self.next.is_empty() { a rel="next" href=(self.address(&self.next)) { (next) } }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_one_page_has_no_links() {
        let mut pager =
            Pager { path: "/nodes", parameters: vec![("region", "a b".to_owned())], ..Pager::default() };
        assert_eq!(pager.links("First", "More").into_string(), "");
        pager.next = "to\"ken".to_owned();
        let shown = pager.links("First", "More").into_string();
        assert!(
            shown.contains("href=\"/nodes?region=a%20b&amp;page=to%22ken\"") && !shown.contains("First"),
            "{shown}"
        );
        pager.page = "x".to_owned();
        assert!(pager.links("First", "More").into_string().contains("href=\"/nodes?region=a%20b\""));
    }
}
