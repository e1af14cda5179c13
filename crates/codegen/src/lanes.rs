//! The code of many points is written on several processors, each in its own part of the arena. The first points are written before: with them
//! the routines that all share. What a part has no room for, or what needs another routine, is written when the parts are one again.

use std::thread;

use crate::arena::Arena;
use crate::block::EmitError;
use crate::build::Builder;
use crate::head::Head;
use crate::loops::Detour;
use crate::weave::{PointRequest, WovenPoint};

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

/// What became of a point.
pub(crate) type Built = Result<WovenPoint, EmitError>;

/// Writes the code of points; what became of each, in order.
pub(crate) fn build_all<'a>(builder: &mut Builder<'a>, tasks: &[Task<'_, 'a>]) -> Vec<Built> {
    let lanes = thread::available_parallelism().map_or(1, usize::from).min(tasks.len() / POINTS_OF_LANE);
    let before = builder.arena.used();
    let (first, rest) = tasks.split_at(if lanes > 1 { FIRST.min(tasks.len()) } else { tasks.len() });
    let mut built: Vec<Built> = Vec::with_capacity(tasks.len());
    built.extend(first.iter().map(|task| builder.task(task)));
    if rest.is_empty() {
        return built;
    }
    // half as much again as the first ones need
    let room = (builder.arena.used() - before) * (rest.len() * 3).div_ceil(lanes * 2 * FIRST) as u64;
    let mut parts: Vec<Arena> = Vec::with_capacity(lanes - 1);
    while parts.len() + 1 < lanes
        && let Some(part) = parts.last_mut().unwrap_or(builder.arena).split(room)
    {
        parts.push(part);
    }
    let shares: Vec<_> = rest.chunks(rest.len().div_ceil(parts.len() + 1)).collect();
    let (env, align, templates) = (builder.env, builder.align, &builder.templates.clone());
    let lanes: Vec<_> = thread::scope(|scope| {
        let (own, others) = shares.split_first().map_or((&[][..], &[][..]), |(own, others)| (*own, others));
        let others: Vec<_> = others
            .iter()
            .zip(&mut parts)
            .map(|(share, arena)| {
                scope.spawn(move || {
                    let mut builder = Builder { templates: templates.clone(), ..Builder::new(env, arena, align) };
                    (builder.lane(share), builder.plan)
                })
            })
            .collect();
        let own = (builder.lane(own), Default::default());
        let others =
            others.into_iter().map(|lane| lane.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        std::iter::once(own).chain(others).collect()
    });
    while let Some(part) = parts.pop() {
        parts.last_mut().unwrap_or(builder.arena).join(part);
    }
    for ((mut lane, mut plan), share) in lanes.into_iter().zip(shares) {
        builder.plan.code.append(&mut plan.code);
        builder.plan.text.append(&mut plan.text);
        builder.plan.moves.append(&mut plan.moves);
        let left = share.get(lane.len()..).unwrap_or_default();
        built.append(&mut lane);
        built.extend(left.iter().map(|task| builder.task(task)));
    }
    built
}

impl<'a> Builder<'a> {
    fn task(&mut self, task: &Task<'_, 'a>) -> Built {
        self.build(task.head, task.detours, task.request)
    }

    /// What becomes of points, until one can only be written when the parts of the arena are one again.
    fn lane(&mut self, tasks: &[Task<'_, 'a>]) -> Vec<Built> {
        let built = tasks.iter().map(|task| self.task(task));
        built.take_while(|built| !matches!(built, Err(EmitError::ArenaFull | EmitError::Unshared))).collect()
    }
}
