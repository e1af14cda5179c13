//! Reasons why the type of a variable, an argument or a result does not lead to an integer.

/// Why something is no integer that can be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TypeError {
    /// The file has no debugging information, and no separate debug file was found.
    #[error("its module has no debugging information")]
    NoDebugInfo,
    /// The debugging information is compressed.
    #[error("the debugging information of its module is compressed")]
    Compressed,
    /// The debugging information does not describe it.
    #[error("the debugging information does not describe {what}")]
    NotDescribed {
        /// What.
        what: &'static str,
    },
    /// A structure has no such member.
    #[error("`{of}` has no member `{member}`")]
    NoMember {
        /// The member.
        member: String,
        /// The structure.
        of: String,
        /// The members that it has.
        has: Vec<String>,
    },
    /// A member of something that has none.
    #[error("`{member}` is asked of {of}, which has no members")]
    NoStructure {
        /// The member.
        member: String,
        /// Of what.
        of: String,
    },
    /// It takes a part of a byte, or parts of several.
    #[error("`{member}` is a bit field")]
    BitField {
        /// The member.
        member: String,
    },
    /// It is something else.
    #[error("it is {what}, not an integer of 1, 2, 4 or 8 bytes")]
    NoInteger {
        /// The type that it has, as the message names it.
        what: String,
    },
    /// Where an argument is cannot be told.
    #[error("where argument {argument} is cannot be told: {why}")]
    Misplaced {
        /// Number of the argument, as the message names it.
        argument: u8,
        /// Why.
        why: &'static str,
    },
}
