//! Contexts for people: the heading of a process, its tables, and the notes below.

use std::rc::Rc;

use ingraft_report::{ModuleCode, SavedProfile};

use super::names::ContextNames;
use super::shown::ShownContexts;
use super::{callers, holders, leaves, notes, tree};
use crate::output::HEADING;

/// A line that names the process of a profile.
pub(crate) fn heading(profile: &SavedProfile) -> String {
    let program: String = profile.program.chars().map(|c| if c.is_control() { '?' } else { c }).collect();
    format!("{HEADING}{program}{HEADING:#}, process {}\n", profile.pid)
}

/// The tables and notes of contexts. `code` is that of the modules, in their order.
pub(crate) fn text(shown: &ShownContexts<'_>, code: &[Rc<ModuleCode>], width: Option<usize>) -> String {
    let names = ContextNames::new(shown.profile, &shown.contexts, code);
    let mut text = String::new();
    if shown.layout.is_view {
        text += &leaves::table(shown, &names, width);
    }
    text += &holders::table(shown, &names, width);
    text += &match shown.layout.bottom_up {
        true => callers::table(shown, &names, width),
        false => tree::table(shown, &names, width),
    };
    text + &notes::text(shown, &names)
}
