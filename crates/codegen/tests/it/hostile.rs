//! Contradictory facts and bytes that are no code: they are refused, or woven and proven, and never cause a panic.

use crate::support::*;
use ingraft_codegen::verify::verify_weave;
use ingraft_codegen::{Arena, MiniRequest, PointRequest, TextSpace, weave_points};
use ingraft_model::point::{BackBranch, Padding};
use ingraft_model::{Arrival, Avma, Bias, FreeRegisters, Gpr, IslandRoom, Site, SiteKind, Svma, ThreadIdentity};
use proptest::prelude::*;

fn address() -> impl Strategy<Value = u64> {
    prop_oneof![8 => 0x401000..0x401100u64, 1 => any::<u64>(), 1 => (u64::MAX - 64)..=u64::MAX, 1 => 0..64u64]
}

fn bytes(max: usize) -> impl Strategy<Value = Vec<u8>> {
    // Opcodes of branches, prefixes and common instructions are more frequent than by chance.
    let byte = prop_oneof![
        any::<u8>(),
        prop::sample::select(vec![
            0xe8, 0xe9, 0xeb, 0xff, 0x0f, 0x05, 0x48, 0x41, 0x66, 0x67, 0xf2, 0xf3, 0x2e, 0x74, 0xe2, 0xe3, 0x90, 0xc3
        ]),
    ];
    prop::collection::vec(byte, 0..max)
}

fn back_branch() -> impl Strategy<Value = BackBranch> {
    (address(), address(), address(), bytes(12), any::<bool>()).prop_map(|(at, from, until, mut bytes, likely)| {
        let (at, from, until) =
            if likely { (from, from, from.wrapping_add(bytes.len() as u64)) } else { (at, from, until) };
        if likely && bytes.len() >= 2 {
            // A branch to an address near the sites.
            bytes[0] = 0x75;
            bytes[1] = 0x401000u64.wrapping_sub(from).wrapping_sub(2) as u8;
        }
        BackBranch { at: Svma(at), from: Svma(from), until: Svma(until), bytes }
    })
}

fn any_site() -> impl Strategy<Value = Site> {
    let landings = prop::collection::vec(address(), 0..3);
    let scratch = prop::collection::vec(0..20u8, 0..3);
    let branches = prop::collection::vec(back_branch(), 0..3);
    let room = (address(), bytes(16)).prop_map(|(at, bytes)| IslandRoom { at: Svma(at), bytes });
    let exit = (any::<u8>(), any::<u8>(), 0..9u8, prop::collection::vec(room, 0..3));
    (address(), 0..8u64, bytes(24), any::<u8>(), landings, scratch, any::<bool>(), branches, exit).prop_map(
        |(function, skip, bytes, own, mut landings, scratch, flags, back_branches, exit)| {
            let (least, point, kind, island_rooms) = exit;
            landings.sort_unstable();
            let arrival = Arrival { back_branches, least };
            Site {
                kind: match kind {
                    0 | 1 => {
                        let scratch = scratch.into_iter().map(Gpr).collect();
                        SiteKind::Entry { arrival, free: FreeRegisters { scratch, flags }, first: None }
                    }
                    2..=4 => SiteKind::Exit { within: kind == 3, free: FreeRegisters::default() },
                    5 | 6 => SiteKind::CallBefore,
                    _ => SiteKind::CallAfter { arrival },
                },
                point: if matches!(kind, 4 | 6) { point } else { 0 },
                function: Svma(function),
                at: Svma(function.wrapping_add(if skip == 4 { 4 } else { 0 })),
                own: if own & 1 == 0 { bytes.len() as u8 } else { own },
                bytes,
                landings: landings.into_iter().map(Svma).collect(),
                island_rooms,
                moving: false,
            }
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: property_config().cases * 25, ..property_config() })]

    #[test]
    fn nothing_panics(
        sites in prop::collection::vec(any_site(), 1..6),
        paddings in prop::collection::vec((address(), bytes(16)), 0..3),
        arena_at in prop_oneof![Just(0x500000u64), any::<u64>(), Just(u64::MAX - 0x800)],
        bias in prop_oneof![4 => Just(0u64), 1 => Just(0x5555_5555_4000), 1 => any::<u64>()],
        identity in 0..3usize,
    ) {
        let env = environment([GLIBC, ThreadIdentity::FsBase, ThreadIdentity::Locked][identity]);
        let mut arena = Arena::new(Avma(arena_at)..Avma(arena_at.saturating_add(0x4000)));
        let mut text = TextSpace::new();
        let padding: Vec<_> = paddings
            .into_iter()
            .map(|(at, bytes)| Padding { range: Svma(at)..Svma(at.wrapping_add(bytes.len() as u64)), bytes })
            .collect();
        text.add_padding(Bias(bias), &padding);
        let snippet = count();
        let minis = [MiniRequest { id: 0, snippet: &snippet, counters: &[0] }];
        let requests: Vec<_> =
            sites.iter().map(|site| PointRequest { site, bias: Bias(bias), name: "f", minis: &minis, beside: &[], probe: None }).collect();
        let weave = weave_points(&env, &mut arena, &mut text, &requests).expect("the request makes sense");
        let proof = verify_weave(&env, &arena, &text, &requests, &weave);
        // Contradictory facts (code that is padding too) may be woven; then the verifier refuses the plan.
        let consistent = padding.is_empty() && sites.len() == 1 && sites[0].back_branches().is_empty();
        prop_assert!(proof.is_ok() || !consistent, "{proof:?}\n{}", list(&weave.plan, &weave.woven));
    }
}
