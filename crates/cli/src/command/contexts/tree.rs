//! The tree of contexts, from the roots down.

use std::cmp::Reverse;

use ingraft_report::{ContextChildren, ContextKind, ContextValue};

use super::amounts::{share, share_error, unless_zero};
use super::names::ContextNames;
use super::shown::ShownContexts;
use crate::output::DIM;
use crate::output::number::{grouped, plural};
use crate::output::table::{Cell, TextTable};

/// Largest indent without a screen that limits the width. A deeper context has its depth before its name.
const INDENT_MAX: usize = 40;
/// Indent of a context that is the only one below its parent, and of one of several.
const INDENTS: (usize, usize) = (1, 2);

/// A line of the tree.
struct TreeLine {
    what: LineContent,
    /// Number of contexts above.
    depth: usize,
    indent: usize,
}

/// Content of a line of the tree.
enum LineContent {
    /// The context with this index.
    Context(usize),
    /// The hidden contexts below a context.
    Hidden(HiddenContexts),
}

/// Contexts that the tree does not show.
#[derive(Clone, Copy, Debug, Default)]
struct HiddenContexts {
    contexts: u64,
    calls: i64,
    /// Their values, in the order of the columns.
    values: [i64; COLUMNS_MAX],
    /// Whether some of them are hidden only because there are too many lines.
    large: bool,
}

/// Largest number of metrics with columns.
const COLUMNS_MAX: usize = ingraft_api::ContextsOptions::METRICS_MAX;

/// The tree with its values.
struct ValuedTree<'a> {
    shown: &'a ShownContexts<'a>,
    children: ContextChildren,
    /// Calls of each context with those below it, and all calls.
    calls: (Vec<i64>, i64),
    /// The value that decides, of each context with those below it.
    decisive: Vec<i64>,
    /// For each column the values of the contexts alone, those with all below, and the whole.
    columns: Vec<(Vec<i64>, Vec<i64>, i64)>,
    /// Number of contexts in each subtree.
    sizes: Vec<u64>,
    /// Whether each context is shown if its parent is.
    is_shown: Vec<bool>,
    /// The value below which contexts are hidden.
    least: i64,
}

/// The tree as a table.
pub(super) fn table(shown: &ShownContexts<'_>, names: &ContextNames<'_>, width: Option<usize>) -> String {
    let tree = ValuedTree::of(shown);
    let mut table = TextTable::new().right("CALLS");
    for metric in &shown.metrics {
        let title = shown.title(shown.metric_name(*metric));
        table = table.right(&format!("{title} SELF")).right(&format!("{title} TOTAL")).right("SHARE");
        table = if shown.looked_as(ContextValue::Metric(*metric)).is_some() { table.right("±") } else { table };
    }
    if shown.metrics.is_empty() {
        table = table.right("TOTAL").right("SHARE");
    }
    table = table.shrinking("CONTEXT").left("AT").left("MODULE").optional(&["MODULE", "AT"]).kept("CONTEXT", 30);
    let indent_max = width.map_or(INDENT_MAX, |width| (width / 4).min(INDENT_MAX));
    for line in tree.lines() {
        table.row(tree.row(&line, names, indent_max));
    }
    if let Some(cells) = tree.outside() {
        table.row(cells);
    }
    table.render(width)
}

impl<'a> ValuedTree<'a> {
    fn of(shown: &'a ShownContexts<'a>) -> Self {
        let contexts = &*shown.contexts;
        let column = |metric: &usize| {
            let of = ContextValue::Metric(*metric);
            (contexts.values(of), contexts.inclusive(of), shown.whole(of))
        };
        let decisive = contexts.inclusive(shown.value);
        let least = shown.least(shown.whole(shown.value));
        let mut sizes = vec![1; contexts.contexts.len()];
        for (index, context) in contexts.contexts.iter().enumerate().rev() {
            let own = sizes.get(index).copied().unwrap_or(0);
            if let Some(size) = context.parent.and_then(|parent| sizes.get_mut(parent)) {
                *size += own;
            }
        }
        // A context has at least the value of each context below it, so those with the largest values are a tree.
        let mut largest: Vec<usize> = (0..contexts.contexts.len()).collect();
        let value = |index: &usize| decisive.get(*index).copied().unwrap_or(0);
        let (calls, all_calls) = (contexts.inclusive(ContextValue::Calls), shown.whole(ContextValue::Calls));
        let least_calls = shown.least(all_calls).max(1);
        // The values of a recursive call are in a context above, so its calls decide.
        let recurs = |index: &usize| {
            let context = contexts.contexts.get(*index);
            context.is_some_and(|context| matches!(context.kind, ContextKind::Recursion(_)))
                && calls.get(*index).is_some_and(|calls| *calls >= least_calls)
        };
        let columns: Vec<(Vec<i64>, Vec<i64>, i64)> = shown.metrics.iter().take(COLUMNS_MAX).map(column).collect();
        // A context that has much of another value stays: one whose memory was freed again has few live bytes.
        let is_large = |index: &usize| {
            let mut totals =
                columns.iter().map(|(_, totals, whole)| (totals.get(*index).copied().unwrap_or(0), *whole));
            totals.any(|(total, whole)| total >= shown.least(whole).max(1))
        };
        largest.retain(|index| value(index) >= least.max(1) || is_large(index) || recurs(index));
        largest.sort_by_key(|index| (Reverse(value(index)), *index));
        let mut is_shown = vec![false; contexts.contexts.len()];
        for index in largest.into_iter().take(shown.layout.top) {
            if let Some(is_shown) = is_shown.get_mut(index) {
                *is_shown = true;
            }
        }
        ValuedTree {
            shown,
            children: contexts.children(),
            calls: (calls, all_calls),
            decisive,
            columns,
            sizes,
            is_shown,
            least,
        }
    }

    fn decisive(&self, index: usize) -> i64 {
        self.decisive.get(index).copied().unwrap_or(0)
    }

    /// The lines in their order. The tree may be deeper than the stack of a thread.
    fn lines(&self) -> Vec<TreeLine> {
        let mut lines = Vec::new();
        let mut next = self.below(None, (0, 0));
        while let Some(line) = next.pop() {
            if let LineContent::Context(index) = line.what {
                next.extend(self.below(Some(index), (line.depth + 1, line.indent)));
            }
            lines.push(line);
        }
        lines
    }

    /// The lines right below a context, or those of the roots, the last one first.
    fn below(&self, parent: Option<usize>, (depth, indent): (usize, usize)) -> Vec<TreeLine> {
        let is_shown = |index: &usize| self.is_shown.get(*index).copied().unwrap_or(false);
        let (mut shown, hidden): (Vec<usize>, Vec<usize>) = self.children.of(parent).partition(is_shown);
        shown.sort_by_key(|index| (Reverse(self.decisive(*index)), *index));
        let hidden = self.hidden(&hidden);
        let number = shown.len() + usize::from(hidden.is_some());
        let indent = match (parent, number) {
            (None, _) => 0,
            (Some(_), 1) => indent + INDENTS.0,
            (Some(_), _) => indent + INDENTS.1,
        };
        let contents = hidden.map(LineContent::Hidden).into_iter();
        let contents = contents.chain(shown.into_iter().rev().map(LineContent::Context));
        contents.map(|what| TreeLine { what, depth, indent }).collect()
    }

    /// The sum of hidden contexts with all below them; `None` if nothing has happened in them.
    fn hidden(&self, contexts: &[usize]) -> Option<HiddenContexts> {
        let of = |values: &[i64], index: usize| values.get(index).copied().unwrap_or(0);
        let mut sum = HiddenContexts::default();
        for &index in contexts {
            let (calls, decisive) = (of(&self.calls.0, index), self.decisive(index));
            if calls == 0 && decisive == 0 {
                continue;
            }
            sum.contexts += self.sizes.get(index).copied().unwrap_or(0);
            sum.calls = sum.calls.saturating_add(calls);
            sum.large |= decisive >= self.least.max(1);
            for (value, (_, inclusive, _)) in sum.values.iter_mut().zip(&self.columns) {
                *value = value.saturating_add(of(inclusive, index));
            }
        }
        (sum.contexts > 0).then_some(sum)
    }

    fn row(&self, line: &TreeLine, names: &ContextNames<'_>, indent_max: usize) -> Vec<Cell> {
        let blanks = " ".repeat(line.indent.min(indent_max));
        let index = match &line.what {
            LineContent::Context(index) => *index,
            LineContent::Hidden(hidden) => return self.hidden_row(hidden, &blanks),
        };
        let Some(context) = self.shown.contexts.contexts.get(index) else { return Vec::new() };
        let of = |values: &[i64]| values.get(index).copied().unwrap_or(0);
        let calls = i64::try_from(context.calls).unwrap_or(i64::MAX);
        let least = if self.shown.is_partial(context.function) { "≥ " } else { "" };
        let mut cells: Vec<Cell> = vec![format!("{least}{}", grouped(calls)).into()];
        for (metric, (own, inclusive, whole)) in self.shown.metrics.iter().zip(&self.columns) {
            let name = self.shown.metric_name(*metric);
            let total = of(inclusive);
            cells.extend([unless_zero(name, of(own)), unless_zero(name, total), share(total, *whole)].map(Cell::from));
            cells.extend(self.error(*metric, total));
        }
        if self.columns.is_empty() {
            let (total, whole) = (of(&self.calls.0), self.calls.1);
            cells.extend([grouped(total), share(total, whole)].map(Cell::from));
        }
        // Where the indent no longer shows the depth, a number does.
        let depth = if line.indent > indent_max { format!("[{}] ", line.depth) } else { String::new() };
        cells.push(format!("{blanks}{depth}{}", names.marked(context)).into());
        cells.push(Cell::styled(names.at(context), DIM));
        cells.push(Cell::styled(names.module_of(context.function), DIM));
        cells
    }

    /// The error of the share of a value; `None` if the shares of the metric have no column for it.
    fn error(&self, metric: usize, value: i64) -> Option<Cell> {
        let looked = self.shown.looked_as(ContextValue::Metric(metric))?;
        Some(Cell::styled(share_error(&looked, value), DIM))
    }

    fn hidden_row(&self, hidden: &HiddenContexts, blanks: &str) -> Vec<Cell> {
        let dim = |text: String| Cell::styled(text, DIM);
        let mut cells = vec![dim(grouped(hidden.calls))];
        for ((metric, (_, _, whole)), total) in self.shown.metrics.iter().zip(&self.columns).zip(hidden.values) {
            let name = self.shown.metric_name(*metric);
            cells.extend([String::new(), unless_zero(name, total), share(total, *whole)].map(dim));
            cells.extend(self.error(*metric, total));
        }
        if self.columns.is_empty() {
            cells.extend([grouped(hidden.calls), share(hidden.calls, self.calls.1)].map(dim));
        }
        let contexts = plural(hidden.contexts, "context", "contexts");
        let why = match hidden.large {
            true => "more (--top)".to_owned(),
            false => format!("below {} %", self.shown.layout.least),
        };
        cells.extend([dim(format!("{blanks}… {contexts} {why}")), dim(String::new()), dim(String::new())]);
        cells
    }

    /// A row of what is outside of all contexts; `None` if nothing is.
    fn outside(&self) -> Option<Vec<Cell>> {
        let values: Vec<i64> =
            self.shown.metrics.iter().map(|metric| self.shown.outside(ContextValue::Metric(*metric))).collect();
        if values.iter().all(|value| *value == 0) {
            return None;
        }
        let mut cells = vec![Cell::from("")];
        for ((metric, value), (_, _, whole)) in self.shown.metrics.iter().zip(values).zip(&self.columns) {
            let text = unless_zero(self.shown.metric_name(*metric), value);
            cells.extend([text.clone(), text, share(value, *whole)].map(Cell::from));
            cells.extend(self.error(*metric, value));
        }
        cells.extend([Cell::styled("outside of all contexts", DIM), "".into(), "".into()]);
        Some(cells)
    }
}
