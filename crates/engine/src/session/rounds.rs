//! The session's calls of the kinds of its measurements.

use std::any::Any;

use rustc_hash::FxHashSet;

use crate::api::MeasurementId;
use crate::error::Error;
use crate::pairs::PairKey;

use super::control::Control;
use super::driver::Session;
use super::errors::no_measurement;
use super::insertion_stop::InsertionStop;
use super::kind::{InsertedPairs, Occasion, Running};
use super::locked::Locked;
use super::view::View;

impl Session {
    /// Asks the kind of a measurement.
    pub(crate) fn with_kind<T>(
        &self,
        id: MeasurementId,
        ask: impl FnOnce(&dyn Any, &Locked<'_>) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let mut control = self.control();
        let rights = control.measurements.get(&id).map(|m| m.rights).ok_or_else(|| no_measurement(id))?;
        let kinds = self.kinds();
        let kind = kinds.get(&id).ok_or_else(|| no_measurement(id))?;
        let _acting = self.target.act_for(rights);
        ask(&**kind, &Locked::new(self, &mut control, id))
    }

    /// Has all kinds do their periodic work.
    pub fn tick(&self) {
        // While a request is served, the watch has other things to look at.
        let Ok(mut control) = self.try_control() else { return };
        if self.end.is_known() || control.attached.is_none() {
            return;
        }
        for (id, kind) in self.kinds().iter_mut() {
            let rights = control.measurements.get(id).filter(|m| !m.revoked).map(|m| m.rights);
            let Some(rights) = rights else { continue };
            let _acting = self.target.act_for(rights);
            kind.tick(&mut Locked::new(self, &mut control, *id));
        }
    }

    /// Tells the kind of a measurement that code was inserted. Takes the pairs without values for clients out of the inserted ones, and
    /// returns the views of those that the measurement does not have yet.
    pub(super) fn begun(
        &self,
        control: &mut Control,
        id: MeasurementId,
        kind: &mut dyn Running,
        mut begun: InsertedPairs<'_>,
    ) -> Vec<View> {
        // None of the code of a library has run that is mapped right now or before the program begins.
        let unrun = matches!(begun.occasion, Occasion::Start | Occasion::Library { ran: false });
        kind.inserted(&mut Locked::new(self, control, id), &mut begun);
        if kind.reads_before_end() {
            self.await_end(control, InsertionStop { unrun, ..InsertionStop::default() });
        }
        let mut hidden: Vec<_> = begun.keys.extract_if(.., |(key, _)| key.is_hidden()).collect();
        let known = control.measurements.get(&id).map_or(&[][..], |measurement| &measurement.hidden);
        let known: FxHashSet<&PairKey> = known.iter().map(|view| &view.key).collect();
        hidden.retain(|(key, _)| !known.contains(key));
        // Counters that a pair only holds keep the values of ended threads by these shapes.
        let held = hidden.iter().filter_map(|(key, _)| control.pairs.get(key));
        let shapes = held.flat_map(|pair| pair.counters.iter().copied().zip(pair.variables.iter().map(|v| v.shape)));
        self.shared_mut().add_shapes(shapes);
        self.views(control, &hidden)
    }

    /// Adds pairs without values for clients to a measurement.
    pub(super) fn note_hidden(control: &mut Control, id: MeasurementId, new: Vec<View>) {
        let Some(measurement) = control.measurements.get_mut(&id) else { return };
        let keys: Vec<_> = new.iter().map(|view| (view.key.clone(), None)).collect();
        measurement.hidden.extend(new);
        control.pairs.add_users(&keys);
    }
}
