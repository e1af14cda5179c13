//! Attachment to a target: identity of its threads, data area, and the beginning of the journal.

use std::sync::Arc;

use ingraft_codegen::{Environment, Readable};
use ingraft_model::layout::{goroutine, stacks};
use ingraft_model::{CpuClock, DataArea, Scale, ThreadIdentity, WallClock};
use ingraft_process::{DataAreaRequest, SharedArea, vector_state};

use crate::background::in_background;
use crate::error::{Error, Reason};
use crate::measure::sizes;
use crate::program::wall;
use crate::recovery::journal::{Journal, JournalHead};
use crate::recovery::waiting::Scheduler;
use crate::weaving::plan::Woven;

use super::clocks::now_ns;
use super::control::{Attached, Control};
use super::driver::Session;
use super::errors::journal_error;
use super::roster::Roster;
use super::shared::Shared;

/// The clock of processor time for a target whose time stamp counter cannot be used as a clock.
fn without_counter(cpu: CpuClock) -> CpuClock {
    match cpu {
        CpuClock::Rseq { .. } | CpuClock::SystemCall => CpuClock::SystemCall,
        CpuClock::None => CpuClock::None,
    }
}

/// Records of calls that are not in the shard of the thread that executes them.
#[derive(Clone, Copy, Default)]
struct CommonRecords {
    /// Offset from fs of the pointer to the goroutine that a thread executes.
    goroutine: Option<i32>,
    /// Whether threads switch stacks.
    stacks: bool,
}

impl CommonRecords {
    /// Smallest distance between shards with which a data area has room for them.
    fn least_stride(self) -> u64 {
        let of_goroutines = self.goroutine.map_or(0, |_| goroutine::STRIDE_MIN);
        of_goroutines.max(if self.stacks { stacks::STRIDE_MIN } else { 0 })
    }
}

impl Session {
    /// The distance between shards that later measurements may need. A program that has hardly begun (`is_fresh`) gets none: it may want addresses that
    /// are free now, as Java does for its heap.
    fn stride_for_later(&self, control: &Control, is_fresh: bool) -> u64 {
        let usual = if is_fresh { 0 } else { sizes::STRIDE_FOR_LATER };
        // Where contexts are suspended, the memory may stay for these measurements.
        let may_stay = Scheduler::of(&self.target).map(|_| sizes::stride_to_stay(control.modules.text_bytes()));
        usual.max(may_stay.unwrap_or(0))
    }

    /// The clocks that generated code can read.
    fn readable_clocks(&self, cpu: CpuClock) -> Result<(WallClock, CpuClock), Error> {
        let counter_is_off = self.target.counter_is_off(1).map_err(|e| self.failed(e))?;
        if counter_is_off {
            self.clocks.give_counter_up(self.context.clock);
        }
        Ok(match (self.clocks.wall(), cpu) {
            // the vDSO reads the counter too
            (_, cpu) if counter_is_off => (WallClock::SystemCall, without_counter(cpu)),
            (Ok(clock), cpu) if !clock.is_counter() => (wall::of_kernel(&self.target), without_counter(cpu)),
            (_, cpu) => (WallClock::Tsc, cpu),
        })
    }

    fn common_records(&self, control: &Control) -> CommonRecords {
        match control.modules.goroutine_pointer() {
            Some(pointer) => CommonRecords { goroutine: Some(pointer), stacks: false },
            None => {
                let files = in_background(|| self.target.switching_files()).unwrap_or_default();
                CommonRecords { goroutine: None, stacks: !files.is_empty() }
            }
        }
    }

    /// Prepares a target for its first code: determines how threads are told apart, creates the data area, begins the journal.
    pub(super) fn attach(&self, control: &mut Control) -> Result<Attached, Error> {
        let failed = |e| self.failed(e);
        let mut survey = self.target.survey(None).map_err(failed)?;
        if let Some((identity, rseq)) =
            survey.is_fresh.then(|| control.modules.expected_identity(&self.target)).flatten()
        {
            survey.expect(identity, rseq);
        }
        let own_gs =
            control.modules.user_of_gs(&self.target).map(|file| format!("{} uses the gs base itself", file.name));
        let own_gs_is_free = own_gs.is_none();
        let (identity, cpu) = match own_gs {
            Some(_) => (ThreadIdentity::Locked, CpuClock::None),
            None => (survey.identity, survey.cpu),
        };
        let why_locked = own_gs.or_else(|| survey.why_locked.map(str::to_owned));
        // a child has its parent's fs base, and in another pid namespace the thread ids that the child sees differ from the engine's
        let own_namespace = self.target.status().map_err(failed)?.own_id == self.pid().0;
        let family = control.family.begin(identity != ThreadIdentity::FsBase && own_namespace);
        let (wall, cpu) = self.readable_clocks(cpu)?;
        if survey.residue && own_gs_is_free {
            self.target.reset_residue().map_err(failed)?;
        }
        let distinct = identity != ThreadIdentity::Locked && !family;
        let records = if distinct { self.common_records(control) } else { CommonRecords::default() };
        let CommonRecords { goroutine, stacks } = records;
        let least_stride = control.counters.stride().max(records.least_stride());
        let stride = match distinct {
            true => least_stride.max(self.stride_for_later(control, survey.is_fresh)),
            false => least_stride,
        };
        let request = DataAreaRequest {
            least_stride,
            identity,
            cpu,
            wall,
            family,
            goroutine,
            stacks,
            ..DataAreaRequest::of_stride(stride)
        };
        let area = Arc::new(self.target.create_area(&request).map_err(failed)?);
        let since_ns = now_ns();
        let journal = self.begin_journal(control, &area, since_ns)?;
        if survey.is_fresh
            && identity != ThreadIdentity::Locked
            && let Err(e) = self.bootstrap_thread_pointer(area.layout(), identity)
        {
            self.target.unmap(&[area.layout().range()]).map_err(failed)?;
            journal.discard().map_err(|e| journal_error(self.pid(), &e))?;
            return Err(e);
        }
        let status = self.target.status().map_err(failed)?;
        let (data, shadow_stack, vectors) = (area.layout(), status.shadow_stack, vector_state());
        let env = Environment {
            data,
            identity,
            shadow_stack,
            wall,
            ticks: Scale::ONE,
            cpu,
            vectors,
            readable: Readable::default(),
            loader: None,
            goroutine,
            stacks,
        };
        self.forget_hooks();
        let mut shared = self.shared_mut();
        let roster = Roster::new(identity, family);
        *shared = Shared::new(Arc::clone(&area), roster, control.counters.used(), survey.filtered);
        for t in &survey.threads {
            let key = match identity {
                ThreadIdentity::FsBase if survey.is_fresh => area.layout().bootstrap_pointer().0,
                ThreadIdentity::FsBase => t.fs_base,
                ThreadIdentity::FsOffset(_) | ThreadIdentity::Locked => t.own_id as u64,
            };
            shared.roster_mut().note(key, t.tid);
        }
        let cpu_before = self.target.cpu_time().map_err(failed)?;
        let unwinder = control.modules.unwinder().map(|(why, _)| why);
        Ok(Attached { env, area, journal, woven: Woven::default(), why_locked, unwinder, since_ns, cpu_before })
    }

    /// Begins the journal of a target, in its file and in the data area. If that fails, the data area is unmapped.
    fn begin_journal(&self, control: &Control, area: &SharedArea, since_ns: u64) -> Result<Journal, Error> {
        let known = self.target.identity();
        let head = JournalHead {
            boot_id: known.boot_id,
            pid: known.pid,
            start_time: known.start_time,
            executable: control.modules.executable(),
            area: area.layout(),
            since_ns,
            holder: format!("{} {}", self.context.program, std::process::id()),
        };
        let path = self.context.state.journal_path(known.pid, known.start_time);
        let begun = Journal::create(path, &head)
            .map_err(|e| journal_error(self.pid(), &e))
            .and_then(|(journal, bytes)| area.write_journal(&bytes).map_err(|e| self.failed(e)).map(|()| journal));
        if begun.is_err() {
            // Nothing leads into the area yet.
            self.target.unmap(&[area.layout().range()]).map_err(|e| self.failed(e))?;
        }
        begun
    }

    /// Gives the program a thread pointer if its libc has not set one, because generated code reads memory through it.
    fn bootstrap_thread_pointer(&self, area: DataArea, identity: ThreadIdentity) -> Result<(), Error> {
        if self.target.set_bootstrap_pointer(&area, identity).map_err(|e| self.failed(e))? {
            return Ok(());
        }
        let what = "a thread has no thread pointer yet while others run already";
        let hint = "try again in a moment";
        Err(Error::new(Reason::NoThreadPointer, what, hint).about(self.pid()))
    }
}

impl Attached {
    /// States that threads cannot be told apart, and the reason.
    pub(super) fn why_indistinct(&self) -> String {
        let why = self.why_locked.as_deref().unwrap_or("an earlier engine has found so");
        format!("the threads of this program cannot be told apart: {why}")
    }
}
