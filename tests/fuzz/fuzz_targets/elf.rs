//! Takes any bytes as an executable, and as a debug file of one.
#![no_main]

use std::sync::Arc;

use ingraft_analysis::{AnalysedImage, Elf};
use ingraft_fuzz::survey;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let bytes: Arc<[u8]> = Arc::from(data);
    if let Ok(image) = AnalysedImage::parse(Arc::clone(&bytes)) {
        survey(&image);
    }
    if let Ok(debug) = Elf::parse_debug(Arc::clone(&bytes)) {
        let plain = ingraft_fuzz::image(&[0x90; 64], &[0, 16, 32], &[]);
        if let Ok(elf) = Elf::parse(Arc::from(plain)) {
            survey(&AnalysedImage::from_elf(elf, Some(&debug)));
        }
    }
});
