//! Prints, for each file, the speed of building the control-flow graphs of all functions, the share whose ways in and ways out are proven,
//! and the reasons why the others are not: `cargo run --release -p ingraft-analysis --example graphs -- FILE…`. With `VERBOSE` set, the
//! names of the functions as well.

use std::collections::BTreeMap;
use std::time::Instant;

use ingraft_analysis::{AnalysedImage, Function, FunctionKind};
use ingraft_model::{Cfg, Refusal};
use rayon::prelude::*;

fn main() {
    for path in std::env::args_os().skip(1) {
        let Ok(bytes) = std::fs::read(&path) else {
            println!("{}: not readable", path.display());
            continue;
        };
        match AnalysedImage::parse(bytes.into()) {
            Ok(image) => print(&path.display().to_string(), &image),
            Err(error) => println!("{}: {error}", path.display()),
        }
    }
}

fn print(path: &str, image: &AnalysedImage) {
    let functions: Vec<&Function> = image.functions().iter().filter(|f| f.kind() != FunctionKind::Stub).collect();
    let part = |f: &Function| f.parts().iter().map(|p| p.end.0 - p.start.0).sum::<u64>();
    let bytes: u64 = functions.iter().map(|f| f.size() + part(f)).sum();
    let start = Instant::now();
    let graphs: Vec<Cfg> = functions.par_iter().with_min_len(16).map(|f| image.cfg(f)).collect();
    let seconds = start.elapsed().as_secs_f64();
    let megabytes = bytes as f64 / 1e6;
    println!(
        "{path}: {} functions, {megabytes:.1} MB of code, {:.0} MB/s in {} threads",
        functions.len(),
        megabytes / seconds,
        rayon::current_num_threads(),
    );
    let blocks: usize = graphs.iter().map(|g| g.blocks.len()).sum();
    let edges: usize = graphs.iter().map(|g| g.edges.len()).sum();
    let jumps = graphs.iter().filter(|g| !g.unresolved.is_empty()).count();
    println!("  {blocks} blocks, {edges} edges; {jumps} functions with an unresolved jump");
    reasons("ways in", &functions, graphs.iter().map(|g| g.ways_in_proven.as_ref()));
    reasons("ways out", &functions, graphs.iter().map(|g| g.ways_out_proven.as_ref()));
}

fn reasons<'a>(what: &str, functions: &[&Function], proofs: impl Iterator<Item = Result<&'a (), &'a Refusal>>) {
    let mut reasons: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (function, proof) in functions.iter().zip(proofs) {
        if let Err(refusal) = proof {
            let kind = format!("{refusal:?}").split(['{', ' ']).next().unwrap_or_default().to_owned();
            reasons.entry(kind).or_default().push(format!("{} ({refusal})", function.display_name()));
        }
    }
    let refused: usize = reasons.values().map(Vec::len).sum();
    println!("  {what} proven: {:.2} %", 100.0 - 100.0 * refused as f64 / functions.len().max(1) as f64);
    let shown = if std::env::var_os("VERBOSE").is_some() { usize::MAX } else { 2 };
    for (kind, names) in reasons {
        println!("    {kind}: {} ({})", names.len(), names[..names.len().min(shown)].join(", "));
    }
}
