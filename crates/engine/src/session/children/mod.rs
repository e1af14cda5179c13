//! Fork children that are measured with their parent: the decision to measure them, the state with which they begin, and their threads.

mod births;
mod followed;
mod rules;

use ingraft_model::{Insertion, Instrumentation, Shape, TableShape};

pub use self::births::{Amiss, Births};
pub use self::followed::Followed;
pub use self::rules::{has_state, rules_of};

/// The fork children of a target: whether they are measured with it, and with which state they begin.
#[derive(Debug, Default)]
pub struct Family {
    /// Whether fork children count like threads of the target; before the first code is woven, whether they shall.
    counts: bool,
    births: Births,
}

/// A request for a measurement without the children of a process whose children are measured with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conflict;

impl Family {
    /// A target that a dead engine has measured with its children, or without them.
    pub fn taken_over(counts: bool) -> Self {
        Family { counts, births: Births::default() }
    }

    /// Whether fork children count like threads of the target; before the first code is woven, whether they shall.
    pub fn counts(&self) -> bool {
        self.counts
    }

    /// Whether children begin with the state of their parents.
    pub fn births(&self) -> &Births {
        &self.births
    }

    /// Notes whether children begin with the state of their parents.
    pub fn set_births(&mut self, births: Births) {
        self.births = births;
    }

    /// Decides whether fork children are measured with the target. The first measurement in the target decides for all that come while it is
    /// inserted. `may` tells whether the request asks for its children and can be measured in them.
    pub fn decide(&mut self, may: bool, is_inserted: bool) -> Result<(), Conflict> {
        if !is_inserted {
            self.counts = may;
            return Ok(());
        }
        if self.counts && !may { Err(Conflict) } else { Ok(()) }
    }

    /// Begins with the first code in the target. `is_possible` tells whether the threads of children can be told apart. Returns whether
    /// children count.
    pub fn begin(&mut self, is_possible: bool) -> bool {
        *self = Family::taken_over(self.counts && is_possible);
        self.counts
    }
}

/// Whether code can be measured in fork children. Other code would read the parent's memory there, leave a call open that ends with the
/// child's process, or add objects of the child to those of the target.
pub fn can_follow(instrumentation: &Instrumentation) -> bool {
    let lists_objects = instrumentation.variables.iter().any(|v| v.shape == Shape::Table(TableShape::OBJECTS));
    let is_strange = |i: &Insertion| i.snippet.asks_kernel() || i.snippet.interferes();
    !lists_objects && !instrumentation.insertions.iter().any(is_strange)
}

#[cfg(test)]
mod tests {
    use ingraft_model::{Expr, PointKind, Stmt, VariableId, VariableKind};

    use crate::pairs::tests::{function, insertion, instrumentation, variable};

    use super::*;

    #[test]
    fn the_first_measurement_decides_about_children() {
        for (counts, may, is_inserted, decision) in [
            (false, false, false, Ok(false)),
            (false, true, false, Ok(true)),
            (true, false, false, Ok(false)),
            (true, true, false, Ok(true)),
            // children without the code of the first measurement are not measured for the second one either
            (false, false, true, Ok(false)),
            (false, true, true, Ok(false)),
            (true, true, true, Ok(true)),
            (true, false, true, Err(Conflict)),
        ] {
            let mut family = Family::taken_over(counts);
            let decided = family.decide(may, is_inserted).map(|()| family.counts());
            assert_eq!(decided, decision, "{counts} {may} {is_inserted}");
        }
    }

    #[test]
    fn children_count_only_where_their_threads_can_be_told_apart() {
        for (asked, possible) in [(false, false), (false, true), (true, false), (true, true)] {
            let mut family = Family::taken_over(asked);
            family.set_births(Births::Followed);
            assert_eq!(family.begin(possible), asked && possible);
            assert_eq!((family.counts(), family.births()), (asked && possible, &Births::NotNeeded));
        }
    }

    #[test]
    fn code_that_concerns_one_process_is_not_measured_in_children() {
        let of = |shape, stmts: Vec<Stmt>| {
            let mut one = instrumentation(vec![variable(VariableKind::Counter, shape)]);
            one.insertions = vec![insertion(function(0, 0), PointKind::Entry, stmts)];
            can_follow(&one)
        };
        let count = || vec![Stmt::Add(VariableId(0), Expr::Const(1))];
        assert!(of(Shape::Counter, count()));
        assert!(of(Shape::Table(TableShape::SUMS), count()));
        assert!(!of(Shape::Table(TableShape::OBJECTS), count()), "the objects of a child are not those of the target");
        assert!(of(Shape::Counter, vec![Stmt::Add(VariableId(0), Expr::Arg(1))]));
        let event = Stmt::Add(VariableId(0), Expr::Event(VariableId(0)));
        assert!(!of(Shape::Counter, vec![event.clone()]), "an event is opened by system calls");
        assert!(!of(Shape::Counter, vec![Stmt::If(Expr::Const(1), vec![event])]));
    }
}
