//! The exits of a function at which a snippet stands. A snippet that ends a call does not stand where the function jumps to another
//! function.

use std::sync::Arc;

use ingraft_model::{FunctionId, Refusal, Site, Svma};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::program::modules::Modules;
use crate::weaving::sites::{FoundPoint, Text, entry_site};
use crate::weaving::wanted::WantedPoints;

/// Exits of a function that a snippet is for, with a condition.
#[derive(Clone, Debug, Default)]
pub enum Exits {
    /// All exits; at other kinds of points, all points.
    #[default]
    All,
    /// All exits except those at these addresses.
    But(Arc<FxHashSet<Svma>>),
    /// Only the exit at this address, if every (function, pair) of the list could be woven.
    While(Svma, Arc<[(FunctionId, usize)]>),
    /// Only the exit at this address, if the list is empty or one of its pairs was refused.
    Unless(Svma, Arc<[(FunctionId, usize)]>),
}

impl Exits {
    /// The (function, pair) items on which the condition depends.
    pub fn needs(&self) -> &[(FunctionId, usize)] {
        match self {
            Exits::All | Exits::But(_) => &[],
            Exits::While(_, needs) | Exits::Unless(_, needs) => needs,
        }
    }

    /// Whether the snippet stands at the exit at this address.
    pub fn contains(&self, at: Svma, refused: &FxHashMap<(FunctionId, usize), Refusal>) -> bool {
        let any_refused = |needs: &[(FunctionId, usize)]| needs.iter().any(|need| refused.contains_key(need));
        match self {
            Exits::All => true,
            Exits::But(others) => !others.contains(&at),
            Exits::While(own, needs) => at == *own && !any_refused(needs),
            Exits::Unless(own, needs) => at == *own && (needs.is_empty() || any_refused(needs)),
        }
    }
}

/// The entry sites of functions with exits that only the entry can hold. Such an exit is refused if its entry cannot be woven.
pub(super) fn hosts(
    text: &Text<'_>,
    modules: &Modules,
    wanted: &[WantedPoints<'_>],
    sites: &mut [Result<Vec<FoundPoint>, Refusal>],
) -> FxHashMap<FunctionId, Arc<Site>> {
    let mut hosts = FxHashMap::default();
    for (w, found) in wanted.iter().zip(sites) {
        let mut within: Vec<_> =
            found.iter_mut().flatten().filter(|f| f.site.as_ref().is_ok_and(|site| site.is_within_entry())).collect();
        if within.is_empty() || hosts.contains_key(&w.function) {
            continue;
        }
        match entry_site(text, modules, w.function) {
            Ok(site) => drop(hosts.insert(w.function, site)),
            Err(refusal) => within.iter_mut().for_each(|f| f.site = Err(refusal.clone())),
        }
    }
    hosts
}

#[cfg(test)]
mod tests {

    use super::*;
    use ingraft_model::ModuleId;

    #[test]
    fn what_depends_on_another_function_gives_way_when_that_is_refused() {
        let other = FunctionId { module: ModuleId(0), function: 7 };
        let needs: Arc<[_]> = [(other, 3)].into();
        let (handed, given_up) =
            (Exits::While(Svma(16), Arc::clone(&needs)), Exits::Unless(Svma(16), Arc::clone(&needs)));
        let woven = FxHashMap::default();
        let refused = FxHashMap::from_iter([((other, 3), Refusal::NoRoomNearby)]);
        assert!(handed.contains(Svma(16), &woven) && !given_up.contains(Svma(16), &woven));
        assert!(!handed.contains(Svma(16), &refused) && given_up.contains(Svma(16), &refused));
        assert!(!handed.contains(Svma(17), &woven) && !given_up.contains(Svma(17), &refused));
        assert!(Exits::Unless(Svma(16), [].into()).contains(Svma(16), &woven));
        let others = Exits::But(Arc::new(FxHashSet::from_iter([Svma(16)])));
        assert!(!others.contains(Svma(16), &woven) && others.contains(Svma(17), &woven));
    }
}
