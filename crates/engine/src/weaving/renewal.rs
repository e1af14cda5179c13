//! New counting copies of functions whose points have changed, in the same stop in which the old ones are given up.

use std::borrow::Cow;
use std::sync::Arc;

use ingraft_codegen::verify::verify_renewal;
use ingraft_codegen::{BodyCode, BodyPoint, BodyRequest, Environment, Probe, WovenBody, renew_counting};
use ingraft_model::machine::SPRINGBOARD;
use ingraft_model::{FunctionBody, FunctionId, PatchPlan, PointId};
use ingraft_process::Target;

use crate::error::Error;
use crate::weaving::plan::{Subject, Unit, Woven, WovenAnew, append, codegen_error};
use crate::weaving::points::Point;
use crate::weaving::unproven::defect;

impl Point {
    /// The point as one that a counting copy passes.
    fn in_copy(&self, env: &Environment, point: PointId) -> BodyPoint {
        let snippets = self.minis.iter().map(|mini| (&*mini.snippet, &*mini.counters));
        BodyPoint { point, code: BodyCode::of(env, self.inline, snippets), with_copy: None }
    }
}

/// Finds a function as a whole; `None` if it cannot be copied any more.
pub(super) type FindBody<'f> = dyn Fn(FunctionId) -> Option<Arc<FunctionBody>> + 'f;

/// Number of bytes of functions that get new counting copies in one change. A client waits until they are proven.
const RENEWED_MAX: usize = 1 << 20;

impl Woven {
    /// Makes new counting copies of functions whose counting copies were given up, with their points as they are now. A function stays without one
    /// if there is no room, if nothing in it is counted, or if the change has too many functions.
    pub(super) fn renew_counting(
        &mut self,
        subject: Subject<'_>,
        (functions, find): (&[FunctionId], &FindBody<'_>),
        (plan, new_points): (&mut PatchPlan, &mut Vec<WovenAnew>),
    ) -> Result<(), Error> {
        let mut left = RENEWED_MAX;
        for function in functions {
            let Some(body) = find(*function) else { continue };
            let bytes = body.blocks.iter().map(|block| block.bytes.len()).sum();
            let Some(rest) = left.checked_sub(bytes) else { return Ok(()) };
            left = rest;
            self.renew(subject, (*function, &body), (plan, new_points))?;
        }
        Ok(())
    }

    fn renew(
        &mut self,
        Subject { target, modules, env }: Subject<'_>,
        (function, whole): (FunctionId, &FunctionBody),
        (plan, new_points): (&mut PatchPlan, &mut Vec<WovenAnew>),
    ) -> Result<(), Error> {
        let (Some(known), Some((file, module))) = (self.bodies.get(&function), modules.module(function.module)) else {
            return Ok(());
        };
        let points: Vec<BodyPoint> =
            self.known(function).iter().map(|(key, point)| point.in_copy(env, key.point)).collect();
        let name = modules.resolve(function).map_or(Cow::Borrowed(""), |(_, _, f)| f.display_name());
        let request = BodyRequest { body: whole, bias: module.bias, name: &name, points: &points };
        let Some(arena) = self.arenas.get_mut(known.arena) else { return Ok(()) };
        let Some(renewal) = renew_counting(env, arena, &request, &known.woven).map_err(codegen_error)? else {
            return Ok(());
        };
        verify_renewal(env, arena, &request, &known.woven, &renewal).map_err(|e| defect(&e))?;
        if !is_there(target, &known.woven, &renewal.ordinary) {
            arena.release(&renewal.counting.code);
            return Ok(());
        }
        let Some(known) = self.bodies.get_mut(&function) else { return Ok(()) };
        Arc::make_mut(known).woven.counting = Some(renewal.counting);
        append(plan, renewal.plan);
        new_points.push(WovenAnew::new(file.id(), Unit::Counting(Arc::clone(known))));
        Ok(())
    }
}

/// Whether the ordinary copy of a function lies in the target as it was made, apart from its probes and slots.
fn is_there(target: &Target, body: &WovenBody, ordinary: &[u8]) -> bool {
    let start = body.removal.code.start;
    let mut present = vec![0; ordinary.len()];
    if target.read(start, &mut present).is_err() {
        return false;
    }
    let springboards = body.probes.iter().map(|probe| probe.copy..probe.copy.offset(SPRINGBOARD as i64));
    for changed in springboards.chain(body.probes.iter().filter_map(Probe::slot)) {
        let [from, until] = [changed.start, changed.end].map(|at| usize::try_from(at.0.wrapping_sub(start.0)));
        let range = from.unwrap_or(usize::MAX)..until.unwrap_or(usize::MAX);
        if let (Some(present), Some(made)) = (present.get_mut(range.clone()), ordinary.get(range)) {
            present.copy_from_slice(made);
        }
    }
    present == ordinary
}
