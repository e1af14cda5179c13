//! Looks at the signal handlers of a program, because functions are not copied while one may end its thread.

use ingraft_analysis::AsyncUnwinder;

use crate::error::Error;
use crate::program::handlers::departing;
use crate::undertaking;

use super::control::Control;
use super::driver::Session;

impl Session {
    /// Looks whether a signal handler may end its thread, if the program has handlers and code that ends threads so, and if handlers were
    /// set or taken away since the last look. A handler that replaces another one is not noticed. Calls through pointers are not followed.
    /// A handler about which the engine cannot tell is taken for one that may end its thread.
    pub(super) fn look_at_handlers(&self, control: &mut Control) -> Result<(), Error> {
        let failed = |e| self.failed(e);
        let departures = control.modules.departures(&self.target);
        let handled = if departures.is_possible() { self.target.handled().map_err(failed)? } else { 0 };
        if control.handlers.are_known(handled, departures.cancels) {
            return Ok(());
        }
        let mut found = None;
        if handled != 0 {
            undertaking::touch()?;
            let handlers = self.target.signal_handlers(handled).map_err(failed)?;
            let images = &self.context.images;
            found = departing(&self.target, &control.modules, images, handlers, departures.cancels);
        }
        control.modules.set_departing_handler(found);
        control.handlers.note(handled, departures.cancels);
        Ok(())
    }

    /// Looks at the handlers as [`Session::look_at_handlers`] does, between requests. Returns whether functions are copied while one may end
    /// its thread. A request may have noticed the handler first, so it does not matter whether it was known.
    pub(super) fn notice_handlers(&self, control: &mut Control) -> bool {
        if let Err(error) = self.look_at_handlers(control) {
            tracing::debug!(%error, "the signal handlers were not looked at");
        }
        let departs = matches!(control.modules.unwinder(), Some((AsyncUnwinder::Handler, _)));
        departs && control.attached.as_ref().is_some_and(|attached| attached.woven.copied().next().is_some())
    }
}
