//! Paths, and functions, by the part that they have in an event: the tables 4 and 5 of Ammons, Ball and Larus, "Exploiting hardware performance counters
//! with flow and context sensitive profiling" (1997). The paper counts misses of a cache; here reads of memory stand in their place, because they need no
//! counters of the processor.

use ingraft_report::{FunctionProfile, SavedProfile};

use crate::objects::paths::PathClassObject;
use crate::objects::{Host, Object};
use crate::output::histogram::share;
use crate::output::number::grouped_u64;
use crate::output::table::TextTable;

/// Events of a path, or of several ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct PathEvents {
    instructions: u64,
    reads: u64,
}

/// Paths or functions of one class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct ClassTotal {
    number: u64,
    /// Number of paths; that of the functions' paths in classes of functions.
    paths: u64,
    events: PathEvents,
}

/// Classes in the order in which they are shown: all, those with at least the threshold of all reads (hot), those of them that read more for each
/// instruction than the program does (dense) and the others (sparse), and those below the threshold (cold).
const CLASSES: [&str; 5] = ["all", "hot", "dense", "sparse", "cold"];

/// Totals of the classes of paths, or of functions.
type ClassTotals = [ClassTotal; CLASSES.len()];

/// The classes of the paths and of the functions of a process.
pub(crate) struct PathClasses {
    paths: ClassTotals,
    functions: ClassTotals,
    threshold: f64,
}

impl PathEvents {
    fn plus(self, other: PathEvents) -> PathEvents {
        PathEvents {
            instructions: self.instructions.saturating_add(other.instructions),
            reads: self.reads.saturating_add(other.reads),
        }
    }

    /// Whether there are more reads for each instruction than in all.
    fn is_denser_than(self, all: PathEvents) -> bool {
        u128::from(self.reads) * u128::from(all.instructions) > u128::from(all.reads) * u128::from(self.instructions)
    }
}

impl PathClasses {
    /// The classes of the paths of a profile that was not saved; `threshold` is the part of all reads that a hot path has at least.
    pub(crate) fn of(profile: &SavedProfile, threshold: f64) -> Self {
        let functions: Vec<Vec<PathEvents>> = profile.functions.iter().map(events).collect();
        let paths: Vec<(u64, PathEvents)> = functions.iter().flatten().map(|events| (1, *events)).collect();
        let sum = |events: &Vec<PathEvents>| events.iter().fold(PathEvents::default(), |sum, of| sum.plus(*of));
        let functions: Vec<(u64, PathEvents)> =
            functions.iter().map(|events| (events.len() as u64, sum(events))).filter(|(paths, _)| *paths > 0).collect();
        PathClasses { paths: classes(&paths, threshold), functions: classes(&functions, threshold), threshold }
    }

    /// The records of the classes.
    pub(crate) fn objects(&self, host: &Host, pid: i32) -> Vec<Object> {
        let one = |of: &'static str, totals: &ClassTotals| -> Vec<Object> {
            let record = |(class, total): (&'static str, &ClassTotal)| {
                Object::PathClass(PathClassObject {
                    host: host.clone(),
                    pid,
                    of,
                    class,
                    number: total.number,
                    paths: total.paths,
                    instructions: total.events.instructions,
                    memory_reads: total.events.reads,
                    threshold: self.threshold,
                })
            };
            CLASSES.into_iter().zip(totals).map(record).collect()
        };
        [one("paths", &self.paths), one("functions", &self.functions)].concat()
    }

    /// Two tables: of the paths, and of the functions.
    pub(crate) fn tables(&self, width: Option<usize>) -> String {
        let mut paths = TextTable::new().left("PATHS").right("NUMBER").right("INSTRUCTIONS").right("READS");
        let mut functions =
            TextTable::new().left("FUNCTIONS").right("NUMBER").right("PATHS EACH").right("INSTRUCTIONS").right("READS");
        let whole = self.paths.first().copied().unwrap_or_default().events;
        for (class, (of_paths, of_functions)) in CLASSES.into_iter().zip(self.paths.iter().zip(&self.functions)) {
            let shares = |total: &ClassTotal| {
                [share(total.events.instructions, whole.instructions), share(total.events.reads, whole.reads)]
            };
            let [instructions, reads] = shares(of_paths);
            paths.row(vec![class.into(), grouped_u64(of_paths.number).into(), instructions.into(), reads.into()]);
            let [instructions, reads] = shares(of_functions);
            let each = of_functions.paths as f64 / of_functions.number.max(1) as f64;
            functions.row(vec![
                class.into(),
                grouped_u64(of_functions.number).into(),
                format!("{each:.1}").into(),
                instructions.into(),
                reads.into(),
            ]);
        }
        format!("\n{}\n{}", paths.render(width), functions.render(width))
    }
}

/// Events of all runs of each path of a function.
fn events(function: &FunctionProfile) -> Vec<PathEvents> {
    let (Some(paths), Some(details)) = (&function.paths, &function.details) else { return Vec::new() };
    let of = |path: &ingraft_report::PathCount| {
        let blocks = path.blocks.iter().filter_map(|block| details.events.get(*block));
        let each = blocks.fold(PathEvents::default(), |sum, block| {
            sum.plus(PathEvents { instructions: block.instructions.into(), reads: block.reads.into() })
        });
        PathEvents {
            instructions: each.instructions.saturating_mul(path.count),
            reads: each.reads.saturating_mul(path.count),
        }
    };
    paths.paths.iter().map(of).collect()
}

/// Totals of the classes of paths, or of functions, each with its number of paths.
fn classes(all: &[(u64, PathEvents)], threshold: f64) -> ClassTotals {
    let whole = all.iter().fold(PathEvents::default(), |sum, (_, events)| sum.plus(*events));
    let mut totals = ClassTotals::default();
    for (paths, events) in all {
        let is_hot = events.reads > 0 && events.reads as f64 >= threshold * whole.reads as f64;
        let own: &[&str] = match (is_hot, events.is_denser_than(whole)) {
            (true, true) => &["all", "hot", "dense"],
            (true, false) => &["all", "hot", "sparse"],
            (false, _) => &["all", "cold"],
        };
        for (_, total) in CLASSES.iter().zip(&mut totals).filter(|(class, _)| own.contains(class)) {
            total.number += 1;
            total.paths += paths;
            total.events = total.events.plus(*events);
        }
    }
    totals
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hot_paths_are_dense_or_sparse() {
        let of = |instructions, reads| (1, PathEvents { instructions, reads });
        // The program reads once in two instructions.
        let totals = classes(&[of(100, 80), of(100, 20), of(2, 1), of(10, 5)], 0.1);
        let numbers = totals.map(|total| (total.number, total.events.instructions, total.events.reads));
        assert_eq!(numbers, [(4, 212, 106), (2, 200, 100), (1, 100, 80), (1, 100, 20), (2, 12, 6)]);
    }

    #[test]
    fn paths_that_read_nothing_are_cold() {
        let totals = classes(&[(3, PathEvents { instructions: 5, reads: 0 })], 0.0);
        assert_eq!(totals.map(|total| total.paths), [3, 0, 0, 0, 3]);
    }
}
