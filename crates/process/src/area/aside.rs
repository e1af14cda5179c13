//! Activation records of calls on stacks that no thread executes, see [`ingraft_model::layout::stacks`].

use std::iter::successors;

use ingraft_model::layout::{record, stacks};

use super::SharedArea;
use crate::ProcessError;

impl SharedArea {
    /// The names of the records that are set aside. The threads of the target are held, or run no woven code.
    pub fn names_set_aside(&self) -> Result<Vec<u32>, ProcessError> {
        let start = self.shard_start(stacks::SHARD);
        if !self.sets_stacks_aside()? || self.read_u32(start + u64::from(stacks::USED))? == 0 {
            return Ok(Vec::new());
        }
        let place_words = stacks::PLACE as usize / 8;
        let mut words = vec![0; place_words * ((1 << stacks::PLACE_BITS) + stacks::PROBES as usize)];
        self.read_words(start + u64::from(stacks::PLACES), &mut words)?;
        let outermost = |place: &[u64]| {
            let taken = place.first().is_some_and(|key| *key != 0);
            place.get(stacks::OUTERMOST as usize / 8).copied().filter(|_| taken)
        };
        let records = start + u64::from(stacks::RECORDS);
        let at = |number: u64| {
            let known = (1..=u64::from(stacks::RECORDS_MAX)).contains(&number);
            known.then(|| records + number * u64::from(stacks::RECORD))
        };
        let next = |record: &u64| at(self.read_u64(record + u64::from(stacks::NEXT)).unwrap_or(0));
        let all = words.chunks_exact(place_words).filter_map(outermost).flat_map(|first| successors(at(first), next));
        // The program may have overwritten the records, so that one leads back to an earlier one.
        all.take(stacks::RECORDS_MAX as usize).map(|record| self.read_u32(record + u64::from(record::NAME))).collect()
    }
}
