//! The page docs/measured.md. It has a section for each group of rows, with the machine on which the group was measured, and the date. A run
//! of some groups leaves the sections of the others as they are.

use std::fmt::Write;
use std::process::Command;

use super::{BenchRow, GROUPS};

/// Beginning of the page.
const HEAD: &str = "\
# What was measured

This page is for users who want to know what ingraft costs, and for developers who look for what to improve.
`cargo xtask bench --markdown [NAME…]` writes it, a section for each NAME. Each value is a median, with the limit that it must keep.
Ratios are comparable between machines; absolute numbers are not. A row that was not measured says what the machine lacks.
";

/// Beginning of the title of a section.
const TITLE: &str = "\n## ";

/// A page with the sections of `measured`, and those of an earlier page for all other groups.
pub fn page(earlier: &str, measured: &[(&str, Vec<BenchRow>)], machine: &str) -> String {
    let kept = |name: &str| {
        let section = earlier.split(TITLE).skip(1).find(|section| section.lines().next() == Some(name))?;
        Some(format!("{TITLE}{section}"))
    };
    let sections = GROUPS.iter().filter_map(|(name, _)| match measured.iter().find(|(group, _)| group == name) {
        Some((_, rows)) => Some(section(name, rows, machine)),
        None => kept(name),
    });
    let sections: Vec<String> = sections.map(|section| section.trim_end().to_owned() + "\n").collect();
    HEAD.to_owned() + &sections.concat()
}

fn section(name: &str, rows: &[BenchRow], machine: &str) -> String {
    let mut text =
        format!("{TITLE}{name}\n\n{machine}\n\n| what | limit | measured | kept |\n| --- | --- | --- | --- |\n");
    for row in rows {
        let kept = match row.reached {
            Some(true) => "yes",
            Some(false) => "**no**",
            None => "",
        };
        let cells = [&row.what, &row.limit, &row.measured].map(|cell| cell.replace('|', "\\|"));
        // Writing to a text does not fail.
        let _written = writeln!(text, "| {} | {kept} |", cells.join(" | "));
    }
    text
}

/// A line about this machine: the date, the processor, the number of processors, memory and kernel, and the load by other work.
pub fn machine() -> String {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let (processors, memory, load) = (read("/proc/cpuinfo"), read("/proc/meminfo"), read("/proc/loadavg"));
    let field = |text: &str, name: &str| {
        let line = text.lines().find(|line| line.starts_with(name));
        line.and_then(|line| line.split_once(':'))
            .map_or_else(|| "unknown".to_owned(), |(_, value)| value.trim().to_owned())
    };
    let cores = processors.lines().filter(|line| line.starts_with("processor")).count();
    let kind =
        if field(&processors, "flags").split(' ').any(|flag| flag == "hypervisor") { ", virtual machine" } else { "" };
    let bytes = field(&memory, "MemTotal").trim_end_matches(" kB").parse::<f64>().unwrap_or(f64::NAN) * 1024.0;
    let date = Command::new("date").args(["-u", "+%F"]).output().map(|output| output.stdout).unwrap_or_default();
    format!(
        "{}: {}, processors: {cores}{kind}, {:.1} GiB, Linux {}, load average before: {}.",
        String::from_utf8_lossy(&date).trim(),
        field(&processors, "model name"),
        bytes / f64::from(1 << 30),
        read("/proc/sys/kernel/osrelease").trim(),
        load.split(' ').next().unwrap_or("unknown"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_keeps_the_sections_of_other_groups() {
        let rows =
            |what: &str| vec![BenchRow::at_most(what, 1.0, 2.0, " ms", ""), BenchRow::skipped("a | b", "no gcc")];
        let first = page("", &[("calls", rows("one")), ("whole", rows("two"))], "Then.");
        let second = page(&first, &[("start", rows("three")), ("calls", rows("four"))], "Now.");
        let titles: Vec<&str> = second.lines().filter(|line| line.starts_with("## ")).collect();
        assert_eq!(titles, ["## calls", "## start", "## whole"]);
        assert!(second.contains("## whole\n\nThen.\n") && second.contains("## start\n\nNow.\n"), "{second}");
        assert!(second.contains("| four | <= 2.00 ms | 1.00 ms | yes |\n") && !second.contains("| one |"), "{second}");
        assert!(second.contains("| a \\| b |  | skipped: no gcc |  |\n"), "{second}");
        assert_eq!(page(&second, &[], "Later."), second);
    }
}
