//! The calling contexts of a process: the tree of who called whom, with the number of calls in each context and the values of metrics (Ammons,
//! Ball and Larus, "Exploiting Hardware Performance Counters with Flow and Context Sensitive Profiling", section 4).

use ingraft_model::Svma;

/// Calls by calling context.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContextProfile {
    /// The functions whose calls are told apart by context, those without a call too.
    pub functions: Vec<ContextFunction>,
    /// The contexts. A parent comes before its children.
    pub contexts: Vec<Context>,
    /// Names of the metrics, such as `wall_ns`. The unit is the end of the name: `ns` or `bytes`.
    pub metrics: Vec<String>,
    /// Values of the metrics outside of all contexts, in the order of `metrics`.
    pub outside: Vec<i64>,
    /// Number of calls for whose contexts there was no room. They are in no context; their callees are in the contexts of their callers.
    pub full: u64,
}

/// A function whose calls are told apart.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContextFunction {
    /// Index of its module in the profile.
    pub module: usize,
    /// Name as the symbol table has it.
    pub name: String,
    /// Address of the first byte, as in the file.
    pub start: Svma,
    /// Length in bytes.
    pub size: u64,
    /// Number of calls that have ended without an exit: by an exception, by longjmp, or with their threads.
    pub left: u64,
    /// Number of exits of calls whose beginning was not seen.
    pub unseen: u64,
    /// Number of calls without a context, because their thread had too many open calls, or no memory of its own.
    pub unrecorded: u64,
}

/// A function in a calling context.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Context {
    /// Index of the context of the call that was open when it was called; `None` if there was none.
    pub parent: Option<usize>,
    /// Index of the function in [`ContextProfile::functions`].
    pub function: usize,
    /// Where the call returns to.
    pub site: CallSite,
    /// How control came here.
    pub kind: ContextKind,
    /// Number of calls in this context that began during the measurement.
    pub calls: u64,
    /// Values of the metrics in this context alone, in the order of [`ContextProfile::metrics`]. With a recursion, those of the calls are in the
    /// context that it leads back to.
    pub metrics: Vec<i64>,
}

/// A return address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallSite {
    /// Index of the module in the profile; `None` outside of all modules.
    pub module: Option<usize>,
    /// The address, as in the module's file; outside of all modules, as in the process.
    pub at: Svma,
}

/// How control comes to a context.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ContextKind {
    /// By a call.
    #[default]
    Call,
    /// By a tail jump of the parent.
    Tail,
    /// By a signal that has interrupted the parent.
    Signal,
    /// By a recursive call. What is called from there is in the context with this index, an ancestor of the same function. This context has no
    /// children.
    Recursion(usize),
}

/// What is looked at in a tree of contexts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContextValue {
    /// The calls.
    Calls,
    /// The metric with this index in [`ContextProfile::metrics`].
    Metric(usize),
}

impl ContextProfile {
    /// The values of the contexts alone, in their order.
    pub fn values(&self, of: ContextValue) -> Vec<i64> {
        let value = |context: &Context| match of {
            ContextValue::Calls => i64::try_from(context.calls).unwrap_or(i64::MAX),
            ContextValue::Metric(metric) => context.metrics.get(metric).copied().unwrap_or(0),
        };
        self.contexts.iter().map(value).collect()
    }

    /// The values of the contexts with all contexts below them, in their order.
    pub fn inclusive(&self, of: ContextValue) -> Vec<i64> {
        let mut values = self.values(of);
        for (index, context) in self.contexts.iter().enumerate().rev() {
            let below = values.get(index).copied().unwrap_or(0);
            if let Some(value) = context.parent.and_then(|parent| values.get_mut(parent)) {
                *value = value.saturating_add(below);
            }
        }
        values
    }
}
