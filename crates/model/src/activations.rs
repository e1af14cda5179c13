//! Counts of calls that a measurement could not follow from entry to exit (see [`crate::CallRecord`]).

/// Calls without a complete measurement, counted by reason. The fields are the slots of a
/// [`Shape::Activations`](crate::Shape::Activations), in their order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Activations {
    /// Calls that ended without passing an exit: by an exception, by longjmp, or because their thread ended.
    pub left: u64,
    /// Exits without an open record: the call had begun before the measurement.
    pub unseen: u64,
    /// Calls without a record, because the thread had no room for another record.
    pub unrecorded: u64,
    /// Calls that ended in a tail jump that the engine cannot follow.
    pub left_by_tail_jump: u64,
}

impl Activations {
    /// Returns the calls that were added since `before`.
    #[must_use]
    pub fn minus(self, before: Activations) -> Activations {
        Activations {
            left: self.left.saturating_sub(before.left),
            unseen: self.unseen.saturating_sub(before.unseen),
            unrecorded: self.unrecorded.saturating_sub(before.unrecorded),
            left_by_tail_jump: self.left_by_tail_jump.saturating_sub(before.left_by_tail_jump),
        }
    }

    /// Returns the sum of these counts and those of another thread or function.
    #[must_use]
    pub fn plus(self, other: Activations) -> Activations {
        Activations {
            left: self.left.saturating_add(other.left),
            unseen: self.unseen.saturating_add(other.unseen),
            unrecorded: self.unrecorded.saturating_add(other.unrecorded),
            left_by_tail_jump: self.left_by_tail_jump.saturating_add(other.left_by_tail_jump),
        }
    }
}
