//! Placement of branches in code. Intel's processors from Skylake to Cascade Lake do not cache the decoded instructions of 32 aligned
//! bytes if a branch crosses or touches the end of these bytes (Intel, "Mitigations for Jump Conditional Code Erratum", 2019). The same
//! holds for a comparison that is fused with a branch. Such code is decoded again at every hit.

use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic};

use crate::code::block::CodeBuffer;

/// Number of bytes of code that the processor caches together after decoding.
pub(crate) const WINDOW: u64 = 32;

/// Branches of a block: start and end of each, with the comparison that is fused with it.
#[derive(Default)]
pub(crate) struct Branches(Vec<(u64, u64)>);

impl Branches {
    /// Adds the branches between two addresses of a block.
    pub fn add(&mut self, block: &CodeBuffer, from: u64, until: u64) {
        let decoder = Decoder::with_ip(64, block.between(from, until), from, DecoderOptions::NONE);
        let mut before = Instruction::default();
        for i in decoder {
            use FlowControl as F;
            if !matches!(i.flow_control(), F::Next | F::Interrupt | F::Exception | F::XbeginXabortXend) {
                let fused = i.is_jcc_short_or_near() && may_fuse(&before) && before.next_ip() == i.ip();
                self.0.push((if fused { before.ip() } else { i.ip() }, i.next_ip()));
            }
            before = i;
        }
    }

    /// Best offset in a window of 32 bytes for the start of the block that was written at `at`. With it, the fewest branches are decoded
    /// at every hit; of equal offsets, the one that aligns `base` best is chosen.
    pub fn best_start(&self, at: u64, base: u64) -> u64 {
        let aligned = |shift: u64| (base + shift).trailing_zeros().min(WINDOW.trailing_zeros());
        let best = (0..WINDOW).min_by_key(|shift| (self.hindered(*shift), std::cmp::Reverse(aligned(*shift))));
        (at + best.unwrap_or_default()) % WINDOW
    }

    /// Number of branches that the processor decodes at every hit if the block lies `shift` bytes further on.
    fn hindered(&self, shift: u64) -> usize {
        // If a branch touches the end of its window, the end of the branch is the start of the next window.
        let hindered = |(start, end): &&(u64, u64)| (start + shift) / WINDOW != (end + shift) / WINDOW;
        self.0.iter().filter(hindered).count()
    }
}

/// Whether the processor may fuse the instruction with a conditional branch after it.
fn may_fuse(i: &Instruction) -> bool {
    use Mnemonic as M;
    matches!(i.mnemonic(), M::Cmp | M::Test | M::Add | M::Sub | M::And | M::Inc | M::Dec)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::code::block::Back;

    fn block_of(pieces: &[&[u8]]) -> (CodeBuffer, Branches) {
        let mut block = CodeBuffer::default();
        block.restart(0x1000);
        pieces.iter().for_each(|bytes| block.put(bytes, Back::StepOut));
        let mut branches = Branches::default();
        branches.add(&block, 0x1000, block.here());
        (block, branches)
    }

    const CMP: &[u8] = &[0x48, 0x39, 0xc8];
    const JE: &[u8] = &[0x74, 0x00];
    const NOP: &[u8] = &[0x90];

    #[test]
    fn a_branch_that_touches_or_crosses_the_end_is_hindered() {
        let (_, branches) = block_of(&[JE]);
        let hindered: Vec<u64> = (0..WINDOW).filter(|shift| branches.hindered(*shift) > 0).collect();
        assert_eq!(hindered, [30, 31], "31: it crosses; 30: its last byte is the window's last");
    }

    #[test]
    fn a_comparison_counts_with_its_branch() {
        let (_, branches) = block_of(&[CMP, JE]);
        let hindered: Vec<u64> = (0..WINDOW).filter(|shift| branches.hindered(*shift) > 0).collect();
        assert_eq!(hindered, [27, 28, 29, 30, 31]);
        let (_, apart) = block_of(&[CMP, NOP, JE]);
        assert_eq!((0..WINDOW).filter(|shift| apart.hindered(*shift) > 0).count(), 2);
    }

    #[test]
    fn the_base_is_aligned_where_no_branch_minds() {
        let (_, branches) = block_of(&[NOP, NOP, CMP, JE]);
        assert_eq!(branches.best_start(0x1000, 0x1002), 30, "the base at a multiple of 32");
        // The end of the branch is the end of its window, so the next best offset is half a window further.
        let late: Vec<&[u8]> = std::iter::repeat_n(NOP, 30).chain([JE]).collect();
        let (_, late) = block_of(&late);
        assert_eq!(late.best_start(0x1000, 0x1000), 16);
    }
}
