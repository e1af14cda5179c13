//! The verifier, with plans that are wrong in one place.

use crate::support::random::{Field, functions, lay_out};
use crate::support::*;
use iced_x86::{Code, Decoder, DecoderOptions, Instruction};
use ingraft_codegen::verify::{Flaw, verify_added, verify_removed, verify_weave};
use ingraft_codegen::{
    Arena, MiniRequest, PointRequest, TextSpace, Weave, WovenPoint, add_mini, remove_mini, weave_points,
};
use ingraft_model::patch::ArenaCode;
use ingraft_model::{
    Avma, Bias, BinaryOp, CallRecord, Clock, Expr, KeptValue, KeyField, KeyListing, PatchPlan, PcMove, Places, Ranges,
    Resolution, Restore, Site, Snippet, Stmt, Svma, TableShape, TextWrite, ThreadIdentity, TimeUnit, VariableId,
    listed, table,
};
use proptest::prelude::*;

const IDENTITIES: [ThreadIdentity; 3] = [GLIBC, ThreadIdentity::FsBase, ThreadIdentity::Locked];

/// Flips one bit of the code of a point or of a shared routine. Returns the address and the bit.
fn flip_code(weave: &mut Weave, n: usize) -> Option<(Avma, u8)> {
    let total: usize = weave.plan.code.iter().map(|c| c.bytes.len()).sum();
    let mut offset = n / 8 % total.max(1);
    for code in &mut weave.plan.code {
        if let Some(byte) = code.bytes.get_mut(offset) {
            *byte ^= 1 << (n % 8);
            return Some((code.at.offset(offset as i64), (n % 8) as u8));
        }
        offset -= code.bytes.len();
    }
    None
}

/// Instruction that contains an address.
fn decoded(weave: &Weave, at: Avma) -> Option<Instruction> {
    let code = weave.plan.code.iter().find(|c| c.at <= at && at.0 < c.at.0 + c.bytes.len() as u64)?;
    let mut decoder = Decoder::with_ip(64, &code.bytes, code.at.0, DecoderOptions::NONE);
    decoder.iter().find(|i| i.next_ip() > at.0)
}

/// Whether instructions have the same meaning although their bits differ: the scale without an index has no effect, for instance. A jump
/// to a jump of the program may also lead directly to the target of the latter.
fn mean_the_same(field: &Field, right: &Instruction, other: &Instruction) -> bool {
    let goes_on = |site: &Site, at: u64| {
        let bytes = site.bytes.get(usize::try_from(at.checked_sub(site.at.0)?).ok()?..)?;
        let jump = Decoder::with_ip(64, bytes, at, DecoderOptions::NONE).decode();
        jump.is_jmp_short_or_near().then(|| jump.near_branch_target())
    };
    let jumps = right.is_jmp_near() && other.is_jmp_near();
    let further = || field.sites.iter().filter_map(|site| goes_on(site, right.near_branch_target()));
    text_of(right) == text_of(other) || jumps && further().any(|to| to == other.near_branch_target())
}

fn point(weave: &mut Weave, n: usize) -> Option<&mut WovenPoint> {
    let count = weave.woven.iter().flatten().count();
    weave.woven.iter_mut().flatten().nth(n % count.max(1)).map(Box::as_mut)
}

/// Makes a plan or its claims wrong in one place. Returns whether anything was changed.
fn break_claim(weave: &mut Weave, kind: usize, n: usize) -> bool {
    let bit = 1u64 << (n / 7 % 40);
    match kind {
        0 => {
            let len = weave.plan.text.len();
            let Some(w) = weave.plan.text.get_mut(n % len.max(1)) else { return false };
            w.new[n / 3 % usize::from(w.len)] ^= 1 << (n % 8);
        }
        1 => {
            let len = weave.plan.text.len();
            let Some(w) = weave.plan.text.get_mut(n % len.max(1)) else { return false };
            w.old[n / 3 % usize::from(w.len)] ^= 1 << (n % 8);
        }
        2 => {
            let len = weave.plan.moves.len();
            let Some(m) = weave.plan.moves.get_mut(n % len.max(1)) else { return false };
            m.to.0 ^= bit;
        }
        3 => {
            let Some(p) = point(weave, n) else { return false };
            let len = p.removal.moves.len();
            let Some(m) = p.removal.moves.get_mut(n / 11 % len.max(1)) else { return false };
            m.to.0 ^= bit;
        }
        4 => {
            let Some(p) = point(weave, n) else { return false };
            if p.removal.moves.is_empty() {
                return false;
            }
            let i = n / 11 % p.removal.moves.len();
            p.removal.moves.remove(i);
        }
        5 => {
            let Some(p) = point(weave, n) else { return false };
            let w = &mut p.removal.text[0];
            w.new[n % usize::from(w.len)] ^= 1 << (n / 5 % 8);
        }
        6 => {
            let Some(p) = point(weave, n) else { return false };
            let field = [&mut p.at, &mut p.base, &mut p.slot, &mut p.leave, &mut p.tail, &mut p.function];
            field.into_iter().nth(n / 5 % 6).expect("one of six").0 ^= bit;
        }
        7 => {
            let Some(p) = point(weave, n) else { return false };
            p.removal.code.end.0 ^= bit;
        }
        8 => {
            let Some(p) = point(weave, n) else { return false };
            let Some(m) = p.minis.first_mut() else { return false };
            match &mut m.code {
                Some(code) => {
                    let field = [&mut code.start, &mut code.link, &mut code.range.start];
                    field.into_iter().nth(n / 5 % 3).expect("one of three").0 ^= bit;
                }
                None if n.is_multiple_of(2) => m.count = None,
                None => m.count = m.count.map(|count| count ^ 8),
            }
        }
        9 | 10 => {
            // The removal of a snippet concerns bytes outside its own code.
            let Some(mini) = point(weave, n).and_then(|p| p.minis.first_mut()) else { return false };
            let elsewhere = Avma(mini.removal.code.end.0 + bit);
            match kind {
                9 => mini.removal.moves.push(PcMove { from: elsewhere, to: Avma(bit) }),
                _ => mini.removal.text.push(TextWrite {
                    at: elsewhere,
                    len: 1,
                    old: [0; 8],
                    new: [1, 0, 0, 0, 0, 0, 0, 0],
                }),
            }
        }
        _ => {
            let Some(i) = weave.plan.code.iter().position(|c| c.bytes.len() > 40) else { return false };
            weave.plan.code[i].bytes.pop();
        }
    }
    true
}

proptest! {
    #![proptest_config(property_config())]

    #[test]
    fn every_flipped_bit_of_code_is_found(functions in functions(), identity in 0..3usize, seeds in prop::collection::vec(any::<usize>(), 50)) {
        let (_, sites, paddings) = lay_out(&functions[..functions.len().min(10)]);
        let field = Field::new(IDENTITIES[identity], sites, &paddings);
        for n in seeds {
            let mut weave = field.weave.clone();
            if let Some((at, bit)) = flip_code(&mut weave, n) {
                let found = field.verify(&weave);
                let (right, other) = (decoded(&field.weave, at), decoded(&weave, at));
                let same = right.zip(other).is_some_and(|(right, other)| mean_the_same(&field, &right, &other));
                let text = other.map_or_else(String::new, |i| text_of(&i));
                prop_assert!(found.is_err() || same, "bit {bit} of {at}: {text}\n{}", list(&weave.plan, &weave.woven));
            }
        }
    }

    #[test]
    fn every_wrong_claim_is_found(functions in functions(), identity in 0..3usize, kinds in prop::collection::vec((0..12usize, any::<usize>()), 50)) {
        let (_, sites, paddings) = lay_out(&functions[..functions.len().min(10)]);
        let field = Field::new(IDENTITIES[identity], sites, &paddings);
        for (kind, n) in kinds {
            let mut weave = field.weave.clone();
            if break_claim(&mut weave, kind, n) {
                let found = field.verify(&weave);
                prop_assert!(found.is_err(), "kind {kind}, {n}\n{}", list(&weave.plan, &weave.woven));
            }
        }
    }
}

#[test]
fn flaws_have_names() {
    let (_, sites, paddings) = lay_out(&[]);
    let mut field = Field::new(GLIBC, sites, &paddings);
    field.sites = vec![site(&[0x48, 0x8b, 0x07, 0x48, 0x01, 0xf0, 0xc3])];
    let w = weave(GLIBC, field.sites[0].clone(), &[], &[count()]);
    let mut weave = w.weave.clone();
    weave.plan.text[0].at.0 = 0x401ffe;
    assert_eq!(field.verify(&weave).map_err(|e| e.flaw), Err(Flaw::Straddles));
}

/// Plans that are wrong in one place: a bit of a write, of a move or of new code is flipped, or a write, a move, a retired range or a piece
/// of code is missing.
fn wrong(plan: &PatchPlan) -> Vec<PatchPlan> {
    let mut all = Vec::new();
    let mut with = |change: &dyn Fn(&mut PatchPlan)| {
        let mut plan = plan.clone();
        change(&mut plan);
        all.push(plan);
    };
    for i in 0..plan.text.len() {
        for bit in 0..8 * usize::from(plan.text[i].len) {
            with(&|p| p.text[i].new[bit / 8] ^= 1 << (bit % 8));
        }
        with(&|p| {
            p.text.remove(i);
        });
    }
    for i in 0..plan.moves.len() {
        with(&|p| p.moves[i].to.0 ^= 1);
        with(&|p| {
            p.moves.remove(i);
        });
    }
    for i in 0..plan.retired.len() {
        with(&|p| {
            p.retired.remove(i);
        });
    }
    for (i, code) in plan.code.iter().enumerate() {
        with(&|p| {
            p.code.remove(i);
        });
        for byte in 0..code.bytes.len() {
            with(&|p| p.code[i].bytes[byte] ^= 0x10);
        }
    }
    all
}

#[test]
fn wrong_changes_of_a_slot_are_found() {
    let count = count();
    for identity in IDENTITIES {
        let mut w =
            weave(identity, site(&[0x48, 0x8b, 0x07, 0x48, 0x01, 0xf0, 0xc3]), &[], std::slice::from_ref(&count));
        let mut point = w.point().clone();
        for (id, index) in [(1, Some(0)), (0, None), (2, Some(1)), (2, None), (1, None), (3, Some(0))] {
            let before = point.clone();
            let counters = [id as u32];
            let request = MiniRequest { id, snippet: &count, counters: &counters };
            let plan = match index {
                Some(index) => add_mini(&w.env, &mut w.arena, &mut point, &request, index).expect("there is room"),
                None => remove_mini(&w.arena, &mut point, id).expect("it is there"),
            };
            let verify = |plan: &PatchPlan| match index {
                Some(_) => verify_added(&w.env, &w.arena, plan, &point, &request),
                None => verify_removed(&w.arena, plan, &before, &point),
            };
            verify(&plan).expect("right");
            for wrong in wrong(&plan) {
                assert!(verify(&wrong).is_err(), "{identity:?} {id} {index:?}\n{wrong:#x?}");
            }
            // When a count enters the slot, no thread may be between two reads of the slot.
            let slotted = point.minis.iter().any(|m| m.code.is_none());
            if identity != ThreadIdentity::Locked && slotted {
                let wrong = PatchPlan { step_out: Vec::new(), ..plan.clone() };
                assert!(verify(&wrong).is_err(), "{identity:?} {id} {index:?}");
            }
        }
    }
}

#[test]
fn a_place_of_a_table_that_may_be_any_is_refused() {
    let add = Stmt::AddAt(VariableId(0), TableShape::SUMS, vec![KeyField::Number(Expr::Arg(0))], Expr::Const(1));
    let masked = 2 * Places::FEW.count() - 1;
    any_place_is_refused(add, masked, table::PROBES as usize);
    let ranges = Ranges::new(-8, 4096, 8).expect("granules");
    any_place_is_refused(Stmt::AddIn(VariableId(0), ranges, Expr::Arg(0), Expr::Const(1)), 512, 1);
    let key = Box::new(Expr::Arg(0));
    let value = Stmt::If(Expr::ValueAt(VariableId(0), Places::FEW, key.clone()), vec![]);
    any_place_is_refused(value, masked, table::PROBES as usize);
    any_place_is_refused(Stmt::If(Expr::ValueIn(VariableId(0), ranges, key), vec![]), 512, 1);
}

#[test]
fn words_of_shard_0_that_are_no_keys_are_refused() {
    let listing = KeyListing::of_places(256).expect("a size");
    let add = Stmt::AddListed(VariableId(0), listing, Expr::Arg(0), Expr::Const(1));
    // The code for the thread's own shard and the code for shard 0 have these masks.
    any_place_is_refused(add.clone(), listing.places(), 2 * listed::PROBES as usize);
    let snippet = Snippet { stmts: vec![add] };
    let w = weave(GLIBC, site(&[0x48, 0x8b, 0x07, 0x48, 0x01, 0xf0, 0xc3]), &[], std::slice::from_ref(&snippet));
    let minis = [MiniRequest { id: 0, snippet: &snippet, counters: &[0] }];
    let requests = [PointRequest { site: &w.site, bias: Bias(0), name: "f", minis: &minis, beside: &[], probe: None }];
    let proof = |broken: &_| verify_weave(&w.env, &w.arena, &w.text, &requests, broken).map_err(|e| e.flaw);
    assert!(proof(&w.weave).is_ok());
    let word = |n: u32| w.env.data.counter(n).to_le_bytes();
    let keys = [&[0x48, 0x8b, 0x04, 0xcd][..], &word(0)].concat();
    let mut found = 0;
    for piece in 0..w.weave.plan.code.len() {
        let code = &w.weave.plan.code[piece].bytes;
        let places: Vec<usize> = (0..code.len()).filter(|at| code[*at..].starts_with(&keys)).collect();
        found += places.len();
        for at in places {
            // The next key, the values, the word before the table, and the same words with another register.
            let others = [word(1), word(listing.value(0)), (w.env.data.counter(0) - 8).to_le_bytes()];
            for other in others {
                let mut broken = w.weave.clone();
                broken.plan.code[piece].bytes[at + 4..at + 8].copy_from_slice(&other);
                assert_eq!(proof(&broken), Err(Flaw::ForeignRead), "at {at}");
            }
            let mut broken = w.weave.clone();
            broken.plan.code[piece].bytes[at + 3] = 0xc5 | 2 << 3;
            assert_eq!(proof(&broken), Err(Flaw::ForeignRead), "at {at}");
            // A write instead of a read.
            let mut broken = w.weave.clone();
            broken.plan.code[piece].bytes[at + 1] = 0x89;
            assert_eq!(proof(&broken), Err(Flaw::ForeignWrite), "at {at}");
        }
    }
    assert!(found >= listed::PROBES as usize, "{found}");
    // The value in shard 0 without a lock.
    let value = [&[0x65, 0x48, 0xff, 0x04, 0xcd][..], &word(listing.value(0))].concat();
    let pieces = (0..).zip(&w.weave.plan.code);
    let (piece, at) = pieces
        .filter_map(|(n, c)| Some((n, c.bytes.windows(value.len()).position(|b| b == value)?)))
        .next()
        .expect("the increment");
    let mut broken = w.weave.clone();
    let piece: &mut Vec<u8> = &mut broken.plan.code[piece as usize].bytes;
    piece[at] = 0x3e;
    assert_eq!(proof(&broken), Err(Flaw::ForeignWrite));
}

/// Checks that the code masks the number of a place `masked` times, and that the verifier refuses it with a larger mask.
fn any_place_is_refused(stmt: Stmt, places: u32, masked: usize) {
    let snippet = Snippet { stmts: vec![stmt] };
    let w = weave(GLIBC, site(&[0x48, 0x8b, 0x07, 0x48, 0x01, 0xf0, 0xc3]), &[], std::slice::from_ref(&snippet));
    let minis = [MiniRequest { id: 0, snippet: &snippet, counters: &[0] }];
    let requests = [PointRequest { site: &w.site, bias: Bias(0), name: "f", minis: &minis, beside: &[], probe: None }];
    let mask = |places: u32| [&[0x81, 0xe1][..], &(places - 1).to_le_bytes()].concat();
    let (right, wrong) = (mask(places), mask(1 << 20));
    let masks = |code: &[u8]| -> Vec<usize> {
        code.windows(right.len()).enumerate().filter(|(_, b)| *b == right).map(|(at, _)| at).collect()
    };
    let found = w.weave.plan.code.iter().enumerate().map(|(piece, c)| (piece, masks(&c.bytes)));
    let (piece, found): (usize, Vec<usize>) = found.max_by_key(|(_, places)| places.len()).expect("code");
    assert_eq!(found.len(), masked);
    for at in found {
        let mut broken = w.weave.clone();
        broken.plan.code[piece].bytes[at..at + wrong.len()].copy_from_slice(&wrong);
        let proof = verify_weave(&w.env, &w.arena, &w.text, &requests, &broken);
        assert!(matches!(proof.map_err(|e| e.flaw), Err(Flaw::ForeignRead | Flaw::ForeignWrite)), "at {at}");
    }
}

/// Snippet with a record, which contains its name, a timer and a condition.
fn timer() -> Snippet {
    let [activations, timer, hits] = [0, 1, 3].map(VariableId);
    let kept = vec![KeptValue::Time(Clock::Wall), KeptValue::Argument(0)];
    let record = CallRecord { activations, restore: Some(Restore::Timer(timer, Clock::Wall)), kept };
    let met = Expr::Binary(BinaryOp::Greater, Box::new(Expr::Variable(hits)), Box::new(Expr::Const(7)));
    let open = Stmt::Open(record, vec![Stmt::Start(timer, Clock::Wall)]);
    Snippet { stmts: vec![Stmt::Add(hits, Expr::Const(1)), Stmt::Prune, Stmt::If(met, vec![open])] }
}

/// For every bit of the code of two points with the same snippet and these counters: whether the verifier accepts the plan with that bit
/// flipped.
fn verdicts(identity: ThreadIdentity, snippet: &Snippet, counters: [[u32; 4]; 2]) -> [Vec<bool>; 2] {
    let bytes = [0x48, 0x8b, 0x07, 0x48, 0x01, 0xf0, 0xc3];
    let sites = [0x401000, 0x401100].map(|at| Site { function: Svma(at), at: Svma(at), ..site(&bytes) });
    let env = environment(identity);
    let mut arena = Arena::new(Avma(0x800000)..Avma(0x810000));
    let mut text = TextSpace::new();
    let minis = counters.each_ref().map(|counters| [MiniRequest { id: 1, snippet, counters }]);
    let request = |(site, minis)| PointRequest { site, bias: Bias(0), name: "f", minis, beside: &[], probe: None };
    let requests: Vec<_> = sites.iter().zip(&minis).map(|(site, minis)| request((site, minis))).collect();
    let weave = weave_points(&env, &mut arena, &mut text, &requests).expect("woven");
    let judge = |weave: &Weave| verify_weave(&env, &arena, &text, &requests, weave).is_ok();
    assert!(judge(&weave));
    [0, 1].map(|point| {
        let code = weave.woven[point].as_ref().expect("woven").removal.code.clone();
        let flipped = |bit: u64| {
            let mut weave = weave.clone();
            let at = code.start.0 + bit / 8;
            let holds = |c: &&mut ArenaCode| (c.at.0..c.at.0 + c.bytes.len() as u64).contains(&at);
            let piece = weave.plan.code.iter_mut().find(holds).expect("code");
            piece.bytes[(at - piece.at.0) as usize] ^= 1 << (bit % 8);
            judge(&weave)
        };
        (0..8 * (code.end.0 - code.start.0)).map(flipped).collect()
    })
}

#[test]
fn code_that_is_compared_with_another_point_s_is_judged_as_if_it_were_executed() {
    let (snippet, one, other) = (timer(), [5, 300, 0, 9], [900, 2, 0, 1000]);
    for identity in IDENTITIES {
        // The first point is executed, and the second one compared with it.
        let [first, second] = verdicts(identity, &snippet, [one, other]);
        let [other_first, one_second] = verdicts(identity, &snippet, [other, one]);
        assert!(first.iter().any(|right| *right) && first.iter().any(|right| !right));
        assert_eq!((first, other_first), (one_second, second), "{identity:?}");
    }
}

/// Tests the last word below 2^64: its address plus a length wraps to a small number.
#[test]
fn memory_below_address_0_is_no_counter() {
    let (snippet, counters) = (timer(), [[5, 300, 0, 9], [900, 2, 0, 1000]]);
    let sites = [0x401000, 0x401100].map(|at| {
        let bytes = [0x48, 0x8b, 0x07, 0x48, 0x01, 0xf0, 0xc3];
        Site { function: Svma(at), at: Svma(at), ..site(&bytes) }
    });
    let env = environment(GLIBC);
    let mut arena = Arena::new(Avma(0x800000)..Avma(0x810000));
    let mut text = TextSpace::new();
    let minis = counters.each_ref().map(|counters| [MiniRequest { id: 1, snippet: &snippet, counters }]);
    let request = |(site, minis)| PointRequest { site, bias: Bias(0), name: "f", minis, beside: &[], probe: None };
    let requests: Vec<_> = sites.iter().zip(&minis).map(|(site, minis)| request((site, minis))).collect();
    let weave = weave_points(&env, &mut arena, &mut text, &requests).expect("woven");
    for counter in counters.iter().flatten().map(|counter| env.data.counter(*counter)) {
        let increment = [&[0x65, 0x48, 0xff, 0x04, 0x25][..], &counter.to_le_bytes()].concat();
        for (piece, code) in weave.plan.code.iter().enumerate() {
            let found = code.bytes.windows(increment.len()).position(|bytes| bytes == increment);
            let Some(at) = found else { continue };
            let mut wrong = weave.clone();
            wrong.plan.code[piece].bytes[at + 5..at + 9].copy_from_slice(&(-8i32).to_le_bytes());
            let proof = verify_weave(&env, &arena, &text, &requests, &wrong);
            assert_eq!(proof.map_err(|e| e.flaw), Err(Flaw::ForeignWrite), "counter at {counter:#x}");
        }
    }
}

/// Tests every place that the branch behind the search for a record could lead back to: those before the right one would search again.
#[test]
fn a_branch_that_closes_a_loop_is_refused() {
    let record = CallRecord { activations: VariableId(0), restore: None, kept: vec![] };
    let close = Stmt::Close(record, vec![Stmt::Add(VariableId(3), Expr::Const(1))]);
    let snippet = Snippet { stmts: vec![close] };
    let site = site(&[0x48, 0x8b, 0x07, 0x48, 0x01, 0xf0, 0xc3]);
    let w = weave(GLIBC, site, &[], std::slice::from_ref(&snippet));
    let counters: Vec<u32> = (0..16).collect();
    let minis = [MiniRequest { id: 0, snippet: &snippet, counters: &counters }];
    let requests = [PointRequest { site: &w.site, bias: Bias(0), name: "f", minis: &minis, beside: &[], probe: None }];
    let mut loops = 0;
    for (n, piece) in w.weave.plan.code.iter().enumerate() {
        let code = Decoder::with_ip(64, &piece.bytes, piece.at.0, DecoderOptions::NONE);
        let instructions: Vec<Instruction> = code.into_iter().collect();
        for pair in instructions.windows(2) {
            let [test, branch] = pair else { continue };
            if !(test.code() == Code::Test_rm32_r32 && branch.code() == Code::Jne_rel8_64) {
                continue;
            }
            let right = branch.near_branch_target();
            if right >= branch.ip() {
                continue;
            }
            for wrong in instructions.iter().map(Instruction::ip).filter(|at| *at < right) {
                let Ok(distance) = i8::try_from(wrong.wrapping_sub(branch.next_ip()).cast_signed()) else { continue };
                let mut broken = w.weave.clone();
                broken.plan.code[n].bytes[(branch.next_ip() - piece.at.0) as usize - 1] = distance.cast_unsigned();
                let proof = verify_weave(&w.env, &w.arena, &w.text, &requests, &broken);
                assert!(proof.is_err(), "{wrong:#x} instead of {right:#x}");
                loops += 1;
            }
        }
    }
    assert!(loops > 0, "no branch leads back");
}

/// Tests calls of routines with offsets of other memory than counters, calls of what is no routine, and calls instead of jumps.
#[test]
fn only_routines_are_called_and_only_about_counters() {
    let kept = vec![KeptValue::Time(Clock::Wall), KeptValue::Spent(Clock::Wall)];
    let record = CallRecord { activations: VariableId(0), restore: None, kept };
    let elapsed = Expr::Elapsed(Clock::Wall, TimeUnit::Ticks);
    let observe = Stmt::Observe(VariableId(3), Resolution::Fine, elapsed, Some(Clock::Wall));
    let snippet = Snippet { stmts: vec![Stmt::Close(record, vec![observe])] };
    let w = weave(GLIBC, site(&[0x48, 0x8b, 0x07, 0x48, 0x01, 0xf0, 0xc3]), &[], std::slice::from_ref(&snippet));
    let counters: Vec<u32> = (0..16).collect();
    let minis = [MiniRequest { id: 0, snippet: &snippet, counters: &counters }];
    let requests = [PointRequest { site: &w.site, bias: Bias(0), name: "f", minis: &minis, beside: &[], probe: None }];
    let last = w.env.data.counter(w.env.data.counters() - 1) - w.env.data.displacement(0);
    let mut calls = 0;
    for (n, piece) in w.weave.plan.code.iter().enumerate() {
        let code = Decoder::with_ip(64, &piece.bytes, piece.at.0, DecoderOptions::NONE);
        for call in code.into_iter().filter(|i| i.code() == Code::Call_rel32_64) {
            let at = (call.ip() - piece.at.0) as usize;
            let broken = |from: usize, bytes: &[u8]| {
                let mut broken = w.weave.clone();
                broken.plan.code[n].bytes[from..from + bytes.len()].copy_from_slice(bytes);
                verify_weave(&w.env, &w.arena, &w.text, &requests, &broken).map_err(|e| e.flaw)
            };
            assert_eq!(piece.bytes[at - 5], 0xb9, "the offset is moved to ecx right before");
            assert_eq!(broken(at, &piece.bytes[at..at + 5]), Ok(()));
            for offset in [0, 8, last + 8, last, u32::MAX - 7, u32::MAX] {
                assert_eq!(broken(at - 4, &offset.to_le_bytes()), Err(Flaw::ForeignWrite), "offset {offset:#x}");
            }
            // To another register, and to none.
            for opcode in [0xb8, 0xba] {
                assert_eq!(broken(at - 5, &[opcode]), Err(Flaw::ForeignWrite));
            }
            assert_eq!(broken(at - 5, &[0x0f, 0x1f, 0x44, 0, 0]), Err(Flaw::ForeignWrite));
            assert!(broken(at, &[0xe9]).is_err(), "a jump to a routine that returns");
            for other in (0..64u64).map(|n| call.near_branch_target() - 32 + n) {
                if other != call.near_branch_target() {
                    let distance = (other.wrapping_sub(call.next_ip()) as i32).to_le_bytes();
                    assert_eq!(broken(at + 1, &distance), Err(Flaw::Forbidden), "{other:#x}");
                }
            }
            calls += 1;
        }
    }
    assert!(calls > 2, "the record is closed, and the time is observed");
}
