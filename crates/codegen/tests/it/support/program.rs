//! All points of a program, woven at once.

use std::path::Path;
use std::sync::Arc;

use ingraft_analysis::{AnalysedImage, Function, FunctionKind};
use ingraft_codegen::verify::{VerifyError, verify_weave};
use ingraft_codegen::{Arena, Environment, MiniRequest, PointRequest, Readable, TextSpace, Weave, weave_points};
use ingraft_model::histogram::Scale;
use ingraft_model::{
    Avma, Bias, CallPoint, CpuClock, DataArea, PointKind, Refusal, Site, Snippet, ThreadIdentity, VariableId, WallClock,
};
use rayon::prelude::*;

/// Result for one function.
pub struct Outcome {
    pub name: String,
    /// Reason why the entry is not woven.
    pub entry: Option<Refusal>,
    /// Whether a uprobe at the woven entry is harmless, because the first instruction stays in place.
    pub unharmed: bool,
    /// Reasons why exits are not woven: one for each such exit, or one for all.
    pub exits: Vec<Refusal>,
    /// Reasons why points before calls are not woven, if calls were requested.
    pub before: Vec<Refusal>,
    /// Reasons why points after calls are not woven.
    pub behind: Vec<Refusal>,
}

/// Functions of a program, and the result of the proof of the plan for all of them.
pub struct Program {
    pub functions: Vec<Outcome>,
    pub points: usize,
    pub proof: Result<(), VerifyError>,
}

/// Sites that one function requests.
struct Asked {
    entry: Result<Arc<Site>, Refusal>,
    exits: Result<Vec<Result<Arc<Site>, Refusal>>, Refusal>,
    before: Result<Vec<CallPoint>, Refusal>,
    behind: Result<Vec<CallPoint>, Refusal>,
}

impl Asked {
    fn of(image: &AnalysedImage, function: &Function, calls: bool) -> Self {
        let points = |after| if calls { image.call_points(function, after) } else { Ok(Vec::new()) };
        Asked {
            entry: image.entry_site(function),
            exits: image.exit_sites(function),
            before: points(false),
            behind: points(true),
        }
    }

    fn sites(&self) -> impl Iterator<Item = &Site> {
        let calls = [&self.before, &self.behind].into_iter().flatten().flatten();
        let calls = calls.filter_map(|point| point.site.as_ref().ok()?.as_ref());
        self.entry.iter().chain(self.exits.iter().flatten().flatten()).map(Arc::as_ref).chain(calls)
    }

    fn outcome(&self, name: String) -> Outcome {
        let calls = |points: &Result<Vec<CallPoint>, Refusal>| match points {
            Ok(points) => points.iter().filter_map(|point| point.site.clone().err()).collect(),
            Err(refusal) => vec![refusal.clone()],
        };
        Outcome {
            name,
            entry: self.entry.as_ref().err().cloned(),
            unharmed: false,
            exits: match &self.exits {
                Ok(exits) => exits.iter().filter_map(|e| e.as_ref().err().cloned()).collect(),
                Err(refusal) => vec![refusal.clone()],
            },
            before: calls(&self.before),
            behind: calls(&self.behind),
        }
    }
}

/// Requests a count at every entry and every exit of a file, and with `calls` also before and after every call. `None` if the file cannot
/// be read or woven.
pub fn weave_all(path: &Path, calls: bool) -> Option<Program> {
    let image = AnalysedImage::parse(std::fs::read(path).ok()?.into()).ok()?;
    let functions: Vec<&Function> = image.functions().iter().filter(|f| f.kind() == FunctionKind::Normal).collect();
    let asked: Vec<_> = functions.par_iter().map(|f| Asked::of(&image, f, calls)).collect();
    let end = image.functions().iter().map(|f| f.range().end.0).max()?.next_multiple_of(4096);
    let data = DataArea { base: Avma(1 << 30), stride: 1 << 20, shards: 64, journal_bytes: 0 };
    let ticks = Scale { mult: 1 << 31, shift: 32 };
    let env = Environment {
        data,
        identity: ThreadIdentity::FsOffset(0x2d0),
        shadow_stack: false,
        wall: WallClock::Tsc,
        ticks,
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
    let count = Snippet::increment(VariableId(0));
    let minis = [MiniRequest { id: 0, snippet: &count, counters: &[0] }];
    let all: Vec<(usize, &Site)> = asked.iter().enumerate().flat_map(|(i, a)| a.sites().map(move |s| (i, s))).collect();
    let names: Vec<String> = functions.iter().map(|f| f.display_name().into_owned()).collect();
    let requests: Vec<_> = all
        .iter()
        .map(|(i, site)| PointRequest {
            site,
            bias: Bias(0),
            name: &names[*i],
            minis: &minis,
            beside: &[],
            probe: None,
        })
        .collect();
    let Weave { plan, woven } = weave_points(&env, &mut arena, &mut text, &requests).ok()?;
    let points = woven.iter().filter(|w| w.is_ok()).count();
    let weave = Weave { plan, woven };
    let proof = verify_weave(&env, &arena, &text, &requests, &weave);
    let mut out: Vec<Outcome> = names.into_iter().zip(&asked).map(|(name, asked)| asked.outcome(name)).collect();
    for ((i, site), woven) in all.iter().zip(weave.woven) {
        let refusal = match woven {
            Ok(point) => {
                out[*i].unharmed |= point.kind == PointKind::Entry && point.at > point.function;
                continue;
            }
            Err(refusal) => refusal,
        };
        match site.point_kind() {
            PointKind::Entry => out[*i].entry = Some(refusal),
            PointKind::CallBefore => out[*i].before.push(refusal),
            PointKind::CallAfter => out[*i].behind.push(refusal),
            _ => out[*i].exits.push(refusal),
        }
    }
    Some(Program { functions: out, points, proof })
}

impl Outcome {
    /// Whether all requested points are woven.
    pub fn whole(&self) -> bool {
        self.entry.is_none() && self.exits.is_empty() && self.before.is_empty() && self.behind.is_empty()
    }
}

impl Program {
    /// Share of the functions with a woven entry at which a uprobe is harmless.
    pub fn unharmed(&self) -> f64 {
        let woven = self.functions.iter().filter(|f| f.entry.is_none()).count();
        self.functions.iter().filter(|f| f.unharmed).count() as f64 / woven.max(1) as f64
    }

    /// Share of the functions that are woven completely.
    pub fn share(&self) -> f64 {
        self.functions.iter().filter(|f| f.whole()).count() as f64 / self.functions.len().max(1) as f64
    }
}
