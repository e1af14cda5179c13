//! Copies of functions whose text the program has written since: a static key, a live patch, a uprobe of another tool within the function.
//! The copy would go on with the old code, so it is given up as soon as the engine notices.
//!
//! The engine compares the text of all copied functions ten times a second without a stop, and more rarely if that would take more than a
//! hundredth of a processor. A function counts as rewritten if two looks in a row find a difference, because a program that moves its text
//! shows other bytes for a moment.
//!
//! Most looks compare whole ranges of the text with what the last full comparison saw there. Only a difference needs another full one, which
//! knows the bytes of each function and the engine's own writes.

use std::time::Instant;

use ingraft_model::{Avma, FunctionId};
use rustc_hash::FxHashSet;

use crate::api::TakenOut;
use crate::error::Error;
use crate::weaving::original::{Rewritten, fitting};
use crate::weaving::plan::PRUNE;

use super::clocks::now_ns;
use super::control::Control;
use super::driver::Session;
use super::left::LeftCalls;

impl Session {
    /// Looks, if a look is due, for copied functions whose text the program has written, and gives their copies up: takes their code out and
    /// freezes the values of the pairs that have code there.
    pub fn give_up_rewritten(&self) {
        // a thread that holds the lock serves a request; the next look follows soon
        let Ok(mut control) = self.try_control() else { return };
        if self.end.is_known() || !control.text_looks.is_due(Instant::now()) {
            return;
        }
        let begin = Instant::now();
        let found = self.look_at_copied_text(&mut control);
        let confirmed = control.text_looks.confirm(found, Instant::now(), begin.elapsed());
        if confirmed.is_empty() {
            return;
        }
        if let Err(error) = self.give_up(&mut control, &confirmed) {
            tracing::warn!(%error, "copies of functions that the program has changed stay in; it is tried again");
        }
    }

    /// The copied functions whose text differs from what it was.
    fn look_at_copied_text(&self, control: &mut Control) -> FxHashSet<FunctionId> {
        let Some(attached) = &control.attached else { return FxHashSet::default() };
        // Read before the full comparison: a write in between is a difference at the next look.
        let now = attached.woven.read_copied_text(&self.target);
        if control.text_looks.is_known(now.as_ref()) {
            return FxHashSet::default();
        }
        let found: FxHashSet<FunctionId> = self.rewritten(control).into_iter().map(|r| r.function).collect();
        control.text_looks.note_text(now, !found.is_empty());
        found
    }

    fn rewritten(&self, control: &Control) -> Vec<Rewritten> {
        control.attached.as_ref().map_or_else(Vec::new, |attached| attached.woven.rewritten(&self.target))
    }

    fn give_up(&self, control: &mut Control, functions: &FxHashSet<FunctionId>) -> Result<(), Error> {
        // the text of a library that was unloaded is no text that the program has written
        self.look_at_modules(control)?;
        let found: Vec<Rewritten> =
            self.rewritten(control).into_iter().filter(|rewritten| functions.contains(&rewritten.function)).collect();
        let functions: FxHashSet<FunctionId> = found.iter().map(|rewritten| rewritten.function).collect();
        let mut changed: Vec<Avma> = found.iter().flat_map(|rewritten| rewritten.bytes.iter().copied()).collect();
        changed.sort_unstable();
        let keys = control.pairs.with_code_in(&functions);
        let going = control.pairs.minis_of(&keys.iter().collect());
        let mut minis: FxHashSet<(FunctionId, u64)> = going.into_iter().collect();
        // snippets that pairs of other functions need there
        let woven = control.attached.iter().flat_map(|attached| functions.iter().map(|f| (*f, &attached.woven)));
        let at_points = woven.flat_map(|(function, woven)| {
            let all = woven.points_of(function).flat_map(|(_, point)| point.minis.iter().map(|mini| mini.id));
            all.filter(|id| *id != PRUNE).map(move |id| (function, id))
        });
        minis.extend(at_points);
        let minis: Vec<(FunctionId, u64)> = minis.into_iter().collect();
        let warnings: Vec<String> = found.iter().map(|rewritten| self.warning(control, rewritten)).collect();
        let mut left = LeftCalls::of(self, control, keys.iter());
        self.withdraw_fitting(control, &minis, &|plan| fitting(&self.target, plan, &changed), Some(&mut left))?;
        let why = TakenOut { rewritten: true, ..TakenOut::free(now_ns()) };
        keys.iter().for_each(|key| self.freeze(control, key, why, Some(&left)));
        self.settle_accounts(control);
        self.findings.note(self.pid(), warnings, now_ns());
        Ok(())
    }

    fn warning(&self, control: &Control, rewritten: &Rewritten) -> String {
        let name = |(_, _, f): (_, _, &ingraft_analysis::Function)| f.display_name().into_owned();
        let function = control.modules.resolve(rewritten.function).map(name).unwrap_or_default();
        let at = rewritten.bytes.first().map_or(0, |at| at.0);
        format!(
            "the program, or somebody else, has changed the code of `{function}` at {at:#x} while the function ran as a copy: \
             the copy was given up, and what was measured there is not exact"
        )
    }
}
