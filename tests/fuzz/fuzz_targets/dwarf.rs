//! Takes any bytes as call frame information of an otherwise sound image.
#![no_main]

use std::sync::Arc;

use ingraft_analysis::{AnalysedImage, FrameTable, Registers};
use ingraft_fuzz::{image, survey};

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let text = [0xcc; 256];
    if let Ok(image) = AnalysedImage::parse(Arc::from(image(&text, &[0], data))) {
        survey(&image);
        let frames = FrameTable::read(image.elf());
        let registers = Registers { pc: 0x1000, general: [Some(0x7000); 16] };
        for rules in image.functions().iter().filter_map(|f| frames.rules(f.start()).ok()) {
            let _ = rules.apply(&registers, &mut |at| Some(at ^ 0x55));
        }
    }
});
