//! Weaving of points: from facts about their sites to a plan, and to the records that undo it.

use ingraft_model::{Avma, Bias, FirstInstruction, PatchPlan, Refusal, Site};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::code::arena::Arena;
use crate::code::block::EmitError;
use crate::code::body::Probe;
use crate::code::environment::{CodegenError, Environment};
use crate::code::spread::{OneThread, Spread};
use crate::code::woven::WovenPoint;
use crate::patch::back_branches::{self, Redirect};
use crate::patch::build::Builder;
use crate::patch::choose::{self, Carried, Choice};
use crate::patch::parallel::{self, BuiltPoint, PointTask};
use crate::patch::springboard::{self, ChosenSpringboard, SpringboardForm};
use crate::patch::text_space::TextSpace;
use crate::snippet::mini::{self, MiniRequest};

/// Maximum number of points in a plan that are placed where the processor runs them best. The points of a larger plan are packed.
const ALIGN_MAX: usize = 64;

/// One point to weave.
#[derive(Clone, Copy, Debug)]
pub struct PointRequest<'a> {
    /// Facts about the place of the point.
    pub site: &'a Site,
    /// Load address of the module, as a bias.
    pub bias: Bias,
    /// Name of the function, for refusals of other points that need the same bytes.
    pub name: &'a str,
    /// Snippets to run at the point, in order.
    pub minis: &'a [MiniRequest<'a>],
    /// Woven points of the same function. One of them may displace this point's instruction, or branches to it.
    pub beside: &'a [&'a WovenPoint],
    /// Place in the copy of the function into which the point is woven; `None` for a point with bytes of the text.
    pub probe: Option<Probe>,
}

impl<'a> PointRequest<'a> {
    /// The site behind a first instruction that stays in place and runs once.
    pub(crate) fn behind(&self, first: Option<&FirstInstruction>) -> Option<Box<Site>> {
        first.filter(|first| first.runs_once()).and_then(|_| self.site.behind_first()).map(Box::new)
    }

    /// The request at another site of the same point, if there is one.
    pub(crate) fn at<'s>(&self, site: Option<&'s Site>) -> PointRequest<'s>
    where
        'a: 's,
    {
        PointRequest { site: site.unwrap_or(self.site), ..*self }
    }
}

/// Result of a request for several points.
#[derive(Clone, Debug)]
pub struct Weave {
    /// Plan for all points that can be woven.
    pub plan: PatchPlan,
    /// For each request, in order, the woven point or the reason for its refusal.
    pub woven: Vec<Result<Box<WovenPoint>, Refusal>>,
}

/// Weaves points: chooses springboards, takes text and room in the arena, writes the code. A point that cannot be woven is refused alone;
/// an error concerns the request as a whole.
///
/// `arena` and `text` afterwards include everything that the plan takes, shared slow routines too. After an error, or if the plan was not
/// applied, use clones from before the call instead.
pub fn weave_points<'a>(
    env: &'a Environment,
    arena: &'a mut Arena,
    text: &'a mut TextSpace,
    requests: &[PointRequest<'a>],
) -> Result<Weave, CodegenError> {
    weave_points_on(&OneThread, env, arena, text, requests)
}

/// Weaves points as [`weave_points`] does. The code of many points is written in parts that `spread` runs.
pub fn weave_points_on<'a>(
    spread: &dyn Spread,
    env: &'a Environment,
    arena: &'a mut Arena,
    text: &'a mut TextSpace,
    requests: &[PointRequest<'a>],
) -> Result<Weave, CodegenError> {
    env.check()?;
    let mut known = FxHashSet::default();
    requests.iter().flat_map(|r| r.minis).try_for_each(|m| {
        // Many requests share one snippet, which is checked once.
        if known.insert(std::ptr::from_ref(m.snippet)) {
            mini::check_snippet(env, m.snippet)?;
        }
        mini::check_counters(env, m)
    })?;
    arena.lacked_room = false;
    spread.check();
    let choices = choose::choose(env, text, requests);
    spread.check();
    let behind: Vec<_> = choices.iter().zip(requests).map(|(choice, r)| r.behind(choice.first())).collect();
    let requests: Vec<_> = requests.iter().zip(&behind).map(|(r, site)| r.at(site.as_deref())).collect();
    let requests = requests.as_slice();
    let mut weaver = Weaver { text, builder: Builder::new(env, arena, requests.len() <= ALIGN_MAX) };
    spread.check();
    let designs = weaver.redirects(choices, requests);
    spread.check();
    let task = |(design, request)| -> Option<PointTask<'_, '_>> {
        let (design, request): (&ChosenSpringboards, &PointRequest<'_>) = (design, request);
        let (head, redirects) = design.as_ref().ok()?.as_ref()?;
        Some(PointTask { head, redirects, request })
    };
    let tasks: Vec<_> = designs.iter().zip(requests).filter_map(task).collect();
    let mut built = parallel::build_all(&mut weaver.builder, &tasks, spread).into_iter();
    let mut woven = Vec::with_capacity(requests.len());
    for design in &designs {
        woven.push(match design {
            Ok(Some((head, redirects))) => {
                let built = built.next().unwrap_or(Err(EmitError::ArenaFull));
                weaver.built(built, head, redirects)?
            }
            Ok(None) => Err(Refusal::HostNotWoven),
            Err(refusal) => Err(refusal.clone()),
        });
    }
    spread.check();
    weaver.within(requests, &designs, &mut woven)?;
    weaver.lead(requests, &designs, &mut woven)?;
    let mut plan = weaver.builder.plan;
    plan.text.sort_unstable_by_key(|w| w.at);
    plan.moves.sort_unstable();
    Ok(Weave { plan, woven })
}

/// A springboard with all redirected branches; `None` for a point that another point holds.
type ChosenSpringboards = Result<Option<(ChosenSpringboard, Vec<Redirect>)>, Refusal>;

/// Index of the point that displaces the instruction, by the instruction's address.
fn hosts(woven: &[Result<Box<WovenPoint>, Refusal>]) -> FxHashMap<Avma, usize> {
    let points = woven.iter().enumerate().filter_map(|(i, w)| Some((i, w.as_ref().ok()?)));
    points.flat_map(|(i, point)| point.inner.iter().map(move |inner| (inner.original, i))).collect()
}

struct Weaver<'a> {
    text: &'a mut TextSpace,
    builder: Builder<'a>,
}

impl<'a> Weaver<'a> {
    /// Redirects the branches to every springboard. If that fails, the point is refused, and so are points that rely on its copies.
    fn redirects(&mut self, choices: Vec<Choice>, requests: &[PointRequest<'_>]) -> Vec<ChosenSpringboards> {
        let (env, arena) = (self.builder.env, self.builder.arena.range());
        let mut carried = Carried::new(&choices, requests);
        let mut designs: Vec<ChosenSpringboards> = Vec::with_capacity(choices.len());
        for (owner, (choice, request)) in choices.into_iter().zip(requests).enumerate() {
            designs.push(match choice {
                Choice::Hosted => Ok(request.probe.map(|probe| (springboard::at_probe(request, probe), Vec::new()))),
                Choice::Refused(refusal) => Err(refusal),
                Choice::Own(head) => match back_branches::redirects(env, self.text, &head, request, &carried, &arena) {
                    Ok(redirects) => {
                        carried.add_redirects(owner, &head, &redirects);
                        let redirects = head.island_room.iter().cloned().chain(redirects).collect();
                        Ok(Some((*head, redirects)))
                    }
                    Err(refusal) => {
                        self.release(&head, head.island_room.as_slice());
                        carried.remove(owner, &head, head.island_room.as_slice());
                        Err(refusal)
                    }
                },
            });
        }
        loop {
            let mut stable = true;
            for (owner, (design, request)) in designs.iter_mut().zip(requests).enumerate() {
                let Ok(Some((head, redirects))) = design else { continue };
                let lost = |d: &Redirect| match d {
                    Redirect::InCopy { branch } => (!carried.has(head.function, *branch)).then_some(*branch),
                    Redirect::Retarget { .. } | Redirect::Displace { .. } | Redirect::Hop { .. } => None,
                };
                let Some(branch) = redirects.iter().find_map(lost) else { continue };
                let refusal = back_branches::cannot_tell(head, request, branch);
                self.release(head, redirects);
                carried.remove(owner, head, redirects);
                *design = Err(refusal);
                stable = false;
            }
            if stable {
                return designs;
            }
        }
    }

    /// Result for a point. If the arena has no room, releases the point's text and refuses the point.
    fn built(
        &mut self,
        built: BuiltPoint,
        head: &ChosenSpringboard,
        redirects: &[Redirect],
    ) -> Result<Result<Box<WovenPoint>, Refusal>, CodegenError> {
        match built {
            Ok(point) => Ok(Ok(point)),
            Err(e @ (EmitError::OutOfReach | EmitError::ArenaFull | EmitError::Unshared)) => {
                self.builder.arena.lacked_room |= e == EmitError::ArenaFull;
                self.release(head, redirects);
                Ok(Err(Refusal::NoRoomNearby))
            }
            Err(EmitError::Codegen(e)) => Err(e),
        }
    }

    /// Weaves the points whose instructions other points displace, into the code of those points.
    fn within(
        &mut self,
        requests: &[PointRequest<'a>],
        designs: &[ChosenSpringboards],
        woven: &mut [Result<Box<WovenPoint>, Refusal>],
    ) -> Result<(), CodegenError> {
        let hosts = hosts(woven);
        for (i, request) in requests.iter().enumerate().filter(|(i, _)| matches!(designs.get(*i), Some(Ok(None)))) {
            let original = request.site.at.to_avma(request.bias).offset(i64::from(request.site.point));
            let has = |p: &&&WovenPoint| p.inner.iter().any(|inner| inner.original == original);
            let beside = request.beside.iter().find(has).copied();
            let host = hosts.get(&original).and_then(|host| woven.get(*host)?.as_deref().ok()).or(beside);
            let point = match springboard::within(self.builder.env, request, host) {
                Ok(head) => {
                    let built = self.builder.build(&head, &[], request).map(Box::new);
                    self.built(built, &head, &[])?
                }
                Err(refusal) => Err(refusal),
            };
            if let Some(slot) = woven.get_mut(i) {
                *slot = point;
            }
        }
        Ok(())
    }

    /// Redirects the copies of branches that other points displace, past the springboards to which the branches lead.
    fn lead(
        &mut self,
        requests: &[PointRequest<'_>],
        designs: &[ChosenSpringboards],
        woven: &mut [Result<Box<WovenPoint>, Refusal>],
    ) -> Result<(), CodegenError> {
        let hosts = hosts(woven);
        for (i, (request, design)) in requests.iter().zip(designs).enumerate() {
            let Ok(Some((_, redirects))) = design else { continue };
            let Some(Ok(point)) = woven.get(i) else { continue };
            let tail = point.tail.0;
            let mut redirected = Vec::new();
            for redirect in redirects {
                let Redirect::InCopy { branch } = redirect else { continue };
                let of = |p: &WovenPoint| p.inner.iter().find(|inner| inner.original.0 == *branch).copied();
                let host = hosts.get(&Avma(*branch)).and_then(|host| of(woven.get(*host)?.as_ref().ok()?));
                let inner =
                    host.or_else(|| request.beside.iter().find_map(|p| of(p))).ok_or(CodegenError::ArenaFull)?;
                self.builder.plan.text.push(inner.leading(tail).ok_or(CodegenError::ArenaFull)?);
                redirected.push(inner);
            }
            if let Some(Ok(point)) = woven.get_mut(i) {
                point.redirected = redirected;
            }
        }
        Ok(())
    }

    fn release(&mut self, head: &ChosenSpringboard, redirects: &[Redirect]) {
        if head.host.is_some() || head.probe.is_some() {
            return;
        }
        let own = std::iter::once((head.start(), head.at + head.form.len()));
        let island = match head.form {
            SpringboardForm::Short(island) => Some((island.at, island.at + 5)),
            SpringboardForm::Near | SpringboardForm::Call { .. } => None,
        };
        for (start, end) in own.chain(island).chain(redirects.iter().flat_map(Redirect::taken)) {
            self.text.release(&(Avma(start)..Avma(end)));
        }
    }
}
