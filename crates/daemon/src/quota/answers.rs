//! Bytes of answers that wait until clients read them.

use std::sync::Arc;

use ingraft_wire::{Failure, FailureKind};

use super::{Holder, SOON, Table, locked};

/// The holder for which bytes are counted until a client reads them.
#[derive(Clone, Debug)]
pub struct Payer {
    table: Arc<Table>,
    holder: Holder,
}

impl Payer {
    /// Returns the payer for a holder in a table.
    pub(super) fn new(table: &Arc<Table>, holder: Holder) -> Payer {
        Payer { table: Arc::clone(table), holder }
    }

    /// Counts bytes of an answer that waits to be read, as long as the returned value exists.
    pub fn hold(&self, bytes: usize) -> Result<Held, Failure> {
        let mut held = Held { payer: self.clone(), bytes: 0 };
        held.grow(bytes)?;
        Ok(held)
    }
}

/// Counted bytes of an answer that waits to be read. They are given back when this is dropped.
#[derive(Debug)]
pub struct Held {
    payer: Payer,
    bytes: usize,
}

impl Held {
    fn grow(&mut self, bytes: usize) -> Result<(), Failure> {
        let Payer { table, holder } = &self.payer;
        let mut pool = locked(&table.answers);
        if !pool.take(*holder, table.standing(*holder), bytes) {
            let have = pool.of(*holder);
            let what = format!("{holder} has {have} bytes of answers to read; {bytes} more do not fit");
            let hint = "read answers as they come, and ask for less at a time";
            return Err(Failure::new(FailureKind::Exhausted, "quota_exceeded", what, hint).retry_after(SOON));
        }
        self.bytes += bytes;
        Ok(())
    }

    /// Counts `bytes` instead of the number counted so far. On an error the number stays as before.
    pub fn resize(&mut self, bytes: usize) -> Result<(), Failure> {
        if bytes > self.bytes {
            return self.grow(bytes - self.bytes);
        }
        let Payer { table, holder } = &self.payer;
        locked(&table.answers).give_back(*holder, table.standing(*holder), self.bytes - bytes);
        self.bytes = bytes;
        Ok(())
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let Payer { table, holder } = &self.payer;
        locked(&table.answers).give_back(*holder, table.standing(*holder), self.bytes);
    }
}

#[cfg(test)]
impl Payer {
    /// Returns the number of bytes that wait for all calls of the same user.
    pub fn held(&self) -> usize {
        locked(&self.table.answers).of(self.holder)
    }
}
