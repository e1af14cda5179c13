//! The vDSO of a target, and its function that returns the time.

use ingraft_analysis::{Elf, plain_function};
use ingraft_model::{Bias, WallClock};
use ingraft_process::{Mapping, Target};

/// Function of the vDSO that returns the time (vdso(7)).
const TELLS_TIME: &str = "__vdso_clock_gettime";
/// Name of the mapping of the vDSO.
const VDSO: &str = "[vdso]";

/// Way in which generated code of a target asks the kernel for the time: through the vDSO, if the vDSO has a function that code can call.
pub fn of_kernel(target: &Target) -> WallClock {
    let maps = target.maps().unwrap_or_default();
    let function = maps.iter().find(|m| is_vdso(m)).and_then(|m| {
        let (library, bias) = library(target, m)?;
        Some(plain_function(&library, TELLS_TIME)?.to_avma(bias))
    });
    function.map_or(WallClock::SystemCall, WallClock::Vdso)
}

/// Whether the function that generated code calls for the time is still at its address.
pub fn is_there(target: &Target, wall: WallClock) -> bool {
    let WallClock::Vdso(function) = wall else { return true };
    target.maps().is_ok_and(|maps| maps.iter().any(|m| is_vdso(m) && m.range.contains(&function)))
}

/// Whether a mapping is the vDSO's code.
pub fn is_vdso(mapping: &Mapping) -> bool {
    mapping.exec && mapping.path.as_os_str() == VDSO
}

/// The image of the code that the kernel maps into every process, read from memory.
pub fn library(target: &Target, mapping: &Mapping) -> Option<(Elf, Bias)> {
    let range = &mapping.range;
    let mut bytes = vec![0; usize::try_from(range.end.0.saturating_sub(range.start.0)).ok()?];
    target.read(range.start, &mut bytes).ok()?;
    let elf = Elf::parse(bytes.into()).ok()?;
    let first = elf.segments().iter().find(|s| s.file_offset == 0)?.svma;
    Some((elf, Bias(range.start.0.wrapping_sub(first.0))))
}

#[cfg(test)]
mod tests {
    use ingraft_model::Avma;

    use super::*;

    #[test]
    fn this_machine_tells_the_time_without_vector_registers() {
        let mut other = std::process::Command::new("sleep").arg("60").spawn().expect("a process");
        let target = Target::open(ingraft_model::Pid(other.id().cast_signed())).expect("it runs");
        while target.maps().is_ok_and(|maps| maps.iter().all(|m| m.path.as_os_str() != "[vdso]")) {}
        let wall = of_kernel(&target);
        let elsewhere = |function: Avma| is_there(&target, WallClock::Vdso(Avma(function.0 & 0xfff)));
        let found = match wall {
            WallClock::Vdso(function) => Some((is_there(&target, wall), elsewhere(function))),
            _ => None,
        };
        other.kill().and_then(|()| other.wait()).expect("it ends");
        match found {
            Some(found) => assert_eq!(found, (true, false)),
            None => println!("skipped: no vDSO here, or its function keeps more than general registers: {wall:?}"),
        }
    }
}
