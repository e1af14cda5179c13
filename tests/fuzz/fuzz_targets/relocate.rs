//! Takes any bytes as code. The verifier must prove every plan that the generator makes, and its removal must restore every byte.
#![no_main]

use ingraft_codegen::verify::verify_removal;
use ingraft_fuzz::{bytes_before, proven, survey, text_image, weave};
use ingraft_model::ThreadIdentity;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let Some((&kind, data)) = data.split_first() else { return };
    let identity = match kind % 3 {
        0 => ThreadIdentity::FsOffset(0x2d0),
        1 => ThreadIdentity::FsBase,
        _ => ThreadIdentity::Locked,
    };
    let Some(image) = text_image(data) else { return };
    let sites = survey(&image);
    let Some(woven) = weave(&image, sites, identity) else { return };
    assert!(proven(&woven, &woven.weave), "the generator's plan is not proven");
    // The old bytes in the plan must be those of the image.
    for write in &woven.weave.plan.text {
        assert_eq!(bytes_before(&image, &woven.weave, write.at, usize::from(write.len)), Some(write.old_bytes()));
        assert_eq!(write.inverse().inverse(), *write);
    }
    let points: Vec<_> = woven.weave.woven.iter().flatten().cloned().collect();
    let removal = ingraft_codegen::remove_points(&points);
    assert!(verify_removal(&removal, &points).is_ok(), "the removal is not proven");
    for write in &removal.text {
        assert_eq!(bytes_before(&image, &woven.weave, write.at, usize::from(write.len)), Some(write.new_bytes()));
    }
});
