//! Compiles `proto/` without protoc: protox compiles the descriptor set, and tonic-prost-build generates the code. The descriptor set keeps
//! the comments, for reflection. The messages of profiles are those of crate `report`, which saves them.

use std::error::Error;
use std::path::Path;

use prost::Message;
use prost_types::FileDescriptorProto;

const FILES: [&str; 12] = [
    "target",
    "processes",
    "code",
    "sampling",
    "history",
    "metrics",
    "counts",
    "printed",
    "instrumentation",
    "profiles",
    "traces",
    "daemon",
];

fn main() -> Result<(), Box<dyn Error>> {
    let root = Path::new(&std::env::var("CARGO_MANIFEST_DIR")?).join("../../proto");
    println!("cargo::rerun-if-changed={}", root.display());
    let files: Vec<_> = FILES.iter().map(|name| root.join(format!("ingraft/v1/{name}.proto"))).collect();
    let mut compiler = protox::Compiler::new([&root])?;
    compiler.include_source_info(true).include_imports(true).open_files(&files)?;
    let descriptors = compiler.file_descriptor_set();
    let out = std::env::var("OUT_DIR")?;
    std::fs::write(Path::new(&out).join("ingraft.v1.bin"), descriptors.encode_to_vec())?;
    let is_saved = |file: &&FileDescriptorProto| file.name() == "ingraft/v1/counts.proto";
    let saved: Vec<_> = descriptors.file.iter().filter(is_saved).flat_map(|file| &file.message_type).collect();
    let builder = saved.iter().fold(tonic_prost_build::configure(), |builder, message| {
        let name = message.name();
        builder.extern_path(format!(".ingraft.v1.{name}"), format!("::ingraft_report::message::{name}"))
    });
    builder.compile_fds(descriptors.clone())?;
    Ok(())
}
