//! The code of many points is written on several processors, each in its own part of the arena. The first points are written before, and what
//! all share. What a part has no room for, or what needs yet another routine, is written when the parts are one again.

use std::thread;

use crate::code::arena::Arena;
use crate::code::block::EmitError;
use crate::code::woven::WovenPoint;
use crate::patch::back_branches::Detour;
use crate::patch::build::Builder;
use crate::patch::springboard::Head;
use crate::patch::weave::PointRequest;

/// Fewer points are not worth a thread of their own.
const POINTS_OF_LANE: usize = 200;
/// So many are written before: their code tells how long that of the others will be.
const FIRST: usize = 50;

/// A point to write: its springboard, the detours around it, what it is.
pub(crate) struct Task<'t, 'a> {
    pub head: &'t Head,
    pub detours: &'t [Detour],
    pub request: &'t PointRequest<'a>,
}

/// What became of a point: large, and handed on several times.
pub(crate) type Built = Result<Box<WovenPoint>, EmitError>;

/// Writes the code of points on at most so many processors; what became of each, in order.
pub(crate) fn build_all<'a>(builder: &mut Builder<'a>, tasks: &[Task<'_, 'a>], processors: usize) -> Vec<Built> {
    let lanes = processors.min(tasks.len() / POINTS_OF_LANE);
    let before = builder.arena.used();
    let (first, rest) = tasks.split_at(if lanes > 1 { FIRST } else { tasks.len() });
    let mut built: Vec<Built> = Vec::with_capacity(tasks.len());
    built.extend(first.iter().map(|task| builder.task(task)));
    if rest.is_empty() {
        return built;
    }
    // half as much again as the first ones need
    let room = (builder.arena.used() - before) * (rest.len() * 3).div_ceil(lanes * 2 * FIRST) as u64;
    // what there is no room for fails with its points
    rest.iter().for_each(|task| drop(builder.share(task.request.site)));
    let mut parts: Vec<Arena> = Vec::with_capacity(lanes - 1);
    while parts.len() + 1 < lanes
        && let Some(part) = parts.last_mut().unwrap_or(builder.arena).split(room)
    {
        parts.push(part);
    }
    let share = rest.len().div_ceil(parts.len() + 1);
    let (own, others) = rest.split_at(share);
    let (env, align, templates) = (builder.env, builder.align, &builder.templates.clone());
    let (own_built, others_built) = thread::scope(|scope| {
        let start = |(tasks, arena)| {
            scope.spawn(move || {
                let mut builder = Builder { templates: templates.clone(), ..Builder::new(env, arena, align) };
                (builder.lane(tasks), builder.plan)
            })
        };
        let others: Vec<_> = others.chunks(share).zip(&mut parts).map(start).collect();
        let own_built = builder.lane(own);
        let end = |lane: thread::ScopedJoinHandle<'_, _>| lane.join().unwrap_or_else(|e| std::panic::resume_unwind(e));
        (own_built, others.into_iter().map(end).collect::<Vec<_>>())
    });
    while let Some(part) = parts.pop() {
        parts.last_mut().unwrap_or(builder.arena).join(part);
    }
    builder.and_rest(own_built, own, &mut built);
    for ((lane, mut plan), tasks) in others_built.into_iter().zip(others.chunks(share)) {
        builder.plan.code.append(&mut plan.code);
        builder.plan.text.append(&mut plan.text);
        builder.plan.moves.append(&mut plan.moves);
        builder.and_rest(lane, tasks, &mut built);
    }
    built
}

impl<'a> Builder<'a> {
    fn task(&mut self, task: &Task<'_, 'a>) -> Built {
        self.build(task.head, task.detours, task.request).map(Box::new)
    }

    /// Adds what became of points in a lane, and writes those that it has left.
    fn and_rest(&mut self, lane: Vec<Option<Built>>, tasks: &[Task<'_, 'a>], built: &mut Vec<Built>) {
        built.extend(lane.into_iter().zip(tasks).map(|(built, task)| built.unwrap_or_else(|| self.task(task))));
    }

    /// What becomes of points; none of those that can only be written when the parts of the arena are one again.
    fn lane(&mut self, tasks: &[Task<'_, 'a>]) -> Vec<Option<Built>> {
        let mut is_full = false;
        let build = |task| {
            let built = (!is_full).then(|| self.task(task))?;
            is_full = matches!(built, Err(EmitError::ArenaFull));
            (!matches!(built, Err(EmitError::ArenaFull | EmitError::Unshared))).then_some(built)
        };
        tasks.iter().map(build).collect()
    }
}
