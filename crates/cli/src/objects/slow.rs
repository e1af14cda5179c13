//! Records of slow calls.

use serde::Serialize;

use super::Host;
use super::printed::{CallValues, ToldObject};

/// Largest number of calls within each other in a record: some readers of JSON refuse more.
const DEPTH_MAX: usize = 60;

/// A slow call.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct SlowObject {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) host: Host,
    pub(crate) pid: i32,
    /// Thread in which the call ended.
    pub(crate) tid: u32,
    /// Goroutine that made the call, if its number is known. It may have run in several threads.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) goroutine: Option<u64>,
    /// Unix time at which the call began.
    pub(crate) time_ns: u64,
    pub(crate) module: String,
    pub(crate) function: String,
    /// Time of the call.
    pub(crate) elapsed_ns: u64,
    /// The same without `calls`. Own times and those of the calls inside add up to `elapsed_ns`.
    pub(crate) self_ns: u64,
    #[serde(flatten)]
    pub(crate) of_call: CallValues,
    /// Number of calls inside that are missing because the buffer was full.
    pub(crate) lost: u64,
    /// The calls that it has made, in the order in which they began.
    pub(crate) calls: Vec<InnerCallObject>,
}

/// A call inside of a slow call.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct InnerCallObject {
    pub(crate) module: String,
    pub(crate) function: String,
    /// Time from the beginning of the slow call to that of this one.
    pub(crate) at_ns: u64,
    /// Time of the call.
    pub(crate) elapsed_ns: u64,
    /// The same without `calls`.
    pub(crate) self_ns: u64,
    /// Values of the call, if some were asked for.
    #[serde(flatten)]
    pub(crate) told: Option<ToldObject>,
    /// The calls that it has made, in the order in which they began.
    pub(crate) calls: Vec<InnerCallObject>,
    /// Number of calls inside that are too deep for a record; left out if there are none.
    #[serde(skip_serializing_if = "is_zero")]
    pub(crate) deeper: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "as serde wants it")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl InnerCallObject {
    /// Puts calls into those that made them. Each comes with its depth, in the order in which they began.
    pub(crate) fn nested(calls: impl Iterator<Item = (usize, InnerCallObject)>) -> Vec<InnerCallObject> {
        let mut open: Vec<InnerCallObject> = Vec::new();
        let mut done = Vec::new();
        fn close(open: &mut Vec<InnerCallObject>, done: &mut Vec<InnerCallObject>) {
            if let Some(ended) = open.pop() {
                open.last_mut().map_or(done, |around| &mut around.calls).push(ended);
            }
        }
        for (depth, call) in calls {
            if depth >= DEPTH_MAX {
                if let Some(innermost) = open.last_mut() {
                    innermost.deeper += 1;
                }
                continue;
            }
            while open.len() > depth {
                close(&mut open, &mut done);
            }
            open.push(call);
        }
        while !open.is_empty() {
            close(&mut open, &mut done);
        }
        done
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(at_ns: u64) -> InnerCallObject {
        let (module, function) = (String::new(), String::new());
        InnerCallObject { module, function, at_ns, elapsed_ns: 0, self_ns: 0, told: None, calls: Vec::new(), deeper: 0 }
    }

    fn text(calls: &[InnerCallObject]) -> String {
        let of = |call: &InnerCallObject| {
            let more = if call.deeper > 0 { format!("+{}", call.deeper) } else { String::new() };
            format!("{}{more}({})", call.at_ns, text(&call.calls))
        };
        calls.iter().map(of).collect()
    }

    #[test]
    fn calls_lie_in_those_that_made_them() {
        let of =
            |depths: &[usize]| text(&InnerCallObject::nested((1..).zip(depths).map(|(at, depth)| (*depth, call(at)))));
        assert_eq!(of(&[]), "");
        assert_eq!(of(&[0, 1, 2, 1, 0]), "1(2(3())4())5()");
        assert_eq!(of(&[0, 0, 1]), "1()2(3())");
    }

    #[test]
    fn calls_that_are_too_deep_are_counted() {
        let calls = (0..200).map(|depth| (depth, call(depth as u64))).chain([(1, call(300))]);
        let nested = InnerCallObject::nested(calls);
        let mut depth = 0;
        let mut at = &nested;
        while let Some(call) = at.first() {
            depth += 1;
            assert_eq!(call.deeper, if depth == DEPTH_MAX { 140 } else { 0 });
            at = &call.calls;
        }
        assert_eq!((depth, nested[0].calls.len()), (DEPTH_MAX, 2));
    }
}
