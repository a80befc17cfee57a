//! Which fields stored requests have: all that a client can set.

use std::collections::BTreeMap;

use prost::encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field};
use prost_types::field_descriptor_proto::Type;
use prost_types::{DescriptorProto, FileDescriptorSet};

use super::*;

/// Fields that the server sets, and ignores or refuses in requests.
const OF_SERVERS: &[&str] = &[
    "Job.array",
    "Job.creator",
    "Job.etag",
    "Job.id",
    "Job.labels_incomplete",
    "Job.redacted",
    "Job.status",
    "QuotaGrant.answer_reason",
    "QuotaGrant.answer_time",
    "QuotaGrant.answered_by",
    "QuotaGrant.answered_for_tenant",
    "QuotaGrant.create_time",
    "QuotaGrant.created_by",
    "QuotaGrant.end",
    "QuotaGrant.id",
    "QuotaGrant.impact",
    "QuotaGrant.over_time",
    "QuotaGrant.status",
    "Schedule.next_run_at",
    "Schedule.owner",
    "Schedule.runs",
    "Schedule.set_at",
    "Schedule.skipped_count",
    "Schedule.submitted_count",
    "Schedule.suspension",
    "Schedule.unfinished_job_ids",
];

/// Messages of the public package by their names, as fields name them.
type Messages = BTreeMap<String, DescriptorProto>;
/// Names of fields behind those of their messages.
type Fields = BTreeSet<String>;

fn collect(prefix: &str, found: &[DescriptorProto], messages: &mut Messages) {
    for message in found {
        let name = format!("{prefix}.{}", message.name());
        collect(&name, &message.nested_type, messages);
        messages.insert(name, message.clone());
    }
}

/// As `Job.labels`, without the package.
fn shown(message: &str, field: &str) -> String {
    let name = message.trim_start_matches('.').trim_start_matches(PACKAGE).trim_start_matches('.');
    format!("{name}.{field}")
}

/// Notes the fields that a message has, and those of the messages in it.
fn note(messages: &Messages, name: &str, mut bytes: &[u8], set: &mut Fields) {
    let Some(message) = messages.get(name) else { return };
    while !bytes.is_empty() {
        let (number, wire) = decode_key(&mut bytes).expect("a key");
        let known = |field: &&prost_types::FieldDescriptorProto| u32::try_from(field.number()) == Ok(number);
        let field = message.field.iter().find(known).expect("the message is of this build");
        set.insert(shown(name, field.name()));
        if wire == WireType::LengthDelimited {
            let length = decode_varint(&mut bytes).expect("a length");
            let (inner, rest) = bytes.split_at(usize::try_from(length).expect("it is in memory"));
            bytes = rest;
            if field.r#type() == Type::Message {
                note(messages, field.type_name(), inner, set);
            }
        } else {
            skip_field(wire, number, &mut bytes, DecodeContext::default()).expect("a value");
        }
    }
}

/// Every field that a client can set in a message or in one below it.
fn settable(messages: &Messages, name: &str, found: &mut Fields, seen: &mut BTreeSet<String>) {
    let Some(message) = messages.get(name).filter(|_| seen.insert(name.to_owned())) else { return };
    for field in &message.field {
        let field_name = shown(name, field.name());
        if !OF_SERVERS.contains(&field_name.as_str()) {
            found.insert(field_name);
            settable(messages, field.type_name(), found, seen);
        }
    }
}

#[test]
fn stored_requests_have_every_field_that_a_client_can_set() {
    let files = FileDescriptorSet::decode(muster_wire::DESCRIPTORS).expect("they are descriptors");
    let of_package: Vec<_> = files.file.iter().filter(|file| file.package() == PACKAGE).collect();
    let mut messages = Messages::new();
    for file in &of_package {
        collect(&format!(".{PACKAGE}"), &file.message_type, &mut messages);
    }
    let mut requests = BTreeMap::new();
    for service in of_package.iter().flat_map(|file| &file.service) {
        for call in &service.method {
            requests.insert(format!("{}/{}", service.name(), call.name()), call.input_type().to_owned());
        }
    }
    let (mut wanted, mut seen) = (Fields::new(), BTreeSet::new());
    for request in requests.values() {
        settable(&messages, request, &mut wanted, &mut seen);
    }
    assert!(wanted.len() > 300, "fields are found: {}", wanted.len());
    let mut set = Fields::new();
    for request in every_request() {
        note(&messages, &requests[request.call], &request.bytes, &mut set);
    }
    let missing: Vec<&String> = wanted.difference(&set).collect();
    assert!(missing.is_empty(), "no stored request has these; store one: {missing:?}");
    let needless: Vec<_> = OF_SERVERS.iter().filter(|field| set.contains(**field)).collect();
    assert!(needless.is_empty(), "stored requests set what only the server sets: {needless:?}");
}
