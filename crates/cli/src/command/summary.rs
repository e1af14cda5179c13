//! `ingraft functions --summary`: how much of each module can be measured.

use std::collections::BTreeMap;

use crate::exit::Stop;
use crate::objects::code::{KindSummary, SummaryObject};
use crate::objects::{FunctionObject, Object};
use crate::output::number::{grouped_u64, percent};
use crate::output::table::{Cell, TextTable};
use crate::output::{BAD, DIM, Output, WARN};

/// Prints the summary of these functions.
pub(super) fn print(functions: &[FunctionObject], several: bool, out: &mut Output) -> Result<(), Stop> {
    let all = summaries(functions);
    let text = render(&all, several, out.width());
    out.text(&text)?;
    all.into_iter().try_for_each(|one| out.object(&Object::Summary(one)))
}

/// The summaries of all modules, in the order in which the modules come first.
fn summaries(functions: &[FunctionObject]) -> Vec<SummaryObject> {
    let mut all: Vec<SummaryObject> = Vec::new();
    let mut known: BTreeMap<(Option<&str>, i32, &str), usize> = BTreeMap::new();
    for f in functions {
        let number = *known.entry((f.host.as_deref(), f.pid, f.module.as_str())).or_insert_with(|| {
            all.push(SummaryObject {
                host: f.host.clone(),
                pid: f.pid,
                module: f.module.clone(),
                functions: 0,
                entry: KindSummary::default(),
                exit: KindSummary::default(),
                call: KindSummary::default(),
                block: KindSummary::default(),
                edge: KindSummary::default(),
            });
            all.len() - 1
        });
        let Some(summary) = all.get_mut(number) else { continue };
        summary.functions += 1;
        for (kind, of) in kinds(summary) {
            add(f, kind, of);
        }
    }
    all
}

fn kinds(summary: &mut SummaryObject) -> [(&'static str, &mut KindSummary); 5] {
    let SummaryObject { entry, exit, call, block, edge, .. } = summary;
    [("entry", entry), ("exit", exit), ("call", call), ("block", block), ("edge", edge)]
}

fn add(f: &FunctionObject, kind: &str, of: &mut KindSummary) {
    let points = f.points.get(kind).copied().unwrap_or(0);
    of.points += u64::from(points);
    if points == 0 {
        of.none += 1;
        return;
    }
    match f.how.get(kind).copied() {
        Some("relocated") => of.relocated += 1,
        Some("partly") => of.partly += 1,
        Some("refused") => of.refused += 1,
        Some(_) => of.in_place += 1,
        None => of.none += 1,
    }
    if let Some(reason) = f.reasons.as_ref().and_then(|reasons| reasons.get(kind)) {
        *of.reasons.entry(reason.clone()).or_default() += 1;
    }
}

fn render(all: &[SummaryObject], several: bool, width: Option<usize>) -> String {
    let mut table = TextTable::new()
        .shrinking("HOST")
        .right("PID")
        .left("MODULE")
        .right("FUNCTIONS")
        .left("POINTS")
        .right("IN PLACE")
        .right("IN COPIES")
        .right("PARTLY")
        .right("REFUSED")
        .shrinking("REASONS");
    for summary in all {
        let mut summary = summary.clone();
        let (host, pid, module) = (summary.host.clone().unwrap_or_default(), summary.pid, summary.module.clone());
        let functions = grouped_u64(summary.functions);
        for (number, (kind, of)) in kinds(&mut summary).into_iter().enumerate() {
            let first = number == 0;
            let only = |text: &str| if first { text.to_owned() } else { String::new() };
            let count = |n: u64, style| match n {
                0 => Cell::from(""),
                n => Cell::styled(grouped_u64(n), style),
            };
            let having = of.in_place + of.relocated + of.partly + of.refused;
            let part = |n: u64, none: &str| match n {
                0 => none.to_owned(),
                n => format!("{} ({})", grouped_u64(n), percent(n as f64 * 100.0 / having.max(1) as f64)),
            };
            table.row(vec![
                only(&host).into(),
                if several && first { pid.to_string().into() } else { "".into() },
                only(&module).into(),
                only(&functions).into(),
                format!("{} {kind}", grouped_u64(of.points)).into(),
                part(of.in_place, "0").into(),
                part(of.relocated, "").into(),
                count(of.partly, WARN),
                count(of.refused, BAD),
                Cell::styled(reasons(&of.reasons), DIM),
            ]);
        }
    }
    table.render(width)
}

/// The reasons with their numbers, the most frequent first.
fn reasons(reasons: &BTreeMap<String, u64>) -> String {
    let mut all: Vec<(&String, &u64)> = reasons.iter().collect();
    all.sort_by_key(|(word, n)| (std::cmp::Reverse(**n), *word));
    all.into_iter().map(|(word, n)| format!("{} {word}", grouped_u64(*n))).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use expect_test::expect;
    use ingraft_api::FunctionFacts;

    use super::*;

    fn function(module: &str, entry: &'static str, blocks: u32) -> FunctionObject {
        let refused = entry == "refused";
        FunctionObject {
            host: None,
            pid: 7,
            module: module.to_owned(),
            function: "f".to_owned(),
            offset: "0x10".to_owned(),
            size: 9,
            points: BTreeMap::from([("entry", 1), ("exit", 0), ("call", 3), ("block", blocks), ("edge", 4)]),
            how: BTreeMap::from([
                ("entry", entry),
                ("exit", "in-place"),
                ("call", "partly"),
                ("block", "in-place"),
                ("edge", "relocated"),
            ]),
            why_not: None,
            reasons: Some(if refused {
                BTreeMap::from([("entry", "too_short".to_owned()), ("call", "overlap".to_owned())])
            } else {
                BTreeMap::from([("call", "not_displaceable".to_owned())])
            }),
            facts: FunctionFacts::default(),
        }
    }

    #[test]
    fn functions_are_counted_by_module_kind_and_reason() {
        let functions = [function("a", "in-place", 2), function("b", "refused", 0), function("a", "refused", 5)];
        let all = summaries(&functions);
        assert_eq!(all.iter().map(|s| (s.module.as_str(), s.functions)).collect::<Vec<_>>(), [("a", 2), ("b", 1)]);
        assert_eq!((all[0].exit.none, all[0].block.points, all[1].block.none), (2, 7, 1));
        let text = render(&all, false, None);
        expect![[r#"
            MODULE  FUNCTIONS  POINTS    IN PLACE  IN COPIES  PARTLY  REFUSED  REASONS
            a               2  2 entry   1 (50 %)                           1  1 too_short
                               0 exit           0
                               6 call           0                  2           1 not_displaceable, 1 overlap
                               7 block  2 (100 %)
                               8 edge           0  2 (100 %)
            b               1  1 entry          0                           1  1 too_short
                               0 exit           0
                               3 call           0                  1           1 overlap
                               0 block          0
                               4 edge           0  1 (100 %)
        "#]]
        .assert_eq(&anstream::adapter::strip_str(&text).to_string());
    }
}
