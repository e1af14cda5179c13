//! The tree of a slow call, from the records of the calls that it has made.

use crate::api::{CallTree, InnerCall, PrintedValue};

/// A call inside of another one, as its thread has recorded it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordedCall {
    /// Index of the function.
    pub site: u32,
    /// Time of the call.
    pub span: CallSpan,
    /// The words of its values.
    pub values: Vec<u64>,
}

/// The time of a call, in ticks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallSpan {
    /// Beginning.
    pub began: u64,
    /// End.
    pub ended: u64,
}

impl CallSpan {
    fn contains(self, other: CallSpan) -> bool {
        self.began <= other.began && other.ended <= self.ended
    }

    /// Whether a call that begins later is inside of this one. A call that has jumped to another one ends when that one returns, and its end may be
    /// recorded first.
    fn is_around(self, later: CallSpan) -> bool {
        self.contains(later) || later.began < self.ended
    }

    fn ticks(self) -> u64 {
        self.ended.saturating_sub(self.began)
    }
}

/// Gives the values of a call.
pub type ValuesOf<'a> = &'a dyn Fn(&RecordedCall) -> Vec<PrintedValue>;

/// Makes the tree of a call. `inner` are the calls of its thread in the order of their ends; those that were not made by the call are left out.
/// `ns` converts ticks to nanoseconds, rounded down, and `values` gives the values of a call.
///
/// Calls of one thread lie within or beside each other. So the caller of each is the innermost one that contains its time. Calls that end together
/// because one has jumped to the other have the later one of the recorded ends.
pub fn tree(
    outer: CallSpan,
    inner: &[RecordedCall],
    lost: u64,
    (ns, values): (&dyn Fn(u64) -> u64, ValuesOf<'_>),
) -> CallTree {
    // Of two calls that begin in one tick, the one that ended later contains the other.
    let mut order: Vec<&RecordedCall> = inner.iter().rev().filter(|call| outer.contains(call.span)).collect();
    order.sort_by_key(|call| call.span.began);
    let spans = nested(order.iter().map(|call| call.span).collect());
    let mut calls: Vec<InnerCall> = Vec::with_capacity(order.len());
    let mut open: Vec<(usize, CallSpan)> = Vec::new();
    let elapsed_ns = ns(outer.ticks());
    let mut whole = CallTree { elapsed_ns, self_ns: elapsed_ns, lost, ..CallTree::default() };
    for (call, span) in order.into_iter().zip(spans) {
        let site = call.site;
        while open.pop_if(|(_, around)| !around.contains(span)).is_some() {}
        let elapsed_ns = ns(span.ticks());
        let around = open.last().and_then(|(caller, _)| calls.get_mut(*caller)).map(|caller| &mut caller.self_ns);
        let own = around.unwrap_or(&mut whole.self_ns);
        *own = own.saturating_sub(elapsed_ns);
        open.push((calls.len(), span));
        let depth = u32::try_from(open.len() - 1).unwrap_or(u32::MAX);
        let at_ns = ns(span.began.saturating_sub(outer.began));
        calls.push(InnerCall { site, depth, at_ns, elapsed_ns, self_ns: elapsed_ns, values: values(call) });
    }
    CallTree { calls, ..whole }
}

/// Moves the ends of calls, which are in the order of their beginnings, so that each lies within another one or beside it.
fn nested(mut spans: Vec<CallSpan>) -> Vec<CallSpan> {
    let mut open: Vec<usize> = Vec::new();
    for index in 0..spans.len() {
        let span = spans[index];
        while open.pop_if(|around| !spans[*around].is_around(span)).is_some() {}
        for around in open.iter().rev() {
            if spans[*around].ended >= span.ended {
                break;
            }
            spans[*around].ended = span.ended;
        }
        open.push(index);
    }
    spans
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(began: u64, ended: u64) -> CallSpan {
        CallSpan { began, ended }
    }

    fn lines(tree: &CallTree) -> Vec<String> {
        let line = |call: &InnerCall| {
            let InnerCall { site, depth, at_ns, elapsed_ns, self_ns, values } = call;
            assert_eq!(values, &[PrintedValue::Number(i64::from(*site))]);
            format!("{}{site} at {at_ns}: {elapsed_ns}, {self_ns}", " ".repeat(*depth as usize))
        };
        let CallTree { elapsed_ns, self_ns, calls, .. } = tree;
        std::iter::once(format!("{elapsed_ns}, {self_ns}")).chain(calls.iter().map(line)).collect()
    }

    /// Each call has the index of its function as its value.
    fn tree(outer: CallSpan, inner: &[(u32, CallSpan)], lost: u64, ns: &dyn Fn(u64) -> u64) -> CallTree {
        let call =
            |(site, span): &(u32, CallSpan)| RecordedCall { site: *site, span: *span, values: vec![(*site).into()] };
        let inner: Vec<RecordedCall> = inner.iter().map(call).collect();
        let values = |call: &RecordedCall| call.values.iter().map(|n| PrintedValue::Number(n.cast_signed())).collect();
        super::tree(outer, &inner, lost, (ns, &values))
    }

    #[test]
    fn calls_are_made_by_the_calls_around_them() {
        let inner = [
            (9, span(1, 90)), // before the call
            (1, span(110, 120)),
            (2, span(130, 140)),
            (2, span(141, 150)),
            (1, span(125, 160)),
            (3, span(100, 200)), // as long as the whole
        ];
        let tree = tree(span(100, 200), &inner, 3, &|ticks| ticks / 2);
        assert_eq!(tree.lost, 3);
        assert_eq!(
            lines(&tree),
            ["50, 0", "3 at 0: 50, 28", " 1 at 5: 5, 5", " 1 at 12: 17, 8", "  2 at 15: 5, 5", "  2 at 20: 4, 4"]
        );
    }

    #[test]
    fn calls_of_no_length_stay_in_order() {
        let inner = [(1, span(5, 5)), (2, span(5, 5)), (3, span(6, 6)), (4, span(6, 7))];
        let tree = tree(span(5, 7), &inner, 0, &|ticks| ticks);
        assert_eq!(lines(&tree), ["2, 1", "2 at 0: 0, 0", " 1 at 0: 0, 0", "4 at 1: 1, 1", " 3 at 1: 0, 0"]);
    }

    #[test]
    fn a_call_that_has_jumped_ends_with_the_one_to_which_it_has_jumped() {
        let inner = [
            (4, span(140, 150)),
            (1, span(110, 180)), // jumps to 2
            (2, span(120, 183)), // jumps to 3
            (3, span(130, 186)),
            (5, span(186, 190)), // begins when the others end
        ];
        let tree = tree(span(100, 200), &inner, 0, &|ticks| ticks);
        assert_eq!(
            lines(&tree),
            [
                "100, 20",
                "1 at 10: 76, 10",
                " 2 at 20: 66, 10",
                "  3 at 30: 56, 46",
                "   4 at 40: 10, 10",
                "5 at 86: 4, 4"
            ]
        );
    }

    #[test]
    fn own_times_add_up() {
        use proptest::prelude::*;
        // Splits a time into calls at random, in the order of their ends.
        fn split(at: CallSpan, choices: &mut std::slice::Iter<'_, u64>, all: &mut Vec<(u32, CallSpan)>) {
            let mut from = at.began;
            while let Some(choice) = choices.next().filter(|choice| **choice % 4 != 0) {
                let began = from + choice % 7;
                let ended = began + choice % 1000;
                if ended > at.ended {
                    break;
                }
                split(span(began, ended), choices, all);
                all.push(((choice % 5) as u32, span(began, ended)));
                from = ended;
            }
        }
        proptest!(|(choices in prop::collection::vec(any::<u64>(), 0..200), divisor in 1_u64..5)| {
            let (outer, mut all) = (span(1000, 9000), Vec::new());
            split(outer, &mut choices.iter(), &mut all);
            let tree = tree(outer, &all, 0, &|ticks| ticks / divisor);
            prop_assert_eq!(tree.calls.len(), all.len());
            let own: u64 = tree.calls.iter().map(|call| call.self_ns).sum::<u64>() + tree.self_ns;
            prop_assert_eq!(own, tree.elapsed_ns);
            let deeper = tree.calls.windows(2).all(|pair| pair[1].depth <= pair[0].depth + 1);
            prop_assert!(deeper && tree.calls.first().is_none_or(|first| first.depth == 0));
            prop_assert!(tree.calls.windows(2).all(|pair| pair[0].at_ns <= pair[1].at_ns));
        });
    }
}
