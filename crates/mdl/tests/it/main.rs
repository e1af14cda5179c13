//! Tests of the whole language: texts in, and findings, metrics, snippets and texts out.

mod alike;
mod docs;
mod evaluate;
mod frames;
mod golden;
mod paradyn;
mod print;
mod recorded;
mod samples;
mod shipped;
mod sound;
mod soup;
mod support;
