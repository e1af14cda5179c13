//! A function in detail as text for people.

use std::collections::BTreeMap;

use super::number;
use crate::args::InspectArgs;
use crate::objects::EdgeObject;
use crate::objects::code::{BlockObject, Inspected, InstructionObject, PointObject, WayObject, WovenObject};
use crate::output::number::{grouped, grouped_u64, plural};
use crate::output::table::{Cell, TextTable};
use crate::output::words::readable_pair;
use crate::output::{BAD, DIM, GOOD, HEADING, WARN};

/// Width to which instructions are padded before their source line.
const CODE_WIDTH: usize = 48;
/// Largest number of bytes of an instruction that are shown.
const BYTES_SHOWN: usize = 20;

/// Renders a function.
pub(super) fn render(function: &Inspected, args: &InspectArgs, several: bool, width: Option<usize>) -> String {
    let mut text = head(function, several);
    if let Some(way) = &function.way {
        text += &path(function, way);
        if !args.disassembly {
            return text;
        }
    }
    if args.disassembly {
        return text + &disassembly(function);
    }
    text += &points(function, width);
    text += &blocks(function, width);
    text += &loops(function, width);
    text + &ways(function)
}

/// Makes control characters in text of other processes harmless.
fn plain(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

fn head(function: &Inspected, several: bool) -> String {
    let graph = &function.graph;
    let id = &graph.id;
    let process = if several { format!(" in process {}", id.pid) } else { String::new() };
    let name = plain(&id.function);
    let mut text = format!("{HEADING}{name}{HEADING:#} {}+{}{process}", plain(&id.module), id.offset);
    text += &format!(
        ": {} in {}, {}, at {}\n",
        plural(graph.size, "byte", "bytes"),
        plural(function.blocks.len() as u64, "block", "blocks"),
        plural(function.loops.len() as u64, "loop", "loops"),
        graph.address
    );
    if let Some(holder) = &graph.holder {
        let woven = function.points.iter().filter(|point| point.woven).count() as u64;
        text += &format!("{WARN}{} woven by {}{WARN:#}\n", plural(woven, "point is", "points are"), plain(holder));
    }
    text
}

/// The method of a point in words.
fn how(point: &PointObject) -> Cell {
    match (point.springboard, point.how) {
        (Some("island"), _) => Cell::styled("in-place, by an island", GOOD),
        (Some("call"), _) => Cell::styled("in-place, by the call itself", GOOD),
        (Some("copy"), _) => Cell::styled("in-place, in a displaced copy", GOOD),
        (Some(_), how) => Cell::styled(how, GOOD),
        (None, how) => Cell::styled(how, BAD),
    }
}

/// The points at the entry, the exits and the calls.
fn points(function: &Inspected, width: Option<usize>) -> String {
    let mut table = TextTable::new().left("POINT").right("AT").left("HOW").left("WOVEN").shrinking("WHY NOT");
    for point in function.points.iter().filter(|point| point.kind != "block") {
        table.row(vec![
            point.kind.into(),
            point.at.as_str().into(),
            how(point),
            Cell::styled(if point.woven { "woven" } else { "" }, WARN),
            Cell::styled(point.why_not.clone().unwrap_or_default(), DIM),
        ]);
    }
    format!("\n{}", table.render(width))
}

/// An edge in words: its kind and its destination.
fn edge(edge: &EdgeObject) -> String {
    let back = if edge.back == Some(true) { "back " } else { "" };
    let kind = edge.kind.unwrap_or_default();
    match (&edge.to, &edge.outside) {
        (Some(to), _) => format!("{kind} {back}#{to}"),
        (None, Some(outside)) => format!("{kind} {outside}"),
        (None, None) => kind.to_owned(),
    }
}

fn blocks(function: &Inspected, width: Option<usize>) -> String {
    let mut table = TextTable::new()
        .left("BLOCK")
        .right("SIZE")
        .right("INSTR")
        .right("COUNT")
        .left("LOOP")
        .left("EDGES")
        .left("POINT")
        .shrinking("WHY NOT");
    let mut edges: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for one in &function.edges {
        edges.entry(&one.from).or_default().push(edge(one));
    }
    let points: BTreeMap<&str, &PointObject> =
        function.points.iter().filter(|point| point.kind == "block").map(|point| (point.at.as_str(), point)).collect();
    for block in &function.blocks {
        let point = points.get(block.block.as_str());
        table.row(vec![
            format!("#{}", block.block).into(),
            grouped_u64(block.size).into(),
            block.instructions.to_string().into(),
            block.count.map(grouped).unwrap_or_default().into(),
            nesting(block).into(),
            edges.get(block.block.as_str()).map(|all| all.join(", ")).unwrap_or_default().into(),
            point.map_or_else(|| "".into(), |point| how(point)),
            Cell::styled(point.and_then(|point| point.why_not.clone()).unwrap_or_default(), DIM),
        ]);
    }
    format!("\n{}", table.render(width))
}

/// The innermost loop of a block: the header, and the number of loops around the block.
fn nesting(block: &BlockObject) -> String {
    match &block.header {
        Some(header) if *header == block.block => format!("{} header", block.depth.unwrap_or_default()),
        Some(header) => format!("{} of #{header}", block.depth.unwrap_or_default()),
        None => String::new(),
    }
}

fn loops(function: &Inspected, width: Option<usize>) -> String {
    if function.loops.is_empty() {
        return String::new();
    }
    let mut table =
        TextTable::new().left("LOOP").right("DEPTH").left("IN").right("BLOCKS").left("BACK FROM").left("ENTERED AT");
    let names = |all: &[String]| all.iter().map(|at| format!("#{at}")).collect::<Vec<_>>().join(" ");
    for one in &function.loops {
        let entered =
            if one.entries.len() > 1 { format!("{} (irreducible)", names(&one.entries)) } else { String::new() };
        table.row(vec![
            format!("#{}", one.header).into(),
            (one.depth + 1).to_string().into(),
            one.parent.as_ref().map(|parent| format!("#{parent}")).unwrap_or_default().into(),
            one.body.len().to_string().into(),
            names(&one.latches).into(),
            Cell::styled(entered, WARN),
        ]);
    }
    format!("\n{}", table.render(width))
}

/// The ways in and out, and whether they are proven to be all.
fn ways(function: &Inspected) -> String {
    let graph = &function.graph;
    let proven = |why: &Option<String>| match why {
        None => format!("{GOOD}proven to be all{GOOD:#}"),
        Some(why) => format!("{BAD}not proven to be all: {}{BAD:#}", plain(why)),
    };
    // Return addresses are ways in of every function with a call, and follow from the edges.
    let mut reasons: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for way in &function.ways_in {
        reasons.entry(way.reason).or_default().push(format!("#{}", way.at));
    }
    let mut text = format!("\n{HEADING}ways in{HEADING:#}, {}\n", proven(&graph.ways_in_why_not));
    for (reason, places) in reasons {
        text += &format!("  {DIM}{reason:<21}{DIM:#} {}\n", places.join(" "));
    }
    text += &format!("{HEADING}ways out{HEADING:#}, {}\n", proven(&graph.ways_out_why_not));
    let mut outs: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for one in function.edges.iter().filter(|edge| edge.to.is_none()) {
        outs.entry(plain(&edge(one))).or_default().push(format!("#{}", one.from));
    }
    for (kind, places) in outs {
        text += &format!("  {DIM}{kind:<21}{DIM:#} {}\n", places.join(" "));
    }
    if !graph.unresolved.is_empty() {
        let places: Vec<String> = graph.unresolved.iter().map(|at| format!("+{at}")).collect();
        text += &format!("  {BAD}indirect jumps with unknown targets at {}{BAD:#}\n", places.join(" "));
    }
    text
}

/// An instruction with its source line; `last` is the source line of the instruction before it, which is not repeated.
fn code_line(line: &InstructionObject, last: &mut Option<(String, u64)>) -> String {
    let bytes: String = line.bytes.chars().take(BYTES_SHOWN).collect();
    let text = format!("  {:>8}  {DIM}{bytes:<BYTES_SHOWN$}{DIM:#}  {}", line.at, plain(&line.text));
    let source = line.file.clone().zip(line.line);
    if source == *last || source.is_none() {
        return text + "\n";
    }
    last.clone_from(&source);
    let shown = source.map(|(file, number)| {
        let name = file.rsplit('/').next().unwrap_or(&file).to_owned();
        format!("{}:{number}", plain(&name))
    });
    let padding = CODE_WIDTH.saturating_sub(line.text.chars().count());
    format!("{text}{:padding$} {DIM}{}{DIM:#}\n", "", shown.unwrap_or_default())
}

/// The instructions by block, each block followed by the code that is woven at points in it.
fn disassembly(function: &Inspected) -> String {
    let mut text = String::new();
    let mut source = None;
    for block in &function.blocks {
        let start = number(&block.block);
        let range = start..start.saturating_add_unsigned(block.size);
        let loops = nesting(block);
        let loops = if loops.is_empty() { String::new() } else { format!("  loop {loops}") };
        let count = block.count.map(|count| format!("  {} times", grouped(count))).unwrap_or_default();
        text += &format!("\n{HEADING}#{}{HEADING:#}{WARN}{count}{WARN:#}{DIM}{loops}{DIM:#}\n", block.block);
        text += &code_of(function, block, &mut source);
        let edges = function.edges.iter().filter(|edge| edge.from == block.block).map(edge);
        text += &format!("  {DIM}{:>8}  {}{DIM:#}\n", "", plain(&edges.collect::<Vec<_>>().join(", ")));
        let woven: Vec<&WovenObject> =
            function.woven.iter().filter(|line| range.contains(&number(&line.point))).collect();
        text += &woven_text(&woven);
    }
    text
}

/// A path in words: its number, its beginning and its end.
pub(super) fn way_in_words(way: &WayObject) -> String {
    let begins = match way.begins {
        "entry" => "begins at the entry",
        "loop" => "begins where a loop goes on, or at a cut",
        "return" => "begins behind a call that has returned again",
        _ => "begins where control arrives from outside",
    };
    let ends = match way.ends {
        "exit" => "ends where control leaves the function".to_owned(),
        "loop" => {
            let next = way.next.as_ref().map(|next| format!(", behind which a path begins at #{next}"));
            format!("ends at a back edge or a cut{}", next.unwrap_or_default())
        }
        "call" => "ends before a call that may return several times".to_owned(),
        _ => "has no end".to_owned(),
    };
    format!("path {} of {}: {begins}, and {ends}", way.path, plural(way.possible, "path", "paths"))
}

/// The blocks of a path in order, with their instructions and source lines.
fn path(function: &Inspected, way: &WayObject) -> String {
    let mut text = format!("{}\n", way_in_words(way));
    let mut source = None;
    let blocks = way.blocks.iter().filter_map(|at| function.blocks.iter().find(|block| block.block == *at));
    for block in blocks {
        let count = block.count.map(|count| format!("  {} times", grouped(count))).unwrap_or_default();
        text += &format!("\n{HEADING}#{}{HEADING:#}{WARN}{count}{WARN:#}\n", block.block);
        text += &code_of(function, block, &mut source);
    }
    text
}

/// The instructions of a block.
fn code_of(function: &Inspected, block: &BlockObject, source: &mut Option<(String, u64)>) -> String {
    let start = number(&block.block);
    let range = start..start.saturating_add_unsigned(block.size);
    let lines = function.instructions.iter().filter(|line| range.contains(&number(&line.at)));
    lines.map(|line| code_line(line, source)).collect()
}

/// Woven code, with a heading for each point and each part.
fn woven_text(lines: &[&WovenObject]) -> String {
    let mut text = String::new();
    let (mut point, mut part) = (None, None);
    for line in lines {
        let this = (line.kind, line.point.as_str());
        if point != Some(this) {
            let kind = line.kind.unwrap_or("point");
            text += &format!("    {WARN}woven: {kind} at {}{WARN:#}\n", line.point);
            (point, part) = (Some(this), None);
        }
        let this = (line.part, line.pair.as_deref());
        if part != Some(this) {
            let pair =
                line.pair.as_ref().map(|pair| format!(" of {}", plain(&readable_pair(pair)))).unwrap_or_default();
            text += &format!("    {WARN}{}{pair}{WARN:#}\n", line.part);
            part = Some(this);
        }
        let bytes: String = line.bytes.chars().take(BYTES_SHOWN).collect();
        let padding = CODE_WIDTH.saturating_sub(line.text.chars().count());
        let original =
            line.original.as_ref().map(|at| format!("{:padding$} {DIM}-> {at}{DIM:#}", "")).unwrap_or_default();
        text += &format!("    {:>14}  {DIM}{bytes:<BYTES_SHOWN$}{DIM:#}  {}{original}\n", line.address, line.text);
    }
    text
}
