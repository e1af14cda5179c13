//! Words of shard 0 that code may access to look up a listed key: exactly those of the tables that the plan's snippets name.

use iced_x86::{Instruction, Register, UsedMemory};
use ingraft_model::{KeyListing, VariableId};

use super::rules::{number_of, writes};
use super::state::RegisterBound;
use crate::code::environment::Environment;
use crate::snippet::mini::MiniRequest;

/// Words of one table in shard 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Listed {
    /// Address of the first place's key.
    keys: u64,
    /// Address of the first place's value.
    values: u64,
    /// Number of the last place.
    last: u32,
}

impl Listed {
    /// The table of a request's variable. None if the variable has no counter.
    pub fn of(env: &Environment, request: &MiniRequest<'_>, v: VariableId, listing: KeyListing) -> Option<Self> {
        let first = *request.counters.get(v.0 as usize)?;
        let word = |n: u32| u64::from(env.data.counter(first.saturating_add(n)));
        Some(Listed { keys: word(0), values: word(listing.value(0)), last: listing.places() - 1 })
    }

    /// Whether an instruction reads the key of a place whose number is bounded by the table's size, or adds to the value of such a place
    /// in shard 0 with `lock`.
    pub fn permits(&self, i: &Instruction, memory: &UsedMemory, bound: RegisterBound) -> bool {
        let RegisterBound::Most(register, last) = bound else { return false };
        let place = memory.displacement();
        let is_word = memory.segment() == Register::DS
            && memory.base() == Register::None
            && number_of(memory.index()) == Some(register)
            && memory.scale() == 8
            && memory.memory_size().size() == 8
            && last <= self.last;
        let right =
            if writes(memory.access()) { place == self.values && i.has_lock_prefix() } else { place == self.keys };
        is_word && right
    }
}
