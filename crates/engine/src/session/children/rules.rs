//! The rules by which fork children begin: for each counter, whether the child has its parent's value, see [`ingraft_model::layout::birth`].

use ingraft_model::layout::birth;
use ingraft_model::{
    CallRecord, Clock, Expr, Instrumentation, KeptValue, Restore, Shape, Stmt, Variable, VariableKind,
};

/// Whether a pair has a state that must continue in a child that is born during a call.
pub fn has_state(instrumentation: &Instrumentation) -> bool {
    let alone = |v: &Variable| v.shape == Shape::Counter && v.kind == VariableKind::Counter;
    !instrumentation.variables.iter().all(alone)
}

/// Returns, for each counter of a pair, the rule of [`birth`] that says with which value of the counter a fork child begins.
pub fn rules_of(instrumentation: &Instrumentation, counters: &[u32]) -> Vec<(u32, u64)> {
    let mut records = Vec::new();
    instrumentation.insertions.iter().for_each(|i| collect(&i.snippet.stmts, &mut records));
    let mut rules = Vec::new();
    for (n, (variable, &first)) in (0..).zip(instrumentation.variables.iter().zip(counters)) {
        let restores =
            |(r, _): &&(&CallRecord, bool)| matches!(r.restore, Some(Restore::Value(v) | Restore::Flag(v)) if v.0 == n);
        let first_rule = match variable.shape {
            // The variable of an event holds the event's number, which is no count.
            Shape::Event => continue,
            // The pair that has the counter gives its rule.
            Shape::Alias(_) => continue,
            Shape::Timer(_) | Shape::Outermost => birth::KEEP,
            Shape::Counter => {
                let restored = records.iter().find(restores);
                let is_time = restored.is_some_and(|(_, is_time)| *is_time);
                let stays = match variable.kind {
                    // A counter that a record restores holds a level, not a count.
                    VariableKind::Counter => restored.is_some(),
                    VariableKind::Scratch
                    | VariableKind::PathSum
                    | VariableKind::Flag
                    | VariableKind::Activations
                    | VariableKind::OuterActivations => !is_time,
                };
                if stays { birth::KEEP } else { birth::NOTHING }
            }
            Shape::Activations => {
                let of = records.iter().filter(|(r, _)| r.activations.0 == n);
                of.map(|(record, is_time)| kept_times(record, *is_time)).fold(0, |all, one| all | one)
            }
            Shape::Histogram(_)
            | Shape::Table(_)
            | Shape::Vector(_)
            | Shape::Listed(_)
            | Shape::Buffer(_)
            | Shape::Contexts(_)
            | Shape::Records(..) => birth::NOTHING,
        };
        rules.push((first, first_rule));
        let second = match variable.shape {
            Shape::Outermost => birth::KEEP,
            Shape::Timer(Clock::Wall) => birth::WALL,
            Shape::Timer(Clock::Cpu) => birth::CPU,
            Shape::Counter
            | Shape::Histogram(_)
            | Shape::Activations
            | Shape::Table(_)
            | Shape::Vector(_)
            | Shape::Listed(_)
            | Shape::Buffer(_)
            | Shape::Contexts(_)
            | Shape::Records(..)
            | Shape::Event
            | Shape::Alias(_) => birth::NOTHING,
        };
        rules.extend((1..variable.shape.slots()).map(|i| (first + i, if i == 1 { second } else { birth::NOTHING })));
    }
    rules
}

/// Returns one bit for each time in a record that a fork child adjusts (see [`birth`]).
fn kept_times(record: &CallRecord, restores_time: bool) -> u64 {
    let bit = |(n, kept): (u32, &KeptValue)| match kept {
        KeptValue::Time(Clock::Wall) => 1 << (birth::KEPT_WALL + n),
        KeptValue::Time(Clock::Cpu) => 1 << (birth::KEPT_CPU + n),
        // Both are 0 at the birth.
        KeptValue::Spent(_) => 1 << (birth::KEPT_CPU + n),
        // Calls that tell when they began are not those of fork children.
        KeptValue::Began(_) | KeptValue::Inside | KeptValue::Argument(_) | KeptValue::Float(_) => 0,
    };
    let kept = (0..birth::KEPT_TIMES).zip(&record.kept).map(bit).fold(0, |all, one: u64| all | one);
    kept | (u64::from(restores_time) << birth::SAVED_TIME)
}

/// Collects the records that statements open. The flag says whether the value that the record restores is a time since the beginning of
/// the call: the sum over callees, which is set to 0 at the entry.
fn collect<'a>(stmts: &'a [Stmt], records: &mut Vec<(&'a CallRecord, bool)>) {
    for stmt in stmts {
        match stmt {
            Stmt::Open(record, body) => {
                let is_time = match (record.restore, body.first()) {
                    (Some(Restore::Value(v)), Some(Stmt::Set(set, Expr::Const(0)))) => v == *set,
                    _ => false,
                };
                records.push((record, is_time));
                collect(body, records);
            }
            Stmt::If(_, body) => collect(body, records),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use ingraft_model::{PointKind, VariableId};

    use crate::pairs::tests::{function, insertion, instrumentation, variable};

    use super::*;

    const V: VariableId = VariableId(0);

    /// Code that opens a record which restores this, with these statements at the beginning of the call.
    fn opens(restore: Option<Restore>, kept: Vec<KeptValue>, body: Vec<Stmt>) -> Vec<Stmt> {
        vec![Stmt::Open(CallRecord { activations: VariableId(1), kept, restore }, body)]
    }

    fn of(variables: Vec<(VariableKind, Shape)>, stmts: Vec<Stmt>) -> Instrumentation {
        let mut one = instrumentation(variables.into_iter().map(|(kind, shape)| variable(kind, shape)).collect());
        one.insertions = vec![insertion(function(0, 0), PointKind::Entry, stmts)];
        one
    }

    #[test]
    fn only_counters_have_no_state() {
        let counter = (VariableKind::Counter, Shape::Counter);
        assert!(!has_state(&of(vec![counter, counter], Vec::new())));
        assert!(!has_state(&of(Vec::new(), Vec::new())));
        for kind in [VariableKind::Scratch, VariableKind::Flag] {
            assert!(has_state(&of(vec![counter, (kind, Shape::Counter)], Vec::new())), "{kind:?}");
        }
        for shape in [Shape::Timer(Clock::Wall), Shape::Activations, Shape::Event] {
            assert!(has_state(&of(vec![(VariableKind::Counter, shape)], Vec::new())), "{shape:?}");
        }
    }

    #[test]
    fn counts_begin_with_0_and_state_is_kept() {
        let value = Some(Restore::Value(V));
        let reset = || vec![Stmt::Set(V, Expr::Const(0))];
        let level = || vec![Stmt::Set(V, Expr::Const(1))];
        for (kind, stmts, rule) in [
            (VariableKind::Counter, Vec::new(), birth::NOTHING),
            (VariableKind::Scratch, Vec::new(), birth::KEEP),
            (VariableKind::Flag, Vec::new(), birth::KEEP),
            // a counter that a record restores holds a level
            (VariableKind::Counter, opens(value, Vec::new(), Vec::new()), birth::KEEP),
            (VariableKind::Counter, opens(Some(Restore::Flag(V)), Vec::new(), Vec::new()), birth::KEEP),
            (VariableKind::Counter, opens(Some(Restore::Flag(VariableId(2))), Vec::new(), Vec::new()), birth::NOTHING),
            (
                VariableKind::Counter,
                opens(Some(Restore::Timer(V, Clock::Wall)), Vec::new(), Vec::new()),
                birth::NOTHING,
            ),
            // a time since the beginning of a call is 0 at the birth
            (VariableKind::Scratch, opens(value, Vec::new(), reset()), birth::NOTHING),
            (VariableKind::Scratch, opens(value, Vec::new(), level()), birth::KEEP),
            // the record may be opened in a body
            (VariableKind::Counter, vec![Stmt::If(Expr::Const(1), opens(value, Vec::new(), Vec::new()))], birth::KEEP),
        ] {
            let rules = rules_of(&of(vec![(kind, Shape::Counter)], stmts), &[5]);
            assert_eq!(rules, [(5, rule)], "{kind:?}");
        }
    }

    #[test]
    fn each_shape_has_its_own_rules() {
        let all = |shape: Shape| rules_of(&of(vec![(VariableKind::Counter, shape)], Vec::new()), &[10]);
        assert_eq!(all(Shape::Timer(Clock::Wall)), [(10, birth::KEEP), (11, birth::WALL)]);
        assert_eq!(all(Shape::Timer(Clock::Cpu)), [(10, birth::KEEP), (11, birth::CPU)]);
        assert_eq!(all(Shape::Activations), (10..14).map(|n| (n, birth::NOTHING)).collect::<Vec<_>>());
        assert!(all(Shape::Event).is_empty(), "the number of an event is no count");
        assert!(all(Shape::Alias(3)).is_empty(), "the pair that has the counter gives its rule");
        let vector = Shape::Vector(4);
        assert_eq!(all(vector), (10..10 + vector.slots()).map(|n| (n, birth::NOTHING)).collect::<Vec<_>>());
    }

    #[test]
    fn records_tell_which_of_their_words_are_times() {
        let wall = |n: u32| 1u64 << (birth::KEPT_WALL + n);
        let cpu = |n: u32| 1u64 << (birth::KEPT_CPU + n);
        let argument = KeptValue::Argument(0);
        for (kept, bits) in [
            (vec![], 0),
            (vec![KeptValue::Time(Clock::Wall)], wall(0)),
            (vec![argument, KeptValue::Time(Clock::Wall)], wall(1)),
            (vec![KeptValue::Time(Clock::Cpu), KeptValue::Time(Clock::Wall)], cpu(0) | wall(1)),
            (vec![KeptValue::Time(Clock::Wall), KeptValue::Spent(Clock::Wall)], wall(0) | cpu(1)),
            (vec![argument; 4], 0),
            // times come first
            (vec![argument, argument, argument, argument, KeptValue::Time(Clock::Wall)], 0),
        ] {
            let stmts = opens(None, kept.clone(), Vec::new());
            let variables =
                vec![(VariableKind::Counter, Shape::Counter), (VariableKind::Activations, Shape::Activations)];
            let rules = rules_of(&of(variables, stmts), &[0, 1]);
            assert_eq!(rules.get(1), Some(&(1, bits)), "{kept:?}");
        }
        let saved = opens(Some(Restore::Value(V)), Vec::new(), vec![Stmt::Set(V, Expr::Const(0))]);
        let variables = vec![(VariableKind::Scratch, Shape::Counter), (VariableKind::Activations, Shape::Activations)];
        let rules = rules_of(&of(variables, saved), &[0, 1]);
        assert_eq!(rules[..2], [(0, birth::NOTHING), (1, 1 << birth::SAVED_TIME)]);
    }
}
