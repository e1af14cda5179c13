//! Calls of which only those inside of others of their function have activation records, see [`ingraft_model::outermost`].

use iced_x86::code_asm::{rax, rdx};
use ingraft_model::layout::record;
use ingraft_model::outermost::{FRAME, VALUE};
use ingraft_model::{CallRecord, Stmt, VariableId, Whose};

use crate::code::environment::Assembly;
use crate::snippet::generator::{Generator, ShardAccess};
use crate::snippet::routines::LEFT;

impl Generator<'_> {
    /// Begins a call: the outermost one notes its stack pointer, another one has a record.
    pub(crate) fn open_outermost(&mut self, v: VariableId, r: &CallRecord, body: &[Stmt]) -> Result<(), Assembly> {
        self.refuse_moving()?;
        self.used = [true; 3];
        let [mut inside, mut known, mut end] = std::array::from_fn(|_| self.a.create_label());
        self.a.cmp(self.slot(v, VALUE)?, 0)?;
        self.a.jne(inside)?;
        self.stmts(body)?;
        self.call()?;
        self.a.mov(self.slot(v, FRAME)?, rdx)?;
        self.a.jmp(end)?;
        self.place(&mut inside)?;
        // The call with the frame of this one has ended without an exit. The value may be that of another call, which is open and has a record.
        self.call()?;
        self.a.cmp(self.slot(v, FRAME)?, rdx)?;
        self.a.jne(known)?;
        self.a.inc(self.slot(r.activations, LEFT)?)?;
        self.a.mov(self.slot(v, FRAME)?, 0)?;
        self.place(&mut known)?;
        self.open_record(r, body)?;
        self.place(&mut end)
    }

    /// Ends a call: the outermost one leaves nothing behind, another one sets the value back. If a call is neither, its function has no known value.
    pub(crate) fn close_outermost(&mut self, v: VariableId, r: &CallRecord, body: &[Stmt]) -> Result<(), Assembly> {
        if self.access == ShardAccess::Shared {
            return Ok(());
        }
        self.refuse_moving()?;
        self.used = [true; 3];
        let [mut inside, mut end] = std::array::from_fn(|_| self.a.create_label());
        self.call()?;
        self.a.cmp(self.slot(v, FRAME)?, rdx)?;
        self.a.jne(inside)?;
        self.a.mov(self.slot(v, VALUE)?, 0)?;
        self.a.mov(self.slot(v, FRAME)?, 0)?;
        self.a.jmp(end)?;
        self.place(&mut inside)?;
        let set_back = |g: &mut Self| {
            g.field(record::SAVED)?;
            g.a.mov(g.slot(v, VALUE)?, rax)?;
            g.end(r, body)
        };
        self.at_record(r, Whose::Own, set_back, |g| Ok(g.a.mov(g.slot(v, VALUE)?, 0)?))?;
        self.place(&mut end)
    }

    fn refuse_moving(&self) -> Result<(), Assembly> {
        if self.frame.stack.moving {
            return Err(Assembly("a call that moves between threads has a record".to_owned()));
        }
        Ok(())
    }
}
