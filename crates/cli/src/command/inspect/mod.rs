//! `ingraft inspect`: functions in detail.

mod counts;
mod drawn;
mod text;

use ingraft_api::{Inspection, PathChoice};

use crate::args::InspectArgs;
use crate::conn::Client;
use crate::exit::{Failure, Stop};
use crate::measure::{self, CommandContext};
use crate::objects::Object;
use crate::objects::code::Inspected;
use crate::output::Output;
use crate::output::progress::Progress;
use crate::picture;

/// Runs the command.
pub(crate) async fn run(args: InspectArgs, context: CommandContext<'_>, out: &mut Output) -> Result<(), Stop> {
    let mut found = Vec::new();
    for client in context.engines.clients() {
        for target in measure::running(&args.target) {
            let mut progress = Progress::new("reading the program", context.common.format);
            let found_here = client.inspect(&target, &args.function, wanted(&args), &mut progress).await?;
            let mut functions = records(found_here, client);
            drop(progress);
            if let Some(duration) = args.duration {
                let about = counts::About { client, target: &target, args: &args, context: &context };
                functions = about.count(functions, duration, out).await?;
            } else {
                counts::present(client, &mut functions, context.common.format).await;
            }
            found.extend(functions);
        }
    }
    if args.dot || args.svg {
        return picture(&found, args.dot, out);
    }
    let several = found.iter().any(|f| f.graph.id.pid != found[0].graph.id.pid);
    for function in &found {
        out.text(&text::render(function, &args, several, out.width()))?;
    }
    found.into_iter().try_for_each(|function| objects(function, out))
}

/// The records of functions.
fn records(Inspection { pid, functions }: Inspection, client: &Client) -> Vec<Inspected> {
    functions.into_iter().map(|function| Inspected::new(function, pid, client.host())).collect()
}

/// Prints the control-flow graphs of functions for Graphviz, or as one picture.
fn picture(found: &[Inspected], dot: bool, out: &mut Output) -> Result<(), Stop> {
    let graphs: Vec<picture::DrawnGraph> = found.iter().map(drawn::graph).collect();
    let text = if dot {
        graphs.iter().map(picture::dot).collect()
    } else {
        let hint = "use --dot, and a program that draws large graphs";
        picture::svg(&graphs).map_err(|e| Failure::failed(e.to_string(), hint))?
    };
    out.verbatim(text.as_bytes())
}

/// Reads an offset of a record.
fn number(text: &str) -> i64 {
    let (minus, digits) = text.strip_prefix('-').map_or((false, text), |digits| (true, digits));
    let number = i64::from_str_radix(digits.trim_start_matches("0x"), 16).unwrap_or(0);
    if minus { -number } else { number }
}

/// Whether the command shows instructions, and the path that it shows.
fn wanted(args: &InspectArgs) -> (bool, Option<PathChoice>) {
    let path = args.path.map(|number| PathChoice { number, longest: args.truncate });
    (args.disassembly || args.dot || args.svg || path.is_some(), path)
}

/// Writes the records of a function.
fn objects(function: Inspected, out: &mut Output) -> Result<(), Stop> {
    let Inspected { start: _, graph, points, blocks, edges, loops, ways_in, instructions, woven, way } = function;
    out.object(&Object::Graph(graph))?;
    let points = points.into_iter().map(Object::Point);
    let blocks = blocks.into_iter().map(Object::Block);
    let edges = edges.into_iter().map(Object::Edge);
    let loops = loops.into_iter().map(Object::Loop);
    let ways_in = ways_in.into_iter().map(Object::WayIn);
    let instructions = instructions.into_iter().map(Object::Instruction);
    let woven = woven.into_iter().map(Object::Woven);
    let mut all = points.chain(blocks).chain(edges).chain(loops).chain(ways_in).chain(instructions).chain(woven);
    way.map_or(Ok(()), |way| out.object(&Object::Way(way)))?;
    all.try_for_each(|object| out.object(&object))
}
