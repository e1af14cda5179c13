//! ELF images to functions, control flow and points.
