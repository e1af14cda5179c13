//! Comparison of fixed routines with their listings (`code/listing.rs`), byte by byte. Abstract execution could not prove these routines:
//! they follow addresses that they compute, copy words up to limits in memory, or execute code of the program. Tests of the listings prove
//! them instead (`snippet/tests`).
//!
//! The verifier computes the holes from the environment by its own code. So a routine for another environment, or with one wrong number, is
//! rejected.

use ingraft_model::layout::{ALIVE, CHILD_SHARD, birth, goroutine, record, stacks};
use ingraft_model::{Gpr, ThreadIdentity, VectorState, WallClock};

use super::interpreter::Interpreter;
use super::{Flaw, VerifyError, fail};
use crate::code::arena::SlowRoutine;
use crate::code::environment::{Assembly, Environment};
use crate::code::listing::{Filled, HoleValues};
use crate::code::routine::Routine;
use crate::snippet::routines::listing;
use crate::snippet::slow;

/// Proves the routine at `at`. `None` if the routine has no listing in this environment.
pub(super) fn prove(
    interpreter: &mut Interpreter<'_>,
    env: &Environment,
    routine: Routine,
    at: u64,
) -> Option<Result<(), VerifyError>> {
    let listing = listing(routine, &holes(env))?;
    Some(if may_be(env, routine) { compare(interpreter, at, listing).map(drop) } else { fail(at, Flaw::Forbidden) })
}

/// Proves the slow routine for the register with the number `r`.
pub(super) fn prove_slow(
    interpreter: &mut Interpreter<'_>,
    env: &Environment,
    r: u8,
    routine: &SlowRoutine,
) -> Result<(), VerifyError> {
    let start = routine.range.start.0;
    let second = compare(interpreter, start, slow::listing(&holes(env), Gpr(r)))?;
    if start.checked_add(second) == Some(routine.walk.0) { Ok(()) } else { fail(routine.walk.0, Flaw::Astray) }
}

/// Whether code may use the routine in this environment.
fn may_be(env: &Environment, routine: Routine) -> bool {
    let private = env.identity != ThreadIdentity::Locked;
    match routine {
        Routine::Call => env.vectors.is_some_and(|vectors| VectorState::is_sound(&vectors)),
        Routine::Event => matches!(env.identity, ThreadIdentity::FsOffset(_)) && env.readable.process.is_some(),
        Routine::Fork | Routine::Forked | Routine::Enter => private,
        Routine::PruneGoroutine
        | Routine::Park
        | Routine::Fetch
        | Routine::EnterMoving
        | Routine::LeaveMoving
        | Routine::Descriptor
        | Routine::KeepsNotes
        | Routine::BeginNotes
        | Routine::AddNote
        | Routine::TellNotes
        | Routine::EndNotes => private && env.goroutine.is_some(),
        Routine::LeaveStack | Routine::EnterStack => private && env.stacks,
        Routine::OpenTimed
        | Routine::CloseTimed
        | Routine::CloseTimedOwn
        | Routine::ObserveCoarse
        | Routine::ObserveMedium
        | Routine::ObserveFine => private,
        _ => true,
    }
}

/// Compares the code at `at` with a listing. Returns the offset of the listing's second entry.
fn compare(interpreter: &mut Interpreter<'_>, at: u64, listing: Result<Filled, Assembly>) -> Result<u64, VerifyError> {
    let Ok(Filled { bytes, second }) = listing else { return fail(at, Flaw::Forbidden) };
    let found = interpreter.memory().bytes(at).unwrap_or_default();
    let same = bytes.iter().zip(found).take_while(|(wanted, found)| wanted == found).count();
    if same < bytes.len() {
        return fail(at.wrapping_add(same as u64), Flaw::Forbidden);
    }
    let mut next = at;
    while next < at.wrapping_add(bytes.len() as u64) {
        let i = interpreter.memory().decode(next)?;
        interpreter.mark(&i)?;
        next = i.next_ip();
    }
    Ok(second)
}

/// Values of the holes, from the environment alone.
fn holes(env: &Environment) -> HoleValues {
    let (base, stride) = (env.data.base.0, env.data.stride);
    let shard = |n: u32| base.wrapping_add(stride.wrapping_mul(u64::from(n)));
    let records = stride.wrapping_sub(u64::from(record::ROOM)) as u32;
    HoleValues {
        base: base as u32,
        log: stride.trailing_zeros(),
        shards: env.data.shards,
        alive: shard(CHILD_SHARD).wrapping_add(u64::from(ALIVE)) as u32,
        child: shard(CHILD_SHARD),
        rules: shard(birth::RULES),
        lists: shard(goroutine::SHARD),
        stacks: shard(stacks::SHARD),
        records,
        // The last word of the first record, which belongs to no call.
        readings_open: records.wrapping_add(record::SIZE - 8),
        identity: env.identity,
        goroutine: env.goroutine,
        vectors: env.vectors,
        vdso: match env.wall {
            WallClock::Vdso(function) => Some(function.0),
            WallClock::Tsc | WallClock::SystemCall => None,
        },
    }
}

#[cfg(test)]
mod tests {
    use ingraft_model::patch::ArenaCode;
    use ingraft_model::{Avma, DataArea};

    use super::*;
    use crate::code::arena::Arena;
    use crate::snippet::routines::{self, assemble};
    use crate::snippet::tests::{FIXED, GLIBC, environment};
    use crate::verify::interpreter::PlanFacts;
    use crate::verify::memory::Memory;

    const AT: Avma = Avma(0x80_0000);
    /// Routines for calls that move between threads.
    const OF_GOROUTINES: [Routine; 11] = [
        Routine::PruneGoroutine,
        Routine::Park,
        Routine::Fetch,
        Routine::EnterMoving,
        Routine::LeaveMoving,
        Routine::Descriptor,
        Routine::KeepsNotes,
        Routine::BeginNotes,
        Routine::AddNote,
        Routine::TellNotes,
        Routine::EndNotes,
    ];

    /// Routines that are called.
    const CALLED: [Routine; 6] = [
        Routine::OpenTimed,
        Routine::CloseTimed,
        Routine::CloseTimedOwn,
        Routine::ObserveCoarse,
        Routine::ObserveMedium,
        Routine::ObserveFine,
    ];

    /// Proof of a routine whose bytes lie at `AT`.
    fn proof(env: &Environment, bytes: &[u8], prove: impl Fn(&mut Interpreter<'_>) -> Result<(), VerifyError>) -> bool {
        let arena = Arena::new(AT..AT.offset(0x2000));
        let code = [ArenaCode { at: AT, bytes: bytes.to_vec() }];
        let memory = Memory::new(&code, &arena.range()).expect("one piece");
        let facts = PlanFacts::new(env, &arena, &memory, std::iter::empty());
        let mut interpreter = Interpreter::new(&facts);
        let range = AT..AT.offset(bytes.len() as i64);
        prove(&mut interpreter).and_then(|()| interpreter.tile(&range)).is_ok()
    }

    fn is_right(env: &Environment, routine: Routine, bytes: &[u8]) -> bool {
        proof(env, bytes, |interpreter| interpreter.routine(AT.0, routine))
    }

    fn is_right_slow(env: &Environment, r: u8, bytes: &[u8], second: u64) -> bool {
        let routine = SlowRoutine { range: AT..AT.offset(bytes.len() as i64), walk: Avma(AT.0.wrapping_add(second)) };
        proof(env, bytes, |interpreter| interpreter.slow_routine(r, &routine))
    }

    /// The bytes with one bit changed, for each bit; cut off by one byte; and with one more.
    fn others(bytes: &[u8]) -> impl Iterator<Item = Vec<u8>> {
        let flipped = (0..8 * bytes.len()).map(|bit| {
            let mut other = bytes.to_vec();
            other[bit / 8] ^= 1 << (bit % 8);
            other
        });
        let longer = [bytes, &[0x90]].concat();
        flipped.chain([bytes[..bytes.len() - 1].to_vec(), longer, Vec::new()])
    }

    /// Environments that differ in one fact. Each comes with the routines whose code does not depend on that fact.
    fn environments() -> Vec<(Environment, Vec<Routine>)> {
        use Routine::{Call, Cut, Enter, EnterStack, Event, Fork, Forked, LeaveStack, Time};
        use Routine::{ObserveCoarse, ObserveFine, ObserveMedium};
        let env = environment();
        let data = |data: DataArea| Environment { data, ..env };
        let with_called = |others: &[Routine]| [&CALLED, others].concat();
        let with_goroutines = |others: &[Routine]| with_called(&[&OF_GOROUTINES, others].concat());
        let identity = |identity| Environment { identity, ..env };
        let vectors = |vectors| Environment { vectors, ..env };
        let of_identity = with_goroutines(&[Call, Time, Fork, Forked, Cut, Enter, LeaveStack, EnterStack]);
        let of_vectors = with_goroutines(&[Event, Time, Fork, Forked, Cut, Enter, LeaveStack, EnterStack]);
        let of_clock = with_goroutines(&[Call, Event, Fork, Forked, Cut, Enter, LeaveStack, EnterStack]);
        let of_goroutine = with_called(&[Call, Event, Time, Fork, Forked, Cut, Enter, LeaveStack, EnterStack]);
        vec![
            (data(DataArea { base: Avma(0x1000_1000), ..env.data }), vec![Cut]),
            (
                data(DataArea { stride: 1 << 25, ..env.data }),
                vec![Event, Cut, ObserveCoarse, ObserveMedium, ObserveFine],
            ),
            (
                data(DataArea { shards: 65, ..env.data }),
                with_goroutines(&[Call, Event, Time, Forked, Cut, Enter, LeaveStack, EnterStack]),
            ),
            (identity(ThreadIdentity::FsOffset(0x30)), of_identity.clone()),
            (identity(ThreadIdentity::FsBase), of_identity),
            (identity(ThreadIdentity::Locked), vec![Call, Time, Cut]),
            (Environment { goroutine: Some(-16), ..env }, of_goroutine.clone()),
            (Environment { goroutine: None, ..env }, of_goroutine),
            (Environment { stacks: false, ..env }, with_goroutines(&[Call, Event, Time, Fork, Forked, Cut, Enter])),
            (vectors(Some(VectorState { components: 7, bytes: 2696 })), of_vectors.clone()),
            (vectors(Some(VectorState { components: 0xe7, bytes: 832 })), of_vectors.clone()),
            (vectors(None), of_vectors),
            (Environment { wall: WallClock::Vdso(Avma(0x7fff_1234_5679)), ..env }, of_clock.clone()),
            (Environment { wall: WallClock::SystemCall, ..env }, of_clock),
        ]
    }

    #[test]
    fn only_the_listing_is_accepted() {
        let env = environment();
        for routine in FIXED {
            let bytes = assemble(&env, routine).expect("assembles");
            assert!(is_right(&env, routine, &bytes), "{routine:?}");
            for (n, other) in others(&bytes).enumerate() {
                assert!(!is_right(&env, routine, &other), "{routine:?}, change {n}");
            }
            for another in FIXED {
                assert_eq!(is_right(&env, another, &bytes), another == routine, "{routine:?} as {another:?}");
            }
        }
    }

    #[test]
    fn every_hole_is_that_of_the_environment() {
        let env = environment();
        assert_eq!(holes(&env), routines::holes(&env));
        for (other, equal) in environments() {
            assert_eq!(holes(&other), routines::holes(&other));
            for routine in FIXED {
                let bytes = assemble(&env, routine).expect("assembles");
                assert_eq!(is_right(&other, routine, &bytes), equal.contains(&routine), "{routine:?}, {other:?}");
            }
        }
        let unreadable = Environment { readable: Default::default(), ..env };
        assert!(!is_right(&unreadable, Routine::Event, &assemble(&env, Routine::Event).expect("assembles")));
        let unsound = Environment { vectors: Some(VectorState { components: 1, bytes: 576 }), ..env };
        assert!(!is_right(&unsound, Routine::Call, &assemble(&unsound, Routine::Call).expect("assembles")));
    }

    #[test]
    fn every_register_has_its_slow_routine() {
        for identity in [GLIBC, ThreadIdentity::FsBase] {
            for (r, shards) in (0..16).filter(|r| *r != 4).flat_map(|r| [64, 4096].map(|shards| (r, shards))) {
                let env = environment();
                let env = Environment { identity, data: DataArea { shards, ..env.data }, ..env };
                let code = slow::assemble(&env, Gpr(r)).expect("assembles");
                let what = format!("{identity:?} r{r} {shards}");
                assert!(is_right_slow(&env, r, &code.bytes, code.second), "{what}");
                for second in [0, code.second - 1, code.second + 1, u64::MAX] {
                    assert!(!is_right_slow(&env, r, &code.bytes, second), "{what}");
                }
                for other in (0..20).filter(|other| *other != r) {
                    assert!(!is_right_slow(&env, other, &code.bytes, code.second), "{what} as r{other}");
                }
                let other = Environment { data: DataArea { shards: shards + 1, ..env.data }, ..env };
                assert!(!is_right_slow(&other, r, &code.bytes, code.second), "{what}");
            }
        }
        let env = environment();
        for r in [0, 2, 11] {
            let code = slow::assemble(&env, Gpr(r)).expect("assembles");
            for (n, other) in others(&code.bytes).enumerate() {
                assert!(!is_right_slow(&env, r, &other, code.second), "r{r}, change {n}");
            }
            for (other, _) in environments().iter().take(6) {
                assert!(!is_right_slow(other, r, &code.bytes, code.second), "r{r}, {other:?}");
            }
        }
    }
}
