//! Tests the findings about texts with errors: tests/golden/mdl/NAME.mdl is the text, NAME.out the exact findings. UPDATE=1 rewrites
//! NAME.out.

use std::fs;
use std::path::Path;

use ingraft_mdl::{Library, ParseOptions, RenderStyle};

#[test]
fn findings_are_rendered_as_recorded() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/mdl");
    let mut names: Vec<_> = fs::read_dir(&folder)
        .expect("folder")
        .filter_map(|e| e.expect("entry").file_name().to_str().and_then(|n| n.strip_suffix(".mdl")).map(str::to_owned))
        .collect();
    names.sort();
    assert!(names.len() >= 4, "{names:?}");
    for name in names {
        let text = fs::read_to_string(folder.join(format!("{name}.mdl"))).expect("text");
        let mut library = Library::new(ParseOptions::default());
        let findings = library.load(&format!("{name}.mdl"), &text);
        let rendered = library.render(&findings, RenderStyle::Plain);
        let recorded = folder.join(format!("{name}.out"));
        if std::env::var_os("UPDATE").is_some() {
            fs::write(&recorded, &rendered).expect("written");
        }
        assert_eq!(rendered, fs::read_to_string(&recorded).unwrap_or_default(), "{name}; UPDATE=1 rewrites");
    }
}

#[test]
fn ten_errors_are_ten_findings_and_the_good_metric_is_there() {
    let text = include_str!("../../../../tests/golden/mdl/ten_errors.mdl");
    let mut library = Library::new(ParseOptions::default());
    let findings = library.load("ten_errors.mdl", text);
    assert_eq!(findings.len(), 10, "{}", library.render(&findings, RenderStyle::Plain));
    assert!(findings.iter().all(ingraft_mdl::Diagnostic::is_error));
    assert!(library.metric("good").is_some());
}

#[test]
fn colour_changes_only_the_look() {
    let mut library = Library::new(ParseOptions::default());
    let findings = library.load("t.mdl", "metric ä");
    let coloured = library.render(&findings, RenderStyle::Coloured);
    assert!(coloured.contains("\u{1b}[") && !library.render(&findings, RenderStyle::Plain).contains('\u{1b}'));
}
