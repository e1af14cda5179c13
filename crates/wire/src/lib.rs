//! The gRPC messages of `proto/ingraft/v1`, and the code that both sides need for them: conversions from and to the model whose errors have
//! the path of the wrong field, versions, errors as gRPC statuses, and large answers in parts. This crate opens no socket.

#![forbid(unsafe_code)]
#![warn(clippy::too_many_lines)]

pub mod convert;
pub mod failure;
pub mod parts;
pub mod profile;
pub mod sample;
pub mod trace;
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

pub use convert::FieldError;
pub use failure::Failure;
pub use parts::Parts;
pub use sample::Snapshot;
pub use version::{PROTOCOL, PROTOCOL_HEADER};

/// The descriptors of all proto files with their comments, as an encoded `google.protobuf.FileDescriptorSet`, for reflection.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/ingraft.v1.bin"));

/// Maximum size of a message in bytes. By default, gRPC implementations refuse larger ones.
pub const MESSAGE_BYTES: usize = 4 << 20;

/// Size in bytes up to which an answer fills a message. It leaves room for framing, and for implementations that count differently.
pub const PART_BYTES: usize = 1 << 20;
