//! The daemon's own series: its targets with their costs, how exact the values are, refusals, and the process itself.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ingraft_api::{PairInfo, Value};
use ingraft_engine::TargetFigures;
use ingraft_model::Pid;

use super::names::FamilyType;
use super::text::{Labels, SeriesLines, decimal, head};

/// A reason, with the pid and the name of the target.
type TargetReason = (Pid, String, String);

/// Counts that are made with the page, and those of the daemon.
#[derive(Debug, Default)]
pub struct HealthCounts {
    /// Pairs whose value is not that of all calls of the focus, by target and reason.
    inexact: BTreeMap<TargetReason, usize>,
    /// Functions that pairs lack, by target and reason.
    refused_functions: BTreeMap<TargetReason, usize>,
    /// Measurements or pairs whose values could not be read.
    pub unread: usize,
    /// Targets that were being changed, so that their values are missing.
    pub busy: usize,
    /// Requests that were refused since the daemon's start, by reason.
    pub refusals: BTreeMap<String, u64>,
    /// Time that it took to read the values.
    pub read_time: Duration,
    /// Time of the daemon's start.
    pub began: Option<SystemTime>,
}

impl HealthCounts {
    /// Notes how exact the value of a pair is.
    pub fn pair(&mut self, pid: Pid, process: &str, info: &PairInfo, value: &Value) {
        let details = value.details();
        let missing = details.activations;
        let unlisted = details.keys.as_ref().is_some_and(|keys| keys.unlisted > 0);
        for (reason, holds) in [
            ("taken_out", details.taken_out.is_some()),
            ("refused_functions", !info.refused.is_empty()),
            ("calls_left", missing.left > 0),
            ("calls_unseen", missing.unseen > 0),
            ("calls_unrecorded", missing.unrecorded > 0),
            ("left_by_tail_jump", missing.left_by_tail_jump > 0),
            ("counted_in_part", value.counted_share().is_some_and(|share| share < 1.0)),
            ("exact_since", info.facts.exact_since_ns.is_some()),
            ("slept", details.slept_ns > 0),
            ("unlisted_objects", unlisted),
        ] {
            if holds {
                *self.inexact.entry((pid, process.to_owned(), reason.to_owned())).or_default() += 1;
            }
        }
        for refused in &info.refused {
            let reason = refused.reason.reason().to_owned();
            *self.refused_functions.entry((pid, process.to_owned(), reason)).or_default() += 1;
        }
    }

    /// Writes the series of the targets.
    pub fn targets(&self, targets: &[(TargetFigures, String)], out: &mut String) {
        let mut family = |name: &str, kind, help: &str, value: &dyn Fn(&TargetFigures) -> Option<String>| {
            let mut lines = SeriesLines::default();
            for (target, process) in targets {
                let Some(value) = value(target) else { continue };
                lines.add(name, &[("pid", &target.pid.to_string()), ("process", process)], &value);
            }
            write(name, kind, help, &lines, out);
        };
        let ratio = |ns: f64| format!("{}", ns / 1e9);
        let (gauge, counter) = (FamilyType::Gauge, FamilyType::Counter);
        family("ingraftd_target_up", gauge, "Whether the target runs: 1, or 0 after its end.", &|t| {
            Some(u8::from(!t.ended).to_string())
        });
        family("ingraftd_target_measurements", gauge, "Measurements in the target.", &|t| {
            Some(t.measurements.to_string())
        });
        let help = "Measurements that stay in the target without a client; their values are on this page.";
        family("ingraftd_target_kept_measurements", gauge, help, &|t| Some(t.kept.to_string()));
        family("ingraftd_target_points", gauge, "Points of the target that are woven.", &|t| {
            Some(t.points.to_string())
        });
        let help = "Length of the code that is woven into the target.";
        family("ingraftd_target_code_bytes", gauge, help, &|t| Some(t.code_bytes.to_string()));
        let help = "Time for which this daemon has held threads of the target.";
        family("ingraftd_target_held_seconds_total", counter, help, &|t| Some(seconds(t.held)));
        let help = "The longest time for which this daemon has held threads of the target without a break.";
        family("ingraftd_target_longest_hold_seconds", gauge, help, &|t| Some(seconds(t.longest_hold)));
        let help =
            "Cost of the woven code by its latest rates, each run at its worst case, as a share of one processor.";
        family("ingraftd_target_predicted_cost_ratio", gauge, help, &|t| Some(ratio(t.costs.as_ref()?.cost_ns_per_s)));
        let help = "Cost of the woven code since the first insertion, each run at its worst case, as a share of one processor.";
        family("ingraftd_target_observed_cost_ratio", gauge, help, &|t| t.costs.as_ref()?.observed_ns_per_s.map(ratio));
        for (name, help, counts) in [
            (
                "ingraftd_target_inexact_pairs",
                "Pairs of kept measurements whose values lack something, by reason. ingraft read has the details of each.",
                &self.inexact,
            ),
            (
                "ingraftd_target_refused_functions",
                "Functions that the pairs of kept measurements lack, by reason.",
                &self.refused_functions,
            ),
        ] {
            let mut lines = SeriesLines::default();
            for ((pid, process, reason), count) in counts {
                let labels: Labels<'_> = &[("pid", &pid.to_string()), ("process", process), ("reason", reason)];
                lines.add(name, labels, &count.to_string());
            }
            write(name, FamilyType::Gauge, help, &lines, out);
        }
        let mut gauge = |name, help, value: usize| single(name, FamilyType::Gauge, help, &value.to_string(), out);
        gauge("ingraftd_targets", "Targets that the daemon has opened.", targets.len() + self.busy);
        let help = "Targets that are being changed at present; their values are not on this page.";
        gauge("ingraftd_busy_targets", help, self.busy);
        gauge("ingraftd_unread_measurements", "Measurements whose values could not be read.", self.unread);
    }

    /// Writes the series of the daemon itself.
    pub fn daemon(&self, out: &mut String) {
        let name = "ingraftd_refused_requests_total";
        let mut lines = SeriesLines::default();
        for (reason, count) in &self.refusals {
            lines.add(name, &[("reason", reason)], &count.to_string());
        }
        let help = "Requests that the daemon has refused, by the reason of the error.";
        write(name, FamilyType::Counter, help, &lines, out);
        let name = "ingraftd_build_info";
        let mut lines = SeriesLines::default();
        lines.add(name, &[("version", env!("CARGO_PKG_VERSION"))], "1");
        write(name, FamilyType::Gauge, "The version of the daemon.", &lines, out);
        let help = "Time that it took to read the values on this page.";
        single("ingraftd_page_read_seconds", FamilyType::Gauge, help, &seconds(self.read_time), out);
        if let Some(began) = self.began.and_then(|began| began.duration_since(UNIX_EPOCH).ok()) {
            let help = "Unix time of the daemon's start.";
            single("process_start_time_seconds", FamilyType::Gauge, help, &seconds(began), out);
        }
        process(out);
    }
}

/// Writes the series about the process of the daemon, by the names that all exporters have in common. What the kernel does not tell is left
/// out.
fn process(out: &mut String) {
    let gauge = FamilyType::Gauge;
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    for (field, name, help) in [
        ("VmRSS:", "process_resident_memory_bytes", "Memory of the daemon that is resident."),
        ("VmSize:", "process_virtual_memory_bytes", "Address space of the daemon."),
    ] {
        if let Some(kib) = kib(&status, field) {
            single(name, gauge, help, &(u128::from(kib) * 1024).to_string(), out);
        }
    }
    if let Ok(open) = std::fs::read_dir("/proc/self/fd") {
        single("process_open_fds", gauge, "Open file descriptors of the daemon.", &open.count().to_string(), out);
    }
    if let Ok(usage) = nix::sys::resource::getrusage(nix::sys::resource::UsageWho::RUSAGE_SELF) {
        let micros = |time: nix::sys::time::TimeVal| i128::from(time.tv_sec()) * 1_000_000 + i128::from(time.tv_usec());
        let used = decimal(micros(usage.user_time()) + micros(usage.system_time()), 6);
        let help = "Processor time that the daemon has used.";
        single("process_cpu_seconds_total", FamilyType::Counter, help, &used, out);
    }
}

/// Returns a field of /proc/PID/status in KiB.
fn kib(status: &str, field: &str) -> Option<u64> {
    status.lines().find_map(|line| line.strip_prefix(field))?.trim().strip_suffix(" kB")?.parse().ok()
}

fn seconds(time: Duration) -> String {
    decimal(i128::try_from(time.as_nanos()).unwrap_or(i128::MAX), 9)
}

fn single(name: &str, kind: FamilyType, help: &str, value: &str, out: &mut String) {
    let mut lines = SeriesLines::default();
    lines.add(name, &[], value);
    write(name, kind, help, &lines, out);
}

/// Writes a family; nothing if it has no series.
fn write(name: &str, kind: FamilyType, help: &str, lines: &SeriesLines, out: &mut String) {
    if lines.count > 0 {
        head(name, kind, help, out);
        *out += &lines.text;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_read_from_the_status() {
        let status = "Name:\tx\nVmSize:\t  2048 kB\nVmRSS:\t     12 kB\n";
        assert_eq!(
            (kib(status, "VmRSS:"), kib(status, "VmSize:"), kib(status, "VmPeak:")),
            (Some(12), Some(2048), None)
        );
        let mut page = String::new();
        process(&mut page);
        for name in ["process_resident_memory_bytes", "process_cpu_seconds_total", "process_open_fds"] {
            assert!(page.contains(&format!("\n{name} ")), "{page}");
        }
    }
}
