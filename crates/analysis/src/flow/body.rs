//! The instructions of one function.

use std::ops::Range;

use iced_x86::{Instruction, OpKind};

use crate::file::go::Suspensions;
use crate::functions::function::Function;
use crate::functions::sweep;
use crate::image::AnalysedImage;

/// Length in bytes of the longest instruction.
pub(crate) const INSTRUCTION_MAX: u64 = 15;

/// Head and parts of a function, decoded.
pub(crate) struct DecodedFunction<'a> {
    pub image: &'a AnalysedImage,
    pub function: &'a Function,
    /// The instructions, sorted by address, including those that control does not reach.
    pub code: Vec<Instruction>,
    /// Address ranges of the head and the parts.
    pub inside: Vec<Range<u64>>,
    /// For each range of `inside`, the addresses at which the runtime may suspend a call; empty if no runtime does.
    suspensions: Vec<Suspensions>,
}

impl<'a> DecodedFunction<'a> {
    pub fn new(image: &'a AnalysedImage, function: &'a Function) -> Self {
        let head = function.range();
        let inside: Vec<Range<u64>> =
            std::iter::once(&head).chain(function.parts()).map(|r| r.start.0..r.end.0).collect();
        let mut code = Vec::new();
        for range in &inside {
            code.extend(sweep::instructions(image.elf(), range.start, range.end));
        }
        if inside.len() > 1 {
            code.sort_by_key(|i| i.ip());
            code.dedup_by_key(|i| i.ip());
        }
        let mut suspensions: Vec<_> = inside.iter().map(|range| image.suspensions(range)).collect();
        if suspensions.iter().all(|of| *of == Suspensions::NOWHERE) {
            suspensions.clear();
        }
        DecodedFunction { image, function, code, inside, suspensions }
    }

    /// Whether the language's runtime may continue at an address because it has suspended a call there.
    pub fn is_resumed(&self, at: u64) -> bool {
        let inside = self.inside.iter().zip(&self.suspensions).find(|(range, _)| range.contains(&at));
        inside.is_some_and(|(_, suspensions)| suspensions.at(at)) && self.index_of(at).is_some()
    }

    /// Whether the language's runtime suspends calls anywhere in the function.
    pub fn is_suspended_somewhere(&self) -> bool {
        !self.suspensions.is_empty()
    }

    /// Whether an address lies in the function.
    pub fn contains(&self, at: u64) -> bool {
        self.inside.iter().any(|range| range.contains(&at))
    }

    /// Index of the instruction at an address.
    pub fn index_of(&self, at: u64) -> Option<usize> {
        self.code.binary_search_by_key(&at, |i| i.ip()).ok()
    }

    /// Whether an address lies inside of an instruction that begins before it. Control may reach the bytes from there on in two ways: glibc jumps
    /// over the prefix `lock` in programs with one thread. A springboard there would follow that prefix.
    pub fn is_within_other(&self, at: u64) -> bool {
        let before = self.code.partition_point(|i| i.ip() < at);
        let near = self.code.get(..before).unwrap_or_default().iter().rev();
        near.take_while(|i| i.ip() + INSTRUCTION_MAX > at).any(|i| i.next_ip() > at)
    }

    /// Limit of the work for one function, in entries of jump tables and bytes of other functions: honest functions have more bytes than
    /// distinct cases.
    pub fn budget(&self) -> usize {
        16 * self.code.len() + 4096
    }
}

/// Whether an instruction is a branch that contains its target.
pub(crate) fn is_direct_branch(i: &Instruction) -> bool {
    i.op0_kind() == OpKind::NearBranch64
}
