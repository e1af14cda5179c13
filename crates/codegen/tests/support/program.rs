//! All entries and exits of a program, woven at once.

use std::path::Path;

use ingraft_analysis::{Function, FunctionKind, Image};
use ingraft_codegen::verify::{VerifyError, verify_weave};
use ingraft_codegen::{Arena, Environment, MiniRequest, PointRequest, Readable, TextSpace, Weave, weave_points};
use ingraft_model::histogram::Scale;
use ingraft_model::{Avma, Bias, CpuClock, DataArea, Refusal, Site, Snippet, ThreadIdentity, VariableId};
use rayon::prelude::*;

/// What became of one function.
pub struct Outcome {
    pub name: String,
    /// Why its entry is not woven.
    pub entry: Option<Refusal>,
    /// Why not all of its exits are, one reason per exit, or one for all.
    pub exits: Vec<Refusal>,
}

/// A program's functions, and whether the verifier accepts the plan for all of them.
pub struct Program {
    pub functions: Vec<Outcome>,
    pub points: usize,
    pub proof: Result<(), VerifyError>,
}

/// Asks for a count at every entry and every exit of a file. `None` if there is no such file.
pub fn weave_all(path: &Path) -> Option<Program> {
    let image = Image::parse(std::fs::read(path).ok()?.into()).ok()?;
    let functions: Vec<&Function> = image.functions().iter().filter(|f| f.kind() == FunctionKind::Normal).collect();
    let sites: Vec<_> = functions.par_iter().map(|f| (image.entry_site(f), image.exit_sites(f))).collect();
    let end = image.functions().iter().map(|f| f.range().end.0).max()?.next_multiple_of(4096);
    let data = DataArea { base: Avma(1 << 30), stride: 1 << 20, shards: 64, journal_bytes: 0 };
    let ticks = Scale { mult: 1 << 31, shift: 32 };
    let env = Environment {
        data,
        identity: ThreadIdentity::FsOffset(0x2d0),
        shadow_stack: false,
        ticks,
        cpu: CpuClock::None,
        vectors: None,
        loader: None,
        readable: Readable::default(),
    };
    let mut arena = Arena::new(Avma(end)..Avma(end + (512 << 20)));
    let mut text = TextSpace::new();
    text.add_padding(Bias(0), image.padding());
    let count = Snippet::increment(VariableId(0));
    let minis = [MiniRequest { id: 0, snippet: &count, counters: &[0] }];
    let all: Vec<(usize, bool, &Site)> = sites
        .iter()
        .enumerate()
        .flat_map(|(i, (entry, exits))| {
            let exits = exits.iter().flatten().flatten().map(move |site| (i, false, site));
            entry.iter().map(move |site| (i, true, site)).chain(exits)
        })
        .collect();
    let names: Vec<String> = functions.iter().map(|f| f.display_name().into_owned()).collect();
    let requests: Vec<_> = all
        .iter()
        .map(|(i, _, site)| PointRequest { site, bias: Bias(0), name: &names[*i], minis: &minis, host: None })
        .collect();
    let Weave { plan, woven } = weave_points(&env, &mut arena, &mut text, &requests).ok()?;
    let points = woven.iter().filter(|w| w.is_ok()).count();
    let weave = Weave { plan, woven };
    let proof = verify_weave(&env, &arena, &text, &requests, &weave);
    let mut out: Vec<Outcome> = names
        .into_iter()
        .zip(&sites)
        .map(|(name, (entry, exits))| Outcome {
            name,
            entry: entry.as_ref().err().cloned(),
            exits: match exits {
                Ok(exits) => exits.iter().filter_map(|e| e.as_ref().err().cloned()).collect(),
                Err(refusal) => vec![refusal.clone()],
            },
        })
        .collect();
    for ((i, entry, _), woven) in all.iter().zip(weave.woven) {
        let Err(refusal) = woven else { continue };
        if *entry {
            out[*i].entry = Some(refusal);
        } else {
            out[*i].exits.push(refusal);
        }
    }
    Some(Program { functions: out, points, proof })
}

impl Outcome {
    /// Whether its entry and all of its exits are woven.
    pub fn whole(&self) -> bool {
        self.entry.is_none() && self.exits.is_empty()
    }
}

impl Program {
    /// Share of the functions that are woven whole.
    pub fn share(&self) -> f64 {
        self.functions.iter().filter(|f| f.whole()).count() as f64 / self.functions.len().max(1) as f64
    }
}
