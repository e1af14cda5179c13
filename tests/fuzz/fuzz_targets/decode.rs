//! Takes any bytes as code, with functions anywhere in it.
#![no_main]

use ingraft_fuzz::{survey, text_image};

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    if let Some(image) = text_image(data) {
        survey(&image);
    }
});
