//! Sites of points: the points of a function in the present text of the target.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use ingraft_analysis::{AsyncUnwinder, Function, FunctionKind, may_fault};
use ingraft_model::machine::{ENDBR, PAGE, SPRINGBOARD};
use ingraft_model::{
    Arrival, Avma, BlockId, BlockPoint, Edge, EdgeTarget, FreeRegisters, FunctionBody, FunctionId, IslandRoom, Offset,
    Parts, PointId, PointKind, Refusal, Site, SiteKind, Svma, TextWrite,
};
use ingraft_process::{Mapping, Target};

use ingraft_codegen::RemovalRecord;

use crate::program::callees::{callees, never_returns};
use crate::program::modules::{Module, Modules};
use crate::program::text_pages::TextPages;
use crate::weaving::bodies::Hosted;
use crate::weaving::wanted::NewMini;

/// `int3`, which a uprobe writes over the first byte of an instruction.
const BREAKPOINT: u8 = 0xcc;
/// The mapping in which the kernel executes the instructions under uprobes. It exists once a thread has hit one that is not
/// emulated.
const UPROBES: &str = "[uprobes]";

/// Largest number of bytes that a springboard displaces: whole instructions, of which the last begins before its end.
const DISPLACED_MAX: usize = 4 + 15;

/// `nop dword [rax+rax+0]`. At the entry of a function, a program writes a call or a jump over it (tracers of functions, live patches).
/// Elsewhere, the compiler aligns code by it, also behind calls that do not return.
const PATCHED_NOP: [u8; 5] = [0x0f, 0x1f, 0x44, 0x00, 0x00];

/// Largest length in bytes of a write to the text.
const WRITE_MAX: u64 = 8;

/// Number of bytes of a block that a site in a copy states.
const SITE_MAX: usize = 64;

/// One point of a function.
#[derive(Clone, Debug)]
pub struct FoundPoint {
    /// The point; `None` for an exit that cannot be woven and whose instruction is not known.
    pub point: Option<PointId>,
    /// Site at which the point can be woven, or the reason why it cannot.
    pub site: Result<Arc<Site>, Refusal>,
    /// Functions of which the call at the point may call one; empty if the callee is known only at the call, and at other kinds of points.
    callees: Vec<FunctionId>,
    /// The point as it can be woven into the copy of its function; `None` if it cannot, or if there is no need.
    pub hosted: Option<Hosted>,
    /// Indices of the wanted snippets that are for this point, as far as they were assigned.
    pub its: Vec<usize>,
}

impl FoundPoint {
    fn new(point: Option<PointId>, site: Result<Arc<Site>, Refusal>) -> Self {
        FoundPoint { point, site, callees: Vec::new(), hosted: None, its: Vec::new() }
    }

    /// Whether a snippet is for this point. It is not if it is for other parts, or if it excludes calls of all callees.
    pub fn is_for(&self, mini: &NewMini<'_>) -> bool {
        let excluded = !self.callees.is_empty() && self.callees.iter().all(|callee| mini.except.contains(callee));
        !excluded && self.is_among(&mini.parts)
    }

    /// Whether the point is one of these parts.
    pub fn is_among(&self, parts: &Parts) -> bool {
        match parts {
            Parts::All => true,
            Parts::One(wanted) => self.point == Some(*wanted),
            Parts::These(wanted) => self.point.is_some_and(|point| wanted.binary_search(&point).is_ok()),
            Parts::Missing(_) => false,
        }
    }
}

/// The text of a target without the engine's changes; each page is read once.
pub struct Text<'a> {
    target: &'a Target,
    /// The engine's changes, as writes that undo them, sorted by address.
    undone: Vec<TextWrite>,
    /// The present content of the pages.
    pages: TextPages,
    /// Whether a thread of the target has hit a uprobe.
    hit: OnceLock<bool>,
    /// Whether there are breakpoints in the text of a module, by its bias.
    probed: Mutex<BTreeMap<u64, bool>>,
    /// Whether a handler of the program may leave a function whose instruction has faulted.
    left_by_faults: OnceLock<bool>,
}

impl<'a> Text<'a> {
    /// Creates the view of a target's text. `records` are the removal records of all changes of the engine.
    pub fn new<'r>(target: &'a Target, records: impl Iterator<Item = &'r RemovalRecord>) -> Self {
        let mut undone: Vec<TextWrite> = records.flat_map(|r| &r.text).copied().collect();
        undone.sort_by_key(|write| write.at);
        Text {
            target,
            undone,
            pages: TextPages::default(),
            hit: OnceLock::new(),
            probed: Mutex::default(),
            left_by_faults: OnceLock::new(),
        }
    }

    /// The view of a target in which nothing is woven.
    pub fn untouched(target: &'a Target) -> Self {
        Text::new(target, std::iter::empty())
    }

    /// The target.
    pub fn target(&self) -> &Target {
        self.target
    }

    /// Whether uprobes are in the target, so that more may come: a thread has hit one that the kernel does not emulate, or the text of the
    /// module has a breakpoint that the file lacks.
    fn is_probed(&self, module: &Module) -> bool {
        let hit = |maps: Vec<Mapping>| maps.iter().any(|m| m.path.as_os_str() == UPROBES);
        *self.hit.get_or_init(|| self.target.maps().is_ok_and(hit)) || self.has_breakpoints(module)
    }

    fn has_breakpoints(&self, module: &Module) -> bool {
        let mut known = self.probed.lock().unwrap_or_else(PoisonError::into_inner);
        *known.entry(module.bias.0).or_insert_with(|| {
            module.image.segments().iter().filter(|s| s.flags.execute).any(|segment| {
                let start = segment.svma.to_avma(module.bias).0;
                let range =
                    Avma(start / PAGE * PAGE)..Avma(start.saturating_add(segment.file_size).next_multiple_of(PAGE));
                let own = self.target.own_pages(&range).unwrap_or_default();
                let pages = (range.start.0..).step_by(PAGE as usize).zip(own).filter(|(_, own)| *own);
                pages.into_iter().any(|(page, _)| self.has_breakpoint(module, Avma(page)))
            })
        })
    }

    /// Whether a page has a breakpoint where the module's file has another byte.
    fn has_breakpoint(&self, module: &Module, page: Avma) -> bool {
        let mut now = vec![0; PAGE as usize];
        if !self.original(page, &mut now) {
            return false;
        }
        let file = |at: u64| module.image.bytes_at(Avma(at).to_svma(module.bias), 1)?.first().copied();
        let breakpoints = (page.0..).zip(now).filter(|(_, byte)| *byte == BREAKPOINT);
        breakpoints.map(|(at, _)| file(at)).any(|byte| byte.is_some_and(|byte| byte != BREAKPOINT))
    }

    /// Whether a handler of the program may leave a function whose instruction has faulted.
    fn is_left_by_faults(&self, modules: &Modules) -> bool {
        *self.left_by_faults.get_or_init(|| {
            self.target.status().is_ok_and(|status| status.catches_faults()) && modules.leaves_handlers(self.target)
        })
    }

    /// Reads the present text. Returns false if it cannot be read.
    fn now(&self, at: Avma, bytes: &mut [u8]) -> bool {
        self.pages.read(self.target, at, bytes)
    }

    /// Reads the text as it was before the engine's changes. Returns false if it cannot be read.
    fn original(&self, at: Avma, bytes: &mut [u8]) -> bool {
        let there = self.now(at, bytes);
        let end = at.offset(bytes.len() as i64);
        // The one before may reach into the range: no write is longer than eight bytes.
        let first = self.undone.partition_point(|write| write.at.0.saturating_add(WRITE_MAX) <= at.0);
        for write in self.undone.iter().skip(first).take_while(|write| write.at < end) {
            for (place, byte) in (write.at.0..).zip(write.new_bytes()) {
                let index = place.checked_sub(at.0).and_then(|i| usize::try_from(i).ok());
                if let Some(there) = index.and_then(|i| bytes.get_mut(i)) {
                    *there = *byte;
                }
            }
        }
        there
    }
}

/// The points of one kind of a function, as far as their bytes tell. Fails if it is not certain that these are all.
pub fn sites(
    text: &Text<'_>,
    modules: &Modules,
    function: FunctionId,
    kind: PointKind,
) -> Result<Vec<FoundPoint>, Refusal> {
    match kind {
        PointKind::Entry => Ok(vec![FoundPoint::new(Some(PointId::Entry), Ok(entry_site(text, modules, function)?))]),
        PointKind::Exit => {
            let (module, f) = body(modules, function)?;
            let found = |site: Result<Arc<Site>, Refusal>| {
                let point = site.as_ref().ok().map(|site| PointId::Exit(offset(site.function, instruction(site))));
                FoundPoint::new(point, site.and_then(|site| agrees(text, modules, module, site)))
            };
            Ok(module.image.exit_sites(f)?.into_iter().map(found).collect())
        }
        PointKind::CallBefore => calls(text, modules, function, false),
        PointKind::CallAfter => calls(text, modules, function, true),
        PointKind::Block => {
            let (module, f) = body(modules, function)?;
            let points = module.image.block_points(f)?.into_iter();
            let found = |point: BlockPoint| {
                let id = PointId::Block(offset(f.start(), point.block.range.start));
                FoundPoint::new(Some(id), point.site.and_then(|site| agrees(text, modules, module, Arc::new(site))))
            };
            let mut points: Vec<FoundPoint> = points.map(found).collect();
            if points.iter().any(|point| point.site.is_err())
                && let Ok(body) = whole(text, modules, function)
            {
                host(kind, &body, &mut points);
            }
            Ok(points)
        }
        PointKind::Edge => in_copy(text, modules, function, (kind, &|_| true)),
    }
}

/// The blocks or the edges of a function as points of a copy of it, as far as they are wanted. They have no sites in the text: an edge lies at
/// no place there, and sites of blocks take long to find. A counted function has few counters, and runs as a copy anyway if an edge has one.
pub fn in_copy(
    text: &Text<'_>,
    modules: &Modules,
    function: FunctionId,
    (kind, wanted): (PointKind, &dyn Fn(&PointId) -> bool),
) -> Result<Vec<FoundPoint>, Refusal> {
    let body = whole(text, modules, function)?;
    let start = |block: BlockId| Some(offset(body.function, body.blocks.get(block)?.block.range.start));
    let found = |point: PointId, block: BlockId, kind: fn(FreeRegisters) -> SiteKind| {
        let hosted = hosted(&body, block, kind);
        FoundPoint { hosted, ..FoundPoint::new(Some(point), Err(Refusal::NoSuchPoint)) }
    };
    let edge = |edge: &Edge| {
        let EdgeTarget::Block(block) = edge.to else { return None };
        let point = PointId::Edge { from: start(edge.from)?, to: start(block)?, kind: edge.kind };
        wanted(&point).then(|| found(point, block, |free| SiteKind::Edge { free }))
    };
    let block = |block: BlockId| {
        let point = PointId::Block(start(block)?);
        wanted(&point).then(|| found(point, block, |free| SiteKind::Block { free }))
    };
    Ok(match kind {
        PointKind::Edge => body.edges.iter().filter_map(edge).collect(),
        _ => body.blocks.keys().filter_map(block).collect(),
    })
}

/// Notes how the points of one kind of a function can be woven into a copy of it.
pub fn host(kind: PointKind, body: &Arc<FunctionBody>, points: &mut [FoundPoint]) {
    let count = points.len();
    for (index, found) in points.iter_mut().enumerate() {
        match kind {
            PointKind::Entry | PointKind::Exit | PointKind::CallBefore | PointKind::CallAfter => {
                let exit = body.exits.get(index).filter(|_| kind == PointKind::Exit && count == body.exits.len());
                let known = exit.map(|exit| PointId::Exit(offset(body.function, exit.at)));
                found.point = found.point.or(known);
                let has_site = kind != PointKind::Exit || exit.is_some_and(|exit| exit.is_return);
                let at = found.point.and_then(|point| point.offset()).filter(|_| has_site);
                let bare = || bare_site(body, kind, body.function.offset(at?.0));
                let site = found.site.as_deref().ok().cloned().or_else(bare);
                let free = exit.map(|exit| exit.free.clone()).unwrap_or_default();
                found.hosted = site.and_then(|site| at_instruction(body, site, free));
            }
            PointKind::Block => {
                let block = found.point.and_then(|point| body.block_at(body.function.offset(point.offset()?.0)));
                found.hosted = block.and_then(|block| hosted(body, block, |free| SiteKind::Block { free }));
            }
            // An edge has no other site.
            PointKind::Edge => {}
        }
    }
}

/// Offset of an address from the first byte of its function.
fn offset(function: Svma, at: Svma) -> Offset {
    Offset::between(function.0, at.0)
}

/// Address of the instruction of a site's point.
fn instruction(site: &Site) -> Svma {
    site.at.offset(site.point.into())
}

/// The site of a return, or of a point at a call, that has no room in the text: its instruction and what follows in its block.
fn bare_site(body: &FunctionBody, kind: PointKind, at: Svma) -> Option<Site> {
    let kind = match kind {
        PointKind::Exit => SiteKind::Exit { within: false, free: FreeRegisters::default() },
        PointKind::CallBefore => SiteKind::CallBefore,
        PointKind::CallAfter => SiteKind::CallAfter { arrival: Arrival::default() },
        PointKind::Entry | PointKind::Block | PointKind::Edge => return None,
    };
    let block = body.blocks.iter().find(|b| b.block.range.contains(&at))?;
    let bytes = block.bytes.get(usize::try_from(at.0 - block.block.range.start.0).ok()?..)?;
    Some(Site::new(kind, body.function, at, bytes.iter().copied().take(SITE_MAX).collect()))
}

/// An entry, an exit or a point at a call as a point of the copy of its function. `None` for the entry of a function whose calls cannot be
/// told from other arrivals. `free` is what is free at the exit.
fn at_instruction(body: &Arc<FunctionBody>, site: Site, free: FreeRegisters) -> Option<Hosted> {
    let arrival = Arrival::default();
    let kind = match &site.kind {
        SiteKind::Entry { free, .. } => {
            body.entry?;
            SiteKind::Entry { arrival, free: free.clone(), first: None }
        }
        SiteKind::Exit { .. } => SiteKind::Exit { within: false, free },
        SiteKind::CallBefore => SiteKind::CallBefore,
        SiteKind::CallAfter { .. } => SiteKind::CallAfter { arrival },
        SiteKind::Block { .. } | SiteKind::Edge { .. } => return None,
    };
    let site = Arc::new(Site { kind, landings: Vec::new(), island_rooms: Vec::new(), ..site });
    Some(Hosted { site, body: Arc::clone(body) })
}

/// A function as a whole, if the target has the bytes of the file there, apart from the engine's changes.
pub fn whole(text: &Text<'_>, modules: &Modules, function: FunctionId) -> Result<Arc<FunctionBody>, Refusal> {
    let (module, f) = body(modules, function)?;
    if let Some((why, module)) = modules.unwinder() {
        let module = module.to_owned();
        return Err(match why {
            AsyncUnwinder::Handler => Refusal::HandlerEndsThread { handler: module },
            AsyncUnwinder::Cancellation => Refusal::AsynchronousCancellation { module },
            AsyncUnwinder::Fault => Refusal::ThrowingFaults { module },
        });
    }
    let patched = |at: Svma| Refusal::PatchedByProgram { offset: Offset::between(f.start().0, at.0) };
    if modules.module(function.module).is_some_and(|(file, _)| file.is_writable()) {
        return Err(patched(f.start()));
    }
    // Tables of such places may make a function look as if control arrived in its middle.
    if let Some(at) = module.image.patchable_in(&f.range()) {
        return Err(patched(at));
    }
    let body = module.image.body(f)?;
    // Springboards lie at all ways into the copy, and a uprobe may be set on any of them.
    if modules.are_uprobes_expected() || text.is_probed(module) {
        return Err(Refusal::ExposedToUprobes);
    }
    for block in &body.blocks {
        let start = block.block.range.start;
        let code = block.bytes.strip_prefix(&ENDBR).unwrap_or(&block.bytes);
        let is_slot = start == f.start() && code.starts_with(&PATCHED_NOP);
        if let Some(at) = module.image.patchable_in(&block.block.range).or_else(|| is_slot.then_some(start)) {
            return Err(patched(at));
        }
        let mut now = vec![0; block.bytes.len()];
        if !text.original(start.to_avma(module.bias), &mut now) {
            return Err(Refusal::Unreadable);
        }
        if let Some(i) = now.iter().zip(&block.bytes).position(|(a, b)| a != b) {
            let differs = start.0.wrapping_add(i as u64);
            return Err(Refusal::BytesDiffer { offset: Offset::between(body.function.0, differs) });
        }
    }
    Ok(body)
}

/// A block, or an edge that leads to it, as a point of the copy of its function.
fn hosted(body: &Arc<FunctionBody>, block: BlockId, kind: fn(FreeRegisters) -> SiteKind) -> Option<Hosted> {
    let to = body.blocks.get(block)?;
    let bytes = to.bytes.iter().copied().take(SITE_MAX).collect();
    let site = Arc::new(Site::new(kind(to.free.clone()), body.function, to.block.range.start, bytes));
    Some(Hosted { site, body: Arc::clone(body) })
}

/// Whether the sites are in the cache, so that finding them takes little time.
pub fn are_known(modules: &Modules, function: FunctionId, kind: PointKind) -> bool {
    let known = |(_, module, f): (_, &Module, &Function)| module.image.knows_sites(f, kind);
    modules.resolve(function).is_none_or(known)
}

/// The site of a function's entry, if the entry can be woven as far as its bytes tell, and if the target's memory agrees with the file.
pub fn entry_site(text: &Text<'_>, modules: &Modules, function: FunctionId) -> Result<Arc<Site>, Refusal> {
    let (module, f) = body(modules, function)?;
    agrees(text, modules, module, module.image.entry_site(f)?)
}

fn calls(text: &Text<'_>, modules: &Modules, function: FunctionId, after: bool) -> Result<Vec<FoundPoint>, Refusal> {
    let (module, f) = body(modules, function)?;
    let mut out = Vec::new();
    for point in module.image.call_points(f, after)? {
        let callees = callees(text.target, modules, function, module, &point.call);
        let returns = callees.is_empty() || callees.iter().any(|&callee| !never_returns(modules, callee));
        let site = match point.site {
            Ok(None) => continue,
            Ok(Some(site)) => agrees(text, modules, module, Arc::new(site)),
            // if no control returns from the call, there is nothing to weave
            Err(_) if after && !returns => continue,
            Err(refusal) => Err(refusal),
        };
        let at = |len: u8| offset(f.start(), point.call.at.offset(len.into()));
        let id = if after { PointId::CallAfter(at(point.call.len)) } else { PointId::CallBefore(at(0)) };
        out.push(FoundPoint { callees, ..FoundPoint::new(Some(id), site) });
    }
    Ok(out)
}

/// A function, if its code may be changed.
fn body(modules: &Modules, function: FunctionId) -> Result<(&Module, &Function), Refusal> {
    let (file, module, f) = modules.resolve(function).ok_or(Refusal::NoSuchFunction)?;
    match f.kind() {
        FunctionKind::Normal if file.is_shared() => Err(Refusal::SharedText),
        FunctionKind::Normal if module.image.elf().has_text_relocations() => Err(Refusal::TextRelocations),
        FunctionKind::Normal => Ok((module, f)),
        FunctionKind::IfuncResolver => Err(Refusal::IfuncResolver),
        FunctionKind::Stub => Err(Refusal::LinkerStub),
    }
}

/// The site, if the target has the bytes of the file there, apart from the engine's changes, and if it may displace its instructions.
fn agrees(text: &Text<'_>, modules: &Modules, module: &Module, mut site: Arc<Site>) -> Result<Arc<Site>, Refusal> {
    if let Some((AsyncUnwinder::Fault, module)) = modules.unwinder() {
        if displaces_faults(&site) {
            return Err(Refusal::ThrowingFaults { module: module.to_owned() });
        }
        Arc::make_mut(&mut site).island_rooms.retain(|room| !may_fault(&room.bytes, room.bytes.len()));
    }
    let at = site.at.to_avma(module.bias);
    let displaced = site.bytes.len().min(usize::from(site.point) + DISPLACED_MAX);
    let range = |at: Svma, len: usize| at..Svma(at.0.wrapping_add(len as u64));
    if let Some(at) = module.image.patchable_in(&range(site.at, displaced)) {
        return Err(Refusal::PatchedByProgram { offset: Offset::between(site.function.0, at.0) });
    }
    let mut now = vec![0; site.bytes.len()];
    if !text.original(at, &mut now) {
        return Err(Refusal::Unreadable);
    }
    // a range that is displaced only to make room is used only if its bytes are those of the file
    let is_there = |c: &IslandRoom| {
        let mut now = vec![0; c.bytes.len()];
        let is_fixed = module.image.patchable_in(&range(c.at, c.bytes.len())).is_none();
        is_fixed && text.now(c.at.to_avma(module.bias), &mut now) && now == c.bytes
    };
    if !site.island_rooms.iter().all(is_there) {
        Arc::make_mut(&mut site).island_rooms.retain(is_there);
    }
    // A call that such a handler ends at its first instruction is a call too.
    if site.first_instruction().is_some_and(|first| first.may_fault)
        && text.is_left_by_faults(modules)
        && let SiteKind::Entry { first, .. } = &mut Arc::make_mut(&mut site).kind
    {
        *first = None;
    }
    let own_first = site.first_instruction().is_some();
    let breakpoint = own_first && now.first() == Some(&BREAKPOINT) && now.get(1..) == site.bytes.get(1..);
    let probed = || breakpoint || modules.are_uprobes_expected() || text.is_probed(module);
    if site.at == site.function && probed() {
        let SiteKind::Entry { first: Some(first), .. } = &mut Arc::make_mut(&mut site).kind else {
            return Err(Refusal::ExposedToUprobes);
        };
        first.must_stay = true;
    }
    let differs = now.iter().zip(&site.bytes).position(|(a, b)| a != b);
    match differs.filter(|_| !breakpoint) {
        None => Ok(site),
        Some(i) => {
            let differs = site.at.0.wrapping_add(i as u64);
            Err(Refusal::BytesDiffer { offset: Offset::between(site.function.0, differs) })
        }
    }
}

/// Whether an instruction that a springboard at a site may displace can fault.
fn displaces_faults(site: &Site) -> bool {
    let (own, springboard) = (usize::from(site.own), SPRINGBOARD as usize);
    let displaced = match &site.kind {
        // all instructions from the first one to the point
        SiteKind::Exit { .. } | SiteKind::CallBefore => own,
        SiteKind::Entry { arrival, .. } | SiteKind::CallAfter { arrival } => springboard.max(arrival.least.into()),
        SiteKind::Block { .. } | SiteKind::Edge { .. } => springboard,
    };
    may_fault(&site.bytes, displaced.min(own))
        || site.back_branches().iter().any(|b| may_fault(&b.bytes, b.bytes.len()))
}
