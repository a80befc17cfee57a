//! What a job asks of its nodes in addition to labels that have to be equal: tests of labels, and names.

use alloc::collections::BTreeSet;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use serde::{Deserialize, Serialize};

use crate::fleet::NodeDraft;
use crate::limits;
use crate::name::Name;
use crate::reason::Violation;
use crate::selector::{Reader, SelectorError};

/// What ends a word of a text with tests of labels.
const STOPS: [char; 9] = [' ', '\t', ',', '=', '!', '(', ')', '<', '>'];

/// What the value of one label has to be.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum LabelTest {
    /// The node has the label, with one of these values.
    In(BTreeSet<String>),
    /// The node does not have the label, or has it with none of these values.
    NotIn(BTreeSet<String>),
    /// The node has the label, with any value.
    Exists,
    /// The node does not have the label.
    DoesNotExist,
    /// The value is a decimal integer of 64 bits above this one.
    Greater(i64),
    /// The value is a decimal integer of 64 bits below this one.
    Less(i64),
}

impl LabelTest {
    /// Whether a node passes whose label has this value; none for a node without the label.
    #[must_use]
    pub fn matches(&self, value: Option<&str>) -> bool {
        let integer = || value.and_then(|value| value.parse::<i64>().ok());
        match self {
            LabelTest::In(values) => value.is_some_and(|value| values.contains(value)),
            LabelTest::NotIn(values) => value.is_none_or(|value| !values.contains(value)),
            LabelTest::Exists => value.is_some(),
            LabelTest::DoesNotExist => value.is_none(),
            LabelTest::Greater(bound) => integer().is_some_and(|value| value > *bound),
            LabelTest::Less(bound) => integer().is_some_and(|value| value < *bound),
        }
    }

    /// The values that it lists; none for a test that lists none.
    fn values(&self) -> Option<&BTreeSet<String>> {
        match self {
            LabelTest::In(values) | LabelTest::NotIn(values) => Some(values),
            LabelTest::Exists | LabelTest::DoesNotExist | LabelTest::Greater(_) | LabelTest::Less(_) => None,
        }
    }
}

/// A test of one label of a node.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct NodeExpression {
    /// The label.
    pub label: Name,
    /// What its value has to be.
    pub test: LabelTest,
}

impl NodeExpression {
    /// Whether a node passes.
    #[must_use]
    pub fn matches(&self, node: &NodeDraft) -> bool {
        self.test.matches(node.labels.get(&self.label).map(String::as_str))
    }
}

impl NodeExpression {
    /// Reads tests between commas, as people write and see them: `zone in (a,b),fast,!slow,memory-gib>512`. Also `zone=a`,
    /// `zone!=a` and `zone notin (a,b)`.
    ///
    /// # Errors
    /// At the first place that cannot be read.
    pub fn parse_all(text: &str) -> Result<Vec<NodeExpression>, SelectorError> {
        let mut reader = Reader::new(text, &STOPS);
        let max = limits::SELECTOR_BYTES_MAX;
        if text.len() > max {
            let length = text.len();
            return Err(reader.error(format!("tests of labels have at most {max} bytes, these {length}")));
        }
        reader.skip_blanks();
        let mut expressions = Vec::new();
        loop {
            if expressions.len() == limits::NODE_EXPRESSIONS_MAX {
                let max = limits::NODE_EXPRESSIONS_MAX;
                return Err(reader.error(format!("there may be at most {max} tests of labels")));
            }
            expressions.push(NodeExpression::read(&mut reader)?);
            if reader.rest().is_empty() {
                return Ok(expressions);
            }
            reader.expect(',', "`,` and another test, or the end")?;
        }
    }

    fn read(reader: &mut Reader<'_>) -> Result<NodeExpression, SelectorError> {
        let is_negated = reader.take("!");
        let label = reader.checked_word("the label of a node", Name::new)?;
        let test = if is_negated { LabelTest::DoesNotExist } else { LabelTest::read(reader)? };
        Ok(NodeExpression { label, test })
    }
}

impl LabelTest {
    fn read(reader: &mut Reader<'_>) -> Result<LabelTest, SelectorError> {
        let value = |text: &str| Some(String::from(text));
        let integer = |text: &str| text.parse::<i64>().ok();
        if reader.take("!=") {
            return Ok(LabelTest::NotIn([reader.checked_word("a value", value)?].into()));
        }
        if reader.take("==") || reader.take("=") {
            return Ok(LabelTest::In([reader.checked_word("a value", value)?].into()));
        }
        if reader.take(">") {
            return Ok(LabelTest::Greater(reader.checked_word("a decimal integer", integer)?));
        }
        if reader.take("<") {
            return Ok(LabelTest::Less(reader.checked_word("a decimal integer", integer)?));
        }
        if reader.rest().is_empty() || reader.rest().starts_with(',') {
            return Ok(LabelTest::Exists);
        }
        let what = "=, !=, >, <, in, notin, `,` or the end";
        let is_in = reader.checked_word(what, |word| match word {
            "in" => Some(true),
            "notin" => Some(false),
            _ => None,
        })?;
        let values = read_values(reader)?;
        Ok(if is_in { LabelTest::In(values) } else { LabelTest::NotIn(values) })
    }
}

fn read_values(reader: &mut Reader<'_>) -> Result<BTreeSet<String>, SelectorError> {
    reader.expect('(', "`(` and values, like (a,b)")?;
    let mut values = BTreeSet::new();
    loop {
        let value = |text: &str| Some(String::from(text)).filter(|text| !text.is_empty());
        values.insert(reader.checked_word("a value", value)?);
        if reader.take(")") {
            return Ok(values);
        }
        reader.expect(',', "`,` and another value, or `)`")?;
    }
}

impl fmt::Display for NodeExpression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let label = &self.label;
        let list = |values: &BTreeSet<String>| {
            let values: Vec<&str> = values.iter().map(String::as_str).collect();
            values.join(",")
        };
        match &self.test {
            LabelTest::In(values) => write!(f, "{label} in ({})", list(values)),
            LabelTest::NotIn(values) => write!(f, "{label} notin ({})", list(values)),
            LabelTest::Exists => write!(f, "{label}"),
            LabelTest::DoesNotExist => write!(f, "!{label}"),
            LabelTest::Greater(bound) => write!(f, "{label}>{bound}"),
            LabelTest::Less(bound) => write!(f, "{label}<{bound}"),
        }
    }
}

/// What a job asks of its nodes; all of it must hold. A job that asks nothing has none of these.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct NodeRequirements {
    /// Tests of labels.
    pub expressions: Vec<NodeExpression>,
    /// The only nodes that it may be on; empty for any.
    pub only: BTreeSet<Name>,
    /// Nodes that it may not be on.
    pub exclude: BTreeSet<Name>,
}

impl NodeRequirements {
    /// Whether nothing is asked.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.expressions.is_empty() && self.only.is_empty() && self.exclude.is_empty()
    }

    /// Whether a node is what is asked for.
    #[must_use]
    pub fn allows(&self, node: &NodeDraft) -> bool {
        self.allows_name(&node.name) && self.expressions.iter().all(|expression| expression.matches(node))
    }

    /// Whether a node is not kept away by its name.
    #[must_use]
    pub fn allows_name(&self, name: &Name) -> bool {
        (self.only.is_empty() || self.only.contains(name)) && !self.exclude.contains(name)
    }

    /// Bytes of its texts, and of what holds them together.
    #[must_use]
    pub fn text_bytes(&self) -> usize {
        let of_expression = |expression: &NodeExpression| {
            let values = expression.test.values().into_iter().flatten();
            expression.label.len() + 15 + values.map(|value| value.len() + 5).sum::<usize>()
        };
        let names = self.only.iter().chain(&self.exclude).map(|name| name.len() + 5).sum::<usize>();
        self.expressions.iter().map(of_expression).sum::<usize>() + names + 15
    }

    /// Every rule that is broken, by its field below `nodes`.
    pub(crate) fn check(&self, found: &mut Vec<Violation>) {
        if self.is_empty() {
            found.push(Violation::new("nodes", "must ask for something, or be left out"));
        }
        let mut bound = |field: &str, count: usize, max: usize| {
            if count > max {
                found.push(Violation::limit(field, count as u64, 0, max as u64));
            }
        };
        bound("nodes.expressions", self.expressions.len(), limits::NODE_EXPRESSIONS_MAX);
        bound("nodes.only", self.only.len(), limits::NODES_NAMED_MAX);
        bound("nodes.exclude", self.exclude.len(), limits::NODES_NAMED_MAX);
        for (place, expression) in self.expressions.iter().enumerate() {
            let Some(values) = expression.test.values() else { continue };
            let long = values.iter().any(|value| value.len() > limits::LABEL_BYTES_MAX);
            if values.is_empty() || values.len() > limits::SELECTOR_VALUES_MAX || long {
                let (max, bytes) = (limits::SELECTOR_VALUES_MAX, limits::LABEL_BYTES_MAX);
                found.push(Violation::new(
                    format!("nodes.expressions[{place}].values"),
                    format!("must be 1 to {max} values of at most {bytes} bytes"),
                ));
            }
        }
        if let Some(name) = self.only.intersection(&self.exclude).next() {
            found.push(Violation::new("nodes.exclude", format!("must not name {name}, which `only` names")));
        }
    }
}

impl fmt::Display for NodeRequirements {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts: Vec<String> = Vec::new();
        parts.extend(self.expressions.iter().map(|expression| format!("{expression}")));
        for (field, names) in [("only", &self.only), ("exclude", &self.exclude)] {
            if !names.is_empty() {
                let names: Vec<&str> = names.iter().map(Name::as_str).collect();
                parts.push(format!("{field} {}", names.join("|")));
            }
        }
        f.write_str(&parts.join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_met(text: &str, labels: &[(&str, &str)]) -> bool {
        let value =
            |label: &Name| labels.iter().find(|(key, _)| *key == label.as_str()).map(|(_, value)| *value);
        let expressions = NodeExpression::parse_all(text).expect("it can be read");
        expressions.iter().all(|expression| expression.test.matches(value(&expression.label)))
    }

    #[test]
    fn labels_are_tested_as_the_text_says() {
        let labels = [("zone", "a"), ("fast", ""), ("gib", "512"), ("word", "many"), ("low", "-7")];
        for text in [
            "zone in (a,b)",
            "zone=a",
            "zone == a",
            "zone!=b",
            "zone notin (b, c)",
            "rack notin (r1)",
            "fast",
            "!slow",
            "gib>511",
            "gib < 513",
            "low<0",
            "zone in (a), fast ,!slow,gib>-1",
            "fast=",
        ] {
            assert!(is_met(text, &labels), "{text}");
        }
        for text in
            ["zone=b", "zone notin (a)", "slow", "!fast", "gib>512", "gib<512", "word>0", "word<0", "none<5"]
        {
            assert!(!is_met(text, &labels), "{text}");
        }
    }

    #[test]
    fn what_is_shown_is_read_again() {
        let text = "zone in (a,b),rack notin (r1),fast,!slow,gib>512,low<-7";
        let expressions = NodeExpression::parse_all(text).expect("it can be read");
        let shown: Vec<String> = expressions.iter().map(|expression| format!("{expression}")).collect();
        assert_eq!(shown.join(","), text);
    }

    #[test]
    fn a_mistake_has_its_place() {
        for (text, at) in [
            ("", 1),
            ("Zone=a", 1),
            ("zone in a", 9),
            ("zone in ()", 10),
            ("zone in (a", 11),
            ("zone near a", 6),
            ("gib>many", 5),
            ("gib>", 5),
            ("gib>9223372036854775808", 5),
            ("zone=a,", 8),
            ("zone=a b", 8),
            ("!", 2),
        ] {
            let error = NodeExpression::parse_all(text).expect_err(text);
            assert_eq!(error.at, at, "{text}: {error}");
        }
        let many = ["a"; limits::NODE_EXPRESSIONS_MAX + 1].join(",");
        assert!(NodeExpression::parse_all(&many).is_err());
        assert!(NodeExpression::parse_all(&"a".repeat(limits::SELECTOR_BYTES_MAX + 1)).is_err());
    }
}
