//! Springboards for all points of a request, so that they get along: which have bytes of their own, and which are woven into the copies of
//! instructions that another point of their function displaces.

use ingraft_model::{Refusal, SiteKind};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::code::environment::Environment;
use crate::patch::back_branches::Detour;
use crate::patch::relocate::Displaced;
use crate::patch::springboard::{self, Head, Width};
use crate::patch::text_space::TextSpace;
use crate::patch::weave::PointRequest;

/// Where a point goes.
pub(crate) enum Choice {
    /// It has a springboard in the text.
    Own(Head),
    /// Another point displaces its instruction, and holds it.
    Hosted,
    /// Nowhere.
    Refused(Refusal),
}

/// Chooses for each request, and takes the bytes of text.
///
/// What begins at one address only goes first, and leaves calls that are points themselves in place where it can: a call that stays is a
/// pair with its return for the processor. Springboards of five bytes go before those of two, as what padding they leave is for islands.
pub(crate) fn choose(env: &Environment, text: &mut TextSpace, requests: &[PointRequest<'_>]) -> Vec<Choice> {
    let point = |r: &PointRequest<'_>| r.site.at.to_avma(r.bias).0.wrapping_add(u64::from(r.site.point));
    let before_call = |r: &PointRequest<'_>| r.site.kind == SiteKind::CallBefore;
    let first = |r: &PointRequest<'_>| r.site.arrival().is_some();
    let exit = |r: &PointRequest<'_>| !first(r) && !before_call(r);
    let calls: FxHashSet<u64> = requests.iter().filter(|r| before_call(r)).map(point).collect();
    let none = FxHashSet::default();
    let held = requests.iter().flat_map(|r| r.beside).flat_map(|woven| &woven.inner).map(|inner| inner.original.0);
    let mut held: FxHashSet<u64> = held.collect();

    let mut choices: Vec<Option<Choice>> =
        requests.iter().map(|r| r.site.is_within_entry().then_some(Choice::Hosted)).collect();
    let mut round = |which: &dyn Fn(&PointRequest<'_>) -> bool, width, keep: &FxHashSet<u64>, host: bool| {
        for (choice, r) in choices.iter_mut().zip(requests).filter(|(_, r)| which(r)) {
            if !matches!(choice, None | Some(Choice::Refused(_))) {
                continue;
            }
            *choice = Some(match springboard::choose(env, text, r, width, keep) {
                Ok(head) => {
                    if first(r) {
                        held.extend(head.behind().iter().map(|d| d.at));
                    }
                    Choice::Own(head)
                }
                Err(_) if host && held.contains(&point(r)) => Choice::Hosted,
                Err(refusal) => Choice::Refused(refusal),
            });
        }
    };
    round(&first, Width::Near, &calls, false);
    round(&exit, Width::Near, &none, true);
    round(&first, Width::Any, &calls, false);
    round(&first, Width::Any, &none, false);
    round(&before_call, Width::Near, &none, true);
    round(&|r| !first(r), Width::Any, &none, true);
    let unasked = || Choice::Refused(Refusal::NotYet { kind: "such" });
    choices.into_iter().map(|choice| choice.unwrap_or_else(unasked)).collect()
}

/// The branches that points displace: for which function, and which request does, none if it is woven already.
#[derive(Default)]
pub(crate) struct Carried(FxHashMap<u64, (u64, Option<usize>)>);

impl Carried {
    /// What the chosen springboards and the points that are woven displace.
    pub fn new(choices: &[Choice], requests: &[PointRequest<'_>]) -> Self {
        let mut carried = Carried::default();
        for woven in requests.iter().flat_map(|r| r.beside) {
            carried.0.extend(woven.inner.iter().map(|inner| (inner.original.0, (woven.function.0, None))));
        }
        for (owner, choice) in choices.iter().enumerate() {
            if let Choice::Own(head) = choice {
                carried.add(owner, head, &head.displaced);
                carried.add_detours(owner, head, head.clearing.as_slice());
            }
        }
        carried
    }

    fn add(&mut self, owner: usize, head: &Head, displaced: &[Displaced]) {
        let branches = displaced.iter().filter(|d| d.is_branch());
        self.0.extend(branches.map(|d| (d.at, (head.function, Some(owner)))));
    }

    /// What is displaced for a branch back to a point, or to make room.
    pub fn add_detours(&mut self, owner: usize, head: &Head, detours: &[Detour]) {
        for detour in detours {
            if let Detour::Stretch { displaced, .. } = detour {
                self.add(owner, head, displaced);
            }
        }
    }

    /// Forgets what a point displaces that is not woven after all.
    pub fn remove(&mut self, owner: usize, head: &Head, detours: &[Detour]) {
        let stretches = detours.iter().filter_map(|d| match d {
            Detour::Stretch { displaced, .. } => Some(displaced.as_slice()),
            Detour::Retarget { .. } | Detour::Hop { .. } | Detour::Led { .. } => None,
        });
        for displaced in stretches.chain([head.displaced.as_slice()]).flatten() {
            if self.0.get(&displaced.at).is_some_and(|(_, by)| *by == Some(owner)) {
                self.0.remove(&displaced.at);
            }
        }
    }

    /// Whether a point of a function displaces the branch at an address.
    pub fn has(&self, function: u64, branch: u64) -> bool {
        self.0.get(&branch).is_some_and(|(of, _)| *of == function)
    }
}
