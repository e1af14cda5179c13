//! Prints, for each file, how many of its functions have an entry that can be woven, why the others have not, and how fast the analysis
//! was: `cargo run --release -p ingraft-analysis --example survey -- FILE…`

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, OpAccess, Register};
use ingraft_analysis::{AnalysedImage, Elf, Function, FunctionKind};
use ingraft_model::{Refusal, Site};
use rayon::prelude::*;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let verbose = std::env::var_os("VERBOSE").is_some();
    for path in std::env::args_os().skip(1) {
        survey(Path::new(&path), verbose)?;
    }
    Ok(())
}

fn survey(path: &Path, verbose: bool) -> Result<(), Box<dyn std::error::Error>> {
    let bytes: Arc<[u8]> = std::fs::read(path)?.into();
    let start = Instant::now();
    let image = AnalysedImage::parse(Arc::clone(&bytes))?;
    let parsed = start.elapsed();
    let counted: Vec<&Function> = image.functions().iter().filter(|f| f.kind() == FunctionKind::Normal).collect();
    let start = Instant::now();
    let sites: Vec<Result<Arc<Site>, Refusal>> = counted.par_iter().map(|f| image.entry_site(f)).collect();
    let asked = start.elapsed();

    let cache = image.to_cache();
    let start = Instant::now();
    let again = AnalysedImage::from_cache(Elf::parse(bytes)?, &cache).ok_or("a cache that cannot be read")?;
    let loaded = start.elapsed();
    drop(again);

    let mut reasons: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let (mut in_place, mut padded, mut island, mut scratch, mut flags, mut back) = (0, 0, 0, 0, 0, 0);
    for (function, site) in counted.iter().zip(&sites) {
        let why = match site {
            Ok(site) => {
                scratch += usize::from(!site.scratch().is_empty());
                flags += usize::from(site.are_flags_free());
                back += usize::from(!site.back_branches().is_empty());
                match fit(&image, site) {
                    Fit::Own => in_place += 1,
                    Fit::Padding => padded += 1,
                    Fit::Island => island += 1,
                    Fit::No(why) => reasons.entry(why).or_default().push(function.display_name().into_owned()),
                }
                continue;
            }
            Err(refusal) => variant(refusal),
        };
        reasons.entry(why).or_default().push(format!("{} ({:?})", function.display_name(), site.as_ref().err()));
    }
    let refused: usize = reasons.values().map(Vec::len).sum();
    let code: u64 = counted.iter().map(|f| f.size()).sum();
    let total: Duration = parsed + asked;
    let per_second = |n: f64| n / total.as_secs_f64();
    println!(
        "{}: {} functions, {} resolvers, {} stubs; {:.2} % can be woven ({in_place} in place, {padded} with padding, {island} by an \
         island)",
        path.display(),
        counted.len(),
        image.functions().iter().filter(|f| f.kind() == FunctionKind::IfuncResolver).count(),
        image.functions().iter().filter(|f| f.kind() == FunctionKind::Stub).count(),
        100.0 * (counted.len() - refused) as f64 / counted.len().max(1) as f64,
    );
    println!(
        "  {scratch} with a scratch register, {flags} with dead flags, {back} with a branch back; {} islands of padding, uses gs: {}",
        image.padding().len(),
        image.uses_gs(),
    );
    println!(
        "  pass {parsed:.1?}, sites {asked:.1?}: {:.0} MB/s of code, {:.0} functions/s",
        per_second(code as f64 / 1e6),
        per_second(counted.len() as f64),
    );
    println!("  cache of {} kB, loaded in {loaded:.1?}", cache.len() / 1000);
    print_reasons(&reasons, verbose);
    let woven: Vec<&Site> = sites.iter().flatten().map(|site| &**site).collect();
    behind_the_first(&woven);
    for after in [false, true] {
        calls(&image, &counted, after, verbose);
    }
    Ok(())
}

/// Prints the share of entries that could have their springboard after the first instruction, which then stays in place. A uprobe at such
/// an entry would be harmless: the kernel executes the file's first instruction elsewhere and continues after it.
fn behind_the_first(sites: &[&Site]) {
    let mut counts: BTreeMap<&str, u32> = BTreeMap::new();
    for site in sites {
        *counts.entry(first_instruction(site)).or_default() += 1;
    }
    let share = |n: u32| 100.0 * f64::from(n) / sites.len().max(1) as f64;
    let counts: Vec<String> = counts.iter().map(|(what, n)| format!("{what} {n} ({:.1} %)", share(*n))).collect();
    println!("  springboard behind the first instruction: {}", counts.join(", "));
}

fn first_instruction(site: &Site) -> &'static str {
    if site.at != site.function {
        return "endbr64 already";
    }
    let own = site.bytes.get(..usize::from(site.own)).unwrap_or_default();
    let first = Decoder::with_ip(64, own, site.at.0, DecoderOptions::NONE).decode();
    if first.is_invalid() || first.flow_control() != FlowControl::Next {
        return "no: a branch, a return or a call";
    }
    let len = first.len() as u64;
    let at = site.at.0 + len;
    let free = site.landings.first().map_or(site.bytes.len() as u64, |l| l.0 - site.at.0);
    let rest = own.get(first.len()..).unwrap_or_default();
    let mut covered = 0;
    // every displaced instruction except the last must fall through to the next
    for i in Decoder::with_ip(64, rest, at, DecoderOptions::NONE).iter() {
        covered += i.len() as u64;
        if covered >= 5 || i.flow_control() != FlowControl::Next {
            break;
        }
    }
    let room = (site.bytes.len() as u64).saturating_sub(len);
    let padded = covered + len >= u64::from(site.own) && room >= 5;
    if !site.back_branches().is_empty() {
        "a branch back arrives"
    } else if free <= len {
        "no: an arrival behind it"
    } else if free < len + 2 || covered.max(if padded { 5 } else { 0 }) < 2 {
        "no: no room"
    } else if !(free >= len + 5 && (covered >= 5 || padded) && at / 4096 == (at + 4) / 4096) {
        "by an island only"
    } else {
        changes(&first)
    }
}

/// Names the change that the first instruction makes to state that the snippets read, because it would run before them.
fn changes(first: &Instruction) -> &'static str {
    let mut factory = InstructionInfoFactory::new();
    let written = factory.info(first).used_registers().iter().filter(|used| {
        !matches!(used.access(), OpAccess::Read | OpAccess::CondRead | OpAccess::None | OpAccess::NoMemAccess)
    });
    let written: Vec<Register> = written.map(|used| used.register().full_register()).collect();
    let arguments = [Register::RDI, Register::RSI, Register::RDX, Register::RCX, Register::R8, Register::R9];
    let is_argument = |r: &Register| arguments.contains(r) || (Register::ZMM0..=Register::ZMM7).contains(r);
    if written.contains(&Register::RSP) {
        "near, but the stack pointer has moved"
    } else if written.iter().any(is_argument) {
        "near, but an argument is gone"
    } else {
        "near, and nothing that snippets read has changed"
    }
}

/// Prints the share of calls that a springboard can reach before (or after) the call without an island, each call considered alone, and the
/// share of functions for which that holds for every call.
fn calls(image: &AnalysedImage, counted: &[&Function], after: bool, verbose: bool) {
    let start = Instant::now();
    let points: Vec<_> = counted.par_iter().map(|f| image.call_points(f, after)).collect();
    let asked = start.elapsed();
    let (mut all, mut itself, mut reached, mut never, mut whole, mut callers) = (0, 0, 0, 0, 0, 0);
    let mut reasons: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (function, points) in counted.iter().zip(&points) {
        let mut why = points.as_ref().err().map(|refusal| format!("all calls: {}", variant(refusal)));
        callers += usize::from(points.as_ref().map_or(true, |points| !points.is_empty()));
        for point in points.iter().flatten() {
            all += 1;
            match &point.site {
                Ok(None) => never += 1,
                Ok(Some(site)) if !after && site.point == 0 && point.call.len >= 5 => itself += 1,
                Ok(Some(site)) if is_near(site) => reached += 1,
                Ok(Some(_)) => why = why.or(Some("no room but for an island".to_owned())),
                Err(refusal) => why = why.or(Some(variant(refusal))),
            }
        }
        match why {
            None => whole += usize::from(points.as_ref().is_ok_and(|points| !points.is_empty())),
            Some(why) => reasons.entry(why).or_default().push(function.display_name().into_owned()),
        }
    }
    println!(
        "  {} calls in {asked:.1?}: {:.2} % of {all} ({itself} themselves, {reached} by a springboard, {never} never return); {:.2} % of {callers} \
         functions that call have all",
        if after { "behind" } else { "before" },
        100.0 * f64::from(itself + reached + never) / f64::from(all.max(1)),
        100.0 * whole as f64 / callers.max(1) as f64,
    );
    print_reasons(&reasons, verbose);
}

/// Whether a springboard of five bytes fits before the next landing and on one page.
fn is_near(site: &Site) -> bool {
    let free = site.landings.first().map_or(site.bytes.len() as u64, |l| l.0 - site.at.0);
    free >= 5 && site.at.0 / 4096 == (site.at.0 + 4) / 4096
}

/// The name of a refusal's variant.
fn variant(refusal: &Refusal) -> String {
    format!("{refusal:?}").split(['{', ' ']).next().unwrap_or_default().to_owned()
}

fn print_reasons(reasons: &BTreeMap<String, Vec<String>>, verbose: bool) {
    for (why, names) in reasons {
        let shown = if verbose { names.len() } else { 3 };
        println!("  {why}: {} ({})", names.len(), names[..names.len().min(shown)].join(", "));
    }
}

enum Fit {
    Own,
    Padding,
    Island,
    No(String),
}

/// Returns the room that a site has for a springboard: 5 bytes for a direct jump, or 2 bytes for a jump to an island.
fn fit(image: &AnalysedImage, site: &Site) -> Fit {
    let free = site.landings.first().map_or(site.bytes.len() as u64, |l| l.0 - site.at.0);
    let same_page = |len: u64| site.at.0 / 4096 == (site.at.0 + len - 1) / 4096;
    if free >= 5 && same_page(5) {
        return if site.own >= 5 { Fit::Own } else { Fit::Padding };
    }
    let near = site.at.0.saturating_sub(120)..site.at.0 + 120;
    let island = image.padding().iter().any(|p| p.range.start.0 < near.end && p.range.end.0 > near.start + 5);
    match free {
        2.. if same_page(2) && island => Fit::Island,
        5.. => Fit::No("straddles pages".to_owned()),
        _ => Fit::No(format!("{} bytes of {} own", free, site.own)),
    }
}
