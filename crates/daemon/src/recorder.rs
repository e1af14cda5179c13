//! Recorder of histories, for measurements whose request asked for them. For each measurement, a task reads the values once in each
//! interval of a history.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ingraft_api::Reason;
use ingraft_engine::{Caller, MeasurementId, PairInfo, Reading};
use ingraft_model::Course;
use ingraft_model::history::INTERVAL_NS;
use ingraft_wire::ProtocolFailure;
use tokio::time::MissedTickBehavior;

use crate::core::Core;
use crate::recording::{PAIRS_MAX, Recording, course};

/// The recordings of a running engine.
#[derive(Debug, Default)]
pub struct HistoryRecorder {
    recordings: Mutex<HashMap<MeasurementId, Arc<Mutex<Recording>>>>,
}

impl HistoryRecorder {
    fn table(&self) -> MutexGuard<'_, HashMap<MeasurementId, Arc<Mutex<Recording>>>> {
        self.recordings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the number of histories of these measurements.
    pub fn histories(&self, ids: &[MeasurementId]) -> usize {
        ids.iter().filter_map(|id| self.of(*id)).map(|recording| open(&recording).histories_kept()).sum()
    }

    fn of(&self, id: MeasurementId) -> Option<Arc<Mutex<Recording>>> {
        self.table().get(&id).cloned()
    }
}

/// Fails if a measurement with histories would have too many pairs.
pub fn permit(pairs: usize) -> Result<(), ProtocolFailure> {
    if pairs <= PAIRS_MAX {
        return Ok(());
    }
    Err(ProtocolFailure::new(
        Reason::TooManyHistories,
        format!("histories of {pairs} pairs were asked for; {PAIRS_MAX} are the most"),
        "ask for fewer pairs, or for no history",
    ))
}

/// Records a newly inserted measurement until it is removed.
pub fn begin(core: &Core, id: MeasurementId, pairs: &[PairInfo], now_ns: u64) {
    let recording = Arc::new(Mutex::new(Recording::begin(courses(pairs), now_ns)));
    core.recorder().table().insert(id, recording);
    tokio::spawn(record(core.clone(), id));
}

fn courses(pairs: &[PairInfo]) -> Vec<Course> {
    pairs.iter().map(|pair| course(pair.metric.style)).collect()
}

async fn record(core: Core, id: MeasurementId) {
    let mut closing = core.closing();
    let mut ticks = tokio::time::interval(Duration::from_nanos(INTERVAL_NS));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            () = closing.wait() => return,
        }
        // If the measurement cannot be read any more, it was removed. After the target's end its last values can still be read.
        if look(&core, id, Caller::Engine).await.is_err() {
            core.recorder().table().remove(&id);
            return;
        }
    }
}

/// Reads the current values and adds them to the recording. Fails if `caller` may not read them.
pub async fn look(core: &Core, id: MeasurementId, caller: Caller) -> Result<Arc<Mutex<Recording>>, ProtocolFailure> {
    let Reading { time_ns, values, ended } = core.engine_call(move |engine| engine.read(id, false, caller)).await?;
    let recording = core.recorder().of(id).ok_or_else(|| not_recorded(id))?;
    let known = open(&recording).pairs();
    if values.len() > known {
        let (_, pairs) = core.engine_call(move |engine| engine.pairs(id, Caller::Engine)).await?;
        if let Some(new) = pairs.get(known..values.len()).filter(|_| values.len() <= PAIRS_MAX) {
            let mut recording = open(&recording);
            // Another task may have added the new pairs in the meantime.
            if recording.pairs() == known {
                recording.grow(&courses(new));
            }
        }
    }
    if ended.is_none() {
        let mut recording = open(&recording);
        let known = recording.pairs();
        recording.record(time_ns, values.iter().take(known).map(|value| value.value).collect());
    }
    Ok(recording)
}

/// Locks a recording for a short time.
pub fn open(recording: &Mutex<Recording>) -> MutexGuard<'_, Recording> {
    recording.lock().unwrap_or_else(PoisonError::into_inner)
}

fn not_recorded(id: MeasurementId) -> ProtocolFailure {
    ProtocolFailure::new(
        Reason::NoHistory,
        format!("measurement {} keeps no history", id.0),
        "insert it with Measure.history (`ingraft watch --history`)",
    )
}

/// Returns the failure for a phase that does not exist or whose histories were deleted.
pub fn no_phase(number: u32) -> ProtocolFailure {
    ProtocolFailure::new(
        Reason::NoSuchPhase,
        format!("there is no phase {number}, or it was long ago"),
        "the first message of an answer without a phase lists them",
    )
}
