//! Reasons why the times of a function do not follow from its counts.

/// Reason why a function has no times.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoTimes {
    /// No call of it began.
    #[error("no call of it began")]
    NotCalled,
    /// A loop has several entries, and copies of its blocks would be too many.
    #[error("a loop has several entries, and is too large to be copied for each of them")]
    Irreducible,
    /// The functions call each other, and not enough of the counted calls have ended.
    #[error("functions call each other, and more of these calls were counted than ended")]
    Recursion(Vec<usize>),
    /// Too many blocks depend on too many branches.
    #[error("too many of its blocks depend on too many branches")]
    TooLarge,
}
