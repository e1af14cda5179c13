//! Blocks that configure: `daemon`, `process`, `visi`, `tunable_constant`. They are data, described by one table.

use super::{Parser, Read, Stop, closest};
use crate::ast::{Config, ConfigItem, ConfigKind, ConfigValue, DefinitionKind, Ident};
use crate::diagnostic::{Severity, codes};
use crate::lex::Kind;

/// Kind of the value of a key.
#[derive(Clone, Copy, PartialEq)]
enum Value {
    Text,
    Word,
    Int,
    Bool,
    /// Several strings in braces, as in the files of 1994.
    Texts,
}

/// The keys of a kind of block.
fn keys(kind: ConfigKind) -> &'static [(&'static str, Value)] {
    match kind {
        ConfigKind::Daemon => &[
            ("command", Value::Text),
            ("remoteShell", Value::Text),
            ("user", Value::Word),
            ("flavor", Value::Word),
            ("MPItype", Value::Text),
            ("host", Value::Text),
            ("dir", Value::Word),
            ("mrnet_topology", Value::Text),
        ],
        ConfigKind::Process => &[
            ("command", Value::Text),
            ("daemon", Value::Word),
            ("host", Value::Text),
            ("user", Value::Word),
            ("dir", Value::Text),
            ("autoStart", Value::Bool),
        ],
        ConfigKind::Visi => &[
            ("command", Value::Text),
            ("host", Value::Text),
            ("user", Value::Word),
            ("dir", Value::Text),
            ("force", Value::Int),
            ("limit", Value::Int),
            ("metfocus", Value::Text),
        ],
        ConfigKind::Tunables => &[],
    }
}

/// Keys that only the files of 1994 have.
const OLD_KEYS: [(&str, Value); 2] = [("name", Value::Text), ("args", Value::Texts)];

/// The tunables that Paradyn had.
const TUNABLES: [&str; 25] = [
    "costLimit",
    "minObservationTime",
    "sufficientTime",
    "PC_SyncThreshold",
    "PC_CPUThreshold",
    "PC_IOThreshold",
    "PC_IOOpThreshold",
    "PCsearchMachinesInSync",
    "EnableLoops",
    "hysteresisRange",
    "PCuseCallGraphSearch",
    "PCuseIndividualThresholds",
    "highSyncThreshold",
    "highCPUtoSyncRatioThreshold",
    "highIOthreshold",
    "diskBlockSize",
    "lockOverhead",
    "minLockSize",
    "seekBoundThreshold",
    "PCprintDataTrace",
    "PCprintTestResults",
    "PCprintSearchChanges",
    "PCprintDataCollection",
    "PCcollectInstrTimings",
    "developerMode",
];

impl Parser<'_, '_> {
    pub(super) fn config(&mut self, kind: ConfigKind) -> Read<DefinitionKind> {
        let keyword = self.bump();
        let name = if self.at_mark("{") { None } else { Some(self.name("the block's name")?) };
        let items = self.block(|p| p.config_item(kind))?;
        let word = kind.keyword();
        let old_name = items.iter().find_map(|i| match (&i.value, i.key.name.as_str()) {
            (ConfigValue::Text(value), "name") => Some(Ident { name: value.clone(), span: i.span }),
            _ => None,
        });
        if name.is_none() {
            self.old(
                keyword,
                format!("`{word}` without a name is an older spelling"),
                format!("write `{word} NAME {{ … }}`"),
            );
        }
        if kind != ConfigKind::Visi && !self.broken && !items.iter().any(|i| i.key.name == "command") {
            let message = format!("this `{word}` has no `command`");
            self.error(codes::MISSING, keyword, message).help = Some("add `command \"…\";`".to_owned());
        }
        if kind == ConfigKind::Visi {
            let message = "`visi` is accepted without effect: ingraft starts no visualisation programs";
            self.report(codes::IGNORED, Severity::Note, keyword, message);
        }
        Ok(DefinitionKind::Config(Config { kind, name: name.or(old_name), items }))
    }

    fn config_item(&mut self, kind: ConfigKind) -> Read<ConfigItem> {
        let key = self.any_word("a field")?;
        let table = keys(kind);
        let Some((_, value)) = table.iter().chain(&OLD_KEYS).find(|(k, _)| *k == key.name) else {
            let names: Vec<&str> = table.iter().map(|(k, _)| *k).collect();
            let help = closest(&key.name, &names)
                .map_or_else(|| format!("one of: {}", names.join(", ")), |w| format!("did you mean `{w}`?"));
            self.error(codes::FIELD, key.span, format!("`{}` has no field `{}`", kind.keyword(), key.name)).help =
                Some(help);
            return Err(Stop);
        };
        if OLD_KEYS.iter().any(|(k, _)| *k == key.name) {
            self.old(
                key.span,
                format!("`{}` is an older field", key.name),
                "give the name behind the keyword, arguments in `command`",
            );
        }
        let start = self.at;
        let value = match value {
            Value::Text => ConfigValue::Text(self.text("a string")?.value),
            Value::Word => match self.peek() {
                Kind::Text(_) => return self.expected_help("a word", "write it without quotes"),
                _ => ConfigValue::Word(self.any_word("a word")?.name),
            },
            Value::Int => ConfigValue::Int(self.integer()?),
            Value::Bool => ConfigValue::Bool(self.boolean()?),
            Value::Texts => {
                self.need_mark("{")?;
                let mut texts = Vec::new();
                while !self.eat_mark("}") {
                    texts.push(self.text("a string")?.value);
                    self.eat_mark(",");
                }
                ConfigValue::Texts(texts)
            }
        };
        let span = self.span_from(start);
        self.semicolon()?;
        Ok(ConfigItem { key, value, span })
    }

    pub(super) fn tunables(&mut self) -> Read<DefinitionKind> {
        let keyword = self.bump();
        let items = if self.at_mark("{") { self.block(Self::tunable)? } else { vec![self.tunable()?] };
        if items.is_empty() && !self.broken {
            self.error(codes::EXPECTED, keyword, "a `tunable_constant` without constants").help =
                Some("write `tunable_constant { \"costLimit\" 3; }`".to_owned());
        }
        Ok(DefinitionKind::Config(Config { kind: ConfigKind::Tunables, name: None, items }))
    }

    fn tunable(&mut self) -> Read<ConfigItem> {
        let name = self.text("a tunable's name")?;
        if !TUNABLES.contains(&name.value.as_str()) {
            let help = closest(&name.value, &TUNABLES).map(|w| format!("did you mean `{w}`?"));
            let message = format!("no tunable has the name `{}`; it has no effect", name.value);
            self.report(codes::IGNORED, Severity::Warning, name.span, message).help = help;
        }
        let start = self.at;
        let value = match self.peek() {
            Kind::Int(value) => ConfigValue::Int(*value),
            Kind::Fixed(value) => ConfigValue::Fixed(*value),
            Kind::Bool(value) => ConfigValue::Bool(*value),
            _ => return self.expected("a number, `true` or `false`"),
        };
        self.bump();
        let span = self.span_from(start);
        self.semicolon()?;
        Ok(ConfigItem { key: Ident { name: name.value, span: name.span }, value, span })
    }
}
