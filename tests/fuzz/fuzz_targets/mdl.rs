//! Takes any text as MDL: every finding can be shown, and printing is stable.
#![no_main]

use ingraft_mdl::{Library, ParseOptions, RenderStyle, SourceText, format, render};

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let text = String::from_utf8_lossy(data);
    let mut library = Library::new(ParseOptions::default());
    let findings = library.load("fuzz.mdl", &text);
    let source = SourceText::new("fuzz.mdl", &text);
    for finding in &findings {
        assert!(!render(finding, Some(&source), RenderStyle::Plain).is_empty());
    }
    let _ = library.metrics();
    if let Ok(printed) = format("fuzz.mdl", &text, ParseOptions::default()) {
        let again = format("fuzz.mdl", &printed, ParseOptions::default());
        assert_eq!(again.as_ref().ok(), Some(&printed), "what was printed is not what is printed from it");
    }
});
