//! Data of the program in code: variables by their names, members of what they and arguments lead to, integers at addresses.
//!
//! A snippet must never fault. What lasts as long as the process is loaded; everything else is read by a system call, and is 0 where there is
//! nothing.

use ingraft_model::{Avma, BinaryOp, Expr as Out, Float, FloatFormat, Kept, PointKind, Scalar, Stmt};

use super::code::fold_binary;
use super::insert::Place;
use super::meta::Evaluation;
use crate::ast::{AssignOp, Callee, Expr, ExprKind};
use crate::diagnostic::codes;
use crate::program::{Access, Global, Parameter, Unresolved};

/// Most elements that `DYNINSTCountElmsInArray` adds up: each is a system call.
const ELEMENTS_MAX: i64 = 16;
/// Most functions in one request whose arguments or results members are taken of: each is looked for in all debugging information.
const LOOKS_MAX: u32 = 64;
/// Bytes of an `int`, of which Paradyn's arrays are made.
const INT_BYTES: i64 = Scalar::INT.width.bytes() as i64;

impl<'a> Evaluation<'a> {
    /// A call that reads memory; none if it is another one.
    pub(super) fn data(&mut self, expr: &'a Expr, callee: &Callee, args: &'a [Expr]) -> Option<Option<Out>> {
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

    fn sum(&mut self, expr: &'a Expr, array: &'a Expr, count: &'a Expr) -> Option<Out> {
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

    /// `….field`: a member of data of the program, or a field that the meta language knows.
    pub(super) fn member(&mut self, expr: &'a Expr, of: &'a Expr, field: &'a str) -> Option<Out> {
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
            ExprKind::Arg(_) => match self.value(base)? {
                Out::Arg(n) => self.member_of(expr, Parameter::Argument(n), Out::Arg(n), &members),
                _ => None,
            },
            ExprKind::Return => {
                let value = self.value(base)?;
                self.member_of(expr, Parameter::Result, value, &members)
            }
            _ => self.known(expr),
        }
    }

    /// `$arg[n].double`, `$return.float`: words of C that no member can have.
    fn float(&mut self, expr: &Expr, base: &'a Expr, members: &[&str]) -> Option<Option<Out>> {
        let format = match members {
            ["float"] => FloatFormat::Single,
            ["double"] => FloatFormat::Double,
            _ => return None,
        };
        Some(match &base.kind {
            ExprKind::Arg(_) => match self.value(base) {
                Some(Out::Arg(n)) if n < Float::ARGS_MAX => {
                    let float = Float { register: n, format };
                    let at_beginning = self.place.is_none_or(|p| p == Place::ENTRY || p == Place::BEFORE_CALL);
                    Some(if at_beginning { Out::Float(float) } else { Out::Saved(Kept::Float(float)) })
                }
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

    /// `readSymbol("v") = e`: what lies in the program's own file, whose type is known.
    pub(super) fn assigned(&mut self, target: &'a Expr, op: AssignOp, value: Out) -> Option<Stmt> {
        let (mut base, mut members) = (target.bare(), Vec::new());
        while let ExprKind::Field(of, field) = &base.kind {
            members.insert(0, field.name.as_str());
            base = of.bare();
        }
        let ExprKind::Call(_, args) = &base.kind else { return None };
        let Some(ExprKind::Text(name)) = args.first().map(|name| &name.bare().kind) else {
            self.refuse(target, "a variable whose name is not written out");
            return None;
        };
        let global = match self.program.variable(name, &members) {
            Ok(global) => global,
            Err(why) => {
                self.unresolved(target, why);
                return None;
            }
        };
        let why = match () {
            () if !global.access.pointers.is_empty() => "an assignment through a pointer",
            () if !global.lasts => "an assignment to what is not in the writable data of the program itself",
            () if !global.described => "an assignment to a variable whose type debugging information does not say",
            () => {
                let Access { offset, scalar, .. } = global.access;
                let at = Avma(global.at.0.wrapping_add_signed(offset));
                let old = || Out::Load(at, scalar);
                let value = match op {
                    AssignOp::Set => value,
                    AssignOp::Add => fold_binary(BinaryOp::Add, old(), value),
                    AssignOp::Subtract => fold_binary(BinaryOp::Subtract, old(), value),
                };
                return Some(Stmt::Store(at, scalar.width, value));
            }
        };
        self.refuse(target, why);
        None
    }

    /// The variable of a name, or what members lead to in it.
    fn symbol(&mut self, expr: &'a Expr, name: &'a Expr, members: &[&str]) -> Option<Out> {
        let ExprKind::Text(name) = &name.bare().kind else {
            return self.refuse(expr, "a variable whose name is not written out");
        };
        match self.program.variable(name, members) {
            Ok(global) => Some(reach_global(&global)),
            Err(why) => self.unresolved(expr, why),
        }
    }

    /// What members lead to from an argument or a result: the same in all functions where the code runs.
    fn member_of(&mut self, expr: &'a Expr, of: Parameter, value: Out, members: &[&str]) -> Option<Out> {
        if self.place.is_some_and(|place| place.point == PointKind::Call) {
            return self.refuse(expr, "a member of what a callee gets or gives");
        }
        let mut found: Option<Access> = None;
        for function in self.there.clone() {
            self.looks += 1;
            if self.looks > LOOKS_MAX {
                return self.refuse(expr, &format!("a member of what more than {LOOKS_MAX} functions get or give"));
            }
            let access = match self.program.member(function, of, members) {
                Ok(access) => access,
                Err(why) => return self.unresolved(expr, why),
            };
            match &found {
                Some(known) if *known != access => {
                    let name = self.program.function_name(function).to_owned();
                    let what = format!("`.{}`, which is another in `{name}`,", members.join("."));
                    return self.refuse(expr, &what);
                }
                Some(_) => {}
                None => found = Some(access),
            }
        }
        // without functions the code runs nowhere
        Some(found.map_or(Out::Const(0), |access| reach(value, &access)))
    }

    fn unresolved(&mut self, expr: &'a Expr, why: Unresolved) -> Option<Out> {
        match why {
            Unresolved::NotFound { what, help } => {
                self.error(codes::NOT_FOUND, expr.span, what, help.as_deref().unwrap_or_default());
            }
            Unresolved::Unreadable(why) => self.not_woven(expr.span, why),
        }
        None
    }
}

/// Element `index` of an array of `int`.
fn element(array: Out, index: Out) -> Out {
    let offset = fold_binary(BinaryOp::Multiply, index, Out::Const(INT_BYTES));
    Out::Read(Box::new(plus(array, offset)), Scalar::INT)
}

pub(super) fn plus(address: Out, offset: Out) -> Out {
    if offset == Out::Const(0) { address } else { fold_binary(BinaryOp::Add, address, offset) }
}

fn reach(value: Out, access: &Access) -> Out {
    let read = |from, offset: i64, scalar| Out::Read(Box::new(plus(from, Out::Const(offset))), scalar);
    let last = access.pointers.iter().fold(value, |from, offset| read(from, *offset, Scalar::POINTER));
    read(last, access.offset, access.scalar)
}

fn reach_global(global: &Global) -> Out {
    let Access { pointers, offset, scalar } = &global.access;
    let (first, kind) = match pointers.first() {
        Some(first) => (*first, Scalar::POINTER),
        None => (*offset, *scalar),
    };
    let at = Avma(global.at.0.wrapping_add_signed(first));
    let value = match global.lasts {
        true => Out::Load(at, kind),
        false => Out::Read(Box::new(Out::Const(at.0.cast_signed())), kind),
    };
    match pointers.split_first() {
        Some((_, rest)) => reach(value, &Access { pointers: rest.to_vec(), offset: *offset, scalar: *scalar }),
        None => value,
    }
}
