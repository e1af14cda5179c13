//! The stable words for the reasons why a point is not woven.

use ingraft_model::Refusal;

use crate::v1;

/// All results of [`reason`], in the order of docs/protocol.md.
pub const REASONS: [&str; 34] = [
    "too_short",
    "branch_into_springboard",
    "entered_inside",
    "preemption_point",
    "straddles_pages",
    "unknown_instruction",
    "not_displaceable",
    "own_branch_to_entry",
    "own_branch_to_return",
    "unresolved_jump",
    "runs_on",
    "loop_without_edges",
    "shared_arrival",
    "not_derivable",
    "moving_calls",
    "ifunc_resolver",
    "not_a_function",
    "exposed_to_uprobes",
    "argument_overwritten",
    "restartable_sequence",
    "compared_address",
    "asynchronous_cancellation",
    "handler_ends_thread",
    "throwing_faults",
    "bytes_differ",
    "patched_by_program",
    "kept",
    "shared_text",
    "text_relocations",
    "vdso",
    "overlap",
    "no_room_nearby",
    "no_memory",
    "not_yet",
];

/// Returns the word for a refusal.
pub fn reason(refusal: &Refusal) -> &'static str {
    match refusal {
        Refusal::TooShort { .. } => "too_short",
        Refusal::BranchIntoSpringboard { .. } => "branch_into_springboard",
        Refusal::EnteredInside { .. } => "entered_inside",
        Refusal::PreemptionPoint { .. } => "preemption_point",
        Refusal::StraddlesPages => "straddles_pages",
        Refusal::UnknownInstruction { .. } => "unknown_instruction",
        Refusal::NotDisplaceable { .. } => "not_displaceable",
        Refusal::OwnBranchToEntry { .. } => "own_branch_to_entry",
        Refusal::OwnBranchToReturn { .. } => "own_branch_to_return",
        Refusal::UnresolvedJump { .. } => "unresolved_jump",
        Refusal::RunsOn { .. } => "runs_on",
        Refusal::EntersLoop { .. } | Refusal::LeavesLoop { .. } => "loop_without_edges",
        Refusal::SharedArrival { .. } => "shared_arrival",
        Refusal::NotDerivable { .. } => "not_derivable",
        Refusal::MovingCalls => "moving_calls",
        Refusal::IfuncResolver => "ifunc_resolver",
        Refusal::NoSuchFunction
        | Refusal::NoSuchPoint
        | Refusal::LinkerStub
        | Refusal::SignalReturn
        | Refusal::BeyondUserSpace
        | Refusal::Unreadable
        | Refusal::EnteredFromElsewhere
        | Refusal::HostNotWoven => "not_a_function",
        Refusal::ExposedToUprobes => "exposed_to_uprobes",
        Refusal::ArgumentOverwritten => "argument_overwritten",
        Refusal::RestartableSequence => "restartable_sequence",
        Refusal::ComparedAddress => "compared_address",
        Refusal::AsynchronousCancellation { .. } => "asynchronous_cancellation",
        Refusal::HandlerEndsThread { .. } => "handler_ends_thread",
        Refusal::ThrowingFaults { .. } => "throwing_faults",
        Refusal::BytesDiffer { .. } => "bytes_differ",
        Refusal::PatchedByProgram { .. } => "patched_by_program",
        Refusal::Kept { .. } => "kept",
        Refusal::SharedText => "shared_text",
        Refusal::TextRelocations => "text_relocations",
        Refusal::Vdso => "vdso",
        Refusal::Overlap { .. } => "overlap",
        Refusal::NoRoomNearby => "no_room_nearby",
        Refusal::NoMemory { .. } => "no_memory",
        Refusal::NotYet { .. } => "not_yet",
    }
}

impl From<&Refusal> for v1::Refusal {
    fn from(refusal: &Refusal) -> Self {
        v1::Refusal { reason: reason(refusal).to_owned(), text: refusal.to_string() }
    }
}

#[cfg(test)]
mod tests {
    use ingraft_model::Offset;

    use super::*;

    #[test]
    fn a_refusal_carries_word_and_sentence() {
        let wire = v1::Refusal::from(&Refusal::UnknownInstruction { offset: Offset(0x1a) });
        assert_eq!(
            wire,
            v1::Refusal { reason: "unknown_instruction".into(), text: "an unknown instruction at +0x1a".into() }
        );
        assert!(REASONS.contains(&reason(&Refusal::Vdso)));
    }
}
