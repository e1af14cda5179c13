//! Any bytes as call frame information of a sound image.
#![no_main]

use std::sync::Arc;

use ingraft_analysis::Image;
use ingraft_fuzz::{image, survey};

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let text = [0xcc; 256];
    if let Ok(image) = Image::parse(Arc::from(image(&text, &[0], data))) {
        survey(&image);
    }
});
