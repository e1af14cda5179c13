//! Compiles the messages of profiles (`proto/ingraft/v1/counts.proto`) without protoc: protox compiles the descriptors, and prost-build
//! generates the code.

use std::error::Error;
use std::path::Path;

fn main() -> Result<(), Box<dyn Error>> {
    let root = Path::new(&std::env::var("CARGO_MANIFEST_DIR")?).join("../../proto");
    let file = root.join("ingraft/v1/counts.proto");
    println!("cargo::rerun-if-changed={}", file.display());
    let mut compiler = protox::Compiler::new([&root])?;
    compiler.include_source_info(true).open_file(&file)?;
    prost_build::Config::new().compile_fds(compiler.file_descriptor_set())?;
    Ok(())
}
