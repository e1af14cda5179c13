//! The commands that show findings, as a user can paste them into a shell.

use ingraft_api::NamedFunction;
use ingraft_model::Tid;

use crate::args::Common;

/// The words that all commands about one target have in common.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Pasted {
    pid: i32,
    /// Flags that lead to the engine.
    engine: String,
}

impl Pasted {
    /// Commands about a process. `at` is the number of its daemon among those of the command line.
    pub(super) fn new(pid: i32, common: &Common, at: usize) -> Self {
        let Common { daemons, state_dir, token_file, tls_ca, tls_cert, tls_key, .. } = common;
        let mut engine = String::new();
        let path = |path: &Option<std::path::PathBuf>| path.as_ref().map(|path| path.to_string_lossy().into_owned());
        let flags = [
            ("--daemon", daemons.get(at).cloned()),
            ("--state-dir", path(state_dir)),
            ("--token-file", path(token_file)),
            ("--tls-ca", path(tls_ca)),
            ("--tls-cert", path(tls_cert)),
            ("--tls-key", path(tls_key)),
        ];
        for (flag, value) in flags.into_iter().filter_map(|(flag, value)| Some((flag, value?))) {
            engine += &format!(" {flag} {}", quoted(&value));
        }
        Pasted { pid, engine }
    }

    /// Samples of the process, or of a function or a thread of it; of waiting threads if `waits`.
    pub(super) fn hot(&self, function: Option<&NamedFunction>, thread: Option<Tid>, waits: bool) -> String {
        let function = function.map(|function| format!(" {}", quoted(&pattern(function)))).unwrap_or_default();
        let thread = thread.map(|tid| format!(" --thread {tid}")).unwrap_or_default();
        let waits = if waits { " --off-cpu" } else { "" };
        let Pasted { pid, engine } = self;
        format!("ingraft hot -p {pid}{engine}{function}{thread}{waits} --for 10s")
    }

    /// Waits by context.
    pub(super) fn offcpu(&self) -> String {
        format!("ingraft offcpu -p {}{} --for 10s", self.pid, self.engine)
    }

    /// Waits for locks by context, with those that held them.
    pub(super) fn locks(&self) -> String {
        format!("ingraft locks -p {}{} --for 10s", self.pid, self.engine)
    }

    /// Times of the calls of a function.
    pub(super) fn latency(&self, function: &NamedFunction) -> String {
        format!("ingraft latency -p {}{} {} --for 10s", self.pid, self.engine, quoted(&pattern(function)))
    }

    /// Calls of a function for which a condition holds.
    pub(super) fn count_if(&self, function: &NamedFunction, condition: &str) -> String {
        let (function, condition) = (quoted(&pattern(function)), quoted(condition));
        format!("ingraft count -p {}{} {function} --if {condition} --for 10s", self.pid, self.engine)
    }

    /// Values of metrics of the process.
    pub(super) fn watch(&self, metrics: &[&str]) -> String {
        let metrics: Vec<String> = metrics.iter().map(|metric| quoted(metric)).collect();
        format!("ingraft watch -p {}{} {} --for 10s", self.pid, self.engine, metrics.join(" "))
    }
}

/// A pattern that matches this function: its name if that is plain, else its offset.
pub(super) fn pattern(function: &NamedFunction) -> String {
    let NamedFunction { module, function, offset } = function;
    let is_plain = !function.is_empty() && function.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '.');
    if is_plain { format!("{module}:{function}") } else { format!("{module}+{:#x}", offset.0) }
}

/// A word as a shell reads it back.
fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-.,:/@+=%".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use ingraft_model::Svma;

    use super::*;

    fn function(name: &str) -> NamedFunction {
        NamedFunction { module: "shop".to_owned(), function: name.to_owned(), offset: Svma(0x1580) }
    }

    #[test]
    fn commands_can_be_pasted() {
        let pasted = Pasted { pid: 7, engine: String::new() };
        assert_eq!(pasted.hot(Some(&function("load")), None, true), "ingraft hot -p 7 shop:load --off-cpu --for 10s");
        assert_eq!(pasted.hot(None, Some(Tid(9)), false), "ingraft hot -p 7 --thread 9 --for 10s");
        assert_eq!(pasted.latency(&function("a<b>::c")), "ingraft latency -p 7 shop+0x1580 --for 10s");
        let count = pasted.count_if(&function("f"), "$return == -1");
        assert_eq!(count, "ingraft count -p 7 shop:f --if '$return == -1' --for 10s");
        assert_eq!((quoted("it's"), quoted("")), (r"'it'\''s'".to_owned(), "''".to_owned()));
    }

    #[test]
    fn commands_name_the_engine() {
        let common = Common {
            daemons: vec!["unix:/a".to_owned(), "unix:/b c".to_owned()],
            state_dir: Some("/s".into()),
            ..Common::default()
        };
        let text = Pasted::new(7, &common, 1).watch(&["minor_faults"]);
        assert_eq!(text, "ingraft watch -p 7 --daemon 'unix:/b c' --state-dir /s minor_faults --for 10s");
    }
}
