//! Prints.
use crate::ast::Path;
use std::fmt;

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.parts.iter().try_for_each(|p| write!(f, "/{}", p.name))
    }
}
