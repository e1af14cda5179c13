//! Random choice of the next command of a soak test.

use super::servers::SoakServer;

/// Numbers of a seed (splitmix64).
pub struct SeededNumbers(pub u64);

impl SeededNumbers {
    /// Returns the next number below `end`.
    pub fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % end
    }

    /// Returns true once in so many calls on average.
    pub fn one_in(&mut self, calls: u64) -> bool {
        self.below(calls) == 0
    }

    /// Returns one of these values.
    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[usize::try_from(self.below(from.len() as u64)).expect("an index")]
    }
}

/// Metrics of contexts.
const METRICS: &[&str] = &[
    "calls",
    "time",
    "cpu",
    "bytes",
    "live",
    "blocks",
    "wait",
    "locks",
    "looks",
    "instructions",
    "reads",
    "time,bytes",
    "cpu,wait",
    "live,looks",
];
/// Metrics of contexts of functions whose calls move between threads.
const METRICS_OF_MOVING: &[&str] = &["calls", "time", "wait", "locks"];
/// Limits of the cost in percent of a processor. The last one is none.
const OVERHEADS: &[&str] = &["5", "100", "1000000"];

/// Returns the arguments of a random measurement of these processes that ends by itself, without those for the form of its answer.
pub fn measurement(numbers: &mut SeededNumbers, server: &SoakServer, pids: &[i32]) -> Vec<String> {
    let kind = if server.moves {
        numbers.pick(&["contexts", "count", "latency", "slow", "slow", "waits"])
    } else {
        numbers.pick(&["contexts", "contexts", "paths", "paths", "slow", "slow", "latency", "count", "heap", "waits"])
    };
    let mut words = match kind {
        "contexts" => contexts(numbers, server),
        "paths" => paths(numbers, server),
        "slow" => slow(numbers, server),
        "latency" => latency(numbers, server),
        "count" => count(numbers, server),
        "heap" => vec!["heap".to_owned()],
        _ => vec![numbers.pick(&["locks", "offcpu"]).to_owned()],
    };
    words.extend(pids.iter().flat_map(|pid| ["-p".to_owned(), pid.to_string()]));
    let tenths = 5 + numbers.below(36);
    words.extend(["--for".to_owned(), format!("{}ms", tenths * 100)]);
    if numbers.one_in(2) {
        words.extend(["--max-overhead", numbers.pick(OVERHEADS)].map(str::to_owned));
    }
    words
}

/// Adds these words to a command.
fn add(words: &mut Vec<String>, more: &[&str]) {
    words.extend(more.iter().copied().map(str::to_owned));
}

/// Adds up to three patterns of functions, or none: then a command measures all functions of the program.
fn functions(numbers: &mut SeededNumbers, server: &SoakServer, words: &mut Vec<String>) {
    for _ in 0..numbers.below(4) {
        add(words, &[numbers.pick(server.few)]);
    }
}

fn contexts(numbers: &mut SeededNumbers, server: &SoakServer) -> Vec<String> {
    let mut words = vec!["profile".to_owned(), "contexts".to_owned()];
    if numbers.one_in(2) {
        functions(numbers, server, &mut words);
    }
    let metrics = if server.moves { METRICS_OF_MOVING } else { METRICS };
    let metric = numbers.pick(metrics);
    add(&mut words, &["--metric", metric]);
    if numbers.one_in(5) {
        add(&mut words, &["--by", "function"]);
    }
    // The metrics that paths tell go with nothing else.
    if !["instructions", "reads", "writes"].contains(&metric) && numbers.one_in(5) {
        add(&mut words, &["--recursion", "full"]);
    }
    if numbers.one_in(6) {
        add(&mut words, &["--interval", "700ms"]);
    }
    words
}

fn paths(numbers: &mut SeededNumbers, server: &SoakServer) -> Vec<String> {
    let mut words = vec!["profile".to_owned(), "paths".to_owned()];
    functions(numbers, server, &mut words);
    if numbers.one_in(3) {
        add(&mut words, &["--contexts"]);
    }
    if numbers.one_in(4) {
        add(&mut words, &["--metric", numbers.pick(&["time", "cpu"])]);
        if numbers.one_in(2) {
            add(&mut words, &["--callees"]);
        }
    }
    if numbers.one_in(5) {
        add(&mut words, &["--truncate", numbers.pick(&["1", "10", "100"])]);
    }
    words
}

fn slow(numbers: &mut SeededNumbers, server: &SoakServer) -> Vec<String> {
    let mut words = vec!["slow".to_owned(), numbers.pick(server.slow).to_owned()];
    add(&mut words, &["--over", numbers.pick(&["1us", "10us", "50us", "200us", "1ms", "10ms"])]);
    if numbers.one_in(3) {
        add(&mut words, &["--least", numbers.pick(&["1ns", "100ns", "5us"])]);
    }
    if numbers.one_in(3) {
        add(&mut words, &["--callees", server.callees]);
    }
    if numbers.one_in(3) {
        add(&mut words, &["--buffer", numbers.pick(&["4", "16", "4096"])]);
    }
    if numbers.one_in(3) {
        add(&mut words, &["--limit", numbers.pick(&["5/s", "none"])]);
    }
    words
}

fn latency(numbers: &mut SeededNumbers, server: &SoakServer) -> Vec<String> {
    let mut words = vec!["latency".to_owned(), numbers.pick(server.few).to_owned()];
    functions(numbers, server, &mut words);
    if !server.moves {
        match numbers.below(4) {
            0 => add(&mut words, &["--cpu"]),
            1 => add(&mut words, &["--by", "context"]),
            _ => {}
        }
    }
    words
}

fn count(numbers: &mut SeededNumbers, server: &SoakServer) -> Vec<String> {
    let mut words = vec!["count".to_owned()];
    match numbers.below(5) {
        0 => add(&mut words, &["*"]),
        1 if !server.moves => add(&mut words, &[&format!("{}#*", numbers.pick(server.few))]),
        _ => functions(numbers, server, &mut words),
    }
    words
}
