//! Trial weaving: whether and how the points of a function can be woven. The code goes into an arena that does not exist, so the target is
//! not changed.

use std::sync::Arc;

use ingraft_codegen::{
    Arena, BodyRequest, Environment, MiniRequest, PointRequest, Readable, StackView, TextSpace, WovenBody, WovenPoint,
    weave_body, weave_points_on,
};
use ingraft_model::layout::STRIDE_MAX;
use ingraft_model::machine::SHORT_JUMP;
use ingraft_model::{
    Avma, CpuClock, DataArea, FunctionBody, FunctionId, ModuleId, Offset, PointId, PointKind, Refusal, Scale, Site,
    Snippet, Svma, ThreadIdentity, VariableId, WallClock,
};

use rustc_hash::FxHashMap;

use crate::api::{InspectedPoint, Springboard};
use crate::background::Quick;
use crate::program::modules::Modules;
use crate::weaving::sites::{Text, entry_site, host, sites, whole};

/// The environment of code that is woven only to see whether it can be.
pub fn environment() -> Environment {
    Environment {
        // Any variable has room in it.
        data: DataArea { base: Avma(1 << 30), stride: STRIDE_MAX, shards: 64, journal_bytes: 0 },
        identity: ThreadIdentity::FsOffset(0x2d0),
        shadow_stack: false,
        ticks: Scale::ONE,
        wall: WallClock::Tsc,
        cpu: CpuClock::None,
        vectors: None,
        loader: None,
        goroutine: None,
        stacks: false,
        readable: Readable::default(),
    }
}

/// The points of a function in the order of kinds and addresses: its entry, exits, calls and blocks. The points of each kind are woven
/// together, and without those of other kinds.
pub fn points(text: &Text<'_>, modules: &Modules, function: FunctionId) -> Vec<InspectedPoint> {
    let Some((_, module, f)) = modules.resolve(function) else { return Vec::new() };
    let code = module.image.analyse(f);
    let offset = |at: Svma| Offset::between(f.start().0, at.0);
    let mut all = Vec::new();
    for kind in [PointKind::Entry, PointKind::Exit, PointKind::CallBefore, PointKind::Block] {
        let places: Vec<(Svma, Option<Refusal>)> = match kind {
            PointKind::Block => code.cfg.blocks.iter().map(|block| (block.range.start, None)).collect(),
            PointKind::Entry | PointKind::Exit | PointKind::CallBefore | PointKind::CallAfter | PointKind::Edge => {
                code.points_of(kind).map(|point| (point.at, point.refusal.clone())).collect()
            }
        };
        let woven = tried(text, modules, function, kind);
        for (at, known) in places {
            let springboard = match &woven {
                Err(refusal) => Err(refusal.clone()),
                Ok(woven) => match (woven.get(&at), known) {
                    (Some(found), _) => found.clone(),
                    (None, Some(refusal)) => Err(refusal),
                    (None, None) => Err(Refusal::NoSuchPoint),
                },
            };
            let springboard = springboard.map_err(Into::into);
            all.push(InspectedPoint { kind, at: offset(at), springboard, woven: false });
        }
    }
    all
}

/// The points of one kind that have a site, and the reasons of those that have none as far as it is known which they are.
type Tried = FxHashMap<Svma, Result<Springboard, Refusal>>;

fn tried(text: &Text<'_>, modules: &Modules, function: FunctionId, kind: PointKind) -> Result<Tried, Refusal> {
    let Some((file, module, f)) = modules.resolve(function) else { return Err(Refusal::NoSuchFunction) };
    let mut found = sites(text, modules, function, kind)?;
    let starts: Vec<Svma> = module.image.blocks(f).iter().map(|block| block.range.start).collect();
    let mut tried = Tried::default();
    if kind == PointKind::Block {
        // the sites are in the order of the blocks
        let all = starts.iter().zip(&found);
        tried.extend(all.filter_map(|(at, found)| Some((*at, Err(found.site.clone().err()?)))));
    }
    if found.iter().any(|found| found.site.is_err())
        && let Ok(body) = whole(text, modules, function)
    {
        host(kind, &body, &mut found);
        let lacking = || found.iter().filter(|found| found.site.is_err() && found.hosted.is_some());
        let copied = lacking().next().map(|_| copy(modules, function, &body, &text_of(modules, function.module)));
        if let Some(Ok(copy)) = copied {
            let at = |point: PointId| point.offset().map_or(f.start(), |at| f.start().offset(at.0));
            let points = lacking().filter_map(|found| found.point);
            tried.extend(points.map(|point| (at(point), copy.probe(point).map(|_| Springboard::Copy))));
        }
    }
    let mut ready: Vec<Arc<Site>> = found.into_iter().filter_map(|found| found.site.ok()).collect();
    // An exit in the bytes that the entry displaces is woven into the copy of these bytes.
    if ready.iter().any(|site| site.is_within_entry()) {
        ready.extend(entry_site(text, modules, function));
    }
    let start = file.text().end.0.next_multiple_of(4096);
    let mut arena = Arena::new(Avma(start)..Avma(start + Arena::estimate_bytes(ready.len()) + (1 << 20)));
    let mut space = TextSpace::new();
    space.add_padding(module.bias, module.image.padding());
    let count = Snippet::increment(VariableId(0));
    let minis = [MiniRequest { id: 0, snippet: &count, counters: &[0] }];
    let requests: Vec<_> = ready
        .iter()
        .map(|site| PointRequest {
            site,
            bias: module.bias,
            name: "another point",
            minis: &minis,
            beside: &[],
            probe: None,
        })
        .collect();
    // A request as a whole fails only for reasons that do not occur here.
    let Ok(weave) = weave_points_on(&Quick::of(0), &environment(), &mut arena, &mut space, &requests) else {
        return Err(Refusal::NoRoomNearby);
    };
    let own = ready.iter().zip(weave.woven).filter(|(site, _)| site.point_kind() == kind);
    tried.extend(own.map(|(site, woven)| {
        let at = match kind {
            PointKind::Entry => f.start(),
            // a block that begins with an `endbr64` is woven after this instruction
            PointKind::Block => {
                let after = starts.partition_point(|start| *start <= site.at);
                starts[..after].last().copied().unwrap_or(site.at)
            }
            PointKind::Exit | PointKind::CallBefore | PointKind::CallAfter | PointKind::Edge => {
                Svma(site.at.0 + u64::from(site.point))
            }
        };
        (at, woven.map(|woven| springboard(&woven)))
    }));
    Ok(tried)
}

/// The edges of a function, each with the reason if a copy of the function has no point for it. Fails if there can be no copy.
pub fn edges(text: &Text<'_>, modules: &Modules, function: FunctionId) -> Result<Vec<Result<(), Refusal>>, Refusal> {
    let found = sites(text, modules, function, PointKind::Edge)?;
    let hosted = || found.iter().filter_map(|found| found.hosted.as_ref());
    let Some(body) = hosted().next().map(|hosted| &hosted.body) else { return Ok(Vec::new()) };
    let copy = copy(modules, function, body, &text_of(modules, function.module))?;
    let points = found.iter().filter_map(|found| found.point.filter(|_| found.hosted.is_some()));
    Ok(points.map(|point| copy.probe(point).map(|_| ())).collect())
}

/// The text of a module with nothing woven into it.
pub fn text_of(modules: &Modules, module: ModuleId) -> TextSpace {
    let mut space = TextSpace::new();
    if let Some((_, module)) = modules.module(module) {
        space.add_padding(module.bias, module.image.padding());
    }
    space
}

/// Copies a function on trial, as if nothing else were woven into the text of its module.
pub fn copy(
    modules: &Modules,
    function: FunctionId,
    body: &FunctionBody,
    text: &TextSpace,
) -> Result<WovenBody, Refusal> {
    let (file, module, f) = modules.resolve(function).ok_or(Refusal::NoSuchFunction)?;
    let name = f.display_name();
    let start = file.text().end.0.next_multiple_of(4096);
    let bytes: usize = body.blocks.iter().map(|block| block.bytes.len()).sum();
    let mut arena = Arena::new(Avma(start)..Avma(start + 16 * bytes as u64 + (1 << 20)));
    let request = BodyRequest { body, bias: module.bias, name: &name, points: &[] };
    let woven = weave_body(&environment(), &mut arena, &mut text.clone(), &request);
    woven.map_err(|_| Refusal::NoRoomNearby)?.map(|woven| woven.body)
}

/// Method by which control gets to the code of a point.
pub fn springboard(woven: &WovenPoint) -> Springboard {
    if woven.host.is_some() || woven.probe.is_some() {
        return Springboard::Copy;
    }
    if woven.stack == StackView::CALLED {
        return Springboard::Call;
    }
    let first = woven.removal.text.iter().find(|write| write.at == woven.at);
    match first.and_then(|write| write.old_bytes().first()) {
        Some(&SHORT_JUMP) => Springboard::Island,
        Some(_) | None => Springboard::Jump,
    }
}
