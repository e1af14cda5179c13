//! Records of contexts.

use std::collections::BTreeMap;

use ingraft_report::{CallingContext, ContextFunction, ContextKind, ContextProfile, LockHolder, LockWait, ReturnSite};

use super::amounts::how;
use super::holders;
use super::shown::ShownContexts;
use crate::command::report::tables::shown as shown_name;
use crate::exit::Stop;
use crate::objects::contexts::{ContextObject, ContextsObject, HolderObject, LiveObject};
use crate::objects::{Host, Object, hex};
use crate::output::{Output, json_line};

impl ShownContexts<'_> {
    /// Writes a record for each context, and one for all together.
    pub(crate) fn objects(&self, of: (Host, i32), out: &mut Output) -> Result<(), Stop> {
        out.begin_batch();
        let contexts = (1..).zip(&self.contexts.contexts);
        let mut records = contexts.map(|(id, context)| Object::Context(self.context(&of, id, context)));
        let result = records.try_for_each(|record| out.object(&record));
        let mut waits = self.contexts.holders.iter().map(|wait| Object::Holder(holder(&of, wait)));
        let result = result.and_then(|()| waits.try_for_each(|record| out.object(&record)));
        let result = result.and_then(|()| out.object(&Object::Contexts(self.all(&of))));
        out.end_batch()?;
        result
    }

    /// Writes the same records whatever the format of other output is.
    pub(crate) fn export(&self, out: &mut Output) -> Result<(), Stop> {
        let of = (None, self.profile.pid.cast_signed());
        for (id, context) in (1..).zip(&self.contexts.contexts) {
            out.verbatim(json_line(&Object::Context(self.context(&of, id, context))).as_bytes())?;
        }
        for wait in &self.contexts.holders {
            out.verbatim(json_line(&Object::Holder(holder(&of, wait))).as_bytes())?;
        }
        out.verbatim(json_line(&Object::Contexts(self.all(&of))).as_bytes())
    }

    fn context(&self, (host, pid): &(Host, i32), id: u64, context: &CallingContext) -> ContextObject {
        let function = self.contexts.functions.get(context.function);
        let module = |module: usize| self.profile.modules.get(module).map(|module| module.name.clone());
        let number = |index: usize| index as u64 + 1;
        let site = Some(context.site).filter(|site| *site != ReturnSite::default());
        let metrics = || self.contexts.metrics.iter().zip(&context.metrics);
        let error = self.looked.and_then(|looked| {
            let (name, value) = metrics().nth(looked.time)?;
            Some(BTreeMap::from([(name.clone(), looked.error(*value).round() as u64)]))
        });
        ContextObject {
            host: host.clone(),
            pid: *pid,
            id,
            parent: context.parent.map(number),
            kind: kind(context.kind),
            back_to: match context.kind {
                ContextKind::Recursion(target) => Some(number(target)),
                ContextKind::Call | ContextKind::Tail | ContextKind::Signal => None,
            },
            module: function.and_then(|of| module(of.module)).unwrap_or_default(),
            function: function.map(|of| shown_name(&of.name, of.start)).unwrap_or_default(),
            offset: hex(function.map_or(0, |of| of.start.0)),
            caller_module: site.and_then(|site| module(site.module?)),
            call_site: site.map(|site| hex(site.at.0)),
            calls: context.calls,
            partial: self.is_partial(context.function).then_some(true),
            // Calls that were left are counted by function, not by context.
            left: function.filter(|of| of.left == 0).map(|_| 0),
            caught_up: 0,
            metrics: metrics().map(|(name, value)| (name.clone(), *value)).collect(),
            how: self.contexts.metrics.iter().cloned().zip(how(&self.contexts)).collect(),
            error,
        }
    }

    fn all(&self, (host, pid): &(Host, i32)) -> ContextsObject {
        let ContextProfile { functions, metrics, outside, full, live, .. } = &*self.contexts;
        let statistics = self.contexts.statistics();
        let sum = |of: fn(&ContextFunction) -> u64| functions.iter().map(of).fold(0, u64::saturating_add);
        let untold = holders::untold(&self.contexts).into_iter().filter_map(|function| functions.get(function));
        let outside: BTreeMap<String, i64> = metrics.iter().cloned().zip(outside.iter().copied()).collect();
        ContextsObject {
            host: host.clone(),
            pid: *pid,
            nodes: statistics.nodes,
            back_edges: statistics.back_edges,
            height: statistics.height,
            degree: statistics.degree,
            leaf_depth: statistics.leaf_depth,
            replication: statistics.replication,
            full: *full,
            unrecorded: sum(|function| function.unrecorded),
            unseen: sum(|function| function.unseen),
            left: sum(|function| function.left),
            left_by_tail_jump: sum(|function| function.left_by_tail_jump),
            outside,
            looks: self.looked.map(|looked| looked.count),
            effective_looks: self.looked.map(|looked| looked.effective.round() as u64),
            live: live.map(LiveObject::from),
            holders_unknown: Some(untold.map(|of| shown_name(&of.name, of.start)).collect())
                .filter(|functions: &Vec<String>| !functions.is_empty()),
        }
    }
}

fn holder((host, pid): &(Host, i32), wait: &LockWait) -> HolderObject {
    let number = |index: usize| index as u64 + 1;
    HolderObject {
        host: host.clone(),
        pid: *pid,
        lock: hex(wait.lock),
        name: Some(wait.name.clone()).filter(|name| !name.is_empty()),
        waiter: number(wait.waiter),
        holder: wait.holder.context().map(number),
        held: match wait.holder {
            LockHolder::Context(_) => "context",
            LockHolder::Outside => "outside",
            LockHolder::Nobody => "nobody",
            LockHolder::Untold => "unknown",
        },
        looks: wait.looks,
        wall_ns: wait.ns,
    }
}

/// The word for a way in which control comes to a context.
pub(crate) fn kind(kind: ContextKind) -> &'static str {
    match kind {
        ContextKind::Call => "call",
        ContextKind::Tail => "tail",
        ContextKind::Signal => "signal",
        ContextKind::Recursion(_) => "recursion",
    }
}
