//! Functions of a target, and the reasons why points of them cannot be woven.

use ingraft_api::{FunctionEntry, FunctionFacts, NamedFunction, PointSummary, RefusedFunction, UntypedSymbol, WhyNot};

use crate::field::{FieldError, WireField, read};
use crate::v1;

messages! {
    NamedFunction => FunctionRef { module, function, offset }
    PointSummary => PointSummary { kind, count, how, why_not }
    UntypedSymbol => UntypedSymbol { module, name, offset, inside }
}

nested! {
    FunctionEntry => Function
    WhyNot => Refusal
}

impl From<FunctionEntry> for v1::Function {
    fn from(entry: FunctionEntry) -> Self {
        let FunctionEntry { function, size, points, facts: FunctionFacts { tail_exits, exposed } } = entry;
        v1::Function { function: function.to_wire(), size, points: points.to_wire(), tail_exits, exposed }
    }
}

impl TryFrom<v1::Function> for FunctionEntry {
    type Error = FieldError;

    fn try_from(message: v1::Function) -> Result<Self, FieldError> {
        let v1::Function { function, size, points, tail_exits, exposed } = message;
        let facts = FunctionFacts { tail_exits, exposed };
        Ok(FunctionEntry { function: read("function", function)?, size, points: read("points", points)?, facts })
    }
}

impl From<WhyNot> for v1::Refusal {
    fn from(why: WhyNot) -> Self {
        match why {
            WhyNot::Told { reason, text } => v1::Refusal { reason, text },
            WhyNot::Refused(refusal) => v1::Refusal { reason: refusal.word().to_owned(), text: refusal.to_string() },
        }
    }
}

impl TryFrom<v1::Refusal> for WhyNot {
    type Error = FieldError;

    fn try_from(v1::Refusal { reason, text }: v1::Refusal) -> Result<Self, FieldError> {
        Ok(WhyNot::Told { reason, text })
    }
}

/// A function that is not measured, with the index of the pair that it is refused for; `None` if it belongs to no pair.
pub(crate) fn to_refused(refused: RefusedFunction, pair: Option<u32>) -> v1::RefusedFunction {
    let RefusedFunction { function, reason } = refused;
    v1::RefusedFunction { function: Some(function.into()), reason: Some(reason.into()), pair }
}

/// Reads what [`to_refused`] has converted.
pub(crate) fn from_refused(refused: v1::RefusedFunction) -> Result<(RefusedFunction, Option<u32>), FieldError> {
    let v1::RefusedFunction { function, reason, pair } = refused;
    Ok((RefusedFunction { function: read("function", function)?, reason: read("reason", reason)? }, pair))
}

#[cfg(test)]
mod tests {
    use ingraft_model::{Offset, Refusal};

    use super::*;
    use crate::any::{Any, Source, comes_back};
    use crate::field::round_trips;

    impl Any for WhyNot {
        fn any(source: &mut Source<'_>) -> Self {
            match source.next() {
                true => WhyNot::Told { reason: source.next(), text: source.next() },
                false => Refusal::UnknownInstruction { offset: source.next() }.into(),
            }
        }
    }

    impl Any for FunctionEntry {
        fn any(source: &mut Source<'_>) -> Self {
            let facts = FunctionFacts { tail_exits: source.next(), exposed: source.next() };
            FunctionEntry { function: source.next(), size: source.next(), points: source.next(), facts }
        }
    }

    impl Any for RefusedFunction {
        fn any(source: &mut Source<'_>) -> Self {
            RefusedFunction { function: source.next(), reason: source.next() }
        }
    }

    #[test]
    fn functions_come_back() {
        round_trips::<FunctionEntry, v1::Function>();
        round_trips::<UntypedSymbol, v1::UntypedSymbol>();
        comes_back(|(refused, pair): (RefusedFunction, Option<u32>)| {
            from_refused(to_refused(refused, pair)).map_err(|e| e.to_string())
        });
    }

    #[test]
    fn a_refusal_carries_word_and_sentence() {
        let wire = v1::Refusal::from(WhyNot::from(Refusal::UnknownInstruction { offset: Offset(0x1a) }));
        let (reason, text) = ("unknown_instruction".to_owned(), "an unknown instruction at +0x1a".to_owned());
        assert_eq!(wire, v1::Refusal { reason, text });
    }
}
