//! Notes of goroutines: calls that have ended inside of an open call, see [`ingraft_model::layout::goroutine`]. A thread that is in such a call keeps
//! its records in its own buffer. A goroutine moves between threads meanwhile, so its notes are in its place.
//!
//! Only the thread that executes a goroutine uses its notes. Unused records are shared, see `goroutine`.

use iced_x86::code_asm::{
    AsmMemoryOperand, AsmRegister64, CodeLabel, cl, dword_ptr, eax, ecx, edi, edx, esi, qword_ptr, r8, r9, r10, r11,
    r11d, r12, r13, r13d, rax, rcx, rdi, rdx, rsi, rsp,
};
use ingraft_model::buffer::{Capacity, FIRST, LOST, POSITION, SLACK, TAKEN};
use ingraft_model::layout::goroutine::{
    DESCRIPTOR, FIRST_NOTE, LAST_NOTE, NOTE_NUMBER, NOTE_WORDS, NOTED, NOTED_MAX, NOTES_KEY, NOTES_MADE, NOTES_MAX,
    RECORDS, RECORDS_MAX,
};
use ingraft_model::layout::{COUNTERS, record};
use ingraft_model::{Clock, Expr, KeptValue, NotesStmt, TimeUnit, VariableId, records};

use crate::code::environment::Assembly;
use crate::code::listing::{Listing, SAVED};
use crate::code::routine::Routine;
use crate::snippet::generator::{Generator, ShardAccess};

/// Registers that all these routines use besides those of every routine.
const USED: [AsmRegister64; 4] = [rcx, rdx, rsi, rdi];
/// The same of the routine that tells the notes.
const USED_TELLING: [AsmRegister64; 7] = [rcx, rdx, rsi, rdi, r11, r12, r13];
/// Number of records between a call and the one that keeps notes that are looked at, at most.
const WALK_MAX: u32 = 64;
/// Number of words of the record of a note, with its header.
const WORDS: u32 = 1 + NOTE_WORDS;

impl Generator<'_> {
    /// Loads the value of [`Expr::Notes`] into rax.
    pub(crate) fn keeps_notes(&mut self) -> Result<(), Assembly> {
        if self.access == ShardAccess::Shared {
            return Ok(self.a.xor(eax, eax)?);
        }
        self.of_goroutine(Routine::KeepsNotes)?;
        Ok(self.a.mov(rax, rcx)?)
    }

    /// Loads the value of [`Expr::OfGoroutine`] into rax.
    pub(crate) fn of_descriptor(&mut self, at: u32) -> Result<(), Assembly> {
        if self.access == ShardAccess::Shared {
            return Ok(self.a.xor(eax, eax)?);
        }
        self.used = [true; 3];
        self.a.mov(ecx, at)?;
        self.of_goroutine(Routine::Descriptor)?;
        Ok(self.a.mov(rax, rcx)?)
    }

    pub(crate) fn notes(&mut self, stmt: NotesStmt) -> Result<(), Assembly> {
        if self.access == ShardAccess::Shared {
            return Ok(());
        }
        match stmt {
            NotesStmt::Begin(v) => {
                self.used = [true; 3];
                self.a.mov(ecx, self.offset(v)?)?;
                self.of_goroutine(Routine::BeginNotes)
            }
            NotesStmt::Add(number) => {
                for value in [Expr::Elapsed(Clock::Wall, TimeUnit::Ticks), Expr::Saved(KeptValue::Began(Clock::Wall))] {
                    self.value(&value)?;
                    self.push(rax)?;
                }
                self.used = [true; 3];
                self.a.mov(ecx, records::header(number, WORDS))?;
                self.of_goroutine(Routine::AddNote)?;
                (0..NOTE_WORDS).try_for_each(|_| self.pop(rcx))
            }
            NotesStmt::Tell(v, capacity) => self.tell(v, capacity),
            NotesStmt::End => self.of_goroutine(Routine::EndNotes),
        }
    }

    fn tell(&mut self, v: VariableId, capacity: Capacity) -> Result<(), Assembly> {
        self.used = [true; 3];
        let log = u64::from(capacity.bytes().trailing_zeros());
        self.a.mov(rcx, log << 32 | u64::from(self.offset(v)?))?;
        self.of_goroutine(Routine::TellNotes)
    }

    /// Jumps to a routine with the stack pointer of this call in rdx, and goes on behind it.
    fn of_goroutine(&mut self, routine: Routine) -> Result<(), Assembly> {
        self.used = [true; 3];
        let mut end = self.a.create_label();
        self.call()?;
        self.routine(routine, end)?;
        self.place(&mut end)
    }
}

impl Listing<'_> {
    /// Operand for a word about the notes of the goroutine whose place is at r8.
    fn notes(field: u32) -> AsmMemoryOperand {
        dword_ptr(r8 + field)
    }

    /// Emits [`Routine::Descriptor`]. An offset outside of the descriptor counts as none.
    pub(crate) fn descriptor(&mut self) -> Result<(), Assembly> {
        let [mut none, mut done] = std::array::from_fn(|_| self.a.create_label());
        self.enter(&USED[1..])?;
        self.a.cmp(rcx, DESCRIPTOR as i32 - 8)?;
        self.a.ja(none)?;
        self.goroutine(none)?;
        self.a.mov(rax, qword_ptr(r8))?;
        self.a.mov(rcx, qword_ptr(rax + rcx))?;
        self.a.jmp(done)?;
        self.a.set_label(&mut none)?;
        self.a.xor(ecx, ecx)?;
        self.a.set_label(&mut done)?;
        self.exit(&USED[1..])
    }

    /// Emits [`Routine::KeepsNotes`]. A call that is not further out than this one has ended without an exit.
    pub(crate) fn keeps_notes(&mut self) -> Result<(), Assembly> {
        let [mut none, mut done] = std::array::from_fn(|_| self.a.create_label());
        self.enter(&USED[1..])?;
        self.goroutine(none)?;
        self.a.mov(eax, Self::notes(NOTES_KEY))?;
        self.a.test(eax, eax)?;
        self.a.je(none)?;
        self.a.mov(ecx, 2)?;
        self.a.cmp(eax, edx)?;
        self.a.je(done)?;
        self.a.mov(ecx, 1)?;
        self.a.ja(done)?;
        self.a.set_label(&mut none)?;
        self.a.xor(ecx, ecx)?;
        self.a.set_label(&mut done)?;
        self.exit(&USED[1..])
    }

    /// Emits [`Routine::BeginNotes`]. It begins nothing if the goroutine's last record is not that of the call, which then counts as unrecorded. Notes of
    /// a call that is not further out, or that has no record any more, are forgotten: that call has ended. A call whose record is not among the nearest
    /// [`WALK_MAX`] is taken for one with a record: in deep recursion, each call would look at all calls outside of it.
    pub(crate) fn begin_notes(&mut self) -> Result<(), Assembly> {
        let [mut walk, mut begin, mut done] = std::array::from_fn(|_| self.a.create_label());
        self.enter(&USED)?;
        self.goroutine(done)?;
        self.last_of_goroutine(done)?;
        self.a.cmp(qword_ptr(r9 + record::SP), rdx)?;
        self.a.jne(done)?;
        self.a.cmp(dword_ptr(r9 + record::NAME), ecx)?;
        self.a.jne(done)?;
        self.a.mov(ecx, Self::notes(NOTES_KEY))?;
        self.a.cmp(ecx, edx)?;
        self.a.jbe(begin)?;
        self.a.mov(edi, WALK_MAX)?;
        self.a.set_label(&mut walk)?;
        self.a.mov(rsi, qword_ptr(r9 + record::SAVED))?;
        self.a.test(rsi, rsi)?;
        self.a.je(begin)?;
        // The program may have overwritten the links.
        self.a.cmp(rsi, RECORDS_MAX as i32)?;
        self.a.ja(begin)?;
        self.a.dec(edi)?;
        self.a.je(done)?;
        self.locate()?;
        self.a.cmp(dword_ptr(r9 + record::SP), ecx)?;
        self.a.jne(walk)?;
        self.a.jmp(done)?;
        self.a.set_label(&mut begin)?;
        self.forget_notes()?;
        self.a.mov(Self::notes(NOTES_KEY), edx)?;
        self.a.set_label(&mut done)?;
        self.exit(&USED)
    }

    /// Emits [`Routine::AddNote`].
    pub(crate) fn add_note(&mut self) -> Result<(), Assembly> {
        let [mut numbered, mut first, mut lost, mut done] = std::array::from_fn(|_| self.a.create_label());
        self.enter(&USED)?;
        self.goroutine(done)?;
        self.a.cmp(Self::notes(NOTES_KEY), 0)?;
        self.a.je(done)?;
        self.a.inc(Self::notes(NOTES_MADE))?;
        // The number of the last note in eax.
        self.a.mov(eax, Self::notes(LAST_NOTE))?;
        self.a.test(eax, eax)?;
        self.a.je(numbered)?;
        self.a.cmp(eax, RECORDS_MAX as i32)?;
        self.a.ja(done)?;
        self.a.shl(rax, record::SIZE.trailing_zeros())?;
        self.a.mov(eax, dword_ptr(r10 + rax + (RECORDS + NOTE_NUMBER)))?;
        self.a.set_label(&mut numbered)?;
        self.a.cmp(eax, NOTES_MAX as i32)?;
        self.a.jae(done)?;
        self.a.mov(edx, eax)?;
        self.a.mov(eax, 1)?;
        self.a.lock().xadd(dword_ptr(r10 + NOTED), eax)?;
        self.a.cmp(eax, NOTED_MAX as i32)?;
        self.a.jae(lost)?;
        self.take(lost)?;
        self.a.mov(qword_ptr(r9 + record::SP), rcx)?;
        // A record with a name could be taken for that of a call.
        self.a.mov(dword_ptr(r9 + record::NAME), 0)?;
        self.a.inc(edx)?;
        self.a.mov(dword_ptr(r9 + NOTE_NUMBER), edx)?;
        self.a.mov(qword_ptr(r9 + record::SAVED), 0)?;
        let pushed = 8 * (SAVED.len() + USED.len()) as u32;
        for word in (0..NOTE_WORDS).map(|n| 8 * n) {
            self.a.mov(rax, qword_ptr(rsp + (pushed + word)))?;
            self.a.mov(qword_ptr(r9 + record::KEPT + word), rax)?;
        }
        self.a.mov(eax, Self::notes(LAST_NOTE))?;
        self.a.mov(Self::notes(LAST_NOTE), esi)?;
        self.a.test(eax, eax)?;
        self.a.je(first)?;
        self.a.shl(rax, record::SIZE.trailing_zeros())?;
        self.a.mov(qword_ptr(r10 + rax + (RECORDS + record::SAVED)), rsi)?;
        self.a.jmp(done)?;
        self.a.set_label(&mut first)?;
        self.a.mov(Self::notes(FIRST_NOTE), esi)?;
        self.a.jmp(done)?;
        self.a.set_label(&mut lost)?;
        self.a.lock().dec(dword_ptr(r10 + NOTED))?;
        self.a.set_label(&mut done)?;
        self.exit(&USED)
    }

    /// Emits [`Routine::TellNotes`]. It does nothing if rcx describes no buffer inside of the counters.
    pub(crate) fn tell_notes(&mut self) -> Result<(), Assembly> {
        let [mut next, mut end, mut done] = std::array::from_fn(|_| self.a.create_label());
        self.enter(&USED_TELLING)?;
        self.goroutine(done)?;
        self.load_buffer(done)?;
        self.a.mov(r13d, Self::notes(NOTES_MADE))?;
        self.a.mov(esi, Self::notes(FIRST_NOTE))?;
        self.a.set_label(&mut next)?;
        self.a.test(esi, esi)?;
        self.a.je(end)?;
        // The program may have overwritten the links.
        self.a.cmp(esi, RECORDS_MAX as i32)?;
        self.a.ja(end)?;
        self.a.test(r13, r13)?;
        self.a.je(end)?;
        let of_buffer = |l: &Self, n: u32| l.own_from(r11, 8 * n);
        self.a.mov(rax, of_buffer(self, POSITION))?;
        self.a.sub(rax, of_buffer(self, TAKEN))?;
        self.a.cmp(rax, r12)?;
        self.a.jae(end)?;
        self.locate()?;
        self.a.mov(eax, 8 * WORDS)?;
        self.a.xadd(of_buffer(self, POSITION), rax)?;
        for word in 0..WORDS {
            let from = if word == 0 { record::SP } else { record::KEPT + 8 * (word - 1) };
            if word > 0 {
                self.a.add(rax, 8)?;
            }
            self.a.and(rax, rdi)?;
            self.a.mov(rcx, qword_ptr(r9 + from))?;
            self.a.mov(qword_ptr(r11 + rax + self.holes.at(8 * FIRST)).gs(), rcx)?;
        }
        self.a.mov(esi, dword_ptr(r9 + record::SAVED))?;
        self.a.dec(r13)?;
        self.a.jmp(next)?;
        self.a.set_label(&mut end)?;
        self.a.add(of_buffer(self, LOST), r13)?;
        self.a.set_label(&mut done)?;
        self.exit(&USED_TELLING)
    }

    /// Loads the offset in a shard of the buffer that rcx describes into r11, the number of bytes from which on it is full ([`records::room`]) into r12,
    /// and the mask of its words into rdi. Jumps to `none` if no such buffer is inside of the counters.
    fn load_buffer(&mut self, none: CodeLabel) -> Result<(), Assembly> {
        let [mut enough, mut limited] = std::array::from_fn(|_| self.a.create_label());
        self.a.mov(r11d, ecx)?;
        self.a.shr(rcx, 32)?;
        self.a.lea(eax, dword_ptr(rcx - Capacity::LEAST.trailing_zeros() as i32))?;
        self.a.cmp(eax, (Capacity::MOST.trailing_zeros() - Capacity::LEAST.trailing_zeros()) as i32)?;
        self.a.ja(none)?;
        self.a.mov(edi, 1)?;
        self.a.shl(edi, cl)?;
        self.a.lea(rax, qword_ptr(r11 + rdi + 8 * FIRST))?;
        self.a.cmp(rax, self.holes.records as i32)?;
        self.a.ja(none)?;
        self.a.cmp(r11, COUNTERS as i32)?;
        self.a.jb(none)?;
        // Twice the slack is left.
        self.a.mov(eax, edi)?;
        self.a.shr(eax, 2)?;
        self.a.cmp(eax, SLACK as i32)?;
        self.a.jae(enough)?;
        self.a.mov(eax, SLACK)?;
        self.a.set_label(&mut enough)?;
        self.a.cmp(eax, 8 * SLACK as i32)?;
        self.a.jbe(limited)?;
        self.a.mov(eax, 8 * SLACK)?;
        self.a.set_label(&mut limited)?;
        self.a.add(eax, eax)?;
        self.a.mov(r12, rdi)?;
        self.a.sub(r12, rax)?;
        Ok(self.a.sub(rdi, 8)?)
    }

    /// Emits [`Routine::EndNotes`].
    pub(crate) fn end_notes(&mut self) -> Result<(), Assembly> {
        let mut done = self.a.create_label();
        self.enter(&USED)?;
        self.goroutine(done)?;
        self.forget_notes()?;
        self.a.set_label(&mut done)?;
        self.exit(&USED)
    }

    /// Adds the notes of the goroutine to the unused records, and ends what has begun. Uses rax, rcx, rsi and rdi.
    pub(super) fn forget_notes(&mut self) -> Result<(), Assembly> {
        let mut done = self.a.create_label();
        self.a.mov(qword_ptr(r8 + NOTES_KEY), 0)?;
        self.a.mov(esi, Self::notes(FIRST_NOTE))?;
        self.a.mov(ecx, Self::notes(LAST_NOTE))?;
        self.a.mov(qword_ptr(r8 + FIRST_NOTE), 0)?;
        self.a.test(esi, esi)?;
        self.a.je(done)?;
        // The program may have overwritten the numbers.
        for number in [esi, ecx] {
            self.a.cmp(number, RECORDS_MAX as i32)?;
            self.a.ja(done)?;
        }
        self.a.shl(rcx, record::SIZE.trailing_zeros())?;
        self.a.mov(eax, dword_ptr(r10 + rcx + (RECORDS + NOTE_NUMBER)))?;
        self.a.lock().sub(dword_ptr(r10 + NOTED), eax)?;
        self.give_back_all(qword_ptr(r10 + rcx + (RECORDS + record::SAVED)))?;
        self.a.set_label(&mut done)?;
        Ok(self.a.zero_bytes()?)
    }
}
