//! `ingraft functions`: functions of a running program and how each kind of point is reached.

use super::summary;
use crate::args::{Common, FunctionsArgs};
use crate::conn::Engines;
use crate::exit::Stop;
use crate::measure;
use crate::objects::{FunctionObject, Object, UntypedObject};
use crate::output::number::{grouped_u64, percent, plural};
use crate::output::progress::Progress;
use crate::output::table::{Cell, TextTable};
use crate::output::{BAD, DIM, Output, WARN};

/// Number of symbols that are named before the rest is counted.
const NAMED: usize = 8;

/// Runs the command.
pub(crate) async fn run(args: FunctionsArgs, engines: &Engines, common: &Common, out: &mut Output) -> Result<(), Stop> {
    let (mut functions, mut untyped) = (Vec::new(), Vec::new());
    for client in engines.clients() {
        for target in measure::running(&args.target) {
            let mut progress = Progress::new("reading the program", common.format);
            let list = client.functions(&target, &args.globs, true, &mut progress).await?;
            functions.extend(list.functions.into_iter().map(|f| FunctionObject::new(f, list.pid, client.host())));
            untyped.extend(list.untyped.into_iter().map(|symbol| UntypedObject::new(symbol, list.pid, client.host())));
        }
    }
    if args.summary {
        return summary::print(&functions, args.target.pids.len() > 1, out);
    }
    let text = render(&functions, args.target.pids.len() > 1, out.width()) + &left_out(&untyped);
    out.text(&text)?;
    functions.into_iter().try_for_each(|f| out.object(&Object::Function(f)))?;
    untyped.into_iter().try_for_each(|symbol| out.object(&Object::Untyped(symbol)))
}

/// Symbols that the list leaves out, for people; empty if there is none.
fn left_out(untyped: &[UntypedObject]) -> String {
    let Some(first) = untyped.first() else { return String::new() };
    let names: Vec<&str> = untyped.iter().take(NAMED).map(|symbol| symbol.symbol.as_str()).collect();
    let more = match untyped.len().saturating_sub(NAMED) {
        0 => String::new(),
        n => format!(" and {} more", grouped_u64(n as u64)),
    };
    let names = names.join(", ") + &more;
    let symbols = plural(untyped.len() as u64, "symbol without a type is", "symbols without a type are");
    let why = match &first.inside {
        Some(function) if untyped.len() == 1 => format!("it lies inside of {function}"),
        _ => "nothing shows that a function begins there".to_owned(),
    };
    format!("{DIM}{symbols} not listed, as {why}: {names}{DIM:#}\n")
}

fn render(functions: &[FunctionObject], several: bool, width: Option<usize>) -> String {
    let mut table = TextTable::new()
        .shrinking("HOST")
        .right("PID")
        .shrinking("FUNCTION")
        .left("MODULE")
        .right("OFFSET")
        .right("SIZE")
        .left("ENTRY")
        .left("EXIT")
        .left("CALL")
        .shrinking("WHY NOT")
        .kept("FUNCTION", usize::MAX)
        .optional(&["SIZE", "CALL", "OFFSET", "EXIT", "WHY NOT", "MODULE", "PID"]);
    let mut countable = 0_u64;
    for f in functions {
        countable += u64::from(f.how.get("entry").is_some_and(|&how| how != "refused"));
        let pid = if several { f.pid.to_string() } else { String::new() };
        // The reason for the entry is the one to show, because the entry decides what can be measured.
        let why = f.why_not.as_ref().and_then(|w| w.get("entry")).cloned().unwrap_or_default();
        table.row(vec![
            f.host.clone().unwrap_or_default().into(),
            pid.into(),
            f.function.as_str().into(),
            Cell::styled(f.module.as_str(), DIM),
            f.offset.as_str().into(),
            grouped_u64(f.size).into(),
            reached(f, "entry"),
            reached(f, "exit"),
            reached(f, "call"),
            Cell::styled(why, DIM),
        ]);
    }
    let all = functions.len() as u64;
    let share = if all == 0 { String::new() } else { format!(" ({})", percent(countable as f64 * 100.0 / all as f64)) };
    let total = plural(all, "function", "functions");
    format!(
        "{}{DIM}{total}; the calls of {} can be counted{share}{DIM:#}\n",
        table.render(width),
        grouped_u64(countable)
    )
}

/// Number and method of the points of a kind, e.g. `1 in-place` or `7 partly`; empty if there is no such point.
fn reached(f: &FunctionObject, kind: &str) -> Cell {
    let n = f.points.get(kind).copied().unwrap_or(0);
    match f.how.get(kind) {
        None => "".into(),
        Some(_) if n == 0 => "".into(),
        Some(&how) => {
            let jumps = match f.facts.tail_exits {
                1 if kind == "exit" && n == 1 => ", jumps".to_owned(),
                jumps @ 1.. if kind == "exit" => format!(", {jumps} jump"),
                _ => String::new(),
            };
            let text = if n == 1 { format!("{how}{jumps}") } else { format!("{n} {how}{jumps}") };
            match how {
                "refused" => Cell::styled(text, BAD),
                "partly" => Cell::styled(text, WARN),
                _ => text.into(),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use expect_test::expect;
    use ingraft_api::FunctionFacts;

    use super::*;

    fn function(name: &str, entry: &'static str, why: Option<&str>) -> FunctionObject {
        FunctionObject {
            host: None,
            pid: 7,
            module: "redis-server".to_owned(),
            function: name.to_owned(),
            offset: "0x5c1b0".to_owned(),
            size: 2412,
            points: BTreeMap::from([("entry", 1), ("exit", 7), ("call", 0)]),
            how: BTreeMap::from([("entry", entry), ("exit", "partly"), ("call", "refused")]),
            why_not: why.map(|w| BTreeMap::from([("entry", w.to_owned())])),
            reasons: why.map(|_| BTreeMap::from([("entry", "too_short".to_owned())])),
            facts: FunctionFacts { tail_exits: u32::from(why.is_none()) * 2, exposed: false },
        }
    }

    #[test]
    fn each_kind_of_point_is_shown() {
        let all = [function("processCommand", "in-place", None), function("tiny", "refused", Some("too short"))];
        expect![[r#"
            FUNCTION        MODULE         OFFSET   SIZE  ENTRY     EXIT              WHY NOT
            processCommand  redis-server  0x5c1b0  2,412  in-place  7 partly, 2 jump
            tiny            redis-server  0x5c1b0  2,412  refused   7 partly          too short
            2 functions; the calls of 1 can be counted (50 %)
        "#]]
        .assert_eq(&anstream::adapter::strip_str(&render(&all, false, None)).to_string());
    }

    #[test]
    fn a_narrow_screen_shows_whole_names() {
        let name = "clusterSlotStatsAddNetworkBytesOutForPubSub";
        let function = function(name, "refused", Some("control can arrive at +0x1"));
        let text = anstream::adapter::strip_str(&render(&[function], false, Some(80))).to_string();
        assert!(text.contains(name) && text.contains("refused"), "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    }
}
