//! Parts that profiles of functions share, whether they count or only tell what has run: their functions, the threads inside of these, and
//! the jumps out of signal handlers.

pub mod functions;
pub mod leaps;
pub mod stands;
