//! Parallel emission: several threads write the code of many points into different parts of the arena. The first points are written before
//! that, together with all shared routines. If a part has no room for a point, or the point needs another routine, the point is written
//! after the parts are joined again.

use crate::code::arena::Arena;
use crate::code::block::EmitError;
use crate::code::spread::{self, Spread};
use crate::code::woven::WovenPoint;
use crate::patch::back_branches::Redirect;
use crate::patch::build::Builder;
use crate::patch::springboard::ChosenSpringboard;
use crate::patch::weave::PointRequest;

/// Number of points for which a part of their own is worthwhile.
const POINTS_OF_PART: usize = 250;
/// Maximum number of parts: some room of the arena is lost between two parts.
const PARTS_MAX: usize = 16;
/// Number of points that are written before the others. The length of their code predicts the length of the rest.
const FIRST: usize = 50;

/// A point to write: its springboard, its redirected branches, and its request.
pub(crate) struct PointTask<'t, 'a> {
    pub head: &'t ChosenSpringboard,
    pub redirects: &'t [Redirect],
    pub request: &'t PointRequest<'a>,
}

/// Result of writing a point. The point is boxed because it is large and moved several times.
pub(crate) type BuiltPoint = Result<Box<WovenPoint>, EmitError>;

/// Writes the code of points; returns the result for each, in order.
pub(crate) fn build_all<'a>(
    builder: &mut Builder<'a>,
    tasks: &[PointTask<'_, 'a>],
    spread: &dyn Spread,
) -> Vec<BuiltPoint> {
    let parts = (tasks.len() / POINTS_OF_PART).min(PARTS_MAX);
    let before = builder.arena.used();
    let (first, rest) = tasks.split_at(if parts > 1 { FIRST } else { tasks.len() });
    let mut built: Vec<BuiltPoint> = Vec::with_capacity(tasks.len());
    built.extend(first.iter().map(|task| builder.task(task)));
    if rest.is_empty() {
        return built;
    }
    // The room is one and a half times the average length of the first points, for each point of a part.
    let room = (builder.arena.used() - before) * (rest.len() * 3).div_ceil(parts * 2 * FIRST) as u64;
    // If the arena has no room for a routine, every point that needs the routine is refused later.
    rest.iter().for_each(|task| drop(builder.share(task.request.site)));
    let mut arenas: Vec<Arena> = Vec::with_capacity(parts - 1);
    while arenas.len() + 1 < parts
        && let Some(arena) = arenas.last_mut().unwrap_or(builder.arena).split(room)
    {
        arenas.push(arena);
    }
    let of_part = rest.len().div_ceil(arenas.len() + 1);
    let (env, align, templates) = (builder.env, builder.align, &builder.templates.clone());
    let own = std::iter::once(&mut *builder.arena);
    let work: Vec<_> = rest.chunks(of_part).zip(own.chain(&mut arenas)).collect();
    let written = spread::map(spread, work, |(tasks, arena)| {
        let mut part = Builder { templates: templates.clone(), ..Builder::new(env, arena, align) };
        (part.part(tasks), part.plan)
    });
    while let Some(arena) = arenas.pop() {
        arenas.last_mut().unwrap_or(builder.arena).join(arena);
    }
    for ((part, mut plan), tasks) in written.into_iter().zip(rest.chunks(of_part)) {
        builder.plan.code.append(&mut plan.code);
        builder.plan.text.append(&mut plan.text);
        builder.plan.moves.append(&mut plan.moves);
        builder.and_rest(part, tasks, &mut built);
    }
    built
}

impl<'a> Builder<'a> {
    fn task(&mut self, task: &PointTask<'_, 'a>) -> BuiltPoint {
        self.build(task.head, task.redirects, task.request).map(Box::new)
    }

    /// Adds the results for the points of a part, and writes the points that the part has left out.
    fn and_rest(&mut self, part: Vec<Option<BuiltPoint>>, tasks: &[PointTask<'_, 'a>], built: &mut Vec<BuiltPoint>) {
        built.extend(part.into_iter().zip(tasks).map(|(built, task)| built.unwrap_or_else(|| self.task(task))));
    }

    /// Writes the points of a part; `None` for a point that can be written only after the parts of the arena are joined again.
    fn part(&mut self, tasks: &[PointTask<'_, 'a>]) -> Vec<Option<BuiltPoint>> {
        let mut is_full = false;
        let build = |task| {
            let built = (!is_full).then(|| self.task(task))?;
            is_full = matches!(built, Err(EmitError::ArenaFull));
            (!matches!(built, Err(EmitError::ArenaFull | EmitError::Unshared))).then_some(built)
        };
        tasks.iter().map(build).collect()
    }
}
