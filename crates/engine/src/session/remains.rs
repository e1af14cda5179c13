//! The things that are in a target although no measurement needs them: memory of a removal that is not finished, code of a dead engine, and
//! threads in code that was taken out.

use std::time::{Duration, Instant};

use ingraft_model::Tid;

/// Time until the first retry of a removal that does not wait for sleeping threads; it doubles with each try.
const PAUSE: Duration = Duration::from_secs(1);
/// Longest time between two tries; each try holds the target.
const PAUSE_MAX: Duration = Duration::from_secs(60);
/// Time between two tries to remove the code of a dead engine; each try holds the target.
const SPARE_PAUSE: Duration = Duration::from_secs(60);

/// The things that are in a target although no measurement needs them.
#[derive(Debug, Default)]
pub(super) struct Remains {
    /// Set if everything except the memory was taken out, and the memory has to stay for a while.
    unfinished: Option<Unfinished>,
    /// Whether a thread may be in code that was taken out, so that counters must not be reused.
    stragglers: bool,
    spare: SpareCode,
}

/// A removal that waits.
#[derive(Debug)]
struct Unfinished {
    /// Threads that sleep uninterruptibly; empty if the removal waits for something else.
    asleep: Vec<Tid>,
    /// Time of the next try, if no sleeping thread is waited for.
    next: Instant,
    pause: Duration,
}

/// Code of a dead engine.
#[derive(Debug, Default)]
struct SpareCode {
    /// Whether there may be such code that no measurement needs.
    exists: bool,
    /// Earliest time of the next try to remove it; `None` for an immediate try.
    after: Option<Instant>,
}

/// State of a target after the attempt to take everything out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// Nothing of the engine is in the target.
    Clean,
    /// The text is the original one. The memory stays until no thread needs it.
    MemoryLeft,
    /// Another program has changed the text, so that the next engine has to finish the removal.
    TextLeft,
}

impl Outcome {
    /// The state if the memory was unmapped, or the text restored.
    pub(super) fn of(unmapped: bool, text_restored: bool) -> Self {
        match (unmapped, text_restored) {
            // the remaining differences in the text are those of other programs
            (true, _) => Outcome::Clean,
            (false, true) => Outcome::MemoryLeft,
            (false, false) => Outcome::TextLeft,
        }
    }
}

impl Remains {
    /// Whether memory of an unfinished removal is in the target.
    pub(super) fn is_unfinished(&self) -> bool {
        self.unfinished.is_some()
    }

    /// Notes that the memory stays after a removal. `asleep` lists the threads that sleep uninterruptibly. A thread may still count in code that
    /// was taken out.
    pub(super) fn leave_memory(&mut self, asleep: Vec<Tid>, now: Instant) {
        let pause = self.unfinished.as_ref().map_or(PAUSE, |before| (before.pause * 2).min(PAUSE_MAX));
        self.unfinished = Some(Unfinished { asleep, next: now + pause, pause });
        self.stragglers = true;
    }

    /// Whether the next try to finish a removal is due: a sleeping thread is awake, or the pause is over.
    pub(super) fn is_due(&self, now: Instant, is_asleep: impl Fn(Tid) -> bool) -> bool {
        self.unfinished.as_ref().is_some_and(|waits| match waits.asleep.as_slice() {
            [] => now >= waits.next,
            asleep => !asleep.iter().all(|tid| is_asleep(*tid)),
        })
    }

    /// Notes that the memory is gone, or that this engine has let the target go. Returns whether a removal was unfinished.
    pub(super) fn finish(&mut self) -> bool {
        self.unfinished.take().is_some()
    }

    /// Whether a thread may be in code that was taken out, so that counters must not be reused.
    pub(super) fn has_stragglers(&self) -> bool {
        self.stragglers
    }

    /// Notes whether a thread may be in code that was taken out.
    pub(super) fn set_stragglers(&mut self, are_possible: bool) {
        self.stragglers = are_possible;
    }

    /// Notes that code of a dead engine may be there that no measurement needs; it is removed at once.
    pub(super) fn note_spare(&mut self) {
        self.spare = SpareCode { exists: true, after: None };
    }

    /// Whether code of a dead engine is to be removed now. Takes the note away.
    pub(super) fn take_spare(&mut self, now: Instant) -> bool {
        self.spare.after.is_none_or(|after| now >= after) && std::mem::take(&mut self.spare.exists)
    }

    /// Notes that code of a dead engine could not be removed, so that it is tried again later.
    pub(super) fn keep_spare(&mut self, now: Instant) {
        self.spare = SpareCode { exists: true, after: Some(now + SPARE_PAUSE) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(begin: Instant, ms: u64) -> Instant {
        begin + Duration::from_millis(ms)
    }

    #[test]
    fn a_removal_ends_in_one_of_three_states() {
        assert_eq!(Outcome::of(true, true), Outcome::Clean);
        assert_eq!(Outcome::of(true, false), Outcome::Clean, "what differs belongs to another program");
        assert_eq!(Outcome::of(false, true), Outcome::MemoryLeft);
        assert_eq!(Outcome::of(false, false), Outcome::TextLeft);
    }

    #[test]
    fn a_removal_without_sleepers_is_tried_more_and_more_rarely() {
        let (mut remains, begin) = (Remains::default(), Instant::now());
        assert!(!remains.is_due(begin, |_| true), "nothing waits");
        let mut pauses = Vec::new();
        for _ in 0..8 {
            remains.leave_memory(Vec::new(), begin);
            let due = |seconds: &u64| remains.is_due(begin + Duration::from_secs(*seconds), |_| true);
            pauses.extend((0..100).find(due));
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 60, 60]);
        assert!(remains.finish() && !remains.finish() && !remains.is_unfinished());
        remains.leave_memory(Vec::new(), begin);
        assert!(
            !remains.is_due(at(begin, 999), |_| true) && remains.is_due(at(begin, 1000), |_| true),
            "it begins anew"
        );
    }

    #[test]
    fn a_removal_waits_for_the_first_sleeper_that_wakes() {
        let (mut remains, begin) = (Remains::default(), Instant::now());
        remains.leave_memory(vec![Tid(3), Tid(4)], begin);
        assert!(remains.is_unfinished());
        let much_later = begin + 10 * PAUSE_MAX;
        assert!(!remains.is_due(much_later, |_| true), "both sleep, however long it takes");
        assert!(remains.is_due(begin, |tid| tid == Tid(3)), "one is awake");
        assert!(remains.is_due(begin, |_| false));
    }

    #[test]
    fn counters_are_not_reused_while_a_thread_may_count() {
        let mut remains = Remains::default();
        assert!(!remains.has_stragglers());
        remains.leave_memory(Vec::new(), Instant::now());
        assert!(remains.has_stragglers());
        remains.finish();
        assert!(remains.has_stragglers(), "the memory of a later measurement is the same");
        remains.set_stragglers(false);
        assert!(!remains.has_stragglers());
    }

    #[test]
    fn spare_code_is_tried_once_and_then_after_a_pause() {
        let (mut remains, begin) = (Remains::default(), Instant::now());
        assert!(!remains.take_spare(begin), "there is none");
        remains.note_spare();
        assert!(remains.take_spare(begin));
        assert!(!remains.take_spare(begin), "it is gone");
        remains.keep_spare(begin);
        assert!(!remains.take_spare(at(begin, 59_999)));
        assert!(remains.take_spare(at(begin, 60_000)));
        remains.keep_spare(begin);
        remains.note_spare();
        assert!(remains.take_spare(begin), "a measurement was removed, so there may be more");
    }
}
