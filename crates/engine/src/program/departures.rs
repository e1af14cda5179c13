//! Ways in which threads of a process may end so that an unwinder runs, and the code that may end them.

use ingraft_analysis::AsyncUnwinding;
use ingraft_model::AvmaRange;
use ingraft_process::Target;

use super::modules::{ModuleFile, Modules};

/// Ways in which threads of a process may end so that they are unwound.
#[derive(Clone, Copy, Debug)]
pub struct Departures {
    /// Whether code of the process may end its thread.
    pub ends: bool,
    /// Whether code of the process may cancel threads.
    pub cancels: bool,
    /// Whether functions of the process have landing pads.
    pub cleans_up: bool,
}

impl Departures {
    /// Whether such a thread may have something to clean up.
    pub fn is_possible(self) -> bool {
        (self.ends || self.cancels) && self.cleans_up
    }
}

impl Modules {
    /// Says how threads of the process may end so that they are unwound.
    pub fn departures(&self, target: &Target) -> Departures {
        let any = |is: fn(&AsyncUnwinding) -> bool| self.mapped().any(|file| is(&file.unwinding(target)));
        Departures {
            ends: any(|u| u.ends_threads),
            cancels: any(|u| u.cancels_threads),
            cleans_up: any(|u| u.cleans_up),
        }
    }

    /// The text of the files whose functions may call, without a pointer, one that ends its thread: files that call such a function of the C
    /// library or cannot be read, and those that are linked with a file of this kind.
    pub fn texts_that_end_threads(&self, target: &Target) -> Vec<AvmaRange> {
        let ends = |file: &&ModuleFile| file.unwinding(target).ends_threads || file.linkage(target).is_none();
        let (mut ending, mut others): (Vec<&ModuleFile>, Vec<&ModuleFile>) = self.mapped().partition(ends);
        let mut at = 0;
        while let Some(file) = ending.get(at).copied() {
            let uses = |other: &&ModuleFile| {
                let linkages = other.linkage(target).zip(file.linkage(target));
                linkages.is_some_and(|(other, file)| other.may_use(file))
            };
            let (more, rest): (Vec<&ModuleFile>, Vec<&ModuleFile>) = others.into_iter().partition(uses);
            others = rest;
            ending.extend(more);
            at += 1;
        }
        ending.into_iter().map(ModuleFile::text).collect()
    }
}
