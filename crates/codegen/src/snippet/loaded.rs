//! Parts of the record of a call that registers hold when the call ends, so that its statements need not load them.

use ingraft_model::{Expr, Stmt};

/// Parts of the record that the enclosing statement closes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Loaded {
    /// Whether rcx holds the top of the records.
    pub top: bool,
    /// The field that rax holds.
    pub field: Option<u32>,
}

impl Loaded {
    /// Whether a statement begins with code that leaves these registers as they are until it reads a word that the record keeps.
    pub fn serves(stmt: &Stmt) -> bool {
        match stmt {
            Stmt::Observe(..) => true,
            Stmt::If(Expr::Binary(_, read, with), _) => {
                is_kept(read) && matches!(**with, Expr::Const(n) if i32::try_from(n).is_ok())
            }
            _ => false,
        }
    }
}

/// Whether the value is a word that the record of the call keeps.
pub(crate) fn is_kept(e: &Expr) -> bool {
    matches!(e, Expr::Elapsed(..) | Expr::Saved(_))
}
