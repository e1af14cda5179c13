//! The control flow of one function: basic blocks, edges and points, computed when somebody asks.

use std::collections::BTreeMap;

use iced_x86::{Code, FlowControl, Instruction, Mnemonic, OpKind};
use ingraft_model::{PointKind, Svma};

use crate::flow::body::{Body, Indirect};
use crate::flow::code::{Block, Edge, EdgeKind, EdgeTarget, FunctionCode, Point};
use crate::functions::function::Function;
use crate::image::Image;

struct Builder<'a> {
    body: Body<'a>,
    /// Index of the block that begins at an address.
    starts: BTreeMap<u64, usize>,
    out: FunctionCode,
}

/// The blocks, edges and points of a function; no point has a refusal yet.
pub(crate) fn analyse(image: &Image, function: &Function) -> FunctionCode {
    let body = Body::new(image, function);
    let mut builder = Builder { body, starts: BTreeMap::new(), out: FunctionCode::default() };
    builder.blocks();
    builder.edges();
    builder.finish()
}

impl Builder<'_> {
    /// Blocks begin at the entry, where control arrives, and behind conditional branches; they end with a transfer or in front of
    /// the next block.
    fn blocks(&mut self) {
        let mut behind_branch = false;
        for i in &self.body.code {
            if i.ip() == self.body.function.start || behind_branch || self.body.image.arrivals().get(i.ip()) {
                self.starts.insert(i.ip(), 0);
            }
            behind_branch = i.flow_control() == FlowControl::ConditionalBranch;
        }
        let starts: Vec<u64> = self.starts.keys().copied().collect();
        for start in starts {
            let (mut end, mut instructions) = (start, 0);
            while let Some(index) = self.body.index_of(end) {
                let i = &self.body.code[index];
                end = i.next_ip();
                instructions += 1;
                if ends_block(i) || self.starts.contains_key(&end) {
                    break;
                }
            }
            self.starts.insert(start, self.out.blocks.len());
            let landing_pad = self.body.image.is_landing_pad(start);
            self.out.blocks.push(Block { range: Svma(start)..Svma(end), instructions, landing_pad });
        }
    }

    fn edges(&mut self) {
        let mut budget = self.body.budget();
        for from in 0..self.out.blocks.len() {
            let end = self.out.blocks[from].range.end.0;
            let Some(last) = self.last_instruction(from) else { continue };
            let i = self.body.code[last];
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
                    self.point(PointKind::CallBefore, &i);
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
        let after = self.body.code.partition_point(|i| i.ip() < range.end.0);
        (0..after).rev().take(16).find(|i| self.body.code[*i].next_ip() == range.end.0)
    }

    fn indirect(&mut self, from: usize, jump: usize, budget: &mut usize) {
        let i = self.body.code[jump];
        match self.body.indirect(jump, budget) {
            Indirect::Table(targets) => {
                for target in targets.places {
                    let block = self.starts.get(&target).map(|b| EdgeTarget::Block(*b));
                    let to = block.unwrap_or(EdgeTarget::Outside(Svma(target)));
                    self.out.edges.push(Edge { from, to, kind: EdgeKind::JumpTable });
                }
            }
            Indirect::Leaves => {
                self.out.edges.push(Edge { from, to: EdgeTarget::Dynamic, kind: EdgeKind::TailJump });
                self.point(PointKind::Exit, &i);
            }
            Indirect::Unknown => self.out.unresolved.push(Svma(i.ip())),
        }
    }

    fn point(&mut self, kind: PointKind, i: &Instruction) {
        self.out.points.push(Point { kind, at: Svma(i.ip()), refusal: None });
    }

    fn finish(mut self) -> FunctionCode {
        self.out.points.push(Point { kind: PointKind::Entry, at: self.body.function.start(), refusal: None });
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
