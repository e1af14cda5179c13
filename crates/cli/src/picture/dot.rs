//! A control-flow graph as text for Graphviz.

use std::fmt::Write;

use super::{DrawnGraph, PATH, loop_bar};

/// The graph in the language of Graphviz (`dot`).
pub(crate) fn dot(graph: &DrawnGraph) -> String {
    let graph = graph.checked();
    let hottest = graph.hottest();
    let name = graph.title.first().map_or("", String::as_str);
    let mut text = format!("digraph {} {{\n", quoted(name));
    let title = lines(&graph.title, "\\l");
    text += &format!("  graph [label=\"{title}\", labelloc=t, labeljust=l, fontname=\"monospace\", fontsize=11];\n");
    text += "  node [shape=box, style=filled, fontname=\"monospace\", fontsize=10];\n";
    for (number, block) in graph.blocks.iter().enumerate() {
        let label = lines(&block.text(), "\\l");
        let (border, pen) = if block.on_path { (PATH, 4) } else { (loop_bar(block.depth), 2) };
        let fill = block.fill(hottest);
        // writing to a text does not fail
        let _written = writeln!(
            text,
            "  b{number} [label=\"{label}\", fillcolor=\"{fill}\", color=\"{border}\", penwidth={pen}];"
        );
    }
    for edge in &graph.edges {
        let colour = edge.kind.colour();
        let style = if edge.back { ", style=dashed" } else { "" };
        let pen = match (edge.on_path, edge.back) {
            (true, _) => ", penwidth=4",
            (false, true) => ", penwidth=2",
            (false, false) => "",
        };
        let tooltip = edge.kind.words();
        let _written =
            writeln!(text, "  b{} -> b{} [color=\"{colour}\"{style}{pen}, tooltip=\"{tooltip}\"];", edge.from, edge.to);
    }
    text + "}\n"
}

fn quoted(text: &str) -> String {
    format!("\"{}\"", escaped(text))
}

/// Lines, each with an end that aligns it to the left.
fn lines(lines: &[String], end: &str) -> String {
    lines.iter().map(|line| escaped(line) + end).collect()
}

/// Text inside of quotes. A backslash would begin an escape sequence.
fn escaped(text: &str) -> String {
    text.chars()
        .map(|c| if c.is_control() { '?' } else { c })
        .collect::<String>()
        .replace('\\', "\\\\")
        .replace('"', "\\\"")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::picture::tests::graph;

    #[test]
    fn text_is_quoted() {
        let mut graph = graph(2, &[(0, 1), (1, 0)]);
        graph.blocks[0].lines = vec!["a \"b\" \\l".to_owned()];
        graph.edges.push(crate::picture::DrawnEdge { from: 0, to: 7, ..graph.edges[0] });
        expect_test::expect![[r##"
            digraph "a <function> & \"more\"" {
              graph [label="a <function> & \"more\"\l", labelloc=t, labeljust=l, fontname="monospace", fontsize=11];
              node [shape=box, style=filled, fontname="monospace", fontsize=10];
              b0 [label="#0x0\la \"b\" \\l\l", fillcolor="#ffffff", color="#ced4da", penwidth=2];
              b1 [label="#0x10\l0 mov rax, <1> & \"x\"\l1 mov rax, <1> & \"x\"\l", fillcolor="#ffffff", color="#ced4da", penwidth=2];
              b0 -> b1 [color="#3b5bdb", tooltip="only way on"];
              b1 -> b0 [color="#3b5bdb", style=dashed, penwidth=2, tooltip="only way on"];
            }
        "##]]
        .assert_eq(&dot(&graph));
    }
}
