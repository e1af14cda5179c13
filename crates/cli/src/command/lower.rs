//! `ingraft metrics --cost` and `ingraft check --lower`: the code that metrics are lowered to, and its cost.

use std::fmt::Write as _;

use ingraft_api::LowerRequest;
use ingraft_mdl::{Library, ParseOptions};
use ingraft_model::Flavor;

use crate::args::{CheckArgs, Common, RunningTarget};
use crate::conn::{Engines, RequestTarget};
use crate::exit::{Exit, Failure, Stop};
use crate::measure;
use crate::objects::lowered::Piece;
use crate::objects::{Host, LoweredObject, Object};
use crate::output::progress::Progress;
use crate::output::table::{Cell, TextTable};
use crate::output::{DIM, HEADING, Output, words};

/// Shows the worst-case cost of each metric, or of those whose names match a pattern.
pub(super) async fn costs(
    (definitions, flavors, glob): (Vec<(String, String)>, Vec<Flavor>, Option<&str>),
    target: &RunningTarget,
    engines: &Engines,
    common: &Common,
    out: &mut Output,
) -> Result<(), Stop> {
    let target = one(target)?.map(|target| target.spec());
    let ask = LowerRequest { target, definitions, flavors, ..LowerRequest::default() };
    let mut lowered = lowered(&ask, engines, common).await?;
    super::metrics::keep_matching(&mut lowered, glob, "metric", |m| vec![m.metric.as_str()])?;
    let text = table(&lowered, out.width());
    out.text(&text)?;
    lowered.into_iter().try_for_each(|metric| out.object(&Object::Lowered(metric)))
}

/// Checks files, and shows the code that their metrics are lowered to.
pub(crate) async fn check(args: CheckArgs, engines: &Engines, common: &Common, out: &mut Output) -> Result<(), Stop> {
    super::mdl::check(&args, common.format, out)?;
    let definitions = measure::sources(&args.files)?;
    let mut library = Library::new(ParseOptions::default());
    for (name, text) in &definitions {
        // The check above has reported all errors already.
        let _ = library.load(name, text);
    }
    let flavors = args.flavors.names;
    let metrics: Vec<String> = library.metrics().iter().map(|m| m.name.clone()).collect();
    if metrics.is_empty() {
        return out.text("no metric is defined there\n");
    }
    let target = one(&args.target)?.map(|target| target.spec());
    let ask = LowerRequest { metrics, focus: args.focus, target, definitions, flavors, code: true };
    for metric in lowered(&ask, engines, common).await? {
        out.text(&listing(&metric))?;
        out.object(&Object::Lowered(metric))?;
    }
    Ok(())
}

/// The process that the flags name, if they name one.
fn one(target: &RunningTarget) -> Result<Option<RequestTarget>, Stop> {
    let mut targets = measure::running(target).into_iter();
    match (targets.next(), targets.next()) {
        (first, None) => Ok(first),
        (_, Some(_)) => Err(Failure::usage("more than one process", "name one with -p PID").into()),
    }
}

/// Names of the metrics that measure nothing in a program.
pub(super) async fn without_meaning(
    definitions: &[(String, String)],
    flavors: &[Flavor],
    target: &RunningTarget,
    engines: &Engines,
    common: &Common,
) -> Result<Vec<(Host, String)>, Stop> {
    let (definitions, flavors) = (definitions.to_vec(), flavors.to_vec());
    let target = one(target)?.map(|target| target.spec());
    let ask = LowerRequest { target, definitions, flavors, ..LowerRequest::default() };
    let lowered = lowered(&ask, engines, common).await?;
    Ok(lowered.into_iter().filter(|m| !m.applies).map(|m| (m.host, m.metric)).collect())
}

async fn lowered(ask: &LowerRequest, engines: &Engines, common: &Common) -> Result<Vec<LoweredObject>, Stop> {
    let mut all = Vec::new();
    for client in engines.clients() {
        let mut progress = Progress::new("generating code", common.format);
        let lowered = client.lower(ask, &mut progress).await?;
        all.extend(lowered.into_iter().map(|metric| LoweredObject::new(metric, client.host())));
    }
    if all.iter().all(|m| m.pieces.is_empty())
        && let Some(first) = all.iter().find(|_| ask.focus.is_some())
    {
        let why = first.problem.clone().unwrap_or_default();
        let hint = "`ingraft functions` lists what a focus can name";
        return Err(Failure::new(Exit::NotFound, format!("`{}`: {why}", first.metric), hint).into());
    }
    Ok(all)
}

/// Renders one line for each kind of point of each metric.
fn table(metrics: &[LoweredObject], width: Option<usize>) -> String {
    let mut table = TextTable::new()
        .shrinking("HOST")
        .left("METRIC")
        .left("POINT")
        .right("CYCLES")
        .right("NS")
        .right("FUNCTIONS")
        .shrinking("");
    for m in metrics {
        let mut name = m.metric.as_str();
        let mut row = |point: String, cycles: Option<f64>, ns: Option<f64>, functions: String, note: &str| {
            let number = |value: Option<f64>| value.map(|v| format!("{v:.1}")).unwrap_or_default();
            table.row(vec![
                m.host.clone().unwrap_or_default().into(),
                std::mem::take(&mut name).into(),
                point.into(),
                number(cycles).into(),
                number(ns).into(),
                functions.into(),
                Cell::styled(note, DIM),
            ]);
        };
        if let Some(problem) = &m.problem {
            row(String::new(), None, None, String::new(), problem);
        }
        for p in &m.pieces {
            let note = p.why_not.as_deref().unwrap_or_default();
            row(place(p), p.cycles, p.ns, p.functions.to_string(), note);
        }
    }
    table.render(width)
}

fn place(p: &Piece) -> String {
    if p.after { format!("behind {}", p.point) } else { p.point.to_owned() }
}

/// Renders a metric with its code.
fn listing(m: &LoweredObject) -> String {
    let mut text = format!("\n{HEADING}{}{HEADING:#}", m.metric);
    if !m.focus.is_empty() {
        let _ = write!(text, " @ {}", words::readable_focus(&m.focus));
    }
    text.push('\n');
    if let Some(problem) = &m.problem {
        let _ = writeln!(text, "  {problem}");
    }
    for p in &m.pieces {
        let _ = writeln!(text, "\n  {} of {}: {}", place(p), p.function, p.snippet);
        match (&p.why_not, p.cycles, p.ns) {
            (Some(why), ..) => {
                let _ = writeln!(text, "  not woven: {why}");
            }
            (None, Some(cycles), Some(ns)) => {
                let _ = writeln!(text, "  {DIM}at worst {cycles:.1} cycles, {ns:.1} ns{DIM:#}");
            }
            (None, ..) => {}
        }
        for i in &p.code {
            if let Some(label) = &i.label {
                let _ = writeln!(text, "  {label}:");
            }
            let _ = writeln!(text, "    {DIM}{:>8}  {:<20}{DIM:#}  {}", i.at, i.bytes, i.text);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;
    use crate::objects::lowered::Instruction;

    fn metric() -> LoweredObject {
        let line = |label: Option<&str>, text: &str| Instruction {
            label: label.map(str::to_owned),
            at: "0x101000".to_owned(),
            bytes: "65480f".to_owned(),
            text: text.to_owned(),
        };
        let piece = |why_not: Option<&str>| Piece {
            point: "entry",
            after: why_not.is_some(),
            functions: 1,
            function: "function".to_owned(),
            snippet: "v0++;".to_owned(),
            cycles: why_not.is_none().then_some(6.25),
            ns: why_not.is_none().then_some(2.0),
            why_not: why_not.map(str::to_owned),
            code: if why_not.is_none() { vec![line(Some("base"), "mov eax,1"), line(None, "ret")] } else { Vec::new() },
        };
        LoweredObject {
            host: None,
            metric: "calls".to_owned(),
            focus: "/Code/program/function".to_owned(),
            pieces: vec![piece(None), piece(Some("not yet"))],
            applies: true,
            problem: None,
        }
    }

    #[test]
    fn costs_for_people() {
        let strange = LoweredObject { pieces: Vec::new(), problem: Some("no such list".to_owned()), ..metric() };
        let text = table(&[metric(), strange], None);
        expect![[r#"
            METRIC  POINT         CYCLES   NS  FUNCTIONS
            calls   entry            6.2  2.0          1
                    behind entry                       1  not yet
            calls                                         no such list
        "#]]
        .assert_eq(&anstream::adapter::strip_str(&text).to_string());
    }

    #[test]
    fn code_for_people() {
        expect![[r#"

            calls @ /Code/program/function

              entry of function: v0++;
              at worst 6.2 cycles, 2.0 ns
              base:
                0x101000  65480f                mov eax,1
                0x101000  65480f                ret

              behind entry of function: v0++;
              not woven: not yet
        "#]]
        .assert_eq(&anstream::adapter::strip_str(&listing(&metric())).to_string());
    }
}
