//! Answers about code: functions in detail, and what lies at an address.

use ingraft_wire::v1;
use v1::code_client::CodeClient;
use v1::code_item::Item;
use v1::inspect_response::Event;

use super::{Client, Target, answers};
use crate::exit::Failure;
use crate::objects::code::{Block, CodeLine, ControlLoop, Generated, Graph, Location, Point, WayIn, WovenLine};
use crate::objects::{Edge, FunctionId, Host, PairFacts, hex, signed_hex};
use crate::output::progress::Progress;

/// A function in detail.
#[derive(Clone, Debug)]
pub(crate) struct Inspected {
    /// Offset of the function, as `nm` prints it.
    pub(crate) start: u64,
    pub(crate) graph: Graph,
    pub(crate) points: Vec<Point>,
    pub(crate) blocks: Vec<Block>,
    pub(crate) edges: Vec<Edge>,
    pub(crate) loops: Vec<ControlLoop>,
    pub(crate) ways_in: Vec<WayIn>,
    pub(crate) instructions: Vec<CodeLine>,
    pub(crate) woven: Vec<WovenLine>,
}

impl Client {
    /// Describes the functions that a pattern matches.
    pub(crate) async fn inspect(
        &self,
        target: &Target,
        pattern: &str,
        instructions: bool,
        progress: &mut Progress,
    ) -> Result<Vec<Inspected>, Failure> {
        let mut client = CodeClient::new(self.service.clone());
        let request = v1::InspectRequest { target: Some(target.to_wire()), pattern: pattern.to_owned(), instructions };
        let mut stream = self.answer(client.inspect(request), progress).await?;
        let mut found: Vec<Inspected> = Vec::new();
        while let Some(part) = self.next(&mut stream, progress).await? {
            match part.event {
                Some(Event::Progress(p)) => progress.say(&p.text),
                Some(Event::Code(chunk)) => {
                    for item in chunk.items.into_iter().filter_map(|item| item.item) {
                        add(&mut found, item, chunk.pid, &self.host());
                    }
                }
                None => {}
            }
        }
        Ok(found)
    }

    /// Finds out what lies at an address.
    pub(crate) async fn locate(
        &self,
        target: &Target,
        address: u64,
        progress: &mut Progress,
    ) -> Result<Location, Failure> {
        let mut client = CodeClient::new(self.service.clone());
        let request = v1::LocateRequest { target: Some(target.to_wire()), address };
        let found = self.answer(client.locate(request), progress).await?;
        Ok(location(found, self.host()))
    }
}

/// Adds an item to the function that came last. An item before the first function is left out.
fn add(found: &mut Vec<Inspected>, item: Item, pid: i32, host: &Host) {
    let item = match item {
        Item::Function(head) => return found.push(begin(head, pid, host.clone())),
        item => item,
    };
    let Some(last) = found.last_mut() else { return };
    let id = last.graph.id.clone();
    match item {
        Item::Function(_) => {}
        Item::Point(p) => last.points.extend(point(p, id)),
        Item::Block(b) => last.blocks.push(Block {
            ran: None,
            id,
            block: signed_hex(b.offset),
            size: b.size,
            instructions: b.instructions,
            header: b.r#loop.map(signed_hex),
            depth: Some(b.depth),
            count: None,
            inexact: None,
        }),
        Item::Edge(e) => {
            let Some(kind) = answers::edge_word(e.kind()) else { return };
            let (from, to) = (signed_hex(e.from), e.to.map(signed_hex));
            let kind = Some(kind);
            let facts = PairFacts::default();
            let (back, count, threads, inexact) = (Some(false), None, None, None);
            last.edges.push(Edge {
                id,
                from,
                to,
                outside: e.outside,
                kind,
                back,
                count,
                threads,
                ran: None,
                inexact,
                facts,
            });
        }
        Item::Loop(l) => {
            let texts = |offsets: Vec<i64>| offsets.into_iter().map(signed_hex).collect();
            let one = ControlLoop {
                id,
                header: signed_hex(l.header),
                depth: l.depth,
                parent: l.parent.map(signed_hex),
                body: texts(l.body),
                latches: texts(l.latches),
                entries: texts(l.entries),
            };
            let is_back = |edge: &Edge| edge.to.as_ref() == Some(&one.header) && one.latches.contains(&edge.from);
            last.edges.iter_mut().filter(|edge| is_back(edge)).for_each(|edge| edge.back = Some(true));
            last.loops.push(one);
        }
        Item::WayIn(way) => {
            let Some(reason) = way_in_word(way.reason()) else { return };
            last.ways_in.push(WayIn { id, at: signed_hex(way.offset), reason });
        }
        Item::Instruction(one) => last.instructions.push(CodeLine {
            id,
            at: signed_hex(one.offset),
            bytes: bytes(&one.code),
            text: one.text,
            line: one.source.as_ref().map(|source| source.line),
            file: one.source.map(|source| source.file),
        }),
        Item::Woven(one) => last.woven.push(WovenLine {
            id,
            kind: one.kind.and_then(|_| answers::kind_word(one.kind())),
            point: signed_hex(one.point),
            part: part_word(one.part()),
            pair: one.pair,
            address: hex(one.address),
            bytes: bytes(&one.code),
            text: one.text,
            original: one.original.map(signed_hex),
        }),
    }
}

fn begin(head: v1::InspectedFunction, pid: i32, host: Host) -> Inspected {
    let function = head.function.unwrap_or_default();
    let start = function.offset;
    let id = FunctionId { host, pid, module: function.module, function: function.function, offset: hex(start) };
    let graph = Graph {
        id,
        size: head.size,
        address: hex(head.address),
        entry: head.entry.map(signed_hex),
        ways_in_proven: head.ways_in_unproven.is_none(),
        ways_in_why_not: head.ways_in_unproven.map(|why| why.text),
        ways_out_proven: head.ways_out_unproven.is_none(),
        ways_out_why_not: head.ways_out_unproven.map(|why| why.text),
        unresolved: head.unresolved.into_iter().map(signed_hex).collect(),
        holder: head.holder,
    };
    Inspected {
        start,
        graph,
        points: Vec::new(),
        blocks: Vec::new(),
        edges: Vec::new(),
        loops: Vec::new(),
        ways_in: Vec::new(),
        instructions: Vec::new(),
        woven: Vec::new(),
    }
}

fn point(p: v1::InspectedPoint, id: FunctionId) -> Option<Point> {
    let springboard = match p.springboard() {
        v1::Springboard::Jump => Some("jump"),
        v1::Springboard::Island => Some("island"),
        v1::Springboard::Call => Some("call"),
        v1::Springboard::Copy => Some("copy"),
        v1::Springboard::Unspecified => None,
    };
    Some(Point {
        id,
        kind: answers::kind_word(p.kind())?,
        at: signed_hex(p.offset),
        how: answers::how_word(p.how())?,
        springboard,
        reason: p.why_not.as_ref().map(|why| why.reason.clone()),
        why_not: p.why_not.map(|why| why.text),
        woven: p.woven,
    })
}

fn way_in_word(reason: v1::WayInReason) -> Option<&'static str> {
    match reason {
        v1::WayInReason::Entry => Some("entry"),
        v1::WayInReason::BehindEndbr => Some("behind-endbr"),
        v1::WayInReason::CallReturn => Some("call-return"),
        v1::WayInReason::SyscallReturn => Some("syscall-return"),
        v1::WayInReason::LandingPad => Some("landing-pad"),
        v1::WayInReason::JumpTable => Some("jump-table"),
        v1::WayInReason::AddressTaken => Some("address-taken"),
        v1::WayInReason::Named => Some("named"),
        v1::WayInReason::BranchFromElsewhere => Some("branch-from-elsewhere"),
        v1::WayInReason::Called => Some("called"),
        v1::WayInReason::Resumed => Some("resumed"),
        v1::WayInReason::Unspecified => None,
    }
}

fn part_word(part: v1::CodePart) -> &'static str {
    match part {
        v1::CodePart::Springboard => "springboard",
        v1::CodePart::Island => "island",
        v1::CodePart::SlowPath => "slow-path",
        v1::CodePart::Base => "base",
        v1::CodePart::Slot => "slot",
        v1::CodePart::Snippet => "snippet",
        v1::CodePart::SnippetWithoutShard => "snippet-without-shard",
        v1::CodePart::Restore => "restore",
        v1::CodePart::Relocated => "relocated",
        v1::CodePart::Room => "room",
        v1::CodePart::Routine => "routine",
        v1::CodePart::Point => "point",
        v1::CodePart::Signature => "signature",
        v1::CodePart::Free => "free",
        v1::CodePart::Data => "data",
        v1::CodePart::Unspecified => "unknown",
    }
}

fn bytes(code: &[u8]) -> String {
    code.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn location(found: v1::LocateResponse, host: Host) -> Location {
    let what = match &found {
        found if found.generated.is_some() => "generated",
        found if found.function.is_some() => "function",
        found if found.module.is_some() => "module",
        found if found.mapping.is_some() => "memory",
        _ => "nothing",
    };
    let generated = found.generated.map(|place| Generated {
        part: part_word(place.part()),
        kind: place.kind.and_then(|_| answers::kind_word(place.kind())),
        holder: Some(place.holder).filter(|holder| !holder.is_empty()),
        point: place.point.map(hex),
        pair: place.pair,
        original: place.original.map(hex),
    });
    Location {
        host,
        pid: found.pid,
        address: hex(found.address),
        what,
        mapping: found.mapping,
        module: found.module,
        file_address: found.file_address.map(hex),
        offset: found.function.as_ref().map(|function| hex(function.offset)),
        function: found.function.map(|function| function.function),
        at: found.offset.map(signed_hex),
        block: found.block.map(signed_hex),
        line: found.source.as_ref().map(|source| source.line),
        file: found.source.map(|source| source.file),
        generated,
        note: Some(found.note).filter(|note| !note.is_empty()),
    }
}
