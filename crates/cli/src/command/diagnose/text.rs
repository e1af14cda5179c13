//! The findings as text: a tree of those that hold, and a line for the others.

use super::decisions::share_text;
use super::finding::Finding;
use super::hypothesis::Hypothesis;
use crate::output::words::readable_focus;
use crate::output::{DIM, HEADING};

/// Width of the column of shares.
const SHARES: usize = 16;

/// The findings about a process.
pub(super) fn tree(pid: i32, host: Option<&str>, findings: &[Finding]) -> String {
    let Some(root) = findings.first() else { return String::new() };
    let host = host.map(|host| format!(" at {host}")).unwrap_or_default();
    let mut text = format!("{HEADING}process {pid}{HEADING:#}{host}: {}\n", root.evidence);
    let holding = || findings.iter().filter(|finding| finding.holds && finding.parent == Some(root.id));
    for finding in holding() {
        add(findings, finding, 0, &mut text);
    }
    if holding().next().is_none() {
        text += "no hypothesis holds: the time is spread over several causes\n";
    }
    let fallen: Vec<String> = findings
        .iter()
        .filter(|finding| !finding.holds && finding.parent == Some(root.id) && finding.hypothesis != Hypothesis::Idle)
        .map(|finding| format!("{} {}", finding.hypothesis.name(), share_text(finding.share)))
        .collect();
    if !fallen.is_empty() {
        text += &format!("{DIM}below 20 % or in too little activity: {}{DIM:#}\n", fallen.join(", "));
    }
    text
}

/// Adds a finding, and those that refine it and hold.
fn add(findings: &[Finding], finding: &Finding, depth: usize, text: &mut String) {
    let indent = "  ".repeat(depth);
    let share = format!("{indent}{} ± {}", share_text(finding.share), share_text(finding.share_error));
    let refines =
        depth > 0 && findings.iter().any(|f| Some(f.id) == finding.parent && f.hypothesis == finding.hypothesis);
    let what = if refines { readable_focus(&finding.place) } else { finding.hypothesis.name().to_owned() };
    *text += &format!("{share:<SHARES$}  {HEADING}{what}{HEADING:#}\n");
    let pad = " ".repeat(SHARES + 2);
    *text += &format!("{pad}{}\n", finding.evidence);
    *text += &format!("{pad}see: {}\n", finding.command);
    if !refines {
        *text += &format!("{pad}{DIM}would be refuted by: {}{DIM:#}\n", finding.refuted_by);
    }
    for child in findings.iter().filter(|child| child.holds && child.parent == Some(finding.id)) {
        add(findings, child, depth + 1, text);
    }
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    fn finding(id: u64, parent: Option<u64>, hypothesis: Hypothesis, share: f64, holds: bool) -> Finding {
        Finding {
            id,
            parent,
            hypothesis,
            place: format!("/Place/{id}"),
            share,
            share_error: 0.021,
            holds,
            evidence: format!("evidence {id}"),
            command: format!("ingraft {id}"),
            refuted_by: "the opposite".to_owned(),
            function: None,
            mutex: None,
        }
    }

    fn shown(findings: &[Finding]) -> String {
        anstream::adapter::strip_str(&tree(7, None, findings)).to_string()
    }

    #[test]
    fn findings_are_shown_as_a_tree() {
        let findings = [
            finding(1, None, Hypothesis::Whole, 1.0, true),
            finding(2, Some(1), Hypothesis::Locks, 0.74, true),
            finding(3, Some(1), Hypothesis::Sleeps, 0.12, false),
            finding(4, Some(1), Hypothesis::Idle, 0.0, false),
            finding(5, Some(2), Hypothesis::Locks, 0.7, true),
            finding(6, Some(2), Hypothesis::Locks, 0.04, false),
        ];
        expect![[r#"
            process 7: evidence 1
            74 % ± 2.1 %      waits for locks
                              evidence 2
                              see: ingraft 2
                              would be refuted by: the opposite
              70 % ± 2.1 %    /Place/5
                              evidence 5
                              see: ingraft 5
            below 20 % or in too little activity: sleeps 12 %
        "#]]
        .assert_eq(&shown(&findings));
        let templated = Finding { place: "/Code/m/f<int%2C 3>".to_owned(), ..findings[4].clone() };
        assert!(shown(&[findings[0].clone(), findings[1].clone(), templated]).contains("    /Code/m/f<int, 3>\n"));
        assert_eq!(shown(&[]), "");
        let nothing = "process 7: evidence 1\nno hypothesis holds: the time is spread over several causes\n";
        assert_eq!(shown(&findings[..1]), nothing);
    }
}
