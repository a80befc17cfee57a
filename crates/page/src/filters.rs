//! What a list of jobs is narrowed to: its address, and the form that makes it.

use maud::{Markup, html};
use muster_types::{PriorityTier, limits};
use muster_wire::closed::ClosedSet as _;
use muster_wire::v1;

use crate::pager::Pager;
use crate::text;

/// Characters of a selector of labels.
const SELECTOR_CHARS_MAX: usize = 4_096;

/// Phases that are asked for together, with the words for them.
pub(crate) const ACTIVE: &str = "starting,running,stopping";
pub(crate) const FINISHED: &str = "succeeded,failed,cancelled";

/// By what jobs are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupBy {
    /// Their tenant.
    Tenant,
    /// Their phase.
    Phase,
    /// Their tier.
    Tier,
    /// The region that they are or were placed in.
    Region,
    /// Who submitted them.
    Creator,
    /// The array that they are members of.
    Array,
    /// The value of one label, whose key the address has.
    Label,
    /// The types of accelerator that they may use.
    Accelerator,
    /// Why they wait.
    Reason,
}

impl GroupBy {
    /// Every one.
    pub const ALL: [GroupBy; 9] = [
        GroupBy::Tenant,
        GroupBy::Phase,
        GroupBy::Tier,
        GroupBy::Region,
        GroupBy::Creator,
        GroupBy::Array,
        GroupBy::Label,
        GroupBy::Accelerator,
        GroupBy::Reason,
    ];

    /// Its word in addresses.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            GroupBy::Tenant => "tenant",
            GroupBy::Phase => "phase",
            GroupBy::Tier => "tier",
            GroupBy::Region => "region",
            GroupBy::Creator => "creator",
            GroupBy::Array => "array",
            GroupBy::Label => "label",
            GroupBy::Accelerator => "accelerator",
            GroupBy::Reason => "reason",
        }
    }

    /// What a group of jobs without a value is called.
    pub(crate) fn without(self) -> &'static str {
        match self {
            GroupBy::Tenant | GroupBy::Phase | GroupBy::Tier => "none",
            GroupBy::Region => "nowhere",
            GroupBy::Creator => "not known",
            GroupBy::Array => "in no array",
            GroupBy::Label => "without it, or empty",
            GroupBy::Accelerator => "without accelerators",
            GroupBy::Reason => "does not wait",
        }
    }

    /// Whether a list can be narrowed down to one group.
    pub(crate) fn narrows(self) -> bool {
        !matches!(self, GroupBy::Accelerator | GroupBy::Reason)
    }
}

/// What the address of the list asks for, as it was given.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobQuery {
    /// Tenant; empty for all.
    pub tenant: String,
    /// Phases, with commas between them; empty for all.
    pub phase: String,
    /// Tier; empty for all.
    pub tier: String,
    /// What names begin with.
    pub name: String,
    /// A selector of labels.
    pub labels: String,
    /// Region; empty for all.
    pub region: String,
    /// The array that jobs are members of; empty for all.
    pub array: String,
    /// Who submitted them; empty for everyone.
    pub creator: String,
    /// By what the jobs are counted; none for no counts.
    pub group: Option<GroupBy>,
    /// The key of the label by whose value they are counted, where they are.
    pub label: String,
    /// The token of a later page; empty for the first.
    pub page: String,
    /// The id of the job that is shown next to the list; empty for none.
    pub open: String,
}

impl JobQuery {
    fn parts(&self) -> [(&'static str, &str); 12] {
        [
            ("tenant", &self.tenant),
            ("phase", &self.phase),
            ("tier", &self.tier),
            ("name", &self.name),
            ("labels", &self.labels),
            ("region", &self.region),
            ("array", &self.array),
            ("creator", &self.creator),
            ("group", self.group.map_or("", GroupBy::word)),
            ("label", &self.label),
            ("page", &self.page),
            ("open", &self.open),
        ]
    }

    /// The address of this list.
    #[must_use]
    pub fn address(&self) -> String {
        text::address("/jobs", self.parts().into_iter())
    }

    /// The same list from its beginning, with where it goes on.
    pub(crate) fn pager(&self, next: &str) -> Pager {
        let first = self.bare();
        let parameters = first.parts().map(|(key, value)| (key, value.to_owned())).into();
        Pager { path: "/jobs", parameters, page: self.page.clone(), next: next.to_owned() }
    }

    /// What narrows the list alone: without a page, counts and an open job.
    fn bare(&self) -> JobQuery {
        let (page, label, open) = (String::new(), String::new(), String::new());
        JobQuery { page, label, open, group: None, ..self.clone() }
    }

    /// The same list with a job next to it; with none for an empty id.
    pub(crate) fn with_open(&self, id: &str) -> JobQuery {
        JobQuery { open: id.to_owned(), ..self.clone() }
    }

    /// The same list, narrowed to one group; as it is where no list can be narrowed so.
    pub(crate) fn narrowed(&self, by: GroupBy, value: &str) -> JobQuery {
        let mut query = self.bare();
        if by == GroupBy::Label {
            let all = [query.labels, format!("{}={value}", self.label)];
            let given: Vec<&str> = all.iter().map(String::as_str).filter(|part| !part.is_empty()).collect();
            query.labels = given.join(",");
            return query;
        }
        let field = match by {
            GroupBy::Tenant => &mut query.tenant,
            GroupBy::Phase => &mut query.phase,
            GroupBy::Tier => &mut query.tier,
            GroupBy::Region => &mut query.region,
            GroupBy::Creator => &mut query.creator,
            GroupBy::Array => &mut query.array,
            GroupBy::Label => &mut query.labels,
            GroupBy::Accelerator | GroupBy::Reason => return query,
        };
        value.clone_into(field);
        query
    }
}

/// What is wrong with a field of the form.
pub(crate) type Wrong = [(String, String)];

fn wrong<'a>(fields: &'a Wrong, id: &str) -> Option<&'a str> {
    fields.iter().find(|(field, _)| field == id).map(|(_, text)| text.as_str())
}

fn error_id(id: &str) -> String {
    format!("{id}-error")
}

fn error(id: &str, why: Option<&str>) -> Markup {
    html! { @if let Some(why) = why { p.error id=(error_id(id)) { (why) } } }
}

pub(crate) fn field(fields: &Wrong, (id, label): (&str, &str), value: &str, chars_max: usize) -> Markup {
    let why = wrong(fields, id);
    html! {
        div {
            label for=(id) { (label) }
            input id=(id) name=(id) value=(value) maxlength=(chars_max) autocomplete="off" spellcheck="false"
                aria-invalid=[why.map(|_| "true")] aria-describedby=[why.map(|_| error_id(id))];
            (error(id, why))
        }
    }
}

/// Values with what they are called, and the one that is chosen.
pub(crate) fn choice(
    fields: &Wrong,
    (id, label): (&str, &str),
    values: &[(&str, &str)],
    chosen: &str,
) -> Markup {
    let why = wrong(fields, id);
    html! {
        div {
            label for=(id) { (label) }
            select id=(id) name=(id) aria-invalid=[why.map(|_| "true")] aria-describedby=[why.map(|_| error_id(id))] {
                @for (value, name) in values { option value=(value) selected[*value == chosen] { (name) } }
            }
            (error(id, why))
        }
    }
}

/// The form. `fields` are wrong in it.
pub(crate) fn filters(query: &JobQuery, fields: &Wrong) -> Markup {
    let mut phases = vec![("", "any"), (ACTIVE, "any that holds devices"), (FINISHED, "any that is over")];
    phases.extend(v1::JobPhase::ALL.iter().map(|phase| (phase.word(), phase.word())));
    // An address may ask for others together.
    if !phases.iter().any(|(value, _)| *value == query.phase) {
        phases.push((query.phase.as_str(), query.phase.as_str()));
    }
    let mut tiers = vec![("", "any")];
    tiers.extend(PriorityTier::ALL.iter().map(|tier| (tier.word(), tier.word())));
    let mut groups = vec![("", "nothing")];
    groups.extend(GroupBy::ALL.map(|by| (by.word(), by.word())));
    let name = limits::NAME_BYTES_MAX;
    html! {
        form.filters action="/jobs" method="get" aria-label="Filters" {
            (field(fields, ("tenant", "Tenant"), &query.tenant, name))
            (choice(fields, ("phase", "Phase"), &phases, &query.phase))
            (choice(fields, ("tier", "Tier"), &tiers, &query.tier))
            (field(fields, ("name", "Name begins with"), &query.name, name))
            (field(fields, ("labels", "Labels, as in team=vision,!debug"), &query.labels, SELECTOR_CHARS_MAX))
            (field(fields, ("region", "Region"), &query.region, name))
            (field(fields, ("array", "Array"), &query.array, name))
            (field(fields, ("creator", "Creator"), &query.creator, limits::CREATOR_BYTES_MAX))
            (choice(fields, ("group", "Count by"), &groups, query.group.map_or("", GroupBy::word)))
            (field(fields, ("label", "Key of the label to count by"), &query.label, limits::LABEL_KEY_BYTES_MAX))
            div { button type="submit" { "Show" } " " a href="/jobs" { "Clear" } }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_hold_what_was_asked_for() {
        let query = JobQuery {
            tenant: "lab".to_owned(),
            labels: "team in (a,b)".to_owned(),
            group: Some(GroupBy::Tier),
            page: "token".to_owned(),
            ..JobQuery::default()
        };
        assert_eq!(query.address(), "/jobs?tenant=lab&labels=team%20in%20%28a%2Cb%29&group=tier&page=token");
        assert_eq!(JobQuery::default().address(), "/jobs");
        let narrowed = query.narrowed(GroupBy::Tier, "batch");
        assert_eq!(narrowed.address(), "/jobs?tenant=lab&tier=batch&labels=team%20in%20%28a%2Cb%29");
    }

    #[test]
    fn a_group_of_a_label_is_narrowed_by_its_value_and_by_what_was_asked_before() {
        let mut query =
            JobQuery { group: Some(GroupBy::Label), label: "project".to_owned(), ..JobQuery::default() };
        assert_eq!(query.address(), "/jobs?group=label&label=project");
        assert_eq!(query.narrowed(GroupBy::Label, "llm").address(), "/jobs?labels=project%3Dllm");
        query.labels = "!debug".to_owned();
        assert_eq!(query.narrowed(GroupBy::Label, "llm").labels, "!debug,project=llm");
        assert_eq!(query.narrowed(GroupBy::Creator, "ada").creator, "ada");
    }

    #[test]
    fn a_form_keeps_what_was_filled_in_and_says_what_is_wrong_with_it() {
        let query = JobQuery {
            tenant: "lab".to_owned(),
            phase: "running,pending".to_owned(),
            labels: "a==b".to_owned(),
            ..JobQuery::default()
        };
        let fields = [("labels".to_owned(), "must be a selector".to_owned())];
        let shown = filters(&query, &fields).into_string();
        assert!(shown.contains("value=\"lab\""), "{shown}");
        assert!(shown.contains("<option value=\"running,pending\" selected>"), "{shown}");
        assert!(shown.contains("aria-describedby=\"labels-error\""), "{shown}");
        assert!(shown.contains("<p class=\"error\" id=\"labels-error\">must be a selector</p>"), "{shown}");
        assert_eq!(shown.matches("aria-invalid").count(), 1, "{shown}");
    }
}
