//! Readings at one moment: counters and the positions of all threads, while these are held.

use std::time::Duration;

use ingraft_model::{PatchPlan, Tid};
use ingraft_process::ApplyOptions;

use crate::error::Error;
use crate::readings::values::{Columns, Shards};
use crate::weaving::positions::{CodeMap, PositionVisitor, ProgramCounters};

use super::control::Control;
use super::driver::Session;

/// Largest number of stops of one reading: a thread may be at a place where it is not known what was counted.
const TRIES: u32 = 20;

impl Session {
    /// Reads counters while all threads are held, and notes where the threads are. Returns how long they were held, and the number of
    /// threads that the end of the target may have stopped at unknown places.
    pub(super) fn observe(
        &self,
        control: &Control,
        read: &mut (dyn FnMut(&Columns<'_>) + Send),
    ) -> Result<(ProgramCounters, Duration, u64), Error> {
        let mut read = || {
            if let Some(columns) = self.shared().columns() {
                read(&columns);
            }
        };
        self.target.take_longest_hold(); // discards the holds of earlier operations
        let alive = || !self.end.is_known() && self.target.is_alive();
        if let Some(attached) = control.attached.as_ref().filter(|_| alive()) {
            for round in 1..=TRIES {
                let mut visitor = PositionVisitor::of_query(CodeMap::new(&attached.woven), &mut read);
                let options = ApplyOptions { readings: Some(attached.env.data), ..ApplyOptions::default() };
                let applied = self.target.apply_and_visit(&PatchPlan::default(), &options, Some(&mut visitor));
                let seen = visitor.seen();
                match applied {
                    Ok(_) if seen.unknown.is_empty() || round == TRIES => {
                        return Ok((seen, self.target.take_longest_hold().held, 0));
                    }
                    Ok(_) => {}
                    Err(_) if !alive() => break,
                    Err(e) => return Err(Error::apply(self.pid(), e)),
                }
            }
        }
        read();
        Ok((ProgramCounters::default(), Duration::ZERO, self.cut_off_by_end()))
    }

    /// Number of threads that the end of the target may have stopped inside of runs.
    fn cut_off_by_end(&self) -> u64 {
        let shared = self.shared();
        let claims = shared.area().map_or_else(Vec::new, |area| Shards::claims(&**area));
        let by_itself = self.end.get().is_some_and(|ended| ended.status.is_some() || ended.exec);
        shared.roster().cut_off(&claims, Tid(self.pid().0), by_itself)
    }
}
