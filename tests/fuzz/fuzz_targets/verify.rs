//! Makes any changes to a proven plan: the verifier never panics, and accepts no springboard but the right ones.
#![no_main]

use ingraft_fuzz::{proven, survey, text_image, weave};
use ingraft_model::{Avma, PcMove, ThreadIdentity};

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let Some((changes, code)) = data.split_at_checked(24) else { return };
    let Some(image) = text_image(code) else { return };
    let sites = survey(&image);
    let Some(woven) = weave(&image, sites, ThreadIdentity::FsOffset(0x2d0)) else { return };
    let mut weave = woven.weave.clone();
    for change in changes.chunks_exact(4) {
        let (at, value) = (usize::from(u16::from_le_bytes([change[1], change[2]])), change[3]);
        let plan = &mut weave.plan;
        match change[0] % 5 {
            0 if !plan.code.is_empty() => {
                let piece = at % plan.code.len();
                let bytes = &mut plan.code[piece].bytes;
                if !bytes.is_empty() {
                    let index = at % bytes.len();
                    bytes[index] = value;
                }
            }
            1 if !plan.text.is_empty() => {
                let index = at % plan.text.len();
                plan.text[index].new[usize::from(value % 8)] ^= change[0] | 1;
            }
            2 if !plan.text.is_empty() => {
                let index = at % plan.text.len();
                plan.text[index].len = value;
            }
            3 => plan.moves.push(PcMove { from: Avma(at as u64), to: Avma(u64::from(value)) }),
            4 if !plan.moves.is_empty() => {
                let index = at % plan.moves.len();
                plan.moves.remove(index);
            }
            _ => {}
        }
    }
    let text_changed = weave.plan.text != woven.weave.plan.text;
    assert!(!(text_changed && proven(&woven, &weave)), "a plan with other writes than the right ones is accepted");
});
