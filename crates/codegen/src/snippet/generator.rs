//! Compiler for snippets that are more than one increment. The code uses an accumulator (rax), a second operand (rcx), and the second
//! register of a division (rdx). Registers of these that the snippet uses and the function may need are saved on the stack, which is free
//! below rsp at a function's entry. The code changes no vector register and has no loop. A shared routine makes calls of functions of the
//! program (`calling`).

use iced_x86::BlockEncoderOptions;
use iced_x86::code_asm::{
    AsmMemoryOperand, AsmRegister64, CodeAssembler, CodeLabel, al, cl, eax, qword_ptr, r8, r9, rax, rcx, rdi, rdx, rsi,
    rsp,
};
use ingraft_model::layout::record;
use ingraft_model::{BinaryOp, Expr, KeptValue, KeyField, ProgramCall, Snippet, Stmt, TimeUnit, UnaryOp, VariableId};

use crate::code::cost::Cost;
use crate::code::environment::{Assembly, CodegenError, Environment};
use crate::code::routine::Routine;
use crate::snippet::loaded::Loaded;
use crate::snippet::mini::BaseState;
use crate::snippet::routines::FAR;

/// Shard that the code works on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ShardAccess {
    /// Shard of the executing thread, through gs.
    Own,
    /// Shard 0, with `lock`.
    Shared,
}

/// Code of a snippet, position-independent except for the jumps to shared routines.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SnippetCode {
    pub bytes: Vec<u8>,
    /// Offset of the end of each `jmp rel32` to a routine.
    pub exits: Vec<(u32, Routine)>,
    /// Those of `exits`, by their indices, that are rare: to routines of records whose number is limited.
    pub rare: Vec<usize>,
    /// Cost of the worst-case path through `bytes`, without the routines and without records whose number is limited.
    pub cost: Cost,
    /// Code that runs only if the last instruction of `bytes`, a `jcc rel32`, jumps to it; control continues after that jump. So a
    /// constraint that is not met costs a load and a branch that is not taken.
    pub cold: Option<Box<SnippetCode>>,
}

impl SnippetCode {
    /// Routines to which the code jumps, in both parts.
    pub fn routines(&self) -> impl Iterator<Item = Routine> {
        let cold = self.cold.iter().flat_map(|cold| &cold.exits);
        self.exits.iter().chain(cold).map(|(_, routine)| *routine)
    }

    /// Routines to which the code jumps, in both parts, without those that are rare.
    pub fn usual_routines(&self) -> impl Iterator<Item = Routine> {
        let usual = |code: &'_ SnippetCode| -> Vec<Routine> {
            let exits = code.exits.iter().enumerate().filter(|(n, _)| !code.rare.contains(n));
            exits.map(|(_, (_, routine))| *routine).collect()
        };
        let cold = self.cold.iter().flat_map(|cold| usual(cold)).collect::<Vec<_>>();
        usual(self).into_iter().chain(cold)
    }

    /// Cost of the worst-case path through both parts, with the jumps between them.
    pub fn whole_cost(&self) -> Cost {
        self.cold.as_ref().map_or(self.cost, |cold| self.cost + cold.cost + Cost::jumps(2))
    }
}

/// Condition for code that runs only sometimes.
enum CodeCondition {
    /// The value of the expression is not 0.
    If(Expr),
    /// The thread has records, or has never had any. In the second case it lacks even the first record, which ends every search.
    Records,
    /// The last record of the thread is none of an open call, or the thread has never had any.
    Stale,
}

/// Splits a snippet whose end runs only sometimes into statements that always run, a condition, and statements that run if it is met.
fn split(stmts: &[Stmt]) -> Option<(&[Stmt], CodeCondition, &[Stmt])> {
    match stmts {
        [Stmt::Prune] => Some((&[], CodeCondition::Stale, stmts)),
        [Stmt::CloseHanded(..)] => Some((&[], CodeCondition::Records, stmts)),
        [first @ .., Stmt::If(c, body)] => match fold(c) {
            Expr::Const(_) => None,
            c => Some((first, CodeCondition::If(c), body)),
        },
        _ => None,
    }
}

/// Compiles a snippet that [`crate::snippet::check::snippet`] has accepted.
pub(crate) fn compile(
    snippet: &Snippet,
    counters: &[u32],
    env: &Environment,
    frame: &BaseState,
    access: ShardAccess,
) -> Result<SnippetCode, CodegenError> {
    let compiler = Compiler { snippet, counters, env, frame, access };
    compiler.compile().map_err(|Assembly(why)| CodegenError::Assembler { what: "a snippet", why })
}

struct Compiler<'a> {
    snippet: &'a Snippet,
    counters: &'a [u32],
    env: &'a Environment,
    frame: &'a BaseState,
    access: ShardAccess,
}

impl<'a> Compiler<'a> {
    fn compile(&self) -> Result<SnippetCode, Assembly> {
        // A thread has no records of a goroutine, so a gate by its records does not apply.
        let gated = |gate: &CodeCondition| !self.frame.stack.moving || matches!(gate, CodeCondition::If(_));
        let parts = split(&self.snippet.stmts).filter(|(_, gate, _)| self.access == ShardAccess::Own && gated(gate));
        if let Some((first, gate, rest)) = parts {
            let mut g = self.generator(Vec::new())?;
            g.stmts(first)?;
            if g.gate(&gate)? && self.saves(g.used).is_empty() {
                let cold = Some(Box::new(self.all(rest)?));
                return Ok(SnippetCode { cold, ..encode(g)? });
            }
        }
        self.all(&self.snippet.stmts)
    }

    /// Compiles the statements, and saves around them the registers that they need.
    fn all(&self, stmts: &[Stmt]) -> Result<SnippetCode, Assembly> {
        // The first pass only shows which registers the second one must save.
        let used = self.generate(WORK.to_vec(), stmts)?.used;
        encode(self.generate(self.saves(used), stmts)?)
    }

    fn generate(&self, saved: Vec<AsmRegister64>, stmts: &[Stmt]) -> Result<Generator<'a>, Assembly> {
        let mut g = self.generator(saved)?;
        match self.access {
            ShardAccess::Shared if self.snippet.interferes() => g.missed_calls()?,
            ShardAccess::Own | ShardAccess::Shared => g.all(stmts)?,
        }
        Ok(g)
    }

    fn generator(&self, saved: Vec<AsmRegister64>) -> Result<Generator<'a>, Assembly> {
        Ok(Generator {
            a: CodeAssembler::new(64)?,
            counters: self.counters,
            env: self.env,
            access: self.access,
            used: [false; 3],
            saved,
            depth: i32::from(self.frame.pushed),
            closed: Vec::new(),
            loaded: Loaded::default(),
            frame: *self.frame,
            exits: Vec::new(),
            rare: Vec::new(),
            limits: Vec::new(),
        })
    }

    /// Registers to save among those that are used.
    fn saves(&self, used: [bool; 3]) -> Vec<AsmRegister64> {
        let save = |(i, r): (usize, &AsmRegister64)| (used[i] && (i > 0 || !self.frame.rax_free)).then_some(*r);
        WORK.iter().enumerate().filter_map(save).collect()
    }
}

fn encode(mut g: Generator<'_>) -> Result<SnippetCode, Assembly> {
    let result = g.a.assemble_options(0, BlockEncoderOptions::RETURN_NEW_INSTRUCTION_OFFSETS)?;
    let exit = |(label, routine): &(CodeLabel, Routine)| Ok((result.label_ip(label)? as u32, *routine));
    let exits = g.exits.iter().map(exit).collect::<Result<_, Assembly>>()?;
    let limits = g.limits.iter().map(|label| Ok(result.label_ip(label)?)).collect::<Result<Vec<u64>, Assembly>>()?;
    let bytes = result.inner.code_buffer;
    Ok(SnippetCode { cost: Cost::of_usual(0, &bytes, &limits), bytes, exits, rare: g.rare, cold: None })
}

/// Work registers: accumulator, operand, and the upper half of a dividend.
const WORK: [AsmRegister64; 3] = [rax, rcx, rdx];
/// Registers of the first six integer arguments.
const ARGUMENTS: [AsmRegister64; 6] = [rdi, rsi, rdx, rcx, r8, r9];

/// Value in a form that an instruction can take.
pub(crate) enum Operand {
    Immediate(i32),
    Register(AsmRegister64),
    Memory(AsmMemoryOperand),
}

pub(crate) struct Generator<'a> {
    pub a: CodeAssembler,
    counters: &'a [u32],
    pub env: &'a Environment,
    pub access: ShardAccess,
    /// For each register of [`WORK`], whether the code overwrites it.
    pub used: [bool; 3],
    saved: Vec<AsmRegister64>,
    /// Words that were pushed since the point was reached.
    pub depth: i32,
    /// Words in the record that the enclosing statement closes.
    pub closed: Vec<KeptValue>,
    /// Parts of that record that registers hold.
    pub loaded: Loaded,
    pub frame: BaseState,
    /// Label after each jump to a shared routine.
    pub exits: Vec<(CodeLabel, Routine)>,
    /// Those of `exits`, by their indices, that are rare.
    pub rare: Vec<usize>,
    /// Labels of branches that are usually taken, because what follows them is limited.
    pub limits: Vec<CodeLabel>,
}

impl Generator<'_> {
    fn all(&mut self, stmts: &[Stmt]) -> Result<(), Assembly> {
        for r in self.saved.clone() {
            self.push(r)?;
        }
        self.stmts(stmts)?;
        for r in self.saved.clone().into_iter().rev() {
            self.pop(r)?;
        }
        Ok(())
    }

    /// Emits a jump that is taken if the code after the gate must run. Returns false if the condition is more than one comparison.
    fn gate(&mut self, gate: &CodeCondition) -> Result<bool, Assembly> {
        let op = match gate {
            CodeCondition::Records => self.has_records()?,
            CodeCondition::Stale => {
                // Most threads that run nothing else have no record, which this comparison tells without the loads.
                let mut end = self.a.create_label();
                self.has_records()?;
                self.a.je(end)?;
                self.compare_last_record()?;
                self.a.jbe(FAR)?;
                self.place(&mut end)?;
                return Ok(true);
            }
            CodeCondition::If(
                Expr::Binary(BinaryOp::LogicalAnd | BinaryOp::LogicalOr, ..) | Expr::Unary(UnaryOp::Not, _),
            ) => {
                return Ok(false);
            }
            CodeCondition::If(c) => self.test(c)?,
        };
        self.jump_if(op, None)?;
        Ok(true)
    }

    pub fn push(&mut self, r: AsmRegister64) -> Result<(), Assembly> {
        self.depth += 1;
        Ok(self.a.push(r)?)
    }

    pub fn pop(&mut self, r: AsmRegister64) -> Result<(), Assembly> {
        self.depth -= 1;
        Ok(self.a.pop(r)?)
    }

    pub fn place(&mut self, label: &mut CodeLabel) -> Result<(), Assembly> {
        self.a.set_label(label)?;
        // Two labels may share an address, and a label may lie at the end of the code. The assembler accepts both only with an empty
        // instruction.
        Ok(self.a.zero_bytes()?)
    }

    /// Index of the first counter of a variable. Fails if the variable has none.
    pub fn index(&self, v: VariableId) -> Result<u32, Assembly> {
        let known = self.counters.get(v.0 as usize).copied();
        known.ok_or_else(|| Assembly(format!("variable {} has no counters", v.0)))
    }

    fn variable(&self, v: VariableId) -> Result<AsmMemoryOperand, Assembly> {
        let slot = qword_ptr(u64::from(self.env.data.counter(self.index(v)?)));
        Ok(match self.access {
            ShardAccess::Own => slot.gs(),
            ShardAccess::Shared => slot,
        })
    }

    pub fn argument(&self, n: u8) -> Operand {
        let pushed = i32::from(self.frame.pushed);
        match ARGUMENTS.get(usize::from(n)) {
            Some(r) => match self.saved.iter().position(|s| s == r) {
                Some(i) => Operand::Memory(self.stack(-pushed - 1 - i as i32)),
                None => Operand::Register(*r),
            },
            None => Operand::Memory(self.stack(self.arguments() + i32::from(n) - 6)),
        }
    }

    /// The word at a distance, in words, from the stack pointer at the point.
    fn stack(&self, words: i32) -> AsmMemoryOperand {
        qword_ptr(rsp + (8 * (self.depth + words)))
    }

    /// Distance in words from the stack pointer at the point to the first argument on the stack.
    fn arguments(&self) -> i32 {
        i32::from(self.frame.stack.arguments) / 8
    }

    fn leaf(&self, e: &Expr) -> Result<Option<Operand>, Assembly> {
        Ok(match e {
            Expr::Const(c) => i32::try_from(*c).ok().map(Operand::Immediate),
            Expr::Arg(n) => Some(self.argument(*n)),
            // The word before the first argument on the stack.
            Expr::ReturnAddress => Some(Operand::Memory(self.stack(self.arguments() - 1))),
            Expr::Variable(v) => Some(Operand::Memory(self.variable(*v)?)),
            Expr::Number(v) => i32::try_from(self.index(*v)?).ok().map(Operand::Immediate),
            Expr::Unary(..)
            | Expr::Binary(..)
            | Expr::Return
            | Expr::Saved(_)
            | Expr::Elapsed(..)
            | Expr::Restored
            | Expr::Lost(_)
            | Expr::Notes
            | Expr::OfGoroutine(_)
            | Expr::Load(..)
            | Expr::Read(..)
            | Expr::ThreadPointer
            | Expr::ValueAt(..)
            | Expr::ValueIn(..)
            | Expr::Float(_)
            | Expr::Usage(_)
            | Expr::Now(_)
            | Expr::Event(_)
            | Expr::Since(..)
            | Expr::Text(_)
            | Expr::Address(_)
            | Expr::Call(_) => None,
        })
    }

    pub fn stmts(&mut self, stmts: &[Stmt]) -> Result<(), Assembly> {
        stmts.iter().try_for_each(|s| {
            self.stmt(s)?;
            self.loaded = Loaded::default();
            Ok(())
        })
    }

    fn stmt(&mut self, stmt: &Stmt) -> Result<(), Assembly> {
        if !Loaded::serves(stmt) {
            self.loaded = Loaded::default();
        }
        match stmt {
            Stmt::Add(v, e) => {
                let (slot, e) = (self.variable(*v)?, fold(e));
                let source = self.source(&e)?;
                if let Operand::Immediate(0) = source {
                    return Ok(());
                }
                if self.access == ShardAccess::Shared {
                    let _ = self.a.lock();
                }
                self.add(slot, &source)?;
            }
            Stmt::Set(v, e) => {
                let (slot, e) = (self.variable(*v)?, fold(e));
                match self.source(&e)? {
                    Operand::Immediate(c) => self.a.mov(slot, c)?,
                    Operand::Register(r) => self.a.mov(slot, r)?,
                    Operand::Memory(_) => self.a.mov(slot, rax)?,
                }
            }
            Stmt::If(c, body) => match fold(c) {
                Expr::Const(0) => {}
                Expr::Const(_) => self.stmts(body)?,
                c => {
                    let mut end = self.a.create_label();
                    self.branch(&c, false, end)?;
                    self.loaded = Loaded::default();
                    self.stmts(body)?;
                    self.place(&mut end)?;
                }
            },
            Stmt::Prune => self.prune()?,
            Stmt::Await => self.await_engine()?,
            Stmt::Fork => self.fork()?,
            Stmt::Forked => self.forked()?,
            Stmt::Switch(switch) => self.switch(*switch)?,
            Stmt::Open(record, body) => self.open(record, body)?,
            Stmt::Close(record, body) => self.close(record, body)?,
            Stmt::HandOver(record, whose, body) => self.hand_over(record, *whose, body)?,
            Stmt::GiveUp(record, whose, body) => self.give_up(record, *whose, body)?,
            Stmt::CloseHanded(record, body) => self.close_handed(record, body)?,
            Stmt::Start(v, clock) => self.start(*v, *clock)?,
            Stmt::Stop(v, clock) => self.stop(*v, *clock)?,
            Stmt::Observe(v, resolution, e, own) => self.observe((*v, *resolution), &fold(e), *own)?,
            Stmt::AddAt(v, table, key, e) => {
                let mut key = key.clone();
                key.iter_mut().flat_map(KeyField::operands_mut).for_each(|part| *part = fold(part));
                self.add_at((*v, *table), &key, &fold(e))?;
            }
            Stmt::AddListed(v, listing, key, e) => self.add_listed(*v, *listing, &fold(key), &fold(e))?,
            Stmt::AddIn(v, ranges, number, e) => self.add_in(*v, *ranges, &fold(number), &fold(e))?,
            Stmt::Append(v, capacity, appended) => self.append(*v, *capacity, appended)?,
            Stmt::Record(v, capacity, recorded) => {
                let mut folded = recorded.clone();
                folded.fields.iter_mut().for_each(|field| *field.operand_mut() = fold(field.operand()));
                self.record(*v, *capacity, &folded)?;
            }
            Stmt::BeginGroup(v) => self.begin_group(*v)?,
            Stmt::KeepGroup(v) => self.keep_group(*v)?,
            Stmt::Notes(stmt) => self.notes(*stmt)?,
            Stmt::Enter(v, shape, function) => self.enter_context(*v, *shape, *function)?,
            Stmt::EnterMoving(v, shape, function) => self.enter_moving(*v, *shape, *function)?,
            Stmt::LeaveMoving(v, shape, metric) => self.leave_moving(*v, *shape, *metric)?,
            Stmt::CountBelow(v, shape, function, e) => self.count_below(*v, *shape, *function, &fold(e))?,
            Stmt::EnterValue(v, shape, function, resolution, e) => {
                self.enter_value(*v, *shape, *function, (*resolution, &fold(e)))?
            }
            Stmt::LeaveValue(v, shape) => self.leave_value(*v, *shape)?,
            Stmt::AddContext(v, shape, metric, e) => self.add_in_context(*v, (*shape, *metric), &fold(e))?,
            Stmt::Mark(v, key, state) => self.mark(*v, &fold(key), *state)?,
            Stmt::Call(call) => self.call_function(&fold_call(call))?,
            Stmt::Store(at, width, e) => self.store(*at, *width, &fold(e))?,
            Stmt::Write(address, width, e) => self.write(&fold(address), *width, &fold(e))?,
        }
        Ok(())
    }

    /// Adds a value that [`Generator::source`] has returned.
    pub fn add(&mut self, slot: AsmMemoryOperand, source: &Operand) -> Result<(), Assembly> {
        match *source {
            Operand::Immediate(1) => self.a.inc(slot)?,
            Operand::Immediate(c) => self.a.add(slot, c)?,
            Operand::Register(r) => self.a.add(slot, r)?,
            Operand::Memory(_) => self.a.add(slot, rax)?,
        }
        Ok(())
    }

    /// Provides a value as an immediate or in a register: the register in which the value lies already, or else rax.
    pub fn source(&mut self, e: &Expr) -> Result<Operand, Assembly> {
        match self.leaf(e)? {
            Some(o @ (Operand::Immediate(_) | Operand::Register(_))) => Ok(o),
            Some(Operand::Memory(_)) | None => {
                self.value(e)?;
                Ok(Operand::Register(rax))
            }
        }
    }

    /// Computes a value into rax.
    pub fn value(&mut self, e: &Expr) -> Result<(), Assembly> {
        self.used[0] = true;
        match e {
            Expr::Const(0) => self.a.xor(eax, eax)?,
            Expr::Const(c) => match u32::try_from(*c) {
                Ok(c) => self.a.mov(eax, c)?,
                Err(_) => self.a.mov(rax, *c)?,
            },
            Expr::Arg(_) | Expr::ReturnAddress | Expr::Variable(_) => match self.leaf(e)? {
                Some(Operand::Register(r)) => self.a.mov(rax, r)?,
                Some(Operand::Memory(m)) => self.a.mov(rax, m)?,
                Some(Operand::Immediate(_)) | None => {}
            },
            Expr::Unary(op, e) => {
                self.value(e)?;
                match op {
                    UnaryOp::Negate => self.a.neg(rax)?,
                    UnaryOp::Complement => self.a.not(rax)?,
                    UnaryOp::Not => {
                        self.a.test(rax, rax)?;
                        self.a.sete(al)?;
                        self.a.movzx(eax, al)?;
                    }
                }
            }
            Expr::Binary(op, a, b) => self.binary(e, *op, a, b)?,
            Expr::Number(v) => self.a.mov(eax, self.index(*v)?)?,
            Expr::Load(at, scalar) => self.load(*at, *scalar)?,
            Expr::ThreadPointer => self.a.mov(rax, qword_ptr(0).fs())?,
            Expr::Read(address, scalar) => self.read(address, *scalar)?,
            Expr::ValueAt(v, places, key) => self.value_at(*v, *places, key)?,
            Expr::ValueIn(v, ranges, number) => self.value_in(*v, *ranges, number)?,
            Expr::Return => self.returned()?,
            Expr::Float(float) => {
                self.float(*float)?;
                self.truncate(float.format)?;
            }
            Expr::Usage(usage) => self.usage(*usage)?,
            Expr::Now(clock) => self.now(*clock)?,
            Expr::Event(v) => self.event(*v)?,
            Expr::Since(v, e) => self.since(*v, e)?,
            // These occur only as arguments, see `call_function`.
            Expr::Text(_) | Expr::Address(_) => {}
            Expr::Call(call) => self.call_function(call)?,
            Expr::Restored => self.field(record::SAVED)?,
            Expr::Lost(v) => self.lost(*v)?,
            Expr::Notes => self.keeps_notes()?,
            Expr::OfGoroutine(at) => self.of_descriptor(*at)?,
            Expr::Saved(kept) => {
                self.kept(*kept)?;
                if let KeptValue::Float(float) = kept {
                    self.truncate(float.format)?;
                }
            }
            Expr::Elapsed(clock, unit) => {
                self.kept(KeptValue::Time(*clock))?;
                if *unit == TimeUnit::Nanoseconds {
                    self.nanoseconds()?;
                }
            }
        }
        Ok(())
    }

    /// Loads the difference of a value from that of the last time into rax, or 0 at the first time. The difference is added to the variable: if a
    /// signal handler has moved it meanwhile, the next difference is so much smaller.
    fn since(&mut self, v: VariableId, e: &Expr) -> Result<(), Assembly> {
        if self.access == ShardAccess::Shared {
            return Ok(self.a.xor(eax, eax)?);
        }
        self.value(e)?;
        self.used = [true; 3];
        let (last, mut known) = (self.variable(v)?, self.a.create_label());
        self.a.mov(rcx, last)?;
        self.a.sub(rax, rcx)?;
        self.a.add(last, rax)?;
        self.a.test(rcx, rcx)?;
        self.a.jne(known)?;
        self.a.xor(eax, eax)?;
        self.place(&mut known)
    }

    fn binary(&mut self, whole: &Expr, op: BinaryOp, a: &Expr, b: &Expr) -> Result<(), Assembly> {
        use BinaryOp as B;
        match op {
            B::Add | B::Subtract | B::Multiply | B::And | B::Or | B::Xor => {
                let commutes = op != B::Subtract;
                let (a, b) =
                    if commutes && self.leaf(a)?.is_some() && self.leaf(b)?.is_none() { (b, a) } else { (a, b) };
                let right = self.operands(a, b)?;
                self.arithmetic(op, right)
            }
            B::ShiftLeft | B::ShiftRight => {
                if let Expr::Const(c) = b {
                    self.value(a)?;
                    let count = (c & 63) as i32;
                    return self.shift(op, |a, left| if left { a.shl(rax, count) } else { a.sar(rax, count) });
                }
                self.both(a, b)?;
                self.shift(op, |a, left| if left { a.shl(rax, cl) } else { a.sar(rax, cl) })
            }
            B::Divide | B::Remainder => {
                self.both(a, b)?;
                self.divide(op == B::Remainder)
            }
            B::Equal | B::NotEqual | B::Less | B::LessOrEqual | B::Greater | B::GreaterOrEqual => {
                match self.compare(op, a, b)? {
                    B::Equal => self.a.sete(al)?,
                    B::NotEqual => self.a.setne(al)?,
                    B::Less => self.a.setl(al)?,
                    B::LessOrEqual => self.a.setle(al)?,
                    B::Greater => self.a.setg(al)?,
                    _ => self.a.setge(al)?,
                }
                Ok(self.a.movzx(eax, al)?)
            }
            B::LogicalAnd | B::LogicalOr => {
                let [mut no, mut end] = [self.a.create_label(), self.a.create_label()];
                self.branch(whole, false, no)?;
                self.a.mov(eax, 1)?;
                self.a.jmp(end)?;
                self.place(&mut no)?;
                self.a.xor(eax, eax)?;
                self.place(&mut end)
            }
        }
    }

    fn shift(
        &mut self,
        op: BinaryOp,
        emit: impl FnOnce(&mut CodeAssembler, bool) -> Result<(), iced_x86::IcedError>,
    ) -> Result<(), Assembly> {
        Ok(emit(&mut self.a, op == BinaryOp::ShiftLeft)?)
    }

    fn arithmetic(&mut self, op: BinaryOp, right: Operand) -> Result<(), Assembly> {
        macro_rules! apply {
            ($name:ident) => {
                match right {
                    Operand::Immediate(c) => self.a.$name(rax, c)?,
                    Operand::Register(r) => self.a.$name(rax, r)?,
                    Operand::Memory(m) => self.a.$name(rax, m)?,
                }
            };
        }
        match op {
            BinaryOp::Subtract => apply!(sub),
            BinaryOp::And => apply!(and),
            BinaryOp::Or => apply!(or),
            BinaryOp::Xor => apply!(xor),
            BinaryOp::Multiply => match right {
                Operand::Immediate(c) => self.a.imul_3(rax, rax, c)?,
                Operand::Register(r) => self.a.imul_2(rax, r)?,
                Operand::Memory(m) => self.a.imul_2(rax, m)?,
            },
            _ => apply!(add),
        }
        Ok(())
    }

    /// Computes `a` into rax, and provides `b` in a form that an instruction can take, if need be in rcx.
    fn operands(&mut self, a: &Expr, b: &Expr) -> Result<Operand, Assembly> {
        if let Some(right) = self.leaf(b)? {
            self.value(a)?;
            return Ok(right);
        }
        self.both(a, b)?;
        Ok(Operand::Register(rcx))
    }

    /// Computes `a` into rax and `b` into rcx.
    fn both(&mut self, a: &Expr, b: &Expr) -> Result<(), Assembly> {
        self.used[1] = true;
        match self.leaf(b)? {
            Some(right) => {
                self.value(a)?;
                match right {
                    Operand::Immediate(c) => self.a.mov(rcx, i64::from(c))?,
                    Operand::Register(r) => self.a.mov(rcx, r)?,
                    Operand::Memory(m) => self.a.mov(rcx, m)?,
                }
            }
            None => {
                self.value(b)?;
                self.push(rax)?;
                self.value(a)?;
                self.pop(rcx)?;
            }
        }
        Ok(())
    }

    /// Divides rax by rcx. The result is 0 for a divisor of 0. A divisor of -1 has code of its own, because `idiv` faults if it divides
    /// the smallest number by -1.
    fn divide(&mut self, remainder: bool) -> Result<(), Assembly> {
        self.used[2] = true;
        let [mut zero, mut minus, mut end] = std::array::from_fn(|_| self.a.create_label());
        self.a.test(rcx, rcx)?;
        self.a.je(zero)?;
        self.a.cmp(rcx, -1)?;
        self.a.je(minus)?;
        self.a.cqo()?;
        self.a.idiv(rcx)?;
        if remainder {
            self.a.mov(rax, rdx)?;
        }
        self.a.jmp(end)?;
        self.place(&mut minus)?;
        if !remainder {
            self.a.neg(rax)?;
            self.a.jmp(end)?;
        }
        self.place(&mut zero)?;
        self.a.xor(eax, eax)?;
        self.place(&mut end)
    }

    /// Sets the flags for a comparison. Returns the operator to test, which is mirrored if the operands were swapped.
    fn compare(&mut self, op: BinaryOp, a: &Expr, b: &Expr) -> Result<BinaryOp, Assembly> {
        if let (Some(Operand::Memory(slot)), Some(Operand::Immediate(c))) = (self.leaf(a)?, self.leaf(b)?) {
            self.a.cmp(slot, c)?;
            return Ok(op);
        }
        self.used[0] = true;
        let mirrored = self.leaf(a)?.is_some() && self.leaf(b)?.is_none();
        let (op, a, b) = if mirrored { (mirror(op), b, a) } else { (op, a, b) };
        let left = match self.leaf(a)? {
            Some(Operand::Register(r)) if self.leaf(b)?.is_some() => r,
            _ => {
                let right = self.operands(a, b)?;
                match right {
                    Operand::Immediate(c) => self.a.cmp(rax, c)?,
                    Operand::Register(r) => self.a.cmp(rax, r)?,
                    Operand::Memory(m) => self.a.cmp(rax, m)?,
                }
                return Ok(op);
            }
        };
        match self.leaf(b)? {
            Some(Operand::Immediate(c)) => self.a.cmp(left, c)?,
            Some(Operand::Register(r)) => self.a.cmp(left, r)?,
            Some(Operand::Memory(m)) => self.a.cmp(left, m)?,
            None => {}
        }
        Ok(op)
    }

    /// Jumps to `label` if `e` is not 0 (`when` is true) or if `e` is 0 (`when` is false).
    fn branch(&mut self, e: &Expr, when: bool, label: CodeLabel) -> Result<(), Assembly> {
        use BinaryOp as B;
        match e {
            Expr::Unary(UnaryOp::Not, e) => self.branch(e, !when, label)?,
            Expr::Binary(op @ (B::LogicalAnd | B::LogicalOr), a, b) => {
                // One operand alone decides if its value is 0 (and) or not 0 (or).
                let decisive = *op == B::LogicalOr;
                if when == decisive {
                    self.branch(a, when, label)?;
                    self.branch(b, when, label)?;
                } else {
                    let mut past = self.a.create_label();
                    self.branch(a, decisive, past)?;
                    self.branch(b, when, label)?;
                    self.place(&mut past)?;
                }
            }
            _ => {
                let op = self.test(e)?;
                self.jump_if(if when { op } else { negate(op) }, Some(label))?;
            }
        }
        Ok(())
    }

    /// Sets the flags for a value or a comparison. Returns the operator to test, which holds if the value is not 0.
    fn test(&mut self, e: &Expr) -> Result<BinaryOp, Assembly> {
        match e {
            Expr::Binary(op, a, b) if is_comparison(*op) => return self.compare(*op, a, b),
            _ => match self.leaf(e)? {
                Some(Operand::Memory(slot)) => self.a.cmp(slot, 0)?,
                Some(Operand::Register(r)) => self.a.test(r, r)?,
                _ => {
                    self.value(e)?;
                    self.a.test(rax, rax)?;
                }
            },
        }
        Ok(BinaryOp::NotEqual)
    }

    /// Jumps if `op` holds for the flags. Without a label, the target is filled in later.
    fn jump_if(&mut self, op: BinaryOp, to: Option<CodeLabel>) -> Result<(), Assembly> {
        use BinaryOp as B;
        macro_rules! jump {
            ($jcc:ident) => {
                match to {
                    Some(label) => self.a.$jcc(label)?,
                    None => self.a.$jcc(FAR)?,
                }
            };
        }
        match op {
            B::Equal => jump!(je),
            B::NotEqual => jump!(jne),
            B::Less => jump!(jl),
            B::LessOrEqual => jump!(jle),
            B::Greater => jump!(jg),
            _ => jump!(jge),
        }
        Ok(())
    }
}

fn is_comparison(op: BinaryOp) -> bool {
    use BinaryOp as B;
    matches!(op, B::Equal | B::NotEqual | B::Less | B::LessOrEqual | B::Greater | B::GreaterOrEqual)
}

fn mirror(op: BinaryOp) -> BinaryOp {
    use BinaryOp as B;
    match op {
        B::Less => B::Greater,
        B::LessOrEqual => B::GreaterOrEqual,
        B::Greater => B::Less,
        B::GreaterOrEqual => B::LessOrEqual,
        same => same,
    }
}

fn negate(op: BinaryOp) -> BinaryOp {
    use BinaryOp as B;
    match op {
        B::Equal => B::NotEqual,
        B::NotEqual => B::Equal,
        B::Less => B::GreaterOrEqual,
        B::LessOrEqual => B::Greater,
        B::Greater => B::LessOrEqual,
        B::GreaterOrEqual => B::Less,
        same => same,
    }
}

fn fold_call(call: &ProgramCall) -> ProgramCall {
    ProgramCall { callee: call.callee.clone(), args: call.args.iter().map(fold).collect() }
}

/// Computes constant expressions.
fn fold(e: &Expr) -> Expr {
    match e {
        Expr::Const(_)
        | Expr::Arg(_)
        | Expr::Variable(_)
        | Expr::Number(_)
        | Expr::Load(..)
        | Expr::ThreadPointer
        | Expr::Return
        | Expr::ReturnAddress
        | Expr::Float(_)
        | Expr::Usage(_)
        | Expr::Now(_)
        | Expr::Event(_)
        | Expr::Text(_)
        | Expr::Address(_)
        | Expr::Saved(_)
        | Expr::Elapsed(..)
        | Expr::Lost(_)
        | Expr::Notes
        | Expr::OfGoroutine(_)
        | Expr::Restored => e.clone(),
        Expr::Call(call) => Expr::Call(Box::new(fold_call(call))),
        Expr::Read(address, scalar) => Expr::Read(Box::new(fold(address)), *scalar),
        Expr::Since(v, e) => Expr::Since(*v, Box::new(fold(e))),
        Expr::ValueAt(v, places, key) => Expr::ValueAt(*v, *places, Box::new(fold(key))),
        Expr::ValueIn(v, ranges, number) => Expr::ValueIn(*v, *ranges, Box::new(fold(number))),
        Expr::Unary(op, e) => match fold(e) {
            Expr::Const(c) => Expr::Const(op.apply(c)),
            e => Expr::Unary(*op, Box::new(e)),
        },
        Expr::Binary(op, a, b) => match (fold(a), fold(b)) {
            (Expr::Const(a), Expr::Const(b)) => Expr::Const(op.apply(a, b)),
            // A known operand of a logical operator decides or is dropped, unless the other operand has calls: all else has no effects and
            // need not be computed.
            (Expr::Const(c), e) | (e, Expr::Const(c))
                if matches!(op, BinaryOp::LogicalAnd | BinaryOp::LogicalOr) && !e.has_calls() =>
            {
                let decisive = *op == BinaryOp::LogicalOr;
                if (c != 0) == decisive {
                    Expr::Const(decisive.into())
                } else {
                    Expr::Binary(BinaryOp::NotEqual, Box::new(e), Box::new(Expr::Const(0)))
                }
            }
            (a, b) => Expr::Binary(*op, Box::new(a), Box::new(b)),
        },
    }
}
