//! Modules beside which woven code must not run.

use ingraft_analysis::AsyncUnwinder;

/// Why woven code must not run beside a module; `None` if it may. `unwinder` is the strictest reason why unwinders may begin at instructions
/// that are no calls, with the name of the module or handler, and `known` the reason at the first insertion. `gs_user` returns the name of a
/// module that uses the gs base itself, if threads find their shards by it.
pub(super) fn intruder(
    unwinder: Option<(AsyncUnwinder, &str)>,
    known: Option<AsyncUnwinder>,
    has_copies: bool,
    gs_user: impl FnOnce() -> Option<String>,
) -> Option<String> {
    let matters = |why: AsyncUnwinder| match why {
        // Handlers come and go, and what was copied while none ended its thread must go. A thread is in the code of a point in place for
        // a moment only.
        AsyncUnwinder::Handler => has_copies,
        AsyncUnwinder::Cancellation | AsyncUnwinder::Fault => known.is_none_or(|known| known < why),
    };
    match unwinder.filter(|(why, _)| matters(*why)) {
        Some((AsyncUnwinder::Handler, name)) => Some(format!("the signal handler {name} may end its thread")),
        Some((AsyncUnwinder::Cancellation, name)) => {
            Some(format!("{name} lets threads be cancelled at any instruction"))
        }
        Some((AsyncUnwinder::Fault, name)) => Some(format!("{name} has code in which faults throw exceptions")),
        None => gs_user().map(|name| format!("{name} uses the gs base itself")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(unwinder: Option<AsyncUnwinder>, known: Option<AsyncUnwinder>, has_copies: bool) -> bool {
        intruder(unwinder.map(|why| (why, "m")), known, has_copies, || None).is_some()
    }

    #[test]
    fn stricter_unwinders_than_at_the_first_insertion_intrude() {
        use AsyncUnwinder::{Cancellation, Fault, Handler};
        for (now, known, intrudes) in [
            (None, None, false),
            (Some(Cancellation), None, true),
            (Some(Cancellation), Some(Handler), true),
            (Some(Cancellation), Some(Cancellation), false),
            (Some(Cancellation), Some(Fault), false),
            (Some(Fault), None, true),
            (Some(Fault), Some(Cancellation), true),
            (Some(Fault), Some(Fault), false),
        ] {
            for has_copies in [false, true] {
                assert_eq!(of(now, known, has_copies), intrudes, "{now:?} {known:?} {has_copies}");
            }
        }
    }

    #[test]
    fn handlers_concern_copies_only() {
        for known in [None, Some(AsyncUnwinder::Handler)] {
            assert!(of(Some(AsyncUnwinder::Handler), known, true));
            assert!(!of(Some(AsyncUnwinder::Handler), known, false));
        }
    }

    #[test]
    fn a_user_of_the_gs_base_intrudes_if_no_unwinder_does() {
        let user = || Some("libwine".to_owned());
        let handler = Some((AsyncUnwinder::Handler, "h"));
        assert_eq!(intruder(None, None, true, user).as_deref(), Some("libwine uses the gs base itself"));
        assert_eq!(intruder(handler, None, false, user).as_deref(), Some("libwine uses the gs base itself"));
        let why = intruder(handler, None, true, || panic!("it is not asked"));
        assert_eq!(why.as_deref(), Some("the signal handler h may end its thread"));
    }
}
