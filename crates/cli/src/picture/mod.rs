//! Pictures of control-flow graphs: text for Graphviz, and SVG with a layout of our own. The code is pure: a graph in, text out.
//!
//! A layout has these steps, after Sugiyama, Tagawa and Toda (1981):
//!
//! - `ranks` turns back edges round and puts each block below all blocks that lead to it.
//! - `order` gives long edges a place in each rank that they pass, and orders the ranks so that few edges cross.
//! - `place` assigns coordinates: blocks above each other where possible, and a track of its own for each horizontal piece of an edge.
//! - `svg` draws the result.

mod dot;
mod order;
mod place;
mod ranks;
mod svg;

pub(crate) use dot::dot;
pub(crate) use svg::svg;

/// Largest number of places of edges and blocks in a layout; more would make a picture that no program shows.
const PLACES_MAX: usize = 200_000;

/// Largest number of lines of a block that are drawn; of a longer block, the first and last lines are.
const LINES_MAX: usize = 24;
/// Number of the last lines of a long block that are drawn.
const LINES_LAST: usize = 5;
/// Largest number of characters of a line.
const COLUMNS_MAX: usize = 60;

/// A graph to be drawn.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct DrawnGraph {
    /// Name of the function and facts about it, each one line.
    pub(crate) title: Vec<String>,
    /// The blocks, in order of address.
    pub(crate) blocks: Vec<DrawnBlock>,
    /// The edges.
    pub(crate) edges: Vec<DrawnEdge>,
    /// Indices of the blocks at which control arrives from outside, the entry first.
    pub(crate) roots: Vec<usize>,
}

/// A block.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct DrawnBlock {
    /// Name of the block, e.g. `#0x1a`.
    pub(crate) name: String,
    /// Reasons why control can arrive at the block from outside of the function; empty if it cannot.
    pub(crate) ways_in: Vec<&'static str>,
    /// Instructions as text.
    pub(crate) lines: Vec<String>,
    /// Ways in which control leaves the function at the end of the block, e.g. `return`.
    pub(crate) ways_out: Vec<String>,
    /// Number of loops around the block.
    pub(crate) depth: u32,
    /// Number of arrivals; `None` if they were not counted.
    pub(crate) count: Option<u64>,
    /// Whether code is woven at a point in the block.
    pub(crate) woven: bool,
    /// Whether the block is on the path that is shown.
    pub(crate) on_path: bool,
}

/// Kind of an edge, as far as pictures tell kinds apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum DrawnEdgeKind {
    /// A conditional branch that is taken.
    Taken,
    /// A conditional branch that is not taken.
    NotTaken,
    /// The only way on: a jump, or the next instruction.
    Only,
    /// The return of a call.
    Return,
    /// One target of an indirect jump.
    Table,
}

/// An edge between two blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DrawnEdge {
    /// Index of the block that control leaves.
    pub(crate) from: usize,
    /// Index of the block at which control arrives.
    pub(crate) to: usize,
    /// Kind of the edge.
    pub(crate) kind: DrawnEdgeKind,
    /// Whether the edge leads back to the header of a loop.
    pub(crate) back: bool,
    /// Whether the edge is on the path that is shown.
    pub(crate) on_path: bool,
}

/// The error for a graph that is too large to be drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a graph of {blocks} blocks is too large for a picture")]
pub(crate) struct TooLarge {
    /// Number of blocks.
    pub(crate) blocks: usize,
}

impl DrawnEdgeKind {
    /// All kinds, in the order of the legend.
    const ALL: [DrawnEdgeKind; 5] = [
        DrawnEdgeKind::Taken,
        DrawnEdgeKind::NotTaken,
        DrawnEdgeKind::Only,
        DrawnEdgeKind::Return,
        DrawnEdgeKind::Table,
    ];

    /// Colour of the edge.
    fn colour(self) -> &'static str {
        match self {
            DrawnEdgeKind::Taken => "#1a7f37",
            DrawnEdgeKind::NotTaken => "#c4320a",
            DrawnEdgeKind::Only => "#3b5bdb",
            DrawnEdgeKind::Return => "#868e96",
            DrawnEdgeKind::Table => "#9c36b5",
        }
    }

    /// Words for the legend.
    fn words(self) -> &'static str {
        match self {
            DrawnEdgeKind::Taken => "branch taken",
            DrawnEdgeKind::NotTaken => "branch not taken",
            DrawnEdgeKind::Only => "only way on",
            DrawnEdgeKind::Return => "return of a call",
            DrawnEdgeKind::Table => "jump table",
        }
    }
}

impl DrawnGraph {
    /// The graph without edges and roots that name no block.
    fn checked(&self) -> DrawnGraph {
        let count = self.blocks.len();
        let mut graph = self.clone();
        graph.edges.retain(|edge| edge.from < count && edge.to < count);
        graph.roots.retain(|root| *root < count);
        graph
    }

    /// The largest count of a block; `None` if no block was counted.
    fn hottest(&self) -> Option<u64> {
        self.blocks.iter().filter_map(|block| block.count).max()
    }
}

impl DrawnBlock {
    /// The heading of the block, and the lines that are drawn.
    fn text(&self) -> Vec<String> {
        let mut lines = vec![self.heading()];
        let hidden = self.lines.len().saturating_sub(LINES_MAX);
        if hidden == 0 {
            lines.extend(self.lines.iter().map(|line| cut(line)));
        } else {
            let last = self.lines.len() - LINES_LAST;
            lines.extend(self.lines.iter().take(LINES_MAX - LINES_LAST).map(|line| cut(line)));
            lines.push(format!("        … {hidden} more"));
            lines.extend(self.lines.iter().skip(last).map(|line| cut(line)));
        }
        lines.extend(self.ways_out.iter().map(|out| cut(&format!("→ {out}"))));
        lines
    }

    fn heading(&self) -> String {
        let mut heading = self.name.clone();
        if let Some(count) = self.count {
            heading += &format!("  × {}", crate::output::number::grouped_u64(count));
        }
        if self.woven {
            heading += "  woven";
        }
        if !self.ways_in.is_empty() {
            heading += &format!("  ← {}", self.ways_in.join(", "));
        }
        cut(&heading)
    }

    /// Colour of the block by its count, from white to red on a logarithmic scale; by its loops if nothing was counted.
    fn fill(&self, hottest: Option<u64>) -> String {
        match (self.count, hottest) {
            (Some(0), _) => "#f1f3f5".to_owned(),
            (Some(count), Some(hottest)) => {
                heat((count.saturating_add(1) as f64).ln() / (hottest.saturating_add(1) as f64).ln())
            }
            (None, Some(_)) => "#ffffff".to_owned(),
            (_, None) => loop_fill(self.depth).to_owned(),
        }
    }
}

/// Colour of the blocks on a path.
const PATH: &str = "#e8590c";

/// Colour of the inside of a block by the number of loops around it.
fn loop_fill(depth: u32) -> &'static str {
    match depth {
        0 => "#ffffff",
        1 => "#fff9db",
        2 => "#ffe8cc",
        3 => "#ffd8d8",
        _ => "#f3d9fa",
    }
}

/// Colour of the bar at the left of a block by the number of loops around it.
fn loop_bar(depth: u32) -> &'static str {
    match depth {
        0 => "#ced4da",
        1 => "#fcc419",
        2 => "#ff922b",
        3 => "#f03e3e",
        _ => "#ae3ec9",
    }
}

/// Colour of a share from 0 to 1, from white over yellow to red.
fn heat(share: f64) -> String {
    let share = if share.is_finite() { share.clamp(0.0, 1.0) } else { 0.0 };
    let mix = |a: f64, b: f64, at: f64| (a + (b - a) * at).round() as u8;
    let (red, green, blue) = match share {
        share if share < 0.5 => (255, mix(255.0, 224.0, share * 2.0), mix(245.0, 102.0, share * 2.0)),
        share => (255, mix(224.0, 122.0, share * 2.0 - 1.0), mix(102.0, 110.0, share * 2.0 - 1.0)),
    };
    format!("#{red:02x}{green:02x}{blue:02x}")
}

/// A line that is short enough, without control characters.
fn cut(text: &str) -> String {
    let mut line: String = text.chars().take(COLUMNS_MAX).map(|c| if c.is_control() { '?' } else { c }).collect();
    if text.chars().nth(COLUMNS_MAX).is_some() {
        line.pop();
        line.push('…');
    }
    line
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A graph of these edges between blocks with some lines.
    pub(crate) fn graph(count: usize, edges: &[(usize, usize)]) -> DrawnGraph {
        let block = |n: usize| DrawnBlock {
            name: format!("#{:#x}", n * 16),
            lines: (0..n % 4 + 1).map(|line| format!("{line} mov rax, <{n}> & \"x\"")).collect(),
            ..DrawnBlock::default()
        };
        let edge = |&(from, to): &(usize, usize)| DrawnEdge {
            from,
            to,
            kind: DrawnEdgeKind::Only,
            back: to <= from,
            on_path: false,
        };
        DrawnGraph {
            title: vec!["a <function> & \"more\"".to_owned()],
            blocks: (0..count).map(block).collect(),
            edges: edges.iter().map(edge).collect(),
            roots: if count == 0 { Vec::new() } else { vec![0] },
        }
    }

    #[test]
    fn long_blocks_and_lines_are_cut() {
        let block = DrawnBlock {
            name: "#0x0".to_owned(),
            lines: (0..100).map(|n| format!("{n} {}", "y".repeat(100))).collect(),
            ways_out: vec!["return".to_owned()],
            count: Some(1234),
            ways_in: vec!["entry"],
            ..DrawnBlock::default()
        };
        let text = block.text();
        assert_eq!(text.len(), 1 + LINES_MAX + 1 + 1);
        assert!(text.iter().all(|line| line.chars().count() <= COLUMNS_MAX), "{text:?}");
        assert_eq!(text[0], "#0x0  × 1,234  ← entry");
        assert!(text[LINES_MAX - LINES_LAST + 1].ends_with("76 more"), "{text:?}");
        assert_eq!(text.last().map(String::as_str), Some("→ return"));
        assert_eq!(cut("a\u{1b}[31mb"), "a?[31mb");
    }

    #[test]
    fn heat_is_a_colour_for_every_number() {
        for share in [f64::NAN, -1.0, 0.0, 0.3, 0.5, 0.9, 1.0, 7.0, f64::INFINITY] {
            assert_eq!(heat(share).len(), 7, "{share}");
        }
        assert_eq!(DrawnBlock { count: Some(u64::MAX), ..DrawnBlock::default() }.fill(Some(u64::MAX)).len(), 7);
    }
}
