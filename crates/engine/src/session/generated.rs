//! The generated code of a target as a list of points and their parts, for people who read the code.

use ingraft_model::FunctionId;
use rustc_hash::FxHashMap;

use crate::weaving::parts::{Generated, GeneratedPoint};

use super::driver::Session;

impl Session {
    /// The code that this engine has generated in the target, and whether a dead engine has left more there. `None` if there is none.
    pub fn generated(&self) -> Option<(Generated, bool)> {
        let control = self.control();
        let attached = control.attached.as_ref()?;
        let mut pairs: FxHashMap<(FunctionId, u64), String> = FxHashMap::default();
        for (key, pair) in control.pairs.iter() {
            for mini in &pair.minis {
                pairs.entry(*mini).or_insert_with(|| match key.pair.focus.to_string() {
                    focus if focus.is_empty() => key.pair.metric.clone(),
                    focus => format!("{}@{focus}", key.pair.metric),
                });
            }
        }
        let points = attached
            .woven
            .points()
            .map(|(place, woven)| GeneratedPoint::woven(woven, |mini| pairs.get(&(place.function, mini)).cloned()));
        let generated = Generated {
            holder: format!("{} {}", self.context.program, std::process::id()),
            arenas: attached.woven.arenas(),
            areas: vec![attached.env.data.range()],
            points: points.chain(attached.woven.copied().map(GeneratedPoint::copy)).collect(),
            unknown: None,
        };
        Some((generated, !attached.woven.knows_all()))
    }
}
