//! Metric Description Language: lexer, parser, checker, printer, evaluation.

#![forbid(unsafe_code)]

pub mod ast;
mod check;
mod diagnostic;
mod evaluate;
mod lex;
mod library;
mod parse;
mod pattern;
mod print;
mod program;
mod regex;

mod render;
pub mod shipped;
mod source;

pub use diagnostic::{Diagnostic, Severity, codes};
pub use evaluate::{Insertion, Instrumentation, Order, Role, Variable, VariableKind, evaluate};
pub use library::{Library, ProcessDefinition};
pub use parse::{Options, parse};
pub use pattern::Exclusion;
pub use print::{format, print};
pub use program::{FunctionRef, ModuleRef, Program};
pub use render::{Look, render};
pub use source::{Source, Span};
