//! Prints, for each file, how many of its functions have an entry that can be woven, why the others have not, and how fast the analysis
//! was: `cargo run --release -p ingraft-analysis --example survey -- FILE…`

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ingraft_analysis::{Elf, Function, FunctionKind, Image};
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
    let image = Image::parse(Arc::clone(&bytes))?;
    let parsed = start.elapsed();
    let counted: Vec<&Function> = image.functions().iter().filter(|f| f.kind() == FunctionKind::Normal).collect();
    let start = Instant::now();
    let sites: Vec<Result<Arc<Site>, Refusal>> = counted.par_iter().map(|f| image.entry_site(f)).collect();
    let asked = start.elapsed();

    let cache = image.to_cache();
    let start = Instant::now();
    let again = Image::from_cache(Elf::parse(bytes)?, &cache).ok_or("a cache that cannot be read")?;
    let loaded = start.elapsed();
    drop(again);

    let mut reasons: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let (mut in_place, mut padded, mut island, mut scratch, mut flags, mut back) = (0, 0, 0, 0, 0, 0);
    for (function, site) in counted.iter().zip(&sites) {
        let why = match site {
            Ok(site) => {
                scratch += usize::from(!site.scratch.is_empty());
                flags += usize::from(site.flags_dead);
                back += usize::from(!site.back_branches.is_empty());
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
    for after in [false, true] {
        calls(&image, &counted, after, verbose);
    }
    Ok(())
}

/// How many calls, and how many functions all of whose calls, can be reached before (or behind) them without an island, each alone.
fn calls(image: &Image, counted: &[&Function], after: bool, verbose: bool) {
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

/// Whether a springboard of five bytes fits.
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

/// What a springboard of 5 bytes, or one of 2 bytes to an island, finds at a site.
fn fit(image: &Image, site: &Site) -> Fit {
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
