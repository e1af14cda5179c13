//! Trees of callers: for each function with a value, where its calls come from.

use ingraft_report::{CallerNode, ContextValue};

use super::amounts::{amount, share, share_error};
use super::names::ContextNames;
use super::shown::ShownContexts;
use crate::output::DIM;
use crate::output::number::grouped_u64;
use crate::output::table::{Cell, TextTable};

/// Largest number of levels of callers.
const LEVELS: usize = 30;

/// A line of a tree: a function or one of its callers, and its level.
struct CallerLine<'n> {
    node: &'n CallerNode,
    level: usize,
}

/// The trees as a table.
pub(super) fn table(shown: &ShownContexts<'_>, names: &ContextNames<'_>, width: Option<usize>) -> String {
    let name = shown.value_name();
    let of_calls = shown.value == ContextValue::Calls;
    let mut table = TextTable::new();
    table = if of_calls { table } else { table.right(&shown.title(name)) };
    table = table.right("SHARE");
    let looked = shown.looked_as(shown.value);
    table = if looked.is_some() { table.right("±") } else { table };
    table = table.right("CALLS").shrinking("FUNCTION AND CALLERS").left("AT").left("MODULE");
    table = table.optional(&["MODULE", "AT"]).kept("FUNCTION AND CALLERS", 30);
    let whole = shown.whole(shown.value);
    let least = shown.least(whole).max(1);
    let top = shown.layout.top;
    let trees = shown.contexts.callers(shown.value, LEVELS, top);
    let mut next = large(&trees, 0, least);
    let (mut rows, mut hidden) = (0, false);
    while let Some(CallerLine { node, level }) = next.pop() {
        if rows == top {
            hidden = true;
            break;
        }
        rows += 1;
        next.extend(large(&node.callers, level + 1, least));
        let arrow = if level > 0 { "← " } else { "" };
        let mut cells: Vec<Cell> = Vec::new();
        if !of_calls {
            cells.push(amount(name, node.value).into());
        }
        cells.push(share(node.value, whole).into());
        cells.extend(looked.map(|looked| Cell::styled(share_error(&looked, node.value), DIM)));
        let least = if shown.is_partial(node.function) { "≥ " } else { "" };
        cells.push(format!("{least}{}", grouped_u64(node.calls)).into());
        cells.push(format!("{}{arrow}{}", "  ".repeat(level.min(LEVELS)), names.function(node.function)).into());
        let site = node.site.map(|site| names.site(site, Some(node.function)));
        cells.push(Cell::styled(site.unwrap_or_default(), DIM));
        cells.push(Cell::styled(names.module_of(node.function), DIM));
        table.row(cells);
    }
    let mut text = table.render(width);
    if hidden {
        text += &format!("{DIM}and more; --top shows more of them{DIM:#}\n");
    }
    text
}

/// The nodes with enough of the value, the last one first.
fn large(nodes: &[CallerNode], level: usize, least: i64) -> Vec<CallerLine<'_>> {
    let nodes = nodes.iter().rev().filter(|node| node.value >= least);
    nodes.map(|node| CallerLine { node, level }).collect()
}
