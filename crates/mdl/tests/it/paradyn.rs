//! Tests of files in Paradyn's own dialect.

use ingraft_mdl::{Library, ParseOptions, RenderStyle};

#[test]
fn the_examples_of_the_paradyn_study_load() {
    let text = include_str!("../../../../tests/golden/mdl/paradyn_examples.mdl");
    let mut library = Library::new(ParseOptions::default());
    let findings = library.load("paradyn_examples.mdl", text);
    assert!(findings.is_empty(), "{}", library.render(&findings, RenderStyle::Plain));
    assert_eq!(library.metrics().len(), 7);
}
