//! Processes, and the choice of them.

use ingraft_api::{Denied, ProcessEntry, ProcessFilter, TargetSpec};
use ingraft_model::Pid;

use crate::field::FieldError;
use crate::v1;
use v1::target::Which;

messages! {
    Denied => Denied { why, hint }
    ProcessEntry => Process { pid, name, uid, denied, parent, title, with_parent }
    ProcessFilter => ListProcessesRequest { glob, name, cgroup }
}

nested! { TargetSpec => Target }

impl From<TargetSpec> for v1::Target {
    fn from(target: TargetSpec) -> Self {
        let which = match target {
            TargetSpec::Pid(pid) => Which::Pid(pid.0),
            TargetSpec::Name(name) => Which::Name(name),
        };
        v1::Target { which: Some(which) }
    }
}

impl TryFrom<v1::Target> for TargetSpec {
    type Error = FieldError;

    fn try_from(target: v1::Target) -> Result<Self, FieldError> {
        match target.which {
            Some(Which::Pid(pid)) if pid <= 0 => Err(FieldError::new("pid", format_args!("{pid} is no process id"))),
            Some(Which::Pid(pid)) => Ok(TargetSpec::Pid(Pid(pid))),
            Some(Which::Name(name)) if name.is_empty() => Err(FieldError::missing("name")),
            Some(Which::Name(name)) => Ok(TargetSpec::Name(name)),
            None => Err(FieldError::missing("which")),
        }
    }
}

/// Reads the target of a request.
pub fn target(target: Option<v1::Target>) -> Result<TargetSpec, FieldError> {
    crate::field::read("target", target)
}

/// A child and its parent.
impl From<(Pid, Pid)> for v1::Child {
    fn from((child, parent): (Pid, Pid)) -> Self {
        v1::Child { pid: child.0, parent: parent.0 }
    }
}

impl From<v1::Child> for (Pid, Pid) {
    fn from(child: v1::Child) -> Self {
        (Pid(child.pid), Pid(child.parent))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::any::{Any, Source};
    use crate::field::round_trips;

    impl Any for TargetSpec {
        fn any(source: &mut Source<'_>) -> Self {
            match source.next() {
                true => TargetSpec::Name(source.next()),
                false => TargetSpec::Pid(Pid(1 + (source.next::<i32>() & i32::MAX) / 2)),
            }
        }
    }

    #[test]
    fn processes_come_back() {
        round_trips::<ProcessEntry, v1::Process>();
        round_trips::<ProcessFilter, v1::ListProcessesRequest>();
        round_trips::<TargetSpec, v1::Target>();
        let child = (Pid(3), Pid(2));
        assert_eq!(<(Pid, Pid)>::from(v1::Child::from(child)), child);
    }
}
