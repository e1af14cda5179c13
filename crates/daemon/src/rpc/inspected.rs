//! Conversions of the engine's answers about code to messages.

use std::sync::Arc;

use ingraft_engine::{
    CodeInstruction, CodePart, FunctionRef, GeneratedPlace, InspectedFunction, InspectedPoint, Location, Springboard,
    WovenInstruction,
};
use ingraft_model::{Edge, EdgeTarget, How, Loop, Loops, Offset, Svma, WayIn, WayInReason};
use ingraft_wire::v1;
use v1::code_item::Item;

/// Converts a function to items, its own item first.
pub fn items(function: InspectedFunction) -> Vec<v1::CodeItem> {
    let first = function.function.offset;
    let offset = |at: Svma| Offset::between(first.0, at.0).0;
    let cfg = &function.cfg;
    let start = |block: usize| cfg.blocks.get(block).map_or(0, |block| offset(block.range.start));
    let loops = Loops::of(cfg);
    let mut items = vec![Item::Function(head(&function))];
    items.extend(function.points.iter().map(|point| Item::Point(self::point(point))));
    items.extend(cfg.blocks.iter().enumerate().map(|(number, block)| {
        let around = loops.innermost(number).and_then(|at| loops.all().get(at));
        Item::Block(v1::BasicBlock {
            offset: offset(block.range.start),
            size: block.range.end.0.saturating_sub(block.range.start.0),
            instructions: block.instructions,
            r#loop: around.map(|one| start(one.header)),
            depth: around.map_or(0, |one| u32::try_from(one.depth + 1).unwrap_or(u32::MAX)),
        })
    }));
    items.extend(cfg.edges.iter().map(|edge| Item::Edge(self::edge(edge, &start, &function.outside))));
    items.extend(loops.all().iter().map(|one| Item::Loop(control_loop(one, &loops, &start))));
    items.extend(cfg.ways_in.iter().map(|way| Item::WayIn(way_in(way, &offset))));
    items.extend(function.instructions.into_iter().map(|one| Item::Instruction(instruction(one, &offset))));
    items.extend(function.woven.into_iter().map(|one| Item::Woven(woven(one))));
    items.into_iter().map(|item| v1::CodeItem { item: Some(item) }).collect()
}

fn reference(function: &FunctionRef) -> v1::FunctionRef {
    v1::FunctionRef { module: function.module.clone(), function: function.function.clone(), offset: function.offset.0 }
}

fn head(function: &InspectedFunction) -> v1::InspectedFunction {
    let offset = |at: Svma| Offset::between(function.function.offset.0, at.0).0;
    let cfg = &function.cfg;
    v1::InspectedFunction {
        function: Some(reference(&function.function)),
        size: function.size,
        address: function.address.0,
        entry: cfg.entry.and_then(|entry| cfg.blocks.get(entry)).map(|block| offset(block.range.start)),
        unresolved: cfg.unresolved.iter().map(|at| offset(*at)).collect(),
        ways_in_unproven: cfg.ways_in_proven.as_ref().err().map(v1::Refusal::from),
        ways_out_unproven: cfg.ways_out_proven.as_ref().err().map(v1::Refusal::from),
        holder: function.holder.clone(),
    }
}

fn point(point: &InspectedPoint) -> v1::InspectedPoint {
    let (how, springboard) = match &point.springboard {
        Ok(springboard) => (How::InPlace, self::springboard(*springboard)),
        Err(_) => (How::Refused, v1::Springboard::Unspecified),
    };
    v1::InspectedPoint {
        kind: v1::PointKind::from(point.kind).into(),
        offset: point.at.0,
        how: v1::How::from(how).into(),
        springboard: springboard.into(),
        why_not: point.springboard.as_ref().err().map(v1::Refusal::from),
        woven: point.woven,
    }
}

fn springboard(springboard: Springboard) -> v1::Springboard {
    match springboard {
        Springboard::Jump => v1::Springboard::Jump,
        Springboard::Island => v1::Springboard::Island,
        Springboard::Call => v1::Springboard::Call,
        Springboard::Copy => v1::Springboard::Copy,
    }
}

fn edge(edge: &Edge, start: &impl Fn(usize) -> i64, outside: &[(Svma, String)]) -> v1::ControlEdge {
    let kind = v1::EdgeKind::from(edge.kind);
    let name = |at: Svma| {
        let named = outside.iter().find(|(there, _)| *there == at);
        named.map_or_else(|| format!("{:#x}", at.0), |(_, name)| name.clone())
    };
    let (to, outside) = match edge.to {
        EdgeTarget::Block(block) => (Some(start(block)), None),
        EdgeTarget::Outside(at) => (None, Some(name(at))),
        EdgeTarget::Dynamic => (None, None),
    };
    v1::ControlEdge { from: start(edge.from), kind: kind.into(), to, outside }
}

fn control_loop(one: &Loop, all: &Loops, start: &impl Fn(usize) -> i64) -> v1::ControlLoop {
    let starts = |blocks: &[usize]| blocks.iter().map(|block| start(*block)).collect();
    v1::ControlLoop {
        header: start(one.header),
        depth: u32::try_from(one.depth).unwrap_or(u32::MAX),
        parent: one.parent.and_then(|at| all.all().get(at)).map(|parent| start(parent.header)),
        body: starts(&one.body),
        latches: starts(&one.latches),
        entries: starts(&one.entries),
    }
}

fn way_in(way: &WayIn, offset: &impl Fn(Svma) -> i64) -> v1::WayIn {
    let reason = match way.reason {
        WayInReason::Entry => v1::WayInReason::Entry,
        WayInReason::BehindEndbr => v1::WayInReason::BehindEndbr,
        WayInReason::CallReturn => v1::WayInReason::CallReturn,
        WayInReason::SyscallReturn => v1::WayInReason::SyscallReturn,
        WayInReason::LandingPad => v1::WayInReason::LandingPad,
        WayInReason::JumpTable => v1::WayInReason::JumpTable,
        WayInReason::AddressTaken => v1::WayInReason::AddressTaken,
        WayInReason::Named => v1::WayInReason::Named,
        WayInReason::BranchFromElsewhere => v1::WayInReason::BranchFromElsewhere,
        WayInReason::Called => v1::WayInReason::Called,
        WayInReason::Resumed => v1::WayInReason::Resumed,
    };
    v1::WayIn { offset: offset(way.at), reason: reason.into() }
}

fn source(source: Option<(Arc<str>, u64)>) -> Option<v1::SourceLine> {
    source.map(|(file, line)| v1::SourceLine { file: file.as_ref().to_owned(), line })
}

fn instruction(one: CodeInstruction, offset: &impl Fn(Svma) -> i64) -> v1::CodeInstruction {
    let CodeInstruction { at, bytes, text, source } = one;
    v1::CodeInstruction { offset: offset(at), code: bytes, text, source: self::source(source) }
}

fn woven(one: WovenInstruction) -> v1::WovenInstruction {
    let WovenInstruction { kind, point, part, pair, at, bytes, text, original } = one;
    v1::WovenInstruction {
        kind: kind.map(|kind| v1::PointKind::from(kind).into()),
        point: point.0,
        part: self::part(part).into(),
        pair,
        address: at.0,
        code: bytes,
        text,
        original: original.map(|at| at.0),
    }
}

fn part(part: CodePart) -> v1::CodePart {
    match part {
        CodePart::Springboard => v1::CodePart::Springboard,
        CodePart::Island => v1::CodePart::Island,
        CodePart::SlowPath => v1::CodePart::SlowPath,
        CodePart::Base => v1::CodePart::Base,
        CodePart::Slot => v1::CodePart::Slot,
        CodePart::Snippet => v1::CodePart::Snippet,
        CodePart::SnippetWithoutShard => v1::CodePart::SnippetWithoutShard,
        CodePart::Restore => v1::CodePart::Restore,
        CodePart::Relocated => v1::CodePart::Relocated,
        CodePart::Room => v1::CodePart::Room,
        CodePart::Routine => v1::CodePart::Routine,
        CodePart::Point => v1::CodePart::Point,
        CodePart::Signature => v1::CodePart::Signature,
        CodePart::Free => v1::CodePart::Free,
        CodePart::Data => v1::CodePart::Data,
    }
}

/// Converts what lies at an address.
pub fn location(location: Location) -> v1::LocateResponse {
    let Location { pid, address, mapping, place, generated, note } = location;
    let mut answer = v1::LocateResponse {
        pid: pid.0,
        address: address.0,
        mapping,
        generated: generated.map(generated_place),
        note,
        ..Default::default()
    };
    if let Some(place) = place {
        let first = place.function.as_ref().map(|function| function.offset.0);
        answer.offset = first.map(|first| Offset::between(first, place.at.0).0);
        answer.module = Some(place.module);
        answer.file_address = Some(place.at.0);
        answer.function = place.function.as_ref().map(reference);
        answer.block = place.block.map(|block| block.0);
        answer.source = source(place.source);
    }
    answer
}

fn generated_place(place: GeneratedPlace) -> v1::GeneratedPlace {
    let GeneratedPlace { holder, part, kind, point, pair, original } = place;
    v1::GeneratedPlace {
        holder,
        part: self::part(part).into(),
        kind: kind.map(|kind| v1::PointKind::from(kind).into()),
        point: point.map(|at| at.0),
        pair,
        original: original.map(|at| at.0),
    }
}

#[cfg(test)]
mod tests {
    use ingraft_model::{Avma, Block, Cfg, PointKind, Refusal};

    use ingraft_model::EdgeKind;

    use super::*;

    fn function() -> InspectedFunction {
        let block = |start, end| Block { range: Svma(start)..Svma(end), instructions: 1 };
        let edge = |from, to, kind| Edge { from, to, kind };
        InspectedFunction {
            function: FunctionRef { module: "m".to_owned(), function: "f".to_owned(), offset: Svma(0x100) },
            size: 32,
            address: Avma(0x5000),
            cfg: Cfg {
                blocks: vec![block(0xf0, 0x100), block(0x100, 0x110)],
                edges: vec![
                    edge(0, EdgeTarget::Outside(Svma(0x900)), EdgeKind::TailJump),
                    edge(1, EdgeTarget::Block(0), EdgeKind::Taken),
                    edge(1, EdgeTarget::Block(1), EdgeKind::Taken),
                    edge(1, EdgeTarget::Dynamic, EdgeKind::Return),
                ],
                entry: Some(1),
                ways_in: vec![WayIn { at: Svma(0x100), reason: WayInReason::Entry }],
                unresolved: vec![Svma(0x10c)],
                ways_in_proven: Ok(()),
                ways_out_proven: Err(Refusal::StraddlesPages),
            },
            outside: vec![(Svma(0x900), "g".to_owned())],
            points: vec![InspectedPoint {
                kind: PointKind::Entry,
                at: Offset(0),
                springboard: Err(Refusal::StraddlesPages),
                woven: false,
            }],
            instructions: Vec::new(),
            woven: Vec::new(),
            holder: None,
        }
    }

    #[test]
    fn offsets_are_distances_from_the_first_byte() {
        let items: Vec<Item> = items(function()).into_iter().filter_map(|item| item.item).collect();
        let Some(Item::Function(head)) = items.first() else { panic!("{items:?}") };
        assert_eq!((head.entry, &head.unresolved[..], head.address), (Some(0), &[12][..], 0x5000));
        assert!(head.ways_in_unproven.is_none() && head.ways_out_unproven.is_some());
        let blocks = items.iter().filter_map(|item| match item {
            Item::Block(block) => Some((block.offset, block.size, block.depth, block.r#loop)),
            _ => None,
        });
        let blocks: Vec<_> = blocks.collect();
        assert_eq!(blocks, [(-16, 16, 0, None), (0, 16, 1, Some(0))]);
        let edges = items.iter().filter_map(|item| match item {
            Item::Edge(edge) => Some((edge.from, edge.to, edge.outside.clone())),
            _ => None,
        });
        let expected = [(-16, None, Some("g".to_owned())), (0, Some(-16), None), (0, Some(0), None), (0, None, None)];
        assert_eq!(edges.collect::<Vec<_>>(), expected);
    }
}
