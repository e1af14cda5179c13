//! Whole functions: their blocks and edges, found from their bytes alone, and their copies with a count at every probe.

use std::collections::BTreeSet;

use super::image::TEXT;
use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction};
use ingraft_codegen::verify::{VerifyError, verify_body, verify_renewal, verify_weave};
use ingraft_codegen::{
    Arena, BodyCode, BodyPoint, BodyRequest, BodyWeave, CountingRenewal, Environment, Held, InlinePoint, MiniRequest,
    PointRequest, Probe, TextSpace, Weave, WithCopy, WovenBody, WovenPoint, renew_counting, share_slow_routines,
    weave_body, weave_points,
};
use ingraft_model::point::Padding;
use ingraft_model::{
    Arrival, Avma, Bias, Block, BlockId, BodyBlock, Edge, EdgeKind, EdgeTarget, Entered, FreeRegisters, FunctionBody,
    Gpr, Key, Offset, PatchPlan, PointId, PointKind, Refusal, Site, SiteKind, Snippet, Svma, ThreadIdentity,
};

fn decoded(bytes: &[u8], start: u64) -> Vec<Instruction> {
    Decoder::with_ip(64, bytes, start, DecoderOptions::NONE).into_iter().collect()
}

/// Bytes of each function of an image, up to its return, with its address.
pub fn parts(image: &[u8], sites: &[Site]) -> Vec<(Vec<u8>, u64)> {
    let starts: Vec<u64> = sites.iter().map(|s| s.function.0).collect();
    let end_of = |start: u64| {
        let from = (start - TEXT) as usize;
        let next = starts.iter().copied().filter(|s| *s > start).min().map_or(image.len(), |s| (s - TEXT) as usize);
        let code = &image[from..next];
        let mut decoder = Decoder::with_ip(64, code, start, DecoderOptions::NONE);
        let mut last = 0;
        while decoder.can_decode() {
            let i = decoder.decode();
            last = decoder.position();
            if i.flow_control() == FlowControl::Return {
                break;
            }
        }
        code[..last].to_vec()
    };
    starts.iter().map(|start| (end_of(*start), *start)).collect()
}

/// Returns the body of a function whose bytes are all code, which is entered at its first byte only, and in which all calls return.
pub fn body_of(bytes: &[u8], start: u64) -> FunctionBody {
    let code = decoded(bytes, start);
    let end = start + bytes.len() as u64;
    let inside = |at: u64| (start..end).contains(&at);
    let mut leaders = BTreeSet::from([start]);
    let mut returns = BTreeSet::new();
    for i in &code {
        match i.flow_control() {
            FlowControl::Next => {}
            FlowControl::ConditionalBranch | FlowControl::UnconditionalBranch => {
                leaders.extend([i.near_branch_target(), i.next_ip()]);
            }
            FlowControl::Call | FlowControl::IndirectCall => {
                leaders.insert(i.next_ip());
                returns.insert(i.next_ip());
            }
            _ => _ = leaders.insert(i.next_ip()),
        }
    }
    let starts: Vec<u64> = leaders.into_iter().filter(|at| inside(*at)).collect();
    let index = |at: u64| starts.binary_search(&at).ok().map(BlockId::at);
    let mut edges = Vec::new();
    let mut blocks = Vec::new();
    for (from, at) in starts.iter().copied().enumerate() {
        let until = starts.get(from + 1).copied().unwrap_or(end);
        let own: Vec<_> = code.iter().filter(|i| (at..until).contains(&i.ip())).collect();
        let last = own.last().expect("a block has instructions");
        let mut edge = |to: u64, kind| {
            edges.extend(index(to).map(|to| Edge { from: BlockId::at(from), to: EdgeTarget::Block(to), kind }));
        };
        match last.flow_control() {
            FlowControl::ConditionalBranch => {
                edge(last.near_branch_target(), EdgeKind::Taken);
                edge(until, EdgeKind::FallThrough);
            }
            FlowControl::UnconditionalBranch => edge(last.near_branch_target(), EdgeKind::Taken),
            FlowControl::Call | FlowControl::IndirectCall => edge(until, EdgeKind::CallReturn),
            FlowControl::Return | FlowControl::IndirectBranch => {}
            _ => edge(until, EdgeKind::FallThrough),
        }
        let range = Svma(at)..Svma(until);
        let bytes = bytes[(at - start) as usize..(until - start) as usize].to_vec();
        let block = Block { range, instructions: own.len() as u32 };
        let room = Err(Refusal::NoRoomNearby);
        blocks.push(BodyBlock { block, bytes, free: FreeRegisters::default(), entered: Entered::Never, room });
    }
    edges.sort_unstable();
    edges.dedup();
    for (n, block) in blocks.iter_mut().enumerate() {
        let at = block.block.range.start.0;
        let arrives = |e: &&Edge| e.to == EdgeTarget::Block(BlockId::at(n)) && e.kind == EdgeKind::CallReturn;
        let along = edges.iter().find(arrives);
        block.entered = match (at == start, along) {
            (false, Some(edge)) => Entered::Along { from: edge.from, kind: edge.kind },
            (true, _) => Entered::Otherwise,
            (false, None) => Entered::Never,
        };
        block.room = room(bytes, &code, start, at, &starts);
    }
    super::liveness::fill(&mut blocks, &edges);
    FunctionBody { function: Svma(start), blocks: blocks.into(), edges, entry: Some(BlockId(0)), exits: Vec::new() }
}

fn room(bytes: &[u8], code: &[Instruction], start: u64, at: u64, starts: &[u64]) -> Result<Site, Refusal> {
    let first = code.iter().find(|i| i.ip() == at).expect("a block begins with an instruction");
    let at = if first.code() == iced_x86::Code::Endbr64 { first.next_ip() } else { at };
    let mut until = at;
    for i in code.iter().filter(|i| i.ip() >= at) {
        if i.ip() != until || until - at > 40 {
            break;
        }
        until = i.next_ip();
        if !matches!(i.flow_control(), FlowControl::Next | FlowControl::ConditionalBranch) {
            break;
        }
    }
    let landings: Vec<Svma> = starts.iter().filter(|s| (at + 1..until).contains(s)).map(|s| Svma(*s)).collect();
    if landings.first().map_or(until, |l| l.0) < at + 2 {
        return Err(Refusal::NoRoomNearby);
    }
    let own = bytes[(at - start) as usize..(until - start) as usize].to_vec();
    let site = Site::new(SiteKind::Block { free: FreeRegisters::default() }, Svma(start), Svma(at), own);
    Ok(Site { landings, ..site })
}

/// The copy of a function, with a count at each probe: the counters begin at `first`, in the order of the probes.
pub struct Copied {
    pub body: FunctionBody,
    pub weave: BodyWeave,
    /// The points, as they were known when the function was copied.
    pub own: Vec<BodyPoint>,
    pub points: Weave,
    pub counted: Vec<PointId>,
    /// A counting copy in the place of the first one, if one was made.
    pub renewed: Option<Renewed>,
}

/// A counting copy that counts at more points than the one before it.
pub struct Renewed {
    /// The plan that gives the first one up.
    pub given_up: PatchPlan,
    /// The copy of the function without a counting copy.
    pub body: WovenBody,
    /// The points, as they are known now.
    pub points: Vec<BodyPoint>,
    pub renewal: CountingRenewal,
}

/// All kinds of points of a copy, and those of a profile.
pub const ALL: [PointKind; 6] =
    [PointKind::Entry, PointKind::Exit, PointKind::CallBefore, PointKind::CallAfter, PointKind::Block, PointKind::Edge];
pub const PROFILE: [PointKind; 2] = [PointKind::Block, PointKind::Edge];

/// Snippets at the probes of copies.
pub struct Codes<'a> {
    /// Kinds of the points.
    pub kinds: &'a [PointKind],
    /// The snippets of the n-th point, in a function with this number, each with its counters.
    pub of: &'a dyn Fn(usize, PointKind, u32) -> Vec<(Snippet, Vec<u32>)>,
    /// Whether they have code in counting copies, if they can.
    pub inline: bool,
    /// Whether registers and flags are free at exits, because the caller reads neither them nor the flags.
    pub free: bool,
    /// Counter of the hits that are not in counting copies.
    pub elsewhere: Option<u32>,
}

/// Copies of functions in one arena.
pub struct Copies {
    pub env: Environment,
    pub arena: Arena,
    pub text: TextSpace,
    pub functions: Vec<Result<Copied, Refusal>>,
    pub counters: usize,
    /// The plan of the slow routines.
    pub shared: PatchPlan,
}

impl Copied {
    /// All points.
    pub fn all_points(&self) -> Vec<&WovenPoint> {
        self.points.woven.iter().flatten().chain(&self.weave.points).map(Box::as_ref).collect()
    }
}

impl Copies {
    /// Copies functions with these bytes, each with its address. Each has a counting copy as well if it can.
    pub fn new(
        identity: ThreadIdentity,
        functions: &[(Vec<u8>, u64)],
        paddings: &[Padding],
        snippet: &Snippet,
        kinds: &[PointKind],
    ) -> Self {
        let of = |_, _, n| vec![(snippet.clone(), vec![n])];
        Copies::with(
            identity,
            functions,
            paddings,
            &Codes { kinds, of: &of, inline: true, free: false, elsewhere: None },
        )
    }

    /// Copies functions as [`Copies::new`] does, with these snippets.
    pub fn with(
        identity: ThreadIdentity,
        functions: &[(Vec<u8>, u64)],
        paddings: &[Padding],
        &Codes { kinds, of, inline, free, elsewhere }: &Codes<'_>,
    ) -> Self {
        let env = super::environment(identity);
        let (mut arena, mut text) = (super::arena(), TextSpace::new());
        text.add_padding(Bias(0), paddings);
        let mut shared = PatchPlan::default();
        let mut copies = Copies {
            env,
            arena: arena.clone(),
            text: text.clone(),
            functions: Vec::new(),
            counters: 0,
            shared: PatchPlan::default(),
        };
        // Code of earlier functions is taken out before the first counting copy that is made again with such points, which then lies below the
        // ordinary copy.
        let mut spare: Vec<_> = functions
            .iter()
            .cycle()
            .take(40)
            .filter_map(|(bytes, start)| {
                let request = BodyRequest { body: &body_of(bytes, *start), bias: Bias(0), name: "g", points: &[] };
                let woven = weave_body(&env, &mut arena, &mut text.clone(), &request).expect("the request makes sense");
                woven.ok().map(|weave| weave.body.removal.code)
            })
            .collect();
        for (number, (bytes, start)) in functions.iter().enumerate() {
            let body = body_of(bytes, *start);
            let trial = BodyRequest { body: &body, bias: Bias(0), name: "f", points: &[] };
            let tried = weave_body(&env, &mut arena.clone(), &mut text.clone(), &trial).expect("a right request");
            let with_copies = number % 4 > 1 && elsewhere.is_none();
            let point = |(n, probe): (u32, &Probe)| {
                let site = site(&body, probe, free.then_some(n));
                let snippets = of(number, probe.point.kind(), n);
                let snippets = snippets.iter().map(|(snippet, counters)| (snippet, counters.as_slice()));
                let code = BodyCode::of(&env, InlinePoint::of(&probe.site(&site)), snippets);
                let code = if inline { code } else { BodyCode::Elsewhere };
                // In some functions, points are woven together with the copy.
                let with_copy = WithCopy { id: 0, at: InlinePoint::of(&site) };
                let with_copy = with_copies.then_some(with_copy);
                BodyPoint { point: probe.point, code, with_copy }
            };
            let all = tried.as_ref().map_or(Vec::new(), |woven| {
                let found = woven
                    .body
                    .probes
                    .iter()
                    .filter(|p| kinds.contains(&p.point.kind()) && woven.body.probe(p.point).is_ok());
                (copies.counters as u32..).zip(found).map(point).collect::<Vec<_>>()
            });
            // In some functions, the first counting copy takes half of the counts for other code, and another one takes its place.
            let is_renewed = number % 2 == 1;
            let known = |(n, point): (usize, &BodyPoint)| match !is_renewed || n % 2 == 0 {
                true => point.clone(),
                false => BodyPoint { code: BodyCode::Elsewhere, ..point.clone() },
            };
            let own: Vec<BodyPoint> = all.iter().enumerate().map(known).collect();
            let request = BodyRequest { points: &own, ..trial };
            let routines = share_slow_routines(&env, &mut arena, &[request]).expect("the request makes sense");
            verify_weave(&env, &arena, &text, &[], &routines).expect("the routines are right");
            shared.code.extend(routines.plan.code);
            let woven = weave_body(&env, &mut arena, &mut text, &request).expect("the request makes sense");
            let weave = match woven {
                Ok(weave) => weave,
                Err(refusal) => {
                    copies.functions.push(Err(refusal));
                    continue;
                }
            };
            if let Err(e) = verify_body(&env, &arena, &text, &request, &weave) {
                panic!("{e}\n{}\n{body:x?}", super::list(&weave.plan, &[]));
            }
            let probes: Vec<Probe> =
                weave.body.probes.iter().filter_map(|p| weave.body.probe(p.point).ok().copied()).collect();
            let probes: Vec<Probe> = probes.into_iter().filter(|p| kinds.contains(&p.point.kind())).collect();
            let counters: Vec<u32> = (copies.counters as u32..).take(probes.len()).collect();
            let sites = probes.iter().zip(&counters);
            let sites: Vec<Site> =
                sites.map(|(probe, n)| probe.site(&site(&body, probe, free.then_some(*n))).into_owned()).collect();
            copies.counters += probes.len();
            let of_point = |(probe, n): (&Probe, &u32)| {
                let mut its = of(number, probe.point.kind(), *n);
                its.extend(elsewhere.map(|counter| (super::count(), vec![counter])));
                its
            };
            let snippets: Vec<_> = probes.iter().zip(&counters).map(of_point).collect();
            let requested = |(id, (snippet, counters))| {
                let (snippet, counters): (&Snippet, &Vec<u32>) = (snippet, counters);
                MiniRequest { id, snippet, counters }
            };
            let minis: Vec<Vec<_>> = snippets
                .iter()
                .map(|its| (0..).zip(its.iter().map(|(s, c)| (s, c))).map(requested).collect())
                .collect();
            let later = probes.iter().zip(&sites).zip(&minis).filter(|((probe, _), _)| probe.slot().is_none());
            let requests: Vec<_> = later
                .map(|((probe, site), minis)| PointRequest {
                    site,
                    bias: Bias(0),
                    name: "f",
                    minis,
                    beside: &[],
                    probe: Some(*probe),
                })
                .collect();
            let points = weave_points(&env, &mut arena, &mut text, &requests).expect("the request makes sense");
            if let Err(e) = verify_weave(&env, &arena, &text, &requests, &points) {
                panic!("{e}\n{}\n{}", super::list(&weave.plan, &[]), super::list(&points.plan, &points.woven));
            }
            let counted = probes.iter().map(|probe| probe.point).collect();
            let mut without = weave.body.clone();
            let renewed = is_renewed.then(|| without.give_up_counting()).flatten().and_then(|(given_up, apart)| {
                assert_eq!(apart, None, "the first counting copy lies beside the ordinary one");
                let request = BodyRequest { points: &all, ..trial };
                if with_copies {
                    spare.drain(..).for_each(|code| arena.release(&code));
                }
                let renewal = renew_counting(&env, &mut arena, &request, &without).expect("the request makes sense")?;
                if let Err(e) = verify_renewal(&env, &arena, &request, &without, &renewal) {
                    panic!("{e}\n{}\n{}", super::list(&weave.plan, &[]), super::list(&renewal.plan, &[]));
                }
                let mut made = weave.plan.code[0].bytes.clone();
                for slot in weave.points.iter().map(|point| (point.slot.0 - weave.body.removal.code.start.0) as usize) {
                    made[slot..slot + 9].copy_from_slice(&renewal.ordinary[slot..slot + 9]);
                }
                assert!(made.starts_with(&renewal.ordinary), "the ordinary copy is the same");
                Some(Renewed { given_up, body: without, points: all, renewal })
            });
            copies.functions.push(Ok(Copied { body, weave, own, points, counted, renewed }));
        }
        (copies.arena, copies.text, copies.shared) = (arena, text, shared);
        copies
    }

    /// Plans of all copies, followed by those of their points.
    pub fn plans(&self) -> Vec<&PatchPlan> {
        let plans = |f| {
            let Copied { weave, points, renewed, .. }: &Copied = f;
            let renewed = renewed.iter().flat_map(|renewed| [&renewed.given_up, &renewed.renewal.plan]);
            [&weave.plan, &points.plan].into_iter().chain(renewed)
        };
        std::iter::once(&self.shared).chain(self.functions.iter().flatten().flat_map(plans)).collect()
    }

    /// Proves a new counting copy of one of the functions again, with another plan.
    pub fn verify_renewed(&self, function: &Copied, renewal: &CountingRenewal) -> Option<Result<(), VerifyError>> {
        let Renewed { body, points, .. } = function.renewed.as_ref()?;
        let request = BodyRequest { body: &function.body, bias: Bias(0), name: "f", points };
        Some(verify_renewal(&self.env, &self.arena, &request, body, renewal))
    }

    /// Proves one of the copies again, with another plan.
    pub fn verify(&self, function: &Copied, weave: &BodyWeave) -> Result<(), VerifyError> {
        let request = BodyRequest { body: &function.body, bias: Bias(0), name: "f", points: &function.own };
        verify_body(&self.env, &self.arena, &self.text, &request, weave)
    }
}

/// The site of the n-th point. If the number is given, some registers are free at exits that hold no result.
pub fn site(body: &FunctionBody, probe: &Probe, n: Option<u32>) -> Site {
    let at = probe.at(Avma(body.function.0)).0;
    let block = body.blocks.iter().rfind(|b| b.block.range.start.0 <= at).expect("a block");
    let (free, arrival) = (block.free.clone(), Arrival { back_branches: Vec::new(), least: 0 });
    let is_free = !matches!(probe.holds, Held::Branch(..));
    let kind = match probe.point.kind() {
        PointKind::Entry => SiteKind::Entry { arrival, free, first: None },
        PointKind::Exit => {
            let scratch = |n: u32| [6, 7, 9, 10, 11].into_iter().take(n as usize % 4).map(Gpr).collect();
            let free = |n: u32| FreeRegisters { scratch: scratch(n), flags: !n.is_multiple_of(5) && is_free };
            SiteKind::Exit { within: false, free: n.map(free).unwrap_or_default() }
        }
        PointKind::CallBefore => SiteKind::CallBefore,
        PointKind::CallAfter => SiteKind::CallAfter { arrival },
        PointKind::Block => SiteKind::Block { free },
        PointKind::Edge => SiteKind::Edge { free },
    };
    let from = (at - block.block.range.start.0) as usize;
    let bytes = block.bytes.get(from..).unwrap_or_default();
    Site::new(kind, body.function, Svma(at), bytes.iter().copied().take(15).collect())
}

/// Offset of a block from the first byte of the function.
pub fn start_of(body: &FunctionBody, block: BlockId) -> Offset {
    Offset::between(body.function.0, body.blocks.get(block).expect("a block").block.range.start.0)
}
