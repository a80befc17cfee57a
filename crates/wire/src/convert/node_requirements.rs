//! What jobs ask of their nodes by tests of labels and by names.

use std::collections::BTreeSet;

use muster_types::{
    LabelTest, Name, NodeExpression, NodeRequirements, Violation, fleet::checked_name, limits,
};

use super::{Found, below, bound, shown};
use crate::closed::{given_from_proto, number};
use crate::v1;

/// None where nothing is asked.
pub(super) fn node_requirements(
    at: &str,
    message: Option<v1::NodeRequirements>,
    found: &mut Found,
) -> Option<Box<NodeRequirements>> {
    let v1::NodeRequirements { mut expressions, only, exclude } = message?;
    let at = &below(at, "nodes");
    bound(&below(at, "expressions"), &mut expressions, limits::NODE_EXPRESSIONS_MAX, found);
    let mut read = Vec::with_capacity(expressions.len());
    for (index, message) in expressions.into_iter().enumerate() {
        // A stand-in where one is wrong, so that those behind it have their places.
        let expression = expression(&format!("{at}.expressions[{index}]"), message, found);
        read.push(
            expression.unwrap_or(NodeExpression { label: Name::literal("invalid"), test: LabelTest::Exists }),
        );
    }
    let requirements = NodeRequirements {
        expressions: read,
        only: names(&below(at, "only"), only, found),
        exclude: names(&below(at, "exclude"), exclude, found),
    };
    (!requirements.is_empty()).then(|| Box::new(requirements))
}

fn names(field: &str, mut texts: Vec<String>, found: &mut Found) -> BTreeSet<Name> {
    bound(field, &mut texts, limits::NODES_NAMED_MAX, found);
    let mut names = BTreeSet::new();
    for (index, text) in texts.iter().enumerate() {
        let place = || format!("{field}[{index}]");
        match Name::new(text) {
            Some(name) if names.contains(&name) => {
                found.push(Violation::new(place(), format!("must not name {name} twice")));
            }
            Some(name) => _ = names.insert(name),
            None => _ = found.take(checked_name(&place(), text)),
        }
    }
    names
}

fn expression(at: &str, message: v1::NodeExpression, found: &mut Found) -> Option<NodeExpression> {
    let v1::NodeExpression { key, operator, mut values } = message;
    let label = found.take(checked_name(&below(at, "key"), &key));
    let operator = found.take(given_from_proto::<v1::NodeOperator>(&below(at, "operator"), operator));
    let field = &below(at, "values");
    bound(field, &mut values, limits::SELECTOR_VALUES_MAX, found);
    let test = match operator? {
        v1::NodeOperator::In => LabelTest::In(values.into_iter().collect()),
        v1::NodeOperator::NotIn => LabelTest::NotIn(values.into_iter().collect()),
        v1::NodeOperator::Greater => LabelTest::Greater(integer(field, &values, found)?),
        v1::NodeOperator::Less => LabelTest::Less(integer(field, &values, found)?),
        operator @ (v1::NodeOperator::Exists
        | v1::NodeOperator::DoesNotExist
        | v1::NodeOperator::Unspecified) => {
            if !values.is_empty() {
                found.push(Violation::new(field, "must be left out: the operator tests no value"));
            }
            let is_absent = operator == v1::NodeOperator::DoesNotExist;
            if is_absent { LabelTest::DoesNotExist } else { LabelTest::Exists }
        }
    };
    label.map(|label| NodeExpression { label, test })
}

fn integer(field: &str, values: &[String], found: &mut Found) -> Option<i64> {
    let rule = "must be one decimal integer of 64 bits";
    let description = match values {
        [value] => match value.parse() {
            Ok(number) => return Some(number),
            Err(_) => format!("{rule}, got {}", shown(value)),
        },
        several => format!("{rule}, got {} values", several.len()),
    };
    found.push(Violation::new(field, description));
    None
}

/// The message of what is asked.
pub(super) fn node_requirements_to_proto(requirements: &NodeRequirements) -> v1::NodeRequirements {
    let names = |names: &BTreeSet<Name>| names.iter().map(Name::to_string).collect();
    v1::NodeRequirements {
        expressions: requirements.expressions.iter().map(node_expression_to_proto).collect(),
        only: names(&requirements.only),
        exclude: names(&requirements.exclude),
    }
}

/// The message of one test.
#[must_use]
pub fn node_expression_to_proto(expression: &NodeExpression) -> v1::NodeExpression {
    let (operator, values) = match &expression.test {
        LabelTest::In(values) => (v1::NodeOperator::In, values.iter().cloned().collect()),
        LabelTest::NotIn(values) => (v1::NodeOperator::NotIn, values.iter().cloned().collect()),
        LabelTest::Exists => (v1::NodeOperator::Exists, Vec::new()),
        LabelTest::DoesNotExist => (v1::NodeOperator::DoesNotExist, Vec::new()),
        LabelTest::Greater(bound) => (v1::NodeOperator::Greater, vec![bound.to_string()]),
        LabelTest::Less(bound) => (v1::NodeOperator::Less, vec![bound.to_string()]),
    };
    v1::NodeExpression { key: expression.label.to_string(), operator: number(operator), values }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expression(key: &str, operator: v1::NodeOperator, values: &[&str]) -> v1::NodeExpression {
        let values = values.iter().map(|value| (*value).to_owned()).collect();
        v1::NodeExpression { key: key.to_owned(), operator: operator.into(), values }
    }

    fn read(message: v1::NodeRequirements) -> (Option<Box<NodeRequirements>>, Vec<String>) {
        let mut found = Found::default();
        let read = node_requirements("spec", Some(message), &mut found);
        (read, found.into_violations().iter().map(Violation::to_string).collect())
    }

    #[test]
    fn what_is_asked_is_read_and_shown() {
        let message = v1::NodeRequirements {
            expressions: vec![
                expression("zone", v1::NodeOperator::In, &["a", "b"]),
                expression("zone", v1::NodeOperator::NotIn, &["c"]),
                expression("fast", v1::NodeOperator::Exists, &[]),
                expression("slow", v1::NodeOperator::DoesNotExist, &[]),
                expression("memory-gib", v1::NodeOperator::Greater, &["512"]),
                expression("rank", v1::NodeOperator::Less, &["-1"]),
            ],
            only: vec!["h1".into()],
            exclude: vec!["h2".into()],
        };
        let (asked, found) = read(message.clone());
        assert_eq!(found, Vec::<String>::new());
        let asked = asked.expect("something is asked");
        assert_eq!(node_requirements_to_proto(&asked), message);
        assert_eq!(
            asked.to_string(),
            "zone in (a,b),zone notin (c),fast,!slow,memory-gib>512,rank<-1,only h1,exclude h2"
        );
        assert_eq!(read(v1::NodeRequirements::default()), (None, Vec::new()));
    }

    #[test]
    fn what_is_wrong_is_named_by_its_place() {
        let message = v1::NodeRequirements {
            expressions: vec![
                expression("Zone", v1::NodeOperator::In, &["a"]),
                expression("zone", v1::NodeOperator::Unspecified, &["a"]),
                v1::NodeExpression { key: "zone".into(), operator: 99, values: Vec::new() },
                expression("fast", v1::NodeOperator::Exists, &["yes"]),
                expression("gib", v1::NodeOperator::Greater, &[]),
                expression("gib", v1::NodeOperator::Less, &["9.5"]),
                expression("gib", v1::NodeOperator::Less, &["9223372036854775808"]),
            ],
            only: vec!["h1".into(), "h1".into(), "H".into()],
            exclude: Vec::new(),
        };
        let fields = [
            "expressions[0].key",
            "expressions[1].operator",
            "expressions[2].operator",
            "expressions[3].values",
            "expressions[4].values",
            "expressions[5].values",
            "expressions[6].values",
            "only[1]",
            "only[2]",
        ];
        let (_, found) = read(message);
        assert_eq!(found.len(), fields.len(), "{found:?}");
        for (text, field) in found.iter().zip(fields) {
            assert!(text.contains(&format!("spec.nodes.{field}")), "{text}");
        }
    }

    #[test]
    fn lists_that_are_too_long_are_cut_and_refused() {
        let names = |count: usize| (0..count).map(|n| format!("h{n}")).collect::<Vec<String>>();
        let tests = vec![expression("zone", v1::NodeOperator::Exists, &[]); limits::NODE_EXPRESSIONS_MAX + 1];
        let message = v1::NodeRequirements {
            expressions: tests,
            only: names(limits::NODES_NAMED_MAX + 1),
            exclude: Vec::new(),
        };
        let (_, found) = read(message);
        assert_eq!(found.len(), 2, "{found:?}");
    }
}
