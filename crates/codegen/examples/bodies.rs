//! Copies every function of a file, proves each copy, and prints how many could be copied, why the others could not, and how long it took. Then it
//! does the same with a count at each block, and makes each counting copy again.
//!
//! ```text
//! cargo run --release -p ingraft-codegen --example bodies -- FILE…
//! ```

use std::collections::BTreeMap;
use std::time::Instant;

use ingraft_analysis::{AnalysedImage, FunctionKind};
use ingraft_codegen::verify::{verify_body, verify_renewal};
use ingraft_codegen::{
    Arena, BodyCode, BodyPoint, BodyRequest, Environment, Probe, Readable, TextSpace, renew_counting, weave_body,
};
use ingraft_model::histogram::Scale;
use ingraft_model::{
    Avma, AvmaRange, Bias, CpuClock, DataArea, FunctionBody, PointId, Refusal, Svma, ThreadIdentity, WallClock,
};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    for path in std::env::args().skip(1) {
        let image = AnalysedImage::parse(std::fs::read(&path)?.into())?;
        let functions: Vec<_> = image.functions().iter().filter(|f| f.kind() == FunctionKind::Normal).collect();
        let begin = Instant::now();
        let bodies: Vec<_> = functions.iter().map(|f| image.body(f)).collect();
        let analysed = begin.elapsed();
        let end = image.functions().iter().map(|f| f.range().end.0).max().unwrap_or(0).next_multiple_of(4096);
        let env = Environment {
            data: DataArea { base: Avma(1 << 30), stride: 1 << 20, shards: 64, journal_bytes: 0 },
            identity: ThreadIdentity::FsOffset(0x2d0),
            shadow_stack: false,
            wall: WallClock::Tsc,
            ticks: Scale { mult: 1 << 31, shift: 32 },
            cpu: CpuClock::None,
            vectors: None,
            loader: None,
            goroutine: None,
            stacks: false,
            readable: Readable::default(),
        };
        let mut arena = Arena::new(Avma(end)..Avma(end + (512 << 20)));
        let mut text = TextSpace::new();
        text.add_padding(Bias(0), image.padding());
        let mut reasons: BTreeMap<String, usize> = BTreeMap::new();
        let mut exposures: BTreeMap<String, usize> = BTreeMap::new();
        let (mut copied, mut blocks, mut exposed, mut bytes, mut all) = (0, 0, 0, 0, 0);
        let begin = Instant::now();
        for (function, body) in functions.iter().zip(&bodies) {
            all += function.range().end.0 - function.range().start.0;
            let woven = match body {
                Ok(body) => {
                    let request = BodyRequest { body, bias: Bias(0), name: "f", points: &[] };
                    let woven = weave_body(&env, &mut arena, &mut text, &request)?;
                    if let Ok(weave) = &woven {
                        verify_body(&env, &arena, &text, &request, weave)
                            .map_err(|e| format!("{}: {e}", function.display_name()))?;
                        blocks += weave.body.blocks.len();
                        exposed += weave.body.exposed.len();
                        if let Some(refusal) = &weave.body.why_exposed {
                            *exposures.entry(plain(refusal)).or_default() += weave.body.exposed.len();
                        }
                        bytes += function.range().end.0 - function.range().start.0;
                    }
                    woven.map(|_| ())
                }
                Err(refusal) => Err(refusal.clone()),
            };
            match woven {
                Ok(()) => copied += 1,
                Err(refusal) => *reasons.entry(plain(&refusal)).or_default() += 1,
            }
        }
        let woven = begin.elapsed();
        println!(
            "{path}: {copied} of {} functions ({:.2} %), {exposed} of {blocks} blocks exposed, {} bytes of code for {bytes} of {all}",
            functions.len(),
            100.0 * copied as f64 / functions.len().max(1) as f64,
            arena.used(),
        );
        println!(
            "  analysed in {analysed:?}, copied and proven in {woven:?}: {:.1} MB/s",
            bytes as f64 / woven.as_secs_f64() / 1e6
        );
        let mut counted = CountedCopies::new(&image, arena.range());
        let begin = Instant::now();
        for (function, body) in functions.iter().zip(&bodies) {
            let Ok(body) = body else { continue };
            counted.add(&env, body).map_err(|e| format!("{}: {e}", function.display_name()))?;
        }
        println!("  {} counting copies, {} made again, all in {:?}", counted.first, counted.again, begin.elapsed());
        print("not copied", reasons);
        print("blocks exposed", exposures);
    }
    Ok(())
}

/// Copies of functions with a count at each block.
struct CountedCopies {
    arena: Arena,
    text: TextSpace,
    /// The text with nothing woven into it.
    untouched: TextSpace,
    /// Number of counting copies.
    first: usize,
    /// Number of those that were given up and made again.
    again: usize,
}

impl CountedCopies {
    fn new(image: &AnalysedImage, arena: AvmaRange) -> Self {
        let mut text = TextSpace::new();
        text.add_padding(Bias(0), image.padding());
        CountedCopies { arena: Arena::new(arena), untouched: text.clone(), text, first: 0, again: 0 }
    }

    /// Copies a function, gives its counting copy up, and makes another one that counts at half of the blocks.
    fn add(&mut self, env: &Environment, body: &FunctionBody) -> Result<(), Box<dyn std::error::Error>> {
        let request = BodyRequest { body, bias: Bias(0), name: "f", points: &[] };
        let Ok(trial) = weave_body(env, &mut Arena::new(self.arena.range()), &mut self.untouched.clone(), &request)?
        else {
            return Ok(());
        };
        let point = |(counter, probe): (u32, &Probe)| {
            let PointId::Block(at) = probe.point else { return None };
            let block = body.blocks.get(body.block_at(Svma(body.function.0 + at.0.unsigned_abs()))?)?;
            let code = if block.free.flags { BodyCode::Count(counter) } else { BodyCode::Elsewhere };
            Some(BodyPoint { point: probe.point, code, with_copy: None })
        };
        let points: Vec<BodyPoint> = (0..1000).cycle().zip(&trial.body.probes).filter_map(point).collect();
        let request = BodyRequest { points: &points, ..request };
        let Ok(weave) = weave_body(env, &mut self.arena, &mut self.text, &request)? else { return Ok(()) };
        verify_body(env, &self.arena, &self.text, &request, &weave)?;
        let mut given_up = weave.body.clone();
        if given_up.give_up_counting().is_none() {
            return Ok(());
        }
        self.first += 1;
        let half = |(n, point): (usize, &BodyPoint)| match n % 2 {
            0 => point.clone(),
            _ => BodyPoint { code: BodyCode::Elsewhere, ..point.clone() },
        };
        let points: Vec<BodyPoint> = points.iter().enumerate().map(half).collect();
        let request = BodyRequest { points: &points, ..request };
        if let Some(renewal) = renew_counting(env, &mut self.arena, &request, &given_up)? {
            verify_renewal(env, &self.arena, &request, &given_up, &renewal)?;
            self.again += 1;
        }
        Ok(())
    }
}

/// A reason without the addresses in it.
fn plain(refusal: &Refusal) -> String {
    let words: Vec<String> = refusal.to_string().split(' ').filter(|w| !w.contains("0x")).map(str::to_owned).collect();
    words.join(" ")
}

fn print(what: &str, reasons: BTreeMap<String, usize>) {
    let mut reasons: Vec<_> = reasons.into_iter().collect();
    reasons.sort_by_key(|(_, n)| std::cmp::Reverse(*n));
    for (reason, n) in reasons.into_iter().take(8) {
        println!("  {n:6} {what}: {reason}");
    }
}
