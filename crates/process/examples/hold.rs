//! Measures the time for which a target is held: medians over many insertions and removals.
//! `cargo run --release -p ingraft-process --example hold`

#[path = "../tests/common/mod.rs"]
mod common;

use std::time::{Duration, Instant};

use common::{Mutatee, hand_patch};
use ingraft_model::{PatchPlan, TextWrite};
use ingraft_process::{ApplyOptions, DataAreaRequest};

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}

fn main() {
    println!(
        "{:>8} {:>6} | held: insert remove {:>10} | whole call | survey (longest hold) | area | held: arena",
        "threads", "", "all 13,900"
    );
    let all = [
        ("1", "busy"),
        ("8", "idle"),
        ("8", "busy"),
        ("64", "idle"),
        ("64", "busy"),
        ("512", "idle"),
        ("512", "busy"),
        ("1600", "waking"),
    ];
    // Arguments select the rows, as in `hold 8 busy`.
    let given: Vec<String> = std::env::args().skip(1).collect();
    let chosen = |word: &str| given.is_empty() || given.iter().any(|g| g == word);
    for (threads, kind) in all.into_iter().filter(|(threads, kind)| chosen(threads) && chosen(kind)) {
        let mutatee = Mutatee::start("proc_threads", &[threads, kind]);
        let target = mutatee.target();
        let counted = mutatee.address("counted");
        let pages = mutatee.address("pages");
        let begin = Instant::now();
        target.survey(None).expect("survey");
        let survey_time = begin.elapsed();
        let begin = Instant::now();
        let area = target.create_area(&DataAreaRequest::default()).expect("area");
        let area_time = begin.elapsed();
        let longest = target.take_longest_hold().held;
        let arena = target.map_arena(&(counted..counted.offset(4096)), 4096).expect("arena");
        let arena_held = target.take_longest_hold().held;
        let patch = hand_patch(counted, arena.start, area.layout().counter(0));
        let (mut inserts, mut removes, mut whole) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..51 {
            let begin = Instant::now();
            target.apply(&patch.insert, &ApplyOptions::default()).expect("insert");
            inserts.push(target.take_longest_hold().held);
            whole.push(begin.elapsed());
            target.apply(&patch.remove, &ApplyOptions::default()).expect("remove");
            removes.push(target.take_longest_hold().held);
        }
        // No code calls these functions: the bytes do not matter.
        let mut plan = PatchPlan::default();
        for i in 0..13_900 {
            let at = pages.offset(4 + 32 * (i * 1280 * 128 / 13_900));
            let mut old = [0; 8];
            target.read(at, &mut old).expect("read");
            plan.text.push(TextWrite { at, len: 8, old, new: [0xcc; 8] });
        }
        let back = PatchPlan { text: plan.text.iter().map(TextWrite::inverse).collect(), ..PatchPlan::default() };
        let mut all = Vec::new();
        for _ in 0..11 {
            target.apply(&plan, &ApplyOptions::default()).expect("all");
            all.push(target.take_longest_hold().held);
            target.apply(&back, &ApplyOptions::default()).expect("all");
            all.push(target.take_longest_hold().held);
        }
        println!(
            "{threads:>8} {kind:>6} | {:>9.3?} {:>9.3?} {:>9.3?} | {:>9.3?} | {survey_time:>9.3?} {:>9.3?} | {area_time:>9.3?} | {arena_held:>9.3?}",
            median(inserts),
            median(removes),
            median(all),
            median(whole),
            longest,
        );
    }
}
