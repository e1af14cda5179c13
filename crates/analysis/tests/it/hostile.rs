//! Damaged and hostile files: for any bytes there is an answer, soon, and no panic.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use crate::support::{FUNC, RODATA, TEXT, TestElf};
use iced_x86::code_asm::*;
use ingraft_analysis::{AnalysedImage, Elf, FrameTable, Function, Registers};
use proptest::prelude::*;

/// Calls every query of the crate.
fn exercise(bytes: Arc<[u8]>) {
    let begun = Instant::now();
    if let Ok(image) = AnalysedImage::parse(Arc::clone(&bytes)) {
        for f in image.functions().iter().take(500) {
            let site = image.entry_site(f);
            if let Ok(site) = site {
                assert!(usize::from(site.own) <= site.bytes.len() && site.bytes.len() <= 64);
                assert!(site.landings.iter().all(|l| *l > site.at && l.0 < site.at.0 + site.bytes.len() as u64));
            }
            f.spellings().for_each(drop);
        }
        for f in image.functions().iter().take(50) {
            let code = image.analyse(f);
            assert!(code.cfg.blocks.as_slice().is_sorted_by_key(|b| b.range.start));
            for site in image.exit_sites(f).into_iter().flatten().flatten() {
                assert!(site.point < site.own && usize::from(site.own) <= site.bytes.len() && site.bytes.len() <= 64);
                assert_eq!(image.bytes_at(site.at, site.bytes.len()), Some(&site.bytes[..]));
            }
            assert!(
                image.call_sites(f).is_ok_and(|calls| calls.is_sorted_by_key(|c| c.at)) || image.call_sites(f).is_err()
            );
        }
        let frames = FrameTable::read(image.elf());
        let registers = Registers { pc: TEXT, general: [Some(0x7000); 16] };
        let rules_of = |f: &Function| [frames.rules(f.start()), frames.go_rules(f.start())];
        for rules in image.functions().iter().take(500).flat_map(rules_of).flatten() {
            let _ = rules.apply(&registers, &mut |at| Some(at ^ 0x55));
        }
        let cache = image.to_cache();
        let again = AnalysedImage::from_cache(Elf::parse(bytes).unwrap(), &cache).unwrap();
        assert_eq!(again.functions().len(), image.functions().len());
    }
    // The limit is far above the time for any of these files, and far below the time of an endless loop.
    assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", begun.elapsed());
}

/// A small file that has most kinds of content.
fn seed() -> &'static [u8] {
    static SEED: OnceLock<Vec<u8>> = OnceLock::new();
    SEED.get_or_init(|| {
        let distance = |to: u64| to.wrapping_sub(RODATA) as u32;
        let table: Vec<u8> = [22, 28, 34].iter().flat_map(|o| distance(TEXT + o).to_le_bytes()).collect();
        let elf = TestElf::new()
            .assemble("f", |a| {
                let mut default = a.create_label();
                a.cmp(edi, 2).unwrap();
                a.ja(default).unwrap();
                a.db(&[0x48, 0x8d, 0x15]).unwrap();
                a.dd(&[(RODATA - (TEXT + 12)) as u32]).unwrap();
                a.movsxd(rax, dword_ptr(rdx + rdi * 4)).unwrap();
                a.add(rax, rdx).unwrap();
                a.jmp(rax).unwrap();
                a.call(TEXT + 0x80).unwrap();
                a.set_label(&mut default).unwrap();
                a.jmp(TEXT).unwrap();
            })
            .raw(&[0xcc; 7])
            .function("_ZN3foo3barEic", &[0x31, 0xc0, 0x74, 0xfe, 0xc3])
            .symbol("f.cold", TEXT + 0x40, 3, FUNC)
            .rodata(&table);
        elf.build().to_vec()
    })
}

/// A real library without the sections that are merely long, so that changes hit tables and code alike.
fn library() -> Option<&'static [u8]> {
    static LIBRARY: OnceLock<Option<Vec<u8>>> = OnceLock::new();
    LIBRARY.get_or_init(|| std::fs::read("/lib64/ld-linux-x86-64.so.2").ok()).as_deref()
}

fn changed(seed: &[u8], changes: &[(usize, u8)], cut: Option<usize>) -> Arc<[u8]> {
    let mut bytes = seed.to_vec();
    for (at, value) in changes {
        let at = at % bytes.len();
        bytes[at] = *value;
    }
    if let Some(cut) = cut {
        bytes.truncate(cut % (bytes.len() + 1));
    }
    bytes.into()
}

/// Offsets in the first bytes are as likely as all the others together, because most depends on headers.
fn places() -> impl Strategy<Value = usize> {
    prop_oneof![0..0x200usize, 0x1000..0x1200usize, any::<usize>()]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn damaged_small_files(changes in prop::collection::vec((places(), any::<u8>()), 1..24), cut in prop::option::weighted(0.2, any::<usize>())) {
        exercise(changed(seed(), &changes, cut));
    }

    #[test]
    fn random_bytes_behind_a_good_header(mut bytes in prop::collection::vec(any::<u8>(), 0..2000)) {
        bytes.splice(0..0, seed()[..0x78 + 56].iter().copied());
        exercise(bytes.into());
    }

    #[test]
    fn random_code(code in prop::collection::vec(any::<u8>(), 1..600)) {
        exercise(TestElf::new().function("f", &code).function("g", &code).build());
    }

    #[test]
    fn damaged_caches(changes in prop::collection::vec((any::<usize>(), any::<u8>()), 1..8), cut in prop::option::weighted(0.2, any::<usize>())) {
        static CACHE: OnceLock<Vec<u8>> = OnceLock::new();
        let cache = CACHE.get_or_init(|| AnalysedImage::parse(seed().into()).unwrap().to_cache());
        let cache = changed(cache, &changes, cut);
        if let Some(image) = AnalysedImage::from_cache(Elf::parse(seed().into()).unwrap(), &cache) {
            for f in image.functions() {
                image.entry_site(f).ok();
                image.analyse(f);
                f.spellings().for_each(drop);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, ..ProptestConfig::default() })]

    #[test]
    fn damaged_libraries(changes in prop::collection::vec((places(), any::<u8>()), 1..400), cut in prop::option::weighted(0.2, any::<usize>())) {
        if let Some(library) = library() {
            exercise(changed(library, &changes, cut));
        }
    }
}

#[test]
fn overlapping_functions_are_not_quadratic() {
    let mut elf = TestElf::new().function("f", &[0x74, 0xfe].repeat(40_000));
    for i in 0..40_000u64 {
        elf = elf.symbol("g", TEXT + i, 80_000 - i, FUNC);
    }
    exercise(elf.build());
}

#[test]
fn calls_into_the_middle_are_not_quadratic() {
    let mut code = Vec::new();
    for i in 0..20_000i32 {
        // Each call goes to the byte after the start of a later call.
        code.extend_from_slice(&[0xe8]);
        code.extend_from_slice(&(5 * (i % 7) + 1).to_le_bytes());
    }
    let elf = TestElf::new().function("f", &[0xe8, 11, 0, 0, 0, 0xc3]).raw(&[0x90; 10]).raw(&code).raw(&[0xc3]);
    exercise(elf.build());
}

#[test]
fn jump_tables_everywhere_are_not_quadratic() {
    // add rax, rdx; jmp rax; and loads in between, twenty thousand times.
    let code = [0x48, 0x63, 0x04, 0x82, 0x48, 0x01, 0xd0, 0xff, 0xe0].repeat(20_000);
    let lea = [0x48, 0x8d, 0x15, 0xf9, 0xef, 0x0f, 0x00];
    let elf = TestElf::new().function("f", &[&lea[..], &code].concat()).rodata(&[0; 40_000]);
    exercise(elf.build());
    let back = [0xeb, 0xfe].repeat(200);
    let elf = TestElf::new().function("f", &[&[0x90; 300][..], &back].concat());
    exercise(elf.build());
}
