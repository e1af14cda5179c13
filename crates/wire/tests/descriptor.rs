//! Checks of the protocol: a listing that makes every change visible, and a test that every item has a comment.

#![expect(clippy::unwrap_used, reason = "a failed helper is a failed test")]

use std::collections::HashSet;
use std::fmt::Write;

use expect_test::expect_file;
use prost::Message;
use prost_types::field_descriptor_proto::{Label, Type};
use prost_types::{DescriptorProto, EnumDescriptorProto, FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet};

fn files() -> Vec<FileDescriptorProto> {
    let set = FileDescriptorSet::decode(ingraft_wire::DESCRIPTORS).unwrap();
    assert!(set.file.iter().all(|file| file.package() == "ingraft.v1"));
    let mut files = set.file;
    files.sort_by(|a, b| a.name().cmp(b.name()));
    files
}

fn type_of(field: &FieldDescriptorProto) -> String {
    let name = match field.r#type() {
        Type::Message | Type::Enum => field.type_name().trim_start_matches(".ingraft.v1.").to_owned(),
        simple => simple.as_str_name().trim_start_matches("TYPE_").to_lowercase(),
    };
    match field.label() {
        Label::Repeated => format!("repeated {name}"),
        Label::Optional | Label::Required if field.proto3_optional() => format!("optional {name}"),
        Label::Optional | Label::Required => name,
    }
}

fn list_message(out: &mut String, message: &DescriptorProto) {
    writeln!(out, "message {}", message.name()).unwrap();
    for field in &message.field {
        let oneof = field.oneof_index.filter(|_| !field.proto3_optional());
        let oneof = oneof.map(|i| format!(" in {}", message.oneof_decl[i as usize].name())).unwrap_or_default();
        writeln!(out, "  {} {}: {}{oneof}", field.number(), field.name(), type_of(field)).unwrap();
    }
    message.nested_type.iter().for_each(|nested| list_message(out, nested));
}

fn list_enum(out: &mut String, list: &EnumDescriptorProto) {
    writeln!(out, "enum {}", list.name()).unwrap();
    for value in &list.value {
        writeln!(out, "  {} {}", value.number(), value.name()).unwrap();
    }
}

#[test]
fn the_protocol_is_the_one_that_was_agreed_on() {
    let mut out = String::new();
    for file in files() {
        writeln!(out, "file {}", file.name()).unwrap();
        for service in &file.service {
            writeln!(out, "service {}", service.name()).unwrap();
            for method in &service.method {
                let short = |name: &str| name.trim_start_matches(".ingraft.v1.").to_owned();
                let stream = if method.server_streaming() { "stream " } else { "" };
                assert!(!method.client_streaming());
                let (input, output) = (short(method.input_type()), short(method.output_type()));
                writeln!(out, "  {}({input}) -> {stream}{output}", method.name()).unwrap();
            }
        }
        file.message_type.iter().for_each(|message| list_message(&mut out, message));
        file.enum_type.iter().for_each(|list| list_enum(&mut out, list));
    }
    expect_file!["../../../tests/golden/descriptor.txt"].assert_eq(&out);
}

/// Returns the path (field numbers and indices) and the name of each item of a file, as in google/protobuf/descriptor.proto.
fn paths(file: &FileDescriptorProto) -> Vec<(Vec<i32>, String)> {
    fn index(i: usize) -> i32 {
        i32::try_from(i).unwrap()
    }
    let mut out = Vec::new();
    for (i, message) in file.message_type.iter().enumerate() {
        let path = vec![4, index(i)];
        for (j, field) in message.field.iter().enumerate() {
            out.push(([&path[..], &[2, index(j)]].concat(), format!("{}.{}", message.name(), field.name())));
        }
        for (j, oneof) in message.oneof_decl.iter().enumerate().filter(|(_, o)| !o.name().starts_with('_')) {
            out.push(([&path[..], &[8, index(j)]].concat(), format!("{}.{}", message.name(), oneof.name())));
        }
        assert!(message.nested_type.is_empty() && message.enum_type.is_empty(), "nested types are not looked at here");
        out.push((path, message.name().to_owned()));
    }
    for (i, list) in file.enum_type.iter().enumerate() {
        for (j, value) in list.value.iter().enumerate() {
            out.push((vec![5, index(i), 2, index(j)], value.name().to_owned()));
        }
        out.push((vec![5, index(i)], list.name().to_owned()));
    }
    for (i, service) in file.service.iter().enumerate() {
        for (j, method) in service.method.iter().enumerate() {
            out.push((vec![6, index(i), 2, index(j)], format!("{}.{}", service.name(), method.name())));
        }
        out.push((vec![6, index(i)], service.name().to_owned()));
    }
    out
}

#[test]
fn everything_has_a_comment() {
    for file in files() {
        let info = file.source_code_info.as_ref().unwrap();
        let commented: HashSet<_> =
            info.location.iter().filter(|l| !l.leading_comments().trim().is_empty()).map(|l| &l.path).collect();
        for (path, name) in paths(&file) {
            assert!(commented.contains(&path), "{}: {name} has no comment", file.name());
        }
    }
}

#[test]
fn times_and_sizes_say_their_unit() {
    for file in files() {
        for message in &file.message_type {
            for field in &message.field {
                let name = field.name();
                let vague = ["time", "interval", "duration", "timeout", "size_kb", "ms"].contains(&name);
                assert!(!vague, "{}.{name} does not say its unit", message.name());
            }
        }
    }
}
