//! Events that metrics can name.

/// An event that the kernel or the processor counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventEntry {
    /// Name of the event, as `perf list` has it.
    pub name: String,
    /// Other names of the same event.
    pub aliases: Vec<String>,
    /// `software`, `hardware`, `cache`, or the name of the unit that counts the event.
    pub group: String,
    /// Reason why this machine cannot count the event; `None` if it can.
    pub problem: Option<String>,
    /// Way in which a thread reads the event at points; `None` if no thread can.
    pub at_points: Option<String>,
}
