//! Restartable sequences of the kernel (rseq), by their descriptors and signatures.

use ingraft_model::{Refusal, Svma};

use crate::support::{TEXT, TestElf, find};

/// Signature before the handler of an abort, within the instruction that is usual, and a jump to `f`.
const HANDLER: [u8; 9] = [0x0f, 0xb9, 0x3d, 0x53, 0x30, 0x05, 0x53, 0xeb, 0xe7];
/// Address of the handler, which lies behind 16 bytes of `f`.
const AT: u64 = TEXT + 0x10 + 7;

/// A function `f` of 16 bytes, a handler, and a function `g` of 64 bytes far behind.
fn program(handler: &[u8]) -> TestElf {
    TestElf::new().function("f", &[0x90; 16]).raw(handler).raw(&[0x90; 0x100]).function("g", &[0x90; 64])
}

/// A descriptor without flags: its first instruction, the length of its instructions, and the handler.
fn descriptor(start: u64, length: u64, handler: u64) -> Vec<u8> {
    [0, start, length, handler].iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// Whether sequences keep the entries of `f` and `g` from being woven.
fn refused(elf: &TestElf) -> [bool; 2] {
    let image = elf.image();
    ["f", "g"].map(|name| match image.entry_site(find(&image, name)) {
        Err(Refusal::RestartableSequence) => true,
        Ok(_) => false,
        Err(other) => panic!("{name}: {other}"),
    })
}

#[test]
fn descriptors_are_found_in_any_data() {
    let sequence = descriptor(TEXT + 2, 4, AT);
    assert_eq!(refused(&program(&HANDLER).rodata(&sequence).rodata_name("__rseq_cs")), [true, false]);
    assert_eq!(refused(&program(&HANDLER).rodata(&[7; 16]).rodata(&sequence)), [true, false]);
    let image = program(&HANDLER).rodata(&sequence).image();
    assert_eq!(
        image.restartable_sequences().collect::<Vec<_>>(),
        [Svma(TEXT + 2)..Svma(TEXT + 6), Svma(AT - 4)..Svma(AT + 1)]
    );
}

#[test]
fn a_signature_needs_no_instruction() {
    let handler: Vec<u8> = [&[0x90; 3][..], &HANDLER[3..]].concat();
    assert_eq!(refused(&program(&handler).rodata(&descriptor(TEXT + 2, 4, AT))), [true, false]);
    // Without a descriptor it may be a number.
    assert_eq!(refused(&program(&handler)), [false, false]);
}

#[test]
fn signatures_of_other_programs_are_found_by_their_instruction() {
    let mut handler = HANDLER;
    handler[3..7].copy_from_slice(&[1, 2, 3, 4]);
    let sequence = descriptor(TEXT + 2, 4, AT);
    assert_eq!(refused(&program(&handler).rodata(&sequence)), [true, false]);
    handler[..3].copy_from_slice(&[0x0f, 0x1f, 0x05]);
    assert_eq!(refused(&program(&handler).rodata(&sequence)), [true, false]);
    assert_eq!(refused(&program(&[0x90; 9]).rodata(&sequence)), [false, false]);
}

/// Where no descriptor is in the file, all of the function to which the handler leads may be critical.
#[test]
fn sequences_that_are_described_at_run_time_are_found_by_their_handler() {
    assert_eq!(refused(&program(&HANDLER)), [true, false]);
}

#[test]
fn other_data_is_no_descriptor() {
    for (start, length, handler) in [(TEXT + 2, 0, AT), (TEXT + 2, 1 << 40, AT), (TEXT + 2, 0x40, AT), (7, 4, AT)] {
        let data = descriptor(start, length, handler);
        let number: Vec<u8> = [&[0x90; 3][..], &HANDLER[3..]].concat();
        assert_eq!(refused(&program(&number).rodata(&data)), [false, false], "{start:#x} {length}");
    }
    let mut flagged = descriptor(TEXT + 2, 4, AT);
    flagged[0] = 1;
    let number: Vec<u8> = [&[0x90; 3][..], &HANDLER[3..]].concat();
    assert_eq!(refused(&program(&number).rodata(&flagged)), [false, false]);
}

/// No program has so many, so all of a file with more is refused, and no range is searched twice for them.
#[test]
fn files_with_too_many_sequences_are_refused() {
    let many = HANDLER.repeat(1 << 14);
    assert_eq!(refused(&program(&many)), [true, true]);
    assert_eq!(refused(&program(&HANDLER.repeat(100))), [true, false]);
    let listed = |count| program(&[]).rodata(&descriptor(TEXT + 2, 4, AT).repeat(count)).rodata_name("__rseq_cs");
    assert_eq!(refused(&listed((1 << 14) + 1)), [true, true]);
    assert_eq!(refused(&listed(1 << 14)), [true, false]);
}
