//! Calls as events in the JSON format of Chrome's tracing, which ui.perfetto.dev and chrome://tracing read.
//!
//! Times are in microseconds. A number of microseconds since 1970 has no room for nanoseconds in a double, so the times count from the first
//! event, and the file says when that was.

use std::collections::BTreeSet;
use std::fmt::Write as _;

/// A call.
#[derive(Clone, Debug)]
pub(crate) struct CallEvent {
    /// Name of the function.
    pub(crate) name: String,
    /// Name of its module.
    pub(crate) category: String,
    /// Unix time in nanoseconds at which it began.
    pub(crate) began_ns: u64,
    /// Length in nanoseconds.
    pub(crate) elapsed_ns: u64,
    pub(crate) pid: i32,
    pub(crate) tid: u32,
    /// Number of the goroutine that made it, which has a track of its own; 0 if there is none.
    pub(crate) goroutine: u64,
}

/// Calls of one or several processes.
#[derive(Clone, Debug, Default)]
pub(crate) struct CallEvents(Vec<CallEvent>);

/// Nanoseconds as microseconds.
fn micros(ns: u64) -> String {
    format!("{}.{:03}", ns / 1000, ns % 1000)
}

impl CallEvents {
    /// Adds a call.
    pub(crate) fn add(&mut self, event: CallEvent) {
        self.0.push(event);
    }

    /// Whether there is no call.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The contents of the file.
    pub(crate) fn json(&self) -> Vec<u8> {
        let first = self.0.iter().map(|event| event.began_ns).min().unwrap_or(0);
        let mut text = format!(r#"{{"displayTimeUnit":"ns","otherData":{{"began_unix_ns":{first}}},"traceEvents":["#);
        for (n, CallEvent { name, category, began_ns, elapsed_ns, pid, tid, goroutine }) in self.0.iter().enumerate() {
            let track = if *goroutine > 0 { *goroutine } else { u64::from(*tid) };
            let [name, category] = [name, category].map(|text| serde_json::Value::from(text.as_str()).to_string());
            let (at, length) = (micros(began_ns - first), micros(*elapsed_ns));
            let comma = if n > 0 { "," } else { "" };
            // A text takes everything that is written to it.
            let _ = write!(
                text,
                "{comma}\n{{\"ph\":\"X\",\"name\":{name},\"cat\":{category},\"ts\":{at},\"dur\":{length},\"pid\":{pid},\"tid\":{track}}}"
            );
        }
        let tracks: BTreeSet<(i32, u64)> = self.0.iter().map(|event| (event.pid, event.goroutine)).collect();
        for (pid, goroutine) in tracks.into_iter().filter(|(_, goroutine)| *goroutine > 0) {
            let _ = write!(
                text,
                ",\n{{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":{pid},\"tid\":{goroutine},\"args\":{{\"name\":\"goroutine {goroutine}\"}}}}"
            );
        }
        text += "\n]}\n";
        text.into_bytes()
    }
}
