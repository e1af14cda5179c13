//! The code at which a thread waits before it ends the process, or installs a filter of system calls; see `last_reading.rs`.

use std::sync::{Mutex, PoisonError};

use ingraft_model::{BinaryOp, Expr, Stmt, VariableId};

/// The functions of the C library that pass a system call on, and the first arguments with which they install a filter, or have signals sent for all
/// system calls (Syscall User Dispatch). There is no other way for a program, but code of its own that makes the system call.
pub(super) const FILTERS: [(&str, &[&[i64]]); 2] = [
    ("prctl", &[&[PR_SET_SECCOMP], &[PR_SET_SYSCALL_USER_DISPATCH]]),
    ("syscall", &[&[SYS_SECCOMP], &[SYS_PRCTL, PR_SET_SECCOMP], &[SYS_PRCTL, PR_SET_SYSCALL_USER_DISPATCH]]),
];
const PR_SET_SECCOMP: i64 = 22;
const PR_SET_SYSCALL_USER_DISPATCH: i64 = 59;
const SYS_PRCTL: i64 = 157;
const SYS_SECCOMP: i64 = 317;
/// The part of an argument that is an `int`.
const INT: i64 = 0xffff_ffff;

/// The code at the function through which a target ends.
#[derive(Debug, Default)]
pub(super) struct ExitPoint(Mutex<ExitState>);

/// State of the code.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ExitState {
    /// Counters of the arrivals, and of filters that come; `None` if there is no code.
    pub(super) counters: Option<ExitCounters>,
    /// Numbers of arrivals and of filters that were looked at.
    pub(super) seen: (i64, i64),
    /// Whether the last values were read at such an arrival.
    pub(super) was_read: bool,
}

/// Counters of the announcements.
#[derive(Clone, Copy, Debug)]
pub(super) struct ExitCounters {
    /// Of the end.
    pub(super) arrivals: u32,
    /// Of filters.
    pub(super) filters: u32,
}

impl ExitPoint {
    /// The present state.
    pub(super) fn state(&self) -> ExitState {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the state.
    pub(super) fn set(&self, state: ExitState) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = state;
    }

    /// Notes that there is no code any more.
    pub(super) fn forget(&self) {
        self.set(ExitState::default());
    }

    /// Whether there is code.
    pub(super) fn is_woven(&self) -> bool {
        self.state().counters.is_some()
    }

    /// Whether the last values were read while a thread waited to end the process.
    pub(super) fn was_read(&self) -> bool {
        self.state().was_read
    }
}

/// Counts an announcement, makes it, and waits.
pub(super) fn announcement() -> Vec<Stmt> {
    vec![Stmt::Add(VariableId(0), Expr::Const(1)), Stmt::Await]
}

/// Makes an announcement if a condition holds.
pub(super) fn when(condition: Expr) -> Vec<Stmt> {
    vec![Stmt::If(condition, announcement())]
}

/// Whether a function is called with one of these beginnings of its arguments.
pub(super) fn condition(ways: &[&[i64]]) -> Expr {
    let both = |op| move |a: Expr, b: Expr| Expr::Binary(op, Box::new(a), Box::new(b));
    let int = |n: usize| both(BinaryOp::And)(Expr::Arg(n as u8), Expr::Const(INT));
    let is = |(n, value): (usize, &i64)| both(BinaryOp::Equal)(int(n), Expr::Const(*value));
    let all = |way: &&[i64]| way.iter().enumerate().map(is).reduce(both(BinaryOp::LogicalAnd));
    ways.iter().filter_map(all).reduce(both(BinaryOp::LogicalOr)).unwrap_or(Expr::Const(0))
}

#[cfg(test)]
mod tests {
    use ingraft_model::Snippet;

    use super::*;

    #[test]
    fn code_at_the_end_is_forgotten_with_the_rest() {
        let point = ExitPoint::default();
        assert!(!point.is_woven() && !point.was_read());
        let counters = Some(ExitCounters { arrivals: 7, filters: 8 });
        point.set(ExitState { counters, seen: (1, 0), was_read: true });
        assert!(point.is_woven() && point.was_read());
        point.forget();
        assert!(!point.is_woven() && !point.was_read());
    }

    #[test]
    fn filters_are_told_by_the_first_arguments() {
        let shown = |ways| Snippet { stmts: when(condition(ways)) }.to_string();
        let arg = |n: usize, value: i64| format!("(($arg[{n}] & 4294967295) == {value})");
        let either = |a: &str, b: &str| format!("({a} || {b})");
        let both = |a: &str, b: &str| format!("({a} && {b})");
        let through = |option| both(&arg(0, 157), &arg(1, option));
        let prctl = either(&arg(0, 22), &arg(0, 59));
        let call = either(&either(&arg(0, 317), &through(22)), &through(59));
        for ((_, ways), expected) in FILTERS.iter().zip([prctl, call]) {
            assert_eq!(shown(ways), format!("if ({expected}) {{ v0++; await; }}"));
        }
    }
}
