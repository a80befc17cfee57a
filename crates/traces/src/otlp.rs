//! Spans as bytes of an `ExportTraceServiceRequest`, by version 1 of OTLP.
//!
//! The request has six kinds of messages and no more than lengths, numbers and texts in them, so it is written as it goes: the
//! definitions of all signals would be compiled for it otherwise.

use std::time::{SystemTime, UNIX_EPOCH};

use crate::tracer::{Ended, Side, Value};

/// Kinds of fields, by the encoding of protobuf.
const VARINT: u32 = 0;
const FIXED_64: u32 = 1;
const LENGTH: u32 = 2;

/// The status of a span that has failed.
const STATUS_ERROR: u64 = 2;

/// What this process is: names and values.
pub(crate) type Resource<'a> = &'a [(&'static str, String)];

/// The request that carries spans of this process.
pub(crate) fn request(resource: Resource<'_>, version: &str, spans: &[Ended]) -> Vec<u8> {
    let mut described = Message::default();
    for (name, value) in resource {
        described.message(1, attribute(name, &Value::Text(value.clone())));
    }
    let mut scope = Message::default();
    scope.bytes(1, b"muster");
    scope.bytes(2, version.as_bytes());
    let mut of_scope = Message::default();
    of_scope.message(1, scope);
    spans.iter().for_each(|span| of_scope.message(2, encoded(span)));
    let mut of_resource = Message::default();
    of_resource.message(1, described);
    of_resource.message(2, of_scope);
    let mut request = Message::default();
    request.message(1, of_resource);
    request.0
}

fn encoded(span: &Ended) -> Message {
    let mut message = Message::default();
    message.bytes(1, &span.own.trace_id());
    message.bytes(2, &span.own.span_id());
    if let Some(parent) = &span.parent {
        message.bytes(4, parent);
    }
    message.bytes(5, span.name.as_bytes());
    message.number(
        6,
        match span.side {
            Side::Internal => 1,
            Side::Server => 2,
            Side::Producer => 4,
            Side::Consumer => 5,
        },
    );
    message.fixed(7, nanoseconds(span.begun));
    message.fixed(8, nanoseconds(span.ended));
    for (name, value) in &span.attributes {
        message.message(9, attribute(name, value));
    }
    if let Some(why) = &span.failure {
        let mut status = Message::default();
        status.bytes(2, why.as_bytes());
        status.number(3, STATUS_ERROR);
        message.message(15, status);
    }
    message
}

fn attribute(name: &str, value: &Value) -> Message {
    let mut any = Message::default();
    match value {
        Value::Text(text) => any.bytes(1, text.as_bytes()),
        Value::Flag(flag) => any.number(2, u64::from(*flag)),
        // A negative number is the same bits without a sign.
        Value::Number(number) => any.number(3, u64::from_ne_bytes(number.to_ne_bytes())),
    }
    let mut pair = Message::default();
    pair.bytes(1, name.as_bytes());
    pair.message(2, any);
    pair
}

fn nanoseconds(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

/// A message that is being written.
#[derive(Default)]
struct Message(Vec<u8>);

impl Message {
    fn varint(&mut self, mut number: u64) {
        loop {
            let [low, ..] = number.to_le_bytes();
            number >>= 7;
            if number == 0 {
                self.0.push(low & 0x7f);
                return;
            }
            self.0.push(low | 0x80);
        }
    }

    fn key(&mut self, field: u32, kind: u32) {
        self.varint(u64::from((field << 3) | kind));
    }

    fn number(&mut self, field: u32, number: u64) {
        self.key(field, VARINT);
        self.varint(number);
    }

    fn fixed(&mut self, field: u32, number: u64) {
        self.key(field, FIXED_64);
        self.0.extend(number.to_le_bytes());
    }

    fn bytes(&mut self, field: u32, bytes: &[u8]) {
        self.key(field, LENGTH);
        self.varint(u64::try_from(bytes.len()).unwrap_or(u64::MAX));
        self.0.extend_from_slice(bytes);
    }

    fn message(&mut self, field: u32, message: Message) {
        self.bytes(field, &message.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use muster_types::TraceParent;
    use std::time::Duration;

    fn span() -> Ended {
        Ended {
            name: "muster.apply",
            side: Side::Internal,
            own: TraceParent::new([1; 16], [2; 8], 1).expect("it is good"),
            parent: Some([3; 8]),
            begun: UNIX_EPOCH + Duration::from_nanos(1),
            ended: UNIX_EPOCH + Duration::from_nanos(2),
            attributes: vec![("n", Value::Number(300)), ("f", Value::Flag(true))],
            failure: Some("no".to_owned()),
        }
    }

    /// The fields of a message: number, kind and content; of numbers the varint alone.
    fn fields(mut bytes: &[u8]) -> Vec<(u64, Vec<u8>)> {
        fn varint(bytes: &mut &[u8]) -> u64 {
            let (mut number, mut shift) = (0, 0);
            while let Some((byte, rest)) = bytes.split_first() {
                *bytes = rest;
                number |= u64::from(byte & 0x7f) << shift;
                shift += 7;
                if byte & 0x80 == 0 {
                    break;
                }
            }
            number
        }
        let mut found = Vec::new();
        while !bytes.is_empty() {
            let key = varint(&mut bytes);
            let length = match key & 7 {
                0 => {
                    found.push((key >> 3, varint(&mut bytes).to_le_bytes().to_vec()));
                    continue;
                }
                1 => 8,
                2 => usize::try_from(varint(&mut bytes)).expect("it is short"),
                kind => panic!("no such kind here: {kind}"),
            };
            let (content, rest) = bytes.split_at(length);
            found.push((key >> 3, content.to_vec()));
            bytes = rest;
        }
        found
    }

    fn field(bytes: &[u8], number: u64) -> Vec<Vec<u8>> {
        fields(bytes).into_iter().filter(|(of, _)| *of == number).map(|(_, content)| content).collect()
    }

    #[test]
    fn a_request_has_resource_scope_and_spans_in_the_fields_of_the_specification() {
        let resource = [("service.name", "muster-server".to_owned())];
        let bytes = request(&resource, "0.1.0", &[span(), span()]);
        let of_resource = &field(&bytes, 1)[0];
        let pair = &field(&field(of_resource, 1)[0], 1)[0];
        assert_eq!(field(pair, 1), [b"service.name".to_vec()]);
        assert_eq!(field(&field(pair, 2)[0], 1), [b"muster-server".to_vec()]);
        let of_scope = &field(of_resource, 2)[0];
        assert_eq!(field(&field(of_scope, 1)[0], 1), [b"muster".to_vec()]);
        let spans = field(of_scope, 2);
        assert_eq!(spans.len(), 2);
        let span = &spans[0];
        assert_eq!(field(span, 1), [vec![1; 16]]);
        assert_eq!(field(span, 2), [vec![2; 8]]);
        assert_eq!(field(span, 4), [vec![3; 8]]);
        assert_eq!(field(span, 5), [b"muster.apply".to_vec()]);
        assert_eq!(field(span, 6), [1_u64.to_le_bytes().to_vec()]);
        assert_eq!(field(span, 7), [1_u64.to_le_bytes().to_vec()]);
        assert_eq!(field(span, 8), [2_u64.to_le_bytes().to_vec()]);
        let attributes = field(span, 9);
        assert_eq!(field(&field(&attributes[0], 2)[0], 3), [300_u64.to_le_bytes().to_vec()]);
        assert_eq!(field(&field(&attributes[1], 2)[0], 2), [1_u64.to_le_bytes().to_vec()]);
        let status = &field(span, 15)[0];
        assert_eq!(
            (field(status, 2), field(status, 3)),
            (vec![b"no".to_vec()], vec![2_u64.to_le_bytes().to_vec()])
        );
    }
}
