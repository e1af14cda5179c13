//! Points that are woven anew: their code is made and proven for all points of a module together.

use std::borrow::Cow;
use std::sync::Arc;

use ingraft_codegen::verify::verify_weave_on;
use ingraft_codegen::{Arena, InlinePoint, MiniRequest, PointRequest, Probe, TextSpace, WovenPoint, weave_points_on};
use ingraft_model::{Avma, Bias, FunctionPoint, ModuleId, Site};

use crate::background::{Quick, each};
use crate::error::Error;
use crate::program::modules::Modules;
use crate::weaving::arenas::{ARENA_MAX, NewArenas, arena_for};
use crate::weaving::bodies::Bodies;
use crate::weaving::plan::{PlannedChange, Subject, Unit, Woven, WovenAnew, append, codegen_error};
use crate::weaving::points::{Point, PointsByFunction};
use crate::weaving::unproven::{BlamedFunctions, unproven};
use crate::weaving::wanted::NewPoint;

/// Estimated size of a point with compiled snippets, in units of a point with a plain count.
const COMPILED: usize = 8;

/// Least number of points in copies that are woven together, if there are more.
const BATCH: usize = 8192;

/// Estimated size of the code of points, in units of a point with a plain count.
fn size_of_code<'a>(points: impl Iterator<Item = &'a NewPoint<'a>>) -> usize {
    points.map(|point| if point.is_plain() { 1 } else { COMPILED }).sum()
}

impl Woven {
    /// Weaves the new points of a module. Those in copies of functions do not depend on those of other functions, so they are woven in
    /// batches, which use the same memory one after the other.
    pub(super) fn weave_new(
        &mut self,
        subject: Subject<'_>,
        number: ModuleId,
        points: Vec<NewPoint<'_>>,
        change: &mut PlannedChange,
        mapped: &mut NewArenas<'_>,
    ) -> Result<(), Error> {
        let (in_copies, in_text): (Vec<_>, Vec<_>) = points.into_iter().partition(|point| point.in_copy);
        if !in_text.is_empty() {
            self.weave_batch(subject, number, &in_text, change, mapped)?;
        }
        if in_copies.len() > BATCH
            && let Some((file, _)) = subject.modules.module(number)
        {
            // One arena for all batches.
            arena_for(
                &mut self.arenas,
                subject.target,
                &file.text(),
                Arena::estimate_bytes(size_of_code(in_copies.iter())),
                mapped,
            )?;
        }
        let mut rest = in_copies.as_slice();
        while let Some(last) = rest.get(rest.len().min(BATCH).wrapping_sub(1)) {
            let function = last.point.function;
            let end = rest.iter().skip(BATCH).position(|point| point.point.function != function);
            let (batch, after) = rest.split_at(end.map_or(rest.len(), |end| BATCH + end));
            self.weave_batch(subject, number, batch, change, mapped)?;
            rest = after;
        }
        Ok(())
    }

    /// Weaves new points of a module together.
    fn weave_batch(
        &mut self,
        Subject { target, modules, env }: Subject<'_>,
        number: ModuleId,
        points: &[NewPoint<'_>],
        change: &mut PlannedChange,
        mapped: &mut NewArenas<'_>,
    ) -> Result<(), Error> {
        let Some((file, module)) = modules.module(number) else { return Ok(()) };
        let mut points: Vec<&NewPoint<'_>> = points.iter().collect();
        let text = self.texts.entry(number.0).or_insert_with(|| {
            let mut text = TextSpace::new();
            text.add_padding(module.bias, module.image.padding());
            text
        });
        let known = (&self.points, &self.bodies);
        let mut prepared = each(&points, |p| NewPointInputs::new(modules, known, p));
        let quick = Quick::of(points.len());
        let mut bytes = Arena::estimate_bytes(size_of_code(points.iter().copied()));
        let mut blamed = BlamedFunctions::default();
        let (arena_index, weave) = loop {
            let requests: Vec<PointRequest<'_>> = prepared.iter().map(|p| p.request(module.bias)).collect();
            let index = arena_for(&mut self.arenas, target, &file.text(), bytes, mapped)?;
            let before = self.arenas[index].clone();
            // Points in copies take no text, of which a copy is large.
            let text_before = points.iter().any(|point| !point.in_copy).then(|| text.clone());
            quick.check();
            let weave =
                weave_points_on(&quick, env, &mut self.arenas[index], text, &requests).map_err(codegen_error)?;
            let is_short = self.arenas[index].lacked_room() && bytes < ARENA_MAX;
            let proof = (!is_short).then(|| verify_weave_on(&quick, env, &self.arenas[index], text, &requests, &weave));
            let flaw = match proof {
                Some(Ok(())) => break (index, weave),
                Some(Err(flaw)) => Some(flaw),
                None => None,
            };
            self.arenas[index] = before;
            text_before.into_iter().for_each(|before| *text = before);
            let Some(flaw) = flaw else {
                // The length of the code is known once it is generated.
                bytes = (bytes * 4).min(ARENA_MAX);
                continue;
            };
            // All others are woven without the function that cannot be proven.
            let made = points.iter().zip(&weave.woven).filter_map(|(p, w)| Some((p.point.function, w.as_ref().ok()?)));
            let code = made.flat_map(|(function, woven)| woven.code().map(move |range| (function, range)));
            let has_text = |of, at: Avma| modules.resolve(of).is_some_and(|(_, m, f)| f.contains(at.to_svma(m.bias)));
            let function = blamed.blame(&flaw, code, has_text)?;
            let (its, others) =
                points.into_iter().zip(prepared).partition::<Vec<_>, _>(|(p, _)| p.point.function == function);
            let pairs = its.iter().flat_map(|(p, _)| p.minis.iter().map(|m| (function, m.pair)));
            change.refused.extend(pairs.map(|pair| (pair, unproven(&flaw))));
            (points, prepared) = others.into_iter().unzip();
        };
        quick.check();
        let file = file.id();
        change.new_points.reserve(points.len());
        for (p, woven) in points.iter().zip(weave.woven) {
            match woven {
                Ok(woven) => {
                    let point = Arc::new(p.woven_as(woven, arena_index));
                    change.new_points.push(WovenAnew::new(file, Unit::Point(Arc::clone(&point))));
                    self.points.insert(p.point, point);
                }
                Err(refusal) => {
                    change.refused.extend(p.minis.iter().map(|m| ((p.point.function, m.pair), refusal.clone())));
                }
            }
        }
        append(&mut change.plan, weave.plan);
        Ok(())
    }
}

/// Inputs for the code of a new point.
struct NewPointInputs<'a> {
    site: Cow<'a, Site>,
    minis: Vec<MiniRequest<'a>>,
    /// Name of the point's function.
    name: Cow<'a, str>,
    beside: Vec<&'a WovenPoint>,
    probe: Option<Probe>,
}

impl<'a> NewPointInputs<'a> {
    fn new(modules: &'a Modules, (known, bodies): (&'a PointsByFunction, &Bodies), point: &NewPoint<'a>) -> Self {
        let FunctionPoint { function, point: id } = point.point;
        let body = bodies.get(&function).filter(|_| point.in_copy);
        let probe = body.and_then(|body| body.woven.probe(id).ok()).copied();
        NewPointInputs {
            site: probe.map_or(Cow::Borrowed(point.site), |probe| probe.site(point.site)),
            minis: point.minis.iter().map(|m| m.request()).collect(),
            name: modules.resolve(function).map_or(Cow::Borrowed(""), |(_, _, f)| f.display_name()),
            beside: known.of(function).iter().map(|(_, point)| &*point.woven).collect(),
            probe,
        }
    }

    fn request(&self, bias: Bias) -> PointRequest<'_> {
        PointRequest {
            site: &self.site,
            bias,
            name: &self.name,
            minis: &self.minis,
            beside: &self.beside,
            probe: self.probe,
        }
    }
}

impl NewPoint<'_> {
    /// The point, with its code in this arena.
    pub(super) fn woven_as(&self, woven: Box<WovenPoint>, arena: usize) -> Point {
        let minis = self.minis.iter().map(|m| m.known()).collect();
        Point { woven, arena, minis, inline: InlinePoint::of(self.site) }
    }

    fn is_plain(&self) -> bool {
        self.minis.iter().all(|m| m.snippet.as_increment().is_some())
    }
}
