//! Answers to removals.

use std::sync::Arc;

use ingraft_model::{Avma, HoldTime, Pid, Tid};
use ingraft_report::{SavedProfile, TraceChunk, TraceEnd};

use crate::{MeasuredSuspects, PairInfo, PrintedCalls, Reading};

/// Answer to a removal.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Removed {
    /// The target.
    pub pid: Pid,
    /// The longest time that any thread was held without interruption.
    pub stopped: HoldTime,
    /// Whether the text was equal to the original when it was compared after the removal. Also true if the target is gone.
    pub text_restored: bool,
    /// Fork children that could not be restored.
    pub children_left: Vec<Pid>,
    /// Whether arenas and data area are still mapped after the removal, because a thread may return to them or still has a gs base of the
    /// engine. The holder unmaps them once no thread does; if it ends before, the next holder does.
    /// In programs that suspend contexts in signal handlers, they also stay while one may be suspended there, and a warning says so.
    pub memory_left: bool,
    /// The threads that delay the unmapping because they sleep in the kernel.
    pub asleep: Vec<Tid>,
    /// Addresses in the arenas from which suspended contexts may go on, if that alone delays the unmapping; `None` if it does not, or if they
    /// are not known.
    pub suspended_at: Option<Vec<Avma>>,
    /// Numbers of calls in progress at the insertion and at the removal, for which the values are corrected; 0 for plain counts.
    pub corrections: (u64, u64),
    /// Pairs of the measurement if they differ from those of the insertion, because libraries were loaded since.
    pub grown: Option<Arc<Vec<PairInfo>>>,
    /// The last values, read in the stop of the removal.
    pub last: Option<Reading>,
    /// The last counts of a profile; `None` if the measurement is no profile.
    pub profile: Option<Box<SavedProfile>>,
    /// The end of a trace; `None` if the measurement is no trace.
    pub trace: Option<TraceRest>,
    /// The last printed calls, and the final numbers; `None` if the measurement prints no calls.
    pub printed: Option<PrintedCalls>,
    /// Values that were measured of suspected parts; `None` if the measurement is not about shares of variance.
    pub shares: Option<MeasuredSuspects>,
    /// Changes that other programs have made to the code: the reason why the code differs from the original, or the places that were
    /// repaired.
    pub warnings: Vec<String>,
    /// Patterns and foci that matched no function of any module that was loaded.
    pub awaited: Vec<String>,
}

/// The end of a trace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TraceRest {
    /// The last tokens.
    pub chunks: Vec<TraceChunk>,
    /// The end of the file.
    pub end: TraceEnd,
}
