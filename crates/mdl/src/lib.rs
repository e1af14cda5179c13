//! Metric Description Language: it says what is measured, where code goes, and which code.
//!
//! The crate turns texts and a focus into findings, metrics and snippets. It knows no files, processes or machine code.
//!
//! ```
//! use ingraft_mdl::{Library, ParseOptions, RenderStyle};
//!
//! let mut library = Library::new(ParseOptions::default());
//! let findings = library.load("my.mdl", "metric m { name \"m\"; base is counter { } }");
//! assert_eq!(findings[0].message, "the metric `m` lacks `units`, `aggregateOperator`, `style`");
//! print!("{}", library.render(&findings, RenderStyle::Plain));
//! assert!(library.metrics().is_empty());
//! ```
//!
//! The stages: `lex` and `parse` make the tree ([`ast`]) and recover from errors. `check` is the static stage, which checks all that does
//! not depend on a program. [`evaluate`] is the request stage, for a metric, a focus and a [`ProgramFacts`]. `print` writes the tree.

#![forbid(unsafe_code)]
#![warn(clippy::too_many_lines)]

pub mod ast;
mod check;
mod diagnostic;
mod evaluate;
mod lex;
mod library;
mod number;
mod parse;
mod pattern;
mod print;
mod program;
mod regex;
mod render;
pub mod shipped;
mod source;

pub use diagnostic::{Diagnostic, Severity, codes};
pub use evaluate::{Evaluated, Evaluator, EventReadMethod, evaluate};
pub use library::{Library, ProcessDefinition};
pub use parse::{ParseOptions, parse};
pub use pattern::Exclusion;
pub use print::{format, print};
pub use program::{
    DescribedData, IntegerPath, NamedArgument, Parameter, ProgramFacts, ProgramVariable, Unresolved, VariableLocation,
    WithNames,
};
pub use render::{RenderStyle, render};
pub use source::{SourceSpan, SourceText};
