//! Springboards: the bytes that a springboard overwrites at a point, and the instructions that it displaces.

use ingraft_model::{FirstInstruction, IslandRoom, Offset, PointKind, Refusal, Site, SiteKind};
use rustc_hash::FxHashSet;

use crate::code::block::{USER_END, displacement, jmp_bytes, straddles};
use crate::code::body::{Held, Probe};
use crate::code::environment::Environment;
use crate::code::woven::{DisplacedCopy, WovenPoint};
use crate::patch::back_branches::Redirect;
use crate::patch::relocate::{Displaced, decode, decode_call};
use crate::patch::text_space::{ISLAND, Island, TextSpace};
use crate::patch::weave::PointRequest;

/// Maximum number of bytes that a springboard displaces in order to include a branch of the function to its own entry.
const EXTEND_MAX: u64 = 32;

/// `mov $15, %rax; syscall`, in the two encodings that C libraries use.
const SIGNAL_RETURNS: [&[u8]; 2] = [&[0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0, 0x0f, 0x05], &[0xb8, 0x0f, 0, 0, 0, 0x0f, 0x05]];

/// Form of a springboard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SpringboardForm {
    /// `jmp rel32`.
    Near,
    /// `jmp rel8` to an island with a `jmp rel32`.
    Short(Island),
    /// The call itself, `len` bytes long, changed to call the new code. In a direct call, only the displacement changes.
    Call { len: u8, direct: bool },
}

/// Lengths of calls that a direct call with the same end can replace.
const REPLACEABLE: std::ops::RangeInclusive<u64> = 5..=8;
/// Length of a direct call's displacement, its last bytes.
pub(crate) const DISPLACEMENT: u64 = 4;
/// Prefix that a direct call ignores.
const PADDING: u8 = 0x67;

impl SpringboardForm {
    /// Number of bytes that the springboard itself overwrites.
    pub fn len(self) -> u64 {
        match self {
            SpringboardForm::Near => 5,
            SpringboardForm::Short(_) => 2,
            SpringboardForm::Call { len, .. } => u64::from(len),
        }
    }

    /// Bytes of a springboard at `at` that leads to `target`, with their offset from `at`. For the short form, the bytes lead to the
    /// island. `None` if a jump does not reach.
    pub fn write(self, at: u64, target: u64) -> Option<(u64, Vec<u8>)> {
        match self {
            SpringboardForm::Near => jmp_bytes(at, target).map(|b| (0, b.to_vec())),
            SpringboardForm::Short(island) => {
                let disp = i8::try_from(island.at.wrapping_sub(at + 2).cast_signed()).ok()?;
                Some((0, vec![0xeb, disp.cast_unsigned()]))
            }
            SpringboardForm::Call { len, direct } => {
                let disp = displacement(at + u64::from(len), target)?.to_le_bytes();
                let field = u64::from(len) - DISPLACEMENT;
                if direct {
                    return Some((field, disp.to_vec()));
                }
                let mut bytes = vec![PADDING; usize::try_from(field - 1).ok()?];
                bytes.push(0xe8);
                bytes.extend(disp);
                Some((0, bytes))
            }
        }
    }
}

/// Chosen springboard of one point, and the instructions that it displaces.
#[derive(Clone, Debug)]
pub(crate) struct ChosenSpringboard {
    pub at: u64,
    pub function: u64,
    pub form: SpringboardForm,
    pub displaced: Vec<Displaced>,
    /// Address of the point's instruction, before which snippets run.
    pub point: u64,
    /// Copy of the point's instruction into which the point is woven; `None` unless another point displaces the instruction.
    pub host: Option<DisplacedCopy>,
    /// Place in the copy of the function into which the point is woven; `None` unless the function is copied.
    pub probe: Option<Probe>,
    /// Range that is displaced in addition, to make room for the island.
    pub island_room: Option<Redirect>,
    /// First instruction of the function, if it stays in place before the springboard. It is the first of the displaced ones if it is
    /// repeated.
    pub first: Option<FirstInstruction>,
}

impl ChosenSpringboard {
    /// Displaced instructions that run before the snippets.
    pub fn before(&self) -> &[Displaced] {
        let n = self.displaced.iter().take_while(|d| d.at < self.point).count();
        &self.displaced[..n]
    }

    /// The point's instruction and the displaced instructions after it.
    pub fn behind(&self) -> &[Displaced] {
        &self.displaced[self.before().len()..]
    }

    /// Condition and target of the point's instruction, if it is a conditional jump out of the function.
    pub fn leaves_if(&self, kind: PointKind) -> Option<(u8, u64)> {
        self.behind().first().filter(|_| kind == PointKind::Exit || self.probe.is_some())?.condition()
    }

    /// Whether a branch to `target` leads to the springboard of a point of this kind, so that it must be redirected.
    pub fn begins(&self, kind: PointKind, target: u64) -> bool {
        target == self.at || kind == PointKind::Entry && target == self.function
    }

    /// First byte that the point needs: that of its springboard, or of the first instruction, if that stays in place.
    pub fn start(&self) -> u64 {
        self.at.wrapping_sub(self.first.as_ref().map_or(0, |first| first.len.into()))
    }

    /// First original byte that was not displaced.
    pub fn home(&self) -> u64 {
        match self.probe {
            Some(probe) => probe.next().copy.0,
            None => self.displaced.last().map_or(self.at, Displaced::next),
        }
    }

    /// Resume address in the text of a thread that is about to arrive at `target`, an address in the text or in the copy of the function.
    pub fn in_text(&self, target: u64) -> u64 {
        let way = self.probe.and_then(|probe| probe.ways().find(|way| way.copy.0 == target));
        way.map_or(target, |way| way.original.0)
    }

    /// Address at which a thread continues that does not take a conditional jump out of the function.
    pub fn stays(&self) -> u64 {
        self.host.and_then(|host| host.next).map_or_else(|| self.home(), |(_, copy)| copy.0)
    }

    /// Whether the return address is pushed before the base is reached, because the call itself leads there.
    pub fn is_called(&self) -> bool {
        matches!(self.form, SpringboardForm::Call { .. })
    }

    /// Whether control never continues after the last displaced instruction.
    pub fn ends(&self) -> bool {
        self.displaced.last().is_some_and(|d| d.ends)
    }
}

/// Site of a request, with actual addresses.
#[derive(Clone, Copy)]
pub(crate) struct LocatedSite<'a> {
    pub site: &'a Site,
    pub at: u64,
    pub function: u64,
}

impl<'a> LocatedSite<'a> {
    pub fn new(request: &PointRequest<'a>) -> Self {
        let site = request.site;
        LocatedSite { site, at: site.at.to_avma(request.bias).0, function: site.function.to_avma(request.bias).0 }
    }

    /// Minimum number of bytes to displace. At an entry and after a call: the bytes of the springboard, or more if the analysis advises
    /// it. Elsewhere: all bytes up to the point's instruction, and the instruction itself, unless it is a call with enough room before it.
    fn least(&self, springboard: u64) -> u64 {
        match &self.site.kind {
            SiteKind::Entry { arrival, .. } | SiteKind::CallAfter { arrival } => {
                springboard.max(u64::from(arrival.least))
            }
            SiteKind::CallBefore if u64::from(self.site.point) >= springboard => u64::from(self.site.point),
            SiteKind::CallBefore | SiteKind::Exit { .. } => springboard.max(u64::from(self.site.own)),
            SiteKind::Block { .. } | SiteKind::Edge { .. } => springboard,
        }
    }

    /// Instructions that a springboard of that length displaces.
    fn displaced_by(&self, env: &Environment, springboard: u64) -> Result<Vec<Displaced>, Refusal> {
        let all = self.displace(env, self.least(springboard)).and_then(|all| self.agreeing(all));
        // An entry or a return address does not need the additional bytes, which only help the function's exits.
        if self.site.arrival().is_some() { all.or_else(|_| self.displace(env, springboard)) } else { all }
    }

    /// Checks that the point begins an instruction. Also checks that nothing is displaced after a conditional jump out of the function: a
    /// thread that does not take the jump continues in the text.
    fn agreeing(&self, displaced: Vec<Displaced>) -> Result<Vec<Displaced>, Refusal> {
        let no = |at: u64, why| Err(Refusal::NotDisplaceable { offset: Offset::between(self.function, at), why });
        let behind = displaced.iter().position(|d| d.at >= self.point()).unwrap_or(displaced.len());
        let before = behind.checked_sub(1).and_then(|last| displaced.get(last)).map_or(self.at, Displaced::next);
        if before != self.point() {
            return no(self.point(), "no instruction begins there");
        }
        match displaced.get(behind..) {
            Some([jump, next, ..]) if self.site.point_kind() == PointKind::Exit && jump.condition().is_some() => {
                no(next.at, "it is behind a conditional jump out of the function")
            }
            _ => Ok(displaced),
        }
    }

    /// Address of the point's instruction.
    fn point(&self) -> u64 {
        self.at.wrapping_add(u64::from(self.site.point))
    }

    fn head(&self, form: SpringboardForm, displaced: Vec<Displaced>) -> ChosenSpringboard {
        let point = self.point();
        ChosenSpringboard {
            at: self.at,
            function: self.function,
            form,
            displaced,
            point,
            host: None,
            probe: None,
            island_room: None,
            first: None,
        }
    }

    /// The springboard behind the first instruction, if that is to stay in place.
    fn head_behind(
        &self,
        first: Option<&FirstInstruction>,
        form: SpringboardForm,
        displaced: Vec<Displaced>,
    ) -> ChosenSpringboard {
        let head = self.head(form, displaced);
        ChosenSpringboard { at: self.at + repeated_len(first), first: first.cloned(), ..head }
    }

    /// The first instruction that stays in place under a springboard of this width. Fails if one must stay and cannot.
    fn staying<'r>(width: AllowedForms, request: &PointRequest<'r>) -> Result<Option<&'r FirstInstruction>, Refusal> {
        match (request.site.first_instruction(), width) {
            (None, _) => Ok(None),
            (Some(first), AllowedForms::Exposed) if first.must_stay => Err(Refusal::ExposedToUprobes),
            (Some(_), AllowedForms::Exposed) => Ok(None),
            (Some(first), AllowedForms::Near | AllowedForms::Any) => {
                let spoilt = request.minis.iter().any(|m| first.spoils(m.snippet));
                if spoilt { Err(Refusal::ArgumentOverwritten) } else { Ok(Some(first)) }
            }
        }
    }

    /// Makes room for an island that is in reach of a jump of two bytes which ends at `end`. Returns the island and the displaced range.
    pub fn make_room(
        &self,
        env: &Environment,
        text: &mut TextSpace,
        end: u64,
        name: &str,
    ) -> Option<(Island, Redirect)> {
        self.site.island_rooms.iter().find_map(|room| make_room(env, text, self, room, end, name))
    }

    /// Offset from `at` of the first address in `at+1 .. at+len` where control can arrive from elsewhere.
    fn landing_within(&self, len: u64) -> Option<u64> {
        let first = self.site.landings.partition_point(|l| l.0 <= self.site.at.0);
        let offset = self.site.landings.get(first)?.0 - self.site.at.0;
        (offset < len).then_some(offset)
    }

    /// Decodes whole instructions that cover at least `needed` bytes. If the function ends before that, padding covers the rest.
    fn displace(&self, env: &Environment, needed: u64) -> Result<Vec<Displaced>, Refusal> {
        let bytes = &self.site.bytes;
        let own = usize::from(self.site.own).min(bytes.len());
        if let Some(offset) = self.landing_within(needed) {
            return Err(if offset >= own as u64 {
                Refusal::TooShort { available: offset as u32, next: "the end of the function" }
            } else {
                Refusal::BranchIntoSpringboard { offset: Offset::between(self.function, self.at + offset) }
            });
        }
        let mut displaced = Vec::with_capacity(4);
        let mut covered = 0usize;
        while (covered as u64) < needed {
            let at = self.at.wrapping_add(covered as u64);
            let ended = displaced.last().is_some_and(|d: &Displaced| d.ends);
            if ended && covered >= own && bytes.len() as u64 >= needed {
                return Ok(displaced);
            }
            if ended || covered >= own {
                let next = if covered < own { "code that something else may reach" } else { "the end of the function" };
                return Err(Refusal::TooShort { available: covered as u32, next });
            }
            let d = decode(&bytes[covered..own], at, self.function, env.shadow_stack)?;
            covered += d.bytes().len();
            displaced.push(d);
        }
        let is_inside = |to: &u64| *to > self.at && *to < self.at + covered as u64;
        if let Some(to) = displaced.iter().filter_map(Displaced::branch_target).find(is_inside) {
            let offset = Offset::between(self.function, to);
            return Err(Refusal::BranchIntoSpringboard { offset });
        }
        Ok(displaced)
    }
}

/// Springboard of a point that is woven into the copy of its instruction, because another point displaces the instruction.
pub(crate) fn within(
    env: &Environment,
    request: &PointRequest<'_>,
    host: Option<&WovenPoint>,
) -> Result<ChosenSpringboard, Refusal> {
    let place = LocatedSite::new(request);
    let point = place.point();
    let inner = host.filter(|host| place.function == host.function.0);
    let Some(inner) = inner.and_then(|host| host.inner.iter().find(|inner| inner.original.0 == point)) else {
        let offset = Offset::between(place.function, point);
        return Err(Refusal::NotDisplaceable { offset, why: "no other point of the function takes it along" });
    };
    let own = request.site.bytes.get(usize::from(request.site.point)..).unwrap_or_default();
    let displaced = decode(own, point, place.function, env.shadow_stack)?;
    let head = place.head(SpringboardForm::Near, vec![displaced]);
    Ok(ChosenSpringboard { at: inner.copy.0, host: Some(*inner), ..head })
}

/// Springboard of a point that is woven into the copy of its function.
pub(crate) fn at_probe(request: &PointRequest<'_>, probe: Probe) -> ChosenSpringboard {
    let place = LocatedSite::new(request);
    let jump = match probe.holds {
        Held::Nop | Held::Called | Held::Point(_) => None,
        Held::Jump(to) => Some(Displaced::jump(probe.original.0, to.copy.0)),
        Held::Branch(to, _) => Some(Displaced::branch(probe.original.0, probe.bytes, to.copy.0)),
    };
    let head = place.head(SpringboardForm::Near, jump.into_iter().collect());
    ChosenSpringboard { at: probe.copy.0, point: probe.original.0, probe: Some(probe), ..head }
}

/// Forms of springboards to try.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AllowedForms {
    /// Five bytes only.
    Near,
    /// Five bytes, or two bytes and an island.
    Any,
    /// As `Any`, but over a first instruction that could stay in place.
    Exposed,
}

/// Chooses the springboard of a point and takes its bytes of text. The springboard displaces none of the instructions at `keep`.
pub(crate) fn choose(
    env: &Environment,
    text: &mut TextSpace,
    request: &PointRequest<'_>,
    width: AllowedForms,
    keep: &FxHashSet<u64>,
) -> Result<ChosenSpringboard, Refusal> {
    let place = LocatedSite::new(request);
    if place.at >= USER_END {
        return Err(Refusal::BeyondUserSpace);
    }
    if SIGNAL_RETURNS.iter().any(|bytes| request.site.bytes.starts_with(bytes)) {
        return Err(Refusal::SignalReturn);
    }
    let is_call = request.site.kind == SiteKind::CallBefore && request.site.point == 0;
    if is_call && let Some(chosen) = choose_call(text, &place, request.name) {
        return chosen;
    }
    let first = LocatedSite::staying(width, request)?;
    let behind = request.behind(first);
    let request = &request.at(behind.as_deref());
    let place = LocatedSite::new(request);
    let near = choose_near(env, text, &place, first, keep, request.name);
    match near {
        Ok(head) => Ok(head),
        Err(why) if width == AllowedForms::Near => Err(why),
        Err(why) => choose_short(env, text, &place, first, keep, request.name).map_err(|_| why),
    }
}

/// Uses the call itself as the springboard, if possible.
fn choose_call(
    text: &mut TextSpace,
    place: &LocatedSite<'_>,
    name: &str,
) -> Option<Result<ChosenSpringboard, Refusal>> {
    let own = place.site.bytes.get(..usize::from(place.site.own))?;
    let call = decode_call(own, place.at, place.function).ok()?;
    let (len, direct) = (call.bytes().len() as u64, call.callee().is_some());
    let (first, written) = if direct { (len.checked_sub(DISPLACEMENT)?, DISPLACEMENT) } else { (0, len) };
    if !REPLACEABLE.contains(&len) || straddles(place.at + first, written) || place.landing_within(len).is_some() {
        return None;
    }
    let taken = text.take(place.at, place.at + len, name).map_err(|other| Refusal::Overlap { other });
    Some(taken.map(|()| place.head(SpringboardForm::Call { len: len as u8, direct }, vec![call])))
}

/// Number of bytes of a first instruction that stays in place and is displaced nevertheless.
fn repeated_len(first: Option<&FirstInstruction>) -> u64 {
    first.filter(|first| !first.runs_once()).map_or(0, |first| u64::from(first.len))
}

fn choose_near(
    env: &Environment,
    text: &mut TextSpace,
    place: &LocatedSite<'_>,
    first: Option<&FirstInstruction>,
    keep: &FxHashSet<u64>,
    name: &str,
) -> Result<ChosenSpringboard, Refusal> {
    let (stays, len) = (repeated_len(first), SpringboardForm::Near.len());
    let displaced = place.displaced_by(env, stays + len)?;
    if straddles(place.at + stays, len) {
        return Err(Refusal::StraddlesPages);
    }
    take(env, text, place, place.head_behind(first, SpringboardForm::Near, displaced), keep, name)
}

fn choose_short(
    env: &Environment,
    text: &mut TextSpace,
    place: &LocatedSite<'_>,
    first: Option<&FirstInstruction>,
    keep: &FxHashSet<u64>,
    name: &str,
) -> Result<ChosenSpringboard, Refusal> {
    let stays = repeated_len(first);
    let end = place.at + stays + 2;
    let displaced = place.displaced_by(env, stays + 2)?;
    if straddles(place.at + stays, 2) {
        return Err(Refusal::StraddlesPages);
    }
    let unknown = SpringboardForm::Short(Island { at: 0, old: [0; 5] });
    let head = take(env, text, place, place.head_behind(first, unknown, displaced), keep, name)?;
    if let Some(island) = text.take_island(end.saturating_sub(128), end + 127, name) {
        return Ok(ChosenSpringboard { form: SpringboardForm::Short(island), ..head });
    }
    if let Some((island, room)) = place.make_room(env, text, end, name) {
        return Ok(ChosenSpringboard { form: SpringboardForm::Short(island), island_room: Some(room), ..head });
    }
    text.release(&(ingraft_model::Avma(place.at)..ingraft_model::Avma(end)));
    Err(Refusal::TooShort { available: 2, next: "the next place where control can arrive" })
}

/// Takes the bytes that a springboard overwrites and those that it leaves dead. Displaces more than necessary if that includes a branch
/// back.
fn take(
    env: &Environment,
    text: &mut TextSpace,
    place: &LocatedSite<'_>,
    head: ChosenSpringboard,
    keep: &FxHashSet<u64>,
    name: &str,
) -> Result<ChosenSpringboard, Refusal> {
    let mut taken = |head: &ChosenSpringboard| {
        if head.displaced.iter().any(|d| keep.contains(&d.at)) {
            return Err(name.to_owned());
        }
        text.take(head.start(), head.home().max(head.at + head.form.len()), name)
    };
    if let Some(displaced) = extended(env, place, &head) {
        let longer = ChosenSpringboard { displaced, ..head.clone() };
        if taken(&longer).is_ok() {
            return Ok(longer);
        }
    }
    taken(&head).map(|()| head).map_err(|other| Refusal::Overlap { other })
}

/// Displaces a range of the function to make room for an island, right after the springboard that leads to the copy of the range. A jump
/// of two bytes that ends at `end` must reach the island.
fn make_room(
    env: &Environment,
    text: &mut TextSpace,
    place: &LocatedSite<'_>,
    room: &IslandRoom,
    end: u64,
    name: &str,
) -> Option<(Island, Redirect)> {
    let at = place.at.wrapping_add(room.at.0.wrapping_sub(place.site.at.0));
    if at >= USER_END {
        return None;
    }
    let island = at + SpringboardForm::Near.len();
    let reached = i8::try_from(island.wrapping_sub(end).cast_signed()).is_ok();
    if !reached || straddles(at, SpringboardForm::Near.len()) || straddles(island, ISLAND) {
        return None;
    }
    let mut displaced: Vec<Displaced> = Vec::new();
    let mut rest = room.bytes.as_slice();
    while !rest.is_empty() {
        let next = displaced.last().map_or(at, Displaced::next);
        let d = decode(rest, next, place.function, env.shadow_stack).ok()?;
        rest = rest.get(d.bytes().len()..)?;
        // Bytes after a jump may not be dead. No branch may lead into the range or to the point itself.
        let end_of_room = at + room.bytes.len() as u64;
        let inside = |t: u64| t > at && t < end_of_room || t == place.at || t == place.function;
        if d.branch_target().is_some_and(inside) || d.ends && !rest.is_empty() {
            return None;
        }
        displaced.push(d);
    }
    let old = *room.bytes.first_chunk()?;
    let island = Island { at: island, old: *room.bytes.get(5..)?.first_chunk()? };
    text.take(at, at + room.bytes.len() as u64, name).ok()?;
    Some((island, Redirect::Displace { displaced, old, makes_room: true }))
}

/// Displaces more than the springboard needs, if that includes a short branch of the function to its own entry. The displaced copy of the
/// branch leads to the tail, so it is not counted.
fn extended(env: &Environment, place: &LocatedSite<'_>, head: &ChosenSpringboard) -> Option<Vec<Displaced>> {
    let ends = place.site.back_branches().iter().filter_map(|b| {
        let end = b.at.0.checked_sub(place.site.at.0)?.checked_add(2).filter(|end| *end <= EXTEND_MAX)?;
        (place.at + end > head.home()).then_some(end)
    });
    let mut best: Option<Vec<Displaced>> = None;
    for end in ends {
        if let Ok(longer) = place.displace(env, end)
            && longer.len() > best.as_ref().unwrap_or(&head.displaced).len()
            && longer.last().is_some_and(|d| d.next() >= place.at + end)
        {
            best = Some(longer);
        }
    }
    best
}
