//! The control flow of one function: basic blocks, edges and points, computed when somebody asks.

use std::collections::BTreeMap;
use std::ops::Range;

use iced_x86::{Code, FlowControl, Instruction, Mnemonic, OpKind};
use ingraft_model::{PointKind, Refusal, Svma, SvmaRange};

use crate::function::Function;
use crate::image::Image;
use crate::jump_table::{Resolved, Resolver, constant_address};
use crate::sweep;

/// A stretch of instructions that is entered only at its first and left only at its last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    /// Its bytes.
    pub range: SvmaRange,
    /// How many instructions it has.
    pub instructions: u32,
    /// Whether exceptions land at its first byte.
    pub landing_pad: bool,
}

/// How control goes from a block to another or out of the function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum EdgeKind {
    /// A direct branch within the function.
    Taken,
    /// On to the next instruction.
    FallThrough,
    /// Back from a call to the instruction behind it.
    CallFallThrough,
    /// One target of an indirect jump through a table.
    JumpTable,
    /// A jump, direct or through a pointer, to another function.
    TailJump,
    /// A return.
    Return,
}

/// Where an edge leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum EdgeTarget {
    /// To a block of the function, by its index.
    Block(usize),
    /// To an address outside of the function.
    Outside(Svma),
    /// To where a return address or pointer says.
    Dynamic,
}

/// A transfer of control at the end of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Edge {
    /// Index of the block that it leaves.
    pub from: usize,
    /// Where it leads.
    pub to: EdgeTarget,
    /// How.
    pub kind: EdgeKind,
}

/// A place of a function where snippets could be woven.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Point {
    /// What kind of place.
    pub kind: PointKind,
    /// Its instruction.
    pub at: Svma,
    /// Why it cannot be woven; `None` if it can.
    pub refusal: Option<Refusal>,
}

/// The control flow of one function.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FunctionCode {
    /// Blocks, sorted by address. Bytes that nothing reaches belong to none.
    pub blocks: Vec<Block>,
    /// Edges, sorted by the block that they leave.
    pub edges: Vec<Edge>,
    /// Entry, exits and calls, sorted by address.
    pub points: Vec<Point>,
    /// Indirect jumps whose targets are not all known.
    pub unresolved: Vec<Svma>,
}

impl FunctionCode {
    /// Its points of one kind.
    pub fn points_of(&self, kind: PointKind) -> impl Iterator<Item = &Point> {
        self.points.iter().filter(move |p| p.kind == kind)
    }
}

struct Builder<'a> {
    image: &'a Image,
    function: &'a Function,
    code: Vec<Instruction>,
    /// Head and parts.
    inside: Vec<Range<u64>>,
    /// Index of the block that begins at an address.
    starts: BTreeMap<u64, usize>,
    /// Whether the address of a place inside the function is taken; not known before somebody asks.
    takes_labels: Option<bool>,
    out: FunctionCode,
}

pub(crate) fn analyse(image: &Image, function: &Function) -> FunctionCode {
    let head = function.range();
    let inside: Vec<Range<u64>> = std::iter::once(&head).chain(function.parts()).map(|r| r.start.0..r.end.0).collect();
    let mut code = Vec::new();
    for range in &inside {
        code.extend(sweep::instructions(image.elf(), range.start, range.end));
    }
    code.sort_by_key(|i| i.ip());
    code.dedup_by_key(|i| i.ip());
    let mut builder = Builder {
        image,
        function,
        code,
        inside,
        starts: BTreeMap::new(),
        takes_labels: None,
        out: FunctionCode::default(),
    };
    builder.blocks();
    builder.edges();
    builder.finish()
}

impl Builder<'_> {
    fn index_of(&self, at: u64) -> Option<usize> {
        self.code.binary_search_by_key(&at, |i| i.ip()).ok()
    }

    /// Blocks begin at the entry, where control arrives, and behind conditional branches; they end with a transfer or in front of
    /// the next block.
    fn blocks(&mut self) {
        let mut behind_branch = false;
        for i in &self.code {
            if i.ip() == self.function.start || behind_branch || self.image.arrivals().get(i.ip()) {
                self.starts.insert(i.ip(), 0);
            }
            behind_branch = i.flow_control() == FlowControl::ConditionalBranch;
        }
        let starts: Vec<u64> = self.starts.keys().copied().collect();
        for start in starts {
            let (mut end, mut instructions) = (start, 0);
            while let Some(index) = self.index_of(end) {
                let i = &self.code[index];
                end = i.next_ip();
                instructions += 1;
                if ends_block(i) || self.starts.contains_key(&end) {
                    break;
                }
            }
            self.starts.insert(start, self.out.blocks.len());
            let landing_pad = self.image.is_landing_pad(start);
            self.out.blocks.push(Block { range: Svma(start)..Svma(end), instructions, landing_pad });
        }
    }

    fn edges(&mut self) {
        let mut budget = 16 * self.code.len() + 256;
        for from in 0..self.out.blocks.len() {
            let end = self.out.blocks[from].range.end.0;
            let Some(last) = self.last_instruction(from) else { continue };
            let i = self.code[last];
            let next = self.starts.get(&end).map(|b| EdgeTarget::Block(*b));
            let mut edge = |to, kind| self.out.edges.push(Edge { from, to, kind });
            match i.flow_control() {
                FlowControl::ConditionalBranch | FlowControl::UnconditionalBranch | FlowControl::XbeginXabortXend
                    if i.op0_kind() == OpKind::NearBranch64 =>
                {
                    let target = i.near_branch_target();
                    match self.starts.get(&target) {
                        Some(block) => edge(EdgeTarget::Block(*block), EdgeKind::Taken),
                        None => {
                            edge(EdgeTarget::Outside(Svma(target)), EdgeKind::TailJump);
                            self.point(PointKind::Exit, &i);
                        }
                    }
                    if i.flow_control() != FlowControl::UnconditionalBranch
                        && let Some(next) = next
                    {
                        self.out.edges.push(Edge { from, to: next, kind: EdgeKind::FallThrough });
                    }
                }
                FlowControl::Call | FlowControl::IndirectCall if is_call(&i) => {
                    if let Some(next) = next {
                        edge(next, EdgeKind::CallFallThrough);
                    }
                    self.point(PointKind::Call, &i);
                }
                FlowControl::IndirectBranch => self.indirect(from, last, &mut budget),
                FlowControl::Return => {
                    edge(EdgeTarget::Dynamic, EdgeKind::Return);
                    self.point(PointKind::Exit, &i);
                }
                FlowControl::Exception | FlowControl::UnconditionalBranch => {}
                _ if matches!(i.code(), Code::Int3 | Code::Hlt) => {}
                _ => {
                    if let Some(next) = next {
                        edge(next, EdgeKind::FallThrough);
                    }
                }
            }
        }
    }

    fn last_instruction(&self, block: usize) -> Option<usize> {
        let range = &self.out.blocks[block].range;
        let after = self.code.partition_point(|i| i.ip() < range.end.0);
        (0..after).rev().take(16).find(|i| self.code[*i].next_ip() == range.end.0)
    }

    fn indirect(&mut self, from: usize, jump: usize, budget: &mut usize) {
        let i = self.code[jump];
        let (image, pointers) = (self.image.elf(), self.image.pointers());
        let resolver = Resolver { image, pointers, code: &self.code, inside: &self.inside };
        let resolved = resolver.resolve(jump, budget);
        match resolved {
            Resolved::Table(mut targets) => {
                targets.sort_unstable();
                targets.dedup();
                for target in targets {
                    let block = self.starts.get(&target).map(|b| EdgeTarget::Block(*b));
                    let to = block.unwrap_or(EdgeTarget::Outside(Svma(target)));
                    self.out.edges.push(Edge { from, to, kind: EdgeKind::JumpTable });
                }
            }
            // Without a label whose address is taken, a pointer can only lead to another function.
            Resolved::Pointer if !self.takes_addresses_of_labels() => {
                self.out.edges.push(Edge { from, to: EdgeTarget::Dynamic, kind: EdgeKind::TailJump });
                self.point(PointKind::Exit, &i);
            }
            Resolved::Pointer | Resolved::Distances(_) => self.out.unresolved.push(Svma(i.ip())),
        }
    }

    fn takes_addresses_of_labels(&mut self) -> bool {
        if let Some(known) = self.takes_labels {
            return known;
        }
        let inside = |at: u64| at != self.function.start && self.function.contains(Svma(at));
        let made = |i: &Instruction| i.code() == Code::Lea_r64_m && constant_address(i).is_some_and(inside);
        let takes = self.image.pointers().entries.iter().any(|e| inside(e.1)) || self.code.iter().any(made);
        *self.takes_labels.insert(takes)
    }

    fn point(&mut self, kind: PointKind, i: &Instruction) {
        let words = if kind == PointKind::Call { "call" } else { "exit" };
        let refusal = Some(Refusal::NotYet { kind: words });
        self.out.points.push(Point { kind, at: Svma(i.ip()), refusal });
    }

    fn finish(mut self) -> FunctionCode {
        let refusal = self.image.entry_site(self.function).err();
        self.out.points.push(Point { kind: PointKind::Entry, at: self.function.start(), refusal });
        self.out.points.sort_by_key(|p| (p.at, p.kind));
        self.out.points.dedup_by_key(|p| (p.at, p.kind));
        self.out.edges.sort_unstable();
        self.out.edges.dedup();
        self.out
    }
}

fn is_call(i: &Instruction) -> bool {
    i.mnemonic() == Mnemonic::Call
}

fn ends_block(i: &Instruction) -> bool {
    match i.flow_control() {
        FlowControl::Next => i.code() == Code::Hlt,
        FlowControl::Call | FlowControl::IndirectCall => is_call(i),
        FlowControl::Interrupt => i.code() == Code::Int3,
        _ => true,
    }
}
