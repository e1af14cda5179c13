//! Shows diagnostics as a compiler does: with the line, the position in it, and advice.

use annotate_snippets::{AnnotationKind, Group, Level, Renderer, Snippet};

use crate::diagnostic::{Diagnostic, Severity};
use crate::library::Library;
use crate::source::SourceText;

/// Look of rendered diagnostics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum RenderStyle {
    /// Text only.
    #[default]
    Plain,
    /// With the escape sequences of a terminal.
    Coloured,
}

/// Renders one diagnostic, with an excerpt if its source is given.
pub fn render(diagnostic: &Diagnostic, source: Option<&SourceText>, look: RenderStyle) -> String {
    let level = match diagnostic.severity {
        Severity::Error => Level::ERROR,
        Severity::Warning => Level::WARNING,
        Severity::Note => Level::NOTE,
    };
    let title = level.primary_title(diagnostic.message.as_str()).id(diagnostic.code);
    let mut group = Group::with_title(title);
    if let Some(source) = source.filter(|_| diagnostic.line > 0) {
        let annotation = AnnotationKind::Primary.span(clamped(diagnostic, source.text()));
        group = group.element(Snippet::source(source.text()).path(source.name()).annotation(annotation));
    }
    for note in &diagnostic.notes {
        group = group.element(Level::NOTE.message(note.as_str()));
    }
    if let Some(help) = &diagnostic.help {
        group = group.element(Level::HELP.message(help.as_str()));
    }
    let renderer = match look {
        RenderStyle::Plain => Renderer::plain(),
        RenderStyle::Coloured => Renderer::styled(),
    };
    renderer.render(&[group])
}

/// Returns the span of a diagnostic, moved to character boundaries inside the text.
fn clamped(diagnostic: &Diagnostic, text: &str) -> std::ops::Range<usize> {
    let border = |mut at: usize| {
        at = at.min(text.len());
        while !text.is_char_boundary(at) {
            at -= 1;
        }
        at
    };
    let (start, end) = (border(diagnostic.span.start as usize), border(diagnostic.span.end as usize));
    start..end.max(start)
}

impl Library {
    /// Renders all diagnostics, with excerpts from the loaded texts, and an empty line between them.
    pub fn render(&self, diagnostics: &[Diagnostic], look: RenderStyle) -> String {
        let mut out = String::new();
        for diagnostic in diagnostics {
            if !out.is_empty() {
                out.push('\n');
            }
            out += &render(diagnostic, self.source(&diagnostic.file), look);
            out.push('\n');
        }
        out
    }
}
