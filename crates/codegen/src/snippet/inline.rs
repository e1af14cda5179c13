//! Code of a point in the counting copy of its function, where only threads run that own a shard. It stands right at the point, between the
//! copied instructions.
//!
//! The code first looks whether everything is as usual, and then does it: the stack of activation records has room and no stale record, the
//! record of the call is the last one, the key is at its place. If anything is not, the thread has changed nothing yet, and goes to the probe in
//! the ordinary copy, where the whole code of the point runs. So nothing rare is here: no search, no routine, no system call.
//!
//! The code uses registers that are free at the point. If these are too few, it saves others on the stack, and the flags too if they are not free.

use std::borrow::Cow;

use ingraft_model::contexts::{
    ADDRESS_BITS, CALLS, CONTEXT_SHIFT, CURRENT, FIRST as FIRST_CONTEXT, KEY, PARENT, PARENT_BIAS, PLACE, TARGET, key,
};
use ingraft_model::layout::{COUNTERS, TOP, record};
use ingraft_model::table::{FIRST as FIRST_PLACE, MULTIPLIER};
use ingraft_model::vector::{FIRST as FIRST_VALUE, OUTSIDE, USED};
use ingraft_model::{
    BinaryOp, CallRecord, ContextShape, Expr, Fold, FreeRegisters, Gpr, KeyField, KeyParts, Places, PointKind, Ranges,
    Restore, Site, Snippet, Stmt, TableShape, VariableId, Whose,
};

use crate::code::environment::Environment;
use crate::snippet::activation::LEFT_BY_TAIL_JUMP;
use crate::snippet::encoding::{BranchCondition, Encoder, InlineOperand, OperandWidth};

/// Largest number of steps of the code of a point. A point with more has it in the ordinary copy alone.
const STEPS_MAX: usize = 48;
/// Registers that may be saved if too few are free, the best first. A function's result may be in others.
const SAVED: [Gpr; 6] = [Gpr(11), Gpr(10), Gpr(9), Gpr(7), Gpr(6), Gpr(1)];
/// Registers that may be free, in the order in which they are taken: those with short instructions first.
const SCRATCH: [Gpr; 9] = [Gpr(0), Gpr(1), Gpr(2), Gpr(6), Gpr(7), Gpr(8), Gpr(9), Gpr(10), Gpr(11)];
/// The register from which and to which flags are moved.
const RAX: Gpr = Gpr(0);
/// The stack pointer.
const STACK: Gpr = Gpr(4);
/// Size of an activation record.
const RECORD: i32 = record::SIZE as i32;
/// Largest number of calls that end together with one that they have jumped to, right in a counting copy.
const HANDED_MAX: i32 = 3;
/// Number of further places that are compared for a context.
const FURTHER: usize = 3;
/// Number of bytes of a jump.
const JUMP_LEN: usize = 5;
/// Number of bytes of the red zone.
const RED_ZONE: i32 = 128;

/// A point as the code in a counting copy needs it: its kind, and the registers and flags that are free there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InlinePoint {
    kind: PointKind,
    /// Mask of the free registers.
    registers: u16,
    flags: bool,
    /// Whether calls move between threads.
    moving: bool,
}

impl InlinePoint {
    /// The point at a site in the copy of its function.
    pub fn of(site: &Site) -> InlinePoint {
        let none = FreeRegisters::default();
        let free = site.free().unwrap_or(&none);
        let registers = free.scratch.iter().filter(|r| r.0 < 16 && r.0 != 4).fold(0, |mask, r| mask | 1 << r.0);
        InlinePoint { kind: site.point_kind(), registers, flags: free.flags, moving: site.moving }
    }

    /// Mask of the free registers.
    pub(crate) fn registers(self) -> u16 {
        self.registers
    }

    /// Whether the arithmetic flags are free.
    pub fn flags(self) -> bool {
        self.flags
    }

    /// Whether the words below the stack pointer may be in use.
    pub(crate) fn has_red_zone(self) -> bool {
        matches!(self.kind, PointKind::Block | PointKind::Edge)
    }
}

/// A snippet with the first counter of each of its variables.
pub type BoundSnippet<'a> = (&'a Snippet, &'a [u32]);

/// Code of a point in the counting copy of its function, independent of its address. It has two parts: one that stands at the point, and one
/// that is rarely run and lies aside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InlineCode {
    /// The point for which it was made.
    pub(crate) point: InlinePoint,
    /// The code at the point, from its first instruction to its end, where the function goes on.
    pub(crate) main: Vec<u8>,
    /// Number of bytes of the first instruction.
    pub(crate) first: usize,
    /// The code aside. If it may go to the probe, it ends with the jump there.
    pub(crate) aside: Vec<u8>,
    pub(crate) jumps: Vec<InlineJump>,
}

/// A part of the code of a point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InlinePart {
    Main,
    Aside,
}

/// A branch whose displacement is written once the addresses of both parts are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct InlineJump {
    /// Part that holds the displacement, and its offset there.
    pub field: (InlinePart, u32),
    /// Where it leads: a part, and an offset there. `None` for the probe in the ordinary copy.
    pub to: Option<(InlinePart, u32)>,
}

impl InlineCode {
    /// The code of snippets that run one after the other at a point. `None` if one of them does something that cannot be done here.
    pub fn of<'s>(
        env: &Environment,
        point: InlinePoint,
        snippets: impl Iterator<Item = BoundSnippet<'s>>,
    ) -> Option<InlineCode> {
        if point.moving || matches!(point.kind, PointKind::CallBefore | PointKind::CallAfter) {
            return None;
        }
        let mut steps = Vec::new();
        for (snippet, counters) in snippets {
            lower(&snippet.stmts, counters, &mut steps)?;
        }
        hand_on(&mut steps);
        // A thread that is held between the count and the flags would be at no known place of the graph, and loops would often be held there.
        if !point.flags && steps.iter().all(|step| matches!(step, InlineStep::Add(..))) {
            return None;
        }
        let has_frame = matches!(point.kind, PointKind::Entry | PointKind::Exit);
        if steps.is_empty() || steps.len() > STEPS_MAX || !has_frame && steps.iter().any(InlineStep::is_of_records) {
            return None;
        }
        InlineWriter::new(env, point, &steps)?.write(&steps)
    }

    /// The jump to the probe; `None` if the code never goes there.
    fn way_out(&self) -> Option<&InlineJump> {
        self.jumps.iter().find(|jump| jump.to.is_none())
    }

    /// The code with such flags on the way to the probe that a conditional jump there is taken. `None` if no register is free for that, or if there
    /// are no such flags. Code that saves the flags goes there with those by which the thread has taken the jump.
    pub(crate) fn at_branch(&self, condition: u8) -> Option<Cow<'_, InlineCode>> {
        let Some(way_out) = self.way_out().filter(|_| self.point.flags) else { return Some(Cow::Borrowed(self)) };
        let r = SCRATCH.into_iter().find(|r| self.point.registers >> r.0 & 1 != 0)?;
        let (value, with) = compared(condition)?;
        let mut code = self.clone();
        code.jumps.retain(|jump| jump != way_out);
        code.aside.truncate(self.aside.len().checked_sub(JUMP_LEN)?);
        let mut aside = Encoder { bytes: code.aside, ..Encoder::default() };
        aside.load_number(r, value);
        aside.compare_register(OperandWidth::Whole, r, with);
        let field = aside.jump();
        code.aside = aside.bytes;
        code.jumps.push(InlineJump { field: (InlinePart::Aside, field), to: None });
        Some(Cow::Owned(code))
    }

    /// Whether the first `len` of these bytes are the code at the point, whatever the displacements of its branches.
    pub(crate) fn is_main(&self, bytes: &[u8], len: u64) -> bool {
        let Some(bytes) = bytes.get(..self.main.len()).filter(|_| len == self.main.len() as u64) else { return false };
        let (mut own, mut bytes) = (self.main.clone(), bytes.to_vec());
        for InlineJump { field: (part, offset), .. } in &self.jumps {
            let field = *offset as usize..*offset as usize + 4;
            let fields = [&mut own, &mut bytes].into_iter().filter(|_| *part == InlinePart::Main);
            fields.filter_map(|code| code.get_mut(field.clone())).for_each(|field| field.fill(0));
        }
        own == bytes
    }

    /// Number of bytes of both parts.
    pub(crate) fn room(&self) -> u64 {
        (self.main.len() + self.aside.len()) as u64
    }
}

/// Two numbers whose comparison sets the flags so that a condition holds, by its number in instructions. `None` for an overflow.
fn compared(condition: u8) -> Option<(i64, i32)> {
    match condition & 0xf {
        // below, not equal, negative, less
        0x2 | 0x5 | 0x8 | 0xc => Some((0, 1)),
        // above, odd, greater
        0x7 | 0xb | 0xf => Some((1, 0)),
        0x0 => None,
        _ => Some((0, 0)),
    }
}

/// One thing that the code does. Variables are indices of counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum InlineStep {
    Add(u32, i32),
    Set(u32, i64),
    /// Adds 1 to the value of the granule with the number that is in a variable.
    CountIn {
        first: u32,
        ranges: Ranges,
        number: u32,
    },
    /// Adds 1 to the value of the key that is the sum of a variable and a number.
    CountAt {
        first: u32,
        places: Places,
        number: u32,
        plus: i32,
    },
    /// No other record may be of this frame than those that the code itself opens or closes.
    Bare,
    /// A record of an earlier call of this frame, if there is one, stays handed over.
    HandOn,
    /// The same, but a call that went on with this one by a tail jump may end here too: its record only restores this variable.
    Ends(Option<u32>),
    /// Opens a record with this name that restores a variable.
    Open {
        name: u32,
        restore: Option<u32>,
    },
    /// The last record must be one of this frame with this name.
    Find {
        name: u32,
    },
    /// Marks the record that was found as handed over.
    HandOver,
    /// Sets a variable to what the record that was found would restore.
    SetRestored(u32),
    /// Removes the record that was found.
    Close,
    /// Enters the context of a function.
    Enter {
        tree: u32,
        shape: ContextShape,
        function: u32,
    },
    /// Counts the sum of a variable and a number below the context of the thread.
    CountBelow {
        tree: u32,
        shape: ContextShape,
        function: u32,
        number: u32,
        plus: i32,
    },
}

impl InlineStep {
    /// Whether it is about activation records.
    fn is_of_records(&self) -> bool {
        matches!(self, InlineStep::Bare | InlineStep::Ends(_) | InlineStep::Open { .. } | InlineStep::Find { .. })
    }

    /// Whether it looks for a place, which a register holds up to the change.
    fn has_place(&self) -> bool {
        matches!(self, InlineStep::Enter { .. } | InlineStep::CountBelow { .. } | InlineStep::CountAt { .. })
    }
}

/// Adds the steps of statements. `None` if a statement has no step.
fn lower(stmts: &[Stmt], counters: &[u32], steps: &mut Vec<InlineStep>) -> Option<()> {
    let index = |v: VariableId| counters.get(v.0 as usize).copied();
    let name = |record: &CallRecord| index(record.activations).map(|index| COUNTERS + 8 * index);
    for stmt in stmts {
        match stmt {
            Stmt::Add(v, Expr::Const(amount)) => steps.push(InlineStep::Add(index(*v)?, i32::try_from(*amount).ok()?)),
            Stmt::Set(v, Expr::Const(value)) => {
                let set = InlineStep::Set(index(*v)?, *value);
                // Nothing comes between two settings of a variable that could see the first value.
                steps.pop_if(|last| matches!((last, set), (InlineStep::Set(a, _), InlineStep::Set(b, _)) if *a == b));
                steps.push(set);
            }
            Stmt::Set(v, Expr::Restored) => {
                let v = index(*v)?;
                // Nothing sees a value that was set right before the record was found.
                let before = steps.iter().rposition(|step| !matches!(step, InlineStep::Find { .. }));
                let is_set = |at: &usize| matches!(steps.get(*at), Some(InlineStep::Set(set, _)) if *set == v);
                if let Some(at) = before.filter(is_set) {
                    steps.remove(at);
                }
                steps.push(InlineStep::SetRestored(v));
            }
            Stmt::AddIn(v, ranges, Expr::Variable(number), Expr::Const(1)) => {
                let short = i32::try_from(ranges.base()).is_ok() && i32::try_from(ranges.length()).is_ok();
                if ranges.granule() != 1 || !short {
                    return None;
                }
                steps.push(InlineStep::CountIn { first: index(*v)?, ranges: *ranges, number: index(*number)? });
            }
            Stmt::AddAt(v, table, key, Expr::Const(1)) => {
                let [KeyField::Number(key)] = key.as_slice() else { return None };
                let (number, plus) = sum_of(key)?;
                steps.push(count_at(index(*v)?, *table, index(number)?, plus)?);
            }
            Stmt::Prune => steps.push(InlineStep::Bare),
            Stmt::CloseHanded(record, body) => steps.push(InlineStep::Ends(handed(record, body).and_then(index))),
            Stmt::HandOver(_, Whose::Earlier, _) => steps.push(InlineStep::HandOn),
            Stmt::GiveUp(_, Whose::Earlier, _) => steps.push(InlineStep::Bare),
            Stmt::Open(record, body) if record.kept.is_empty() => {
                let restore = match record.restore {
                    Some(Restore::Value(v) | Restore::Flag(v)) => Some(index(v)?),
                    Some(Restore::Timer(..)) => return None,
                    None => None,
                };
                steps.push(InlineStep::Open { name: name(record)?, restore });
                lower(body, counters, steps)?;
            }
            Stmt::Close(record, body) if record.kept.is_empty() => {
                steps.push(InlineStep::Find { name: name(record)? });
                lower(body, counters, steps)?;
                steps.push(InlineStep::Close);
            }
            // The statements are for a call without a record.
            Stmt::HandOver(record, Whose::Own, _) => {
                steps.extend([InlineStep::Find { name: name(record)? }, InlineStep::HandOver]);
            }
            Stmt::GiveUp(record, Whose::Own, _) => {
                let Some(Restore::Value(v) | Restore::Flag(v)) = record.restore else { return None };
                let counted = InlineStep::Add(index(record.activations)? + LEFT_BY_TAIL_JUMP, 1);
                steps.extend([InlineStep::Bare, InlineStep::Find { name: name(record)? }]);
                steps.extend([InlineStep::SetRestored(index(v)?), counted, InlineStep::Close]);
            }
            Stmt::Enter(v, shape, function) => {
                steps.push(InlineStep::Enter { tree: index(*v)?, shape: *shape, function: *function });
            }
            Stmt::CountBelow(v, shape, function, e) => {
                let ((number, plus), (shape, function)) = (sum_of(e)?, (*shape, *function));
                let (tree, number) = (index(*v)?, index(number)?);
                steps.push(InlineStep::CountBelow { tree, shape, function, number, plus });
            }
            _ => return None,
        }
    }
    Some(())
}

/// Leaves earlier records to the mark of this call's own one: the next function looks at marks from the last record on. If this call hands over
/// none, there must be no earlier one.
fn hand_on(steps: &mut Vec<InlineStep>) {
    let marks = steps.contains(&InlineStep::HandOver);
    steps.retain(|step| !(marks && *step == InlineStep::HandOn));
    steps.iter_mut().filter(|step| **step == InlineStep::HandOn).for_each(|step| *step = InlineStep::Bare);
}

/// The variable of a handed record that only restores it when the call ends.
fn handed(record: &CallRecord, body: &[Stmt]) -> Option<VariableId> {
    match (record.restore, body) {
        (Some(Restore::Value(v)), [Stmt::Set(set, Expr::Restored)]) if *set == v => Some(v),
        _ => None,
    }
}

/// The variable and the number of which a value is the sum.
fn sum_of(e: &Expr) -> Option<(VariableId, i32)> {
    match e {
        Expr::Variable(v) => Some((*v, 0)),
        Expr::Binary(BinaryOp::Add, a, b) => match (&**a, &**b) {
            (Expr::Variable(v), Expr::Const(plus)) => Some((*v, i32::try_from(*plus).ok()?)),
            _ => None,
        },
        _ => None,
    }
}

fn count_at(first: u32, table: TableShape, number: u32, plus: i32) -> Option<InlineStep> {
    let sums = table.fold == Fold::Sum && Some(table.parts) == KeyParts::of([false]);
    sums.then_some(InlineStep::CountAt { first, places: table.places, number, plus })
}

/// The registers of the code of a point.
#[derive(Clone, Copy)]
struct InlineRegisters {
    /// The top of the records.
    top: Gpr,
    /// A value that is needed for some instructions. It is `top` if there is one register only.
    value: Gpr,
    /// The number of a place, from the look to the change.
    place: Option<Gpr>,
    /// The address of the return address; `None` if that is the stack pointer.
    frame: Option<Gpr>,
}

/// A place in the code to which branches lead.
#[derive(Clone, Copy, PartialEq, Eq)]
struct InlineLabel(usize);

/// Search of a context that is not at its first place.
struct ContextSearch {
    tree: u32,
    shape: ContextShape,
    /// Where it begins.
    further: InlineLabel,
    /// Where it goes on if the context was found.
    found: InlineLabel,
}

struct InlineWriter<'e> {
    env: &'e Environment,
    point: InlinePoint,
    registers: InlineRegisters,
    /// Registers on the stack, in the order in which they were pushed.
    pushed: Vec<Gpr>,
    main: Encoder,
    aside: Encoder,
    /// Part to which instructions are added.
    part: InlinePart,
    /// The labels, as far as they are placed.
    labels: Vec<Option<(InlinePart, u32)>>,
    /// Displacements, each with the label to which it leads.
    branches: Vec<((InlinePart, u32), InlineLabel)>,
    /// The way to the probe.
    unusual: InlineLabel,
    /// Searches of contexts that are not at their first places.
    searches: Vec<ContextSearch>,
    /// Distance in bytes of the top of the records from the register that holds it; `None` if no register does.
    top: Option<i32>,
    /// Number of bytes of records that were found and not closed.
    found: i32,
}

impl<'e> InlineWriter<'e> {
    /// Chooses registers. `None` if there are too few.
    fn new(env: &'e Environment, point: InlinePoint, steps: &[InlineStep]) -> Option<Self> {
        let has = |of: fn(&InlineStep) -> bool| steps.iter().any(of);
        let places = steps.iter().filter(|step| step.has_place()).count();
        let opens = has(|step| matches!(step, InlineStep::Open { .. }));
        let closes = has(|step| *step == InlineStep::Close) && has(|step| *step == InlineStep::HandOver);
        if places > 1 || places == 1 && has(|step| matches!(step, InlineStep::CountIn { .. })) || closes {
            return None;
        }
        let only_counters = !has(|step| !matches!(step, InlineStep::Add(..) | InlineStep::Set(..)));
        let wide = has(|step| matches!(step, InlineStep::Set(_, value) if i32::try_from(*value).is_err()));
        let needed = match (only_counters && !wide, opens || places > 0) {
            (true, _) => 0,
            (false, true) => 2 + places,
            (false, false) => 1,
        };
        // rax is on the stack while the flags are.
        let free = point.registers | u16::from(!point.flags);
        let lacks = needed > SCRATCH.into_iter().filter(|r| free >> r.0 & 1 != 0).count();
        // The stack pointer is that of the call as long as nothing is saved.
        let needed_too = usize::from((lacks || !point.flags) && has(InlineStep::is_of_records));
        let mut own: Vec<Gpr> =
            SCRATCH.into_iter().filter(|r| free >> r.0 & 1 != 0).take(needed + needed_too).collect();
        let missing = needed + needed_too - own.len();
        let pushed: Vec<Gpr> = SAVED.into_iter().filter(|r| free >> r.0 & 1 == 0).take(missing).collect();
        if pushed.len() < missing {
            return None;
        }
        own.extend(&pushed);
        let mut own = own.into_iter();
        let top = own.next().unwrap_or(Gpr(0));
        let value = if needed > 1 { own.next()? } else { top };
        let place = if places > 0 { Some(own.next()?) } else { None };
        let registers = InlineRegisters { top, value, place, frame: own.next() };
        Some(InlineWriter {
            env,
            point,
            registers,
            pushed,
            main: Encoder::default(),
            aside: Encoder::default(),
            part: InlinePart::Main,
            labels: vec![None],
            branches: Vec::new(),
            unusual: InlineLabel(0),
            searches: Vec::new(),
            top: None,
            found: 0,
        })
    }

    fn write(mut self, steps: &[InlineStep]) -> Option<InlineCode> {
        self.save();
        let end = self.label();
        self.look(steps, end)?;
        steps.iter().try_for_each(|step| self.act(*step))?;
        self.place(end);
        self.restore();
        self.part = InlinePart::Aside;
        std::mem::take(&mut self.searches).into_iter().try_for_each(|search| self.search(search))?;
        let mut jumps = Vec::new();
        if self.branches.iter().any(|(_, to)| *to == self.unusual) {
            self.place(self.unusual);
            self.restore();
            let field = self.code().jump();
            jumps.push(InlineJump { field: (InlinePart::Aside, field), to: None });
        }
        for (field, InlineLabel(label)) in &self.branches {
            jumps.push(InlineJump { field: *field, to: Some((*self.labels.get(*label)?)?) });
        }
        let InlineWriter { point, main, aside, .. } = self;
        Some(InlineCode { point, first: main.first, main: main.bytes, aside: aside.bytes, jumps })
    }

    fn code(&mut self) -> &mut Encoder {
        match self.part {
            InlinePart::Main => &mut self.main,
            InlinePart::Aside => &mut self.aside,
        }
    }

    fn label(&mut self) -> InlineLabel {
        self.labels.push(None);
        InlineLabel(self.labels.len() - 1)
    }

    /// Lets a label be the next instruction.
    fn place(&mut self, InlineLabel(label): InlineLabel) {
        let here = (self.part, self.code().bytes.len() as u32);
        if let Some(place) = self.labels.get_mut(label) {
            *place = Some(here);
        }
    }

    fn branch(&mut self, condition: BranchCondition, to: InlineLabel) {
        let field = self.code().branch(condition);
        self.branches.push(((self.part, field), to));
    }

    fn jump(&mut self, to: InlineLabel) {
        let field = self.code().jump();
        self.branches.push(((self.part, field), to));
    }

    /// Adds a branch to the probe.
    fn leave_if(&mut self, condition: BranchCondition) {
        self.branch(condition, self.unusual);
    }

    /// Number of bytes that are saved on the stack, without the red zone.
    fn saved(&self) -> i32 {
        let flags = if self.point.flags { 0 } else { 1 + usize::from(!self.has_free_rax()) };
        8 * (self.pushed.len() + flags) as i32
    }

    fn has_free_rax(&self) -> bool {
        self.point.registers & 1 != 0
    }

    /// Saves registers that are not free, and the flags if they are not.
    fn save(&mut self) {
        if self.saved() == 0 {
            return;
        }
        if self.point.has_red_zone() {
            self.main.lower_stack(RED_ZONE);
        }
        for r in &self.pushed {
            self.main.push(*r);
        }
        if !self.point.flags {
            if !self.has_free_rax() {
                self.main.push(RAX);
            }
            self.main.load_flags();
            self.main.push(RAX);
        }
        let saved = self.saved();
        if let Some(frame) = self.registers.frame {
            self.main.lea_stack(frame, saved);
        }
    }

    fn restore(&mut self) {
        if self.saved() == 0 {
            return;
        }
        if !self.point.flags {
            self.code().pop(RAX);
            self.code().restore_flags();
            if !self.has_free_rax() {
                self.code().pop(RAX);
            }
        }
        for r in self.pushed.clone().into_iter().rev() {
            self.code().pop(r);
        }
        if self.point.has_red_zone() {
            self.code().raise_stack(RED_ZONE);
        }
    }

    /// Operand for a counter of the thread's shard.
    fn counter(&self, index: u32) -> InlineOperand {
        InlineOperand::Own(self.env.data.counter(index))
    }

    /// Operand for the counter of a place whose number is in a register; `index` is the counter for place 0.
    fn at_place(&self, place: Gpr, index: u32) -> InlineOperand {
        InlineOperand::OwnTimes8(place, self.env.data.counter(index))
    }

    /// Operand for a field of the record so many bytes above the register with the top.
    fn field(&self, above: i32, field: u32) -> InlineOperand {
        let records = self.env.data.displacement(self.env.data.records());
        InlineOperand::OwnFrom(self.registers.top, records.wrapping_add_signed(above) + field)
    }

    fn top_word(&self) -> InlineOperand {
        InlineOperand::Own(self.env.data.displacement(TOP))
    }

    /// Loads the top of the records, unless a register holds it. Returns the distance of the top from the register's value.
    fn load_top(&mut self) -> i32 {
        if self.top.is_none() {
            let (to, from) = (self.registers.top, self.top_word());
            self.code().load(to, from);
            self.top = Some(0);
        }
        self.top.unwrap_or_default()
    }

    /// A register for a value. The top may be lost by it.
    fn value(&mut self) -> Gpr {
        if self.registers.value == self.registers.top {
            self.top = None;
        }
        self.registers.value
    }

    /// Compares the call of a record with this one.
    fn compare_frame(&mut self, above: i32) {
        let (at, frame) = (self.field(above, record::SP), self.registers.frame.unwrap_or(STACK));
        self.code().compare(at, frame);
    }

    /// Compares a field of a record with a number.
    fn compare_field(&mut self, above: i32, field: u32, with: u32) {
        let at = self.field(above, field);
        self.code().compare_number(OperandWidth::Half, at, with as i32);
    }

    /// Adds the looks of all steps. None of them changes anything. Code for calls with which others go on is complete, and leads to `end`.
    fn look(&mut self, steps: &[InlineStep], end: InlineLabel) -> Option<()> {
        // So many bytes of records are of this call, below the top.
        let mut own = 0;
        for step in steps {
            if let InlineStep::Find { name } = step {
                own += RECORD;
                let above = self.load_top() - own;
                self.compare_frame(above);
                self.leave_if(BranchCondition::NotEqual);
                self.compare_field(above, record::NAME, *name);
                self.leave_if(BranchCondition::NotEqual);
            }
        }
        if steps.iter().any(|step| matches!(step, InlineStep::Bare | InlineStep::Ends(_))) {
            let above = self.load_top() - own - RECORD;
            self.compare_frame(above);
            match handed_in(steps) {
                Some(v) => {
                    let handed = self.label();
                    self.branch(BranchCondition::BelowOrEqual, handed);
                    self.goes_on(steps, (handed, end), (v, above))?;
                }
                None => self.leave_if(BranchCondition::BelowOrEqual),
            }
        }
        let opened = steps.iter().filter(|step| matches!(step, InlineStep::Open { .. })).count() as i32;
        if opened > 0 {
            if own > 0 {
                return None;
            }
            self.look_for_room(opened);
        }
        let mut changed: Vec<u32> = Vec::new();
        for step in steps {
            match *step {
                InlineStep::Add(v, _) | InlineStep::Set(v, _) | InlineStep::SetRestored(v) => changed.push(v),
                InlineStep::CountAt { first, places, number, plus } => {
                    if changed.contains(&number) {
                        return None;
                    }
                    self.find_key(first, places, (number, plus))?;
                }
                InlineStep::Enter { tree, shape, function } => {
                    if changed.contains(&(tree + CURRENT)) {
                        return None;
                    }
                    self.find_context(tree, shape, function)?;
                }
                InlineStep::CountBelow { tree, shape, function, number, plus } => {
                    if changed.contains(&number) || changed.contains(&(tree + CURRENT)) {
                        return None;
                    }
                    let (value, from) = (self.registers.value, self.counter(number));
                    self.code().load(value, from);
                    if plus != 0 {
                        self.code().add_number(value, plus);
                    }
                    self.find_below(tree, shape, function)?;
                }
                InlineStep::CountIn { .. }
                | InlineStep::Bare
                | InlineStep::Ends(_)
                | InlineStep::Open { .. }
                | InlineStep::Find { .. }
                | InlineStep::HandOver
                | InlineStep::HandOn
                | InlineStep::Close => {}
            }
        }
        Some(())
    }

    /// Looks whether so many records have room: they must lie after the first one, which ends every search.
    fn look_for_room(&mut self, records: i32) {
        self.load_top();
        let (value, top) = (self.registers.value, self.registers.top);
        self.code().lea_half(value, top, -RECORD);
        self.code().compare_register(OperandWidth::Half, value, record::ROOM as i32 - records * RECORD);
        self.leave_if(BranchCondition::AboveOrEqual);
    }

    /// Adds the code for a call with which others go on that have ended in tail jumps: the last of them has a record so many bytes above the top, which
    /// restores the variable `v` as that of this call does. The flags are those of the comparison of both frames.
    fn goes_on(
        &mut self,
        steps: &[InlineStep],
        (handed, end): (InlineLabel, InlineLabel),
        (v, above): (u32, i32),
    ) -> Option<()> {
        let (part, before) = (std::mem::replace(&mut self.part, InlinePart::Aside), self.top);
        self.place(handed);
        self.leave_if(BranchCondition::NotEqual);
        let own: Vec<InlineStep> = own_of(steps).collect();
        let word = COUNTERS + 8 * v;
        match *own.as_slice() {
            [_, InlineStep::Open { name, .. }, InlineStep::Enter { tree, shape, function }] => {
                self.compare_field(above, record::RESTORE, word | record::HANDED);
                self.leave_if(BranchCondition::NotEqual);
                // The marks of earlier ones are gone.
                let earlier = self.field(above - RECORD, record::RESTORE);
                self.code().test_half(earlier, record::HANDED as i32);
                self.leave_if(BranchCondition::NotEqual);
                self.look_for_room(1);
                self.find_context(tree, shape, function)?;
                self.count(steps)?;
                let above = self.load_top() - RECORD;
                let mark = self.field(above, record::RESTORE);
                self.code().and_half_at(mark, !record::HANDED.cast_signed());
                let saved = self.field(above, record::SAVED);
                self.open(name, Some((v, saved)));
                self.act(InlineStep::Enter { tree, shape, function })?;
                self.jump(end);
            }
            _ => {
                let top = self.top_word();
                let ends: Vec<InlineLabel> = (0..HANDED_MAX).map(|_| self.label()).collect();
                for (n, label) in (0..).zip(&ends) {
                    let above = above - n * RECORD;
                    self.compare_field(above, record::RESTORE, word);
                    self.leave_if(BranchCondition::NotEqual);
                    self.compare_frame(above - RECORD);
                    self.branch(BranchCondition::Above, *label);
                    self.leave_if(BranchCondition::NotEqual);
                }
                self.jump(self.unusual);
                let looked = self.top;
                for (n, label) in (0..).zip(ends) {
                    self.place(label);
                    self.top = looked;
                    self.count(steps)?;
                    self.found = RECORD;
                    self.act(InlineStep::SetRestored(v))?;
                    self.found = 0;
                    self.code().add_to(top, -(2 + n) * RECORD);
                    self.jump(end);
                }
            }
        }
        (self.part, self.top) = (part, before);
        Some(())
    }

    /// Adds what the code counts besides.
    fn count(&mut self, steps: &[InlineStep]) -> Option<()> {
        steps.iter().filter(|step| matches!(step, InlineStep::Add(..))).try_for_each(|step| self.act(*step))
    }

    /// Looks whether a key is at its first place.
    fn find_key(&mut self, first: u32, places: Places, (number, plus): (u32, i32)) -> Option<()> {
        let (key, place, number) = (self.registers.value, self.registers.place?, self.counter(number));
        self.code().load(key, number);
        if plus != 0 {
            self.code().add_number(key, plus);
        }
        self.code().test(key);
        self.leave_if(BranchCondition::Equal);
        self.code().load_number(place, MULTIPLIER.cast_signed());
        self.code().multiply(place, key);
        self.code().shift_right(place, (u64::BITS - 1 - places.bits()) as u8);
        self.code().and_half(place, 2 * (places.count() as i32 - 1));
        let at = self.at_place(place, first + FIRST_PLACE);
        self.code().compare(at, key);
        self.leave_if(BranchCondition::NotEqual);
        Some(())
    }

    /// Looks whether the context of the call is at one of its first places.
    fn find_context(&mut self, tree: u32, shape: ContextShape, function: u32) -> Option<()> {
        let (value, pushed) = (self.registers.value, self.saved());
        self.code().load_stack(value, pushed);
        self.find_below(tree, shape, function)
    }

    /// Looks whether the context of a call whose return address is in the register for values is at one of its first places.
    fn find_below(&mut self, tree: u32, shape: ContextShape, function: u32) -> Option<()> {
        let (value, place, sought) = (self.registers.value, self.registers.place?, self.registers.top);
        self.top = None;
        let unused = (u64::BITS - ADDRESS_BITS) as u8;
        let current = self.counter(tree + CURRENT);
        let code = self.code();
        code.shift_left(value, unused);
        code.shift_right(value, unused);
        code.load_number(sought, key(function, 0).cast_signed());
        code.or(sought, value);
        code.load(value, current);
        code.shift_left(value, CONTEXT_SHIFT as u8);
        code.xor(value, sought);
        code.load_number(place, MULTIPLIER.cast_signed());
        code.multiply(place, value);
        code.shift_right(place, shape.shift() as u8);
        code.and_half(place, shape.mask() as i32);
        code.load(value, current);
        code.add_number(value, PARENT_BIAS as i32);
        let (found, further) = (self.label(), self.label());
        self.compare_context(tree, further)?;
        self.place(found);
        self.searches.push(ContextSearch { tree, shape, further, found });
        Some(())
    }

    /// Adds the comparisons with further places: other contexts may have taken the first one.
    fn search(&mut self, ContextSearch { tree, shape, further, found }: ContextSearch) -> Option<()> {
        let place = self.registers.place?;
        let mut next = further;
        for n in 0..FURTHER {
            self.place(next);
            self.code().add_number(place, PLACE as i32);
            self.code().and_half(place, shape.mask() as i32);
            next = if n + 1 < FURTHER { self.label() } else { self.unusual };
            self.compare_context(tree, next)?;
            self.jump(found);
        }
        Some(())
    }

    /// Compares the words of the place of a context with those that are sought.
    fn compare_context(&mut self, tree: u32, unless: InlineLabel) -> Option<()> {
        let place = self.registers.place?;
        for (word, with) in [(KEY, self.registers.top), (PARENT, self.registers.value)] {
            let at = self.at_place(place, tree + FIRST_CONTEXT + word);
            self.code().compare(at, with);
            self.branch(BranchCondition::NotEqual, unless);
        }
        Some(())
    }

    /// Adds what a step does once all looks have passed.
    fn act(&mut self, step: InlineStep) -> Option<()> {
        match step {
            InlineStep::Add(v, amount) => {
                let counter = self.counter(v);
                match amount {
                    1 => self.code().increment(counter),
                    _ => self.code().add_to(counter, amount),
                }
            }
            InlineStep::Set(v, number) => {
                let counter = self.counter(v);
                match i32::try_from(number) {
                    Ok(number) => self.code().store_number(OperandWidth::Whole, counter, number),
                    Err(_) => {
                        let value = self.value();
                        self.code().load_number(value, number);
                        self.code().store(counter, value);
                    }
                }
            }
            InlineStep::CountIn { first, ranges, number } => self.count_in(first, ranges, number)?,
            InlineStep::CountAt { first, .. } => {
                let at = self.at_place(self.registers.place?, first + FIRST_PLACE + 1);
                self.code().increment(at);
            }
            InlineStep::Bare | InlineStep::Ends(_) | InlineStep::HandOn => {}
            InlineStep::Find { .. } => self.found += RECORD,
            InlineStep::Open { name, restore } => self.open(name, restore.map(|v| (v, self.counter(v)))),
            InlineStep::HandOver => {
                let above = self.load_top() - self.found;
                let mark = self.field(above, record::RESTORE);
                self.code().or_half(mark, record::HANDED as i32);
            }
            InlineStep::SetRestored(v) => {
                let above = self.load_top() - self.found;
                let (saved, counter) = (self.field(above, record::SAVED), self.counter(v));
                let value = self.value();
                self.code().load(value, saved);
                self.code().store(counter, value);
            }
            InlineStep::Close => {
                let top = self.top_word();
                self.code().add_small(top, -(RECORD as i8));
                self.top = self.top.map(|top| top - RECORD);
                self.found -= RECORD;
            }
            InlineStep::CountBelow { tree, .. } => {
                let at = self.at_place(self.registers.place?, tree + FIRST_CONTEXT + CALLS);
                self.code().increment(at);
            }
            InlineStep::Enter { tree, .. } => {
                let (place, value) = (self.registers.place?, self.registers.value);
                let [calls, target] = [CALLS, TARGET].map(|word| self.at_place(place, tree + FIRST_CONTEXT + word));
                let current = self.counter(tree + CURRENT);
                self.code().increment(calls);
                self.code().load(value, target);
                self.code().store(current, value);
            }
        }
        Some(())
    }

    /// Opens a record as [`crate::snippet::activation`] does: its stack pointer is written before the top moves, and again after that. `restore` is the
    /// variable that the record restores, and where the value for it is.
    fn open(&mut self, name: u32, restore: Option<(u32, InlineOperand)>) {
        let above = self.load_top();
        let (frame, value, top) = (self.registers.frame.unwrap_or(STACK), self.registers.value, self.top_word());
        let of = |field| self.field(above, field);
        let [sp, named, restores, saved] = [record::SP, record::NAME, record::RESTORE, record::SAVED].map(of);
        let code = self.code();
        code.store(sp, frame);
        code.add_small(top, RECORD as i8);
        code.store(sp, frame);
        code.store_number(OperandWidth::Half, named, name as i32);
        code.store_number(OperandWidth::Half, restores, restore.map_or(0, |(v, _)| (COUNTERS + 8 * v) as i32));
        if let Some((_, from)) = restore {
            code.load(value, from);
            code.store(saved, value);
        }
        self.top = Some(above + RECORD);
    }

    /// Counts a number in its granule, or outside of the ranges.
    fn count_in(&mut self, first: u32, ranges: Ranges, number: u32) -> Option<()> {
        let value = self.value();
        let (number, outside) = (self.counter(number), self.counter(first + OUTSIDE));
        let (granule, used) = (self.at_place(value, first + FIRST_VALUE), self.counter(first + USED));
        self.code().load(value, number);
        let base = i32::try_from(ranges.base()).ok()?;
        if base != 0 {
            self.code().add_number(value, base.checked_neg()?);
        }
        self.code().compare_register(OperandWidth::Whole, value, i32::try_from(ranges.length()).ok()?);
        let (other, counted) = (self.label(), self.label());
        self.branch(BranchCondition::AboveOrEqual, other);
        self.code().and_half(value, ranges.mask() as i32);
        self.code().increment(granule);
        self.place(counted);
        let part = std::mem::replace(&mut self.part, InlinePart::Aside);
        self.place(other);
        self.code().increment(outside);
        self.jump(counted);
        self.part = part;
        self.code().store_number(OperandWidth::Whole, used, 1);
        Some(())
    }
}

/// The steps without those that only count.
fn own_of(steps: &[InlineStep]) -> impl Iterator<Item = InlineStep> {
    steps.iter().copied().filter(|step| !matches!(step, InlineStep::Add(..)))
}

/// The variable of a record that was handed over to this call, if code of its own is for that case: this call opens or closes one record, which
/// restores the same variable.
fn handed_in(steps: &[InlineStep]) -> Option<u32> {
    let (ends, own): (Vec<InlineStep>, Vec<InlineStep>) =
        own_of(steps).partition(|step| matches!(step, InlineStep::Ends(_)));
    match (own.as_slice(), ends.as_slice()) {
        // The contexts of both restore that of the caller.
        ([InlineStep::Bare, InlineStep::Open { restore: Some(v), .. }, InlineStep::Enter { tree, .. }], [])
            if *v == tree + CURRENT =>
        {
            Some(*v)
        }
        ([InlineStep::Find { .. }, InlineStep::SetRestored(v), InlineStep::Close], [_, ..])
            if ends.iter().all(|step| *step == InlineStep::Ends(Some(*v))) =>
        {
            Some(*v)
        }
        _ => None,
    }
}
