//! Looks at the program between requests: at the text of copied functions, and at the signal handlers.

use std::time::{Duration, Instant};

use ingraft_model::FunctionId;
use rustc_hash::FxHashSet;

use crate::weaving::original::CopiedText;

/// Number of times that the pause after a look at the text is longer than the look.
const SHARE: u32 = 100;

/// The looks at the text of copied functions.
#[derive(Debug, Default)]
pub(super) struct LooksAtText {
    /// Earliest time of the next look; `None` for an immediate one.
    next: Option<Instant>,
    /// Functions in which the last look has found a difference.
    suspects: FxHashSet<FunctionId>,
    /// Text in which the last full comparison has found no difference.
    seen: Option<CopiedText>,
}

impl LooksAtText {
    /// Whether a look is due.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.next.is_none_or(|next| next <= now)
    }

    /// Whether the text is the one in which the last full comparison has found no difference.
    pub(super) fn is_known(&self, text: Option<&CopiedText>) -> bool {
        text.is_some() && text == self.seen.as_ref()
    }

    /// Notes the text before a full comparison, and whether the comparison has found differences.
    pub(super) fn note_text(&mut self, text: Option<CopiedText>, differs: bool) {
        self.seen = text.filter(|_| !differs);
    }

    /// Notes the functions in which a look has found differences, when it ended and how long it took. Returns those in which the look before
    /// has found some too.
    pub(super) fn confirm(
        &mut self,
        found: FxHashSet<FunctionId>,
        now: Instant,
        work: Duration,
    ) -> FxHashSet<FunctionId> {
        self.next = Some(now + work * SHARE);
        let confirmed = found.intersection(&self.suspects).copied().collect();
        self.suspects = found;
        confirmed
    }
}

/// The looks at the signal handlers of the program.
#[derive(Debug, Default)]
pub(super) struct LooksAtHandlers {
    /// The signals that had handlers at the last look, and whether threads could be cancelled. `None` before the first one.
    seen: Option<(u64, bool)>,
}

impl LooksAtHandlers {
    /// Whether the last look has seen handlers of the same signals.
    pub(super) fn are_known(&self, handled: u64, cancels: bool) -> bool {
        self.seen == Some((handled, cancels))
    }

    /// Notes a look.
    pub(super) fn note(&mut self, handled: u64, cancels: bool) {
        self.seen = Some((handled, cancels));
    }
}

#[cfg(test)]
mod tests {
    use crate::pairs::tests::function;

    use super::*;

    #[test]
    fn a_difference_counts_when_it_is_seen_twice() {
        let of = |functions: &[u32]| functions.iter().map(|f| function(0, *f)).collect::<FxHashSet<_>>();
        let (mut looks, now) = (LooksAtText::default(), Instant::now());
        assert!(looks.is_due(now));
        let mut confirm = |found: &[u32]| looks.confirm(of(found), now, Duration::ZERO);
        assert_eq!(confirm(&[1, 2]), of(&[]));
        assert_eq!(confirm(&[2, 3]), of(&[2]));
        assert_eq!(confirm(&[2]), of(&[2]), "it was not given up, so it is tried again");
        assert_eq!(confirm(&[]), of(&[]));
        assert_eq!(confirm(&[2]), of(&[]), "gone in between");
    }

    #[test]
    fn looks_take_a_hundredth_of_a_processor() {
        let (mut looks, now) = (LooksAtText::default(), Instant::now());
        looks.confirm(FxHashSet::default(), now, Duration::from_millis(3));
        assert!(!looks.is_due(now + Duration::from_millis(299)));
        assert!(looks.is_due(now + Duration::from_millis(300)));
    }

    #[test]
    fn handlers_are_looked_at_when_they_change() {
        let mut looks = LooksAtHandlers::default();
        assert!(!looks.are_known(0, false), "there was no look");
        looks.note(0, false);
        assert!(looks.are_known(0, false));
        assert!(!looks.are_known(1, false) && !looks.are_known(0, true));
    }
}
