//! Outlook for the entries of a target, determined without a change to the target.

use ingraft_codegen::{Arena, MiniRequest, PointRequest, TextSpace, WovenPoint, weave_points_on};
use ingraft_model::{Avma, FunctionId, ModuleId, Refusal, Site, Snippet, VariableId};
use ingraft_process::Target;
use rayon::prelude::*;
use rustc_hash::FxHashMap;

use crate::background::{Quick, in_background};
use crate::program::modules::Modules;
use crate::weaving::sites::{Text, entry_site};
use crate::weaving::trial::environment;

/// For each of these functions, whether its entry would be exposed to uprobes, or the reason why it cannot be woven. All of them are woven
/// into an arena that does not exist.
pub fn outlook(
    target: &Target,
    modules: &Modules,
    functions: &[FunctionId],
) -> FxHashMap<FunctionId, Result<bool, Refusal>> {
    let env = environment();
    let count = Snippet::increment(VariableId(0));
    let minis = [MiniRequest { id: 0, snippet: &count, counters: &[0] }];
    let text = Text::untouched(target);
    let sites: Vec<_> = in_background(|| functions.par_iter().map(|f| (*f, entry_site(&text, modules, *f))).collect());
    let mut out = FxHashMap::default();
    let mut by_module: FxHashMap<ModuleId, Vec<(FunctionId, &Site)>> = FxHashMap::default();
    for (function, site) in &sites {
        match site {
            Ok(site) => by_module.entry(function.module).or_default().push((*function, site)),
            Err(refusal) => {
                out.insert(*function, Err(refusal.clone()));
            }
        }
    }
    for (number, members) in by_module {
        let Some((file, module)) = modules.module(number) else { continue };
        let start = file.text().end.0.next_multiple_of(4096);
        let mut arena = Arena::new(Avma(start)..Avma(start + Arena::estimate_bytes(members.len())));
        let mut text = TextSpace::new();
        text.add_padding(module.bias, module.image.padding());
        let entries: Vec<_> = members
            .iter()
            .map(|(_, site)| PointRequest {
                site,
                bias: module.bias,
                name: "another function",
                minis: &minis,
                beside: &[],
                probe: None,
            })
            .collect();
        // A request as a whole fails only for reasons that do not occur here.
        let Ok(weave) = weave_points_on(&Quick::of(0), &env, &mut arena, &mut text, &entries) else { continue };
        let exposed = |point: Box<WovenPoint>| point.at == point.function;
        out.extend(members.iter().zip(weave.woven).map(|((f, _), woven)| (*f, woven.map(exposed))));
    }
    out
}
