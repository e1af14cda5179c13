//! Requests about a measurement after its insertion.

use std::sync::Arc;

use ingraft_model::ValueUnit;

use crate::api::{MeasurementId, PairInfo};
use crate::error::Error;
use crate::recovery::journal::{JournalRecord, KeptMeasurement, KeptPair};

use super::control::Control;
use super::driver::Session;
use super::errors::no_measurement;
use super::measurement::warnings_of;
use super::view::View;

impl Session {
    /// Ids of the measurements of this session.
    pub fn measurements(&self) -> Vec<MeasurementId> {
        self.control().measurements.keys().copied().collect()
    }

    /// The pairs of a measurement, in the order of its values. Fails if there is no such measurement.
    pub fn pairs(&self, id: MeasurementId) -> Result<Arc<Vec<PairInfo>>, Error> {
        self.control().measurements.get(&id).map(|m| Arc::clone(&m.pairs)).ok_or_else(|| no_measurement(id))
    }

    /// Warnings about the modules that a measurement waits for, one line for each.
    pub fn awaiting(&self, id: MeasurementId) -> Vec<String> {
        let control = self.control();
        let measurement = control.measurements.get(&id);
        measurement.map_or_else(Vec::new, |measurement| warnings_of(&measurement.awaited, &control.modules))
    }

    /// Sets whether a measurement stays when the client or the engine ends.
    pub fn keep(&self, id: MeasurementId, keep: bool) -> Result<(), Error> {
        let mut guard = self.control();
        self.keep_locked(&mut guard, id, keep)
    }

    pub(super) fn keep_locked(&self, control: &mut Control, id: MeasurementId, keep: bool) -> Result<(), Error> {
        let measurement = control.measurements.get_mut(&id).ok_or_else(|| no_measurement(id))?;
        if measurement.keep == keep {
            return Ok(());
        }
        measurement.keep = keep;
        let record = if keep {
            let pairs = measurement
                .pairs
                .iter()
                .zip(measurement.views.iter())
                .filter(|(_, view)| view.own.is_none())
                .map(|(info, view)| kept_pair(info, view))
                .collect();
            JournalRecord::Kept(KeptMeasurement {
                id: id.0,
                definitions: measurement.request.definitions.clone(),
                pairs,
            })
        } else {
            JournalRecord::KeptGone(id.0)
        };
        match control.attached.as_mut() {
            Some(attached) => self.write_journal(&mut attached.journal, &attached.area, record.into()),
            None => Ok(()),
        }
    }
}

fn kept_pair(info: &PairInfo, view: &View) -> KeptPair {
    KeptPair {
        metric: info.pair.metric.clone(),
        focus: info.pair.focus.to_string(),
        value: view.value,
        ticks: view.unit == ValueUnit::Ticks,
        activations: view.activations.clone(),
        owner: view.owner,
        function: info.function.as_ref().map(|f| (f.module.clone(), f.function.clone(), f.offset.0)),
        points: info.points,
    }
}
