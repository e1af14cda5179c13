//! The gRPC messages of `proto/ingraft/v1`, and the code that both sides need for them: conversions of the values of `ingraft_api` to messages
//! and back, one file for each noun, versions, errors as gRPC statuses, and large answers in parts. This crate opens no socket.

#![forbid(unsafe_code)]
#![warn(clippy::too_many_lines)]

#[macro_use]
mod field;

#[cfg(test)]
mod any;
pub mod code;
pub mod enabled;
pub mod failure;
mod function;
pub mod history;
mod inserted;
mod lower;
pub mod measure;
pub mod metric;
pub mod parts;
pub mod printed;
pub mod process;
pub mod profile;
mod removed;
pub mod sample;
pub mod sampling;
mod shares;
pub mod totals;
pub mod trace;
pub mod value;
pub mod version;

/// The generated messages, clients and servers. Their documentation comes from the proto files.
#[allow(
    missing_docs,
    unused_qualifications,
    rustdoc::invalid_html_tags,
    rustdoc::broken_intra_doc_links,
    clippy::allow_attributes_without_reason,
    clippy::doc_lazy_continuation,
    clippy::large_enum_variant,
    clippy::too_many_lines,
    reason = "generated code; the proto files are checked for comments by a test"
)]
pub mod v1 {
    pub use ingraft_report::message::*;

    tonic::include_proto!("ingraft.v1");
}

pub use failure::ProtocolFailure;
pub use field::{FieldError, known};
pub use parts::MessageParts;
pub use sample::Snapshot;
pub use version::{PROTOCOL, PROTOCOL_HEADER};

/// The descriptors of all proto files with their comments, as an encoded `google.protobuf.FileDescriptorSet`, for reflection.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/ingraft.v1.bin"));

/// Maximum size of a message in bytes. By default, gRPC implementations refuse larger ones.
pub const MESSAGE_BYTES: usize = 4 << 20;

/// Size in bytes up to which an answer fills a message. It leaves room for framing, and for implementations that count differently.
pub const PART_BYTES: usize = 1 << 20;
