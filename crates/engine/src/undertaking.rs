//! Insertions in progress: how far they are, and requests to give them up.
//!
//! An insertion takes seconds if a program is large: the analysis of its files, the choice of places, the generation and proof of code.
//! Only then does the engine change text. If nobody wants the measurement any more, the insertion ends before that:
//!
//! - Before the engine touches the target, [`Undertaking::give_up`] keeps it from doing so. The caller need not even wait for the end.
//! - While code is generated, the threads that generate it unwind at the next check, and the insertion fails as it does for any other reason.

use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::error::{Error, Reason};

/// Time of a step before which the rest of it is not estimated.
const ESTIMATED_AFTER: Duration = Duration::from_millis(300);

/// The engine may be touching the target. This is so at the beginning, because the opening of a session may restore what a dead engine left.
const TOUCHES: u8 = 0;
/// The engine only reads files and the target, and has not touched the target for this insertion.
const PLANS: u8 = 1;
/// The insertion was given up before the engine touched the target.
const GIVEN_UP: u8 = 2;

/// An insertion in progress.
#[derive(Debug)]
pub struct Undertaking {
    state: AtomicU8,
    is_unwanted: AtomicBool,
    step: Mutex<Option<InsertionStep>>,
    /// Units of the step that are done.
    done: Arc<AtomicU64>,
}

#[derive(Debug)]
struct InsertionStep {
    what: String,
    units: u64,
    begin: Instant,
}

/// Progress of an insertion within its present step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepProgress {
    /// The step, one line for people.
    pub what: String,
    /// Part of the step that is done, in percent.
    pub percent: u8,
    /// Estimate of the time until the step is done; `None` if the step has just begun.
    pub left: Option<Duration>,
}

thread_local! {
    /// The insertion that this thread works for.
    static CURRENT: RefCell<Option<Arc<Undertaking>>> = const { RefCell::new(None) };
    /// Whether this thread may unwind if the insertion is given up.
    static MAY_UNWIND: Cell<bool> = const { Cell::new(false) };
}

/// Payload with which threads unwind out of an insertion that was given up.
struct Unwinding;

impl Default for Undertaking {
    fn default() -> Self {
        Undertaking {
            state: AtomicU8::new(TOUCHES),
            is_unwanted: AtomicBool::new(false),
            step: Mutex::default(),
            done: Arc::default(),
        }
    }
}

impl Undertaking {
    /// Makes an insertion by calls of the engine.
    pub fn run<R>(self: &Arc<Self>, insertion: impl FnOnce() -> R) -> R {
        within(Some(Arc::clone(self)), insertion)
    }

    /// Asks the engine to give the insertion up. Returns whether the engine has not touched the target for it, and will not.
    pub fn give_up(&self) -> bool {
        self.is_unwanted.store(true, Ordering::SeqCst);
        let given_up = self.state.compare_exchange(PLANS, GIVEN_UP, Ordering::SeqCst, Ordering::SeqCst);
        given_up.is_ok() || given_up == Err(GIVEN_UP)
    }

    /// The progress of the present step; `None` if it is not known.
    pub fn progress(&self) -> Option<StepProgress> {
        let step = self.step();
        let InsertionStep { what, units, begin } = step.as_ref().filter(|step| step.units > 0)?;
        let (done, spent) = (self.done.load(Ordering::Relaxed).min(*units), begin.elapsed());
        let percent = (done * 100 / units).min(99) as u8;
        let left = (done > 0 && spent > ESTIMATED_AFTER).then(|| spent.mul_f64((units - done) as f64 / done as f64));
        Some(StepProgress { what: what.clone(), percent, left })
    }

    fn step(&self) -> MutexGuard<'_, Option<InsertionStep>> {
        self.step.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The insertion that this thread works for.
pub(crate) fn current() -> Option<Arc<Undertaking>> {
    CURRENT.with_borrow(Clone::clone)
}

/// Works for an insertion on this thread.
pub(crate) fn within<R>(undertaking: Option<Arc<Undertaking>>, work: impl FnOnce() -> R) -> R {
    struct RestoreOnDrop(Option<Arc<Undertaking>>);
    impl Drop for RestoreOnDrop {
        fn drop(&mut self) {
            CURRENT.set(self.0.take());
        }
    }
    let _before = RestoreOnDrop(CURRENT.replace(undertaking));
    work()
}

/// Whether the insertion that this thread works for was given up.
pub(crate) fn is_given_up() -> bool {
    CURRENT.with_borrow(|current| current.as_ref().is_some_and(|u| u.is_unwanted.load(Ordering::Relaxed)))
}

/// Fails if the insertion was given up.
pub(crate) fn go_on() -> Result<(), Error> {
    if is_given_up() { Err(given_up()) } else { Ok(()) }
}

/// Notes that the engine only reads from now on, until [`touch`].
pub(crate) fn plan() {
    if let Some(current) = current() {
        let state = if current.is_unwanted.load(Ordering::SeqCst) { GIVEN_UP } else { PLANS };
        current.state.store(state, Ordering::SeqCst);
    }
}

/// Notes that the engine is about to touch the target. Fails if the insertion was given up.
pub(crate) fn touch() -> Result<(), Error> {
    let Some(current) = current() else { return Ok(()) };
    let touched = current.state.compare_exchange(PLANS, TOUCHES, Ordering::SeqCst, Ordering::SeqCst);
    match touched {
        Err(GIVEN_UP) => Err(given_up()),
        Ok(_) | Err(_) => go_on(),
    }
}

/// Notes that the target is as it was before the insertion touched it. If the insertion was given up, nobody has to wait for its end.
pub(crate) fn untouched() {
    if let Some(current) = current()
        && current.is_unwanted.load(Ordering::SeqCst)
    {
        current.state.store(GIVEN_UP, Ordering::SeqCst);
    }
}

fn given_up() -> Error {
    let what = "the insertion was given up before any code was changed";
    Error::new(Reason::GivenUp, what, "ask for it again")
}

/// Begins a step of this many units.
pub(crate) fn begin_step(what: impl FnOnce() -> String, units: u64) {
    if let Some(current) = current() {
        let mut step = current.step();
        current.done.store(0, Ordering::Relaxed);
        *step = Some(InsertionStep { what: what(), units, begin: Instant::now() });
    }
}

/// The units of the present step that are done.
pub(crate) fn done() -> Arc<AtomicU64> {
    current().map(|current| Arc::clone(&current.done)).unwrap_or_default()
}

/// Does work that changes nothing but its result. If the insertion is given up, the work ends at the next [`Check`], by unwinding.
pub(crate) fn interruptible<R>(work: impl FnOnce() -> Result<R, Error>) -> Result<R, Error> {
    struct Forbidden;
    impl Drop for Forbidden {
        fn drop(&mut self) {
            MAY_UNWIND.set(false);
        }
    }
    if current().is_none() {
        return work();
    }
    let result = {
        let _afterwards = Forbidden;
        MAY_UNWIND.set(true);
        // The result so far is dropped, so it does not matter that it is incomplete.
        catch_unwind(AssertUnwindSafe(work))
    };
    result.unwrap_or_else(|payload| if payload.is::<Unwinding>() { Err(given_up()) } else { resume_unwind(payload) })
}

/// Checks for the threads that do parts of the work of this thread.
#[derive(Clone, Debug)]
pub(crate) struct Check(Option<Arc<Undertaking>>);

impl Check {
    /// The checks of work that this thread is about to share. They do nothing unless the work is interruptible.
    pub(crate) fn of_this_thread() -> Self {
        Check(if MAY_UNWIND.get() { current() } else { None })
    }

    /// Notes that units of the step are done. Unwinds if the insertion was given up.
    pub(crate) fn pass(&self, units: u64) {
        let Some(undertaking) = &self.0 else { return };
        if undertaking.is_unwanted.load(Ordering::Relaxed) {
            resume_unwind(Box::new(Unwinding));
        }
        if units > 0 {
            undertaking.done.fetch_add(units, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_given_up_in_time_never_touches_the_target() {
        let undertaking = Arc::new(Undertaking::default());
        undertaking.run(|| {
            plan();
            assert!(undertaking.give_up() && undertaking.give_up(), "in time");
            assert_eq!(touch().map_err(|e| e.reason), Err(Reason::GivenUp));
        });
        assert_eq!(touch().map_err(|e| e.reason), Ok(()), "this thread works for no insertion any more");
    }

    #[test]
    fn a_target_that_is_touched_has_to_be_waited_for() {
        let undertaking = Arc::new(Undertaking::default());
        undertaking.run(|| {
            plan();
            assert_eq!(touch().map_err(|e| e.reason), Ok(()));
            assert!(!undertaking.give_up());
            assert_eq!(go_on().map_err(|e| e.reason), Err(Reason::GivenUp));
        });
        let early = Arc::new(Undertaking::default());
        assert!(!early.give_up(), "its session may be restoring what a dead engine left");
        early.run(|| {
            plan();
            assert_eq!(touch().map_err(|e| e.reason), Err(Reason::GivenUp));
        });
        assert!(early.give_up());
    }

    #[test]
    fn parts_unwind_only_where_that_is_allowed() {
        let undertaking = Arc::new(Undertaking::default());
        let answer = undertaking.run(|| {
            begin_step(|| "step".to_owned(), 4);
            Check::of_this_thread().pass(1);
            assert_eq!(undertaking.progress().map(|p| p.percent), Some(0), "not interruptible");
            interruptible(|| {
                let check = Check::of_this_thread();
                check.pass(1);
                assert_eq!(undertaking.progress().map(|p| p.percent), Some(25));
                undertaking.give_up();
                std::thread::scope(|scope| scope.spawn(|| check.pass(1)).join()).unwrap_or_else(|e| resume_unwind(e));
                Ok(())
            })
        });
        assert_eq!(answer.map_err(|e| e.reason), Err(Reason::GivenUp));
        undertaking.run(|| Check::of_this_thread().pass(1));
    }
}
