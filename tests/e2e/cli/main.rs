//! End-to-end tests of the `ingraft` command line with real programs and servers. The tests observe everything from outside.
//!
//! Every test starts its own targets and attaches only to them. `INGRAFT_FULL=1` runs the long forms.

#![forbid(unsafe_code)]

mod arrivals;
mod asleep;
mod awaited;
mod backends;
mod bad_input;
mod births;
mod blocks;
mod brief;
mod callers;
mod calling;
mod calls;
mod catch_up;
mod choosing;
mod climbs;
mod clocks;
mod context_events;
mod context_latency;
mod context_looks;
mod contexts;
mod corners;
mod coroutines;
mod costs;
mod counting;
mod coverage;
mod cpu_times;
mod crashes;
mod culprits;
mod data;
mod diagnose;
mod edges;
mod endings;
mod events;
mod everything;
mod explained;
mod families;
mod faults;
mod field;
mod figures;
mod found;
mod go;
mod goroutines;
mod histograms;
mod holds;
mod hops;
mod hosts;
mod hot;
mod inclusive;
mod inspect;
mod interrupts;
mod joining;
mod jumps;
mod keepers;
mod kept;
mod kernel;
mod keyed;
mod kinds;
mod labels;
mod launches;
mod leaps;
mod libraries;
mod library;
mod limits;
mod lingers;
mod live;
mod longruns;
mod lossless;
mod messages;
mod metrics;
mod moved;
mod moved_contexts;
mod objects;
mod oracle;
mod output;
mod parting;
mod path_metrics;
mod paths;
mod patterns;
mod postgres;
mod predicted;
mod prints;
mod profiles;
mod recorder;
mod rounds;
mod selfpatch;
mod servers;
mod shapes;
mod sharing;
mod slow;
mod slow_goroutines;
mod speech;
mod stacks;
mod started;
mod suspended;
mod tails;
mod terminal;
mod times;
mod totals;
mod traces;
mod tutorial;
mod unrest;
mod unwinders;
mod uprobes;
mod waits;

use ingraft_testing::Tool;

/// Returns the program under test with a fresh state directory.
fn tool() -> Tool {
    Tool::new(env!("CARGO_BIN_EXE_ingraft"))
}

/// Returns the program under test, run without privilege.
fn unprivileged_tool() -> Tool {
    Tool::unprivileged(env!("CARGO_BIN_EXE_ingraft"))
}
