//! The ingraft command line.
