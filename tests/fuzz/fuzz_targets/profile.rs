//! Takes any bytes as the content of a saved profile: they are refused, or give a profile that every format can hold.
#![no_main]

use ingraft_report::{EXPORTERS, ExportOptions, ProfiledProgram, SavedProfile};

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let _ = SavedProfile::from_bytes(data);
    // A correct header, so that the content itself is read. Each kind of profiles has a version of its own.
    for version in 1..=3_u32 {
        read(version, data);
    }
});

fn read(version: u32, data: &[u8]) {
    let mut file = b"INGPROF\0".to_vec();
    file.extend(version.to_le_bytes());
    file.extend(crc32fast::hash(data).to_le_bytes());
    file.extend((data.len() as u64).to_le_bytes());
    file.extend(data);
    let Ok(profile) = SavedProfile::from_bytes(&file) else { return };
    assert_eq!(SavedProfile::from_bytes(&profile.to_bytes()).as_ref(), Ok(&profile));
    let program = ProfiledProgram::new(&profile, Vec::new());
    for exporter in EXPORTERS {
        for module in 0..2 {
            let options = ExportOptions { module, ..ExportOptions::new(&program, &|_| None) };
            let text = (exporter.write)(&program, &options);
            assert!(exporter.name != "drcov" || text.starts_with(b"DRCOV VERSION: 2\n"));
        }
    }
    let mut sum = profile.clone();
    let _ = sum.add(&profile);
    let _ = ingraft_report::diff(&profile, &sum);
    let _ = ingraft_report::context_diff(&profile, &sum);
    if let Some(tree) = &profile.contexts {
        let _ = tree.statistics();
        let _ = tree.by_function().callers(tree.main_value(), 10, 10);
        let _ = tree.hot_path(tree.main_value());
    }
}
