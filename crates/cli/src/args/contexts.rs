//! Arguments of calling contexts: those of `ingraft profile contexts`, and of its views `heap`, `locks` and `offcpu`.

use std::num::NonZeroUsize;

use clap::{Args, ValueEnum};
use ingraft_api::{ContextMetric, ContextSum, ContextsOptions};

use super::{FollowMode, Measure, TargetArgs};
use crate::exit::Failure;

/// Default of `--min`, in percent.
const MIN: f64 = 0.5;

/// A value that contexts add up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum MetricName {
    // Number of calls, which contexts always have. (No documentation comments here: they would make a page of the --help.)
    Calls,
    // Time.
    Time,
    // Processor time.
    Cpu,
    // Bytes asked of the allocation functions.
    Bytes,
    // Bytes asked of these functions and not freed yet.
    Live,
    // Blocks allocated and not freed yet.
    Blocks,
    // Time in functions that wait.
    Wait,
    // Time in functions that wait for locks.
    Locks,
    // Time, from looks at the contexts of threads.
    Looks,
    // Instructions that are executed.
    Instructions,
    // Memory operands that these read.
    Reads,
    // Memory operands that these write.
    Writes,
}

impl MetricName {
    /// The metric; `None` for the calls.
    pub(crate) fn metric(self) -> Option<ContextMetric> {
        match self {
            MetricName::Calls => None,
            MetricName::Time => Some(ContextMetric::WallTime),
            MetricName::Cpu => Some(ContextMetric::CpuTime),
            MetricName::Bytes => Some(ContextMetric::AllocatedBytes),
            MetricName::Live => Some(ContextMetric::LiveBytes),
            MetricName::Blocks => Some(ContextMetric::LiveBlocks),
            MetricName::Wait => Some(ContextMetric::WaitTime),
            MetricName::Locks => Some(ContextMetric::LockTime),
            MetricName::Looks => Some(ContextMetric::Looks),
            MetricName::Instructions => Some(ContextMetric::Instructions),
            MetricName::Reads => Some(ContextMetric::Reads),
            MetricName::Writes => Some(ContextMetric::Writes),
        }
    }

    /// The name of the metric in a profile, or of the calls.
    pub(crate) fn in_profile(self) -> &'static str {
        self.metric().map_or("calls", ContextMetric::name)
    }

    /// The word for the metric with a name in a profile; that name if no word means it.
    pub(crate) fn word_of(name: &str) -> String {
        let is_it = |word: &&Self| word.in_profile() == name;
        let word = Self::value_variants().iter().find(is_it).and_then(Self::to_possible_value);
        word.map_or_else(|| name.to_owned(), |word| word.get_name().to_owned())
    }
}

/// Contexts of recursive calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum RecursionMode {
    // They lead back to the context of the first call. (No documentation comments here: they would make a page of the --help.)
    Fold,
    // Each has a context of its own.
    Full,
}

/// Contexts that are told apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ContextParts {
    // Calls from different places of a function. (No documentation comments here: they would make a page of the --help.)
    Site,
    // Calls of different functions.
    Function,
}

/// Flags of trees of contexts.
#[derive(Clone, Copy, Debug, Default, Args)]
pub(crate) struct TreeArgs {
    /// Tell contexts apart by call site, or only by function [default: site]
    #[arg(long, value_enum, value_name = "PART", help_heading = "Contexts")]
    pub(crate) by: Option<ContextParts>,

    /// Print for each function where its calls come from: the tree of its callers
    #[arg(long, help_heading = "Contexts")]
    pub(crate) bottom_up: bool,

    /// Hide contexts that have, with all below them, a smaller part of the whole than this, in percent, by each value that is shown [default: 0.5]
    #[arg(long, value_name = "PERCENT", value_parser = part, help_heading = "Contexts")]
    pub(crate) min: Option<f64>,

    /// Print also the shape of the tree: its height, its degree, and its call sites
    #[arg(long, help_heading = "Contexts")]
    pub(crate) stats: bool,
}

impl TreeArgs {
    /// Whether contexts are told apart by function only.
    pub(crate) fn by_function(&self) -> bool {
        self.by == Some(ContextParts::Function)
    }

    /// The part of the whole below which contexts are hidden, in percent.
    pub(crate) fn least(&self) -> f64 {
        self.min.unwrap_or(MIN)
    }

    /// The first of the flags that was given.
    pub(crate) fn given(&self) -> Option<&'static str> {
        self.by.map(|_| "--by").or_else(|| self.of_trees_alone())
    }

    /// The first of the flags that was given and that only a tree has.
    pub(crate) fn of_trees_alone(&self) -> Option<&'static str> {
        let flags = [("--bottom-up", self.bottom_up), ("--min", self.min.is_some()), ("--stats", self.stats)];
        flags.into_iter().find(|(_, given)| *given).map(|(flag, _)| flag)
    }
}

/// Flags of calling contexts.
#[derive(Clone, Copy, Debug, Default, Args)]
pub(crate) struct ContextArgs {
    /// Let recursive calls lead back to the context of the first call of their function, or have contexts of their own [default: fold]
    #[arg(long, value_enum, value_name = "HOW", help_heading = "Contexts")]
    pub(crate) recursion: Option<RecursionMode>,

    #[command(flatten)]
    pub(crate) tree: TreeArgs,

    /// Print at most so many contexts, those with the largest values
    #[arg(long, value_name = "N", help_heading = "Contexts")]
    pub(crate) top: Option<NonZeroUsize>,
}

impl ContextArgs {
    /// Whether each recursive call has a context of its own.
    pub(crate) fn full(&self) -> bool {
        self.recursion == Some(RecursionMode::Full)
    }

    /// The first of the flags that was given.
    pub(crate) fn given(&self) -> Option<&'static str> {
        let own = [("--recursion", self.recursion.is_some()), ("--top", self.top.is_some())];
        self.tree.given().or_else(|| own.into_iter().find(|(_, given)| *given).map(|(flag, _)| flag))
    }
}

/// Options with the metrics of `--metric`, each once, without the calls, an event and sums; fails if there are too many.
pub(super) fn options(
    names: &[MetricName],
    (event, sums): (Option<&str>, &[ContextSum]),
    full: bool,
) -> Result<ContextsOptions, Failure> {
    let mut metrics: Vec<ContextMetric> = Vec::new();
    for metric in names.iter().filter_map(|name| name.metric()) {
        if !metrics.contains(&metric) {
            metrics.push(metric);
        }
    }
    if ContextMetric::exclude_each_other(&metrics) {
        let what = "time is told by clocks or by looks, not by both";
        return Err(Failure::usage(what, "leave out time or looks of --metric"));
    }
    check_event(event)?;
    let mut names: Vec<&str> = event.into_iter().chain(sums.iter().map(|sum| &*sum.name)).collect();
    names.sort_unstable();
    if let Some([name, _]) = names.windows(2).find(|two| two[0] == two[1]) {
        let what = format!("two values have the name `{name}`");
        return Err(Failure::usage(what, "name sums: --sum NAME=FUNCTION:EXPR"));
    }
    let number = metrics.len() + names.len();
    let (event, sums) = (event.map(Into::into), sums.to_vec());
    let options = ContextsOptions { metrics, full, event, sums, ..ContextsOptions::default() };
    if options.mixes_executed() {
        let what = "instructions, reads and writes come from paths, which go with nothing else";
        let hint = "leave out other metrics of --metric, --event, --sum and --recursion full, or measure them in a second command";
        return Err(Failure::usage(what, hint));
    }
    if !options.fit() {
        let what = format!("{number} metrics are more than contexts have room for");
        let most = ContextsOptions::METRICS_MAX;
        let hint =
            format!("name at most {most} with --metric, where looks count as two, --event and each --sum as one");
        return Err(Failure::usage(what, hint));
    }
    Ok(options)
}

/// Refuses an event without a name.
pub(super) fn check_event(event: Option<&str>) -> Result<(), Failure> {
    match event {
        Some(event) if event.trim().is_empty() => {
            Err(Failure::usage("an event without a name", "`ingraft metrics --events` lists events"))
        }
        _ => Ok(()),
    }
}

/// Reads a part of the whole in percent.
pub(super) fn part(text: &str) -> Result<f64, String> {
    match text.trim().trim_end_matches('%').trim_end().parse::<f64>() {
        Ok(part) if (0.0..=100.0).contains(&part) => Ok(part),
        Ok(_) => Err("not between 0 and 100".to_owned()),
        Err(_) => Err("not a number".to_owned()),
    }
}

/// `ingraft heap`, `ingraft locks` and `ingraft offcpu`.
#[derive(Debug, Args)]
#[command(mut_arg("no_remove", |arg| arg.hide(true)))]
#[command(mut_arg("follow", |arg| arg.help("Measure also children (fork; not for heap), and programs that a process starts, from when that is noticed (exec)")))]
pub(crate) struct ContextViewArgs {
    #[command(flatten)]
    pub(crate) contexts: ContextArgs,

    #[command(flatten)]
    pub(crate) measure: Measure,

    /// Functions that contexts consist of
    #[arg(value_name = "FUNCTION")]
    pub(crate) functions: Vec<String>,

    // The field follows the positional arguments, because COMMAND is the last of them.
    #[command(flatten)]
    pub(crate) target: TargetArgs,
}

impl ContextViewArgs {
    /// Refuses what contexts do not have. `has_children` tells whether fork children are measured.
    pub(super) fn check(&self, has_children: bool) -> Result<(), Failure> {
        if self.measure.no_remove {
            return Err(Failure::usage("contexts are read when the measurement is removed", "leave out --no-remove"));
        }
        if !has_children && self.measure.follow.contains(&FollowMode::Fork) {
            let hint = "leave out --follow fork, or measure a child with -p PID";
            return Err(Failure::usage("the memory of children is not told apart from that of their parent", hint));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::args::{Cli, Command};

    fn parse(words: &str) -> Result<Cli, String> {
        let cli = Cli::try_parse_from(words.split(' ')).map_err(|error| error.to_string())?;
        cli.check().map_err(|failure| failure.what).map(|()| cli)
    }

    #[test]
    fn metrics_are_named_once() {
        let of = |names: &str| {
            let cli = parse(&format!("ingraft profile contexts -p 1 --metric {names}"))?;
            let Command::Profile(args) = cli.command else { return Err("another command".to_owned()) };
            args.context_options().map(|options| options.metrics).map_err(|failure| failure.what)
        };
        assert_eq!(of("calls"), Ok(Vec::new()));
        assert_eq!(of("time,bytes,time"), Ok(vec![ContextMetric::WallTime, ContextMetric::AllocatedBytes]));
        assert_eq!(
            of("looks,cpu,bytes"),
            Ok(vec![ContextMetric::Looks, ContextMetric::CpuTime, ContextMetric::AllocatedBytes])
        );
        assert!(of("looks,cpu,bytes,wait").is_err_and(|error| error.starts_with("4 metrics are more")));
        assert_eq!(of("time,looks"), Err("time is told by clocks or by looks, not by both".to_owned()));
        assert_eq!(of("time,cpu,bytes,wait,locks"), Err("5 metrics are more than contexts have room for".to_owned()));
        assert_eq!(of("live,blocks"), Ok(vec![ContextMetric::LiveBytes, ContextMetric::LiveBlocks]));
        let executed = [ContextMetric::Instructions, ContextMetric::Writes];
        assert_eq!(of("instructions,writes"), Ok(executed.to_vec()));
        for mixed in ["reads,time", "instructions --event faults", "writes --recursion full", "reads --sum f:$return"] {
            assert!(of(mixed).is_err_and(|error| error.contains("come from paths")), "{mixed}");
        }
        assert_eq!(of("time,cpu,bytes --event faults").map(|metrics| metrics.len()), Ok(3));
        assert!(of("time,cpu,bytes,wait --event faults").is_err_and(|error| error.starts_with("5 metrics are more")));
        let sums = "time,cpu --sum a=f:$return --sum f:$arg[0]";
        assert_eq!(of(sums).map(|metrics| metrics.len()), Ok(2));
        assert!(of(&format!("{sums} --event faults")).is_err_and(|error| error.starts_with("5 metrics are more")));
        assert_eq!(of("cpu --sum f:$return --sum f:$arg[0]"), Err("two values have the name `f`".to_owned()));
        assert!(of("cpu --sum f").is_err_and(|error| error.contains("FUNCTION:EXPR")));
        assert!(of("steps").is_err_and(|error| error.contains("steps")));
    }

    #[test]
    fn parts_are_percentages() {
        assert_eq!((part("0"), part("0.5"), part("12 %"), part("100%")), (Ok(0.0), Ok(0.5), Ok(12.0), Ok(100.0)));
        assert!(part("-1").is_err() && part("101").is_err() && part("NaN").is_err() && part("few").is_err());
    }

    #[test]
    fn views_take_the_flags_of_contexts() {
        for command in ["heap", "locks", "offcpu"] {
            let cli =
                parse(&format!("ingraft {command} -p 1 --recursion full --bottom-up --top 7 f g")).expect("arguments");
            let (Command::Heap(args) | Command::Locks(args) | Command::Offcpu(args)) = cli.command else {
                panic!("another command")
            };
            assert!(args.contexts.full() && args.contexts.tree.bottom_up);
            assert_eq!((args.contexts.top.map(NonZeroUsize::get), args.functions.len()), (Some(7), 2));
            assert_eq!(parse(&format!("ingraft {command} -p 1 --follow fork")).is_err(), command == "heap");
            assert!(parse(&format!("ingraft {command} -p 1 --metric time")).is_err());
            assert_eq!(parse(&format!("ingraft {command}")).map(drop), Err("no target".to_owned()));
        }
    }

    #[test]
    fn a_metric_has_a_word() {
        assert_eq!(MetricName::word_of("lock_wait_ns"), "locks");
        assert_eq!(MetricName::word_of("calls"), "calls");
        assert_eq!(MetricName::word_of("steps"), "steps");
    }
}
