//! How a policy file writes the fields of a message. What is read is also what is shown.

use std::collections::{BTreeMap, HashMap};
use std::marker::PhantomData;

use muster_wire::closed::{ClosedSet, word};
use muster_wire::time::{Duration, Timestamp};
use muster_wire::v1;
use serde::de::DeserializeOwned;
use serde_json::Value;
use serde_saphyr::Spanned;

use crate::quantity::{self, Decimal, show_bytes};
use crate::reader::Reader;
use crate::shape::{Nodes, Text};
use crate::show::{Content, Fields, moment, nodes, span};

/// How a field is written.
pub(super) trait Form {
    /// The field as serde reads it from a file.
    type FileField;
    /// The field of the message.
    type MessageField;
    /// What the numbers of the message count, where the file has another unit.
    const UNIT: &'static str;

    fn read(reader: &mut Reader<'_>, at: &str, given: Self::FileField) -> Self::MessageField;

    /// None for what a file leaves out.
    fn show(sent: &Self::MessageField) -> Option<Content>;
}

/// A mapping with known fields, which is a message.
pub(super) trait Group: Default + DeserializeOwned {
    /// The message.
    type Message: Default;
    /// Of each field its name in the message, its name in a file, and the unit of [`Form::UNIT`].
    const FIELDS: &'static [(&'static str, &'static str, &'static str)];

    fn read(self, reader: &mut Reader<'_>, at: &str) -> Self::Message;

    fn show(sent: &Self::Message) -> Fields;
}

/// A group, field by field: the name in the message, the name in a file, and how the field is written.
macro_rules! group {
    ($group:ident is $message:ident { $($field:ident $name:literal: $form:ty,)* }) => {
        #[derive(Default, Deserialize)]
        #[serde(deny_unknown_fields)]
        pub(super) struct $group {
            $(#[serde(rename = $name)] $field: <$form as Form>::FileField,)*
        }

        impl Group for $group {
            type Message = v1::$message;
            const FIELDS: &'static [(&'static str, &'static str, &'static str)] =
                &[$((stringify!($field), $name, <$form as Form>::UNIT),)*];

            fn read(self, reader: &mut Reader<'_>, at: &str) -> v1::$message {
                v1::$message { $($field: <$form>::read(reader, &format!("{at}.{}", $name), self.$field),)* }
            }

            fn show(sent: &v1::$message) -> Fields {
                let mut shown = Fields::default();
                $(shown.put($name, <$form>::show(&sent.$field));)*
                shown
            }
        }
    };
}
pub(super) use group;

/// Forms: what serde reads, what is sent, the unit, how the one becomes the other, and how that is shown.
macro_rules! forms {
    ($($(#[$doc:meta])* $form:ident $(<$of:ident: $bound:path>)?: $given:ty => $sent:ty, $unit:expr,
       |$reader:ident, $at:ident, $text:ident| $read:expr, |$value:ident| $show:expr;)*) => {$(
        $(#[$doc])*
        pub(super) struct $form $(<$of>)? (PhantomData<($($of,)?)>);

        impl $(<$of: $bound>)? Form for $form $(<$of>)? {
            type FileField = $given;
            type MessageField = $sent;
            const UNIT: &'static str = $unit;

            fn read($reader: &mut Reader<'_>, $at: &str, $text: $given) -> $sent {
                $read
            }

            fn show($value: &$sent) -> Option<Content> {
                $show
            }
        }
    )*};
}

const THOUSANDTHS: &str = " (in thousandths)";
const MILLIONTHS: &str = " (in millionths of a dollar)";
const NO_NOMINAL: &str = "must be given: the devices that are guaranteed, or 0";

forms! {
    Flag: Option<Text> => Option<bool>, "",
        |reader, at, given| reader.value(at, given, quantity::flag),
        |sent| sent.map(value);

    Count: Option<Text> => Option<u32>, "",
        |reader, at, given| reader.value(at, given, quantity::count),
        |sent| sent.map(value);

    Milli: Option<Text> => Option<u64>, THOUSANDTHS,
        |reader, at, given| reader.value(at, given, quantity::milli),
        |sent| sent.map(|milli| Content::Decimal(Decimal::milli(milli)));

    SmallMilli: Option<Text> => Option<u32>, THOUSANDTHS,
        |reader, at, given| reader.value(at, given, quantity::milli_small),
        |sent| sent.map(|milli| Content::Decimal(Decimal::milli(milli.into())));

    /// Thousandths, zero where they are left out.
    PlainMilli: Option<Text> => u32, THOUSANDTHS,
        |reader, at, given| reader.value(at, given, quantity::milli_small).unwrap_or_default(),
        |sent| Some(Content::Decimal(Decimal::milli((*sent).into())));

    /// Devices that are guaranteed: never left out, as it is what a quota is for.
    Nominal: Option<Text> => u64, THOUSANDTHS,
        |reader, at, given| {
            if given.is_none() {
                reader.problem_near(at, NO_NOMINAL);
            }
            Milli::read(reader, at, given).unwrap_or_default()
        },
        |sent| Some(Content::Decimal(Decimal::milli(*sent)));

    Dollars: Option<Text> => u64, MILLIONTHS,
        |reader, at, given| reader.value(at, given, quantity::micro_dollars).unwrap_or_default(),
        |sent| Some(Content::Decimal(Decimal::micro(*sent)));

    Bytes: Option<Text> => u64, " (in bytes)",
        |reader, at, given| reader.value(at, given, quantity::memory_bytes).unwrap_or_default(),
        |sent| Some(value(show_bytes(*sent)));

    OptionalBytes: Option<Text> => Option<u64>, " (in bytes)",
        |reader, at, given| reader.value(at, given, quantity::memory_bytes),
        |sent| sent.map(|bytes| value(show_bytes(bytes)));

    Span: Option<Text> => Option<Duration>, "",
        |reader, at, given| reader.span(at, given),
        |sent| span(*sent).map(value);

    /// A moment, or a span from now on.
    Moment: Option<Text> => Option<Timestamp>, "",
        |reader, at, given| reader.time(at, given),
        |sent| moment(*sent).map(value);

    /// A name, empty where it is left out.
    Plain: Option<Text> => String, "",
        |reader, at, given| reader.text(at, given),
        |sent| (!sent.is_empty()).then(|| value(sent.as_str()));

    Names: Option<Vec<Text>> => Vec<String>, "",
        |reader, at, given| reader.list(at, given.unwrap_or_default()),
        |sent| Some(value(sent.clone()));

    /// Names that are not shown where there are none.
    FilledNames: Option<Vec<Text>> => Vec<String>, "",
        |reader, at, given| Names::read(reader, at, given),
        |sent| if sent.is_empty() { None } else { Names::show(sent) };

    /// A word of a closed set.
    Word<T: ClosedSet>: Option<Text> => i32, "",
        |reader, at, given| reader.closed::<T>(at, given),
        |sent| Some(word::<T>(*sent)).filter(|word| !word.is_empty()).map(value);

    /// Words of a closed set.
    Words<T: ClosedSet>: Option<Vec<Text>> => Vec<i32>, "",
        |reader, at, given| {
            let words = given.unwrap_or_default().into_iter().enumerate();
            words.map(|(index, text)| Word::<T>::read(reader, &format!("{at}[{index}]"), Some(text))).collect()
        },
        |sent| Some(value(sent.iter().map(|number| word::<T>(*number).to_owned()).collect::<Vec<_>>()));

    /// Words that are not shown where there are none.
    FilledWords<T: ClosedSet>: Option<Vec<Text>> => Vec<i32>, "",
        |reader, at, given| Words::<T>::read(reader, at, given),
        |sent| if sent.is_empty() { None } else { Words::<T>::show(sent) };

    /// What is asked of nodes, as in a job's file.
    NodeRules: Option<Nodes> => Option<v1::NodeRequirements>, "",
        |reader, at, given| given.map(|asked| reader.nodes(at, asked)),
        |sent| sent.as_ref().map(|asked| Content::Fields(nodes(asked)));

    /// A group that may be left out.
    Optional<G: Group>: Option<G> => Option<G::Message>, "",
        |reader, at, given| given.map(|group| group.read(reader, at)),
        |sent| sent.as_ref().map(|sent| Content::Fields(G::show(sent)));

    /// A list of groups.
    Each<G: Group>: Option<Vec<Spanned<G>>> => Vec<G::Message>, "",
        |reader, at, given| {
            let mut sent = Vec::new();
            for (index, item) in given.unwrap_or_default().into_iter().enumerate() {
                let at = format!("{at}[{index}]");
                reader.place(&at, item.referenced);
                sent.push(item.value.read(reader, &at));
            }
            sent
        },
        |sent| Some(Content::List(sent.iter().map(|sent| Content::Fields(G::show(sent))).collect()));

    /// A list that is not shown where it is empty.
    Filled<G: Group>: Option<Vec<Spanned<G>>> => Vec<G::Message>, "",
        |reader, at, given| Each::<G>::read(reader, at, given),
        |sent| if sent.is_empty() { None } else { Each::<G>::show(sent) };

    /// Groups with names of the user's own.
    Named<G: Group>: Option<BTreeMap<String, Option<G>>> => HashMap<String, G::Message>, "",
        |reader, at, given| {
            let mut sent = HashMap::new();
            for (name, group) in given.unwrap_or_default() {
                let at = format!("{at}.{}", short(&name));
                sent.insert(name, group.unwrap_or_default().read(reader, &at));
            }
            sent
        },
        |sent| {
            let shown = sent.iter().map(|(name, sent)| (name.clone(), Content::Fields(G::show(sent))));
            Some(Content::Named(shown.collect()))
        };

    /// The same, not shown where there are none.
    FilledNamed<G: Group>: Option<BTreeMap<String, Option<G>>> => HashMap<String, G::Message>, "",
        |reader, at, given| Named::<G>::read(reader, at, given),
        |sent| if sent.is_empty() { None } else { Named::<G>::show(sent) };

    /// Counts with names of the user's own.
    NamedCounts: Option<BTreeMap<String, Text>> => HashMap<String, u32>, "",
        |reader, at, given| {
            let mut sent = HashMap::new();
            for (name, count) in given.unwrap_or_default() {
                let at = format!("{at}.{}", short(&name));
                sent.insert(name, Count::read(reader, &at, Some(count)).unwrap_or_default());
            }
            sent
        },
        |sent| {
            let shown = sent.iter().map(|(name, count)| (name.clone(), value(*count)));
            Some(Content::Named(shown.collect()))
        };

    /// Weights with names of the user's own, not shown where there are none.
    NamedWeights: Option<BTreeMap<String, Text>> => HashMap<String, u32>, THOUSANDTHS,
        |reader, at, given| {
            let mut sent = HashMap::new();
            for (name, weight) in given.unwrap_or_default() {
                let at = format!("{at}.{}", short(&name));
                sent.insert(name, SmallMilli::read(reader, &at, Some(weight)).unwrap_or_default());
            }
            sent
        },
        |sent| {
            let weight = |milli: u32| Content::Decimal(Decimal::milli(milli.into()));
            let shown = sent.iter().map(|(name, milli)| (name.clone(), weight(*milli)));
            (!sent.is_empty()).then(|| Content::Named(shown.collect()))
        };
}

fn value(value: impl Into<Value>) -> Content {
    Content::Value(value.into())
}

/// A user's name in a path.
fn short(name: &str) -> String {
    name.chars().take(80).collect()
}
