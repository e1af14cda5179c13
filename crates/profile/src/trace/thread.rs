//! Regeneration of what a thread has done, from the tokens of all traced functions.

use ingraft_model::BlockId;
use ingraft_model::token::{STACK_BITS, Token};

use crate::map::Vertex;
use crate::trace::function::TracedFunction;
use crate::trace::replay::{Replay, TraceDefect, TraceEntry as Way};

/// A step of a thread. The depth of an activation is the number of known activations below it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TraceStep {
    /// An activation of a function begins.
    Enter {
        /// Number of the function in the trace.
        function: u32,
        /// Depth of the activation.
        depth: u32,
    },
    /// Control arrives at a block.
    Block {
        /// Number of the function in the trace.
        function: u32,
        /// The block.
        block: BlockId,
        /// Depth of the activation.
        depth: u32,
    },
    /// An activation returns, or jumps to another function.
    Leave {
        /// Number of the function in the trace.
        function: u32,
        /// Depth of the activation.
        depth: u32,
    },
    /// The condition of the trace holds.
    Condition,
    /// Steps are missing. The activations before and after are not related.
    Gap,
}

/// Parts of an execution that its regenerated sequence does not tell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unknown {
    /// Number of tokens of activations whose beginning is not in the trace.
    pub skipped: u64,
    /// Number of gaps: tokens that the thread could not write.
    pub gaps: u64,
    /// Number of times at which the activations in progress were forgotten, because nothing told which of them an exception, a longjmp or a
    /// switch of stacks had left.
    pub lost: u64,
    /// Number of tokens that no execution of the known activations can have written. Each of them counts as a gap.
    pub defects: u64,
    /// Number of blocks at the ends of unfinished runs that control was bound to reach, and may not have reached when the trace ended.
    pub ahead: u64,
}

/// An activation of a function.
#[derive(Clone, Debug)]
struct Activation<'a> {
    function: u32,
    traced: &'a TracedFunction,
    /// The present run, or the last one while a call is in progress.
    run: Replay<'a>,
    /// Whether the run is over: a call is in progress.
    calling: bool,
    /// Stack pointer at the entry, if the function notes it.
    stack: Option<u32>,
    /// Number of blocks since the last token.
    ahead: u64,
    /// The thread's number of such blocks when the activation began. If the activation is a signal handler, it has interrupted them.
    before: u64,
}

/// The regeneration of one thread.
#[derive(Clone, Debug)]
pub struct ThreadReplay<'a> {
    functions: &'a [TracedFunction],
    activations: Vec<Activation<'a>>,
    /// Stack pointer at the next token.
    stack: Option<u32>,
    /// Function of the next token, in which an exception has arrived.
    resumes: Option<u32>,
    /// Number of activations, from the outermost one on, that the thread may have left. The next token of one of them loses all.
    doubtful: usize,
    /// Number of activations that an exception or a longjmp may leave whose end was not told yet.
    leaving: usize,
    unknown: Unknown,
    /// Number of blocks of finished activations since the last token.
    ahead: u64,
}

impl<'a> ThreadReplay<'a> {
    /// Begins before the first token of a thread. Numbers of functions are indices of `functions`.
    pub fn new(functions: &'a [TracedFunction]) -> Self {
        ThreadReplay {
            functions,
            activations: Vec::new(),
            stack: None,
            resumes: None,
            doubtful: 0,
            leaving: 0,
            unknown: Unknown::default(),
            ahead: 0,
        }
    }

    /// Parts that the steps so far do not tell.
    pub fn unknown(&self) -> Unknown {
        let ahead =
            self.ahead + self.activations.iter().map(|activation| activation.ahead + activation.before).sum::<u64>();
        Unknown { ahead, ..self.unknown }
    }

    /// Takes the next token. Gives the steps to `out` up to the next branch of the innermost activation.
    ///
    /// A signal handler interrupts an activation between two of its tokens. Its steps come where its first token is, so blocks of the
    /// interrupted activation up to the next branch come before them.
    pub fn next(&mut self, token: Token, out: &mut dyn FnMut(TraceStep)) {
        match token {
            Token::Stack(sp) => self.stack = Some(sp),
            // The reader of the tokens keeps the time.
            Token::Time(_) => {}
            Token::Condition => out(TraceStep::Condition),
            Token::Resume(function) => self.resumes = Some(function),
            Token::Leaving => {
                self.doubtful = self.doubtful.max(self.leaving);
                self.leaving = self.activations.len();
            }
            Token::Continuing => self.leaving = self.activations.len(),
            Token::Unwound => match self.stack.take() {
                Some(sp) => self.unwind(sp, out),
                None => self.defect(out),
            },
            Token::Switched if self.activations.is_empty() => {}
            Token::Switched => {
                self.unknown.lost += 1;
                self.lose(out);
            }
            Token::Gap => {
                self.unknown.gaps += 1;
                self.lose(out);
            }
            Token::Enter(function) => {
                let stack = self.stack.take();
                match traced(self.functions, function) {
                    Some(traced) => self.enter(function, traced, traced.entry(), stack, out),
                    None => self.defect(out),
                }
            }
            Token::Passage(place) => {
                self.ahead = 0;
                let stack = self.stack.take();
                match self.resumes.take() {
                    Some(function) => self.resume(function, stack, place, out),
                    None => self.pass(place, out),
                }
            }
        }
    }

    fn depth(&self) -> u32 {
        u32::try_from(self.activations.len()).unwrap_or(u32::MAX)
    }

    /// Whether the thread may have left the innermost activation.
    fn is_doubtful(&self) -> bool {
        self.activations.len() <= self.doubtful.max(self.leaving)
    }

    /// Forgets all activations.
    fn lose(&mut self, out: &mut dyn FnMut(TraceStep)) {
        self.activations.clear();
        (self.ahead, self.doubtful, self.leaving) = (0, 0, 0);
        (self.stack, self.resumes) = (None, None);
        out(TraceStep::Gap);
    }

    fn defect(&mut self, out: &mut dyn FnMut(TraceStep)) {
        self.unknown.defects += 1;
        self.lose(out);
    }

    fn enter(
        &mut self,
        function: u32,
        traced: &'a TracedFunction,
        at: Vertex,
        stack: Option<u32>,
        out: &mut dyn FnMut(TraceStep),
    ) {
        if self
            .activations
            .last()
            .is_some_and(|top| stack.is_some() && top.stack.is_some() && !is_deeper(stack, top.stack))
        {
            // The activations in progress are on another stack, or nothing has told that the thread has left them.
            self.doubtful = self.activations.len();
        }
        out(TraceStep::Enter { function, depth: self.depth() });
        let run = Replay::new(traced.graph(), traced.witnesses(), at);
        let before = std::mem::take(&mut self.ahead);
        self.activations.push(Activation { function, traced, run, calling: false, stack, ahead: 0, before });
        self.begin(at, None, out);
    }

    /// Begins a run of the innermost activation at a vertex.
    fn begin(&mut self, at: Vertex, token: Option<Way>, out: &mut dyn FnMut(TraceStep)) {
        let depth = self.depth().saturating_sub(1);
        let Some(top) = self.activations.last_mut() else { return };
        top.run = Replay::new(top.traced.graph(), top.traced.witnesses(), at);
        top.calling = false;
        if let Some(block) = top.traced.block(at) {
            out(TraceStep::Block { function: top.function, block, depth });
        }
        self.proceed(token, out);
    }

    /// Passes a place of the innermost activation.
    fn pass(&mut self, place: u32, out: &mut dyn FnMut(TraceStep)) {
        let Some(top) = self.activations.last() else {
            self.unknown.skipped += 1;
            return;
        };
        if self.is_doubtful() {
            (self.unknown.lost, self.unknown.skipped) = (self.unknown.lost + 1, self.unknown.skipped + 1);
            return self.lose(out);
        }
        let Some(edge) = top.traced.edge(place) else { return self.defect(out) };
        if !top.calling {
            return self.proceed(Some(Way::Witness(edge)), out);
        }
        if top.traced.returns(top.run.at(), place) { self.arrive(place, out) } else { self.defect(out) }
    }

    /// Begins a run of the innermost activation at a place.
    fn arrive(&mut self, place: u32, out: &mut dyn FnMut(TraceStep)) {
        let traced = self.activations.last().map(|top| top.traced);
        let edge = traced.and_then(|traced| Some((traced, traced.edge(place)?)));
        match edge.and_then(|(traced, id)| Some((traced, id, *traced.graph().edge(id)?))) {
            Some((traced, _, edge)) if edge.from == traced.graph().entry() => self.begin(edge.to, None, out),
            Some((_, id, edge)) => self.begin(edge.from, Some(Way::Witness(id)), out),
            None => self.defect(out),
        }
    }

    /// The thread has left the activations at and below a stack pointer. If not all activations have noted theirs, on one stack, forgets all.
    fn unwind(&mut self, sp: u32, out: &mut dyn FnMut(TraceStep)) {
        let is_ordered = |pair: &[Activation<'_>]| match pair {
            [outer, inner] => is_deeper(inner.stack, outer.stack),
            _ => true,
        };
        let all_known = self.activations.iter().all(|activation| activation.stack.is_some());
        if !all_known || !self.activations.windows(2).all(is_ordered) {
            self.unknown.lost += 1;
            return self.lose(out);
        }
        self.leave(self.activations.partition_point(|activation| is_deeper(Some(sp), activation.stack)), out);
    }

    /// Ends all activations but this many of the outermost ones.
    fn leave(&mut self, but: usize, out: &mut dyn FnMut(TraceStep)) {
        for (n, left) in self.activations.iter().enumerate().skip(but).rev() {
            out(TraceStep::Leave { function: left.function, depth: u32::try_from(n).unwrap_or(u32::MAX) });
        }
        self.activations.truncate(but);
        if self.leaving < but {
            // The end of this exception is within an activation that began later than the exception of which nothing has told the end.
            self.doubtful = self.doubtful.max(self.leaving);
        }
        (self.doubtful, self.leaving) = (self.doubtful.min(but), 0);
    }

    /// Control arrives at a place of a function: along its edges, or from any activation that the function's one has led to.
    fn resume(&mut self, function: u32, stack: Option<u32>, place: u32, out: &mut dyn FnMut(TraceStep)) {
        let Some(traced) = traced(self.functions, function) else { return self.defect(out) };
        if let Some(top) = self.activations.last()
            && !self.is_doubtful()
            && top.function == function
            && (!top.calling || top.traced.returns(top.run.at(), place))
        {
            return self.pass(place, out);
        }
        let is_it = |activation: &Activation<'_>| {
            activation.function == function && activation.calling && is_below(stack, activation.stack)
        };
        let known = self.activations.iter().rposition(is_it);
        self.leave(known.map_or(0, |known| known + 1), out);
        if known.is_none() {
            // The activation began before the trace.
            self.unknown.skipped += 1;
            let run = Replay::new(traced.graph(), traced.witnesses(), traced.entry());
            self.activations.push(Activation {
                function,
                traced,
                run,
                calling: true,
                stack: None,
                ahead: 0,
                before: 0,
            });
        }
        self.arrive(place, out);
    }

    /// Follows the run of the innermost activation up to its next branch or its end.
    fn proceed(&mut self, mut token: Option<Way>, out: &mut dyn FnMut(TraceStep)) {
        let depth = self.depth().saturating_sub(1);
        let Some(top) = self.activations.last_mut() else { return };
        (top.calling, top.ahead) = (false, 0);
        loop {
            match top.run.next_edge(|| token.take()) {
                Ok(Some(edge)) => {
                    if let Some(block) = top.traced.block(top.run.at()) {
                        out(TraceStep::Block { function: top.function, block, depth });
                        top.ahead += 1;
                    }
                    if top.traced.witnesses().writes(edge) {
                        top.ahead = 0;
                    }
                }
                Ok(None) if top.run.at() == top.traced.graph().exit() => {
                    out(TraceStep::Leave { function: top.function, depth });
                    self.ahead = top.ahead + top.before;
                    self.activations.pop();
                    break;
                }
                Ok(None) => {
                    top.calling = true;
                    break;
                }
                Err(TraceDefect::Short { .. }) => break,
                Err(TraceDefect::Impossible { .. }) => return self.defect(out),
            }
        }
        // The run was over before the place of the token.
        if token.is_some() {
            self.defect(out);
        }
    }
}

fn traced(functions: &[TracedFunction], function: u32) -> Option<&TracedFunction> {
    functions.get(usize::try_from(function).ok()?)
}

/// Whether a stack pointer is below another one. Stacks grow down; both lie within 1 GiB.
fn is_deeper(inner: Option<u32>, outer: Option<u32>) -> bool {
    inner != outer && is_below(inner, outer)
}

/// Whether the stack pointer of a landing is within or below the frame of an activation. Stacks grow down; both lie within 1 GiB.
fn is_below(landing: Option<u32>, entry: Option<u32>) -> bool {
    match (landing, entry) {
        (Some(landing), Some(entry)) => (entry.wrapping_sub(landing) & ((1 << STACK_BITS) - 1)) < 1 << (STACK_BITS - 1),
        (None, _) | (_, None) => false,
    }
}
