//! Evaluates many requests that are alike.
//!
//! If a metric is requested for a thousand functions, one request is evaluated. The result is reused for the other functions, with the
//! function replaced. This is correct only if the evaluation put all code into the function that the focus names, and asked the program
//! about nothing else than what the focus names.

use std::sync::{Arc, PoisonError, RwLock};

use ingraft_model::{Flavor, Focus, FunctionId, Instrumentation};

use super::{Evaluated, evaluate_and_tell};
use crate::diagnostic::Diagnostic;
use crate::library::Library;
use crate::program::ProgramFacts;

/// Largest number of results that are kept for reuse; one request has a few metrics.
const KEPT: usize = 16;

/// Evaluates requests that are made to one program at one time.
pub struct Evaluator<'a> {
    library: &'a Library,
    program: &'a (dyn ProgramFacts + Sync),
    flavors: &'a [Flavor],
    known: RwLock<Vec<ReusableResult>>,
}

/// Result of a request that is reused for requests at other functions.
struct ReusableResult {
    metric: String,
    focus: Focus,
    instrumentation: Instrumentation,
}

impl ReusableResult {
    /// Whether the result can be reused for this request.
    fn is_like(&self, metric: &str, focus: &Focus) -> bool {
        self.metric == metric && differ_in_function(&self.focus, focus)
    }
}

impl<'a> Evaluator<'a> {
    /// Returns an evaluator without results. The client states `flavors`; the program has them besides its own.
    pub fn new(library: &'a Library, program: &'a (dyn ProgramFacts + Sync), flavors: &'a [Flavor]) -> Self {
        Evaluator { library, program, flavors, known: RwLock::default() }
    }

    /// Evaluates like [`crate::evaluate`], for a program with these flavors.
    pub fn evaluate(&self, metric: &str, focus: &Focus) -> Result<Evaluated, Vec<Diagnostic>> {
        let function = self.function(focus);
        if let Some(function) = function
            && let Some(found) = self.known(metric, focus, function)
        {
            return Ok(Evaluated { instrumentation: found, warnings: Vec::new() });
        }
        let (found, beyond) = evaluate_and_tell(self.library, metric, focus, (self.program, self.flavors))?;
        if let Some(function) = function.filter(|_| !beyond && found.warnings.is_empty())
            && found.instrumentation.insertions.iter().all(|insertion| insertion.function == function)
        {
            let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
            // Another thread may have added such a result in the meantime.
            if known.len() < KEPT && !known.iter().any(|known| known.is_like(metric, focus)) {
                known.push(ReusableResult {
                    metric: metric.to_owned(),
                    focus: focus.clone(),
                    instrumentation: found.instrumentation.clone(),
                });
            }
        }
        Ok(found)
    }

    /// Returns the function that the focus names; `None` if the focus names none or several.
    fn function(&self, focus: &Focus) -> Option<FunctionId> {
        let [module, function] = focus.part("Code")?.names.as_slice() else { return None };
        match self.program.function(module, function).as_slice() {
            [only] => Some(*only),
            _ => None,
        }
    }

    /// Returns the result of an earlier request that differs in the function alone.
    fn known(&self, metric: &str, focus: &Focus, function: FunctionId) -> Option<Instrumentation> {
        let all = self.known.read().unwrap_or_else(PoisonError::into_inner);
        let known = all.iter().find(|known| known.is_like(metric, focus))?;
        let Instrumentation {
            metric,
            variables,
            event,
            thread,
            object,
            index_names,
            key_names,
            apart,
            placing,
            records,
            ..
        } = &known.instrumentation;
        let insertions = known.instrumentation.insertions.iter().cloned();
        Some(Instrumentation {
            metric: Arc::clone(metric),
            variables: Arc::clone(variables),
            insertions: insertions.map(|insertion| ingraft_model::Insertion { function, ..insertion }).collect(),
            event: event.clone(),
            thread: *thread,
            object: *object,
            index_names: index_names.clone(),
            key_names: key_names.clone(),
            apart: *apart,
            placing: *placing,
            records: Arc::clone(records),
        })
    }
}

/// Whether two foci are equal but for the function, which is of the same module in both.
fn differ_in_function(one: &Focus, other: &Focus) -> bool {
    let (one, other) = (one.parts(), other.parts());
    one.len() == other.len()
        && one.iter().zip(other).all(|(a, b)| match (a.names.as_slice(), b.names.as_slice()) {
            ([module, _], [other, _]) if a.root == "Code" => a.root == b.root && module == other,
            _ => a == b,
        })
}
