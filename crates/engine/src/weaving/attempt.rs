//! Attempts at a change. A function of which something is refused is woven again in another way; all other functions keep what an earlier
//! attempt has made.

use std::collections::BTreeMap;
use std::sync::Arc;

use ingraft_codegen::{Arena, RemovalRecord};
use ingraft_model::{Avma, AvmaRange, FunctionId, ModuleId, PatchPlan, Refusal, Site};
use ingraft_process::contains;
use rustc_hash::{FxHashMap, FxHashSet};

use crate::error::Error;
use crate::weaving::arenas::NewArenas;
use crate::weaving::bodies::{BodyPoints, Copies, MadeBodies, NewPoints};
use crate::weaving::plan::{Planned, PlannedChange, Subject, Woven, joined};
use crate::weaving::points::Point;
use crate::weaving::sites::FoundPoint;
use crate::weaving::wanted::{NewPoint, WantedPoints};

/// Pairs that are refused in functions, with the reasons.
pub(super) type RefusedPairs = FxHashMap<(FunctionId, usize), Refusal>;

/// A change as far as it is made.
pub(super) struct Attempt {
    /// The generated code with the change.
    pub woven: Woven,
    /// The change, without the copies of functions.
    pub change: PlannedChange,
    /// The copies of functions.
    pub made: MadeBodies,
}

impl Attempt {
    /// An attempt that has made nothing yet, with the arenas that earlier attempts have mapped.
    pub fn at(woven: &Woven, mapped: &NewArenas<'_>) -> Self {
        let mut woven = woven.clone();
        woven.arenas.extend(mapped.ranges.iter().cloned().map(Arena::new));
        Attempt { woven, change: PlannedChange::default(), made: MadeBodies::default() }
    }

    /// Weaves snippets at the points that were found: adds them to existing points, and creates new points and copies of functions.
    pub fn weave<'a>(
        &mut self,
        subject: Subject<'_>,
        found: Vec<Vec<NewPoint<'a>>>,
        (hosts, copies): (&'a FxHashMap<FunctionId, Arc<Site>>, &Copies),
        mapped: &mut NewArenas<'_>,
    ) -> Result<(), Error> {
        let Attempt { woven, change, made } = self;
        // The points of a list are those of one function.
        let of = |points: &Vec<NewPoint<'a>>| points.first().map(|first| first.point.function);
        let mut sizes: BTreeMap<ModuleId, usize> = BTreeMap::new();
        for points in &found {
            of(points).into_iter().for_each(|function| *sizes.entry(function.module).or_default() += points.len());
        }
        let functions: FxHashSet<FunctionId> = found.iter().filter_map(of).collect();
        let room = sizes.into_iter().map(|(module, size)| (module, Vec::with_capacity(size)));
        let (mut new, mut known): (NewPoints<'a>, Vec<NewPoint<'a>>) = (room.collect(), Vec::new());
        for point in found.into_iter().flatten() {
            match woven.woven_at(&point.point) {
                Some(_) => known.push(point),
                None => new.entry(point.point.function.module).or_default().push(point),
            }
        }
        new.retain(|_, points| !points.is_empty());
        new.values_mut().for_each(|points| woven.add_hosts(hosts, points));
        woven.weave_bodies(subject, copies, &mut new, (&BodyPoints::default(), made), change, mapped)?;
        let mut functions: Vec<FunctionId> = functions.into_iter().filter(|function| !made.has(function)).collect();
        functions.sort_unstable();
        functions.retain(|function| {
            woven.give_up_counting(subject.modules, *function, (&mut change.plan, &mut change.gone))
        });
        woven.extend_points(subject.env, &known, change)?;
        for (module, points) in new {
            woven.weave_new(subject, module, points, change, mapped)?;
        }
        let find = |function| copies.body_of(function).map(Arc::clone);
        woven.renew_counting(subject, (&functions, &find), (&mut change.plan, &mut change.new_points))
    }

    /// Takes everything out that the change has made in these functions. `before` is the generated code without the change. Returns whether
    /// that is possible: a change of a copy that was there before cannot be taken out alone, nor one of a function whose text another function
    /// has taken. If not, the attempt is of no use any more.
    pub fn withdraw(&mut self, functions: &FxHashSet<FunctionId>, before: &Woven) -> bool {
        if functions.iter().any(|function| before.is_copied(*function)) {
            return false;
        }
        let (mut gone, mut stay, mut unused) = (Vec::new(), Vec::new(), Vec::new());
        let mut copies = Vec::new();
        for function in functions {
            let known: Vec<&Arc<Point>> = before.known(*function).iter().map(|(_, point)| point).collect();
            let known_code: FxHashSet<&AvmaRange> = known.iter().flat_map(|point| point.woven.code()).collect();
            for point in self.woven.forget_points(*function) {
                let was_there = known.iter().any(|known| known.woven.removal.key() == point.woven.removal.key());
                if was_there {
                    unused.extend(point.woven.code().filter(|code| !known_code.contains(code)).cloned());
                } else {
                    gone.push(point);
                }
            }
            if let Some(body) = self.made.take(function) {
                self.woven.remove_body(*function);
                if let Some(arena) = self.woven.arenas.get_mut(body.arena) {
                    // Nothing was written there.
                    arena.release(&body.woven.removal.code);
                }
                copies.push(body.woven.removal.code.clone());
            }
            if !self.woven.restore_points(*function, before) {
                return false;
            }
            stay.extend(known.into_iter().map(Arc::clone));
        }
        let key = |point: &Arc<Point>| point.woven.removal.key();
        let keys: FxHashSet<Avma> = gone.iter().map(key).collect();
        let stays: FxHashSet<Avma> = stay.iter().map(key).collect();
        self.change.new_points.retain(|point| !keys.contains(&point.key()));
        self.change.chains.retain(|chain| !stays.contains(&chain.key) && !keys.contains(&chain.key));
        self.change.gone.retain(|point| !stays.contains(&point.removal.key()));
        // The code of these points is written and stays unused: it is a part of longer writes.
        unused.extend(without(&mut self.change.plan, (&gone, &stay), copies));
        self.woven.leave_idle(&unused);
        true
    }

    /// The change with its copies, and the generated code as it leaves it.
    pub fn finish(self) -> Planned {
        let Attempt { woven, mut change, made } = self;
        made.add_to(&mut change);
        Planned { change, woven }
    }
}

/// Takes out of a plan: the writes and moves of the points that go, those into the code of copies, and the writes into the code of points that
/// stay as they were. Returns the ranges of the code of the points that go.
fn without(
    plan: &mut PatchPlan,
    (points, stay): (&[Arc<Point>], &[Arc<Point>]),
    copies: Vec<AvmaRange>,
) -> Vec<AvmaRange> {
    let removal = RemovalRecord::combine(points.iter().flat_map(|point| point.woven.records()));
    let writes: FxHashSet<Avma> = removal.text.iter().map(|write| write.at).collect();
    let (code, copies) = (joined(removal.retired), joined(copies));
    let stay = joined(stay.iter().flat_map(|point| point.woven.code()).cloned().collect());
    let is_taken_back = |at: Avma| writes.contains(&at) || contains(&copies, at) || contains(&stay, at);
    plan.text.retain(|write| !is_taken_back(write.at));
    plan.moves.retain(|m| !contains(&code, m.to) && !contains(&copies, m.to));
    code
}

/// The functions with snippets whose places depend on whether one of these pairs is refused.
pub(super) fn dependents<'w>(
    wanted: &'w [WantedPoints<'_>],
    refused: &'w RefusedPairs,
) -> impl Iterator<Item = FunctionId> + 'w {
    let depends =
        |w: &&WantedPoints<'_>| w.minis.iter().any(|m| m.exits.needs().iter().any(|need| refused.contains_key(need)));
    wanted.iter().filter(move |_| !refused.is_empty()).filter(depends).map(|w| w.function)
}

/// The functions of these pairs of which a pair has other points too: without the refused one, none of the pair's snippets is woven there.
pub(super) fn partial(
    wanted: &[WantedPoints<'_>],
    sites: &[Result<Vec<FoundPoint>, Refusal>],
    refused: &RefusedPairs,
) -> FxHashSet<FunctionId> {
    let mut points: FxHashMap<(FunctionId, usize), usize> = refused.keys().map(|key| (*key, 0)).collect();
    let functions: FxHashSet<FunctionId> = refused.keys().map(|(function, _)| *function).collect();
    for (w, sites) in wanted.iter().zip(sites).filter(|(w, _)| functions.contains(&w.function)) {
        for found in sites.iter().flatten() {
            // Such a point has one at the entry with it.
            let count = 1 + usize::from(found.site.as_ref().is_ok_and(|site| site.is_within_entry()));
            for mini in w.minis_for(found) {
                points.entry((w.function, mini.pair)).and_modify(|points| *points += count);
            }
        }
    }
    points.into_iter().filter(|(_, points)| *points > 1).map(|((function, _), _)| function).collect()
}
