//! Saved profiles as records for scripts.

use ingraft_api::PairFacts;
use ingraft_model::{BlockId, IndexVec, Key, Loops, Svma};
use ingraft_report::{Covered, EdgeEnd, FunctionChange, FunctionProfile, ProfileKind, SavedProfile};

use crate::exit::Stop;
use crate::objects::code::BlockObject;
use crate::objects::{self, CoverageObject, EdgeObject, Object, RecordedFunction};
use crate::output::{Output, json_line};

/// Writes the blocks and edges of a profile, and more records of each function.
pub(super) fn profile(
    profile: &SavedProfile,
    more: &dyn Fn(&FunctionProfile, &RecordedFunction) -> Vec<Object>,
    out: &mut Output,
) -> Result<(), Stop> {
    let module = |index: usize| profile.modules.get(index).map(|module| module.name.as_str()).unwrap_or_default();
    for function in &profile.functions {
        let id = id(profile.pid, module(function.module), &function.name, function.start);
        let records: Vec<Object> = match profile.kind {
            ProfileKind::Counts => {
                let counts = blocks(function, &id).into_iter().chain(edges(function, &id));
                counts.chain(more(function, &id)).collect()
            }
            ProfileKind::Coverage => {
                let parts = ran_blocks(function, &id).into_iter().chain(ran_edges(function, &id));
                std::iter::once(Object::Coverage(coverage(function, &id))).chain(parts).collect()
            }
            ProfileKind::Contexts => Vec::new(),
        };
        let lines: String = records.iter().map(json_line).collect();
        out.verbatim(lines.as_bytes())?;
    }
    Ok(())
}

/// Writes differences: each function, then its blocks.
pub(super) fn changes(pid: u32, changes: &[FunctionChange], out: &mut Output) -> Result<(), Stop> {
    for change in changes {
        let id = id(pid, &change.module, &change.name, change.start);
        let function = objects::changes::FunctionChangeObject {
            id: id.clone(),
            old_instructions: change.instructions.old,
            new_instructions: change.instructions.new,
            old_calls: change.calls.old,
            new_calls: change.calls.new,
        };
        out.verbatim(json_line(&Object::FunctionChange(function)).as_bytes())?;
        for block in &change.blocks {
            let block = objects::changes::BlockChangeObject {
                id: id.clone(),
                block: offset(block.start, change.start),
                old: block.count.old,
                new: block.count.new,
            };
            out.verbatim(json_line(&Object::BlockChange(block)).as_bytes())?;
        }
    }
    Ok(())
}

fn id(pid: u32, module: &str, name: &str, start: Svma) -> RecordedFunction {
    RecordedFunction {
        host: None,
        pid: pid.cast_signed(),
        module: module.to_owned(),
        function: super::tables::shown(name, start),
        offset: format!("{:#x}", start.0),
    }
}

/// Offset in a function. Parts of a function may lie before its first byte.
pub(crate) fn offset(at: Svma, start: Svma) -> String {
    format!("{}{:#x}", if at < start { "-" } else { "" }, at.0.abs_diff(start.0))
}

/// The blocks of a function, with the loops that they belong to.
pub(crate) fn blocks(function: &FunctionProfile, id: &RecordedFunction) -> Vec<Object> {
    let mut successors: IndexVec<BlockId, Vec<BlockId>> = IndexVec::filled(Vec::new(), function.blocks.len());
    let mut reached = IndexVec::filled(false, function.blocks.len());
    for edge in &function.edges {
        if let (EdgeEnd::Block(to), Some(from)) = (edge.to, successors.get_mut(BlockId::at(edge.from))) {
            from.push(BlockId::at(to));
            reached.set(BlockId::at(to), true);
        }
    }
    let blocks = function.blocks.iter().zip(reached.entries());
    let entries = blocks.filter(|(block, (_, reached))| block.start == function.start || !**reached);
    let entries: Vec<BlockId> = entries.map(|(_, (id, _))| id).collect();
    let loops = Loops::headers(&successors, &entries);
    let of = |number: usize| loops.innermost(BlockId::at(number)).and_then(|at| loops.all().get(at));
    let header =
        |number: usize| function.blocks.get(of(number)?.header.index()).map(|b| offset(b.start, function.start));
    let records = function.blocks.iter().enumerate().map(|(number, block)| BlockObject {
        id: id.clone(),
        block: offset(block.start, function.start),
        size: block.size.into(),
        instructions: block.instructions,
        header: header(number),
        depth: u32::try_from(loops.around(BlockId::at(number)).count()).ok(),
        count: function.executions(number).and_then(|count| i64::try_from(count).ok()),
        ran: None,
        inexact: function.inexact.clone(),
    });
    records.map(Object::Block).collect()
}

/// The coverage of a function.
pub(crate) fn coverage(function: &FunctionProfile, id: &RecordedFunction) -> CoverageObject {
    let Covered { blocks, blocks_ran, blocks_unknown, branches, branches_ran, branches_unknown } = function.covered();
    CoverageObject {
        id: id.clone(),
        blocks,
        blocks_ran,
        blocks_unknown,
        branches,
        branches_ran,
        branches_unknown,
        inexact: function.inexact.clone(),
    }
}

/// The word for whether something has run.
fn word(ran: Option<bool>) -> &'static str {
    match ran {
        Some(true) => "yes",
        Some(false) => "no",
        None => "unknown",
    }
}

/// The blocks of a function of a coverage.
pub(crate) fn ran_blocks(function: &FunctionProfile, id: &RecordedFunction) -> Vec<Object> {
    let mut records = blocks(function, id);
    for (number, record) in records.iter_mut().enumerate() {
        if let Object::Block(block) = record {
            (block.count, block.ran) = (None, Some(word(function.ran(number))));
        }
    }
    records
}

/// The edges of a function of a coverage.
pub(crate) fn ran_edges(function: &FunctionProfile, id: &RecordedFunction) -> Vec<Object> {
    let mut records = edges(function, id);
    for (record, of) in records.iter_mut().zip(&function.edges) {
        if let Object::Edge(edge) = record {
            (edge.count, edge.ran) = (None, Some(word(of.count.map(|count| count > 0))));
        }
    }
    records
}

/// The edges of a function.
pub(crate) fn edges(function: &FunctionProfile, id: &RecordedFunction) -> Vec<Object> {
    let start = |block: usize| function.blocks.get(block).map(|block| offset(block.start, function.start));
    let records = function.edges.iter().map(|edge| EdgeObject {
        id: id.clone(),
        from: start(edge.from).unwrap_or_default(),
        to: match edge.to {
            EdgeEnd::Block(to) => start(to),
            EdgeEnd::Outside(_) | EdgeEnd::Dynamic => None,
        },
        outside: match edge.to {
            EdgeEnd::Outside(at) => Some(objects::hex(at.0)),
            EdgeEnd::Block(_) | EdgeEnd::Dynamic => None,
        },
        kind: Some(edge.kind.word()),
        back: None,
        count: edge.count.and_then(|count| i64::try_from(count).ok()),
        threads: None,
        ran: None,
        inexact: function.inexact.clone(),
        facts: PairFacts::default(),
    });
    records.map(Object::Edge).collect()
}
