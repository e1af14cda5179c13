//! The points that pairs need, with the snippets at each of them: those of the pairs' code, those that prune stale activations where control
//! arrives otherwise than by a call, and those that follow calls across tail jumps.

use std::sync::Arc;

use ingraft_model::{
    FunctionId, Insertion, Instrumentation, Order, PointKind, Refusal, Role, Shape, Snippet, StackSwitch, Stmt,
};
use rustc_hash::FxHashMap;

use crate::weaving::cost::Meter;
use crate::weaving::exits::Exits;
use crate::weaving::plan::PRUNE;
use crate::weaving::wanted::{NewMini, WantedPoints};

use super::Pairs;
use super::admitted::BoundPair;
use super::pair::{Landing, UnwindTarget, restores};
use super::pieces::{Minis, RefusedPieces};
use super::tails::TailCalls;

/// Allocates the ids of snippets. [`PRUNE`] is none of them.
#[derive(Debug)]
pub struct SnippetIds {
    next: u64,
}

impl Default for SnippetIds {
    fn default() -> Self {
        SnippetIds { next: PRUNE + 1 }
    }
}

impl SnippetIds {
    /// An id that no snippet of the session has had.
    pub fn take(&mut self) -> u64 {
        self.next += 1;
        self.next - 1
    }
}

/// Snippets that several pairs need.
#[derive(Debug)]
pub struct CommonSnippets {
    /// Prunes stale activations where a call begins.
    prune: Arc<Snippet>,
    /// An empty snippet that keeps `prune` at an entry.
    anchor: Arc<Snippet>,
    /// Sets records aside where a stack is left.
    leave: Arc<Snippet>,
    /// Fetches the records of the stack to which control has come.
    enter: Arc<Snippet>,
}

impl Default for CommonSnippets {
    fn default() -> Self {
        let of = |stmt| Arc::new(Snippet { stmts: vec![stmt] });
        CommonSnippets {
            prune: of(Stmt::Prune),
            anchor: Arc::default(),
            leave: of(Stmt::Switch(StackSwitch::Leave)),
            enter: of(Stmt::Switch(StackSwitch::Enter)),
        }
    }
}

impl CommonSnippets {
    /// The snippet with a purpose.
    fn of(&self, landing: Landing) -> &Arc<Snippet> {
        match landing {
            Landing::At(_) => &self.prune,
            Landing::Leave => &self.leave,
            Landing::Enter => &self.enter,
        }
    }
}

/// A snippet with its sort key among all snippets of a request.
struct RankedSnippet<'a> {
    /// Place of the function in the request, and kind of the points; then the pair, so that the pair that begins first ends last; then the
    /// position in its pair.
    rank: (usize, PointKind, i64, i64),
    function: FunctionId,
    mini: NewMini<'a>,
}

impl<'a> RankedSnippet<'a> {
    /// Creates the entry of a snippet; `n` is the number of snippets that its pair has had before. `place` is that of the function.
    fn new((place, insertion): (usize, &Insertion), n: i64, mini: NewMini<'a>) -> Self {
        let kind = insertion.point;
        let pair = mini.pair as i64;
        let position = match insertion.order {
            Order::Append => n,
            Order::Prepend => -1 - n,
        };
        let rank = (place, kind, if kind.opens() { pair } else { -pair }, position);
        RankedSnippet { rank, function: insertion.function, mini }
    }
}

/// The points that pairs need, each with its snippets, and the snippets of each pair.
#[derive(Default)]
pub struct PointDraft<'w> {
    wanted: Vec<WantedPoints<'w>>,
    minis: Vec<Minis>,
    /// The pair that weaves each new snippet which others share.
    brought: FxHashMap<(FunctionId, Landing), usize>,
}

impl<'w> PointDraft<'w> {
    /// The points of the pairs' own code, in the order in which the pairs name the functions first.
    pub fn of(bound: &'w [BoundPair], common: &'w CommonSnippets, ids: &mut SnippetIds) -> Self {
        let mut placed: Vec<RankedSnippet<'w>> =
            Vec::with_capacity(bound.iter().map(|(_, i, _)| i.insertions.len()).sum());
        let mut minis: Vec<Minis> = Vec::with_capacity(bound.len());
        let mut places: FxHashMap<FunctionId, usize> = FxHashMap::default();
        for (pair, (_, instrumentation, counters)) in bound.iter().enumerate() {
            let mut own = Vec::with_capacity(instrumentation.insertions.len());
            for (n, insertion) in instrumentation.insertions.iter().enumerate() {
                let id = ids.take();
                let mini = NewMini {
                    role: Some(insertion.role),
                    counters: Arc::clone(counters),
                    meter: Meter::of(&insertion.snippet, counters, &instrumentation.variables),
                    except: &insertion.except,
                    parts: insertion.parts.clone(),
                    placing: instrumentation.placing,
                    ..NewMini::plain(id, pair, &insertion.snippet)
                };
                let next = places.len();
                let place = *places.entry(insertion.function).or_insert(next);
                placed.push(RankedSnippet::new((place, insertion), n as i64, mini));
                own.push((insertion.function, id));
            }
            minis.push(Minis { points: own, ..Minis::default() });
        }
        placed.sort_unstable_by_key(|placed| placed.rank);
        let group = |placed: &RankedSnippet<'w>| (placed.function, placed.rank.1);
        let sizes: Vec<usize> = placed.chunk_by(|a, b| group(a) == group(b)).map(<[_]>::len).collect();
        let mut wanted: Vec<WantedPoints<'w>> = Vec::with_capacity(sizes.len());
        let mut placed = placed.into_iter().peekable();
        for size in sizes {
            let Some((function, kind)) = placed.peek().map(group) else { break };
            // with room for what may come first
            let mut minis = Vec::with_capacity(size + 1);
            minis.extend(placed.by_ref().take(size).map(|placed| placed.mini));
            wanted.push(WantedPoints { function, kind, minis });
        }
        for w in wanted.iter_mut().filter(|w| w.kind.opens()) {
            if let Some(pair) = w.minis.iter().map(|m| m.pair).find(|pair| follows(&bound[*pair].1)) {
                w.minis.insert(0, NewMini::plain(PRUNE, pair, &common.prune));
            }
        }
        PointDraft { wanted, minis, brought: FxHashMap::default() }
    }

    /// The points, those of a function being adjacent until others are added.
    pub fn wanted(&self) -> &[WantedPoints<'w>] {
        &self.wanted
    }

    /// Adds the snippet that pairs with restored states need where exceptions and longjmp land; the pairs share one snippet for each
    /// landing. `targets` returns the landings. It is called only if a pair needs them, because it may analyse libraries.
    pub fn add_landings(
        &mut self,
        pairs: &Pairs,
        bound: &[BoundPair],
        targets: impl FnOnce() -> Vec<(FunctionId, PointKind)>,
        common: &'w CommonSnippets,
        ids: &mut SnippetIds,
    ) {
        let puts_back = |(key, instrumentation, _): &BoundPair| {
            restores(instrumentation) || pairs.get(key).is_some_and(|pair| pair.restores)
        };
        let restoring: Vec<usize> = (0..).zip(bound).filter(|(_, bound)| puts_back(bound)).map(|(n, _)| n).collect();
        if restoring.is_empty() {
            return;
        }
        let landings = targets().into_iter().map(|(function, kind)| (function, Landing::At(kind)));
        self.share(pairs, bound, &restoring, landings, common, ids);
    }

    /// Adds the snippets that pairs with records need in functions which switch stacks. `switches` returns the entries and exits of such functions. It is
    /// called only if a pair needs them.
    pub fn add_stack_switches(
        &mut self,
        pairs: &Pairs,
        bound: &[BoundPair],
        switches: impl FnOnce() -> Vec<(FunctionId, PointKind)>,
        common: &'w CommonSnippets,
        ids: &mut SnippetIds,
    ) {
        let following: Vec<usize> = (0..).zip(bound).filter(|(_, bound)| follows(&bound.1)).map(|(n, _)| n).collect();
        if following.is_empty() {
            return;
        }
        let landing = |kind| if kind == PointKind::Entry { Landing::Leave } else { Landing::Enter };
        let switches = switches().into_iter().map(|(function, kind)| (function, landing(kind)));
        self.share(pairs, bound, &following, switches, common, ids);
    }

    /// Adds snippets that the pairs with these numbers share.
    fn share(
        &mut self,
        pairs: &Pairs,
        bound: &[BoundPair],
        users: &[usize],
        landings: impl Iterator<Item = (FunctionId, Landing)>,
        common: &'w CommonSnippets,
        ids: &mut SnippetIds,
    ) {
        for (function, landing) in landings {
            let needs = |pair: &usize| {
                let known = bound.get(*pair).and_then(|(key, ..)| pairs.get(key));
                known.is_none_or(|known| {
                    known.landing(function, landing).is_none() && !known.unlanded.contains(&function)
                })
            };
            let needing: Vec<usize> = users.iter().copied().filter(needs).collect();
            let Some(&pair) = needing.first() else { continue };
            let known = pairs.landing(function, landing);
            let id = known.unwrap_or_else(|| ids.take());
            for pair in needing {
                self.minis[pair].unwind_targets.push((function, landing, id));
            }
            if known.is_some() {
                continue;
            }
            self.brought.insert((function, landing), pair);
            // The records that the function itself opens are among those that it sets aside, so that code comes last.
            let role = (landing == Landing::Leave).then_some(Role::FlagClear);
            let mini = NewMini { role, ..NewMini::plain(id, pair, common.of(landing)) };
            let kind = landing.kind();
            match self.wanted.iter_mut().find(|w| (w.function, w.kind) == (function, kind)) {
                Some(known) if landing == Landing::Leave => known.minis.push(mini),
                Some(known) => known.minis.insert(0, mini),
                None => self.wanted.push(WantedPoints { function, kind, minis: vec![mini] }),
            }
        }
    }

    /// Adds the snippets that follow calls across tail jumps.
    pub fn add_tail_calls(
        &mut self,
        pairs: &Pairs,
        bound: &'w [BoundPair],
        tails: &'w TailCalls,
        common: &'w CommonSnippets,
        ids: &mut SnippetIds,
    ) {
        for w in self.wanted.iter_mut().filter(|w| w.kind == PointKind::Exit) {
            for mini in &mut w.minis {
                if let Some(jumps) = tails.jumps_without(w.function, mini.pair, mini.snippet) {
                    mini.exits = Exits::But(Arc::clone(jumps));
                }
            }
        }
        let mut places: FxHashMap<(FunctionId, PointKind), usize> =
            self.wanted.iter().enumerate().map(|(i, w)| ((w.function, w.kind), i)).collect();
        let mut at = |function: FunctionId, kind: PointKind, wanted: &mut Vec<WantedPoints<'w>>| {
            *places.entry((function, kind)).or_insert_with(|| {
                wanted.push(WantedPoints { function, kind, minis: Vec::new() });
                wanted.len() - 1
            })
        };
        for (&function, &pair) in &tails.entries {
            let landing = Landing::At(PointKind::Entry);
            let known = pairs.landing(function, landing);
            let id = known.unwrap_or_else(|| ids.take());
            let users = tails.users.get(&function).into_iter().flatten();
            users.for_each(|user| self.minis[*user].unwind_targets.push((function, landing, id)));
            if known.is_some() {
                continue;
            }
            self.brought.insert((function, landing), pair);
            let place = at(function, PointKind::Entry, &mut self.wanted);
            let all = &mut self.wanted[place].minis;
            if all.first().is_none_or(|first| first.id != PRUNE) {
                all.insert(0, NewMini::plain(PRUNE, pair, &common.prune));
            }
            all.push(NewMini::plain(id, pair, &common.anchor));
        }
        for derived in &tails.derived {
            let (id, pair) = (ids.take(), derived.pair);
            self.minis[pair].points.push((derived.function, id));
            let place = at(derived.function, derived.kind, &mut self.wanted);
            self.wanted[place].minis.push(NewMini {
                role: Some(derived.role),
                counters: Arc::clone(&bound[pair].2),
                exits: derived.exits.clone(),
                ..NewMini::plain(id, pair, &derived.snippet)
            });
        }
    }

    /// The refusals if none of the points can be woven, for this reason.
    pub fn all_refused(&self, refusal: &Refusal) -> RefusedPieces {
        let pairs = self.wanted.iter().flat_map(|w| w.minis.iter().map(|m| (w.function, m.pair)));
        pairs.map(|place| (place, refusal.clone())).collect()
    }

    /// The snippets of each pair that were woven, if these were refused.
    pub fn woven(self, refused: &RefusedPieces) -> Vec<Minis> {
        let PointDraft { mut minis, brought, .. } = self;
        for (pair, own) in minis.iter_mut().enumerate() {
            own.points.retain(|(f, _)| !refused.contains_key(&(*f, pair)));
            let is_woven = |(f, landing, _): &UnwindTarget| {
                brought.get(&(*f, *landing)).is_none_or(|by| !refused.contains_key(&(*f, *by)))
            };
            own.unlanded = own.unwind_targets.extract_if(.., |landing| !is_woven(landing)).map(|(f, ..)| f).collect();
        }
        minis
    }
}

/// Whether a pair follows calls from beginning to end. If so, stale activations are pruned wherever one of its calls begins.
fn follows(instrumentation: &Instrumentation) -> bool {
    instrumentation.variables.iter().any(|v| v.shape == Shape::Activations)
}

#[cfg(test)]
mod tests {
    use ingraft_model::{CallRecord, Expr, Restore, VariableId, VariableKind};
    use rustc_hash::FxHashSet;

    use super::*;
    use crate::pairs::tails::Derived;
    use crate::pairs::tests::{counting, function, insertion, instrumentation, key, variable};

    const ENTRY: PointKind = PointKind::Entry;
    const EXIT: PointKind = PointKind::Exit;

    /// A pair with code at these kinds of points of functions.
    fn bound(name: &str, points: &[(u32, PointKind)]) -> BoundPair {
        let mut code = instrumentation(vec![variable(VariableKind::Counter, Shape::Counter)]);
        let count = || vec![Stmt::Add(VariableId(0), Expr::Const(1))];
        code.insertions = points.iter().map(|(n, kind)| insertion(function(0, *n), *kind, count())).collect();
        (key(name), code, [0].into())
    }

    fn following(name: &str, points: &[(u32, PointKind)]) -> BoundPair {
        let (key, mut code, _) = bound(name, points);
        let activations = variable(VariableKind::Activations, Shape::Activations);
        code.variables = [code.variables[0].clone(), activations].into();
        (key, code, [0, 1].into())
    }

    /// A pair whose calls restore a state.
    fn restoring(name: &str) -> BoundPair {
        let (key, mut code, counters) = following(name, &[(1, ENTRY)]);
        let restore = Some(Restore::Value(VariableId(0)));
        let record = CallRecord { activations: VariableId(1), kept: Vec::new(), restore };
        code.insertions[0].snippet = Arc::new(Snippet { stmts: vec![Stmt::Open(record, Vec::new())] });
        (key, code, counters)
    }

    /// Function and kind of points, and the snippets there with their pairs.
    type Shown = (u32, PointKind, Vec<(u64, usize)>);

    fn shown(draft: &PointDraft<'_>) -> Vec<Shown> {
        let minis = |w: &WantedPoints<'_>| w.minis.iter().map(|m| (m.id, m.pair)).collect();
        draft.wanted().iter().map(|w| (w.function.function, w.kind, minis(w))).collect()
    }

    #[test]
    fn the_pair_that_begins_first_ends_last() {
        let mut prepended = bound("b", &[(1, ENTRY), (1, ENTRY), (1, EXIT)]);
        prepended.1.insertions[1].order = Order::Prepend;
        let all = [bound("a", &[(2, ENTRY), (1, EXIT), (1, ENTRY)]), prepended];
        let (common, mut ids) = (CommonSnippets::default(), SnippetIds::default());
        let draft = PointDraft::of(&all, &common, &mut ids);
        assert_eq!(
            shown(&draft),
            [(2, ENTRY, vec![(1, 0)]), (1, ENTRY, vec![(3, 0), (5, 1), (4, 1)]), (1, EXIT, vec![(6, 1), (2, 0)])]
        );
        assert_eq!(ids.take(), 7);
        let minis = draft.woven(&RefusedPieces::default());
        let own = |n: usize| minis[n].points.iter().map(|(f, id)| (f.function, *id)).collect::<Vec<_>>();
        assert_eq!(own(0), [(2, 1), (1, 2), (1, 3)]);
        assert_eq!(own(1), [(1, 4), (1, 5), (1, 6)]);
    }

    #[test]
    fn stale_activations_are_pruned_where_a_followed_call_begins() {
        let all = [bound("a", &[(1, ENTRY), (2, ENTRY)]), following("b", &[(1, ENTRY), (1, EXIT)])];
        let (common, mut ids) = (CommonSnippets::default(), SnippetIds::default());
        let draft = PointDraft::of(&all, &common, &mut ids);
        assert_eq!(
            shown(&draft),
            [(1, ENTRY, vec![(PRUNE, 1), (1, 0), (3, 1)]), (1, EXIT, vec![(4, 1)]), (2, ENTRY, vec![(2, 0)]),]
        );
    }

    #[test]
    fn pairs_share_one_snippet_where_exceptions_land() {
        let all = [restoring("a"), bound("b", &[(3, EXIT)]), restoring("c")];
        let (common, mut ids) = (CommonSnippets::default(), SnippetIds::default());
        let landings = || vec![(function(0, 3), EXIT), (function(0, 4), ENTRY)];
        let mut draft = PointDraft::of(&all, &common, &mut ids);
        draft.add_landings(&Pairs::default(), &all, landings, &common, &mut ids);
        assert_eq!(shown(&draft)[1..], [(3, EXIT, vec![(4, 0), (2, 1)]), (4, ENTRY, vec![(5, 0)])]);
        // the landing of function 3 is refused to the pair that weaves it
        let refused = RefusedPieces::from_iter([((function(0, 3), 0), Refusal::NoRoomNearby)]);
        let minis = draft.woven(&refused);
        for pair in [0, 2] {
            assert_eq!(minis[pair].unwind_targets, [(function(0, 4), Landing::At(ENTRY), 5)]);
            assert_eq!(minis[pair].unlanded, [function(0, 3)]);
        }
        assert!(minis[1].unwind_targets.is_empty() && minis[1].unlanded.is_empty());
        assert_eq!(minis[1].points.len(), 1, "its own snippet there is not refused");
    }

    #[test]
    fn a_landing_that_another_pair_has_is_shared() {
        let (there, failed) = ((function(0, 3), EXIT), (function(0, 5), EXIT));
        let mut pairs = Pairs::default();
        let mut known = counting(7, function(0, 1), &[1]);
        (known.restores, known.unlanded) = (true, vec![failed.0]);
        pairs.insert(key("a"), known);
        let mut other = counting(8, function(0, 1), &[2]);
        other.unwind_targets = vec![(there.0, Landing::At(there.1), 90)];
        pairs.insert(key("z"), other);
        let (common, mut ids) = (CommonSnippets::default(), SnippetIds::default());
        let all = [bound("a", &[])];
        let mut draft = PointDraft::of(&all, &common, &mut ids);
        draft.add_landings(&pairs, &all, || vec![there, failed], &common, &mut ids);
        assert!(draft.wanted().is_empty(), "one is woven, and the other could not be");
        assert_eq!(draft.woven(&RefusedPieces::default())[0].unwind_targets, [(there.0, Landing::At(there.1), 90)]);
    }

    #[test]
    fn landings_are_searched_only_for_pairs_that_restore_a_state() {
        let (common, mut ids) = (CommonSnippets::default(), SnippetIds::default());
        let all = [bound("a", &[(1, ENTRY)]), following("b", &[(1, ENTRY)])];
        let mut draft = PointDraft::of(&all, &common, &mut ids);
        draft.add_landings(&Pairs::default(), &all, || panic!("nothing needs them"), &common, &mut ids);
    }

    #[test]
    fn records_are_set_aside_last_and_fetched_first() {
        let (common, mut ids) = (CommonSnippets::default(), SnippetIds::default());
        let switches = || vec![(function(0, 1), ENTRY), (function(0, 1), EXIT), (function(0, 9), EXIT)];
        let all = [bound("a", &[(1, ENTRY)]), following("b", &[(1, ENTRY), (1, EXIT)])];
        let mut draft = PointDraft::of(&all, &common, &mut ids);
        draft.add_stack_switches(&Pairs::default(), &all, switches, &common, &mut ids);
        let (entry, exit) = (vec![(PRUNE, 1), (1, 0), (2, 1), (4, 1)], vec![(5, 1), (3, 1)]);
        assert_eq!(shown(&draft), [(1, ENTRY, entry), (1, EXIT, exit), (9, EXIT, vec![(6, 1)])]);
        let woven = draft.woven(&RefusedPieces::default());
        assert!(woven[0].unwind_targets.is_empty());
        let purposes: Vec<Landing> = woven[1].unwind_targets.iter().map(|(_, landing, _)| *landing).collect();
        assert_eq!(purposes, [Landing::Leave, Landing::Enter, Landing::Enter]);
        let counting = [bound("a", &[(1, ENTRY)])];
        let mut draft = PointDraft::of(&counting, &common, &mut ids);
        draft.add_stack_switches(&Pairs::default(), &counting, || panic!("nothing follows calls"), &common, &mut ids);
    }

    #[test]
    fn entries_of_jumped_to_functions_tell_handed_records() {
        let all = [following("a", &[(1, ENTRY), (1, EXIT)]), following("b", &[(2, ENTRY)])];
        let (common, mut ids) = (CommonSnippets::default(), SnippetIds::default());
        let (second, third) = (function(0, 2), function(0, 3));
        let derived = Derived {
            function: third,
            kind: EXIT,
            pair: 0,
            role: Role::Metric,
            snippet: Arc::default(),
            exits: Exits::All,
        };
        let tails = TailCalls {
            entries: FxHashMap::from_iter([(second, 0)]),
            users: FxHashMap::from_iter([(second, FxHashSet::from_iter([0, 1]))]),
            derived: vec![derived],
            ..TailCalls::default()
        };
        let mut draft = PointDraft::of(&all, &common, &mut ids);
        draft.add_tail_calls(&Pairs::default(), &all, &tails, &common, &mut ids);
        // the entry of function 2 is pruned already, and keeps its first snippet
        assert_eq!(shown(&draft)[2..], [(2, ENTRY, vec![(PRUNE, 1), (3, 1), (4, 0)]), (3, EXIT, vec![(5, 0)]),]);
        let refused = draft.all_refused(&Refusal::NoRoomNearby);
        assert_eq!(refused.len(), 4, "functions 1 to 3 of the first pair, and function 2 of the second one");
        let minis = draft.woven(&RefusedPieces::from_iter([((second, 0), Refusal::NoRoomNearby)]));
        assert_eq!((minis[0].unlanded.as_slice(), minis[1].unlanded.as_slice()), (&[second][..], &[second][..]));
        assert_eq!(minis[0].points.last(), Some(&(third, 5)));
    }
}
