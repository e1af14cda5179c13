//! A function in detail as a graph to be drawn.

use std::collections::BTreeMap;

use crate::objects;
use crate::objects::code::Inspected;
use crate::output::number::plural;
use crate::picture::{DrawnBlock, DrawnEdge, DrawnEdgeKind, DrawnGraph};

/// The graph of a function.
pub(super) fn graph(function: &Inspected) -> DrawnGraph {
    let numbers: BTreeMap<&str, usize> =
        function.blocks.iter().enumerate().map(|(number, block)| (block.block.as_str(), number)).collect();
    let mut graph = DrawnGraph { title: title(function), ..DrawnGraph::default() };
    for block in &function.blocks {
        graph.blocks.push(DrawnBlock {
            name: format!("#{}", block.block),
            depth: block.depth.unwrap_or_default(),
            count: block.count.map(|count| u64::try_from(count).unwrap_or(0)),
            on_path: function.way.as_ref().is_some_and(|way| way.blocks.contains(&block.block)),
            ..DrawnBlock::default()
        });
    }
    // Blocks and instructions are in the order of addresses.
    let starts: Vec<i64> = function.blocks.iter().map(|block| super::number(&block.block)).collect();
    let holding = |at: &str| starts.partition_point(|start| *start <= super::number(at)).checked_sub(1);
    for line in &function.instructions {
        if let Some(block) = holding(&line.at).and_then(|number| graph.blocks.get_mut(number)) {
            block.lines.push(format!("{:>6}  {}", line.at.trim_start_matches("0x"), line.text));
        }
    }
    for point in function.points.iter().filter(|point| point.woven) {
        if let Some(block) = holding(&point.at).and_then(|number| graph.blocks.get_mut(number)) {
            block.woven = true;
        }
    }
    for way in &function.ways_in {
        let inner = matches!(way.reason, "call-return" | "syscall-return" | "jump-table");
        if let Some(number) = numbers.get(way.at.as_str()).filter(|_| !inner) {
            graph.blocks[*number].ways_in.push(way.reason);
            graph.roots.push(*number);
        }
    }
    if let Some(entry) = function.graph.entry.as_ref().and_then(|entry| numbers.get(entry.as_str())) {
        graph.roots.insert(0, *entry);
    }
    let passes = |from: &str, to: &str| function.way.as_ref().is_some_and(|way| way.passes(from, to));
    for edge in &function.edges {
        let Some(from) = numbers.get(edge.from.as_str()).copied() else { continue };
        match edge.to.as_ref().and_then(|to| numbers.get(to.as_str())) {
            Some(to) => {
                let on_path = edge.to.as_ref().is_some_and(|to| passes(&edge.from, to));
                let back = edge.back == Some(true);
                graph.edges.push(DrawnEdge { from, to: *to, kind: kind(function, edge), back, on_path });
            }
            None => graph.blocks[from].ways_out.push(match &edge.outside {
                Some(outside) => format!("{} {outside}", edge.kind.unwrap_or_default()),
                None => edge.kind.unwrap_or_default().to_owned(),
            }),
        }
    }
    graph
}

fn kind(function: &Inspected, edge: &objects::EdgeObject) -> DrawnEdgeKind {
    let branches = || {
        let mut others = function.edges.iter().filter(|other| other.from == edge.from);
        others.any(|other| other.kind != edge.kind || other.to != edge.to)
    };
    match edge.kind.unwrap_or_default() {
        "call-return" => DrawnEdgeKind::Return,
        "jump-table" => DrawnEdgeKind::Table,
        "taken" | "tail-jump" if branches() => DrawnEdgeKind::Taken,
        "fall-through" if branches() => DrawnEdgeKind::NotTaken,
        _ => DrawnEdgeKind::Only,
    }
}

fn title(function: &Inspected) -> Vec<String> {
    let graph = &function.graph;
    let facts = format!(
        "{}+{} in process {}: {}, {}, {}",
        graph.id.module,
        graph.id.offset,
        graph.id.pid,
        plural(graph.size, "byte", "bytes"),
        plural(function.blocks.len() as u64, "block", "blocks"),
        plural(function.loops.len() as u64, "loop", "loops"),
    );
    let ways = |what: &str, why: &Option<String>| match why {
        None => format!("{what}: proven to be all"),
        Some(why) => format!("{what}: not proven to be all: {why}"),
    };
    let path = function.way.as_ref().map(super::text::way_in_words);
    let mut title = vec![
        graph.id.function.clone(),
        facts,
        format!("{}; {}", ways("ways in", &graph.ways_in_why_not), ways("ways out", &graph.ways_out_why_not)),
    ];
    title.extend(path);
    title
}
