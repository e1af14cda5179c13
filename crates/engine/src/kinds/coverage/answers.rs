//! Answers of the probes of a function about its blocks and edges, by the values of their counters.

use ingraft_model::{Cfg, Key, Refusal};
use ingraft_profile::{Coverage, Inside, ProbeAt};
use ingraft_report::FunctionProfile;
use rustc_hash::FxHashSet;

use crate::kinds::graph::FunctionGraph;

/// Answers of the probes of a function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProbeAnswers {
    /// For each probe whether control has come there; `None` if that is not known.
    came: Vec<Option<bool>>,
    /// Reason why a probe could not be inserted; `None` if all were.
    refused: Option<String>,
    /// Reason why the answers of inserted probes are not known, if some are not.
    gone: &'static str,
}

impl ProbeAnswers {
    /// The answers, if the values of the probes' counters are these. `came_back` tells whether the library was unloaded with the probes, and
    /// loaded again without them.
    pub fn new(probes: &[Result<u64, Refusal>], came_back: bool, values: &[u64]) -> Self {
        let refused = probes.iter().find_map(|probe| probe.as_ref().err()).map(ToString::to_string);
        let gone = if came_back { "its library was unloaded and loaded again" } else { TAKEN_OUT };
        ProbeAnswers { came: came(probes, came_back, values), refused, gone }
    }

    /// The answers of this number of probes that were taken out before they were asked.
    pub fn without_code(probes: usize) -> Self {
        ProbeAnswers { came: vec![None; probes], refused: None, gone: TAKEN_OUT }
    }
}

const TAKEN_OUT: &str = "its probes were taken out before the coverage was read";

/// The answers of probes by the values of their counters: for each one whether control has come there; `None` if the probe could not be
/// inserted, or if control may have come there after the library came back without the probe.
pub fn came(probes: &[Result<u64, Refusal>], came_back: bool, values: &[u64]) -> Vec<Option<bool>> {
    let values = values.iter().copied().chain(std::iter::repeat(0));
    let came = |value| (value > 0 || !came_back).then_some(value > 0);
    probes.iter().zip(values).map(|(probe, value)| probe.as_ref().ok().and_then(|_| came(value))).collect()
}

/// Whether a probe that is still woven has counted. `left` has the ids of the snippets that are woven.
pub fn has_news(came: &[Option<bool>], probes: &[Result<u64, Refusal>], left: &FxHashSet<u64>) -> bool {
    let is_new = |(came, probe): (&Option<bool>, &Result<u64, Refusal>)| {
        *came == Some(true) && probe.as_ref().is_ok_and(|id| left.contains(id))
    };
    came.iter().zip(probes).any(is_new)
}

/// Indexes of the probes whose answers are known to be yes.
pub fn settled(probes: &[ProbeAt], coverage: &Coverage) -> impl Iterator<Item = usize> {
    let ran = |place: &ProbeAt| match place {
        ProbeAt::Block(block) => coverage.blocks.get(*block) == Some(&Some(true)),
        ProbeAt::Edge(edge) => coverage.edges.get(*edge) == Some(&Some(true)),
    };
    probes.iter().enumerate().filter(move |(_, place)| ran(place)).map(|(n, _)| n)
}

/// Coverage of a function's blocks and edges, and the reason why something is not known; `None` if everything is.
pub fn covered(answers: &ProbeAnswers, cfg: &Cfg, probes: &[ProbeAt], inside: Inside) -> (Coverage, Option<String>) {
    let coverage = Coverage::told(cfg, probes, &answers.came).completed(cfg, inside);
    let blocks = coverage.blocks.iter().filter(|known| known.is_none()).count();
    let refused = |why: &String| format!("{blocks} of {} blocks are not known: {why}", cfg.blocks.len());
    let why = (blocks > 0).then(|| answers.refused.as_ref().map_or_else(|| answers.gone.to_owned(), refused));
    (coverage, why)
}

/// The coverage of a function for a file. `module` is the index of its module in the saved profile.
pub fn profile(graph: &FunctionGraph, coverage: &Coverage, module: usize, inexact: Option<String>) -> FunctionProfile {
    let ran = |known: Option<&Option<bool>>| known.copied().flatten().map(u64::from);
    let block = |n| ran(coverage.blocks.get(n)).unwrap_or_default();
    let edge = |n| ran(coverage.edges.get(n));
    let unknown = coverage.blocks.entries().filter(|(_, known)| known.is_none());
    FunctionProfile {
        calls: graph.cfg.entry.map_or(0, block),
        unknown: unknown.map(|(n, _)| n.index()).collect(),
        inexact,
        ..graph.profile(module, &block, &edge)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ingraft_model::{Block, BlockId, Edge, EdgeKind, EdgeTarget, Svma, WayIn, WayInReason};

    /// Two probes that were inserted as snippets 10 and 12, and one between them that was refused.
    fn probes() -> [Result<u64, Refusal>; 3] {
        [Ok(10), Err(Refusal::NoSuchPoint), Ok(12)]
    }

    /// A block that leads to one of two others.
    fn cfg() -> Cfg {
        let block = |n: u64| Block { range: Svma(n * 8)..Svma(n * 8 + 8), instructions: 2 };
        let edge = |to, kind| Edge { from: BlockId(0), to: EdgeTarget::Block(BlockId(to)), kind };
        Cfg {
            blocks: (0..3).map(block).collect(),
            edges: vec![edge(1, EdgeKind::FallThrough), edge(2, EdgeKind::Taken)].into(),
            entry: Some(BlockId(0)),
            ways_in: vec![WayIn { at: Svma(0), reason: WayInReason::Entry }],
            unresolved: Vec::new(),
            ways_in_proven: Ok(()),
            ways_out_proven: Ok(()),
        }
    }

    const COUNTED: [ProbeAt; 3] = [ProbeAt::Block(BlockId(0)), ProbeAt::Block(BlockId(1)), ProbeAt::Block(BlockId(2))];
    const NOBODY: Inside = Inside { begin: false, end: false };

    #[test]
    fn a_probe_that_was_refused_tells_nothing() {
        assert_eq!(came(&probes(), false, &[3, 1, 0]), [Some(true), None, Some(false)]);
        assert_eq!(came(&probes(), false, &[]), [Some(false), None, Some(false)]);
    }

    #[test]
    fn a_probe_that_is_gone_tells_only_what_it_has_counted() {
        assert_eq!(came(&probes(), true, &[3, 1, 0]), [Some(true), None, None]);
    }

    #[test]
    fn a_probe_has_news_until_it_is_taken_out() {
        let left = |ids: &[u64]| ids.iter().copied().collect::<FxHashSet<u64>>();
        let came = [Some(true), None, Some(false)];
        assert!(has_news(&came, &probes(), &left(&[10, 12])));
        assert!(!has_news(&came, &probes(), &left(&[12])));
        assert!(!has_news(&[Some(false); 3], &probes(), &left(&[10, 12])));
    }

    #[test]
    fn a_probe_goes_when_it_is_known_that_its_place_has_run() {
        let coverage = Coverage::told(&cfg(), &COUNTED, &[None, Some(true), Some(false)]);
        let coverage = coverage.with_earlier(&cfg(), Inside { begin: false, end: true });
        // Whoever has come to the second block has passed the first one.
        assert_eq!(settled(&COUNTED, &coverage).collect::<Vec<_>>(), [0, 1]);
    }

    #[test]
    fn what_is_not_known_has_a_reason() {
        let why = |answers: &ProbeAnswers| covered(answers, &cfg(), &COUNTED, NOBODY).1;
        let all = [Ok(10), Ok(11), Ok(12)];
        assert_eq!(why(&ProbeAnswers::new(&all, false, &[2, 2, 0])), None);
        let refused = ProbeAnswers::new(&probes(), false, &[0, 0, 0]);
        assert_eq!(refused.refused, Some(Refusal::NoSuchPoint.to_string()));
        assert_eq!(why(&ProbeAnswers::without_code(3)).as_deref(), Some(TAKEN_OUT));
        let back = why(&ProbeAnswers::new(&all, true, &[0, 0, 0]));
        assert_eq!(back.as_deref(), Some("its library was unloaded and loaded again"));
    }
}
