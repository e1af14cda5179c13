//! Parts of functions: blocks, edges and loops, their names as resources, and the parts that code is for.

use std::fmt;
use std::sync::Arc;

use crate::addr::{Offset, Svma};
use crate::cfg::{Cfg, Edge, EdgeTarget};
use crate::index::BlockId;
use crate::loops::{Loop, Loops};
use crate::point_id::{self, PointId};
use crate::refusal::Refusal;
use crate::resource::Focus;

/// Name of a part as a resource of its function. Offsets are those of the first bytes of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum PartName {
    /// `#0x1a`: the basic block that begins at this offset.
    Block(Offset),
    /// `#0x1a->0x40`: all edges from one block to another one, of every kind.
    Edge {
        /// Offset of the block that the edges leave.
        from: Offset,
        /// Offset of the block to which the edges lead.
        to: Offset,
    },
    /// `#loop@0x1a`: the loop whose header begins at this offset. A header has one loop: all edges from inside back to it belong to that loop.
    Loop(Offset),
}

/// Text between the offsets in the name of an edge.
const ARROW: &str = "->";

/// Text before the offset in the name of a loop, after the `#`.
const LOOP: &str = "loop@";

impl PartName {
    /// Reads a name; `None` if the text names no part.
    pub fn parse(name: &str) -> Option<PartName> {
        let text = name.strip_prefix('#')?;
        if let Some(header) = text.strip_prefix(LOOP) {
            return offset(header).map(PartName::Loop);
        }
        match text.split_once(ARROW) {
            Some((from, to)) => Some(PartName::Edge { from: offset(from)?, to: offset(to)? }),
            None => offset(text).map(PartName::Block),
        }
    }

    /// The part that a focus names: `#0x1a` of `/Code/MODULE/FUNCTION/#0x1a`; `None` if it names none.
    pub fn of(focus: &Focus) -> Option<PartName> {
        PartName::parse(focus.part("Code")?.names.get(2)?)
    }

    /// The kind of the part in words, with an article.
    pub fn words(self) -> &'static str {
        match self {
            PartName::Block(_) => "a block",
            PartName::Edge { .. } => "an edge",
            PartName::Loop(_) => "a loop",
        }
    }
}

/// Reads an offset in the form `0x1a` or `-0x1a`.
fn offset(text: &str) -> Option<Offset> {
    let (negative, text) = text.strip_prefix('-').map_or((false, text), |rest| (true, rest));
    let digits = text.strip_prefix("0x").filter(|digits| digits.bytes().all(|b| b.is_ascii_hexdigit()))?;
    let distance = i128::from(u64::from_str_radix(digits, 16).ok()?);
    i64::try_from(if negative { -distance } else { distance }).ok().map(Offset)
}

impl Offset {
    /// The offset as names of parts show it: in hexadecimal, with a sign only if it is negative.
    pub fn in_name(self) -> String {
        let sign = if self.0 < 0 { "-" } else { "" };
        format!("{sign}{:#x}", self.0.unsigned_abs())
    }
}

impl fmt::Display for PartName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PartName::Block(at) => write!(f, "#{}", at.in_name()),
            PartName::Edge { from, to } => write!(f, "#{}{ARROW}{}", from.in_name(), to.in_name()),
            PartName::Loop(header) => write!(f, "#{LOOP}{}", header.in_name()),
        }
    }
}

impl PointId {
    /// Name of a block or an edge as a part of its function. Edges of several kinds between the same blocks share a name.
    pub fn name(&self) -> Option<PartName> {
        match self {
            PointId::Block(at) => Some(PartName::Block(*at)),
            PointId::Edge { from, to, .. } => Some(PartName::Edge { from: *from, to: *to }),
            PointId::Entry | PointId::Exit(_) | PointId::CallBefore(_) | PointId::CallAfter(_) => None,
        }
    }
}

/// The parts of a function that code is for, among its points of one kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Parts {
    /// All points of the kind.
    #[default]
    All,
    /// One point.
    One(PointId),
    /// These points, sorted.
    These(Arc<[PointId]>),
    /// Points that do not exist, for this reason. The code is refused in the function.
    Missing(Arc<Refusal>),
}

impl Parts {
    /// Returns the parts that are these points, which are sorted. An error is the reason why the points do not exist.
    pub fn of_points(points: Result<Arc<[PointId]>, Refusal>) -> Parts {
        match points {
            Ok(points) => Parts::These(points),
            Err(why) => Parts::Missing(Arc::new(why)),
        }
    }
}

/// A loop of a function, by the edges over which control enters, repeats and leaves it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoopEdges {
    /// Offset of the loop's header.
    pub header: Offset,
    /// Edges from outside into the loop. If the loop has several entries, edges to all of them. An error if control also enters the loop
    /// other than along an edge.
    pub enter: Result<Arc<[PointId]>, Refusal>,
    /// Edges from inside out of the loop. An error if control also leaves the loop and the function at once.
    pub exit: Result<Arc<[PointId]>, Refusal>,
    /// Edges from inside back to the header.
    pub again: Arc<[PointId]>,
}

impl LoopEdges {
    /// Returns the loops of a control-flow graph, sorted by header. The function begins at `first`.
    pub fn all(cfg: &Cfg, first: Svma) -> Vec<LoopEdges> {
        let mut found: Vec<LoopEdges> =
            Loops::of(cfg).all().iter().filter_map(|one| LoopEdges::of(cfg, one, first)).collect();
        found.sort_unstable_by_key(|one| one.header);
        found
    }

    fn of(cfg: &Cfg, one: &Loop<BlockId>, first: Svma) -> Option<LoopEdges> {
        let offset = |block: BlockId| point_id::offset(cfg, block, first);
        let inside = |block: BlockId| one.body.binary_search(&block).is_ok();
        let chosen = |is_it: &dyn Fn(BlockId, BlockId) -> bool| -> Arc<[PointId]> {
            let its = |edge: &&Edge| matches!(edge.to, EdgeTarget::Block(to) if is_it(edge.from, to));
            let own = cfg.edges.iter().filter(its);
            point_id::sorted(own.filter_map(|edge| PointId::of_edge(cfg, edge, first))).into()
        };
        let entered = cfg.roots().into_iter().find(|root| inside(*root)).and_then(offset);
        let left = one
            .body
            .iter()
            .find(|block| cfg.edges_from(**block).any(|(_, edge)| !matches!(edge.to, EdgeTarget::Block(_))));
        let left = left.and_then(|block| offset(*block));
        let exits = || match left {
            Some(offset) => Err(Refusal::LeavesLoop { offset }),
            None => cfg.ways_out_proven.clone(),
        };
        Some(LoopEdges {
            header: offset(one.header)?,
            enter: match entered {
                Some(offset) => Err(Refusal::EntersLoop { offset }),
                None => Ok(chosen(&|from, to| !inside(from) && inside(to))),
            },
            exit: exits().map(|()| chosen(&|from, to| inside(from) && !inside(to))),
            again: chosen(&|from, to| inside(from) && to == one.header),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cfg::{Block, EdgeKind, WayIn, WayInReason};
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn names_are_read_as_they_are_written(kind in 0..3u8, from: i64, to: i64) {
            let (from, to) = (Offset(from), Offset(to));
            let name = match kind {
                0 => PartName::Block(from),
                1 => PartName::Edge { from, to },
                _ => PartName::Loop(from),
            };
            prop_assert_eq!(PartName::parse(&name.to_string()), Some(name));
        }

        #[test]
        fn any_text_is_read_or_left(text in "#?(loop@)?-?(0x)?[0-9a-g]{0,18}(->)?-?(0x)?[0-9a-g]{0,3}") {
            if let Some(name) = PartName::parse(&text) {
                prop_assert_eq!(PartName::parse(&name.to_string()), Some(name));
            }
        }
    }

    #[test]
    fn names_have_one_form() {
        let edge = |from, to| PartName::Edge { from: Offset(from), to: Offset(to) };
        for (name, text) in [
            (PartName::Block(Offset(0x1a)), "#0x1a"),
            (PartName::Block(Offset(-8)), "#-0x8"),
            (PartName::Block(Offset(i64::MIN)), "#-0x8000000000000000"),
            (edge(0x1a, 0x40), "#0x1a->0x40"),
            (edge(-8, -0x10), "#-0x8->-0x10"),
            (PartName::Loop(Offset(0x1a)), "#loop@0x1a"),
            (PartName::Loop(Offset(-1)), "#loop@-0x1"),
        ] {
            assert_eq!((name.to_string().as_str(), PartName::parse(text)), (text, Some(name)));
        }
        for text in [
            "",
            "#",
            "0x1a",
            "#1a",
            "#0x",
            "#0x+1",
            "#--0x1",
            "##0x1",
            "#0xg",
            "#0x8000000000000000",
            "#0x10000000000000000",
            "#0x1->",
            "#->0x1",
            "#0x1->0x2->0x3",
            "#0x1-0x2",
            "#0x1->#0x2",
            "#loop",
            "#loop@",
            "#loop@1a",
            "#loop@0x1->0x2",
            "@0x1a",
        ] {
            assert_eq!(PartName::parse(text), None, "{text}");
        }
    }

    /// A graph with blocks of 0x10 bytes from 0x1000 on.
    fn graph(edges: &[(u32, EdgeTarget, EdgeKind)]) -> Cfg {
        let blocks = 1 + edges.iter().map(|(from, ..)| *from).max().unwrap_or_default();
        let start = |n: u32| Svma(0x1000 + 0x10 * u64::from(n));
        Cfg {
            blocks: (0..blocks).map(|n| Block { range: start(n)..start(n + 1), instructions: 1 }).collect(),
            edges: edges.iter().map(|(from, to, kind)| Edge { from: BlockId(*from), to: *to, kind: *kind }).collect(),
            entry: Some(BlockId(0)),
            ways_in: vec![WayIn { at: start(0), reason: WayInReason::Entry }],
            unresolved: Vec::new(),
            ways_in_proven: Ok(()),
            ways_out_proven: Ok(()),
        }
    }

    fn names(edges: &[PointId]) -> Vec<String> {
        edges.iter().filter_map(PointId::name).map(|name| name.to_string()).collect()
    }

    use EdgeKind::{FallThrough, JumpTable, Return, TailJump, Taken};
    use EdgeTarget::{Dynamic, Outside};

    fn to(block: u32) -> EdgeTarget {
        EdgeTarget::Block(BlockId(block))
    }

    #[test]
    fn a_loop_has_edges_in_around_and_out() {
        // 0 -> 1 -> 2 -> 1, 2 -> 3
        let edges = [(0, to(1), FallThrough), (1, to(2), FallThrough), (2, to(1), Taken), (2, to(3), FallThrough)];
        let cfg = graph(&[&edges[..], &[(3, Dynamic, Return)]].concat());
        let [one] = &LoopEdges::all(&cfg, Svma(0x1000))[..] else { panic!("one loop") };
        assert_eq!(one.header, Offset(0x10));
        assert_eq!(names(one.enter.as_ref().expect("edges")), ["#0x0->0x10"]);
        assert_eq!(names(one.exit.as_ref().expect("edges")), ["#0x20->0x30"]);
        assert_eq!(names(&one.again), ["#0x20->0x10"]);
        let all = names(&PointId::of_edges(&cfg, Svma(0x1010)));
        assert_eq!((all.len(), all[0].as_str()), (4, "#-0x10->0x0"));
    }

    #[test]
    fn edges_to_every_entry_of_a_loop_enter_it() {
        // 0 -> 1, 0 -> 2, 1 <-> 2, 1 -> 3
        let edges = [(0, to(1), FallThrough), (0, to(2), Taken), (1, to(2), FallThrough), (1, to(3), Taken)];
        let cfg = graph(&[&edges[..], &[(2, to(1), Taken), (3, Dynamic, Return)]].concat());
        let [one] = &LoopEdges::all(&cfg, Svma(0x1000))[..] else { panic!("one loop") };
        assert_eq!(names(one.enter.as_ref().expect("edges")), ["#0x0->0x10", "#0x0->0x20"]);
        assert_eq!(names(one.exit.as_ref().expect("edges")), ["#0x10->0x30"]);
    }

    #[test]
    fn a_loop_at_the_entry_and_one_that_leaves_the_function_say_so() {
        let cfg = graph(&[(0, to(0), Taken), (0, to(1), FallThrough), (1, Dynamic, Return)]);
        let [one] = &LoopEdges::all(&cfg, Svma(0x1000))[..] else { panic!("one loop") };
        assert_eq!(one.enter, Err(Refusal::EntersLoop { offset: Offset(0) }));
        assert_eq!(names(one.exit.as_ref().expect("edges")), ["#0x0->0x10"]);
        let edges = [(0, to(1), JumpTable), (1, Outside(Svma(0x9000)), TailJump), (1, to(1), FallThrough)];
        let cfg = graph(&edges);
        let [one] = &LoopEdges::all(&cfg, Svma(0x1000))[..] else { panic!("one loop") };
        assert_eq!(one.exit, Err(Refusal::LeavesLoop { offset: Offset(0x10) }));
        assert_eq!(names(one.enter.as_ref().expect("edges")), ["#0x0->0x10"]);
    }
}
