//! Metric Description Language: lexer, parser, checker, printer, evaluation.
