//! Flavors: definitions exist for programs of certain kinds only.

use ingraft_model::Flavor;

use super::meta::Evaluation;
use crate::ast::Ident;
use crate::diagnostic::{Diagnostic, Severity, codes};
use crate::library::Library;
use crate::parse::closest;

/// The flavors that every program has, whether or not a definition names them.
const OF_EVERY_PROGRAM: [&str; 2] = ["linux", "unix"];

/// The largest number of known flavors that a help text lists.
const LISTED_MAX: usize = 12;

impl Evaluation<'_> {
    /// Whether a definition with these flavors exists for the program.
    pub(super) fn in_flavor(&self, flavors: &[Ident]) -> bool {
        let stated = |name: &str| self.stated.iter().any(|flavor| flavor.as_str() == name);
        let own = |name: &str| self.program.flavors().iter().any(|flavor| flavor == name);
        flavors.is_empty() || flavors.iter().any(|flavor| own(&flavor.name) || stated(&flavor.name))
    }

    /// Returns advice on how the definition can be used: the client misspelled one of its flavors, or stated none.
    pub(super) fn flavor_help(&self, flavors: &[Ident]) -> String {
        let names: Vec<&str> = flavors.iter().map(|flavor| flavor.name.as_str()).collect();
        let misspelled = self.stated.iter().find_map(|stated| Some((stated, closest(stated.as_str(), &names)?)));
        match (misspelled, names.first()) {
            (Some((stated, near)), _) => {
                format!("the program is said to be `{stated}`; did you mean `--flavor {near}`?")
            }
            (None, Some(first)) => format!("if the program is of this kind, say so: `--flavor {first}`"),
            (None, None) => String::new(),
        }
    }
}

/// The part of a message that names the flavors of a definition.
pub(super) fn only_for(flavors: &[Ident]) -> String {
    let names: Vec<&str> = flavors.iter().map(|flavor| flavor.name.as_str()).collect();
    format!("exists only for {}", names.join(", "))
}

impl Library {
    /// One warning for each of these flavors that no definition names, with the flavor that was probably meant.
    pub fn unknown_flavors(&self, stated: &[Flavor]) -> Vec<Diagnostic> {
        let metrics = self.metrics.values().flat_map(|entry| entry.node.flavors());
        let lists = self.lists.values().flat_map(|entry| &entry.node.flavors);
        let mut known: Vec<&str> = metrics.chain(lists).map(|flavor| flavor.name.as_str()).collect();
        known.extend(OF_EVERY_PROGRAM);
        known.sort_unstable();
        known.dedup();
        let is_new =
            |&(i, flavor): &(usize, &Flavor)| !stated[..i].contains(flavor) && !known.contains(&flavor.as_str());
        let unknown = stated.iter().enumerate().filter(is_new).map(|(_, flavor)| flavor);
        let warning = |flavor: &Flavor| {
            let help = match closest(flavor.as_str(), &known) {
                Some(near) => format!("did you mean `{near}`?"),
                None => format!(
                    "definitions name {}",
                    known.iter().take(LISTED_MAX).copied().collect::<Vec<_>>().join(", ")
                ),
            };
            let warning = Diagnostic::request(codes::FLAVOR, format!("no definition names the flavor `{flavor}`"));
            Diagnostic { severity: Severity::Warning, ..warning.help(help) }
        };
        unknown.map(warning).collect()
    }
}
