//! The code of a target: functions in detail, and what lies at an address. A function is split into items, and put together again.

use std::sync::Arc;

use ingraft_api::{
    BasicBlock, CodeInstruction, CodePart, ControlEdge, ControlLoop, GeneratedPlace, InspectedFunction, InspectedPath,
    InspectedPoint, Location, ModulePlace, Springboard, WayIntoCode, WovenInstruction,
};
use ingraft_model::{How, Offset};
use ingraft_report::{PathBegin, PathEnd};

use crate::field::{FieldError, WireField, read};
use crate::v1;
use v1::code_item::Item;

enums! {
    Springboard { Jump, Island, Call, Copy }
    PathBegin { Entry, Elsewhere, Loop, Return }
    PathEnd { Exit, Loop, Call, Never }
    CodePart {
        Springboard, Island, SlowPath, Base, Slot, Snippet, SnippetWithoutShard, Restore, Relocated, Room, Routine,
        Point, Signature, Free, Data,
    } [unknown Unknown]
}

messages! {
    BasicBlock => BasicBlock { offset, size, instructions, depth; header => r#loop }
    ControlEdge => ControlEdge { from, kind, to, outside }
    ControlLoop => ControlLoop { header, depth, parent, body, latches, entries }
    WayIntoCode => WayIn { offset, reason }
    InspectedPath => InspectedPath { number, possible, begins, blocks, ends, next }
    CodeInstruction => CodeInstruction { text, source; at => offset, bytes => code }
    WovenInstruction => WovenInstruction { kind, point, part, pair, text, original; at => address, bytes => code }
    GeneratedPlace => GeneratedPlace { holder, part, kind, point, pair, original }
}

nested! { InspectedPoint => InspectedPoint }

/// Path of a source file, and number of a line.
impl WireField<v1::SourceLine> for (Arc<str>, u64) {
    fn to_wire(self) -> v1::SourceLine {
        v1::SourceLine { file: self.0.to_wire(), line: self.1 }
    }

    fn from_wire(wire: v1::SourceLine) -> Result<Self, FieldError> {
        Ok((wire.file.into(), wire.line))
    }
}

impl From<InspectedPoint> for v1::InspectedPoint {
    fn from(point: InspectedPoint) -> Self {
        let InspectedPoint { kind, at, springboard, woven } = point;
        let how = if springboard.is_ok() { How::InPlace } else { How::Refused };
        let (springboard, why_not) = match springboard {
            Ok(springboard) => (v1::Springboard::from(springboard), None),
            Err(why) => (v1::Springboard::Unspecified, Some(why.into())),
        };
        let (how, springboard) = (how.to_wire(), springboard.into());
        v1::InspectedPoint { kind: kind.to_wire(), offset: at.0, how, springboard, why_not, woven }
    }
}

impl TryFrom<v1::InspectedPoint> for InspectedPoint {
    type Error = FieldError;

    fn try_from(point: v1::InspectedPoint) -> Result<Self, FieldError> {
        let v1::InspectedPoint { kind, offset, how: _, springboard, why_not, woven } = point;
        let springboard = match why_not {
            Some(why) => Err(why.try_into()?),
            None => Ok(read("springboard", springboard)?),
        };
        Ok(InspectedPoint { kind: read("kind", kind)?, at: Offset(offset), springboard, woven })
    }
}

/// Splits a function into items, its own item first.
pub fn items(function: InspectedFunction) -> impl Iterator<Item = v1::CodeItem> + Send {
    let head = v1::InspectedFunction {
        function: Some(function.function.into()),
        size: function.size,
        address: function.address.0,
        entry: function.entry.to_wire(),
        unresolved: function.unresolved.to_wire(),
        ways_in_unproven: function.ways_in_unproven.to_wire(),
        ways_out_unproven: function.ways_out_unproven.to_wire(),
        holder: function.holder,
    };
    let items = std::iter::once(Item::Function(head));
    let items = items.chain(function.points.into_iter().map(|one| Item::Point(one.into())));
    let items = items.chain(function.blocks.into_iter().map(|one| Item::Block(one.into())));
    let items = items.chain(function.edges.into_iter().map(|one| Item::Edge(one.into())));
    let items = items.chain(function.loops.into_iter().map(|one| Item::Loop(one.into())));
    let items = items.chain(function.ways_in.into_iter().map(|one| Item::WayIn(one.into())));
    let items = items.chain(function.instructions.into_iter().map(|one| Item::Instruction(one.into())));
    let items = items.chain(function.woven.into_iter().map(|one| Item::Woven(one.into())));
    let items = items.chain(function.path.map(|one| Item::Path(one.into())));
    items.map(|item| v1::CodeItem { item: Some(item) })
}

/// Adds an item to the function that came last. Items that are not known to this version, and those before the first function, are left out.
pub fn add_item(functions: &mut Vec<InspectedFunction>, item: v1::CodeItem) -> Result<(), FieldError> {
    let Some(item) = item.item else { return Ok(()) };
    if let Item::Function(head) = item {
        functions.push(InspectedFunction {
            function: read("function", head.function)?,
            size: head.size,
            address: read("address", head.address)?,
            entry: read("entry", head.entry)?,
            unresolved: read("unresolved", head.unresolved)?,
            ways_in_unproven: read("ways_in_unproven", head.ways_in_unproven)?,
            ways_out_unproven: read("ways_out_unproven", head.ways_out_unproven)?,
            holder: head.holder,
            ..InspectedFunction::default()
        });
        return Ok(());
    }
    let Some(last) = functions.last_mut() else { return Ok(()) };
    match item {
        Item::Function(_) => {}
        Item::Point(one) => last.points.extend(known(one)?),
        Item::Block(one) => last.blocks.extend(known(one)?),
        Item::Edge(one) => last.edges.extend(known(one)?),
        Item::Loop(one) => last.loops.extend(known(one)?),
        Item::WayIn(one) => last.ways_in.extend(known(one)?),
        Item::Instruction(one) => last.instructions.extend(known(one)?),
        Item::Woven(one) => last.woven.extend(known(one)?),
        Item::Path(one) => last.path = known(one)?,
    }
    Ok(())
}

/// Reads an item; `None` if only a later version knows it.
fn known<T: WireField<W>, W>(item: W) -> Result<Option<T>, FieldError> {
    read("item", Some(item))
}

messages! {
    ModulePlace => CodePlace { module, function, block, source, inlined; at => file_address }
}

impl From<Location> for v1::LocateResponse {
    fn from(location: Location) -> Self {
        let Location { pid, address, mapping, place, generated, note } = location;
        let mut answer = v1::LocateResponse {
            pid: pid.0,
            address: address.0,
            mapping,
            generated: generated.to_wire(),
            note,
            ..v1::LocateResponse::default()
        };
        if let Some(ModulePlace { module, at, function, block, source, inlined }) = place {
            answer.offset = function.as_ref().map(|function| Offset::between(function.offset.0, at.0).0);
            answer.module = Some(module);
            answer.file_address = Some(at.0);
            answer.function = function.to_wire();
            answer.block = block.to_wire();
            answer.source = source.to_wire();
            answer.inlined = inlined;
        }
        answer
    }
}

impl TryFrom<v1::LocateResponse> for Location {
    type Error = FieldError;

    fn try_from(found: v1::LocateResponse) -> Result<Self, FieldError> {
        let place = match found.module {
            Some(module) => Some(ModulePlace {
                module,
                at: read("file_address", found.file_address.unwrap_or_default())?,
                function: read("function", found.function)?,
                block: read("block", found.block)?,
                source: read("source", found.source)?,
                inlined: found.inlined,
            }),
            None => None,
        };
        Ok(Location {
            pid: read("pid", found.pid)?,
            address: read("address", found.address)?,
            mapping: found.mapping,
            place,
            generated: read("generated", found.generated)?,
            note: found.note,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::any::{Any, Source, comes_back};

    impl Any for InspectedPoint {
        fn any(s: &mut Source<'_>) -> Self {
            let springboard = if s.next() { Ok(s.next()) } else { Err(s.next()) };
            InspectedPoint { kind: s.next(), at: s.next(), springboard, woven: s.next() }
        }
    }

    impl Any for InspectedFunction {
        fn any(s: &mut Source<'_>) -> Self {
            InspectedFunction {
                function: s.next(),
                size: s.next(),
                address: s.next(),
                entry: s.next(),
                unresolved: s.next(),
                ways_in_unproven: s.next(),
                ways_out_unproven: s.next(),
                holder: s.next(),
                points: s.next(),
                blocks: s.next(),
                edges: s.next(),
                loops: s.next(),
                ways_in: s.next(),
                instructions: s.next(),
                woven: s.next(),
                path: s.next(),
            }
        }
    }

    impl Any for Location {
        fn any(s: &mut Source<'_>) -> Self {
            Location {
                pid: s.next(),
                address: s.next(),
                mapping: s.next(),
                place: s.next(),
                generated: s.next(),
                note: s.next(),
            }
        }
    }

    #[test]
    fn functions_come_back() {
        comes_back(|functions: Vec<InspectedFunction>| {
            let mut all = Vec::new();
            let mut items = functions.into_iter().flat_map(items);
            items.try_for_each(|item| add_item(&mut all, item)).map_err(|e| e.to_string())?;
            Ok(all)
        });
    }

    #[test]
    fn locations_come_back() {
        comes_back(|place: Location| v1::LocateResponse::from(place).try_into().map_err(|e: FieldError| e.to_string()));
    }

    #[test]
    fn items_of_a_later_version_are_left_out() {
        let mut all = vec![InspectedFunction::default()];
        let point = v1::InspectedPoint { kind: 77, springboard: 1, ..v1::InspectedPoint::default() };
        assert_eq!(add_item(&mut all, v1::CodeItem { item: Some(Item::Point(point)) }), Ok(()));
        assert_eq!(add_item(&mut all, v1::CodeItem::default()), Ok(()));
        assert_eq!(all, [InspectedFunction::default()]);
    }
}
