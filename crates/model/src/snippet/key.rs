//! Parts of a key in a table (see [`crate::table`]), as code computes them.

use super::Expr;

/// Part of a key.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum KeyField {
    /// A number.
    Number(Expr),
    /// The text at an address up to its first zero byte, as far as it can be read and at most [`crate::table::TEXT_BYTES`].
    Text(Expr),
    /// The text at an address, of this number of bytes. A number that is not positive gives an empty text.
    BoundedText(Expr, Expr),
}

impl KeyField {
    /// Whether the part is a text.
    pub const fn is_text(&self) -> bool {
        !matches!(self, KeyField::Number(_))
    }

    /// The number, or the address of the text and its length.
    pub fn operands(&self) -> impl Iterator<Item = &Expr> {
        let (first, second) = match self {
            KeyField::Number(e) | KeyField::Text(e) => (e, None),
            KeyField::BoundedText(address, length) => (address, Some(length)),
        };
        std::iter::once(first).chain(second)
    }

    /// The number, or the address of the text and its length.
    pub fn operands_mut(&mut self) -> impl Iterator<Item = &mut Expr> {
        let (first, second) = match self {
            KeyField::Number(e) | KeyField::Text(e) => (e, None),
            KeyField::BoundedText(address, length) => (address, Some(length)),
        };
        std::iter::once(first).chain(second)
    }
}
