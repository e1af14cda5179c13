//! Snippets to machine code, trampolines, springboards, patch plans and their verifier.
