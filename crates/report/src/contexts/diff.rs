//! Differences between the calling contexts of two profiles of the same program.

use ingraft_model::Svma;

use super::{ContextKind, ContextProfile, ContextValue, ReturnSite};
use crate::merge::{MergeError, matched, same_kind};
use crate::saved::{ModuleInfo, SavedProfile};

/// An old and a new value of a context.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChangedValue {
    /// Value in the old profile; 0 if it does not have the context.
    pub old: i64,
    /// Value in the new profile; 0 if it does not have the context.
    pub new: i64,
}

impl ChangedValue {
    /// The new value minus the old one.
    pub fn difference(&self) -> i128 {
        i128::from(self.new) - i128::from(self.old)
    }
}

/// Old and new values of a context.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ContextValues {
    /// Values of the context alone.
    pub own: ChangedValue,
    /// Values with all contexts below it.
    pub inclusive: ChangedValue,
}

/// A context of one of two profiles, or of both.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContextChange {
    /// Index of the parent in the list of changes; `None` if no call was open.
    pub parent: Option<usize>,
    /// Name of the module.
    pub module: String,
    /// Name of the function as the symbol table has it.
    pub name: String,
    /// Address of the first byte of the function, as in the file.
    pub start: Svma,
    /// Name of the module of the return address; `None` if it is outside of all modules.
    pub site_module: Option<String>,
    /// The return address, as in the file; outside of all modules, as in the process.
    pub site: Svma,
    /// The way in which control came here. The target of a recursive call is an index in the list of changes.
    pub kind: ContextKind,
    /// The calls.
    pub calls: ContextValues,
    /// The values of the metrics, in the order of [`ContextProfile::metrics`].
    pub metrics: Vec<ContextValues>,
}

impl ContextChange {
    /// The old and new values of one kind.
    pub fn values(&self, of: ContextValue) -> ContextValues {
        match of {
            ContextValue::Calls => self.calls,
            ContextValue::Metric(metric) => self.metrics.get(metric).copied().unwrap_or_default(),
        }
    }

    /// Whether a value of the context, or of one below it, differs.
    pub fn differs(&self) -> bool {
        let differs =
            |values: &ContextValues| values.own.old != values.own.new || values.inclusive.old != values.inclusive.new;
        differs(&self.calls) || self.metrics.iter().any(differs)
    }
}

/// The contexts of two profiles with old and new values: those of the new profile in its order, then those of the old one alone. A parent comes
/// before its children. Contexts without a difference are in the list too, because they lead to others. Contexts are the same if their
/// functions, call sites and kinds are, and so on up to the root. Fails if a module has another build-id in the other profile, or if the
/// profiles have different kinds or metrics. Empty for profiles without contexts.
pub fn context_diff(old: &SavedProfile, new: &SavedProfile) -> Result<Vec<ContextChange>, MergeError> {
    same_kind(old.kind, new.kind)?;
    let modules = matched(&old.modules, &new.modules)?;
    let (Some(before), Some(after)) = (&old.contexts, &new.contexts) else { return Ok(Vec::new()) };
    // Modules of the old profile that the new one does not have come after the new modules.
    let of_old =
        |index: usize| modules.get(index).copied().flatten().unwrap_or_else(|| new.modules.len().saturating_add(index));
    let mut tree = after.clone();
    let (_, places) = tree.join(before, of_old)?;
    let named: Vec<&ModuleInfo> = new.modules.iter().chain(&old.modules).collect();
    let mut changes = unchanged(&tree, &named);
    let values = std::iter::once(ContextValue::Calls).chain((0..tree.metrics.len()).map(ContextValue::Metric));
    for of in values {
        for (change, (own, inclusive)) in changes.iter_mut().zip(after.values(of).into_iter().zip(after.inclusive(of)))
        {
            let Some(values) = change.values_mut(of) else { continue };
            (values.own.new, values.inclusive.new) = (own, inclusive);
        }
        let earlier = before.values(of).into_iter().zip(before.inclusive(of));
        for (place, (own, inclusive)) in places.iter().zip(earlier) {
            let Some(values) = changes.get_mut(*place).and_then(|change| change.values_mut(of)) else { continue };
            // A profile may have a context twice.
            values.own.old = values.own.old.saturating_add(own);
            values.inclusive.old = values.inclusive.old.saturating_add(inclusive);
        }
    }
    Ok(changes)
}

impl ContextChange {
    fn values_mut(&mut self, of: ContextValue) -> Option<&mut ContextValues> {
        match of {
            ContextValue::Calls => Some(&mut self.calls),
            ContextValue::Metric(metric) => self.metrics.get_mut(metric),
        }
    }
}

/// The contexts of a tree without values.
fn unchanged(tree: &ContextProfile, modules: &[&ModuleInfo]) -> Vec<ContextChange> {
    let name = |module: usize| modules.get(module).map(|module| module.name.clone());
    let changes = tree.contexts.iter().map(|context| {
        let function = tree.functions.get(context.function);
        let ReturnSite { module, at } = context.site;
        ContextChange {
            parent: context.parent,
            module: function.and_then(|function| name(function.module)).unwrap_or_default(),
            name: function.map(|function| function.name.clone()).unwrap_or_default(),
            start: function.map_or(Svma(0), |function| function.start),
            site_module: module.and_then(name),
            site: at,
            kind: context.kind,
            calls: ContextValues::default(),
            metrics: vec![ContextValues::default(); tree.metrics.len()],
        }
    });
    changes.collect()
}
