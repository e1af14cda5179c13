//! The static stage.

use crate::ast::{Definition, File};
use crate::diagnostic::Diagnostic;
use crate::library::Library;
use crate::source::Source;

pub(crate) struct Scope<'a> {
    library: &'a Library,
    file: &'a File,
}

impl<'a> Scope<'a> {
    pub(crate) fn new(library: &'a Library, file: &'a File) -> Self {
        Scope { library, file }
    }
}

pub(crate) fn check_definition(
    scope: &Scope<'_>,
    _source: &Source,
    _definition: &Definition,
    _diagnostics: &mut Vec<Diagnostic>,
) {
    let _ = (scope.library, scope.file);
}
