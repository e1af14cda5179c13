//! Syntax tree of an MDL source. Every node keeps its position in the source. Older spellings have the same nodes as the present ones.

pub use ingraft_model::snippet::{BinaryOp, Clock, UnaryOp};
use ingraft_model::{Aggregate, Style, UnitsType};

use crate::source::SourceSpan;

/// A name with its position in the source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ident {
    /// The name, with its `$` if it has one.
    pub name: String,
    /// Position in the source.
    pub span: SourceSpan,
}

/// A string with its position in the source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TextLiteral {
    /// The value, escapes resolved.
    pub value: String,
    /// Position in the source, quotes included.
    pub span: SourceSpan,
}

/// A whole source.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct MdlFile {
    /// Definitions of the source, in order.
    pub definitions: Vec<Definition>,
    /// Comments of the source with their marks, in order.
    pub comments: Vec<SourceSpan>,
}

/// One definition.
#[derive(Clone, Debug, PartialEq)]
pub struct Definition {
    /// Kind of the definition.
    pub kind: DefinitionKind,
    /// Position in the source, from the definition's first token to its last.
    pub span: SourceSpan,
    /// Comment directly before the definition, in one line; empty if there is none.
    pub doc: String,
    /// Whether a part of the definition could not be parsed. Such a definition is checked, but not used.
    pub broken: bool,
}

/// The kinds of definition.
#[derive(Clone, Debug, PartialEq)]
pub enum DefinitionKind {
    /// `resourceList`.
    List(ListDefinition),
    /// A `constraint` that any metric may name.
    Constraint(ConstraintDefinition),
    /// `metric`.
    Metric(MetricDefinition),
    /// `exclude`.
    Exclude(ExcludeDefinition),
    /// `daemon`, `process`, `visi` or `tunable_constant`.
    Config(ConfigBlock),
    /// A statement outside of definitions: legal, without effect.
    Statement(MetaStatement),
}

/// A named list of things in the program.
#[derive(Clone, Debug, PartialEq)]
pub struct ListDefinition {
    /// Name of the list.
    pub name: Ident,
    /// Kind of the items.
    pub element: ElementKind,
    /// The items; numbers are quoted, too.
    pub items: Vec<TextLiteral>,
    /// Flavors for which the list exists; empty: all.
    pub flavors: Vec<Ident>,
    /// Whether the `.tag` of the listed functions is 1: they count as part of their callers (`libraryTag`).
    pub library: bool,
}

/// Kind of the items of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub enum ElementKind {
    Procedure,
    Module,
    String,
    Int,
    Float,
}

/// `constraint NAME PATH is …`.
#[derive(Clone, Debug, PartialEq)]
pub struct ConstraintDefinition {
    /// Name of the constraint, which is also the name of its flag.
    pub name: Ident,
    /// Path to which the constraint restricts a metric.
    pub path: ResourcePattern,
    /// Method by which the constraint restricts a metric.
    pub body: ConstraintBody,
}

/// Method by which a constraint restricts.
#[derive(Clone, Debug, PartialEq)]
pub enum ConstraintBody {
    /// By a flag that the statements maintain.
    Flag(Vec<MetaStatement>),
    /// The constraint allows its path and needs no flag. If it names kinds, it allows only these kinds of /SyncObject.
    Default(Vec<TextLiteral>),
    /// By a flag that is not 0 while the resource is anywhere on the thread's stack.
    Inclusive,
    /// By a flag that is not 0 while the resource itself executes.
    Exclusive,
    /// By code that takes the place of the metric's own.
    Replace(Accumulator, Vec<MetaStatement>),
}

/// Path of resources, as `/Code/*`.
#[derive(Clone, Debug, PartialEq)]
pub struct ResourcePattern {
    /// Names of the path, the root first; `*` stands for any resource.
    pub parts: Vec<Ident>,
    /// Position of the path in the source; for an empty path, the place where it would be.
    pub span: SourceSpan,
}

/// `metric NAME { … }`.
#[derive(Clone, Debug, PartialEq)]
pub struct MetricDefinition {
    /// The variable that the metric's code updates.
    pub ident: Ident,
    /// Fields of the definition, in order.
    pub fields: Vec<MetricField>,
}

/// One field of a metric.
#[derive(Clone, Debug, PartialEq)]
pub struct MetricField {
    /// Kind of the field.
    pub kind: FieldKind,
    /// Position in the source, from the field's keyword to its end.
    pub span: SourceSpan,
}

/// The fields of a metric.
#[derive(Clone, Debug, PartialEq)]
pub enum FieldKind {
    /// The public name.
    Name(TextLiteral),
    /// The unit.
    Units(Ident),
    /// Operation that combines values.
    Aggregate(Aggregate),
    /// Whether the value counts events or is a level.
    Style(Style),
    /// Whether the metric is only for developers.
    Developer(bool),
    /// Labels of rates and totals.
    UnitsType(UnitsType),
    /// Flavors for which the metric exists.
    Flavor(Vec<Ident>),
    /// Name of a constraint that is defined outside the metric.
    Use(Ident),
    /// A constraint that is defined inside the metric.
    Constraint(ConstraintDefinition),
    /// A scratch variable.
    Scratch(Ident),
    /// Index of a metric that has one value per index.
    Vector(VectorIndex),
    /// Computation of the unrestricted metric.
    Base(BaseMetric),
}

/// Index of a vectorised metric.
#[derive(Clone, Debug, PartialEq)]
pub enum VectorIndex {
    /// The items of a list.
    List(Ident),
    /// Results of a function of the program: the function's name, and the number of slots. A result is less than this number.
    Map(TextLiteral, i64),
    /// Ranges of equal size: the first number, the length of all ranges together, and the length of one (granule).
    Table(i64, i64, i64),
    /// Any numbers, which the code computes while the program runs.
    Keys,
    /// The synchronisation objects that the code discovers and retires, by address.
    Objects,
}

/// `base is KIND { … }`.
#[derive(Clone, Debug, PartialEq)]
pub struct BaseMetric {
    /// Kind of the accumulation.
    pub kind: Accumulator,
    /// The hardware event of `hwCounter` and `hwTimer`.
    pub event: Option<TextLiteral>,
    /// Statements that put code at points.
    pub body: Vec<MetaStatement>,
}

/// Kind of the accumulation of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accumulator {
    /// A 64-bit integer.
    Counter,
    /// Nanoseconds of the wall clock.
    WallTimer,
    /// Nanoseconds of processor time.
    ProcessTimer,
    /// Hardware events between start and stop.
    HwTimer,
    /// Hardware events, sampled.
    HwCounter,
    /// No value: the metric has only code.
    Void,
    /// A distribution of values.
    Histogram,
}

/// `exclude …;`.
#[derive(Clone, Debug, PartialEq)]
pub struct ExcludeDefinition {
    /// Whether the pattern ignores letter case.
    pub no_case: bool,
    /// Whether the pattern is a regular expression instead of a shell pattern.
    pub regex: bool,
    /// `/Code/MODULE` or `/Code/MODULE/FUNCTION`.
    pub pattern: TextLiteral,
}

/// A block that configures something.
#[derive(Clone, Debug, PartialEq)]
pub struct ConfigBlock {
    /// Kind of the configuration.
    pub kind: ConfigKind,
    /// Name of the configured thing; `tunable_constant` has none.
    pub name: Option<Ident>,
    /// Items of the configuration, in order.
    pub items: Vec<ConfigItem>,
}

/// The kinds of configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ConfigKind {
    /// Start of a daemon.
    Daemon,
    /// A program to start.
    Process,
    /// A program that shows values.
    Visi,
    /// Constants of the front end.
    Tunables,
}

/// `KEY VALUE;`.
#[derive(Clone, Debug, PartialEq)]
pub struct ConfigItem {
    /// Key of the item; for a tunable, the tunable's name.
    pub key: Ident,
    /// Value of the item.
    pub value: ConfigValue,
    /// Position of the value in the source.
    pub span: SourceSpan,
}

/// A value in a configuration.
#[derive(Clone, Debug, PartialEq)]
pub enum ConfigValue {
    /// A string in quotes.
    Text(String),
    /// A bare word.
    Word(String),
    /// A whole number.
    Int(i64),
    /// A number with a decimal point.
    Fixed(f64),
    /// True or false.
    Bool(bool),
    /// Several strings: the arguments in the oldest files.
    Texts(Vec<String>),
}

/// A statement that the tool executes when a request arrives.
#[derive(Clone, Debug, PartialEq)]
pub struct MetaStatement {
    /// Kind of the statement.
    pub kind: MetaKind,
    /// Position of the whole statement in the source.
    pub span: SourceSpan,
}

/// The statements of the meta language.
#[derive(Clone, Debug, PartialEq)]
pub enum MetaKind {
    /// `{ … }`.
    Block(Vec<MetaStatement>),
    /// `foreach VAR in LIST …`.
    Foreach(Ident, SyntaxExpr, Box<MetaStatement>),
    /// `if (…) … else …`.
    If(SyntaxExpr, Box<MetaStatement>, Option<Box<MetaStatement>>),
    /// `append preInsn …`.
    Insert(InsertStatement),
}

/// `append|prepend preInsn|postInsn POINTS constrained (* CODE *)`.
#[derive(Clone, Debug, PartialEq)]
pub struct InsertStatement {
    /// Whether the code runs first among the code at its points instead of last.
    pub prepend: bool,
    /// Whether the code runs after the instruction of the point instead of before it.
    pub after: bool,
    /// Expression that names the points.
    pub points: SyntaxExpr,
    /// Whether the code runs only while the flags of the request's constraints are not 0.
    pub constrained: bool,
    /// Statements of the code.
    pub code: Vec<CodeStatement>,
    /// The code with its brackets.
    pub code_span: SourceSpan,
}

/// A statement that the program executes.
#[derive(Clone, Debug, PartialEq)]
pub struct CodeStatement {
    /// Kind of the statement.
    pub kind: CodeKind,
    /// Position of the whole statement in the source.
    pub span: SourceSpan,
}

/// The statements of the code language.
#[derive(Clone, Debug, PartialEq)]
pub enum CodeKind {
    /// `{ … }`.
    Block(Vec<CodeStatement>),
    /// `if (…) … else …`.
    If(SyntaxExpr, Box<CodeStatement>, Option<Box<CodeStatement>>),
    /// An expression for its effect.
    Expr(SyntaxExpr),
}

/// An expression of either language.
#[derive(Clone, Debug, PartialEq)]
pub struct SyntaxExpr {
    /// Kind of the expression.
    pub kind: ExprKind,
    /// Position of the whole expression in the source.
    pub span: SourceSpan,
}

/// The expressions.
#[derive(Clone, Debug, PartialEq)]
pub enum ExprKind {
    /// A number.
    Int(i64),
    /// A string.
    Text(String),
    /// A variable, a list, or a predefined name.
    Name(String),
    /// `$arg.NAME`: the argument that debugging information calls so.
    NamedArg(String),
    /// `$return`.
    Return,
    /// `$globalId`.
    GlobalId,
    /// `$caller`: the return address of the call.
    Caller,
    /// `$elapsed`, `$cpu`.
    Elapsed(Clock),
    /// `$self`.
    SelfTime,
    /// `$own`.
    Own,
    /// `$arg[…]`.
    Arg(Box<SyntaxExpr>),
    /// `name[…]`.
    Index(Ident, Box<SyntaxExpr>),
    /// `a, b`: the parts of a key, only between the brackets of an index.
    Row(Vec<SyntaxExpr>),
    /// `….field`.
    Field(Box<SyntaxExpr>, Ident),
    /// `f(…)` and `Call("f", …)`.
    Call(CalledName, Vec<SyntaxExpr>),
    /// `&x`.
    Address(Box<SyntaxExpr>),
    /// `-x`, `!x`, `~x`.
    Unary(UnaryOp, Box<SyntaxExpr>),
    /// `x++` (true) or `x--`.
    Step(Box<SyntaxExpr>, bool),
    /// `x = …`, `x += …`, `x -= …`.
    Assign(Box<SyntaxExpr>, AssignOp, Box<SyntaxExpr>),
    /// `a + b`.
    Binary(BinaryOp, Box<SyntaxExpr>, Box<SyntaxExpr>),
    /// `(…)`, kept so that the printer shows what the author wrote.
    Paren(Box<SyntaxExpr>),
}

/// Function that a call names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CalledName {
    /// The function's name.
    pub name: String,
    /// Position of the name in the source.
    pub span: SourceSpan,
    /// Whether the call is written as `Call("f", …)`, which always calls a function of the program.
    pub quoted: bool,
}

/// The assignments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub enum AssignOp {
    Set,
    Add,
    Subtract,
}

impl SyntaxExpr {
    /// Whether the expression is an argument, a result or a variable of the program, or a member of one.
    pub(crate) fn is_data(&self) -> bool {
        match &self.bare().kind {
            ExprKind::Field(of, _) => of.is_data(),
            ExprKind::Call(callee, _) => callee.name == "readSymbol" && !callee.quoted,
            ExprKind::Arg(_) | ExprKind::NamedArg(_) | ExprKind::Return => true,
            _ => false,
        }
    }

    /// Whether the expression is an integer of the program that can be set: a variable, a member, or the word at an address,
    /// `readAddress(a)`.
    pub(crate) fn is_memory(&self) -> bool {
        match &self.bare().kind {
            ExprKind::Arg(_) | ExprKind::NamedArg(_) | ExprKind::Return => false,
            ExprKind::Call(callee, _) if callee.name == "readAddress" => !callee.quoted,
            _ => self.is_data(),
        }
    }

    /// The address and perhaps the length of the text that the expression reads, if it is `str(…)`.
    pub(crate) fn text_read(&self) -> Option<&[SyntaxExpr]> {
        match &self.bare().kind {
            ExprKind::Call(callee, parts) if callee.name == "str" && !callee.quoted => Some(parts),
            _ => None,
        }
    }

    /// Returns the expression without the parentheses around it.
    pub fn bare(&self) -> &SyntaxExpr {
        let mut expr = self;
        while let ExprKind::Paren(inner) = &expr.kind {
            expr = inner;
        }
        expr
    }
}

impl ElementKind {
    /// All kinds of items, with their keywords.
    pub const ALL: [(&'static str, ElementKind); 5] = [
        ("procedure", ElementKind::Procedure),
        ("module", ElementKind::Module),
        ("string", ElementKind::String),
        ("int", ElementKind::Int),
        ("float", ElementKind::Float),
    ];

    /// The keyword.
    pub fn keyword(self) -> &'static str {
        keyword_of(&Self::ALL, self)
    }
}

impl Accumulator {
    /// All kinds of accumulation, with their keywords.
    pub const ALL: [(&'static str, Accumulator); 7] = [
        ("counter", Accumulator::Counter),
        ("wallTimer", Accumulator::WallTimer),
        ("processTimer", Accumulator::ProcessTimer),
        ("hwTimer", Accumulator::HwTimer),
        ("hwCounter", Accumulator::HwCounter),
        ("void", Accumulator::Void),
        ("histogram", Accumulator::Histogram),
    ];

    /// The keyword.
    pub fn keyword(self) -> &'static str {
        keyword_of(&Self::ALL, self)
    }
}

impl ConfigKind {
    /// All kinds of configuration, with their keywords.
    pub const ALL: [(&'static str, ConfigKind); 4] = [
        ("daemon", ConfigKind::Daemon),
        ("process", ConfigKind::Process),
        ("visi", ConfigKind::Visi),
        ("tunable_constant", ConfigKind::Tunables),
    ];

    /// The keyword.
    pub fn keyword(self) -> &'static str {
        keyword_of(&Self::ALL, self)
    }
}

impl AssignOp {
    /// Returns the operator as MDL writes it.
    pub fn symbol(self) -> &'static str {
        match self {
            AssignOp::Set => "=",
            AssignOp::Add => "+=",
            AssignOp::Subtract => "-=",
        }
    }
}

fn keyword_of<T: PartialEq + Copy>(all: &[(&'static str, T)], value: T) -> &'static str {
    all.iter().find(|(_, v)| *v == value).map_or("", |(k, _)| k)
}

/// Binding strength of an operator of two operands in C; 1 is the loosest.
pub(crate) fn precedence(op: BinaryOp) -> u8 {
    match op {
        BinaryOp::LogicalOr => 1,
        BinaryOp::LogicalAnd => 2,
        BinaryOp::Or => 3,
        BinaryOp::Xor => 4,
        BinaryOp::And => 5,
        BinaryOp::Equal | BinaryOp::NotEqual => 6,
        BinaryOp::Less | BinaryOp::LessOrEqual | BinaryOp::Greater | BinaryOp::GreaterOrEqual => 7,
        BinaryOp::ShiftLeft | BinaryOp::ShiftRight => 8,
        BinaryOp::Add | BinaryOp::Subtract => 9,
        BinaryOp::Multiply | BinaryOp::Divide | BinaryOp::Remainder => 10,
    }
}

/// All operators of two operands.
pub(crate) const BINARY: [BinaryOp; 18] = [
    BinaryOp::Add,
    BinaryOp::Subtract,
    BinaryOp::Multiply,
    BinaryOp::Divide,
    BinaryOp::Remainder,
    BinaryOp::And,
    BinaryOp::Or,
    BinaryOp::Xor,
    BinaryOp::ShiftLeft,
    BinaryOp::ShiftRight,
    BinaryOp::Equal,
    BinaryOp::NotEqual,
    BinaryOp::Less,
    BinaryOp::LessOrEqual,
    BinaryOp::Greater,
    BinaryOp::GreaterOrEqual,
    BinaryOp::LogicalAnd,
    BinaryOp::LogicalOr,
];

impl MetricDefinition {
    /// Returns what `pick` returns for the last field that it accepts: a repeated field replaces the earlier one.
    fn last<'a, T>(&'a self, pick: impl Fn(&'a FieldKind) -> Option<T>) -> Option<T> {
        self.fields.iter().rev().find_map(|f| pick(&f.kind))
    }

    /// The public name.
    pub fn name(&self) -> Option<&TextLiteral> {
        self.last(|f| if let FieldKind::Name(t) = f { Some(t) } else { None })
    }

    /// The unit.
    pub fn units(&self) -> Option<&Ident> {
        self.last(|f| if let FieldKind::Units(u) = f { Some(u) } else { None })
    }

    /// Operation that combines values.
    pub fn aggregate(&self) -> Option<Aggregate> {
        self.last(|f| if let FieldKind::Aggregate(a) = f { Some(*a) } else { None })
    }

    /// Whether the value counts events or is a level.
    pub fn style(&self) -> Option<Style> {
        self.last(|f| if let FieldKind::Style(s) = f { Some(*s) } else { None })
    }

    /// Labels of rates and totals.
    pub fn units_type(&self) -> UnitsType {
        self.last(|f| if let FieldKind::UnitsType(u) = f { Some(*u) } else { None }).unwrap_or_default()
    }

    /// Whether the metric is only for developers.
    pub fn developer(&self) -> bool {
        self.last(|f| if let FieldKind::Developer(d) = f { Some(*d) } else { None }).unwrap_or(false)
    }

    /// Flavors for which the metric exists; empty: all.
    pub fn flavors(&self) -> &[Ident] {
        self.last(|f| if let FieldKind::Flavor(v) = f { Some(v.as_slice()) } else { None }).unwrap_or_default()
    }

    /// Computation of the unrestricted metric.
    pub fn base(&self) -> Option<&BaseMetric> {
        self.last(|f| if let FieldKind::Base(b) = f { Some(b) } else { None })
    }

    /// Returns the hardware event whose count is the metric's value; `None` if the metric has code, which then reads the event itself.
    pub fn event(&self) -> Option<&TextLiteral> {
        let base = self.base().filter(|b| b.kind == Accumulator::HwCounter && b.body.is_empty())?;
        base.event.as_ref().filter(|_| self.vector().is_none())
    }

    /// Index of the vectorised metric.
    pub fn vector(&self) -> Option<&VectorIndex> {
        self.last(|f| if let FieldKind::Vector(v) = f { Some(v) } else { None })
    }

    /// Scratch variables of the metric.
    pub fn scratch(&self) -> impl Iterator<Item = &Ident> {
        self.fields.iter().filter_map(|f| if let FieldKind::Scratch(i) = &f.kind { Some(i) } else { None })
    }
}
