//! Tables whose address seems to be no constant because a call is followed by one of their cases.
//!
//! Where the source says that control does not continue after a call, the compiler may put any block behind the call. If the callee itself is
//! not known to never return, control seems to come back, with registers that the block does not expect:
//!
//! ```text
//!         call  assertion_failed          the compiler knows that control does not continue here
//! case_2: ...
//!         jne   loop                      to the code that reads the table
//! ```
//!
//! Compilers add a distance to the register from which they have loaded it only in a jump through a table at a constant address. So on every
//! way on which the register holds another value, the jump never runs.

use iced_x86::{Code, Instruction, OpKind, Register};

use crate::functions::jump_table::trace::ReachingDefinition;
use crate::functions::jump_table::{EntryEncoding, JumpResolver, JumpTable, TableTargets};
use crate::text::decode;
use crate::text::transfer::ControlTransfer;

impl JumpResolver<'_> {
    /// Targets of a jump to the sum of a distance and the address of its table, if all of these hold:
    ///
    /// - the distance is loaded from the table at the same register, without displacement;
    /// - the register has one constant value, and other values only on ways that come back from a direct call behind which, apart from
    ///   padding, a case of this or another table of the function begins;
    /// - a comparison bounds the index on every way, those from the calls included;
    /// - all entries within the bound lead to code of the function.
    pub(super) fn table_of_cases(
        &self,
        at: usize,
        distance: Register,
        base: Register,
        budget: &mut usize,
    ) -> Option<TableTargets> {
        let trace = self.trace();
        let loads = trace.definitions(at, distance)?;
        let &[ReachingDefinition::At(load, _)] = &loads[..] else { return None };
        let values = trace.definitions(at, base)?;
        if !loads_distance(&self.code[load], base) || trace.definitions(load, base)? != values {
            return None;
        }
        let mut constants: Vec<u64> = values.iter().filter_map(|value| trace.constant_of(*value)).collect();
        constants.dedup();
        let &[address] = &constants[..] else { return None };
        let table = JumpTable { at: address, entries: EntryEncoding::Distances(address) };
        let targets = self.read_at(load, table, budget)?;
        let inside = |place: &u64| self.inside.iter().any(|range| range.contains(place));
        if !targets.bounded || !targets.exact || !targets.places.iter().all(inside) {
            return None;
        }
        let is_case = |at: u64| targets.places.binary_search(&at).is_ok() || self.before.is_table_target(self.code, at);
        let is_cut = |(index, i): &(usize, &Instruction)| {
            let padding = self.code[index + 1..].iter().take_while(|i| decode::is_nop(i));
            let behind = padding.fold(i.next_ip(), |at, nop| if nop.ip() == at { nop.next_ip() } else { at });
            matches!(ControlTransfer::of(i), ControlTransfer::Call(_)) && is_case(behind)
        };
        let cut: Vec<usize> = self.code.iter().enumerate().filter(is_cut).map(|(index, _)| index).collect();
        (self.trace_without(&cut).constant(at, base) == Some(address)).then_some(targets)
    }
}

/// Whether an instruction loads a distance from the table whose address is in a register.
fn loads_distance(i: &Instruction, base: Register) -> bool {
    i.code() == Code::Movsxd_r64_rm32
        && i.op1_kind() == OpKind::Memory
        && i.memory_base() == base
        && i.memory_index() != Register::None
        && i.memory_index_scale() == 4
        && i.memory_displacement64() == 0
        && !i.has_segment_prefix()
}
