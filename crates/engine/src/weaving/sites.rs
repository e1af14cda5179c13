//! Sites of points: the points of a function in the target as it is now.

use std::collections::BTreeMap;
use std::sync::Arc;

use ingraft_analysis::{Function, FunctionKind};
use ingraft_model::{Avma, Clearing, FunctionRef, Offset, PointKind, Refusal, Site};
use ingraft_process::Target;

use ingraft_codegen::RemovalRecord;

use crate::program::callees::{callees, never_returns};
use crate::program::modules::{Module, Modules};
use crate::program::text_pages::TextPages;
use crate::weaving::plan::NewMini;

/// One point of a function.
#[derive(Clone, Debug)]
pub struct Found {
    /// Site at which it can be woven, or the reason why it cannot.
    pub site: Result<Arc<Site>, Refusal>,
    /// Functions of which the call there calls one; empty if they are not known before the call.
    callees: Vec<FunctionRef>,
}

impl Found {
    /// Whether a snippet belongs there: not if it leaves calls of the callee out.
    pub fn is_for(&self, mini: &NewMini<'_>) -> bool {
        self.callees.is_empty() || !self.callees.iter().all(|callee| mini.except.contains(callee))
    }
}

/// The code of a target without what we have written into it, each page read once.
pub struct Text<'a> {
    target: &'a Target,
    /// The bytes that stood where we have written.
    originals: BTreeMap<u64, u8>,
    /// As the target has them now.
    pages: TextPages,
}

impl<'a> Text<'a> {
    /// `records`: what would put back all that we have written.
    pub fn new<'r>(target: &'a Target, records: impl Iterator<Item = &'r RemovalRecord>) -> Self {
        let writes = records.flat_map(|r| &r.text);
        let originals = writes.flat_map(|w| (w.at.0..).zip(w.new_bytes().iter().copied())).collect();
        Text { target, originals, pages: TextPages::default() }
    }

    /// The code of a target in which nothing is woven.
    pub fn untouched(target: &'a Target) -> Self {
        Text::new(target, std::iter::empty())
    }

    /// As it stands in the target now.
    fn now(&self, at: Avma, bytes: &mut [u8]) -> bool {
        self.pages.read(self.target, at, bytes)
    }

    /// As it was before we wrote.
    fn original(&self, at: Avma, bytes: &mut [u8]) -> bool {
        let there = self.now(at, bytes);
        for (place, byte) in self.originals.range(at.0..at.0.saturating_add(bytes.len() as u64)) {
            if let Some(b) = usize::try_from(place - at.0).ok().and_then(|i| bytes.get_mut(i)) {
                *b = *byte;
            }
        }
        there
    }
}

/// The points of a function of one kind, as far as their bytes tell; an error if it is not certain that these are all.
pub fn sites(
    text: &Text<'_>,
    modules: &Modules,
    function: FunctionRef,
    kind: PointKind,
) -> Result<Vec<Found>, Refusal> {
    let found = |site| Found { site, callees: Vec::new() };
    match kind {
        PointKind::Entry => Ok(vec![found(Ok(entry_site(text, modules, function)?))]),
        PointKind::Exit => {
            let (module, f) = body(modules, function)?;
            let check = |site: Result<Arc<Site>, Refusal>| site.and_then(|s| agrees(text, module, s));
            Ok(module.image.exit_sites(f)?.into_iter().map(|site| found(check(site))).collect())
        }
        PointKind::CallBefore => calls(text, modules, function, false),
        PointKind::CallAfter => calls(text, modules, function, true),
        PointKind::Block => Err(Refusal::NotYet { kind: "block" }),
        PointKind::Edge => Err(Refusal::NotYet { kind: "edge" }),
    }
}

/// Whether little has to be done to find them.
pub fn are_known(modules: &Modules, function: FunctionRef, kind: PointKind) -> bool {
    let known = |(_, module, f): (_, &Module, &Function)| module.image.knows_sites(f, kind);
    modules.resolve(function).is_none_or(known)
}

/// An entry that can be woven, as far as its bytes tell, and agrees with the memory of the target.
pub fn entry_site(text: &Text<'_>, modules: &Modules, function: FunctionRef) -> Result<Arc<Site>, Refusal> {
    let (module, f) = body(modules, function)?;
    agrees(text, module, module.image.entry_site(f)?)
}

fn calls(text: &Text<'_>, modules: &Modules, function: FunctionRef, after: bool) -> Result<Vec<Found>, Refusal> {
    let (module, f) = body(modules, function)?;
    let mut out = Vec::new();
    for point in module.image.call_points(f, after)? {
        let callees = callees(text.target, modules, function, module, &point.call);
        let returns = callees.is_empty() || callees.iter().any(|&callee| !never_returns(modules, callee));
        let site = match point.site {
            Ok(None) => continue,
            Ok(Some(site)) => agrees(text, module, Arc::new(site)),
            // where nothing returns to there is nothing to weave
            Err(_) if after && !returns => continue,
            Err(refusal) => Err(refusal),
        };
        out.push(Found { site, callees });
    }
    Ok(out)
}

/// A function whose code may be changed.
fn body(modules: &Modules, function: FunctionRef) -> Result<(&Module, &Function), Refusal> {
    let (file, module, f) = modules.resolve(function).ok_or(Refusal::NoSuchFunction)?;
    match f.kind() {
        FunctionKind::Normal if file.is_shared() => Err(Refusal::SharedText),
        FunctionKind::Normal if module.image.elf().has_text_relocations() => Err(Refusal::TextRelocations),
        FunctionKind::Normal => Ok((module, f)),
        FunctionKind::IfuncResolver => Err(Refusal::IfuncResolver),
        FunctionKind::Stub => Err(Refusal::LinkerStub),
    }
}

/// The site if the target has the bytes of the file there, but for what we have written.
fn agrees(text: &Text<'_>, module: &Module, mut site: Arc<Site>) -> Result<Arc<Site>, Refusal> {
    let at = site.at.to_avma(module.bias);
    let mut now = vec![0; site.bytes.len()];
    if !text.original(at, &mut now) {
        return Err(Refusal::Unreadable);
    }
    // what is displaced only to make room is left alone unless it is as in the file
    let is_there = |c: &Clearing| {
        let mut now = vec![0; c.bytes.len()];
        text.now(c.at.to_avma(module.bias), &mut now) && now == c.bytes
    };
    if !site.clearings.iter().all(is_there) {
        Arc::make_mut(&mut site).clearings.retain(is_there);
    }
    match now.iter().zip(&site.bytes).position(|(a, b)| a != b) {
        None => Ok(site),
        Some(i) => {
            let differs = site.at.0.wrapping_add(i as u64);
            Err(Refusal::BytesDiffer { offset: Offset::between(site.function.0, differs) })
        }
    }
}
