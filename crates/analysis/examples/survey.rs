//! Prints, for each file, how many of its functions have an entry that can be woven, and exits that can all be, why the others have
//! not, and how fast the analysis was: `cargo run --release -p ingraft-analysis --example survey -- FILE…`

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
    let sites: Vec<Result<Site, Refusal>> = counted.par_iter().map(|f| image.entry_site(f)).collect();
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
    exits(&image, &counted, &sites, verbose);
    for after in [false, true] {
        calls(&image, &counted, after, verbose);
    }
    Ok(())
}

/// How many functions have exits that can all be woven together with all entries, and why the others have not.
fn exits(image: &Image, counted: &[&Function], entries: &[Result<Site, Refusal>], verbose: bool) {
    let start = Instant::now();
    let sites: Vec<_> = counted.par_iter().map(|f| image.exit_sites(f)).collect();
    let asked = start.elapsed();
    let mut free = Islands(image.padding().iter().map(|p| (p.range.start.0, p.range.end.0)).collect());
    let all: Vec<&Site> = entries.iter().flatten().chain(sites.iter().flatten().flatten().flatten()).collect();
    all.iter().filter(|s| is_near(s)).for_each(|s| free.remove(s.at.0, s.at.0 + 5));
    for entry in entries.iter().flatten().filter(|s| !is_near(s)) {
        free.take(entry.at.0);
    }
    let (mut whole, mut near, mut by_island, mut refused) = (0, 0, 0, 0);
    let mut reasons: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for ((function, entry), sites) in counted.iter().zip(entries).zip(&sites) {
        let mut why = None;
        let entry = entry.as_ref().map_or(0, |entry| entry.at.0);
        for site in sites.iter().flatten() {
            match site {
                Ok(site) if (entry..entry + 5).contains(&site.at.0) => {
                    refused += 1;
                    why = Some("overlaps the entry".to_owned());
                }
                Ok(site) if is_near(site) => near += 1,
                Ok(site) if free.take(site.at.0) => by_island += 1,
                other => {
                    refused += 1;
                    why = why.or(Some(
                        other.as_ref().map_or_else(variant, |site| format!("no island for {} bytes", site.bytes.len())),
                    ));
                }
            }
        }
        match why.or(sites.as_ref().err().map(|refusal| format!("all exits: {}", variant(refusal)))) {
            None => whole += 1,
            Some(why) => reasons.entry(why).or_default().push(function.display_name().into_owned()),
        }
    }
    println!(
        "  exits in {asked:.1?}: {:.2} % of the functions have exits that can all be woven ({near} at once, {by_island} by an island, \
         {refused} not)",
        100.0 * whole as f64 / counted.len().max(1) as f64,
    );
    print_reasons(&reasons, verbose);
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

/// Padding that nothing uses yet: start to end.
struct Islands(BTreeMap<u64, u64>);

impl Islands {
    fn remove(&mut self, start: u64, end: u64) {
        let Some((&s, &e)) = self.0.range(..end).next_back().filter(|(_, e)| **e > start) else { return };
        self.0.remove(&s);
        self.0.extend([(s, start), (end, e)].into_iter().filter(|(s, e)| s < e));
    }

    /// Takes five bytes on one page that a jump of two bytes at an address reaches.
    fn take(&mut self, at: u64) -> bool {
        let (first, last) = (at.saturating_sub(126), at + 129);
        let from = self.0.range(..first).next_back().map_or(first, |(s, _)| *s);
        let islands =
            self.0.range(from..=last).flat_map(|(s, e)| (first.max(*s)..=last.min(e.saturating_sub(5))).rev());
        let found = islands.into_iter().find(|island| island / 4096 == (island + 4) / 4096);
        found.inspect(|island| self.remove(*island, island + 5)).is_some()
    }
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
