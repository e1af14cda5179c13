//! Events that code of a kind counts between its readings, in each thread.

use std::sync::Arc;

use ingraft_mdl::EventReadMethod;
use ingraft_model::{BinaryOp, Expr, Usage, VariableId};

use crate::error::{Error, Reason};

/// An event whose count code reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadEvent {
    /// Name, as in `perf list`.
    pub name: Arc<str>,
    /// The kernel's count of it; `None` for an event of the processor.
    pub usage: Option<Usage>,
}

impl ReadEvent {
    /// An event by its name. Fails if it is a time.
    pub fn named(name: &Arc<str>) -> Result<ReadEvent, Error> {
        let usage = match EventReadMethod::named(name) {
            EventReadMethod::Usage(usage) => Some(usage),
            EventReadMethod::Counter => None,
            EventReadMethod::ProcessorTime => {
                let what = format!("`{name}` is a time, which a clock tells");
                return Err(Error::new(Reason::EventNotAtPoints, what, "ask for processor time: `--metric cpu`"));
            }
        };
        Ok(ReadEvent { name: Arc::clone(name), usage })
    }

    /// The event of the processor that a variable of the code is for; `None` for a count of the kernel.
    pub fn counter(&self) -> Option<Arc<str>> {
        self.usage.is_none().then(|| Arc::clone(&self.name))
    }

    /// Number of occurrences in this thread, plus 1: the last count that a thread keeps is not 0. `event` is the variable for an event of the
    /// processor.
    pub fn count(&self, event: VariableId) -> Expr {
        let count = self.usage.map_or(Expr::Event(event), Expr::Usage);
        Expr::Binary(BinaryOp::Add, Box::new(count), Box::new(Expr::Const(1)))
    }
}
