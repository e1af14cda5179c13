//! Counted bytes of answers that clients have not read yet.

use std::sync::Arc;

use ingraft_api::Reason;
use ingraft_wire::ProtocolFailure;

use super::{QuotaHolder, ResourceTable, SOON, locked};

/// The holder whose quota pays for bytes until a client has read them.
#[derive(Clone, Debug)]
pub struct Payer {
    table: Arc<ResourceTable>,
    holder: QuotaHolder,
}

impl Payer {
    /// Returns the payer for a holder in a table.
    pub(super) fn new(table: &Arc<ResourceTable>, holder: QuotaHolder) -> Payer {
        Payer { table: Arc::clone(table), holder }
    }

    /// Counts bytes of an answer that waits to be read, while the returned value exists.
    pub fn hold(&self, bytes: usize) -> Result<CountedBytes, ProtocolFailure> {
        let mut held = CountedBytes { payer: self.clone(), bytes: 0 };
        held.grow(bytes)?;
        Ok(held)
    }
}

/// Counted bytes of an answer that waits to be read. Dropping this value gives them back.
#[derive(Debug)]
pub struct CountedBytes {
    payer: Payer,
    bytes: usize,
}

impl CountedBytes {
    fn grow(&mut self, bytes: usize) -> Result<(), ProtocolFailure> {
        let Payer { table, holder } = &self.payer;
        let mut pool = locked(&table.answers);
        if !pool.take(*holder, table.standing(*holder), bytes) {
            let have = pool.of(*holder);
            let what = format!("{holder} has {have} bytes of answers to read; {bytes} more do not fit");
            let hint = "read answers as they come, and ask for less at a time";
            return Err(ProtocolFailure::new(Reason::QuotaExceeded, what, hint).retry_after(SOON));
        }
        self.bytes += bytes;
        Ok(())
    }

    /// Replaces the number of counted bytes by `bytes`. If this fails, the number does not change.
    pub fn resize(&mut self, bytes: usize) -> Result<(), ProtocolFailure> {
        if bytes > self.bytes {
            return self.grow(bytes - self.bytes);
        }
        let Payer { table, holder } = &self.payer;
        locked(&table.answers).give_back(*holder, table.standing(*holder), self.bytes - bytes);
        self.bytes = bytes;
        Ok(())
    }
}

impl Drop for CountedBytes {
    fn drop(&mut self) {
        let Payer { table, holder } = &self.payer;
        locked(&table.answers).give_back(*holder, table.standing(*holder), self.bytes);
    }
}

#[cfg(test)]
impl Payer {
    /// Returns the number of bytes that wait for all calls of the same holder.
    pub fn held(&self) -> usize {
        locked(&self.table.answers).of(self.holder)
    }
}
