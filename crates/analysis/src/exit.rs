//! The exits of a function as sites for springboards: its returns, and its jumps to other functions.
//!
//! An exit is often shorter than a springboard, so it is displaced together with instructions in front of it that control only runs
//! straight through, and with dead padding behind it ([`Stretches`]).

use iced_x86::{FlowControl, Mnemonic};
use ingraft_model::{PointKind, Refusal, Site, Svma};

use crate::body::Body;
use crate::entry::{self, SITE_MAX};
use crate::flow;
use crate::function::Function;
use crate::image::Image;
use crate::stretch::Stretches;

pub(crate) fn sites(image: &Image, function: &Function) -> Result<Vec<Result<Site, Refusal>>, Refusal> {
    entry::check_kind(function)?;
    if image.elf().is_go() {
        return Err(Refusal::MovingCalls);
    }
    if let Some(at) = function.facts.unresolved {
        return Err(Refusal::UnresolvedJump { offset: function.offset_of(at) });
    }
    let body = Body::new(image, function);
    let flow = flow::follow(&body)?;
    if let Some(behind) = flow.runs_on {
        return Err(Refusal::RunsOn { offset: function.offset_of(behind) });
    }
    let mut stretches = Stretches::new(&body, &flow);
    Ok(flow.exits.iter().map(|&exit| site(&mut stretches, exit)).collect())
}

fn site(stretches: &mut Stretches<'_>, exit: usize) -> Result<Site, Refusal> {
    let (image, function) = (stretches.body.image, stretches.body.function);
    let i = &stretches.body.code[exit];
    let (point, end) = (i.ip(), i.next_ip());
    let offset = function.offset_of(point);
    if i.flow_control() == FlowControl::Return && i.mnemonic() != Mnemonic::Ret {
        return Err(Refusal::NotDisplaceable { offset, why: "a return to other privileges or another segment" });
    }
    if stretches.lands_within(point, end) {
        return Err(Refusal::BranchIntoSpringboard { offset });
    }
    let padding = match i.flow_control() {
        FlowControl::ConditionalBranch => 0,
        _ => entry::dead_padding(image, function, end),
    };
    let at = stretches.choose(&stretches.starts(exit), &[end + padding])?;
    stretches.floor = end + padding;
    let len = (end + padding - at).min(SITE_MAX);
    if image.in_restartable_sequence(at, len) {
        return Err(Refusal::RestartableSequence);
    }
    Ok(Site {
        kind: PointKind::Exit,
        after: false,
        function: function.start(),
        at: Svma(at),
        point: (point - at) as u8,
        bytes: image.elf().data_at(at, len).unwrap_or_default().to_vec(),
        own: (end - at) as u8,
        landings: Vec::new(),
        scratch: Vec::new(),
        flags_dead: false,
        back_branches: Vec::new(),
    })
}
