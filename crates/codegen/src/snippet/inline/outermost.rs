//! Code of calls of which only those inside of others of their function have activation records, see [`ingraft_model::outermost`].
//!
//! The code at the point is that of the outermost call. It looks at words of the thread alone, so it needs no registers for that. The code for all other
//! calls lies aside, and looks first whether they are usual ones, too.

use ingraft_model::layout::record;
use ingraft_model::outermost::{FRAME, VALUE};

use crate::snippet::encoding::{BranchCondition, OperandWidth};

use super::InlinePart;
use super::steps::InlineStep;
use super::writer::{InlineLabel, InlineWriter, RECORD, STACK, choose};

impl InlineWriter<'_> {
    /// Writes the code of steps, of which one is `step`. `None` if it cannot stand here.
    pub(super) fn write_outermost(&mut self, steps: &[InlineStep], step: InlineStep) -> Option<()> {
        if !self.point.flags() {
            return None;
        }
        let (inside, end, way_out) = (self.label(), self.label(), self.label());
        self.way_out = Some(way_out);
        self.look_outside(step, inside);
        self.write_main(steps, (step, way_out))?;
        self.place(end);
        self.part = InlinePart::Aside;
        self.place(inside);
        self.save();
        self.look(steps, end)?;
        match step {
            InlineStep::Begin { name, v } => self.begin_inside(steps, (name, v), end),
            InlineStep::End { name, v } => self.end_inside(steps, (name, v), end),
            _ => None,
        }
    }

    /// Looks whether the call is the outermost one of its function. At its beginning, the thread must also have no record but the first one, so
    /// that none is stale.
    fn look_outside(&mut self, step: InlineStep, inside: InlineLabel) {
        if let InlineStep::Begin { v, .. } = step {
            let (top, value) = (self.top_word(), self.counter(v + VALUE));
            for (word, with) in [(top, RECORD), (value, 0)] {
                self.code().compare_number(OperandWidth::Whole, word, with);
                self.branch(BranchCondition::NotEqual, inside);
            }
        } else if let InlineStep::End { v, .. } = step {
            let noted = self.counter(v + FRAME);
            self.code().compare(noted, STACK);
            self.branch(BranchCondition::NotEqual, inside);
        }
    }

    /// Writes what the outermost call does.
    fn write_main(&mut self, steps: &[InlineStep], (step, way_out): (InlineStep, InlineLabel)) -> Option<()> {
        let looks = |step: &InlineStep| matches!(step, InlineStep::CountAt { .. });
        let plain = |step: &InlineStep| match step {
            InlineStep::Set(_, value) => i32::try_from(*value).is_ok(),
            InlineStep::Add(..) | InlineStep::Bare | InlineStep::Begin { .. } | InlineStep::End { .. } => true,
            _ => false,
        };
        let has_place = steps.iter().any(looks);
        let needed = if steps.iter().all(plain) { 0 } else { 1 + usize::from(has_place) };
        let (registers, pushed) = choose(self.point, needed, has_place, false)?;
        let aside = (self.registers, std::mem::take(&mut self.pushed), self.unusual);
        (self.registers, self.pushed, self.unusual) = (registers, pushed, self.label());
        self.save();
        self.look_for_keys(steps)?;
        steps.iter().filter(|other| **other != step).try_for_each(|step| self.act(*step))?;
        self.restore();
        match step {
            InlineStep::Begin { v, .. } => {
                let noted = self.counter(v + FRAME);
                self.code().store(noted, STACK);
            }
            InlineStep::End { v, .. } => {
                for v in [v + VALUE, v + FRAME] {
                    let word = self.counter(v);
                    self.code().store_number(OperandWidth::Whole, word, 0);
                }
            }
            _ => return None,
        }
        if has_place {
            // A key that is not at its place is found in the ordinary copy.
            self.part = InlinePart::Aside;
            self.place(self.unusual);
            self.restore();
            self.jump(way_out);
            self.part = InlinePart::Main;
        }
        (self.registers, self.pushed, self.unusual) = aside;
        self.top = None;
        Some(())
    }

    /// Writes the code of a call that begins while the thread has records, or while another call of the function is open.
    fn begin_inside(&mut self, steps: &[InlineStep], (name, v): (u32, u32), end: InlineLabel) -> Option<()> {
        let (inside, top) = (self.label(), self.top);
        let (value, noted) = (self.counter(v + VALUE), self.counter(v + FRAME));
        let frame = self.registers.frame.unwrap_or(STACK);
        self.code().compare_number(OperandWidth::Whole, value, 0);
        self.branch(BranchCondition::NotEqual, inside);
        self.act_besides(steps)?;
        self.code().store(noted, frame);
        self.restore();
        self.jump(end);
        self.place(inside);
        self.top = top;
        // An earlier call with this frame was left.
        self.code().compare(noted, frame);
        self.leave_if(BranchCondition::Equal);
        self.look_for_room(1);
        self.open(name, Some((v + VALUE, value)));
        self.act_besides(steps)?;
        self.restore();
        self.jump(end);
        Some(())
    }

    /// Writes the code of a call that ends and has a record.
    fn end_inside(&mut self, steps: &[InlineStep], (name, v): (u32, u32), end: InlineLabel) -> Option<()> {
        let above = self.load_top() - RECORD;
        self.compare_frame(above);
        self.leave_if(BranchCondition::NotEqual);
        self.compare_field(above, record::NAME, name);
        self.leave_if(BranchCondition::NotEqual);
        self.act_besides(steps)?;
        self.found = RECORD;
        self.act(InlineStep::SetRestored(v + VALUE))?;
        self.act(InlineStep::Close)?;
        self.restore();
        self.jump(end);
        Some(())
    }

    /// Adds what the code does besides beginning or ending the call.
    fn act_besides(&mut self, steps: &[InlineStep]) -> Option<()> {
        steps.iter().filter(|step| !step.is_outermost()).try_for_each(|step| self.act(*step))
    }
}
