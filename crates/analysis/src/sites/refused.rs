//! Reasons why points of a function cannot be woven.

use ingraft_model::{PointKind, Svma};

use crate::flow::points::FunctionCode;
use crate::functions::function::Function;
use crate::image::AnalysedImage;

/// Fills in the refusal of each point of a function that has no site.
pub(crate) fn add(image: &AnalysedImage, function: &Function, code: &mut FunctionCode) {
    if let Err(refusal) = image.entry_site(function) {
        for entry in code.points.iter_mut().filter(|p| p.kind == PointKind::Entry) {
            entry.refusal = Some(refusal.clone());
        }
    }
    exits(image, function, code);
    calls(image, function, code);
}

/// Refuses each exit without a site, for the reason of the first refused exit, as refusals do not say which exit they belong to.
fn exits(image: &AnalysedImage, function: &Function, code: &mut FunctionCode) {
    let sites = image.exit_sites(function);
    let woven: Vec<Svma> = match &sites {
        Ok(sites) => sites.iter().flatten().map(|s| Svma(s.at.0 + u64::from(s.point))).collect(),
        Err(_) => Vec::new(),
    };
    let reason = match sites {
        Ok(sites) => sites.into_iter().find_map(Result::err),
        Err(refusal) => Some(refusal),
    };
    let Some(reason) = reason else { return };
    for exit in code.points.iter_mut().filter(|p| p.kind == PointKind::Exit && !woven.contains(&p.at)) {
        exit.refusal = Some(reason.clone());
    }
}

/// Refuses calls, as far as the points before them go. A call that control does not reach, as far as is known, is not refused.
fn calls(image: &AnalysedImage, function: &Function, code: &mut FunctionCode) {
    let sites = image.call_points(function, false);
    for call in code.points.iter_mut().filter(|p| p.kind == PointKind::CallBefore) {
        call.refusal = match &sites {
            Ok(sites) => sites.iter().find(|c| c.call.at == call.at).and_then(|c| c.site.clone().err()),
            Err(refusal) => Some(refusal.clone()),
        };
    }
}
