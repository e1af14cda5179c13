//! A flame graph as an SVG file, or as a part of a page: contexts as bars whose widths are their inclusive values, each one on top of its
//! parent (Gregg, "The Flame Graph", 2016). Contexts that differ in their call sites are one bar.
//!
//! A script in the file zooms and searches. Without the script, the graph can be read too.

use std::cmp::Reverse;
use std::fmt::Write;

use super::Exporter;
use super::stacks::{Stacks, names, positive};
use super::text::{Escaped, Grouped};
use crate::contexts::{ContextKind, ContextProfile, ContextUnit, ContextValue};
use crate::program::ProfiledProgram;
use crate::saved::ProfileKind;

/// Width of the graph, and of the margin on its left and right, in pixels.
const WIDTH: f64 = 1200.0;
const MARGIN: f64 = 10.0;
/// Height of a bar with its distance to the next one, in pixels.
const ROW: usize = 17;
/// Height of the title and of the line below the bars, in pixels.
const HEAD: usize = 44;
const FOOT: usize = 30;
/// Bars that are narrower are left out, in pixels.
const NARROWEST: f64 = 0.1;
/// Width of a character, in pixels. The script has the same number.
const CHARACTER: f64 = 6.65;

/// The format.
pub(super) const EXPORTER: Exporter = Exporter {
    name: "svg",
    reader: "a flame graph for browsers",
    kinds: &[ProfileKind::Contexts],
    of_one_module: false,
    why_empty: None,
    write: |program, options| {
        let graph = program.contexts().map(|tree| {
            let graph = flame_graph(program, tree, options.value, " xmlns=\"http://www.w3.org/2000/svg\"");
            format!("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n{graph}")
        });
        graph.map(Vec::from).unwrap_or_default()
    },
};

/// A bar of the graph.
struct Bar {
    /// Index of the context; `None` for the bar below all roots.
    context: Option<usize>,
    /// Number of bars below it.
    level: usize,
    /// Sum of the values on its left.
    left: u64,
}

/// The flame graph as an element of SVG with these attributes.
pub(super) fn flame_graph(
    program: &ProfiledProgram<'_>,
    tree: &ContextProfile,
    of: ContextValue,
    attributes: &str,
) -> String {
    let tree = &tree.by_function();
    let stacks = Stacks::of(tree);
    let mut values = positive(tree, of);
    stacks.lift(&mut values);
    for index in stacks.order.iter().rev() {
        let value = values.get(*index).copied().unwrap_or(0);
        let parent = tree.contexts.get(*index).and_then(|context| context.parent);
        if let Some(sum) = parent.and_then(|parent| values.get_mut(parent)) {
            *sum = sum.saturating_add(value);
        }
    }
    let roots = tree.contexts.iter().zip(&values).filter(|(context, _)| context.parent.is_none());
    let total = roots.fold(0, |sum: u64, (_, value)| sum.saturating_add(*value));
    let bars = bars(tree, &values, total);
    let levels = bars.iter().map(|bar| bar.level + 1).max().unwrap_or(1);
    let height = HEAD + levels * ROW + FOOT;
    let name = tree.value_name(of);
    let mut graph = FlameGraph {
        text: String::new(),
        tree,
        names: names(program, tree),
        main: program.main_module_of_contexts(tree),
        total,
        unit: ContextUnit::of(name).symbol(),
    };
    let title = program.profile().program.rsplit('/').next().unwrap_or_default();
    graph.raw(format_args!(
        "<svg id=\"flame\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" height=\"{height}\"{attributes}>\n\
         <style>\n{}</style>\n<rect class=\"ground\" width=\"{WIDTH}\" height=\"{height}\"/>\n\
         <text class=\"title\" x=\"{}\" y=\"24\" text-anchor=\"middle\">{}: {}</text>",
        include_str!("style.css"),
        WIDTH / 2.0,
        Escaped(title),
        Escaped(name),
    ));
    graph.raw(format_args!(
        "<text class=\"button\" id=\"flame-reset\" x=\"{MARGIN}\" y=\"24\" visibility=\"hidden\">Reset zoom</text>\n\
         <text class=\"button\" id=\"flame-search\" x=\"{}\" y=\"24\" text-anchor=\"end\">Search</text>\n\
         <text id=\"flame-facts\" x=\"{MARGIN}\" y=\"{}\"></text>\n\
         <text id=\"flame-found\" x=\"{}\" y=\"{1}\" text-anchor=\"end\"></text>",
        WIDTH - MARGIN,
        height - 11,
        WIDTH - MARGIN,
    ));
    for bar in &bars {
        let value = bar.context.map_or(total, |index| values.get(index).copied().unwrap_or(0));
        graph.bar(bar, value, HEAD + (levels - 1 - bar.level) * ROW);
    }
    graph.raw(format_args!("<script><![CDATA[\n{}]]></script>\n</svg>", include_str!("script.js")));
    graph.text
}

/// The bars that are wide enough, those with the largest values of each context first. A bar comes after the bar below it.
fn bars(tree: &ContextProfile, values: &[u64], total: u64) -> Vec<Bar> {
    let children = tree.children();
    let value = |index: usize| values.get(index).copied().unwrap_or(0);
    let mut bars = vec![Bar { context: None, level: 0, left: 0 }];
    let mut next = 0;
    while let Some(Bar { context, level, left }) = bars.get(next) {
        let (level, mut left) = (level + 1, *left);
        let mut above: Vec<usize> = children.of(*context).collect();
        above.sort_by_key(|child| Reverse(value(*child)));
        let wide = above.into_iter().take_while(|child| pixels(value(*child), total) >= NARROWEST);
        for child in wide.collect::<Vec<_>>() {
            bars.push(Bar { context: Some(child), level, left });
            left = left.saturating_add(value(child));
        }
        next += 1;
    }
    bars
}

fn pixels(value: u64, total: u64) -> f64 {
    value as f64 / total.max(1) as f64 * (WIDTH - 2.0 * MARGIN)
}

struct FlameGraph<'a> {
    text: String,
    tree: &'a ContextProfile,
    /// Names of the functions.
    names: Vec<String>,
    /// Index of the program among the modules.
    main: Option<usize>,
    total: u64,
    /// Symbol of the unit.
    unit: &'static str,
}

impl FlameGraph<'_> {
    fn raw(&mut self, line: std::fmt::Arguments<'_>) {
        // Writing to a text does not fail.
        let _written = self.text.write_fmt(line);
        self.text.push('\n');
    }

    fn bar(&mut self, bar: &Bar, value: u64, y: usize) {
        let context = bar.context.and_then(|index| self.tree.contexts.get(index));
        let name = context.map_or("all", |context| self.names.get(context.function).map_or("", String::as_str));
        let fill = match context {
            Some(context) => self.fill(context.function, context.kind, name),
            None => "#d8d8d8".to_owned(),
        };
        let way = match context.map(|context| context.kind) {
            Some(ContextKind::Signal) => ", by a signal",
            Some(ContextKind::Recursion(_)) => ", recursive",
            Some(ContextKind::Call | ContextKind::Tail) | None => "",
        };
        let share = value as f64 * 100.0 / self.total.max(1) as f64;
        let unit = self.unit;
        let (x, width) = (MARGIN + pixels(bar.left, self.total), pixels(value, self.total));
        let (number, label, name) = (Grouped(value), shortened(name, width), Escaped(name));
        let space = if unit.is_empty() { "" } else { " " };
        let line = format!(
            "<g class=\"frame\"><title>{name} ({number}{space}{unit}, {share:.2} %{way})</title>\
             <rect x=\"{x:.2}\" y=\"{y}\" width=\"{width:.2}\" height=\"{}\" fill=\"{fill}\"/>\
             <text x=\"{:.2}\" y=\"{}\">{}</text></g>",
            ROW - 1,
            x + 3.0,
            y + 12,
            Escaped(&label),
        );
        self.raw(format_args!("{line}"));
    }

    /// Colour of a function: warm for the program, another one for each library. The name decides the shade, so a function has the same colour
    /// in all graphs.
    fn fill(&self, function: usize, kind: ContextKind, name: &str) -> String {
        let module = self.tree.functions.get(function).map(|function| function.module);
        let shade = f64::from(crc32fast::hash(name.as_bytes()) % 256) / 255.0;
        // Least red, green and blue, and the range of the shades.
        let (least, range) = match (kind, module) {
            (ContextKind::Signal, _) => ([180, 130, 220], [40, 40, 30]),
            (_, module) if module == self.main => ([225, 95, 55], [30, 115, 25]),
            (_, module) => match module.unwrap_or(0) % 4 {
                0 => ([120, 185, 90], [50, 40, 40]),
                1 => ([90, 170, 205], [50, 40, 40]),
                2 => ([200, 180, 80], [35, 35, 40]),
                _ => ([90, 185, 165], [50, 40, 40]),
            },
        };
        let part = |(least, range): (i32, i32)| (f64::from(least) + f64::from(range) * shade).round();
        let colour: String =
            least.into_iter().zip(range).map(|pair| format!("{:02x}", part(pair).clamp(0.0, 255.0) as u8)).collect();
        format!("#{colour}")
    }
}

/// As much of a name as fits into a bar, with two dots if it is not all; empty if it is too little to be of use.
fn shortened(name: &str, width: f64) -> String {
    // A conversion to an integer saturates.
    let fits = ((width - 6.0) / CHARACTER).floor() as usize;
    let length = name.chars().count();
    match fits {
        _ if length <= fits => name.to_owned(),
        0..3 => String::new(),
        _ => name.chars().take(fits - 2).chain("..".chars()).collect(),
    }
}
