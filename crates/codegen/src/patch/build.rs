//! Code of one point: base trampoline, snippets, displaced instructions, and the records that undo them.

use ingraft_model::machine::{PAGE, SPRINGBOARD};
use ingraft_model::patch::ArenaCode;
use ingraft_model::{
    Avma, AvmaRange, FirstInstruction, Gpr, PatchPlan, PcMove, PointKind, Site, SiteKind, TextWrite, ThreadIdentity,
};

use crate::code::arena::{Arena, ROUNDS, SlowRoutine};
use crate::code::block::{Back, CodeBuffer, EmitError, LINK, jmp_bytes, straddles, text_write};
use crate::code::body::Held;
use crate::code::branches::{Branches, WINDOW};
use crate::code::cost::Cost;
use crate::code::environment::Environment;
use crate::code::woven::{DisplacedCopy, RemovalRecord, WovenPoint};
use crate::code::woven::{StackView, WovenMini};
use crate::patch::back_branches::Redirect;
use crate::patch::relocate::{self, Displaced};
use crate::patch::springboard::{ChosenSpringboard, SpringboardForm};
use crate::patch::weave::PointRequest;
use crate::snippet::mini::{self, BaseState, Compiled, MiniParts, MiniRequest};
use crate::snippet::slot::{self, Holds, Slot};
use crate::snippet::slow::{self, COUNT, MARKER};
use crate::snippet::template::Templates;

/// Registers that the check of the shard may use, best first. None of them holds an argument: an argument register may be dead for the
/// function and yet be read by a snippet.
const PREFERRED: [Gpr; 3] = [Gpr(0), Gpr(10), Gpr(11)];

/// Number of words in the red zone, the 128 bytes below the stack pointer that signal handlers leave alone.
pub(crate) const RED_ZONE_WORDS: u8 = 16;

/// Writer for the code of points, one after the other.
pub(crate) struct Builder<'a> {
    pub env: &'a Environment,
    pub arena: &'a mut Arena,
    /// Whether code is placed where the processor runs it best; otherwise it is packed.
    pub align: bool,
    pub block: CodeBuffer,
    pub plan: PatchPlan,
    pub templates: Templates<'a>,
}

/// Addresses of the parts of a point's code.
struct Layout {
    base: u64,
    /// End of the function's own instructions that run before the point's instruction.
    begin: u64,
    slot: Slot,
    leave: u64,
    tail: u64,
    tail_end: u64,
    /// First byte after the code of the point itself.
    own_end: u64,
    stubs: Vec<u64>,
    /// Displaced instructions that a thread may be about to execute: original address and address of the copy. For the point's own
    /// instruction, the second address is `begin`, before the snippets.
    copies: Vec<PcMove>,
    /// Displaced instructions that other points may need: each with the addresses of its copy and of the code after the copy.
    inner: Vec<(Displaced, u64, u64)>,
    minis: Vec<MiniParts>,
}

impl Layout {
    /// Cost of the base trampoline, with the jumps to it and home.
    fn cost(&self, block: &CodeBuffer, head: &ChosenSpringboard) -> Cost {
        let pieces = [(self.begin, self.slot.at), (self.leave, self.tail)];
        let own: Cost = pieces.into_iter().map(|(from, until)| block.cost(from, until)).sum();
        let springboard = if matches!(head.form, SpringboardForm::Short(_)) { 2 } else { 1 };
        own + Cost::jumps(springboard + u32::from(!head.ends()))
    }

    /// Fields that may be written while the code is live: address of the first byte, and length.
    fn live_fields(&self) -> impl Iterator<Item = (u64, u64)> {
        // In a crowd, gaps keep the other links within a page.
        let bound = if is_crowd(self.minis.len()) { 1 } else { self.minis.len() };
        let links = self.minis.iter().take(bound).map(|m| (m.link, LINK));
        // The field is a springboard, or the last four bytes of a jump.
        let inner = self.inner.iter().map(|(_, copy, behind)| (*copy, SPRINGBOARD.max(behind - copy)));
        std::iter::once((self.slot.at, slot::LEN)).chain(links).chain(inner)
    }
}

/// Decisions about a point, made before any byte is written.
struct PointDesign<'a> {
    head: &'a ChosenSpringboard,
    kind: PointKind,
    /// Whether snippets run before all displaced instructions.
    springboard_first: bool,
    redirects: &'a [Redirect],
    frame: BaseState,
    save: Save,
    slow: Option<u64>,
    minis: &'a [Compiled<'a>],
}

/// Number of snippets of a point up to which a place without gaps is searched.
const CROWD: usize = 64;

/// Whether a point has so many snippets that no address may suit all of their links, so that gaps keep each link within a page.
fn is_crowd(snippets: usize) -> bool {
    snippets > CROWD
}

/// Registers and flags that the base trampoline saves on the stack.
#[derive(Clone, Copy)]
struct Save {
    scratch: bool,
    flags: bool,
    /// rax and the flags, at a point where rax is the function's result. The code uses lahf and seto, which take a fifth of the time of
    /// pushf and popf.
    result: bool,
    /// The red zone, below which the other words are pushed.
    red_zone: bool,
}

impl Save {
    fn words(self) -> u8 {
        let red_zone = if self.red_zone { RED_ZONE_WORDS } else { 0 };
        u8::from(self.scratch) + u8::from(self.flags) + 2 * u8::from(self.result) + red_zone
    }

    /// The registers and flags to save at a site, where the check of the shard uses `r`.
    fn at(site: &Site, r: Option<Gpr>) -> Save {
        let none = Save { scratch: false, flags: false, result: false, red_zone: false };
        let (taken, flags) = (r.is_some_and(|r| !site.scratch().contains(&r)), !site.are_flags_free());
        match site.kind {
            SiteKind::Entry { .. } => Save { scratch: taken, flags, ..none },
            SiteKind::Exit { .. } | SiteKind::CallBefore | SiteKind::CallAfter { .. } => Save { result: true, ..none },
            SiteKind::Block { .. } | SiteKind::Edge { .. } => {
                Save { scratch: taken && !flags, result: flags, red_zone: true, ..none }
            }
        }
    }
}

impl<'a> Builder<'a> {
    pub fn new(env: &'a Environment, arena: &'a mut Arena, align: bool) -> Self {
        let (block, plan, templates) = (CodeBuffer::default(), PatchPlan::default(), Templates::default());
        Builder { env, arena, align, block, plan, templates }
    }

    /// Writes the slow routine that a point at a site needs, unless this arena has it.
    pub fn share(&mut self, site: &Site) -> Result<(), EmitError> {
        self.register(site).map_or(Ok(()), |r| self.slow(r).map(drop))
    }

    /// Register that the check of the shard uses; `None` with locked counters.
    fn register(&self, site: &Site) -> Option<Gpr> {
        let spare = PREFERRED.into_iter().find(|r| site.scratch().contains(r)).unwrap_or(Gpr(0));
        (self.env.identity != ThreadIdentity::Locked).then_some(spare)
    }

    /// Writes the code of a point, and adds the writes to text that lead to it.
    pub fn build(
        &mut self,
        head: &ChosenSpringboard,
        redirects: &[Redirect],
        request: &PointRequest<'a>,
    ) -> Result<WovenPoint, EmitError> {
        let site = request.site;
        let r = self.register(site);
        let save = Save::at(site, r);
        let slow = r.map(|r| self.slow(r)).transpose()?;
        let function = StackView { moving: site.moving, ..StackView::FUNCTION };
        let (home, stack) = match (site.point_kind(), head.displaced.last()) {
            (PointKind::CallBefore, Some(call)) if head.is_called() => {
                (call.callee().map_or(Back::StepOut, Back::To), StackView::CALLED)
            }
            (PointKind::CallBefore, _) if head.probe.is_some_and(|probe| probe.holds == Held::Called) => {
                (Back::To(head.point), StackView::CALLED)
            }
            (PointKind::CallBefore | PointKind::CallAfter, _) => (Back::To(head.point), StackView::CALLING),
            _ => (Back::To(head.point), function),
        };
        let frame = BaseState {
            home,
            stack,
            private: r.zip(slow.as_ref().map(|s| s.walk.0)),
            rax_free: save.scratch || save.result || site.scratch().contains(&Gpr(0)),
            pushed: save.words(),
        };
        let compile = |m: &MiniRequest<'a>| mini::compile(self.env, &frame, m, &mut self.templates);
        let minis = request.minis.iter().map(compile).collect::<Result<Vec<_>, _>>()?;
        minis.iter().try_for_each(|m| m.routines(self.env, self.arena, &mut self.plan.code))?;
        let slow_at = slow.as_ref().map(|s| s.range.start.0);
        let springboard_first = site.arrival().is_some();
        let design = PointDesign {
            head,
            kind: site.point_kind(),
            springboard_first,
            redirects,
            frame,
            save,
            slow: slow_at,
            minis: &minis,
        };

        // The code will be about as long as the last point's; a hole that is too small is not worth a trial.
        let about = self.block.bytes.len() as u64;
        let mut at =
            self.arena.place(about, |a| a).or_else(|| self.arena.place(0, |a| a)).ok_or(EmitError::ArenaFull)?;
        let (mut room, mut rounds) = (0, 0..ROUNDS);
        let layout = loop {
            rounds.next().ok_or(EmitError::ArenaFull)?;
            self.block.restart(at);
            let layout = self.emit(&design)?;
            let begins = (self.align && !is_crowd(design.minis.len())).then(|| {
                let mut branches = Branches::default();
                branches.add(&self.block, layout.base, layout.tail_end);
                branches.best_start(at, layout.base)
            });
            let fits = |place: &u64| !layout.live_fields().any(|(field, len)| straddles(place + (field - at), len));
            let best = |place: &u64| begins.is_none_or(|begins| place % WINDOW == begins) && fits(place);
            // Long code may have so many live fields that no place in a page is the best, or even valid.
            let somewhere = |right: &dyn Fn(&u64) -> bool| (0..PAGE).any(|place| right(&place));
            let right: &dyn Fn(&u64) -> bool = match somewhere(&best) {
                true => &best,
                false if somewhere(&fits) => &fits,
                false => return Err(EmitError::OutOfReach),
            };
            let adjust = |start: u64| (start..start.saturating_add(PAGE)).find(right).unwrap_or(start);
            room = self.block.bytes.len().max(room);
            let place = self.arena.place(room as u64, adjust).ok_or(EmitError::ArenaFull)?;
            if place == at {
                break layout;
            }
            at = place;
        };
        let writes = self.plan.text.len();
        let point = self.woven(head, redirects, request, &design, &layout, slow.map(|s| s.range));
        // Some writes may reach their target when others do not.
        let point = point.inspect_err(|_| self.plan.text.truncate(writes))?;
        self.arena.take(at, self.block.bytes.len() as u64);
        self.keep_code();
        Ok(point)
    }

    /// Slow routine for `r`; it is written now if this arena has none yet.
    pub(crate) fn slow(&mut self, r: Gpr) -> Result<SlowRoutine, EmitError> {
        if let Some(slow) = self.arena.slow(r) {
            return Ok(slow.clone());
        }
        self.arena.may_share()?;
        let code = slow::assemble(self.env, r)?;
        let len = code.bytes.len() as u64;
        let at = self.arena.place(len + 32, |a| a.next_multiple_of(16)).ok_or(EmitError::ArenaFull)?;
        let slow = SlowRoutine { range: Avma(at)..Avma(at + len), walk: Avma(at + code.second) };
        self.arena.take(at, len);
        if let Some(entry) = self.arena.slow.get_mut(usize::from(r.0)) {
            *entry = Some(slow.clone());
        }
        self.block.restart(at);
        self.block.put_unit(&code.bytes);
        self.keep_code();
        Ok(slow)
    }

    /// Adds the block to the plan's code. If the last piece ends a few bytes before the block, the two become one piece.
    fn keep_code(&mut self) {
        let block = &self.block;
        if let Some(last) = self.plan.code.last_mut() {
            let end = last.at.0 + last.bytes.len() as u64;
            if (end..end + 5).contains(&block.at) {
                // No other code is shorter than five bytes, so the gap belongs to nothing.
                last.bytes.resize((block.at - last.at.0) as usize, 0xcc);
                last.bytes.extend_from_slice(&block.bytes);
                return;
            }
        }
        self.plan.code.push(ArenaCode { at: Avma(block.at), bytes: block.bytes.clone() });
    }

    /// Writes the code of a point at the current address.
    fn emit(&mut self, d: &PointDesign<'_>) -> Result<Layout, EmitError> {
        let block = &mut self.block;
        let back = d.frame.back();
        let (slow, slow_lea) = emit_slow_path(block, d)?;
        let base = block.here();
        let mut copied = CopiedInstructions::before(block, d.head)?;
        let begin = block.here();
        emit_raise(block, d.head);
        if !d.springboard_first && !d.head.is_called() && !d.head.behind().is_empty() {
            copied.moves.push(PcMove { from: Avma(d.head.point), to: Avma(begin) });
        }
        emit_save(block, d)?;
        let child = emit_owner_check(block, d, self.env, slow)?;
        let at = block.here();
        let only = match d.minis {
            [only] => only.as_count(),
            _ => None,
        };
        let behind = at + slot::LEN;
        let holds = only.map_or(Holds::Link(behind), Holds::Count);
        let slot = Slot { at, private: d.frame.private.is_some(), leave: behind, holds };
        slot.emit(block, back)?;
        if let Some(field) = slow_lea {
            block.patch_relative(field, at)?;
        }
        let chained = || d.minis.iter().filter(|_| only.is_none());
        let mut minis: Vec<MiniParts> = Vec::with_capacity(d.minis.len());
        for code in chained() {
            let start = block.here();
            let mut parts = mini::emit(&d.frame, self.arena, code, block)?;
            if let Some(before) = minis.last().filter(|_| is_crowd(d.minis.len()) && straddles(parts.link, LINK)) {
                // The link before leads over a gap.
                block.take_back(start);
                block.put(&[0xcc; LINK as usize][..(PAGE - parts.link % PAGE) as usize], Back::StepOut);
                parts = mini::emit(&d.frame, self.arena, code, block)?;
                block.set_link(before.link, parts.start)?;
            }
            minis.push(parts);
        }
        let leave = block.here();
        if leave != behind {
            block.patch_relative(at + slot::OPCODE, leave)?;
        }
        if let Some(field) = child {
            block.patch_relative(field, leave)?;
        }
        emit_restore(block, d);
        let tail_begins = |bytes: &[u8]| d.head.displaced.first().is_some_and(|first| first.bytes().starts_with(bytes));
        if block.here() == leave && (tail_begins(&COUNT[..4]) || tail_begins(&MARKER)) {
            // The slow routine tells snippets from the tail by their first bytes.
            block.put(&[0x90], back);
        }
        let tail = block.here();
        let own = |target: u64| d.springboard_first && d.head.begins(d.kind, target);
        let resolve = |target: u64| if own(target) { tail } else { target };
        copied.emit_tail(block, d, &resolve)?;
        let tail_end = block.here();
        let stubs = copied.emit_displaced_ranges(block, d.redirects, &resolve)?;
        let own_end = block.here();
        for (code, parts) in chained().zip(&mut minis) {
            mini::emit_aside(&d.frame, self.arena, code, parts, block)?;
        }
        let CopiedInstructions { moves: copies, inner } = copied;
        Ok(Layout { base, begin, slot, leave, tail, tail_end, own_end, stubs, copies, inner, minis })
    }

    /// Returns the woven point. Adds the writes to text, the moves of threads, and the records that undo them.
    fn woven(
        &mut self,
        head: &ChosenSpringboard,
        redirects: &[Redirect],
        request: &PointRequest<'_>,
        design: &PointDesign<'_>,
        layout: &Layout,
        slow: Option<AvmaRange>,
    ) -> Result<WovenPoint, EmitError> {
        let reach = |bytes: Option<[u8; 5]>| bytes.ok_or(EmitError::OutOfReach);
        let block = &self.block;
        let (mut removed_moves, mut step_out) = block.exits(block.at, layout.own_end);
        let (offset, springboard) = head.form.write(head.at, layout.base).ok_or(EmitError::OutOfReach)?;
        let stays = head.at.wrapping_sub(request.site.at.to_avma(request.bias).0);
        let old = request.site.bytes.get((stays + offset) as usize..).unwrap_or_default();
        let writes = &mut self.plan.text;
        if let Some(probe) = head.probe {
            // The copy of the function is removed as a whole, so the point's removal need not restore it.
            writes.push(probe.leading(Avma(layout.base)).ok_or(EmitError::OutOfReach)?);
            self.plan.moves.extend(probe.passed().map(|from| PcMove { from, to: Avma(layout.base) }));
        }
        if let Some(host) = head.host {
            // This write is not part of the point's removal, because the host's code is removed together with the point.
            writes.push(text_write(head.at, &host.bytes, &springboard));
        }
        let first_write = writes.len();
        let in_text = head.host.is_none() && head.probe.is_none();
        if in_text {
            writes.push(text_write(head.at + offset, old, &springboard));
        }
        if let SpringboardForm::Short(island) = head.form {
            writes.push(text_write(island.at, &island.old, &reach(jmp_bytes(island.at, layout.base))?));
            removed_moves.push(PcMove { from: Avma(island.at), to: Avma(head.at) });
        }
        removed_moves.extend(redirect_writes(redirects, head, layout, writes)?);
        let text = writes.iter().skip(first_write).map(TextWrite::inverse).collect();
        step_out.extend(slow);
        // A thread between two displaced instructions moves to their copies, and a thread before the first one takes the springboard. If
        // the function's own branches lead to the first one, a thread there may have arrived by such a branch, which is not a call. So it
        // moves to the tail, past the snippets.
        let looped = design.springboard_first && !request.site.back_branches().is_empty();
        // A thread behind a first instruction that stays in place has begun the call, so it moves past the snippets too.
        let own = (!looped).then_some(head.start());
        let first = |m: &PcMove| redirects.iter().filter_map(Redirect::first).chain(own).any(|at| at == m.from.0);
        if in_text {
            self.plan.moves.extend(layout.copies.iter().filter(|m| !first(m)));
            let marker =
                looped && head.begins(request.site.point_kind(), head.function) && head.function != head.start();
            self.plan.moves.extend(marker.then_some(PcMove { from: Avma(head.function), to: Avma(layout.tail) }));
        }
        let chain = layout.minis.iter().zip(request.minis.iter().zip(design.minis));
        let chain =
            chain.map(|(parts, (m, compiled))| WovenMini::in_chain(self.env, m.id, compiled, parts, true, block));
        let minis = match (layout.slot.holds, request.minis) {
            (Holds::Count(counter), [only]) => vec![WovenMini::in_slot(only.id, counter, layout.slot.cost())],
            _ => chain.collect(),
        };
        let removal =
            RemovalRecord { text, moves: removed_moves, step_out, code: Avma(block.at)..Avma(layout.own_end) };
        let point = WovenPoint {
            kind: request.site.point_kind(),
            resume: match design.frame.home {
                Back::To(at) => Some(Avma(at)),
                Back::StepOut => None,
            },
            stack: design.frame.stack,
            at: Avma(head.at),
            function: Avma(head.function),
            first: head.first.clone(),
            base: Avma(layout.base),
            slot: Avma(layout.slot.at),
            leave: Avma(layout.leave),
            tail: Avma(layout.tail),
            tail_end: Avma(layout.tail_end),
            home: Avma(head.home()),
            returns_to: returns_to(request),
            scratch: design.frame.private.map(|(r, _)| r),
            rax_free: design.frame.rax_free,
            pushed: design.frame.pushed,
            cost: layout.cost(block, head),
            minis,
            inner: layout.inner.iter().filter_map(|copied| inner_of(block, copied)).collect(),
            host: head.host,
            probe: head.probe,
            redirected: Vec::new(),
            rooms: redirects.iter().filter(|d| d.makes_room()).filter_map(Redirect::first).map(Avma).collect(),
            removal,
        };
        Ok(point)
    }
}

/// Adds the writes of redirected branches to `writes`. Returns the resume addresses of threads in their islands after the removal of the
/// point.
fn redirect_writes(
    redirects: &[Redirect],
    head: &ChosenSpringboard,
    layout: &Layout,
    writes: &mut Vec<TextWrite>,
) -> Result<Vec<PcMove>, EmitError> {
    let reach = |bytes: Option<[u8; 5]>| bytes.ok_or(EmitError::OutOfReach);
    let mut moves = Vec::new();
    let mut stubs = layout.stubs.iter();
    for redirect in redirects {
        match redirect {
            Redirect::Retarget { field, old } => {
                let jump = reach(jmp_bytes(field.wrapping_sub(1), layout.tail))?;
                writes.push(text_write(*field, old, &jump[1..]));
            }
            Redirect::Hop { field, old, island } => {
                let disp =
                    i8::try_from(island.at.wrapping_sub(field + 1).cast_signed()).map_err(|_| EmitError::OutOfReach)?;
                writes.push(text_write(*field, &[*old], &[disp.cast_unsigned()]));
                writes.push(text_write(island.at, &island.old, &reach(jmp_bytes(island.at, layout.tail))?));
                moves.push(PcMove { from: Avma(island.at), to: Avma(head.at) });
            }
            // `Weaver::lead` rewrites the copy after all points are written.
            Redirect::InCopy { .. } => {}
            Redirect::Displace { displaced, old, .. } => {
                let (Some(first), Some(stub)) = (displaced.first(), stubs.next()) else { continue };
                writes.push(text_write(first.at, old, &reach(jmp_bytes(first.at, *stub))?));
            }
        }
    }
    Ok(moves)
}

/// Describes the copy of an instruction for other points; `None` if the copy is shorter than a springboard.
fn inner_of(block: &CodeBuffer, (displaced, copy, next_at): &(Displaced, u64, u64)) -> Option<DisplacedCopy> {
    let offset = usize::try_from(copy - block.at).ok()?;
    let bytes = *block.bytes.get(offset..)?.first_chunk()?;
    let next = displaced.condition().map(|_| (Avma(displaced.next()), Avma(*next_at)));
    let leads = match displaced.is_branch() {
        true => {
            let field = block.between(next_at - 4, *next_at).first_chunk::<4>()?;
            Some(Avma(next_at.wrapping_add_signed(i64::from(i32::from_le_bytes(*field)))))
        }
        false => None,
    };
    Some(DisplacedCopy { original: Avma(displaced.at), copy: Avma(*copy), bytes, leads, next })
}

/// Copied instructions: moves of threads from the originals to the copies, and copies that other points may need.
struct CopiedInstructions {
    moves: Vec<PcMove>,
    /// Each original with the addresses of its copy and of the code after the copy.
    inner: Vec<(Displaced, u64, u64)>,
}

impl CopiedInstructions {
    /// Copies the displaced instructions before the point.
    fn before(block: &mut CodeBuffer, head: &ChosenSpringboard) -> Result<Self, EmitError> {
        let mut copied = CopiedInstructions { moves: Vec::with_capacity(head.displaced.len()), inner: Vec::new() };
        for displaced in head.before() {
            // A branch before the point leaves without passing the point.
            copied.copy(block, displaced, |target| target)?;
        }
        Ok(copied)
    }

    /// Copies an instruction, and adds a move of threads to the copy. The copy of a branch can be redirected later.
    fn copy(
        &mut self,
        block: &mut CodeBuffer,
        displaced: &Displaced,
        resolve: impl Fn(u64) -> u64,
    ) -> Result<(), EmitError> {
        let copy = block.here();
        self.moves.push(PcMove { from: Avma(displaced.at), to: Avma(copy) });
        relocate::emit(displaced, resolve, block)?;
        self.inner.extend(displaced.is_branch().then(|| (*displaced, copy, block.here())));
        Ok(())
    }

    /// Copies the point's instruction and the displaced instructions after it, then jumps home.
    fn emit_tail(
        &mut self,
        block: &mut CodeBuffer,
        d: &PointDesign<'_>,
        resolve: &impl Fn(u64) -> u64,
    ) -> Result<(), EmitError> {
        let leaves_if = d.head.leaves_if(d.kind);
        for (n, displaced) in d.head.behind().iter().enumerate() {
            match leaves_if {
                None if d.head.is_called() => relocate::emit_callee(displaced, block)?,
                Some((_, target)) => block.jmp(resolve(target), Back::To(d.head.in_text(target)))?,
                None => {
                    let copy = block.here();
                    if d.springboard_first || n > 0 {
                        self.moves.push(PcMove { from: Avma(displaced.at), to: Avma(copy) });
                    }
                    relocate::emit(displaced, resolve, block)?;
                    if d.springboard_first && displaced.may_be_point() {
                        // A springboard over this copy needs five bytes.
                        while block.here() < copy + SPRINGBOARD {
                            block.put(&[0xcc], Back::To(displaced.at));
                        }
                        self.inner.push((*displaced, copy, block.here()));
                    }
                }
            }
        }
        if !d.head.ends() && leaves_if.is_none() {
            block.jmp(d.head.home(), Back::To(d.head.in_text(d.head.home())))?;
        }
        Ok(())
    }

    /// Copies the displaced ranges of redirected branches and islands. Returns the address of each copy.
    fn emit_displaced_ranges(
        &mut self,
        block: &mut CodeBuffer,
        redirects: &[Redirect],
        resolve: &impl Fn(u64) -> u64,
    ) -> Result<Vec<u64>, EmitError> {
        let mut stubs = Vec::new();
        for redirect in redirects {
            let Redirect::Displace { displaced, .. } = redirect else { continue };
            stubs.push(block.here());
            for i in displaced {
                self.copy(block, i, resolve)?;
            }
            if let Some(last) = displaced.last().filter(|last| !last.ends) {
                block.jmp(last.next(), Back::To(last.next()))?;
            }
        }
        Ok(stubs)
    }
}

/// Writes the jump to the slow routine. Returns its address, and the address of the field for the address of the slot.
fn emit_slow_path(block: &mut CodeBuffer, d: &PointDesign<'_>) -> Result<(u64, Option<u64>), EmitError> {
    let (slow, back) = (block.here(), d.frame.back());
    let (Some((r, _)), Some(routine)) = (d.frame.private, d.slow) else { return Ok((slow, None)) };
    block.lea(r, slow, back)?;
    let field = block.here() - 4;
    block.jmp(routine, back)?;
    Ok((slow, Some(field)))
}

/// Takes back the effect on the stack pointer of a first instruction that stays in place. A thread that has not executed this resumes at the
/// springboard.
fn emit_raise(block: &mut CodeBuffer, head: &ChosenSpringboard) {
    let lowers = head.first.as_ref().map_or(0, FirstInstruction::lowers);
    if lowers == 0 {
        return;
    }
    let back = Back::To(head.at);
    // lea rsp, [rsp + lowers], which changes no flags
    match i8::try_from(lowers) {
        Ok(lowers) => block.put(&[0x48, 0x8d, 0x64, 0x24, lowers.cast_unsigned()], back),
        Err(_) => {
            let [a, b, c, d] = lowers.to_le_bytes();
            block.put(&[0x48, 0x8d, 0xa4, 0x24, a, b, c, d], back);
        }
    }
}

/// Writes the branch past a conditional exit that is not taken, and saves the registers and flags that snippets change.
fn emit_save(block: &mut CodeBuffer, d: &PointDesign<'_>) -> Result<(), EmitError> {
    let back = d.frame.back();
    let mut first = d.frame.home;
    if let Some((condition, _)) = d.head.leaves_if(d.kind) {
        block.put_relative(&[0x0f, 0x80 | condition ^ 1], d.head.stays(), first)?;
    }
    if d.save.red_zone {
        // lea rsp, [rsp - 128], which changes no flags
        block.put(&[0x48, 0x8d, 0x64, 0x24, 0x80], std::mem::replace(&mut first, back));
    }
    if d.save.flags {
        block.put(&[0x9c], std::mem::replace(&mut first, back));
    }
    if d.save.scratch {
        block.push_pop(0x50, Gpr(0), first);
    }
    if d.save.result {
        block.push_pop(0x50, Gpr(0), first);
        block.put(&[0x9f], back);
        block.put(&[0x0f, 0x90, 0xc0], back);
        block.push_pop(0x50, Gpr(0), back);
    }
    Ok(())
}

/// Writes the check that the gs base leads to this thread's shard. With locked counters, the check is for a fork child instead, and the
/// result is the address of the displacement of the branch for a fork child.
fn emit_owner_check(
    block: &mut CodeBuffer,
    d: &PointDesign<'_>,
    env: &Environment,
    slow: u64,
) -> Result<Option<u64>, EmitError> {
    let (data, back) = (&env.data, d.frame.back());
    let owner = data.displacement(ingraft_model::layout::OWNER);
    match (env.identity, d.frame.private) {
        (ThreadIdentity::FsOffset(offset), Some((r, _))) => {
            block.segment_absolute(0x64, 0x8b, r, false, offset, back);
            block.segment_absolute(0x65, 0x39, r, false, owner, back);
            block.jcc_short(5, slow, back)?;
        }
        (ThreadIdentity::FsBase, Some((r, _))) => {
            block.cmp_zero(data.alive(), back);
            block.jcc_short(4, slow, back)?;
            block.put(&[0xf3, 0x48 | r.0 >> 3, 0x0f, 0xae, 0xc0 | (r.0 & 7)], back);
            block.segment_absolute(0x65, 0x39, r, true, owner, back);
            block.jcc_short(5, slow, back)?;
        }
        (_, _) => {
            block.cmp_zero(data.alive(), back);
            let je = block.here();
            block.put_relative(&[0x0f, 0x84], je, back)?;
            return Ok(Some(block.here() - 4));
        }
    }
    Ok(None)
}

/// Restores the registers and flags that [`emit_save`] has saved.
fn emit_restore(block: &mut CodeBuffer, d: &PointDesign<'_>) {
    let back = d.frame.back();
    if d.save.result {
        block.push_pop(0x58, Gpr(0), back);
        block.put(&[0x04, 0x7f], back);
        block.put(&[0x9e], back);
        block.push_pop(0x58, Gpr(0), back);
    }
    if d.save.scratch {
        block.push_pop(0x58, Gpr(0), back);
    }
    if d.save.flags {
        block.put(&[0x9d], back);
    }
    if d.save.red_zone {
        // lea rsp, [rsp + 128]
        block.put(&[0x48, 0x8d, 0xa4, 0x24, 0x80, 0, 0, 0], back);
    }
}

/// Return address of the call before which the point lies; `None` for other points.
fn returns_to(request: &PointRequest<'_>) -> Option<Avma> {
    let site = request.site;
    let before_call = site.kind == SiteKind::CallBefore;
    before_call.then(|| site.at.to_avma(request.bias).offset(i64::from(site.own)))
}
