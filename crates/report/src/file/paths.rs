//! Conversions of the paths of a function from and to their messages.

use ingraft_profile::{PathBegin, PathEnd};

use super::FileError;
use super::checked::{contradiction, distance, index};
use crate::message::PathCounts;
use crate::saved::{PathCount, PathInContext, PathProfile};

/// Beginnings of paths by their numbers in files.
const BEGINS: [PathBegin; 4] = [PathBegin::Entry, PathBegin::Elsewhere, PathBegin::Loop, PathBegin::Return];
/// Ends of paths by their numbers in files.
const ENDS: [PathEnd; 4] = [PathEnd::Exit, PathEnd::Loop, PathEnd::Call, PathEnd::Never];

impl From<&PathProfile> for PathCounts {
    fn from(paths: &PathProfile) -> Self {
        let PathProfile { possible, is_cut, late, unlisted, open, left, .. } = *paths;
        let inexact = paths.inexact.clone();
        let mut message =
            PathCounts { possible, cut: is_cut, late, unlisted, open, left, inexact, ..PathCounts::default() };
        for PathCount { number, begins, blocks, ends, next, count, values } in &paths.paths {
            message.value.extend(values);
            message.number.push(*number);
            message.count.push(*count);
            message.begins.push(place(&BEGINS, begins));
            message.ends.push(place(&ENDS, ends));
            message.next.push(next.map_or(0, |block| block as u64 + 1));
            message.length.push(blocks.len() as u32);
            let before = std::iter::once(&0).chain(blocks);
            message.block.extend(before.zip(blocks).map(|(before, block)| distance(*before as u64, *block as u64)));
        }
        for PathInContext { context, path, count, values } in &paths.by_context {
            message.context_value.extend(values);
            message.context.push(context.map_or(0, |context| context as u64 + 1));
            message.context_path.push(*path as u64);
            message.context_count.push(*count);
        }
        message
    }
}

/// Number of one of several words in files.
fn place<T: PartialEq>(all: &[T], one: &T) -> u32 {
    all.iter().position(|other| other == one).unwrap_or_default() as u32
}

/// Converts the paths of a function from their message. The function has this number of blocks, and each path this number of values.
pub(super) fn paths(message: PathCounts, (blocks, values): (usize, usize)) -> Result<PathProfile, FileError> {
    let PathCounts { possible, cut, late, unlisted, open, left, ref inexact, .. } = message;
    let all = message.number.len();
    let lists = [message.begins.len(), message.ends.len(), message.length.len(), message.next.len()];
    if message.count.len() != all || lists.iter().any(|other| *other != all) {
        return Err(contradiction("the lists of paths have different lengths"));
    }
    if message.value.len() != all.saturating_mul(values) {
        return Err(contradiction("paths have more or fewer values than the profile has metrics of paths"));
    }
    let ends = message.ends.iter().zip(&message.next);
    let rows = message.number.iter().zip(&message.count).zip(message.begins.iter().zip(ends)).zip(&message.length);
    let (mut paths, mut rest) = (Vec::with_capacity(all), message.block.as_slice());
    let mut of_paths = message.value.chunks(values.max(1));
    for (((number, count), (begins, (ends, next))), length) in rows {
        if *number >= possible {
            return Err(contradiction("a path has a number that the function does not have"));
        }
        let own = usize::try_from(*length).ok().filter(|length| *length > 0);
        let own = own.and_then(|length| rest.split_at_checked(length));
        let (own, others) = own.ok_or_else(|| contradiction("a path has no blocks, or fewer than it says"))?;
        rest = others;
        paths.push(PathCount {
            number: *number,
            begins: word(&BEGINS, *begins)?,
            blocks: way(own, blocks)?,
            ends: word(&ENDS, *ends)?,
            next: match next.checked_sub(1) {
                None => None,
                Some(block) => Some(index(block, blocks, "a path goes on at a block that does not exist")?),
            },
            count: *count,
            values: of_paths.next().unwrap_or_default().to_vec(),
        });
    }
    if !rest.is_empty() {
        return Err(contradiction("there are more blocks than paths have"));
    }
    let (contexts, of_contexts) = (message.context.len(), [message.context_path.len(), message.context_count.len()]);
    if of_contexts.iter().any(|other| *other != contexts) {
        return Err(contradiction("the lists of the contexts of paths have different lengths"));
    }
    if message.context_value.len() != contexts.saturating_mul(values) {
        return Err(contradiction("paths by context have more or fewer values than the profile has metrics of paths"));
    }
    let mut of_contexts = message.context_value.chunks(values.max(1));
    let by_context = message.context.iter().zip(&message.context_path).zip(&message.context_count);
    let by_context = by_context.map(|((context, path), count)| {
        let context = match context.checked_sub(1) {
            Some(context) => Some(index(context, usize::MAX, "a path has a calling context that does not exist")?),
            None => None,
        };
        let path = index(*path, all, "a calling context has a path that has not run")?;
        Ok(PathInContext { context, path, count: *count, values: of_contexts.next().unwrap_or_default().to_vec() })
    });
    let by_context = by_context.collect::<Result<_, FileError>>()?;
    Ok(PathProfile { possible, is_cut: cut, paths, late, unlisted, open, left, inexact: inexact.clone(), by_context })
}

/// The blocks of a path by the steps from one to the next.
fn way(steps: &[i64], blocks: usize) -> Result<Vec<usize>, FileError> {
    let mut at = 0_usize;
    let to = |step: &i64| {
        let to = isize::try_from(*step).ok().and_then(|step| at.checked_add_signed(step));
        at = to.filter(|to| *to < blocks).ok_or_else(|| contradiction("a path has a block that does not exist"))?;
        Ok(at)
    };
    steps.iter().map(to).collect()
}

fn word<T: Copy>(all: &[T], number: u32) -> Result<T, FileError> {
    let known = usize::try_from(number).ok().and_then(|number| all.get(number));
    known.copied().ok_or_else(|| contradiction("a path has an unknown beginning or end"))
}
