//! Reasons why the type of a variable, an argument or a result does not lead to an integer.

/// Reason why a variable, an argument or a result has no integer that can be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TypeError {
    /// The file has no debugging information, and no separate debug file was found.
    #[error("its module has no debugging information")]
    NoDebugInfo,
    /// The debugging information is compressed in a way that is not known, is damaged, or takes too much memory.
    #[error("the debugging information of its module cannot be decompressed")]
    Compressed,
    /// The debugging information is in another file (`.dwo` or `.dwp`) that is not found, or does not belong to the module.
    #[error("its debugging information is in {file}, which is not found beside the program or where it was compiled")]
    OtherFile {
        /// Name of the file, as the compiler has noted it.
        file: String,
    },
    /// The debugging information does not describe the variable or function.
    #[error("the debugging information does not describe {what}")]
    NotDescribed {
        /// The undescribed thing, as the message names it.
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
    /// The function has no argument of this name.
    #[error("it has no argument `{name}`")]
    NoArgument {
        /// The name.
        name: String,
        /// The names of its arguments.
        has: Vec<String>,
    },
    /// A member was asked for in something that has no members.
    #[error("`{member}` is asked of {of}, which has no members")]
    NoStructure {
        /// The member.
        member: String,
        /// The type without members, as the message names it.
        of: String,
    },
    /// The member is a bit field: it takes a part of a byte, or parts of several bytes.
    #[error("`{member}` is a bit field")]
    BitField {
        /// The member.
        member: String,
    },
    /// The value has a type that is no integer.
    #[error("it is {what}, not an integer of 1, 2, 4 or 8 bytes")]
    NoInteger {
        /// The type of the value, as the message names it.
        what: String,
    },
    /// The location of the argument is not known.
    #[error("where argument {argument} is cannot be told: {why}")]
    Misplaced {
        /// Number or name of the argument, as the message names it.
        argument: String,
        /// The reason, as the message words it.
        why: &'static str,
    },
}

impl TypeError {
    /// Whether nothing describes the thing, or nothing that can be read.
    pub const fn is_missing(&self) -> bool {
        matches!(self, Self::NoDebugInfo | Self::Compressed | Self::OtherFile { .. } | Self::NotDescribed { .. })
    }
}
