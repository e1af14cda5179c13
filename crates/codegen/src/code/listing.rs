//! Fixed routines: each is one listing with holes for the numbers of a target ([`HoleValues`]).
//!
//! The generator fills the holes from the environment and writes the bytes. The verifier computes the holes from the environment by its own
//! code, fills the same listing, and compares the bytes (`verify/fixed.rs`). Tests prove the listings: they execute each one in every class of
//! state, and compare registers and memory with a model (`snippet/tests`).

use iced_x86::BlockEncoderOptions;
use iced_x86::code_asm::{AsmMemoryOperand, AsmRegister64, CodeAssembler, CodeLabel, qword_ptr, r8, r9, r10, rax, rbx};
use ingraft_model::{ThreadIdentity, VectorState};

use crate::code::environment::Assembly;

/// Numbers of a target that fixed routines contain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HoleValues {
    /// Displacement of the first byte of shard 0, and through gs of the thread's own shard.
    pub base: u32,
    /// Binary logarithm of the distance between shards.
    pub log: u32,
    /// Number of shards.
    pub shards: u32,
    /// Address of the word that is 0 in a fork child.
    pub alive: u32,
    /// Address of the shard that fork children use.
    pub child: u64,
    /// Address of the shard with the rules for inheritance.
    pub rules: u64,
    /// Address of the shard with the lists of goroutines.
    pub lists: u64,
    /// Address of the shard with the records of other stacks.
    pub stacks: u64,
    /// Offset of the activation records in a shard.
    pub records: u32,
    /// Offset in a shard of the number of open readings of the clock.
    pub readings_open: u32,
    /// Method by which threads are told apart.
    pub identity: ThreadIdentity,
    /// Offset from fs of the pointer to the goroutine; `None` without records of goroutines.
    pub goroutine: Option<i32>,
    /// Processor state that is saved around calls; `None` if no call can be made.
    pub vectors: Option<VectorState>,
    /// Address of the vDSO's function that tells the time; `None` if it is not called.
    pub vdso: Option<u64>,
}

impl HoleValues {
    /// Displacement of an offset in shard 0, or through gs in the thread's own shard.
    pub fn at(&self, offset: u32) -> u32 {
        self.base.wrapping_add(offset)
    }

    /// Distance in bytes between shards.
    pub fn stride(&self) -> u64 {
        1u64.checked_shl(self.log).unwrap_or_default()
    }
}

/// Bytes of a routine, and offset of its second entry if it has one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Filled {
    pub bytes: Vec<u8>,
    pub second: u64,
}

/// Listing under construction. The code is position-independent.
pub(crate) struct Listing<'a> {
    pub a: CodeAssembler,
    pub holes: &'a HoleValues,
}

impl<'a> Listing<'a> {
    pub fn new(holes: &'a HoleValues) -> Result<Self, Assembly> {
        Ok(Listing { a: CodeAssembler::new(64)?, holes })
    }

    /// Fills in the listing. `second` is the label of its second entry.
    pub fn fill(mut self, second: Option<CodeLabel>) -> Result<Filled, Assembly> {
        let result = self.a.assemble_options(0, BlockEncoderOptions::RETURN_NEW_INSTRUCTION_OFFSETS)?;
        let second = second.map_or(Ok(0), |label| result.label_ip(&label))?;
        Ok(Filled { bytes: result.inner.code_buffer, second })
    }

    /// Address of a word in shard 0.
    pub fn place(&self, offset: u32) -> u64 {
        u64::from(self.holes.at(offset))
    }

    /// Operand for a word of this thread's shard.
    pub fn own(&self, offset: u32) -> AsmMemoryOperand {
        qword_ptr(self.place(offset)).gs()
    }

    /// Operand for a word of this thread's shard, at `offset` plus the number in a register.
    pub fn own_from(&self, register: AsmRegister64, offset: u32) -> AsmMemoryOperand {
        qword_ptr(register + self.holes.at(offset)).gs()
    }

    /// Begins a routine: [`save`], and pushes further registers.
    pub fn enter(&mut self, also: &[AsmRegister64]) -> Result<(), Assembly> {
        save(&mut self.a)?;
        Ok(also.iter().try_for_each(|r| self.a.push(*r))?)
    }

    /// Ends a routine: pops the further registers, and [`leave`].
    pub fn exit(&mut self, also: &[AsmRegister64]) -> Result<(), Assembly> {
        also.iter().rev().try_for_each(|r| self.a.pop(*r))?;
        leave(&mut self.a)
    }
}

/// Registers that [`save`] pushes, in this order.
pub(crate) const SAVED: [AsmRegister64; 4] = [r8, r9, r10, rbx];

/// Saves the registers that every routine uses, and moves the resume address to rbx, which no system call changes. An address in an arena
/// must not be on the stack.
pub(crate) fn save(a: &mut CodeAssembler) -> Result<(), Assembly> {
    for r in SAVED {
        a.push(r)?;
    }
    Ok(a.mov(rbx, rax)?)
}

/// Undoes [`save`], and jumps to the resume address.
pub(crate) fn leave(a: &mut CodeAssembler) -> Result<(), Assembly> {
    a.mov(rax, rbx)?;
    for r in SAVED.into_iter().rev() {
        a.pop(r)?;
    }
    Ok(a.jmp(rax)?)
}
