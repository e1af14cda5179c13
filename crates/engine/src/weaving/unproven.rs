//! Functions whose code the verifier refuses. They are left out of a change, and all others are woven without them.

use ingraft_codegen::verify::VerifyError;
use ingraft_model::{Avma, AvmaRange, FunctionId, Refusal};

use crate::error::{Error, Reason};

/// Largest number of functions that are left out of one change one after the other. Each takes as long as all code of the change.
const MOST: u32 = 32;

/// The error for a change that the verifier has refused.
pub(super) fn defect(e: &dyn std::fmt::Display) -> Error {
    Error::new(Reason::UnprovenPlan, format!("the verifier refused the change: {e}"), "this is a defect of ingraft")
}

/// The reason for which such a function is left out.
pub(super) fn unproven(flaw: &VerifyError) -> Refusal {
    tracing::warn!("{flaw}");
    Refusal::Unproven { flaw: flaw.flaw.to_string() }
}

/// Functions that were left out of a change.
#[derive(Default)]
pub(super) struct BlamedFunctions(u32);

impl BlamedFunctions {
    /// The function to which a flaw belongs: the one with such new code or, if there is none, with such text. Fails if there is none either, or
    /// if too many were left out.
    pub(super) fn blame<'a>(
        &mut self,
        flaw: &VerifyError,
        code: impl Iterator<Item = (FunctionId, &'a AvmaRange)> + Clone,
        has_text: impl Fn(FunctionId, Avma) -> bool,
    ) -> Result<FunctionId, Error> {
        self.0 += 1;
        let its_code = code.clone().find(|(_, range)| range.contains(&flaw.at));
        let its_text = || code.clone().find(|(function, _)| has_text(*function, flaw.at));
        match its_code.or_else(its_text) {
            Some((function, _)) if self.0 <= MOST => Ok(function),
            _ => Err(defect(flaw)),
        }
    }
}

#[cfg(test)]
mod tests {
    use ingraft_codegen::verify::Flaw;
    use ingraft_model::ModuleId;

    use super::*;

    #[test]
    fn a_flaw_is_blamed_on_the_function_with_its_code_or_text() {
        let function = |function| FunctionId { module: ModuleId(0), function };
        let code = [(function(1), Avma(0x1000)..Avma(0x1010)), (function(2), Avma(0x1010)..Avma(0x1020))];
        let text = |of: FunctionId, at: Avma| at.0 / 0x10_0000 == u64::from(of.function);
        let blame = |all: &mut BlamedFunctions, at| {
            let flaw = VerifyError { at: Avma(at), flaw: Flaw::Lost };
            all.blame(&flaw, code.iter().map(|(of, range)| (*of, range)), text).map_err(|e| e.reason)
        };
        let mut all = BlamedFunctions::default();
        assert_eq!(blame(&mut all, 0x1010), Ok(function(2)));
        assert_eq!(blame(&mut all, 0x10_0008), Ok(function(1)));
        assert_eq!(blame(&mut all, 0x90_0000), Err(Reason::UnprovenPlan), "nobody is to blame");
        let blamed = (0..MOST).map(|_| blame(&mut all, 0x1000)).collect::<Vec<_>>();
        assert_eq!(blamed.last(), Some(&Err(Reason::UnprovenPlan)), "too many");
    }
}
