//! Properties of snippets that decide whether they can follow calls that move between threads (Go).

use crate::snippet::{Clock, Expr, KeptValue, Snippet, Stmt};

impl Snippet {
    /// Whether the snippet keeps state for a thread between the beginning and the end of a call: a timer, a state to restore, the
    /// processor time, a trace, a group of records, or a calling context. A call that moves to another thread would leave it behind.
    pub fn is_bound_to_thread(&self) -> bool {
        fn any(stmts: &[Stmt]) -> bool {
            let begun = stmts.iter().position(|stmt| matches!(stmt, Stmt::BeginGroup(_)));
            let kept = stmts.iter().position(|stmt| matches!(stmt, Stmt::KeepGroup(_)));
            // A group that is begun and kept by the same statements does not last.
            let at_once = begun.zip(kept).is_some_and(|(begun, kept)| begun < kept);
            stmts.iter().any(|stmt| match stmt {
                Stmt::Start(..) | Stmt::Stop(..) | Stmt::Append(..) | Stmt::Fork | Stmt::Forked | Stmt::Switch(_) => {
                    true
                }
                Stmt::BeginGroup(_) | Stmt::KeepGroup(_) => !at_once,
                Stmt::Enter(..) | Stmt::CountBelow(..) | Stmt::AddContext(..) => true,
                Stmt::EnterValue(..) | Stmt::LeaveValue(..) => true,
                Stmt::Record(_, _, recorded) => recorded.leaves_room,
                Stmt::Open(record, body)
                | Stmt::Close(record, body)
                | Stmt::HandOver(record, _, body)
                | Stmt::GiveUp(record, _, body)
                | Stmt::CloseHanded(record, body) => {
                    record.restore.is_some() || record.kept.contains(&KeptValue::Time(Clock::Cpu)) || any(body)
                }
                Stmt::If(_, body) => any(body),
                Stmt::EnterMoving(..)
                | Stmt::LeaveMoving(..)
                | Stmt::Notes(_)
                | Stmt::Mark(..)
                | Stmt::Add(..)
                | Stmt::Set(..)
                | Stmt::AddAt(..)
                | Stmt::AddIn(..)
                | Stmt::AddListed(..)
                | Stmt::Prune
                | Stmt::Observe(..)
                | Stmt::Call(_)
                | Stmt::Await
                | Stmt::Store(..)
                | Stmt::Write(..) => false,
            })
        }
        any(&self.stmts)
    }

    /// Whether the snippet opens, closes or hands over activation records.
    pub fn has_records(&self) -> bool {
        self.has(&|stmt| {
            matches!(
                stmt,
                Stmt::Open(..) | Stmt::Close(..) | Stmt::HandOver(..) | Stmt::GiveUp(..) | Stmt::CloseHanded(..)
            )
        })
    }

    /// Whether the snippet sets records aside, or fetches them.
    pub fn switches_stacks(&self) -> bool {
        self.has(&|stmt| matches!(stmt, Stmt::Switch(_)))
    }

    /// Whether the snippet keeps something in the record of a call that moves between threads, or for its goroutine. Other calls cannot have it.
    pub fn is_bound_to_moving_call(&self) -> bool {
        let mut notes = false;
        self.each_expr(&mut |e| notes |= *e == Expr::Notes);
        notes || self.has(&|stmt| matches!(stmt, Stmt::EnterMoving(..) | Stmt::LeaveMoving(..) | Stmt::Notes(_)))
    }

    /// Whether one of the statements, at any depth, is such a one.
    fn has(&self, is_it: &dyn Fn(&Stmt) -> bool) -> bool {
        fn any(stmts: &[Stmt], is_it: &dyn Fn(&Stmt) -> bool) -> bool {
            stmts.iter().any(|stmt| is_it(stmt) || stmt.body().is_some_and(|body| any(body, is_it)))
        }
        any(&self.stmts, is_it)
    }
}
