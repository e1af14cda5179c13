//! A control-flow graph as a picture.

use std::fmt::Write;

use super::order::order;
use super::place::{CHARACTER, GraphLayout, LINE, PADDING, Rectangle, layout};
use super::ranks::ranks;
use super::{DrawnBlock, DrawnEdgeKind, DrawnGraph, PATH, TooLarge, heat, loop_bar, loop_fill};
use crate::output::number::plural;

/// Distance in pixels from the picture to its border.
const MARGIN: f64 = 24.0;
/// Radius in pixels of the corners of edges.
const RADIUS: f64 = 5.0;
/// Length in pixels of an arrow.
const ARROW: f64 = 8.0;
/// Width in pixels of the bar at the left of a block.
const BAR: f64 = 4.0;
/// Width in pixels of an entry of the legend, besides its text.
const SAMPLE: f64 = 36.0;
/// Width in pixels that a legend may have even if its picture is narrower.
const LEGEND_MIN: f64 = 640.0;
/// Largest number of loops around a block for which the legend has a colour.
const DEPTHS: u32 = 4;

/// Draws graphs below each other. Fails if one of them is too large.
pub(crate) fn svg(graphs: &[DrawnGraph]) -> Result<String, TooLarge> {
    let mut body = String::new();
    let (mut width, mut y) = (0.0_f64, MARGIN);
    for graph in graphs {
        let graph = graph.checked();
        let ranks = ranks(&graph);
        let ordered = order(&graph, &ranks)?;
        let layout = layout(&graph, &ranks, &ordered);
        let (head, head_width, head_height) = head(&graph, layout.width.max(LEGEND_MIN));
        // writing to a text does not fail
        let _written = writeln!(body, "<g transform=\"translate({MARGIN} {y:.1})\">\n{head}</g>");
        y += head_height;
        let _written = writeln!(body, "<g transform=\"translate({MARGIN} {y:.1})\">\n{}</g>", drawn(&graph, &layout));
        y += layout.height + 2.0 * MARGIN;
        width = width.max(layout.width).max(head_width);
    }
    let (width, height) = ((width + 2.0 * MARGIN).ceil(), y.ceil());
    Ok(format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n\
         <svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" viewBox=\"0 0 {width} {height}\" \
         font-family=\"DejaVu Sans Mono, Menlo, Consolas, monospace\" font-size=\"11\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n{body}</svg>\n"
    ))
}

/// Text with the characters escaped that XML gives a meaning. Control characters, which XML does not allow, become `?`.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out += "&amp;",
            '<' => out += "&lt;",
            '>' => out += "&gt;",
            '"' => out += "&quot;",
            '\'' => out += "&apos;",
            c if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') => out.push('?'),
            c => out.push(c),
        }
    }
    out
}

/// Title and legend, with their width and height. The legend has as many lines as it needs to be no wider than `most`.
fn head(graph: &DrawnGraph, most: f64) -> (String, f64, f64) {
    let (mut text, mut y, mut width) = (String::new(), 0.0, 0.0_f64);
    for (number, line) in graph.title.iter().enumerate() {
        let (size, weight) = if number == 0 { (15, "bold") } else { (11, "normal") };
        y += if number == 0 { 16.0 } else { LINE + 1.0 };
        let _written =
            writeln!(text, "<text y=\"{y:.1}\" font-size=\"{size}\" font-weight=\"{weight}\">{}</text>", escaped(line));
        width = width.max(line.chars().count() as f64 * CHARACTER * f64::from(size) / 11.0);
    }
    y += 18.0;
    let mut x = 0.0;
    let mut longest = 0.0_f64;
    let mut entry = |sample: String, words: &str| {
        let own = SAMPLE + 14.0 + words.chars().count() as f64 * CHARACTER;
        if x > 0.0 && x + own > most {
            (x, y) = (0.0, y + LINE + 6.0);
        }
        let _written = writeln!(
            text,
            "<g transform=\"translate({x:.1} {y:.1})\">{sample}<text x=\"30\" y=\"4\">{}</text></g>",
            escaped(words)
        );
        x += own;
        longest = longest.max(x);
    };
    let line = |colour: &str, style: &str| {
        format!("<path d=\"M0 0H24\" stroke=\"{colour}\" stroke-width=\"1.6\" fill=\"none\"{style}/>")
    };
    for kind in DrawnEdgeKind::ALL {
        if graph.edges.iter().any(|edge| edge.kind == kind) {
            entry(line(kind.colour(), ""), kind.words());
        }
    }
    if graph.edges.iter().any(|edge| edge.back) {
        entry(line("#212529", " stroke-dasharray=\"6 3\""), "back to the header of a loop");
    }
    if graph.blocks.iter().any(|block| block.on_path) {
        let sample = format!(
            "<rect y=\"-7\" width=\"24\" height=\"14\" fill=\"#ffffff\" stroke=\"{PATH}\" stroke-width=\"3\"/>"
        );
        entry(sample, "on the path, with its thick edges");
    }
    let square = |fill: &str, bar: &str| {
        format!(
            "<rect y=\"-7\" width=\"24\" height=\"14\" fill=\"{fill}\" stroke=\"#adb5bd\"/><rect y=\"-7\" width=\"{BAR}\" height=\"14\" fill=\"{bar}\"/>"
        )
    };
    let counted = graph.hottest();
    let deepest = graph.blocks.iter().map(|block| block.depth).max().unwrap_or(0);
    for depth in 1..=deepest.min(DEPTHS) {
        let more = if depth == DEPTHS { " or more" } else { "" };
        let fill = if counted.is_some() { "#ffffff" } else { loop_fill(depth) };
        entry(
            square(fill, loop_bar(depth)),
            &format!("in {depth}{more} {}", if depth == 1 { "loop" } else { "loops" }),
        );
    }
    if let Some(hottest) = counted {
        for (share, words) in [(0.0, "seldom".to_owned()), (1.0, plural(hottest, "time", "times"))] {
            entry(square(&heat(share), &heat(share)), &words);
        }
        entry(square("#f1f3f5", "#f1f3f5"), "never");
    }
    width = width.max(longest);
    (text, width, y + 24.0)
}

fn drawn(graph: &DrawnGraph, layout: &GraphLayout) -> String {
    let mut text = String::new();
    for (edge, line) in graph.edges.iter().zip(&layout.edges) {
        let colour = edge.kind.colour();
        let dashes = if edge.back { " stroke-dasharray=\"6 3\"" } else { "" };
        let width = match (edge.on_path, edge.back) {
            (true, _) => "4",
            (false, true) => "1.9",
            (false, false) => "1.3",
        };
        let line_style = format!("{dashes} stroke-width=\"{width}\"");
        let _written = writeln!(text, "<path d=\"{}\" fill=\"none\" stroke=\"{colour}\"{line_style}/>", path(line));
        if let Some((x, y)) = line.last() {
            let top = y - ARROW;
            let _written = writeln!(
                text,
                "<path d=\"M{x:.1} {y:.1}L{:.1} {top:.1}H{:.1}Z\" fill=\"{colour}\"/>",
                x - 3.5,
                x + 3.5
            );
        }
    }
    let hottest = graph.hottest();
    for (block, place) in graph.blocks.iter().zip(&layout.blocks) {
        text += &drawn_block(block, place, hottest);
    }
    text
}

/// The line of an edge with round corners.
fn path(line: &[(f64, f64)]) -> String {
    let mut text = String::new();
    for (number, point) in line.iter().enumerate() {
        let before = number.checked_sub(1).and_then(|before| line.get(before));
        let _written = match (before, line.get(number + 1)) {
            (None, _) => write!(text, "M{:.1} {:.1}", point.0, point.1),
            (Some(before), Some(after)) => {
                let (from, to) = (towards(*point, *before), towards(*point, *after));
                write!(text, "L{:.1} {:.1}Q{:.1} {:.1} {:.1} {:.1}", from.0, from.1, point.0, point.1, to.0, to.1)
            }
            // the arrow covers the end
            (Some(_), None) => write!(text, "L{:.1} {:.1}", point.0, point.1 - ARROW / 2.0),
        };
    }
    text
}

/// The point at the radius of corners, or half the way, from one point towards another one.
fn towards(from: (f64, f64), to: (f64, f64)) -> (f64, f64) {
    let (x, y) = (to.0 - from.0, to.1 - from.1);
    let length = x.hypot(y);
    if length < 0.01 {
        return from;
    }
    let share = RADIUS.min(length / 2.0) / length;
    (from.0 + x * share, from.1 + y * share)
}

fn drawn_block(block: &DrawnBlock, place: &Rectangle, hottest: Option<u64>) -> String {
    let (fill, bar) = (block.fill(hottest), loop_bar(block.depth));
    let Rectangle { x, y, width, height } = *place;
    let border = match (block.on_path, block.woven) {
        (true, _) => format!("{PATH}\" stroke-width=\"4"),
        (false, true) => "#1971c2\" stroke-width=\"2".to_owned(),
        (false, false) => "#495057".to_owned(),
    };
    let mut text = format!(
        "<g transform=\"translate({x:.1} {y:.1})\"><rect width=\"{width:.1}\" height=\"{height:.1}\" rx=\"2\" fill=\"{fill}\" stroke=\"{border}\"/>\
         <rect width=\"{BAR}\" height=\"{height:.1}\" fill=\"{bar}\"/>\n"
    );
    for (number, line) in block.text().iter().enumerate() {
        let y = (number + 1) as f64 * LINE;
        let style = if number == 0 { " font-weight=\"bold\"" } else { "" };
        let _written =
            writeln!(text, "<text x=\"{PADDING}\" y=\"{y:.1}\" xml:space=\"preserve\"{style}>{}</text>", escaped(line));
    }
    text + "</g>\n"
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::picture::tests::graph;

    #[test]
    fn text_is_escaped() {
        let text = svg(&[graph(3, &[(0, 1), (1, 1), (1, 2), (0, 2)])]).expect("a small graph");
        assert!(text.contains("a &lt;function&gt; &amp; &quot;more&quot;"), "{text}");
        assert!(!text.contains("<function>") && !text.contains("\"x\"<"), "{text}");
        assert_eq!(escaped("\u{0}\u{1b}a'\u{ffff}"), "??a&apos;?");
        assert_eq!(text.matches("<g ").count(), text.matches("</g>").count());
    }

    #[test]
    fn an_empty_graph_is_a_picture() {
        let text = svg(&[DrawnGraph::default()]).expect("an empty graph");
        assert!(text.starts_with("<?xml") && text.ends_with("</svg>\n") && !text.contains("NaN"), "{text}");
        assert!(!text.contains("inf"), "{text}");
    }
}
