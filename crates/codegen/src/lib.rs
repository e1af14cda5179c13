//! Snippets to machine code, trampolines, springboards, patch plans and their verifier.
//!
//! ```text
//! function:  jmp base            (springboard: 5 bytes, or 2 bytes to an island of 5)
//!
//! slow:      lea r, [slot]       arena, one block per point
//!            jmp slow_routine    (shared by all points that use register r)
//! base:      is gs this thread's shard? if not: jne slow
//! slot:      inc qword gs:[counter]   if a plain count is all there is, else
//!            jmp mini            (live: rewritten when snippets come and go)
//! leave:     what base saved is restored (usually nothing)
//! tail:      the displaced instructions, made to work here
//!            jmp home
//! mini:      inc qword gs:[counter]
//!            jmp next mini, or leave
//! ```
//!
//! A call of five to eight bytes need not be displaced if it can be made to lead to the base. Then it pushes the same return address as
//! ever, and the tail is a jump to the callee. `call rel32` gets another displacement. An indirect call of five to eight bytes becomes a
//! direct one that ends at the same address.
//!
//! If another point displaces the instruction of a point, the springboard of the latter lies over the copy of the instruction.
//!
//! All results are values. [`weave_points`] makes a [`ingraft_model::PatchPlan`] and [`WovenPoint`]s, each with the [`RemovalRecord`] that
//! undoes it without this crate. [`verify`] proves both from the bytes alone. Only the routines that call a function of the program or of
//! the vDSO contain a call instruction. Elsewhere no return address points into an arena, so a change of code must examine only program
//! counters.

#![forbid(unsafe_code)]
#![warn(clippy::too_many_lines)]

mod code;
mod patch;
mod snippet;
pub mod verify;

pub use code::arena::Arena;
pub use code::body::{CountingCopy, Gate, Held, Probe, Way, WovenBody};
pub use code::cost::{Cost, SLOTS_PER_CYCLE};
pub use code::environment::{CodegenError, Environment, Readable};
pub use code::reach::counters_in_reach;
pub use code::spread::{OneThread, Spread};
pub use code::woven::{DisplacedCopy, MiniCode, RemovalRecord, StackView, WovenMini, WovenPoint};
pub use patch::bodies::{weave_bodies_on, weave_body};
pub use patch::body::{BodyCode, BodyPoint, BodyRequest, BodyWeave};
pub use patch::chain::{Chain, Linked};
pub use patch::change::{add_mini, add_mini_from, remove_mini, remove_points, remove_within};
pub use patch::lower::{Line, Lowered, generic_site, lower, price};
pub use patch::rehost::{Rehosted, rehost};
pub use patch::renewal::{CountingRenewal, renew_counting};
pub use patch::text_space::TextSpace;
pub use patch::weave::{PointRequest, Weave, weave_points, weave_points_on};
pub use patch::with_copy::{WithCopy, share_slow_routines};
pub use snippet::inline::{BoundSnippet, InlineCode, InlinePoint};
pub use snippet::mini::MiniRequest;
pub use snippet::template::Templates;
