//! `ingraft where`: what lies at an address of a process.

use crate::args::{Common, WhereArgs};
use crate::conn::{Engines, RequestTarget};
use crate::exit::Stop;
use crate::objects::Object;
use crate::objects::code::{GeneratedFacts, LocationObject};
use crate::output::progress::Progress;
use crate::output::{DIM, HEADING, Output, words};

/// Runs the command.
pub(crate) async fn run(args: &WhereArgs, engines: &Engines, common: &Common, out: &mut Output) -> Result<(), Stop> {
    for client in engines.clients() {
        let mut progress = Progress::new("reading the program", common.format);
        let found = client.locate(&RequestTarget::Pid(args.pid), args.address, &mut progress).await?;
        drop(progress);
        let found = LocationObject::new(found, client.host());
        out.text(&text(&found))?;
        out.object(&Object::Location(found))?;
    }
    Ok(())
}

/// The location in words, one fact a line.
fn text(found: &LocationObject) -> String {
    let host = found.host.as_ref().map(|host| format!(" at {host}")).unwrap_or_default();
    let mut text = format!("{HEADING}{}{HEADING:#} in process {}{host}\n", found.address, found.pid);
    let mut line = |name: &str, value: &str| {
        // Names come from other processes, so control characters, which could move the cursor, become `?`.
        let value: String = value.chars().map(|c| if c.is_control() { '?' } else { c }).collect();
        text += &format!("  {DIM}{name:<9}{DIM:#} {value}\n");
    };
    if let Some(generated) = &found.generated {
        line("what", &generated_text(generated));
        if let Some(pair) = &generated.pair {
            line("measures", &words::readable_pair(pair));
        }
        if let Some(holder) = &generated.holder {
            line("woven by", holder);
        }
        if let Some(original) = &generated.original {
            line("original", original);
        }
    }
    if let Some(function) = &found.function {
        let (at, offset) = (found.at.as_deref().unwrap_or("0x0"), found.offset.as_deref().unwrap_or_default());
        let at = if at.starts_with('-') { at.to_owned() } else { format!("+{at}") };
        line("function", &format!("{function}{at} (the function is at {offset})"));
    }
    if !found.inlined.is_empty() {
        line("inlined", &found.inlined.join(", into "));
    }
    if let Some(block) = &found.block {
        line("block", &format!("#{block}"));
    }
    if let (Some(file), Some(number)) = (&found.file, found.line) {
        line("source", &format!("{file}:{number}"));
    }
    if let (Some(module), Some(at)) = (&found.module, &found.file_address) {
        line("module", &format!("{module}+{at}"));
    }
    match found.mapping.as_deref() {
        Some("") => line("memory", "without a file"),
        Some(mapping) => line("memory", mapping),
        None => {}
    }
    if let Some(note) = &found.note {
        line("note", note);
    }
    text
}

/// Description of a part of generated code.
fn generated_text(generated: &GeneratedFacts) -> String {
    let part = match generated.part {
        "springboard" => "springboard: the jump in the text that leads to woven code",
        "island" => "island: a jump in the text near a springboard",
        "slow-path" => "way of a thread without counters of its own to the slow routine",
        "base" => "base trampoline: finds the counters of the thread",
        "slot" => "slot: leads to the first snippet",
        "snippet" => "snippet",
        "snippet-without-shard" => "snippet, for threads without counters of their own",
        "restore" => "restores registers and flags",
        "relocated" => "relocated instruction",
        "room" => "relocated instruction that made room for an island",
        "routine" => "routine that several points share",
        "point" => "code of a point",
        "signature" => "signature of an arena",
        "free" => "free room of an arena",
        "data" => "data area: counters and records",
        other => other,
    };
    match (&generated.kind, &generated.point) {
        (Some(kind), Some(point)) => format!("{part} (point: {kind} at {point})"),
        (None, Some(point)) => format!("{part} (point at {point})"),
        (_, None) => part.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    #[test]
    fn generated_code_is_described_with_its_original() {
        let found = LocationObject {
            host: None,
            pid: 7,
            address: "0x7f00".to_owned(),
            what: "generated",
            mapping: Some(String::new()),
            module: Some("shop".to_owned()),
            file_address: Some("0x1204".to_owned()),
            function: Some("find\nprice".to_owned()),
            offset: Some("0x1200".to_owned()),
            at: Some("0x4".to_owned()),
            block: Some("0x0".to_owned()),
            file: Some("shop.c".to_owned()),
            line: Some(12),
            inlined: vec!["lookup".to_owned()],
            generated: Some(GeneratedFacts {
                holder: Some("ingraftd 9".to_owned()),
                part: "relocated",
                kind: Some("entry"),
                point: Some("0x5200".to_owned()),
                pair: None,
                original: Some("0x5204".to_owned()),
            }),
            note: None,
        };
        expect![[r#"
            0x7f00 in process 7
              what      relocated instruction (point: entry at 0x5200)
              woven by  ingraftd 9
              original  0x5204
              function  find?price+0x4 (the function is at 0x1200)
              inlined   lookup
              block     #0x0
              source    shop.c:12
              module    shop+0x1204
              memory    without a file
        "#]]
        .assert_eq(&anstream::adapter::strip_str(&text(&found)).to_string());
    }
}
