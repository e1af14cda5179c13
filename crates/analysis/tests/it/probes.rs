//! Static probes (USDT), which no springboard covers.

use ingraft_analysis::AnalysedImage;
use ingraft_model::{Refusal, Svma};

use crate::support::{TEXT, TestElf, find};

/// A note that names an address as that of a probe.
fn note(at: u64) -> Vec<u8> {
    let mut note: Vec<u8> = [8u32, 28, 3].iter().flat_map(|word| word.to_le_bytes()).collect();
    note.extend_from_slice(b"stapsdt\0");
    note.extend([at, 0, 0].iter().flat_map(|word| word.to_le_bytes()));
    note.extend_from_slice(b"p\0q\0");
    note
}

/// A function `f` of 32 one-byte nops and a return, with probes at these offsets.
fn program(probes: &[u64]) -> AnalysedImage {
    let notes: Vec<u8> = probes.iter().flat_map(|offset| note(TEXT + offset)).collect();
    let code: Vec<u8> = [&[0x90; 32][..], &[0xc3]].concat();
    TestElf::new().function("f", &code).rodata(&notes).rodata_name(".note.stapsdt").image()
}

#[test]
fn probes_are_listed() {
    let image = program(&[9, 3, 3]);
    let all = |from, until| image.probes_in(&(Svma(TEXT + from)..Svma(TEXT + until))).collect::<Vec<_>>();
    assert_eq!(all(0, 32), [Svma(TEXT + 3), Svma(TEXT + 9)]);
    assert_eq!(all(4, 9), []);
    assert_eq!(all(9, 10), [Svma(TEXT + 9)]);
}

#[test]
fn springboards_end_before_a_probe() {
    let image = program(&[3]);
    let site = image.entry_site(find(&image, "f")).unwrap();
    assert_eq!(site.landings, [Svma(TEXT + 3)]);
    let body = image.body(find(&image, "f")).unwrap();
    assert_eq!(body.blocks.as_slice()[0].room.as_ref().unwrap().landings, [Svma(TEXT + 3)]);
}

#[test]
fn no_springboard_begins_at_a_probe() {
    let image = program(&[0]);
    let site = image.entry_site(find(&image, "f")).unwrap();
    assert!(site.first_instruction().is_some_and(|first| first.must_stay));
    let body = image.body(find(&image, "f")).unwrap();
    assert!(matches!(body.blocks.as_slice()[0].room, Err(Refusal::TooShort { available: 0, .. })));
}

#[test]
fn broken_notes_are_no_trouble() {
    let whole = note(TEXT + 3);
    // Both addresses end behind 36 bytes.
    for len in 0..36 {
        let image = TestElf::new()
            .function("f", &[0x90; 32])
            .rodata(whole.get(..len).unwrap())
            .rodata_name(".note.stapsdt")
            .image();
        assert_eq!(image.probes_in(&(Svma(0)..Svma(u64::MAX))).next(), None, "{len}");
    }
    let huge = [0xff; 64];
    let image = TestElf::new().function("f", &[0x90; 32]).rodata(&huge).rodata_name(".note.stapsdt").image();
    assert_eq!(image.probes_in(&(Svma(0)..Svma(u64::MAX))).next(), None);
}
