//! The pointers in threads' rseq areas that lead to a data area's descriptor. The kernel follows such a pointer when it switches the
//! thread, and ends the program if it leads to unmapped memory. The engine clears the pointers while all threads are held and no code can
//! store them again.

use ingraft_model::layout::{self, header};
use ingraft_model::{Avma, DataArea};

use crate::error::ProcessError;
use crate::target::Target;
use crate::tracer::Tracer;

/// Offset from the fs base at which glibc keeps a thread's pointer to itself. glibc is the only libc that registers areas at a known
/// offset.
const SELF: u64 = 0x10;

impl Target {
    /// Clears every pointer to the area's descriptor. All threads must be held. The pointers of living and ended threads are found by the
    /// threads' registers, the shards and the list in the header.
    pub(crate) fn clear_slots(&self, tracer: &Tracer, area: &DataArea) -> Result<(), ProcessError> {
        let word = |offset: u64| self.read_u64(Avma(area.base.0 + offset));
        let mut slot = [0; 4];
        self.read(Avma(area.base.0 + u64::from(header::CPU_SLOT)), &mut slot)?;
        let slot = i64::from(i32::from_le_bytes(slot));
        if slot == 0 {
            return Ok(());
        }
        let descriptor = area.base.0 + u64::from(header::DESCRIPTOR);
        let mut slots: Vec<u64> =
            tracer.threads.iter().filter_map(|t| Some(t.regs?.fs_base.wrapping_add_signed(slot))).collect();
        let count = word(u64::from(header::SLOTS_COUNT))? as u32;
        let listed = |i: u32| word(u64::from(header::SLOTS) + 8 * u64::from(i));
        slots.extend((0..count.min(header::SLOTS_MAX)).map(listed).collect::<Result<Vec<_>, _>>()?);
        let claims = self.words(area, layout::CLAIMS, area.shards)?;
        for (shard, _) in
            (0u64..).zip(claims).filter(|&(shard, owner)| owner != 0 || shard == layout::CHILD_SHARD.into())
        {
            slots.push(word(area.stride * shard + u64::from(layout::CPU_SLOT))?);
        }
        slots.sort_unstable();
        slots.dedup();
        for at in slots {
            // The memory of an ended thread may have another use by now. It still belongs to a thread if it has a pointer to itself at the
            // offset at which threads have one.
            let thread = at.wrapping_add_signed(-slot);
            let is_thread = self.read_u64(Avma(thread.wrapping_add(SELF))).is_ok_and(|own| own == thread);
            if is_thread && self.read_u64(Avma(at)).is_ok_and(|found| found == descriptor) {
                self.write(Avma(at), &0u64.to_le_bytes())?;
            }
        }
        Ok(())
    }

    /// Reads consecutive words of the area through the target's memory.
    fn words(&self, area: &DataArea, offset: u32, count: u32) -> Result<Vec<u64>, ProcessError> {
        let mut bytes = vec![0; 8 * count as usize];
        self.read(Avma(area.base.0 + u64::from(offset)), &mut bytes)?;
        Ok(bytes.chunks_exact(8).map(|word| word.try_into().map_or(0, u64::from_le_bytes)).collect())
    }
}
