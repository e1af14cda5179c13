//! `cargo xtask soak`: measures real servers under load again and again. No server may be harmed, and every answer must be right.
//!
//! The commands are chosen at random from a seed. Each third one is killed, and the next one has to clean up after it.

mod answers;
mod commands;
mod load;
mod run;
mod servers;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use self::run::SoakRun;
use self::servers::SERVERS;
use crate::{built, packages};

/// Arguments of the command.
struct SoakPlan {
    /// Time for which each server is measured.
    time: Duration,
    seed: u64,
    /// Directory of the programs of ingraft; `None`: they are built.
    built: Option<PathBuf>,
    /// Names of the servers; all if empty.
    names: Vec<String>,
}

impl SoakPlan {
    fn parse(arguments: &[&str]) -> Result<SoakPlan> {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        let (mut minutes, mut seed, mut built, mut names) = (10.0, now.as_secs(), None, Vec::new());
        let mut words = arguments.iter();
        while let Some(word) = words.next() {
            let mut value = || words.next().with_context(|| format!("{word} needs a value"));
            match *word {
                "--minutes" => minutes = value()?.parse::<f64>().context("minutes")?,
                "--seed" => seed = value()?.parse().context("the seed")?,
                "--built" => built = Some(PathBuf::from(value()?).canonicalize().context("the programs")?),
                name => names.push(name.to_owned()),
            }
        }
        for name in &names {
            let known: Vec<&str> = SERVERS.iter().map(|server| server.name).collect();
            ensure!(known.contains(&name.as_str()), "no server {name}: there are {}", known.join(", "));
        }
        let time = Duration::try_from_secs_f64(minutes * 60.0).context("minutes")?;
        Ok(SoakPlan { time, seed, built, names })
    }

    /// Directory of the programs, which are built if none was given.
    fn programs(&self) -> Result<PathBuf> {
        if let Some(built) = &self.built {
            return Ok(built.clone());
        }
        packages::install(false)?;
        built::build()?;
        Ok(ingraft_testing::sibling("ingraft").parent().context("its directory")?.to_owned())
    }
}

/// Measures the named servers, or all. Fails if a server was harmed or an answer was wrong.
pub fn run(arguments: &[&str]) -> Result<()> {
    let plan = SoakPlan::parse(arguments)?;
    let programs = plan.programs()?;
    println!("seed {}", plan.seed);
    let (mut lines, mut failures) = (Vec::new(), 0);
    for server in SERVERS.iter().filter(|server| plan.names.is_empty() || plan.names.iter().any(|n| n == server.name)) {
        match (server.start)(&programs) {
            Err(why) => lines.push(format!("{:10} skipped: {why}", server.name)),
            Ok(serving) => {
                let result = SoakRun::new(server, &*serving, &programs, plan.seed).run(plan.time);
                failures += result.failures;
                lines.push(format!("{:10} {}", server.name, result.line));
            }
        }
    }
    lines.iter().for_each(|line| println!("{line}"));
    if failures > 0 {
        bail!("{failures} checks failed with seed {}; each is a line with FAILED above", plan.seed);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::SoakPlan;

    #[test]
    fn arguments_are_read() {
        let plan = SoakPlan::parse(&["--minutes", "1.5", "redis", "--seed", "7"]).expect("a plan");
        assert_eq!((plan.time.as_secs(), plan.seed, plan.names.len()), (90, 7, 1));
        assert!(SoakPlan::parse(&["no-such-server"]).is_err());
        assert!(SoakPlan::parse(&["--minutes"]).is_err());
    }
}
