//! The coverage format drcov, version 2, of DynamoRIO, which Lighthouse and other tools for coverage of binaries read.
//!
//! A text header lists the modules. A table of 8 bytes for each executed block follows: the offset from the base of its module (32 bits),
//! its length in bytes (16 bits) and the index of its module (16 bits), in little-endian order.

use std::fmt::Write;

use super::Exporter;
use super::text::one_line;
use crate::program::ProfiledProgram;
use crate::saved::ProfileKind;

/// The format.
pub(super) const EXPORTER: Exporter = Exporter {
    name: "drcov",
    reader: "Lighthouse",
    kinds: &[ProfileKind::Counts, ProfileKind::Coverage],
    of_one_module: false,
    why_empty: None,
    write: |program, _| drcov(program),
};

/// The executed blocks in the format drcov. The format cannot hold offsets of more than 32 bits, so blocks there are left out, and lengths
/// of more than 65,535 bytes are cut.
fn drcov(program: &ProfiledProgram<'_>) -> Vec<u8> {
    let profile = program.profile();
    let mut head = String::from("DRCOV VERSION: 2\nDRCOV FLAVOR: drcov\n");
    head += &format!("Module Table: version 2, count {}\n", profile.modules.len());
    head += "Columns: id, base, end, entry, path\n";
    for (number, module) in profile.modules.iter().enumerate() {
        let (low, high) = (module.mapped.0.wrapping_add(module.bias), module.mapped.1.wrapping_add(module.bias));
        // Writing to a text does not fail.
        let _written =
            writeln!(head, "{number:3}, 0x{low:016x}, 0x{high:016x}, 0x{:016x}, {}", 0, one_line(&module.path));
    }
    let mut table = Vec::new();
    let mut count = 0_u64;
    for routine in program.functions() {
        for block in routine.function.blocks.iter().filter(|block| block.count > 0) {
            let offset = block.start.0.wrapping_sub(routine.module.mapped.0);
            let (Ok(at), Ok(module)) = (u32::try_from(offset), u16::try_from(routine.function.module)) else {
                continue;
            };
            table.extend(at.to_le_bytes());
            table.extend(u16::try_from(block.size).unwrap_or(u16::MAX).to_le_bytes());
            table.extend(module.to_le_bytes());
            count += 1;
        }
    }
    head += &format!("BB Table: {count} bbs\n");
    let mut bytes = head.into_bytes();
    bytes.extend(table);
    bytes
}
