//! A page for people: functions by executed instructions, their instructions and source lines with heat; or the flame graph of calling
//! contexts. One file, without links to others.
//!
//! Heat is the logarithm of a count in ten steps, so that code that was executed rarely differs from code that was not executed.

mod contexts;

use std::collections::BTreeMap;
use std::fmt::Write;
use std::rc::Rc;

use ingraft_model::{EdgeKind, Svma};

use super::text::{Escaped, Grouped};
use super::{Exporter, Sources, lcov};
use crate::program::{ProfiledProgram, ProfiledRoutine};
use crate::saved::{BlockCount, EdgeEnd, ProfileKind};

/// Largest number of functions with instructions on the page.
const FUNCTIONS_MAX: usize = 300;
/// Largest number of instructions on the page, unless the first function has more. A browser shows a page of this size in a second.
const INSTRUCTIONS_MAX: u64 = 50_000;
/// Largest number of source lines on the page.
const LINES_MAX: usize = 50_000;
/// Number of steps of heat.
const STEPS: f64 = 9.0;

/// The format.
pub(super) const EXPORTER: Exporter = Exporter {
    name: "html",
    reader: "a page for browsers",
    kinds: &[ProfileKind::Counts, ProfileKind::Coverage, ProfileKind::Contexts],
    of_one_module: false,
    why_empty: None,
    write: |program, options| match program.contexts() {
        Some(tree) => contexts::html(program, tree, options.value).into(),
        None => html(program, options.source).into(),
    },
};

/// The profile as a page of HTML. `source` returns the text of a source file by its path, or `None` if it cannot be read.
fn html(program: &ProfiledProgram<'_>, source: Sources<'_>) -> String {
    let hottest = program.hottest();
    let total = hottest.iter().fold(0, |sum: u64, routine| sum.saturating_add(routine.function.executed()));
    let detailed = hottest.get(..detailed(&hottest)).unwrap_or_default();
    let blocks = hottest.iter().flat_map(|routine| &routine.function.blocks);
    let most = blocks.map(|block| block.count).max().unwrap_or(0);
    let mut page = HtmlPage { text: String::new(), most, sources: BTreeMap::new() };
    page.read_sources(program, detailed, source);
    page.head(program, total, hottest.len());
    page.list(&hottest, total, detailed.len());
    page.raw(format_args!("<h2>Instructions</h2>"));
    if hottest.len() > detailed.len() {
        page.raw(format_args!("<p>The {} functions with the most executed instructions.</p>", detailed.len()));
    }
    for (number, routine) in detailed.iter().enumerate() {
        page.function(number, routine);
    }
    page.source_files();
    page.end();
    page.text
}

/// Number of functions, from the hottest one on, whose instructions are on the page.
fn detailed(hottest: &[ProfiledRoutine<'_>]) -> usize {
    let mut left = INSTRUCTIONS_MAX;
    let fits = |routine: &&ProfiledRoutine<'_>| {
        let instructions = routine.function.blocks.iter().map(|block| u64::from(block.instructions)).sum();
        let fits = instructions <= left;
        left = left.saturating_sub(instructions);
        fits
    };
    let number = hottest.iter().take(FUNCTIONS_MAX).take_while(fits).count();
    number.max(1).min(hottest.len())
}

#[derive(Default)]
struct HtmlPage {
    text: String,
    /// Largest count of a block, to which the heat of all counts relates.
    most: u64,
    /// Source files on the page by path.
    sources: BTreeMap<Rc<str>, SourceFile>,
}

/// A source file on the page.
struct SourceFile {
    /// Number of the file on the page.
    number: usize,
    text: String,
    /// Counts of lines by number.
    counts: BTreeMap<u32, u64>,
}

/// Class of the heat of a count, beside the largest count of the page.
fn heat(count: u64, most: u64) -> String {
    if count == 0 {
        return "never".to_owned();
    }
    // Logarithms of positive integers, so the share is between 0 and 1.
    let share = (count as f64).ln_1p() / (most.max(count) as f64).ln_1p();
    format!("h{}", (share * STEPS).round().clamp(1.0, STEPS))
}

fn shown(routine: &ProfiledRoutine<'_>) -> String {
    let name = &routine.function.name;
    if name.is_empty() {
        return format!("0x{:x}", routine.function.start.0);
    }
    crate::demangle(name).map_or_else(|| name.clone(), String::from)
}

impl HtmlPage {
    fn raw(&mut self, line: std::fmt::Arguments<'_>) {
        // Writing to a text does not fail.
        let _written = self.text.write_fmt(line);
        self.text.push('\n');
    }

    /// Reads the source files of the functions on the page.
    fn read_sources(
        &mut self,
        program: &ProfiledProgram<'_>,
        detailed: &[ProfiledRoutine<'_>],
        source: &dyn Fn(&str) -> Option<String>,
    ) {
        let mut left = LINES_MAX;
        let mut counts = lcov::line_counts(program);
        for (path, _) in detailed.iter().filter_map(|routine| routine.line()) {
            if self.sources.contains_key(path) {
                continue;
            }
            let Some(text) = source(path).filter(|text| text.lines().count() <= left) else { continue };
            left -= text.lines().count();
            let number = self.sources.len();
            let counts = counts.remove(path).unwrap_or_default();
            self.sources.insert(path.into(), SourceFile { number, text, counts });
        }
    }

    /// Writes the beginning of the page: the title, and the path of the program.
    fn begin(&mut self, program: &ProfiledProgram<'_>, values: &str) {
        let profile = program.profile();
        let title = profile.program.rsplit('/').next().unwrap_or_default();
        self.raw(format_args!("<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">"));
        self.raw(format_args!("<meta name=\"viewport\" content=\"width=device-width\">"));
        self.raw(format_args!("<title>{}: {}</title>", Escaped(title), Escaped(values)));
        self.raw(format_args!("<style>\n{}</style>\n</head>\n<body>", include_str!("style.css")));
        self.raw(format_args!("<h1>{}</h1>", Escaped(&profile.program)));
    }

    /// Writes the end of the page.
    fn end(&mut self) {
        self.raw(format_args!("<script>{}</script>\n</body>\n</html>", include_str!("script.js")));
    }

    /// The process, the machine and the time of the measurement.
    fn process(&self, program: &ProfiledProgram<'_>) -> String {
        let profile = program.profile();
        let seconds = profile.ended_ns.saturating_sub(profile.began_ns) as f64 / 1e9;
        let host = if profile.host.is_empty() { String::new() } else { format!(" on {}", Escaped(&profile.host)) };
        format!("Process {}{host}, counted for {seconds:.1} s", profile.pid)
    }

    /// Writes a heading, and the field that filters the list below it.
    fn filter(&mut self, heading: &str) {
        self.raw(format_args!(
            "<h2>{heading}</h2>\n<input id=\"filter\" placeholder=\"filter\" aria-label=\"filter\">"
        ));
    }

    fn head(&mut self, program: &ProfiledProgram<'_>, total: u64, functions: usize) {
        let profile = program.profile();
        self.begin(program, "executed instructions");
        let of_process = self.process(program);
        self.raw(format_args!(
            "<p>{of_process}: {} instructions in {} functions.</p>",
            Grouped(total),
            Grouped(functions as u64)
        ));
        let inexact = profile.functions.iter().filter(|function| function.inexact.is_some()).count();
        let refused = profile.refused.len();
        if inexact + refused > 0 {
            self.raw(format_args!(
                "<p class=\"note\">{inexact} functions with inexact counts, {refused} not counted.</p>"
            ));
        }
    }

    /// Writes the table of functions.
    fn list(&mut self, hottest: &[ProfiledRoutine<'_>], total: u64, detailed: usize) {
        self.filter("Functions");
        self.raw(format_args!(
            "<table class=\"list\"><thead><tr><th class=\"n\">instructions</th><th class=\"n\">share</th><th></th>\
             <th class=\"n\">calls</th><th>function</th><th>module</th></tr></thead><tbody>"
        ));
        for (number, routine) in hottest.iter().enumerate() {
            let executed = routine.function.executed();
            let share = executed as f64 * 100.0 / total.max(1) as f64;
            let name = shown(routine);
            let name = Escaped(&name);
            let link = if number < detailed { format!("<a href=\"#f{number}\">{name}</a>") } else { name.to_string() };
            self.raw(format_args!(
                "<tr><td class=\"n\">{}</td><td class=\"n\">{share:.2} %</td>\
                 <td><span class=\"bar\" style=\"width:{:.1}rem\"></span></td>\
                 <td class=\"n\">{}</td><td class=\"name\">{link}</td><td>{}</td></tr>",
                Grouped(executed),
                share / 12.5,
                Grouped(routine.function.calls),
                Escaped(&routine.module.name)
            ));
        }
        self.raw(format_args!("</tbody></table>"));
    }

    /// Writes the instructions of a function.
    fn function(&mut self, number: usize, routine: &ProfiledRoutine<'_>) {
        let function = routine.function;
        let name = shown(routine);
        let open = if number == 0 { " open" } else { "" };
        self.raw(format_args!(
            "<details{open}><summary><b>{}</b> instructions: {}, calls: {}</summary><div id=\"f{number}\">",
            Escaped(&name),
            Grouped(function.executed()),
            Grouped(function.calls)
        ));
        if let Some(why) = &function.inexact {
            self.raw(format_args!("<p class=\"note\">Not exact: {}</p>", Escaped(why)));
        }
        self.raw(format_args!("<table class=\"code\">"));
        let mut line = String::new();
        for (at, block) in function.blocks.iter().enumerate() {
            self.block(routine, at, block);
            let class = heat(block.count, self.most);
            for instruction in routine.code().disassembly(block) {
                let source = routine.code().line(Svma(instruction.at));
                let link = source.map(|(file, number)| self.line_link(file, number)).unwrap_or_default();
                let shown = if link == line { "" } else { &link };
                self.raw(format_args!(
                    "<tr class=\"{class}\"><td class=\"n\">{}</td><td>{:x}</td><td>{}</td><td>{shown}</td></tr>",
                    Grouped(block.count),
                    instruction.at,
                    Escaped(&instruction.text)
                ));
                line = link;
            }
        }
        self.raw(format_args!("</table></div></details>"));
    }

    /// Writes the heading of a block: its offset, and the edges that leave it.
    fn block(&mut self, routine: &ProfiledRoutine<'_>, number: usize, block: &BlockCount) {
        let start = routine.function.start.0;
        let offset = |at: u64| format!("{}{:#x}", if at < start { "-" } else { "+" }, at.abs_diff(start));
        let mut edges = Vec::new();
        for edge in routine.edges_from(number) {
            let to = match edge.to {
                EdgeEnd::Block(to) => routine.function.blocks.get(to).map(|to| offset(to.start.0)).unwrap_or_default(),
                EdgeEnd::Outside(at) => routine.symbol(at).map_or_else(|| format!("{:#x}", at.0), |s| s.name.clone()),
                EdgeEnd::Dynamic if edge.kind == EdgeKind::Return => "return".to_owned(),
                EdgeEnd::Dynamic => "a pointer's target".to_owned(),
            };
            let count = edge.count.map_or_else(|| "?".to_owned(), |count| Grouped(count).to_string());
            edges.push(format!("{to} \u{d7} {count}"));
        }
        let arrow = if edges.is_empty() { "" } else { "  \u{2192} " };
        let edges = edges.join(", ");
        self.raw(format_args!(
            "<tr class=\"block\"><td class=\"n\">{}</td><td colspan=\"3\">{}{arrow}{}</td></tr>",
            Grouped(block.count),
            offset(block.start.0),
            Escaped(&edges)
        ));
    }

    /// A source position, as a link if the source is on the page.
    fn line_link(&self, file: &str, line: u32) -> String {
        let name = file.rsplit('/').next().unwrap_or_default();
        let text = format!("{}:{line}", Escaped(name));
        match self.sources.get(file) {
            Some(source) => format!("<a href=\"#s{}-{line}\">{text}</a>", source.number),
            None => text,
        }
    }

    /// Writes the source files, those with the largest counts first.
    fn source_files(&mut self) {
        let mut sources: Vec<_> = std::mem::take(&mut self.sources).into_iter().collect();
        if sources.is_empty() {
            return;
        }
        sources.sort_by_key(|(_, source)| source.number);
        self.raw(format_args!("<h2>Source</h2>"));
        for (path, SourceFile { number, text, counts }) in &sources {
            self.raw(format_args!("<details><summary><b>{}</b></summary><table class=\"code\">", Escaped(path)));
            for (line, text) in (1_u32..).zip(text.lines()) {
                let (class, count) = match counts.get(&line) {
                    Some(count) => (heat(*count, self.most), Grouped(*count).to_string()),
                    None => (String::new(), String::new()),
                };
                self.raw(format_args!(
                    "<tr id=\"s{number}-{line}\" class=\"{class}\"><td class=\"n\">{count}</td><td class=\"n\">{line}</td><td>{}</td></tr>",
                    Escaped(text)
                ));
            }
            self.raw(format_args!("</table></details>"));
        }
    }
}
