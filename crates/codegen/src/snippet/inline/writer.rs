//! Writes the code of a point: all looks first, and then what is done once they have passed.

use ingraft_model::contexts::{
    ADDRESS_BITS, CALLS, CONTEXT_SHIFT, CURRENT, FIRST as FIRST_CONTEXT, FURTHER, KEY, PARENT, PARENT_BIAS, PLACE,
    TARGET, key,
};
use ingraft_model::layout::{COUNTERS, TOP, record};
use ingraft_model::table::{FIRST as FIRST_PLACE, MULTIPLIER};
use ingraft_model::vector::{FIRST as FIRST_VALUE, OUTSIDE, USED};
use ingraft_model::{ContextShape, Gpr, Places, Ranges};

use crate::code::environment::Environment;
use crate::snippet::encoding::{BranchCondition, Encoder, InlineOperand, OperandWidth};

use super::steps::{InlineStep, handed_in, own_of};
use super::{InlineCode, InlineJump, InlinePart, InlinePoint, SCRATCH};

/// Registers that may be saved if too few are free, the best first. A function's result may be in others.
const SAVED: [Gpr; 6] = [Gpr(11), Gpr(10), Gpr(9), Gpr(7), Gpr(6), Gpr(1)];
/// The register from which and to which flags are moved.
const RAX: Gpr = Gpr(0);
/// The stack pointer.
pub(super) const STACK: Gpr = Gpr(4);
/// Size of an activation record.
pub(super) const RECORD: i32 = record::SIZE as i32;
/// Largest number of calls that end together with one that they have jumped to, right in a counting copy.
const HANDED_MAX: i32 = 3;
/// Number of bytes of the red zone.
const RED_ZONE: i32 = 128;

/// The registers of the code of a point.
#[derive(Clone, Copy)]
pub(super) struct InlineRegisters {
    /// The top of the records.
    top: Gpr,
    /// A value that is needed for some instructions. It is `top` if there is one register only.
    value: Gpr,
    /// The number of a place, from the look to the change.
    place: Option<Gpr>,
    /// The address of the return address; `None` if that is the stack pointer.
    pub(super) frame: Option<Gpr>,
}

/// A place in the code to which branches lead.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct InlineLabel(usize);

/// Search of a context that is not at its first place.
struct ContextSearch {
    tree: u32,
    shape: ContextShape,
    /// Where it begins.
    further: InlineLabel,
    /// Where it goes on if the context was found.
    found: InlineLabel,
}

pub(super) struct InlineWriter<'e> {
    env: &'e Environment,
    pub(super) point: InlinePoint,
    pub(super) registers: InlineRegisters,
    /// Registers on the stack, in the order in which they were pushed.
    pub(super) pushed: Vec<Gpr>,
    main: Encoder,
    aside: Encoder,
    /// Part to which instructions are added.
    pub(super) part: InlinePart,
    /// The labels, as far as they are placed.
    labels: Vec<Option<(InlinePart, u32)>>,
    /// Displacements, each with the label to which it leads.
    branches: Vec<((InlinePart, u32), InlineLabel)>,
    /// The way to the probe, with registers on the stack.
    pub(super) unusual: InlineLabel,
    /// The same without registers on the stack.
    pub(super) way_out: Option<InlineLabel>,
    /// Searches of contexts that are not at their first places.
    searches: Vec<ContextSearch>,
    /// Counts of numbers outside of their ranges: where each begins, what it adds 1 to, and where it goes on.
    outside: Vec<(InlineLabel, InlineOperand, InlineLabel)>,
    /// Distance in bytes of the top of the records from the register that holds it; `None` if no register does.
    pub(super) top: Option<i32>,
    /// Number of bytes of records that were found and not closed.
    pub(super) found: i32,
}

impl<'e> InlineWriter<'e> {
    /// Chooses registers. `None` if there are too few.
    pub(super) fn new(env: &'e Environment, point: InlinePoint, steps: &[InlineStep]) -> Option<Self> {
        let has = |of: fn(&InlineStep) -> bool| steps.iter().any(of);
        let places = steps.iter().filter(|step| step.has_place()).count();
        let opens = has(|step| matches!(step, InlineStep::Open { .. } | InlineStep::Begin { .. }));
        let closes = has(|step| *step == InlineStep::Close) && has(|step| *step == InlineStep::HandOver);
        if places > 1 || places == 1 && has(|step| matches!(step, InlineStep::CountIn { .. })) || closes {
            return None;
        }
        let of_records = |step: &&InlineStep| step.is_of_records() && **step != InlineStep::Bare;
        if has(InlineStep::is_outermost) && steps.iter().filter(of_records).count() > 1 {
            return None;
        }
        let only_counters = !has(|step| !matches!(step, InlineStep::Add(..) | InlineStep::Set(..)));
        let wide = has(|step| matches!(step, InlineStep::Set(_, value) if i32::try_from(*value).is_err()));
        let needed = match (only_counters && !wide, opens || places > 0) {
            (true, _) => 0,
            (false, true) => 2 + places,
            (false, false) => 1,
        };
        // The stack pointer is that of the call as long as nothing is saved.
        let (registers, pushed) = choose(point, needed, places > 0, has(InlineStep::is_of_records))?;
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
            way_out: None,
            searches: Vec::new(),
            outside: Vec::new(),
            top: None,
            found: 0,
        })
    }

    pub(super) fn write(mut self, steps: &[InlineStep]) -> Option<InlineCode> {
        if let Some(step) = steps.iter().find(|step| step.is_outermost()) {
            self.write_outermost(steps, *step)?;
        } else {
            self.save();
            let end = self.label();
            self.look(steps, end)?;
            steps.iter().try_for_each(|step| self.act(*step))?;
            self.place(end);
            self.restore();
        }
        self.part = InlinePart::Aside;
        std::mem::take(&mut self.searches).into_iter().try_for_each(|search| self.search(search))?;
        for (begins, counter, next) in std::mem::take(&mut self.outside) {
            self.place(begins);
            self.code().increment(counter);
            self.jump(next);
        }
        let mut jumps = Vec::new();
        if self.branches.iter().any(|(_, to)| *to == self.unusual || Some(*to) == self.way_out) {
            self.place(self.unusual);
            self.restore();
            if let Some(way_out) = self.way_out {
                self.place(way_out);
            }
            let field = self.code().jump();
            jumps.push(InlineJump { field: (InlinePart::Aside, field), to: None });
        }
        for (field, InlineLabel(label)) in &self.branches {
            jumps.push(InlineJump { field: *field, to: Some((*self.labels.get(*label)?)?) });
        }
        let InlineWriter { point, main, aside, .. } = self;
        Some(InlineCode { point, first: main.first, main: main.bytes, aside: aside.bytes, jumps })
    }

    pub(super) fn code(&mut self) -> &mut Encoder {
        match self.part {
            InlinePart::Main => &mut self.main,
            InlinePart::Aside => &mut self.aside,
        }
    }

    pub(super) fn label(&mut self) -> InlineLabel {
        self.labels.push(None);
        InlineLabel(self.labels.len() - 1)
    }

    /// Lets a label be the next instruction.
    pub(super) fn place(&mut self, InlineLabel(label): InlineLabel) {
        let here = (self.part, self.code().bytes.len() as u32);
        if let Some(place) = self.labels.get_mut(label) {
            *place = Some(here);
        }
    }

    pub(super) fn branch(&mut self, condition: BranchCondition, to: InlineLabel) {
        let field = self.code().branch(condition);
        self.branches.push(((self.part, field), to));
    }

    pub(super) fn jump(&mut self, to: InlineLabel) {
        let field = self.code().jump();
        self.branches.push(((self.part, field), to));
    }

    /// Adds a branch to the probe.
    pub(super) fn leave_if(&mut self, condition: BranchCondition) {
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
    pub(super) fn save(&mut self) {
        if self.saved() == 0 {
            return;
        }
        if self.point.has_red_zone() {
            self.code().lower_stack(RED_ZONE);
        }
        for r in self.pushed.clone() {
            self.code().push(r);
        }
        if !self.point.flags {
            if !self.has_free_rax() {
                self.code().push(RAX);
            }
            self.code().load_flags();
            self.code().push(RAX);
        }
        let saved = self.saved();
        if let Some(frame) = self.registers.frame {
            self.code().lea_stack(frame, saved);
        }
    }

    pub(super) fn restore(&mut self) {
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
    pub(super) fn counter(&self, index: u32) -> InlineOperand {
        InlineOperand::Own(self.env.data.counter(index))
    }

    /// Operand for the counter of a place whose number is in a register; `index` is the counter for place 0.
    fn at_place(&self, place: Gpr, index: u32) -> InlineOperand {
        InlineOperand::OwnTimes8(place, self.env.data.counter(index))
    }

    /// Operand for a field of the record so many bytes above the register with the top.
    pub(super) fn field(&self, above: i32, field: u32) -> InlineOperand {
        let records = self.env.data.displacement(self.env.data.records());
        InlineOperand::OwnFrom(self.registers.top, records.wrapping_add_signed(above) + field)
    }

    pub(super) fn top_word(&self) -> InlineOperand {
        InlineOperand::Own(self.env.data.displacement(TOP))
    }

    /// Loads the top of the records, unless a register holds it. Returns the distance of the top from the register's value.
    pub(super) fn load_top(&mut self) -> i32 {
        if self.top.is_none() {
            let (to, from) = (self.registers.top, self.top_word());
            self.code().load(to, from);
            self.top = Some(0);
        }
        self.top.unwrap_or_default()
    }

    /// A register for a value. The top may be lost by it.
    pub(super) fn value(&mut self) -> Gpr {
        if self.registers.value == self.registers.top {
            self.top = None;
        }
        self.registers.value
    }

    /// Compares the call of a record with this one.
    pub(super) fn compare_frame(&mut self, above: i32) {
        let (at, frame) = (self.field(above, record::SP), self.registers.frame.unwrap_or(STACK));
        self.code().compare(at, frame);
    }

    /// Compares a field of a record with a number.
    pub(super) fn compare_field(&mut self, above: i32, field: u32, with: u32) {
        let at = self.field(above, field);
        self.code().compare_number(OperandWidth::Half, at, with as i32);
    }

    /// Adds the looks of all steps. None of them changes anything. Code for calls with which others go on is complete, and leads to `end`.
    pub(super) fn look(&mut self, steps: &[InlineStep], end: InlineLabel) -> Option<()> {
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
                | InlineStep::Begin { .. }
                | InlineStep::End { .. }
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
    pub(super) fn look_for_room(&mut self, records: i32) {
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

    /// Looks whether the keys of steps are at their first places.
    pub(super) fn look_for_keys(&mut self, steps: &[InlineStep]) -> Option<()> {
        steps.iter().try_for_each(|step| match *step {
            InlineStep::CountAt { first, places, number, plus } => self.find_key(first, places, (number, plus)),
            _ => Some(()),
        })
    }

    /// Looks whether a key is at its first place.
    pub(super) fn find_key(&mut self, first: u32, places: Places, (number, plus): (u32, i32)) -> Option<()> {
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

    /// Adds the comparisons with further places: other contexts may have taken the first one. The register for the place changes only once the context
    /// is found.
    fn search(&mut self, ContextSearch { tree, shape, further, found }: ContextSearch) -> Option<()> {
        let place = self.registers.place?;
        let all: Vec<InlineLabel> = (0..FURTHER).map(|_| self.label()).collect();
        let mut next = further;
        for (n, there) in (1..).zip(&all) {
            self.place(next);
            next = if n < FURTHER { self.label() } else { self.unusual };
            self.compare_place(tree, n, KEY)?;
            self.branch(BranchCondition::NotEqual, next);
            self.compare_place(tree, n, PARENT)?;
            if n < FURTHER {
                self.branch(BranchCondition::Equal, *there);
            } else {
                self.branch(BranchCondition::NotEqual, next);
            }
        }
        for there in all.into_iter().rev() {
            self.place(there);
            self.code().add_small_half(place, PLACE as i8);
        }
        self.code().and_half(place, shape.mask() as i32);
        self.jump(found);
        Some(())
    }

    /// Compares the words of the place of a context with those that are sought.
    fn compare_context(&mut self, tree: u32, unless: InlineLabel) -> Option<()> {
        for word in [KEY, PARENT] {
            self.compare_place(tree, 0, word)?;
            self.branch(BranchCondition::NotEqual, unless);
        }
        Some(())
    }

    /// Compares a word of the n-th place after the one in the register.
    fn compare_place(&mut self, tree: u32, n: u32, word: u32) -> Option<()> {
        let with = if word == KEY { self.registers.top } else { self.registers.value };
        let at = self.at_place(self.registers.place?, tree + FIRST_CONTEXT + n * PLACE + word);
        self.code().compare(at, with);
        Some(())
    }

    /// Adds what a step does once all looks have passed.
    pub(super) fn act(&mut self, step: InlineStep) -> Option<()> {
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
            InlineStep::Begin { .. } | InlineStep::End { .. } => return None,
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
    pub(super) fn open(&mut self, name: u32, restore: Option<(u32, InlineOperand)>) {
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
        self.code().increment(granule);
        self.place(counted);
        self.outside.push((other, outside, counted));
        self.code().increment(used);
        Some(())
    }
}

/// Chooses registers for code that needs so many, one of which holds a place if `has_place`, and one more for the stack pointer of the call if registers
/// are pushed and `is_of_call`. Also returns the registers to push. `None` if there are too few.
pub(super) fn choose(
    point: InlinePoint,
    needed: usize,
    has_place: bool,
    is_of_call: bool,
) -> Option<(InlineRegisters, Vec<Gpr>)> {
    // rax is on the stack while the flags are.
    let free = point.registers | u16::from(!point.flags);
    let lacks = needed > SCRATCH.into_iter().filter(|r| free >> r.0 & 1 != 0).count();
    let needed_too = usize::from((lacks || !point.flags) && is_of_call);
    let mut own: Vec<Gpr> = SCRATCH.into_iter().filter(|r| free >> r.0 & 1 != 0).take(needed + needed_too).collect();
    let missing = needed + needed_too - own.len();
    let pushed: Vec<Gpr> = SAVED.into_iter().filter(|r| free >> r.0 & 1 == 0).take(missing).collect();
    if pushed.len() < missing {
        return None;
    }
    own.extend(&pushed);
    let mut own = own.into_iter();
    let top = own.next().unwrap_or(Gpr(0));
    let others = needed.saturating_sub(usize::from(has_place));
    let value = if others > 1 { own.next()? } else { top };
    let place = if has_place { Some(own.next()?) } else { None };
    Some((InlineRegisters { top, value, place, frame: own.next() }, pushed))
}
