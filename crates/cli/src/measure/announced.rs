//! The record that announces an insertion.

use ingraft_api::Enabled;

use crate::objects::{self, Object, millis};

/// The object that announces a complete insertion. `attach_ms` is the time in milliseconds since the start of the command.
pub(crate) fn announcement(e: &Enabled, host: objects::Host, attach_ms: f64) -> Object {
    let (pid, parent, points, measurement) = (e.pid.0, e.parent.0, e.points, e.id.0);
    let (stopped_ms, waited_ms) = (millis(e.stopped.held), millis(e.stopped.waited));
    let (caught_up, not_unwound) = (e.caught_up, e.not_unwound);
    if e.attached {
        let (threads, modules, functions) = (e.threads, e.modules, e.functions);
        Object::Attached(objects::AttachedObject {
            host,
            pid,
            parent,
            title: e.title.clone(),
            threads,
            modules,
            functions,
            points,
            attach_ms,
            stopped_ms,
            waited_ms,
            measurement,
            caught_up,
            not_unwound,
        })
    } else {
        Object::Changed(objects::ChangedObject {
            host,
            pid,
            parent,
            title: e.title.clone(),
            points,
            attach_ms,
            stopped_ms,
            waited_ms,
            measurement,
            caught_up,
            not_unwound,
        })
    }
}
