//! Records of values that a snippet appends to a buffer. [`crate::record`] tells how they lie there.

use super::Expr;

/// Values that a snippet appends to a buffer as one record.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Recorded {
    /// Number that tells this record's statement from others of the same buffer.
    pub number: u16,
    /// Whether the time by the clock of wall timers is the record's first value.
    pub time: bool,
    /// Further values, in this order.
    pub fields: Vec<Field>,
    /// Largest number of records that a thread makes until the engine permits more. Others are counted as skipped, and their values are not
    /// computed. `None` if there is no limit.
    pub limit: Option<u32>,
}

impl Recorded {
    /// Largest number of words of a record.
    pub const WORDS_MAX: u32 = 48;

    /// Number of words of the record, with its header.
    pub fn words(&self) -> u32 {
        1 + u32::from(self.time) + self.fields.iter().map(Field::words).sum::<u32>()
    }
}

/// A value in a record.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Field {
    /// A number.
    Number(Expr),
    /// The bytes at an address, as many as can be read but at most [`Field::TEXT_BYTES`]. The first word holds how many were read; 0 if
    /// none could be read, and in fork children that are not measured.
    Text(Expr),
}

impl Field {
    /// Largest number of bytes of a text.
    pub const TEXT_BYTES: u32 = 64;

    /// Number of words in the record.
    pub const fn words(&self) -> u32 {
        match self {
            Field::Number(_) => 1,
            Field::Text(_) => 1 + Field::TEXT_BYTES / 8,
        }
    }

    /// The number, or the address of the text.
    pub const fn operand(&self) -> &Expr {
        match self {
            Field::Number(e) | Field::Text(e) => e,
        }
    }

    /// The number, or the address of the text.
    pub const fn operand_mut(&mut self) -> &mut Expr {
        match self {
            Field::Number(e) | Field::Text(e) => e,
        }
    }
}
