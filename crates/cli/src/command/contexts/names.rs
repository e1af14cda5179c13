//! Functions and call sites of contexts as people read them.

use std::rc::Rc;

use ingraft_model::Svma;
use ingraft_report::{
    CallingContext, ContextFunction, ContextKind, ContextProfile, ModuleCode, ReturnSite, SavedProfile,
};

use crate::command::report::tables::{position, shown};

/// Names of the functions and call sites of a profile.
pub(super) struct ContextNames<'a> {
    profile: &'a SavedProfile,
    contexts: &'a ContextProfile,
    /// The code of the modules, in their order.
    code: &'a [Rc<ModuleCode>],
}

impl<'a> ContextNames<'a> {
    pub(super) fn new(profile: &'a SavedProfile, contexts: &'a ContextProfile, code: &'a [Rc<ModuleCode>]) -> Self {
        ContextNames { profile, contexts, code }
    }

    /// The name of a function.
    pub(super) fn function(&self, function: usize) -> String {
        self.contexts.functions.get(function).map(|of| shown(&of.name, of.start)).unwrap_or_default()
    }

    /// The name of a module; empty if there is none.
    pub(super) fn module(&self, module: Option<usize>) -> &'a str {
        let module = module.and_then(|module| self.profile.modules.get(module));
        module.map_or("", |module| module.name.as_str())
    }

    /// The name of the module of a function.
    pub(super) fn module_of(&self, function: usize) -> &'a str {
        self.module(self.contexts.functions.get(function).map(|of| of.module))
    }

    /// The name of a context's function, with a mark of how control has come there.
    pub(super) fn marked(&self, context: &CallingContext) -> String {
        let mark = match context.kind {
            ContextKind::Call => "",
            ContextKind::Tail => "→ ",
            ContextKind::Signal => "⟨signal⟩ ",
            ContextKind::Recursion(_) => "↑ ",
        };
        format!("{mark}{}", self.function(context.function))
    }

    /// The place of the call of a context; empty if control has come there by no call.
    pub(super) fn at(&self, context: &CallingContext) -> String {
        let caller = context.parent.and_then(|parent| self.contexts.contexts.get(parent));
        match context.kind {
            // The first function of a program, which no code has called, has any word for a return address.
            ContextKind::Call if caller.is_none() && context.site.module.is_none() => String::new(),
            ContextKind::Call | ContextKind::Recursion(_) => self.site(context.site, caller.map(|of| of.function)),
            ContextKind::Tail | ContextKind::Signal => String::new(),
        }
    }

    /// A place that a function calls from: a source line, or else the offset in the function. In brackets the place in other code that
    /// calls for the function. Empty if the place is not known.
    pub(super) fn site(&self, site: ReturnSite, caller: Option<usize>) -> String {
        if site == ReturnSite::default() {
            return String::new();
        }
        let Some(module) = site.module else { return format!("[{:#x}]", site.at.0) };
        // The return address may be that of another line, or of another function.
        let call = Svma(site.at.0.saturating_sub(1));
        let code = self.code.get(module);
        let is_in =
            |of: &&ContextFunction| of.module == module && call >= of.start && call.0 - of.start.0 < of.size.max(1);
        if let Some(caller) = caller.and_then(|caller| self.contexts.functions.get(caller)).filter(is_in) {
            return match code.and_then(|code| code.line(call)) {
                Some((file, line)) => position(file, line),
                None => format!("+{:#x}", site.at.0 - caller.start.0),
            };
        }
        let (name, start) = match code.and_then(|code| code.symbol(call)) {
            Some(symbol) => (shown(&symbol.name, symbol.start), symbol.start),
            None => (self.module(Some(module)).to_owned(), Svma(0)),
        };
        format!("[{name}+{:#x}]", site.at.0.wrapping_sub(start.0))
    }
}
