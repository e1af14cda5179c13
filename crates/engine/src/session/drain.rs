//! The session's part at buffers to which threads append: it drains them, and ends the waits of threads.

use std::time::Instant;

use ingraft_process::SharedArea;

use crate::api::MeasurementId;
use crate::error::{Error, Reason};
use crate::weaving::wanted::WantedPoints;

use super::buffers::{Drained, LAST_VALUES_MAX, LastRecords, Records, VALUES_MAX};
use super::driver::Session;
use super::loader::FILTERS_MAX;

/// Hint for a request whose threads cannot wait for room.
pub(super) const WITHOUT_WAITS: &str = "measure without `--lossless`; gaps are marked";

impl Session {
    /// The records of this type that threads of a measurement have appended since the last call; `None` if it has no such buffers. Does not
    /// stop the target.
    pub(crate) fn drain<R: Records>(&self, id: MeasurementId) -> Option<Vec<Drained>> {
        self.drain_at_most::<R>((id, VALUES_MAX))
    }

    fn drain_at_most<R: Records>(&self, of: (MeasurementId, u64)) -> Option<Vec<Drained>> {
        self.look_for_filters(of.0);
        self.shared_mut().drain::<R>(of, self.clocks.wall().ok())
    }

    /// Ends the buffers of a measurement whose code was taken out; `None` if it has none of this type.
    pub(super) fn end_buffers<R: Records>(&self, id: MeasurementId) -> Option<LastRecords> {
        let drained = self.drain_at_most::<R>((id, LAST_VALUES_MAX))?;
        self.shared_mut().end_buffers(id, drained)
    }

    /// Ends the waits of a measurement if a filter of system calls is active in a thread of the target: it may forbid the calls by which
    /// threads wait.
    fn look_for_filters(&self, id: MeasurementId) {
        let due = self.shared_mut().buffers_mut().is_check_due(id, Instant::now());
        if due && self.target.has_filter(FILTERS_MAX) {
            self.end_waits();
            self.shared_mut().buffers_mut().note_filters(id);
        }
    }

    /// Ends the waits of threads for room in their buffers for good.
    pub(super) fn end_waits(&self) {
        self.shared_mut().end_waits();
    }

    /// Permits threads to wait for room before code is inserted in which they do. Fails if the engine cannot drain the buffers fast enough.
    pub(super) fn permit_waits(&self, area: &SharedArea, wanted: &[WantedPoints<'_>]) -> Result<(), Error> {
        if !wanted.iter().any(|w| w.minis.iter().any(|mini| mini.snippet.waits_for_room())) {
            return Ok(());
        }
        if !area.is_mapped() {
            let what = "threads cannot wait for room in their buffers: the engine cannot map the buffers";
            return Err(Error::new(Reason::NoWaits, what, WITHOUT_WAITS).about(self.pid()));
        }
        area.begin_waits().map_err(|e| self.failed(e))
    }
}
