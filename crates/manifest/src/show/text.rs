//! The content of a file as text for people, by its names in the file.

use super::{Content, Fields};

/// An entry of a list or of a mapping with names of the user's own.
#[derive(Clone, Copy, Debug)]
pub struct Entry<'a> {
    /// Empty in a list.
    name: &'a str,
    content: &'a Content,
}

impl Fields {
    /// The template with the text of each `{path}`; none where one of them has no content.
    pub fn fill(&self, template: &str) -> Option<String> {
        fill(template, |path| self.at(path)?.text())
    }

    /// The entries of the list or the mapping at a path, in their order.
    pub fn entries(&self, path: &str) -> Vec<Entry<'_>> {
        entries(self.at(path))
    }

    fn at(&self, path: &str) -> Option<&Content> {
        let (name, rest) = path.split_once('.').map_or((path, None), |(name, rest)| (name, Some(rest)));
        let (_, content) = self.0.iter().find(|(field, _)| *field == name)?;
        match (rest, content) {
            (None, _) => Some(content),
            (Some(rest), Content::Fields(fields)) => fields.at(rest),
            (Some(_), _) => None,
        }
    }
}

impl<'a> Entry<'a> {
    /// Its name; empty in a list.
    pub fn name(&self) -> &'a str {
        self.name
    }

    /// The template with the text of each `{path}` below the entry, of its name for `{@}`, and of the entry itself for
    /// `{}`; none where one of them has no content.
    pub fn fill(&self, template: &str) -> Option<String> {
        fill(template, |path| match (path, self.content) {
            ("@", _) => Some(self.name.to_owned()),
            ("", content) => content.text(),
            (path, Content::Fields(fields)) => fields.at(path)?.text(),
            _ => None,
        })
    }

    /// The entries of the list or the mapping at a path below the entry.
    pub fn entries(&self, path: &str) -> Vec<Entry<'a>> {
        let Content::Fields(fields) = self.content else { return Vec::new() };
        fields.entries(path)
    }
}

fn entries(content: Option<&Content>) -> Vec<Entry<'_>> {
    match content {
        Some(Content::Named(named)) => named.iter().map(|(name, content)| Entry { name, content }).collect(),
        Some(Content::List(list)) => list.iter().map(|content| Entry { name: "", content }).collect(),
        _ => Vec::new(),
    }
}

fn fill(template: &str, text: impl Fn(&str) -> Option<String>) -> Option<String> {
    let mut filled = String::new();
    let mut rest = template;
    while let Some((before, after)) = rest.split_once('{') {
        let (path, after) = after.split_once('}')?;
        filled.push_str(before);
        filled.push_str(&text(path)?);
        rest = after;
    }
    filled.push_str(rest);
    Some(filled)
}
