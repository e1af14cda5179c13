//! Snippets: what to do at a point, independent of the machine. No loops, so that every snippet has a worst-case cost
//! (hollingsworth97, section 3).

use std::fmt;

/// A variable of a metric-focus pair: one slot in every shard. The number is local to its [`crate::snippet`] set until the
/// engine binds it to a counter index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct VariableId(pub u32);

/// Operators of one operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum UnaryOp {
    /// Two's complement negation.
    Negate,
    /// Logical not: 1 for 0, otherwise 0.
    Not,
    /// Bitwise complement.
    Complement,
}

/// Operators of two operands, on signed 64-bit integers that wrap. Comparisons and logic give 0 or 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the names say it")]
pub enum BinaryOp {
    Add,
    Subtract,
    Multiply,
    /// Signed, towards zero; by zero gives 0, as a snippet must not fault.
    Divide,
    /// Signed; by zero gives 0.
    Remainder,
    And,
    Or,
    Xor,
    ShiftLeft,
    ShiftRight,
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
    LogicalAnd,
    LogicalOr,
}

/// A value: 64 bits, signed.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Expr {
    /// A constant.
    Const(i64),
    /// The n-th integer argument of the function at whose entry the snippet stands, from 0 (System V: rdi, rsi, rdx, rcx,
    /// r8, r9, then the stack).
    Arg(u8),
    /// This thread's value of a variable.
    Variable(VariableId),
    /// An operator applied to one value.
    Unary(UnaryOp, Box<Expr>),
    /// An operator applied to two values.
    Binary(BinaryOp, Box<Expr>, Box<Expr>),
}

/// One thing to do.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Stmt {
    /// Add a value to this thread's slot of a variable.
    Add(VariableId, Expr),
    /// Set this thread's slot of a variable.
    Set(VariableId, Expr),
    /// Do the statements if the value is not 0.
    If(Expr, Vec<Stmt>),
}

/// What one request does at one point.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub struct Snippet {
    /// The statements, in order.
    pub stmts: Vec<Stmt>,
}

impl Snippet {
    /// `variable++`, the snippet of a count.
    pub fn increment(variable: VariableId) -> Self {
        Snippet { stmts: vec![Stmt::Add(variable, Expr::Const(1))] }
    }

    /// The variable if the snippet is nothing but one increment by 1: the case with the shortest code.
    pub fn as_increment(&self) -> Option<VariableId> {
        match self.stmts.as_slice() {
            [Stmt::Add(variable, Expr::Const(1))] => Some(*variable),
            _ => None,
        }
    }
}

impl BinaryOp {
    /// The operator as it is written.
    pub fn symbol(self) -> &'static str {
        match self {
            BinaryOp::Add => "+",
            BinaryOp::Subtract => "-",
            BinaryOp::Multiply => "*",
            BinaryOp::Divide => "/",
            BinaryOp::Remainder => "%",
            BinaryOp::And => "&",
            BinaryOp::Or => "|",
            BinaryOp::Xor => "^",
            BinaryOp::ShiftLeft => "<<",
            BinaryOp::ShiftRight => ">>",
            BinaryOp::Equal => "==",
            BinaryOp::NotEqual => "!=",
            BinaryOp::Less => "<",
            BinaryOp::LessOrEqual => "<=",
            BinaryOp::Greater => ">",
            BinaryOp::GreaterOrEqual => ">=",
            BinaryOp::LogicalAnd => "&&",
            BinaryOp::LogicalOr => "||",
        }
    }
}

impl fmt::Display for Expr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Expr::Const(value) => write!(f, "{value}"),
            Expr::Arg(n) => write!(f, "$arg[{n}]"),
            Expr::Variable(v) => write!(f, "v{}", v.0),
            Expr::Unary(op, e) => {
                let symbol = match op {
                    UnaryOp::Negate => "-",
                    UnaryOp::Not => "!",
                    UnaryOp::Complement => "~",
                };
                write!(f, "{symbol}({e})")
            }
            Expr::Binary(op, a, b) => write!(f, "({a} {} {b})", op.symbol()),
        }
    }
}

impl fmt::Display for Stmt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Stmt::Add(v, Expr::Const(1)) => write!(f, "v{}++;", v.0),
            Stmt::Add(v, e) => write!(f, "v{} += {e};", v.0),
            Stmt::Set(v, e) => write!(f, "v{} = {e};", v.0),
            Stmt::If(c, body) => {
                write!(f, "if ({c}) {{")?;
                for s in body {
                    write!(f, " {s}")?;
                }
                write!(f, " }}")
            }
        }
    }
}

impl fmt::Display for Snippet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, s) in self.stmts.iter().enumerate() {
            if i > 0 {
                f.write_str(" ")?;
            }
            write!(f, "{s}")?;
        }
        Ok(())
    }
}
