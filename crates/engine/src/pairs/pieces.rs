//! The pieces of pairs: insertions that are woven, or refused, by themselves.

use std::sync::Arc;

use ingraft_model::{FunctionId, Insertion, Instrumentation, Refusal, Snippet, Variable, VariableId};
use rustc_hash::FxHashMap;

use crate::api::RefusedFunction;

use super::admitted::BoundPair;
use super::pair::{Pair, UnwindTarget, restores};

/// Reason why a pair, given by its index in the request, is not woven in a function.
pub type RefusedPieces = FxHashMap<(FunctionId, usize), Refusal>;

/// The snippets of a pair: those of its metric, and those where exceptions and longjmp land, which pairs share.
#[derive(Debug, Default)]
pub struct Minis {
    /// Ids of the metric's snippets, each with the function at whose points it stands.
    pub points: Vec<(FunctionId, u64)>,
    /// Snippets at unwind targets and at entries to which other functions jump.
    pub unwind_targets: Vec<UnwindTarget>,
    /// Functions at whose unwind targets nothing could be woven.
    pub unlanded: Vec<FunctionId>,
}

impl Pair {
    /// Adds code that was woven for the pair. `unwoven` lists the functions in which it could not be woven; `is_unmeasured` tells whether one
    /// of the definitions in it is woven nowhere.
    pub fn add(
        &mut self,
        code: &Instrumentation,
        minis: Minis,
        unwoven: Vec<(FunctionId, RefusedFunction)>,
        is_unmeasured: bool,
    ) {
        self.minis.extend(minis.points);
        self.unwind_targets.extend(minis.unwind_targets);
        self.unlanded.extend(minis.unlanded);
        self.restores |= restores(code);
        self.unwoven.extend(unwoven);
        self.unmeasured &= is_unmeasured;
    }
}

/// Number of the pieces of a pair that are woven or refused by themselves.
pub fn pieces_of(instrumentation: &Instrumentation) -> usize {
    if instrumentation.apart { instrumentation.insertions.len() } else { 1 }
}

/// The pieces of pairs: the insertions that are woven apart, each with its counter, and all other pairs as they are. `None` if all pairs are as
/// they are.
pub fn apart(bound: &[BoundPair]) -> Option<Vec<BoundPair>> {
    if !bound.iter().any(|(_, instrumentation, _)| instrumentation.apart) {
        return None;
    }
    let increment = Arc::new(Snippet::increment(VariableId(0)));
    let mut pieces = Vec::with_capacity(bound.iter().map(|(_, i, _)| pieces_of(i)).sum());
    for (key, instrumentation, counters) in bound {
        if !instrumentation.apart {
            pieces.push((key.clone(), instrumentation.clone(), counters.clone()));
            continue;
        }
        let variables: Arc<[Variable]> = instrumentation.variables.iter().take(1).cloned().collect();
        for insertion in &instrumentation.insertions {
            let own = insertion.snippet.as_increment().and_then(|variable| counters.get(variable.0 as usize).copied());
            let insertion = Insertion { snippet: Arc::clone(&increment), ..insertion.clone() };
            let (variables, insertions) = (Arc::clone(&variables), vec![insertion]);
            let piece = Instrumentation { variables, insertions, ..instrumentation.without_code() };
            pieces.push((key.clone(), piece, own.into_iter().collect()));
        }
    }
    Some(pieces)
}

/// Joins what was woven for the pieces of a pair, of which `first` is the number of the first one. If they were woven apart, also returns
/// the snippet of each piece, or the reason why it is not woven.
pub fn joined(
    instrumentation: &Instrumentation,
    pieces: impl Iterator<Item = Minis>,
    (first, refused): (usize, &RefusedPieces),
) -> (Minis, Vec<Result<u64, Refusal>>) {
    let (mut joined, mut probes) = (Minis::default(), Vec::new());
    let functions = instrumentation.insertions.iter().map(|insertion| Some(insertion.function));
    for (n, (piece, function)) in pieces.zip(functions.chain(std::iter::repeat(None))).enumerate() {
        if let (true, Some(function)) = (instrumentation.apart, function) {
            let why = || refused.get(&(function, first + n)).cloned().unwrap_or(Refusal::NoSuchPoint);
            probes.push(piece.points.first().map(|(_, id)| *id).ok_or_else(why));
        }
        joined.points.extend(piece.points);
        joined.unwind_targets.extend(piece.unwind_targets);
        joined.unlanded.extend(piece.unlanded);
    }
    (joined, probes)
}

#[cfg(test)]
mod tests {
    use super::super::pair::Landing;
    use ingraft_model::{PointKind, Shape, VariableKind};

    use super::*;
    use crate::pairs::tests::{function, insertion, instrumentation, key, variable};

    /// Code that increments variable `n` at the entry of function `n`.
    fn increments(count: u32, apart: bool) -> Instrumentation {
        let counter = || variable(VariableKind::Counter, Shape::Counter);
        let mut all = instrumentation((0..count).map(|_| counter()).collect());
        let code = |n| insertion(function(0, n), PointKind::Entry, Snippet::increment(VariableId(n)).stmts);
        all.insertions = (0..count).map(code).collect();
        all.apart = apart;
        all
    }

    #[test]
    fn each_insertion_that_is_woven_apart_is_a_piece_with_its_counter() {
        let bound: [BoundPair; 3] = [
            (key("a"), increments(2, false), [1, 2].into()),
            (key("b"), increments(3, true), [10, 11, 12].into()),
            (key("c"), increments(0, true), [].into()),
        ];
        assert_eq!(bound.each_ref().map(|(_, code, _)| pieces_of(code)), [1, 3, 0]);
        let pieces = apart(&bound).expect("pieces");
        let counters: Vec<&[u32]> = pieces.iter().map(|(.., counters)| &**counters).collect();
        assert_eq!(counters, [&[1, 2][..], &[10], &[11], &[12]]);
        for (_, piece, _) in &pieces[1..] {
            assert_eq!((piece.variables.len(), piece.insertions.len()), (1, 1));
            assert_eq!(piece.insertions[0].snippet.as_increment(), Some(VariableId(0)), "its first variable");
        }
        assert!(apart(&bound[..1]).is_none() && apart(&[]).is_none(), "all pairs are as they are");
    }

    #[test]
    fn pieces_tell_which_of_them_are_woven() {
        let f = |n| function(0, n);
        let piece = |ids: &[u64]| Minis { points: ids.iter().map(|id| (f(9), *id)).collect(), ..Minis::default() };
        let refused =
            RefusedPieces::from_iter([((f(1), 6), Refusal::NoRoomNearby), ((f(2), 2), Refusal::NoRoomNearby)]);
        let pieces = [piece(&[5]), piece(&[]), piece(&[])];
        let (all, probes) = joined(&increments(3, true), pieces.into_iter(), (5, &refused));
        assert_eq!(all.points, [(f(9), 5)]);
        assert_eq!(probes, [Ok(5), Err(Refusal::NoRoomNearby), Err(Refusal::NoSuchPoint)]);
        // a pair that is woven as a whole has no probes
        let whole = Minis {
            unlanded: vec![f(1)],
            unwind_targets: vec![(f(2), Landing::At(PointKind::Exit), 3)],
            ..piece(&[1, 2])
        };
        let (all, probes) = joined(&increments(2, false), [whole].into_iter(), (5, &refused));
        assert_eq!((all.points.len(), all.unlanded.len(), all.unwind_targets.len(), probes.len()), (2, 1, 1, 0));
    }
}
