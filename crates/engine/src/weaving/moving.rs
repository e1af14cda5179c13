//! Points in the text that move into the copy of their function, because other points of a request need the copy.

use std::sync::Arc;

use ingraft_codegen::verify::verify_rehosted;
use ingraft_codegen::{Probe, Rehosted, rehost};
use ingraft_model::{FunctionBody, FunctionId, FunctionPoint, Parts, PatchPlan, Placing, PointKind, Refusal};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::error::Error;
use crate::program::modules::Modules;
use crate::recovery::journal::PointRecord;
use crate::weaving::arenas::NewArenas;
use crate::weaving::attempt::Attempt;
use crate::weaving::bodies::{Copies, Hosted, NewPoints, body_points};
use crate::weaving::exits::Exits;
use crate::weaving::plan::{KEPT, Subject, Woven, point_record};
use crate::weaving::points::Point;
use crate::weaving::sites::{FoundPoint, Text, host, sites};
use crate::weaving::unproven::defect;
use crate::weaving::wanted::{NewMini, NewPoint};

/// The points of a function that move.
pub(super) struct Moving<'a> {
    function: FunctionId,
    points: Vec<Moved<'a>>,
}

/// A point that moves.
struct Moved<'a> {
    /// Key of the point, in the text and in the copy.
    point: FunctionPoint,
    old: &'a Arc<Point>,
    /// The place in the copy; `None` for a point without snippets, which only makes room for others.
    hosted: Option<Hosted>,
    /// The snippets, in order.
    minis: Vec<NewMini<'a>>,
}

impl<'a> Moving<'a> {
    /// The points of a function in the text. Fails if one of them has no place in the copy, or if threads may wait in its code.
    fn of(
        woven: &'a Woven,
        (text, modules): (&Text<'_>, &Modules),
        function: FunctionId,
        body: &Arc<FunctionBody>,
    ) -> Result<Self, Refusal> {
        let stays_here = || in_the_way(modules, function);
        let mut known: FxHashMap<PointKind, Vec<FoundPoint>> = FxHashMap::default();
        let mut points = Vec::new();
        for (key, old) in woven.known(function) {
            let kind = key.point.kind();
            let stays = |snippet: &ingraft_model::Snippet| {
                !snippet.calls().is_empty() || snippet.awaits_engine() || snippet.waits_for_room()
            };
            let hosted = match old.minis.is_empty() {
                true => None,
                false => {
                    let found = match known.remove(&kind) {
                        Some(found) => found,
                        None => {
                            let mut found = sites(text, modules, function, kind)?;
                            host(kind, body, &mut found);
                            found
                        }
                    };
                    let own = found.iter().find(|found| found.point == Some(key.point));
                    let hosted = own.and_then(|found| found.hosted.clone());
                    known.insert(kind, found);
                    Some(hosted.ok_or_else(stays_here)?)
                }
            };
            if old.minis.iter().any(|mini| stays(&mini.snippet)) {
                return Err(stays_here());
            }
            points.push(Moved { point: *key, old, hosted, minis: old.kept() });
        }
        Ok(Moving { function, points })
    }
}

/// Refusal of a copy of a function whose points stay in the text.
fn in_the_way(modules: &Modules, function: FunctionId) -> Refusal {
    let name = modules.resolve(function).map(|(_, _, f)| f.display_name().into_owned());
    Refusal::Overlap { other: name.unwrap_or_default() }
}

/// The points that move so that the chosen functions can be copied. Copies of functions whose points cannot move are given up.
pub(super) fn points<'a>(
    woven: &'a Woven,
    (text, modules): (&Text<'_>, &Modules),
    copies: &mut Copies,
) -> Vec<Moving<'a>> {
    let mut moving = Vec::new();
    let mut refused = Vec::new();
    for (function, body) in copies.chosen() {
        if woven.is_copied(function) || woven.places_of(function).next().is_none() {
            continue;
        }
        match Moving::of(woven, (text, modules), function, body) {
            Ok(points) => moving.push(points),
            Err(refusal) => refused.push((function, refusal)),
        }
    }
    copies.give_up(refused);
    moving.sort_unstable_by_key(|points| points.function);
    moving
}

impl Point {
    /// The snippets of the point as those of a new one.
    fn kept(&self) -> Vec<NewMini<'_>> {
        let all = self.woven.minis.iter().zip(&self.minis);
        all.map(|(woven, mini)| NewMini {
            id: woven.id,
            pair: KEPT,
            role: mini.role,
            snippet: &mini.snippet,
            counters: Arc::clone(&mini.counters),
            meter: mini.meter,
            except: &[],
            parts: Parts::All,
            exits: Exits::All,
            placing: Placing::Anywhere,
        })
        .collect()
    }
}

impl Attempt {
    /// Moves the points of functions for which `is_its` is true into copies of their functions, into which the `found` ones come afterwards.
    /// Functions for which that fails are named in the change as functions without a copy.
    pub(super) fn move_points<'a>(
        &mut self,
        subject: Subject<'_>,
        (moving, is_its): (&'a [Moving<'a>], impl Fn(&FunctionId) -> bool),
        (copies, found): (&Copies, &[Vec<NewPoint<'_>>]),
        mapped: &mut NewArenas<'_>,
    ) -> Result<(), Error> {
        let Attempt { woven, change, made } = self;
        let its = || moving.iter().filter(|points| is_its(&points.function));
        let mut new: NewPoints<'a> = NewPoints::new();
        for Moving { function, points } in its().filter(|points| copies.has_chosen(points.function)) {
            for moved in points {
                change.gone.push(woven.forget_point(subject.modules, moved));
                let Some(hosted) = &moved.hosted else { continue };
                let minis = moved.minis.iter().collect();
                let point = NewPoint { point: moved.point, site: &hosted.site, minis, in_copy: true };
                new.entry(function.module).or_default().push(point);
            }
        }
        let functions: FxHashSet<FunctionId> = new.values().flatten().map(|point| point.point.function).collect();
        let further = found.iter().flatten().filter(|point| functions.contains(&point.point.function));
        let all = body_points(subject.env, new.values().flatten().chain(further));
        woven.weave_bodies(subject, copies, &mut new, (&all, made), change, mapped)?;
        for (module, points) in new {
            woven.weave_new(subject, module, points, change, mapped)?;
        }
        let stuck = its().filter(|points| points.points.iter().any(|moved| woven.is_stuck(moved)));
        change.not_copied.extend(stuck.map(|points| (points.function, in_the_way(subject.modules, points.function))));
        // A point that stays must not be lost.
        let lost = change.refused.extract_if(|(_, pair), _| *pair == KEPT);
        change.not_copied.extend(lost.map(|((function, _), refusal)| (function, refusal)));
        Ok(())
    }
}

impl Woven {
    /// The probe to which a point moves. A point without snippets has none, even if a new point with its key has one: its threads have not run
    /// the snippets of the new point.
    fn new_probe(&self, moved: &Moved<'_>) -> Option<&Probe> {
        moved.hosted.as_ref().and_then(|_| self.woven_at(&moved.point)?.probe.as_ref())
    }

    /// Whether the probe of a point that moves cannot take its threads over.
    fn is_stuck(&self, moved: &Moved<'_>) -> bool {
        self.new_probe(moved).is_some_and(|probe| !probe.can_take_over(&moved.old.woven))
    }

    fn forget_point(&mut self, modules: &Modules, moved: &Moved<'_>) -> PointRecord {
        let module = moved.point.function.module;
        if let Some(text) = self.text_space(module) {
            text.release_point(&moved.old.woven);
        }
        self.remove_point(&moved.point);
        point_record(modules, module, moved.old)
    }

    /// The plan of a change in which points move.
    pub(super) fn with_moves(
        &self,
        moving: &[Moving<'_>],
        copies: &Copies,
        mut insertion: PatchPlan,
    ) -> Result<PatchPlan, Error> {
        let its = moving.iter().filter(|points| copies.has_chosen(points.function)).flat_map(|points| &points.points);
        let rehosted: Vec<Rehosted<'_>> =
            its.map(|moved| Rehosted { old: &moved.old.woven, probe: self.new_probe(moved) }).collect();
        if rehosted.is_empty() {
            return Ok(insertion);
        }
        // The code of the copies stays as it is.
        let code = std::mem::take(&mut insertion.code);
        let mut plan = rehost(&rehosted, insertion.clone());
        verify_rehosted(&rehosted, &insertion, &plan).map_err(|e| defect(&e))?;
        plan.code = code;
        Ok(plan)
    }
}
