//! The licences of the crates that are linked into the programs.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};
use serde_json::Value;

use super::{cargo, output_of};

/// Returns a list of all linked crates with their licences, and then each text of a licence or notice once with the crates that have it.
pub fn text() -> Result<String> {
    let mut command = Command::new(cargo());
    command.current_dir(ingraft_testing::source_directory()).args([
        "metadata",
        "--format-version",
        "1",
        "--locked",
        "--filter-platform",
        "x86_64-unknown-linux-gnu",
    ]);
    let metadata: Value =
        serde_json::from_slice(&output_of(&mut command)?).context("read what cargo metadata prints")?;
    let linked = linked(&metadata).context("follow the dependencies in what cargo metadata prints")?;

    let mut list = String::from("Crates in the programs ingraft and ingraftd:\n\n");
    let mut texts: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for package in metadata["packages"].as_array().into_iter().flatten() {
        // A package without a source is one of this workspace.
        if package["source"].is_null() || !package["id"].as_str().is_some_and(|id| linked.contains(id)) {
            continue;
        }
        let field = |name: &str| package[name].as_str().unwrap_or_default();
        let name = format!("{} {}", field("name"), field("version"));
        writeln!(list, "{name}: {}", field("license"))?;
        if let Some(directory) = Path::new(field("manifest_path")).parent() {
            for text in licences(directory)? {
                texts.entry(text).or_default().push(name.clone());
            }
        }
    }
    for (text, names) in texts {
        write!(list, "\n{}\n{}:\n\n{}\n", "-".repeat(72), names.join(", "), text.trim_end())?;
    }
    Ok(list)
}

/// Returns the ids of all packages that both programs link, directly or not.
fn linked(metadata: &Value) -> Option<BTreeSet<&str>> {
    let nodes = metadata["resolve"]["nodes"].as_array()?;
    let programs = metadata["packages"].as_array()?.iter().filter(|package| {
        package["source"].is_null() && matches!(package["name"].as_str(), Some("ingraft-cli" | "ingraft-daemon"))
    });
    let mut open: Vec<&str> = programs.filter_map(|package| package["id"].as_str()).collect();
    let mut linked = BTreeSet::new();
    while let Some(id) = open.pop() {
        if !linked.insert(id) {
            continue;
        }
        let node = nodes.iter().find(|node| node["id"] == id)?;
        for dependency in node["deps"].as_array()? {
            // Dependencies of tests and of build scripts have a kind.
            if dependency["dep_kinds"].as_array()?.iter().any(|kind| kind["kind"].is_null()) {
                open.push(dependency["pkg"].as_str()?);
            }
        }
    }
    Some(linked)
}

/// Returns the texts of the licences and notices in a crate's directory, in the order of their names.
fn licences(directory: &Path) -> Result<Vec<String>> {
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(directory).with_context(|| format!("read {}", directory.display()))? {
        let path = entry?.path();
        let name = path.file_name().map(|name| name.to_string_lossy().to_uppercase()).unwrap_or_default();
        if path.is_file() && ["LICEN", "COPYING", "NOTICE", "COPYRIGHT"].iter().any(|start| name.starts_with(start)) {
            paths.push(path);
        }
    }
    paths.sort();
    paths.iter().map(|path| Ok(String::from_utf8_lossy(&std::fs::read(path)?).into_owned())).collect()
}
