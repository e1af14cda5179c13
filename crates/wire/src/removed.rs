//! Answers to removals.

use ingraft_api::Removed;
use ingraft_model::HoldTime;

use crate::field::{FieldError, WireField, read};
use crate::v1;

/// A removal without the pairs, values, counts and tokens, which other messages have.
impl From<&Removed> for v1::Removed {
    fn from(removed: &Removed) -> Self {
        v1::Removed {
            pid: removed.pid.0,
            stopped_ns: removed.stopped.held.to_wire(),
            waited_ns: removed.stopped.waited.to_wire(),
            text_restored: removed.text_restored,
            children_left: removed.children_left.clone().to_wire(),
            late_start: removed.corrections.0,
            early_end: removed.corrections.1,
            warnings: removed.warnings.clone(),
            memory_left: removed.memory_left,
            asleep: removed.asleep.clone().to_wire(),
            awaited: removed.awaited.clone(),
        }
    }
}

impl TryFrom<v1::Removed> for Removed {
    type Error = FieldError;

    fn try_from(removed: v1::Removed) -> Result<Self, FieldError> {
        let (held, waited) = (read("stopped_ns", removed.stopped_ns)?, read("waited_ns", removed.waited_ns)?);
        Ok(Removed {
            pid: read("pid", removed.pid)?,
            stopped: HoldTime { held, waited },
            text_restored: removed.text_restored,
            children_left: read("children_left", removed.children_left)?,
            memory_left: removed.memory_left,
            asleep: read("asleep", removed.asleep)?,
            corrections: (removed.late_start, removed.early_end),
            warnings: removed.warnings,
            awaited: removed.awaited,
            ..Removed::default()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::any::{Any, Source, comes_back};

    impl Any for Removed {
        fn any(s: &mut Source<'_>) -> Self {
            Removed {
                pid: s.next(),
                stopped: s.next(),
                text_restored: s.next(),
                children_left: s.next(),
                memory_left: s.next(),
                asleep: s.next(),
                corrections: s.next(),
                warnings: s.next(),
                awaited: s.next(),
                ..Removed::default()
            }
        }
    }

    #[test]
    fn removals_come_back() {
        comes_back(|removed: Removed| v1::Removed::from(&removed).try_into().map_err(|e: FieldError| e.to_string()));
    }
}
