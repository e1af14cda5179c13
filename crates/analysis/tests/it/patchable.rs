//! Places that the program itself may write.

use ingraft_analysis::AnalysedImage;
use ingraft_model::Svma;

use crate::support::{RODATA, TEXT, TestElf};

/// A function of 64 bytes at `TEXT`, with one-byte nops in its first half, and a section of this name and content.
fn image(name: &'static str, section: &[u8]) -> AnalysedImage {
    let mut code = [0x90; 64];
    code[32..].copy_from_slice(&[0x40; 32]);
    code[63] = 0xc3;
    AnalysedImage::parse(TestElf::new().function("f", &code).rodata(section).rodata_name(name).build()).unwrap()
}

/// The bytes of the function that the program may write.
fn patchable(image: &AnalysedImage) -> Vec<u64> {
    let at = |offset: &u64| image.patchable_in(&(Svma(TEXT + offset)..Svma(TEXT + offset + 1))).is_some();
    (0..64).filter(at).collect()
}

#[test]
fn absolute_addresses_count() {
    let section: Vec<u8> = [TEXT + 40, 0].iter().flat_map(|word| word.to_le_bytes()).collect();
    assert_eq!(patchable(&image("__jump_table", &section)), (40..45).collect::<Vec<_>>());
    assert_eq!(patchable(&image("xray_instr_map", &section)), (40..51).collect::<Vec<_>>());
    assert!(patchable(&image(".rodata", &section)).is_empty(), "another section");
}

#[test]
fn distances_count() {
    let near = (TEXT as i64 + 40 - (RODATA as i64 + 4)) as i32;
    let section: Vec<u8> = [7i32, near, 7, 7].iter().flat_map(|word| word.to_le_bytes()).collect();
    assert_eq!(patchable(&image("__jump_table", &section)), (40..45).collect::<Vec<_>>());
}

#[test]
fn all_nops_of_an_entry_count() {
    let section = TEXT.to_le_bytes();
    assert_eq!(patchable(&image("__patchable_function_entries", &section)), (0..32).collect::<Vec<_>>());
}

#[test]
fn a_range_is_asked_as_a_whole() {
    let image = image("__jump_table", &(TEXT + 40).to_le_bytes());
    let range = |start, end| image.patchable_in(&(Svma(TEXT + start)..Svma(TEXT + end)));
    assert_eq!(range(0, 40), None);
    assert_eq!(range(0, 41), Some(Svma(TEXT + 40)));
    assert_eq!(range(42, 64), Some(Svma(TEXT + 42)));
    assert_eq!(range(45, 64), None);
}

#[test]
fn a_broken_section_is_no_trouble() {
    assert!(patchable(&image("__jump_table", &[0xff; 13])).is_empty());
}
