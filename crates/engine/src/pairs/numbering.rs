//! Numbers by which code names the variables of its pair. Each evaluation of the pair assigns new numbers. If a library was loaded since,
//! the new evaluation may have the variables in another order, or additional ones among them.

use std::sync::Arc;

use ingraft_model::{Instrumentation, Variable};

use crate::error::Error;
use crate::weaving::cost::{Metered, Meters};

use super::counters::CounterPool;
use super::pair::Pair;

/// An order of a pair's variables.
#[derive(Debug)]
pub struct Numbering {
    /// Variables as they were evaluated, without the meters of snippets.
    variables: Arc<[Variable]>,
    /// First counter of each variable, meters included.
    counters: Vec<u32>,
    meters: Meters,
}

impl Pair {
    /// Adds meters of its snippets to an instrumentation. Returns the first counter of each of its variables: the pair's counter for a
    /// known variable, a free one for a new variable.
    pub fn counters_for(
        &mut self,
        more: &mut Instrumentation,
        made: &mut Metered,
        free: &mut CounterPool,
        limit: u32,
    ) -> Result<Vec<u32>, Error> {
        if self.numberings.is_empty() {
            let own = self.meters.before(&self.variables);
            if *own == *more.variables {
                self.meters.apply(more, made);
                let new = more.variables.get(self.counters.len()..).unwrap_or_default();
                self.grow(new, free, limit)?;
                return Ok(self.counters.clone());
            }
            let (variables, counters, meters) = (own.into(), self.counters.clone(), self.meters.clone());
            self.numberings.push(Numbering { variables, counters, meters });
        }
        let known = self.numberings.iter().position(|n| n.variables == more.variables);
        let at = known.unwrap_or(self.numberings.len());
        if known.is_none() {
            let variables = Arc::clone(&more.variables);
            let counters = self.counters_of(&variables, free, limit)?;
            self.numberings.push(Numbering { variables, counters, meters: Meters::default() });
        }
        let numbering = &mut self.numberings[at];
        numbering.meters.apply(more, made);
        let have = numbering.counters.len();
        let taken = self.grow(more.variables.get(have..).unwrap_or_default(), free, limit)?;
        let numbering = &mut self.numberings[at];
        numbering.counters.extend(taken);
        Ok(numbering.counters.clone())
    }

    /// The counters of variables in another order: each counter of an equal variable of the pair is used once, and new variables get new
    /// counters.
    fn counters_of(&mut self, variables: &[Variable], free: &mut CounterPool, limit: u32) -> Result<Vec<u32>, Error> {
        let mut left: Vec<(&Variable, u32)> = self.variables.iter().zip(self.counters.iter().copied()).collect();
        let own = |variable: &Variable| {
            let at = left.iter().position(|(known, _)| *known == variable)?;
            Some(left.remove(at).1)
        };
        let found: Vec<Option<u32>> = variables.iter().map(own).collect();
        let missing = variables.iter().zip(&found).filter(|(_, found)| found.is_none());
        let missing: Vec<Variable> = missing.map(|(variable, _)| variable.clone()).collect();
        let mut taken = self.grow(&missing, free, limit)?.into_iter();
        Ok(found.into_iter().filter_map(|found| found.or_else(|| taken.next())).collect())
    }

    /// Allocates counters for variables that the pair has not had so far.
    fn grow(&mut self, new: &[Variable], free: &mut CounterPool, limit: u32) -> Result<Vec<u32>, Error> {
        if new.is_empty() {
            return Ok(Vec::new());
        }
        let taken = free.take_for(new, limit)?;
        self.counters.extend(&taken);
        self.variables = self.variables.iter().chain(new).cloned().collect();
        Ok(taken)
    }
}
