//! The suspected parts of a function: their points, and the loops that contain them.

use std::sync::Arc;

use ingraft_analysis::Function;
use ingraft_codegen::{TextSpace, WovenBody};
use ingraft_model::{BlockId, FunctionBody, FunctionId, Instrumentation, Loops, Offset, PointId, Refusal};
use ingraft_profile::ProbeAt;

use crate::api::{SharesOptions, Suspect};
use crate::kinds::graph::{FunctionGraph, block_of};
use crate::program::modules::{Module, Modules};
use crate::weaving::trial;

use super::code::{self, PartPoints};

/// The plan to measure a function and its suspected parts.
pub struct SharesPlan {
    function: FunctionId,
    /// The parts, outer loops before those in them.
    pub parts: Vec<PlannedPart>,
    /// The function as it was analysed for the plan, so that the insertion does not analyse it again.
    _body: Option<Arc<FunctionBody>>,
}

/// A suspected part.
#[derive(Debug)]
pub struct PlannedPart {
    /// The part.
    pub suspect: Suspect,
    /// Points of the part; the reason if it cannot be measured.
    pub points: Result<PartPoints, String>,
    /// For a call site, indexes of the loops among the parts that contain it.
    pub inside: Vec<u32>,
}

/// A function whose parts are looked up.
struct SuspectedCode<'m> {
    graph: FunctionGraph,
    loops: Loops<BlockId>,
    module: &'m Module,
    function: &'m Function,
}

impl SharesPlan {
    /// Plans the code of a function. `text` is the text of the module with nothing woven into it. Fails if the function has no code of its own, or if
    /// neither the text nor a copy has room at its entry and exits.
    pub fn new(
        (modules, text): (&Modules, &TextSpace),
        function: FunctionId,
        suspects: &[Suspect],
    ) -> Result<SharesPlan, Refusal> {
        let (graph, module, f) = FunctionGraph::of(modules, function)?;
        let loops = Loops::of(&graph.cfg);
        let body = module.image.body(f).ok();
        // Without a copy, all points are in the text or none is.
        let copy = body.as_ref().and_then(|body| trial::copy(modules, function, body, text).ok());
        let suspected = SuspectedCode { graph, loops, module, function: f };
        Ok(SharesPlan { function, parts: suspected.parts(suspects, copy.as_ref()), _body: body })
    }

    /// The code.
    pub fn instrumentation(&self, options: &SharesOptions) -> Instrumentation {
        let parts: Vec<PartPoints> = self.parts.iter().filter_map(|part| part.points.as_ref().ok().copied()).collect();
        code::instrumentation(self.function, &parts, options)
    }
}

impl SuspectedCode<'_> {
    fn offset(&self, at: ingraft_model::Svma) -> Offset {
        Offset::between(self.graph.first.0, at.0)
    }

    /// Index of the loop with this header.
    fn loop_at(&self, header: Offset) -> Option<usize> {
        let start = |block: BlockId| self.graph.cfg.blocks.get(block).map(|block| self.offset(block.range.start));
        self.loops.all().iter().position(|one| start(one.header) == Some(header))
    }

    /// The parts, outer loops first.
    fn parts(&self, suspects: &[Suspect], copy: Option<&WovenBody>) -> Vec<PlannedPart> {
        let mut suspects = suspects.to_vec();
        let depth = |suspect: &Suspect| match suspect {
            Suspect::Loop(at) => self.loop_at(*at).and_then(|at| self.loops.all().get(at)).map_or(0, |one| one.depth),
            Suspect::CallSite(_) => usize::MAX,
        };
        suspects.sort_by_key(|suspect| (depth(suspect), *suspect));
        let points = suspects.iter().map(|suspect| {
            let points = self.points(*suspect)?;
            let all = match points {
                PartPoints::CallSite(before, after) => vec![before, after],
                PartPoints::Header(header) => vec![header],
            };
            let probes = |copy: &WovenBody| all.iter().try_for_each(|point| copy.probe(*point).map(|_| ()));
            copy.map_or(Ok(()), probes).map_err(|why| why.to_string())?;
            Ok(points)
        });
        let points: Vec<Result<PartPoints, String>> = points.collect();
        let measured: Vec<Option<usize>> = suspects
            .iter()
            .zip(&points)
            .map(|(suspect, points)| match suspect {
                Suspect::Loop(at) if points.is_ok() => self.loop_at(*at),
                Suspect::Loop(_) | Suspect::CallSite(_) => None,
            })
            .collect();
        let inside = |suspect: Suspect| -> Vec<u32> {
            let Suspect::CallSite(at) = suspect else { return Vec::new() };
            let at = self.graph.first.offset(at.0);
            let Some(block) = block_of(&self.graph.cfg, at) else { return Vec::new() };
            let around: Vec<usize> = self.loops.around(block).collect();
            let is_around = |one: &Option<usize>| one.is_some_and(|one| around.contains(&one));
            (0..).zip(&measured).filter(|(_, one)| is_around(one)).map(|(n, _)| n).collect()
        };
        let inside: Vec<Vec<u32>> = suspects.iter().map(|suspect| inside(*suspect)).collect();
        let parts = suspects.into_iter().zip(points).zip(inside);
        parts.map(|((suspect, points), inside)| PlannedPart { suspect, points, inside }).collect()
    }

    fn points(&self, suspect: Suspect) -> Result<PartPoints, String> {
        match suspect {
            Suspect::Loop(at) => {
                let one = self.loop_at(at).and_then(|at| self.loops.all().get(at));
                let one = one.ok_or_else(|| format!("no loop begins at {}", at.in_name()))?;
                let header = self.graph.point(ProbeAt::Block(one.header));
                Ok(PartPoints::Header(header.ok_or_else(|| Refusal::NoSuchPoint.to_string())?))
            }
            Suspect::CallSite(at) => {
                let sites = self.module.image.call_sites(self.function).map_err(|why| why.to_string())?;
                let site = sites.iter().find(|site| self.offset(site.at) == at);
                let site = site.ok_or_else(|| format!("no call is at {}", at.in_name()))?;
                let after = self.offset(site.at.offset(site.len.into()));
                Ok(PartPoints::CallSite(PointId::CallBefore(at), PointId::CallAfter(after)))
            }
        }
    }
}
