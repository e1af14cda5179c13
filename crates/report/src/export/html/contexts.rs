//! The page of a profile of calling contexts: a flame graph, and a table of the functions.

use std::cmp::Reverse;

use super::HtmlPage;
use crate::contexts::{ContextProfile, ContextUnit, ContextValue, FunctionTotal};
use crate::export::flame::flame_graph;
use crate::export::stacks::names;
use crate::export::text::{Escaped, Grouped};
use crate::program::ProfiledProgram;

/// The contexts as a page of HTML.
pub(super) fn html(program: &ProfiledProgram<'_>, tree: &ContextProfile, of: ContextValue) -> String {
    let name = tree.value_name(of);
    let mut page = HtmlPage::default();
    page.begin(program, name);
    page.facts(program, tree, of);
    page.raw(format_args!("{}", flame_graph(program, tree, of, "")));
    page.functions(program, tree, of);
    page.end();
    page.text
}

/// A value with its unit.
fn shown(value: i64, unit: ContextUnit) -> String {
    let (sign, symbol) = (if value < 0 { "-" } else { "" }, unit.symbol());
    let space = if symbol.is_empty() { "" } else { "\u{a0}" };
    format!("{sign}{}{space}{symbol}", Grouped(value.unsigned_abs()))
}

impl HtmlPage {
    /// Writes facts about the process and the tree.
    fn facts(&mut self, program: &ProfiledProgram<'_>, tree: &ContextProfile, of: ContextValue) {
        let statistics = tree.statistics();
        let name = tree.value_name(of);
        let roots = tree.contexts.iter().zip(tree.inclusive(of)).filter(|(context, _)| context.parent.is_none());
        let total = roots.fold(0, |sum: i64, (_, value)| sum.saturating_add(value));
        let of_process = self.process(program);
        self.raw(format_args!(
            "<p>{of_process}. {}: {}. {} calling contexts of {} functions, at most {} functions in a stack.</p>",
            Escaped(name),
            shown(total, ContextUnit::of(name)),
            Grouped(statistics.nodes),
            Grouped(tree.functions.len() as u64),
            Grouped(statistics.height),
        ));
        let mut notes = Vec::new();
        if let Some(outside) = tree.value_outside(of).filter(|value| *value != 0) {
            notes.push(format!("{} outside of all contexts", shown(outside, ContextUnit::of(name))));
        }
        let mut note = |number: u64, what: &str| {
            if number > 0 {
                notes.push(format!("{} {what}", Grouped(number)));
            }
        };
        let sum = |of: fn(&crate::ContextFunction) -> u64| {
            tree.functions.iter().fold(0, |sum: u64, function| sum.saturating_add(of(function)))
        };
        note(tree.full, "calls had no room for their contexts");
        note(sum(|function| function.unrecorded), "calls were not recorded");
        note(
            sum(|function| function.left_by_tail_jump),
            "calls ended in a jump to a function that could not be followed, and what is called there is in the contexts of the callers",
        );
        note(sum(|function| function.left), "calls ended without an exit");
        note(sum(|function| function.unseen), "calls began unseen");
        note(program.profile().refused.len() as u64, "functions are not measured");
        if !notes.is_empty() {
            self.raw(format_args!("<p class=\"note\">{}.</p>", notes.join(", ")));
        }
    }

    /// Writes the table of functions.
    fn functions(&mut self, program: &ProfiledProgram<'_>, tree: &ContextProfile, of: ContextValue) {
        let unit = ContextUnit::of(tree.value_name(of));
        let totals = tree.function_totals(of);
        let all = totals.iter().fold(0, |sum: i64, total| sum.saturating_add(total.own));
        let called = |total: &FunctionTotal| total.calls > 0 || total.own != 0 || total.inclusive != 0;
        let rows = tree.functions.iter().zip(names(program, tree)).zip(totals);
        let mut rows: Vec<_> = rows.filter(|(_, total)| called(total)).collect();
        rows.sort_by_key(|(_, total)| Reverse((total.own, total.inclusive)));
        self.filter("Functions");
        self.raw(format_args!(
            "<table class=\"list\"><thead><tr><th class=\"n\">own {0}</th><th class=\"n\">share</th><th></th>\
             <th class=\"n\">with callees</th><th class=\"n\">calls</th><th>function</th><th>module</th></tr></thead>\
             <tbody>",
            Escaped(tree.value_name(of))
        ));
        for ((function, name), total) in rows {
            let share = total.own as f64 * 100.0 / all.max(1) as f64;
            let module = program.profile().modules.get(function.module).map_or("", |module| module.name.as_str());
            self.raw(format_args!(
                "<tr><td class=\"n\">{}</td><td class=\"n\">{share:.2} %</td>\
                 <td><span class=\"bar\" style=\"width:{:.1}rem\"></span></td><td class=\"n\">{}</td>\
                 <td class=\"n\">{}</td><td class=\"name\">{}</td><td>{}</td></tr>",
                shown(total.own, unit),
                share.clamp(0.0, 100.0) / 12.5,
                shown(total.inclusive, unit),
                Grouped(total.calls),
                Escaped(&name),
                Escaped(module),
            ));
        }
        self.raw(format_args!("</tbody></table>"));
    }
}
