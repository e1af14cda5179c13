//! Records that all threads share, in a shard that no thread claims. The unused ones are in a list, which changes by a `cmpxchg` of its head: the
//! number of the first one is in the lower half, the number of changes in the upper half.

use iced_x86::code_asm::{AsmMemoryOperand, CodeLabel, dword_ptr, eax, edi, esi, qword_ptr, r9, r10, rax, rdi, rsi};

use crate::code::environment::Assembly;
use crate::code::listing::Listing;

/// Place and size of such records. Code has the address of their shard in r10.
#[derive(Clone, Copy, Debug)]
pub(super) struct RecordPool {
    /// Offset in the shard of the head of the list.
    pub free: u32,
    /// Offset of the number of records that were ever used, u32.
    pub used: u32,
    /// Offset of record 0. Records are numbered from 1 on.
    pub records: u32,
    /// Distance between records, a power of two.
    pub size: u32,
    /// Largest number of a record.
    pub most: u32,
    /// Offset in a record of the number of the next unused one, u64.
    pub link: u32,
}

impl RecordPool {
    /// Loads the address of the record whose number is in rsi into r9.
    pub fn locate(&self, l: &mut Listing<'_>) -> Result<(), Assembly> {
        l.a.mov(r9, rsi)?;
        l.a.shl(r9, self.size.trailing_zeros())?;
        Ok(l.a.lea(r9, qword_ptr(r10 + r9 + self.records))?)
    }

    /// Adds records to the unused ones. The number of the first one is in rsi, and `link` is the link of the last one. Uses rax and rdi.
    pub fn give_back(&self, l: &mut Listing<'_>, link: AsmMemoryOperand) -> Result<(), Assembly> {
        let mut again = l.a.create_label();
        l.a.mov(rax, qword_ptr(r10 + self.free))?;
        l.a.set_label(&mut again)?;
        l.a.mov(edi, eax)?;
        l.a.mov(link, rdi)?;
        l.a.mov(rdi, rax)?;
        l.a.shr(rdi, 32)?;
        l.a.inc(edi)?;
        l.a.shl(rdi, 32)?;
        l.a.or(rdi, rsi)?;
        l.a.lock().cmpxchg(qword_ptr(r10 + self.free), rdi)?;
        l.a.jne(again)?;
        Ok(l.a.zero_bytes()?)
    }

    /// Takes an unused record: its number in rsi, its address in r9. Jumps to `none` if there is none.
    pub fn take(&self, l: &mut Listing<'_>, none: CodeLabel) -> Result<(), Assembly> {
        let [mut again, mut fresh, mut taken] = std::array::from_fn(|_| l.a.create_label());
        l.a.mov(rax, qword_ptr(r10 + self.free))?;
        l.a.set_label(&mut again)?;
        l.a.mov(esi, eax)?;
        l.a.test(esi, esi)?;
        l.a.je(fresh)?;
        self.locate(l)?;
        l.a.mov(rdi, rax)?;
        l.a.shr(rdi, 32)?;
        l.a.inc(edi)?;
        l.a.shl(rdi, 32)?;
        // If another thread takes the record meanwhile, this word may be anything, and the exchange fails.
        l.a.or(rdi, qword_ptr(r9 + self.link))?;
        l.a.lock().cmpxchg(qword_ptr(r10 + self.free), rdi)?;
        l.a.jne(again)?;
        l.a.jmp(taken)?;
        l.a.set_label(&mut fresh)?;
        l.a.cmp(dword_ptr(r10 + self.used), self.most as i32)?;
        l.a.jae(none)?;
        l.a.mov(esi, 1)?;
        l.a.lock().xadd(dword_ptr(r10 + self.used), esi)?;
        l.a.inc(esi)?;
        // Other threads may have taken the last ones since the comparison.
        l.a.cmp(esi, self.most as i32)?;
        l.a.ja(none)?;
        self.locate(l)?;
        l.a.set_label(&mut taken)?;
        Ok(l.a.zero_bytes()?)
    }
}
