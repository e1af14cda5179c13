//! Snippets that points get which are woven already. They are proven together, because many of them differ in their counters only.

use std::collections::BTreeMap;
use std::sync::Arc;

use ingraft_codegen::verify::{Added, verify_all_added};
use ingraft_codegen::{Arena, Environment, Templates, add_mini_from};
use ingraft_model::patch::ArenaCode;
use ingraft_model::{PatchPlan, PointKind, Refusal};

use crate::background::Quick;
use crate::error::Error;
use crate::weaving::plan::{PlannedChange, Woven, append, codegen_error};
use crate::weaving::points::Point;
use crate::weaving::unproven::defect;
use crate::weaving::wanted::{NewMini, NewPoint, place_among, to_add};

/// Snippets that were added to points of one arena, and that are not proven yet.
#[derive(Default)]
struct Unproven<'a> {
    /// The new code.
    code: Vec<ArenaCode>,
    /// For each snippet, the plan without its code, and the point right after the change.
    added: Vec<(PatchPlan, Arc<Point>, &'a NewMini<'a>)>,
}

impl Woven {
    /// Adds snippets to points that are woven already.
    pub(super) fn extend_points(
        &mut self,
        env: &Environment,
        found: &[NewPoint<'_>],
        change: &mut PlannedChange,
    ) -> Result<(), Error> {
        let mut templates = Templates::default();
        // By the index of the arena.
        let mut unproven: BTreeMap<usize, Unproven<'_>> = BTreeMap::new();
        for found in found {
            let Some(point) = self.points.get_mut(&found.point) else { continue };
            let Some(arena) = self.arenas.get_mut(point.arena) else { continue };
            let its = unproven.entry(point.arena).or_default();
            let lacking = found.minis.iter().filter(|mini| point.woven.lacks_input_of(mini.snippet));
            let refused = lacking.map(|m| ((found.point.function, m.pair), Refusal::ArgumentOverwritten));
            let refused: Vec<_> = refused.collect();
            let is_refused = |mini: &NewMini<'_>| refused.iter().any(|((_, pair), _)| *pair == mini.pair);
            let kind = found.point.point.kind();
            for mini in to_add(&found.minis, kind).into_iter().filter(|mini| !is_refused(mini)) {
                if point.woven.minis.iter().any(|known| known.id == mini.id) {
                    continue;
                }
                let mut plan = Arc::make_mut(point).add(env, arena, kind, mini, &mut templates)?;
                its.code.append(&mut plan.code);
                its.added.push((plan, Arc::clone(point), mini));
            }
            change.refused.extend(refused);
            change.chains.push(point.chain());
        }
        for (index, Unproven { code, added }) in unproven {
            let Some(arena) = self.arenas.get(index) else { continue };
            let quick = Quick::of(0);
            let claims: Vec<Added<'_>> = added
                .iter()
                .map(|(plan, after, mini)| Added { plan, after: &after.woven, request: mini.request() })
                .collect();
            verify_all_added(&quick, env, arena, &code, &claims).map_err(|e| defect(&e))?;
            quick.check();
            change.plan.code.extend(code);
            added.into_iter().for_each(|(plan, ..)| append(&mut change.plan, plan));
        }
        Ok(())
    }
}

impl Point {
    /// Adds a snippet among those of its role, see [`place_among`].
    fn add<'a>(
        &mut self,
        env: &Environment,
        arena: &mut Arena,
        kind: PointKind,
        mini: &'a NewMini<'a>,
        templates: &mut Templates<'a>,
    ) -> Result<PatchPlan, Error> {
        let index = place_among(self.minis.iter().map(|known| known.role), kind, mini.role);
        let request = mini.request();
        let plan = add_mini_from(env, arena, &mut self.woven, &request, index, templates).map_err(codegen_error)?;
        self.minis.insert(index, mini.known());
        Ok(plan)
    }
}
