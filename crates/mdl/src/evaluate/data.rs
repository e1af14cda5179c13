//! Data of the program in code: variables by name, members to which variables and arguments lead, and integers at addresses.
//!
//! A snippet must never fault. Code loads data directly if it stays mapped as long as the process lives. Code reads all other data by a
//! system call, and gets 0 where nothing is mapped.

use std::collections::BTreeSet;

use ingraft_model::{
    Avma, BinaryOp, DataShape, DataWord, Expr as Out, Float, FloatFormat, FunctionId, KeptValue, PointKind, Scalar,
    Stmt, ValueNames, WordOrigin,
};

use super::code::fold_binary;
use super::meta::Evaluation;
use crate::ast::{AssignOp, CalledName, ExprKind, SyntaxExpr};
use crate::diagnostic::codes;
use crate::program::{
    DescribedData, IntegerPath, NamedArgument, Parameter, ProgramFacts, ProgramVariable, Unresolved, VariableLocation,
    WithNames,
};

/// Largest number of elements that `DYNINSTCountElmsInArray` adds up; each element takes a system call.
const ELEMENTS_MAX: i64 = 16;
/// Largest number of times that one request looks up a member of a function's argument or result. Each look-up searches all debugging
/// information.
const LOOKS_MAX: u32 = 64;
/// Size in bytes of an `int`, the element of Paradyn's arrays.
const INT_BYTES: i64 = Scalar::INT.width.bytes() as i64;

/// An integer of the program that code sets.
enum ProgramInteger {
    /// At this address in the writable data of the program itself.
    Lasting(Avma, Scalar),
    /// At an address that the code computes.
    At(Out, Scalar),
}

impl<'a> Evaluation<'a> {
    /// Lowers a call that reads memory; `None` if it is another call.
    pub(super) fn data(
        &mut self,
        expr: &'a SyntaxExpr,
        callee: &CalledName,
        args: &'a [SyntaxExpr],
    ) -> Option<Option<Out>> {
        if callee.quoted {
            return None;
        }
        match (callee.name.as_str(), args) {
            ("readSymbol", [name]) => Some(self.symbol(expr, name, &[])),
            ("readAddress", [address]) => Some(self.value(address).map(|a| element(a, Out::Const(0)))),
            ("DYNINSTArrayField", [array, index]) => {
                let (array, index) = (self.value(array), self.value(index));
                Some(array.zip(index).map(|(array, index)| element(array, index)))
            }
            ("DYNINSTCountElmsInArray", [array, count]) => Some(self.sum(expr, array, count)),
            _ => None,
        }
    }

    fn sum(&mut self, expr: &'a SyntaxExpr, array: &'a SyntaxExpr, count: &'a SyntaxExpr) -> Option<Out> {
        let (array, count) = (self.value(array)?, self.value(count)?);
        match count {
            Out::Const(count) if (0..=ELEMENTS_MAX).contains(&count) => {
                let add = |sum, i| fold_binary(BinaryOp::Add, sum, element(array.clone(), Out::Const(i)));
                Some(
                    (1..count)
                        .fold(if count == 0 { Out::Const(0) } else { element(array.clone(), Out::Const(0)) }, add),
                )
            }
            _ => {
                let message = format!("a sum of other than a known number of elements, at most {ELEMENTS_MAX},");
                self.refuse(expr, &message)
            }
        }
    }

    /// Lowers `….field`: a member of data of the program, or a field that the meta language knows.
    pub(super) fn member(&mut self, expr: &'a SyntaxExpr, of: &'a SyntaxExpr, field: &'a str) -> Option<Out> {
        let (mut base, mut members) = (of.bare(), vec![field]);
        while let ExprKind::Field(of, field) = &base.kind {
            members.push(&field.name);
            base = of.bare();
        }
        members.reverse();
        if let Some(float) = self.float(expr, base, &members) {
            return float;
        }
        match &base.kind {
            ExprKind::Call(callee, args) if callee.name == "readSymbol" && !callee.quoted => match args.as_slice() {
                [name] => self.symbol(expr, name, &members),
                _ => self.known(expr),
            },
            ExprKind::Arg(_) | ExprKind::NamedArg(_) | ExprKind::Return => {
                let (value, access) = self.accessed(expr, base, &members)?;
                Some(reach(value, &access))
            }
            _ => self.known(expr),
        }
    }

    /// Lowers `$arg[n].double` or `$return.float`; `None` for other fields. Both are keywords of C, so no member has such a name.
    fn float(&mut self, expr: &SyntaxExpr, base: &'a SyntaxExpr, members: &[&str]) -> Option<Option<Out>> {
        let format = match members {
            ["float"] => FloatFormat::Single,
            ["double"] => FloatFormat::Double,
            _ => return None,
        };
        Some(match &base.kind {
            ExprKind::Arg(_) => match self.value(base) {
                Some(Out::Arg(n)) if n < Float::ARGS_MAX => Some(self.float_argument(Float { register: n, format })),
                Some(_) => self.refuse(expr, "a floating-point argument beyond the eighth"),
                None => None,
            },
            ExprKind::Return => {
                let otherwise = "`$return` is only known at returns and behind calls";
                self.at_end(expr, otherwise, Out::Float(Float { register: 0, format }))
            }
            _ => return None,
        })
    }

    fn float_argument(&self, float: Float) -> Out {
        let at_beginning = self.point_kind.is_none_or(PointKind::opens);
        if at_beginning { Out::Float(float) } else { Out::Saved(KeptValue::Float(float)) }
    }

    /// Lowers an expression whose values are shown, and returns the names of its values. Those of a register are left to the engine: code
    /// that only uses registers is the same in many functions, and is lowered once for all of them.
    pub(super) fn named_value(&mut self, expr: &'a SyntaxExpr) -> Option<(Out, ValueNames)> {
        self.value_names = None;
        let value = self.value(expr)?;
        let names = match (&expr.bare().kind, &value) {
            (ExprKind::Arg(_), Out::Arg(number)) => ValueNames::OfRegister(WordOrigin::Argument(*number)),
            (ExprKind::Return, Out::Return) => ValueNames::OfRegister(WordOrigin::Result),
            _ if expr.is_data() => self.value_names.take().into(),
            _ => ValueNames::None,
        };
        Some((value, names))
    }

    /// The integers that hold an argument, a result or the value to which members lead in it, if the debugging information tells them and
    /// they are the same in all functions where the code runs. Reports nothing.
    pub(super) fn shown(&mut self, expr: &'a SyntaxExpr, follow: bool) -> Option<DataShape> {
        let (mut base, mut members) = (expr.bare(), Vec::new());
        while let ExprKind::Field(of, field) = &base.kind {
            members.push(field.name.as_str());
            base = of.bare();
        }
        members.reverse();
        let of = match &base.kind {
            ExprKind::NamedArg(name) => DescribedData::Named(name),
            ExprKind::Arg(number) => match number.bare().kind {
                ExprKind::Int(number) => DescribedData::Parameter(Parameter::Argument(u8::try_from(number).ok()?)),
                _ => return None,
            },
            ExprKind::Return => DescribedData::Parameter(Parameter::Result),
            _ => return None,
        };
        let is_result = of == DescribedData::Parameter(Parameter::Result);
        if !matches!((self.point_kind, is_result), (Some(PointKind::Exit), _) | (Some(PointKind::Entry), false)) {
            return None;
        }
        let mut found: Option<DataShape> = None;
        for function in self.functions_here.clone() {
            self.looks += 1;
            if self.looks > LOOKS_MAX {
                return None;
            }
            let shape = self.beyond().shown(function, of, &members, follow).ok()?;
            if found.as_ref().is_some_and(|known| *known != shape) {
                return None;
            }
            found.get_or_insert(shape);
        }
        found
    }

    /// Lowers `$arg.NAME`. The argument must be the same in all functions where the code runs.
    pub(super) fn argument_named(&mut self, expr: &'a SyntaxExpr, name: &str) -> Option<Out> {
        let found = self.agreed(expr, name, |program, function| program.argument(function, name))?;
        Some(match found {
            // Without functions, the code runs nowhere.
            None => Out::Arg(0),
            Some(NamedArgument::Float(float)) => self.float_argument(float),
            Some(NamedArgument::Integer { number, scalar }) => extended(Out::Arg(number), scalar),
        })
    }

    /// Returns what the program tells of all functions whose arguments and results the code sees, if it is the same of all of them; `None`
    /// without such functions. `named` is the thing in messages. Notes the names of its values if they are the same in all functions.
    fn agreed<T: PartialEq>(
        &mut self,
        expr: &'a SyntaxExpr,
        named: &str,
        tell: impl Fn(&dyn ProgramFacts, FunctionId) -> Result<WithNames<T>, Unresolved>,
    ) -> Option<Option<T>> {
        let mut found: Option<T> = None;
        self.value_names = None;
        for function in self.getting(expr)? {
            self.looks += 1;
            if self.looks > LOOKS_MAX {
                self.refuse(expr, &format!("what takes more than {LOOKS_MAX} look-ups of members and named arguments"));
                return None;
            }
            let (told, names) = match tell(self.beyond(), function) {
                Ok(told) => told,
                Err(why) => {
                    self.unresolved(expr, why);
                    return None;
                }
            };
            if found.as_ref().is_some_and(|known| *known != told) {
                let name = self.beyond().function_name(function).to_owned();
                self.refuse(expr, &format!("`{named}`, which is another in `{name}`,"));
                return None;
            }
            if found.is_none() {
                self.value_names = names;
            } else if self.value_names != names {
                self.value_names = None;
            }
            found.get_or_insert(told);
        }
        Some(found)
    }

    /// Lowers an assignment to memory: `readSymbol("v") = e`, `$arg[0].m = e`, `readAddress(a) = e`.
    pub(super) fn assigned(&mut self, target: &'a SyntaxExpr, op: AssignOp, value: Out, out: &mut Vec<Stmt>) {
        let change = |old: Out| match op {
            AssignOp::Set => value,
            AssignOp::Add => fold_binary(BinaryOp::Add, old, value),
            AssignOp::Subtract => fold_binary(BinaryOp::Subtract, old, value),
        };
        match self.integer(target) {
            Some(ProgramInteger::Lasting(at, scalar)) => {
                out.push(Stmt::Store(at, scalar.width, change(Out::Load(at, scalar))));
            }
            Some(ProgramInteger::At(mut address, scalar)) => {
                let mut is_plain = true;
                address.each(&mut |e| is_plain &= !matches!(e, Out::Read(..) | Out::Call(_)));
                // The code reads and sets the same integer, even if another thread changes a pointer on the path to it.
                if op != AssignOp::Set && !is_plain {
                    let kept = self.kept_at(target.span, "address");
                    out.push(Stmt::Set(kept, std::mem::replace(&mut address, Out::Variable(kept))));
                }
                let old = Out::Read(Box::new(address.clone()), scalar);
                out.push(Stmt::Write(address, scalar.width, change(old)));
            }
            None => {}
        }
    }

    /// Returns the integer of the program that an assignment sets.
    fn integer(&mut self, target: &'a SyntaxExpr) -> Option<ProgramInteger> {
        let (mut base, mut members) = (target.bare(), Vec::new());
        while let ExprKind::Field(of, field) = &base.kind {
            members.insert(0, field.name.as_str());
            base = of.bare();
        }
        let ExprKind::Call(callee, args) = &base.kind else {
            let (value, access) = self.accessed(target, base, &members)?;
            return Some(ProgramInteger::At(address_in(value, &access), access.scalar));
        };
        let [arg] = args.as_slice() else { return None };
        if callee.name == "readAddress" {
            return self.value(arg).map(|address| ProgramInteger::At(address, Scalar::INT));
        }
        let ExprKind::Text(name) = &arg.bare().kind else {
            self.refuse(target, "a variable whose name is not written out");
            return None;
        };
        let global = match self.beyond().variable(name, &members) {
            Ok(global) => global,
            Err(why) => {
                self.unresolved(target, why);
                return None;
            }
        };
        let IntegerPath { offset, scalar, .. } = global.access;
        let why = match () {
            () if matches!(global.at, VariableLocation::Fleeting(_) | VariableLocation::PerThreadOfLibrary(_))
                && global.access.pointers.is_empty() =>
            {
                "an assignment to what is not in the writable data of the program itself"
            }
            () if !global.described => "an assignment to a variable whose type debugging information does not say",
            () => match (address_from(&global), global.at) {
                (Some(address), _) => return Some(ProgramInteger::At(address, scalar)),
                (None, VariableLocation::Lasting(at)) => {
                    return Some(ProgramInteger::Lasting(Avma(at.0.wrapping_add_signed(offset)), scalar));
                }
                (None, VariableLocation::PerThread(start)) => {
                    return Some(ProgramInteger::At(in_thread(start.wrapping_add(offset)), scalar));
                }
                (None, VariableLocation::Fleeting(_) | VariableLocation::PerThreadOfLibrary(_)) => return None,
            },
        };
        self.refuse(target, why);
        None
    }

    /// Lowers a variable by its name, or the integer to which members lead from it.
    fn symbol(&mut self, expr: &'a SyntaxExpr, name: &'a SyntaxExpr, members: &[&str]) -> Option<Out> {
        let ExprKind::Text(name) = &name.bare().kind else {
            return self.refuse(expr, "a variable whose name is not written out");
        };
        match self.beyond().variable(name, members) {
            Ok(global) => {
                let value = reach_global(&global);
                self.value_names = global.names;
                Some(value)
            }
            Err(why) => self.unresolved(expr, why),
        }
    }

    /// Returns an argument or a result, and the path by which the members lead from it to an integer. The path must be the same in all
    /// functions where the code runs. At a call, it must be the same in all functions that are called.
    fn accessed(&mut self, expr: &'a SyntaxExpr, base: &'a SyntaxExpr, members: &[&str]) -> Option<(Out, IntegerPath)> {
        let value = match &base.kind {
            ExprKind::NamedArg(name) => match self.agreed(base, name, |program, of| program.argument(of, name))? {
                Some(NamedArgument::Integer { number, .. }) => Out::Arg(number),
                Some(NamedArgument::Float(_)) => {
                    self.refuse(expr, "a member of a floating-point number");
                    return None;
                }
                // Without functions, the code runs nowhere.
                None => Out::Arg(0),
            },
            _ => self.value(base)?,
        };
        let of = if let Out::Arg(n) = value { Parameter::Argument(n) } else { Parameter::Result };
        let named = format!(".{}", members.join("."));
        let found = self.agreed(expr, &named, |program, function| program.member(function, of, members))?;
        // Without functions, the code runs nowhere, and the path does not matter.
        let nothing = || IntegerPath { pointers: Vec::new(), offset: 0, scalar: Scalar::INT };
        Some((value, found.unwrap_or_else(nothing)))
    }

    /// Returns the functions whose arguments and results the code sees: those where it runs, or at a call those that are called there.
    fn getting(&mut self, expr: &'a SyntaxExpr) -> Option<Vec<FunctionId>> {
        if !self.point_kind.is_some_and(PointKind::is_at_call) {
            return Some(self.functions_here.clone());
        }
        let mut callees = BTreeSet::new();
        for function in self.functions_here.clone() {
            match self.beyond().callees(function) {
                Ok(called) => callees.extend(called),
                Err(why) => {
                    self.unresolved(expr, why);
                    return None;
                }
            }
        }
        Some(callees.into_iter().collect())
    }

    fn unresolved(&mut self, expr: &'a SyntaxExpr, why: Unresolved) -> Option<Out> {
        match why {
            Unresolved::NotFound { what, help } => {
                self.error(codes::NOT_FOUND, expr.span, what, help.as_deref().unwrap_or_default());
            }
            Unresolved::Unreadable(why) => self.not_woven(expr.span, why),
        }
        None
    }
}

/// An integer of a value that is shown.
pub(super) fn word(of: &DataWord) -> Out {
    let register = match of.origin {
        WordOrigin::Argument(number) => Out::Arg(number),
        WordOrigin::Result => Out::Return,
    };
    match of.offsets.split_last() {
        Some((offset, pointers)) => {
            reach(register, &IntegerPath { pointers: pointers.to_vec(), offset: *offset, scalar: of.scalar })
        }
        None if of.shift == 0 => extended(register, of.scalar),
        None => extended(fold_binary(BinaryOp::ShiftRight, register, Out::Const(of.shift.into())), of.scalar),
    }
}

/// The value of the lowest bytes of a word.
pub(super) fn extended(word: Out, scalar: Scalar) -> Out {
    let bits = i64::from(8 * scalar.width.bytes());
    if bits == 64 {
        return word;
    }
    if !scalar.signed {
        return fold_binary(BinaryOp::And, word, Out::Const((1 << bits) - 1));
    }
    let shifted = fold_binary(BinaryOp::ShiftLeft, word, Out::Const(64 - bits));
    fold_binary(BinaryOp::ShiftRight, shifted, Out::Const(64 - bits))
}

/// Element `index` of an array of `int`.
fn element(array: Out, index: Out) -> Out {
    let offset = fold_binary(BinaryOp::Multiply, index, Out::Const(INT_BYTES));
    Out::Read(Box::new(plus(array, offset)), Scalar::INT)
}

pub(super) fn plus(address: Out, offset: Out) -> Out {
    if offset == Out::Const(0) { address } else { fold_binary(BinaryOp::Add, address, offset) }
}

/// Address of the integer to which a path leads from a value.
fn address_in(value: Out, access: &IntegerPath) -> Out {
    let offset_by = |from, offset: i64| plus(from, Out::Const(offset));
    let read = |from, offset: &i64| Out::Read(Box::new(offset_by(from, *offset)), Scalar::POINTER);
    offset_by(access.pointers.iter().fold(value, read), access.offset)
}

pub(super) fn reach(value: Out, access: &IntegerPath) -> Out {
    Out::Read(Box::new(address_in(value, access)), access.scalar)
}

/// Address of the integer to which a pointer in a variable leads; `None` if the integer lies in the variable itself.
fn address_from(global: &ProgramVariable) -> Option<Out> {
    let IntegerPath { pointers, offset, scalar } = &global.access;
    let (first, rest) = pointers.split_first()?;
    let rest = IntegerPath { pointers: rest.to_vec(), offset: *offset, scalar: *scalar };
    Some(address_in(present(global, *first, Scalar::POINTER), &rest))
}

/// Address at an offset from the thread pointer, of data that each thread has of its own.
fn in_thread(offset: i64) -> Out {
    plus(Out::ThreadPointer, Out::Const(offset))
}

/// An integer at an offset in a variable.
fn present(global: &ProgramVariable, offset: i64, scalar: Scalar) -> Out {
    match global.at {
        VariableLocation::Lasting(at) => Out::Load(Avma(at.0.wrapping_add_signed(offset)), scalar),
        VariableLocation::Fleeting(at) => {
            Out::Read(Box::new(Out::Const(at.0.cast_signed().wrapping_add(offset))), scalar)
        }
        VariableLocation::PerThread(start) | VariableLocation::PerThreadOfLibrary(start) => {
            Out::Read(Box::new(in_thread(start.wrapping_add(offset))), scalar)
        }
    }
}

fn reach_global(global: &ProgramVariable) -> Out {
    let scalar = global.access.scalar;
    match address_from(global) {
        Some(address) => Out::Read(Box::new(address), scalar),
        None => present(global, global.access.offset, scalar),
    }
}
