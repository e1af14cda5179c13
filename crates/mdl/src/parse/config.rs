//! Blocks that configure: `daemon`, `process`, `visi`, `tunable_constant`. They are data, described by one table.

use super::{ErrorReported, Parsed, Parser, closest};
use crate::ast::{ConfigBlock, ConfigItem, ConfigKind, ConfigValue, DefinitionKind, Ident};
use crate::diagnostic::{Severity, codes};
use crate::lex::TokenKind;

/// Kind of the value of a key.
#[derive(Clone, Copy, PartialEq)]
enum ConfigValueKind {
    Text,
    Word,
    Int,
    Bool,
    /// Several strings in braces, as in the files of 1994.
    Texts,
}

/// The keys of a kind of block.
fn keys(kind: ConfigKind) -> &'static [(&'static str, ConfigValueKind)] {
    match kind {
        ConfigKind::Daemon => &[
            ("command", ConfigValueKind::Text),
            ("remoteShell", ConfigValueKind::Text),
            ("user", ConfigValueKind::Word),
            ("flavor", ConfigValueKind::Word),
            ("MPItype", ConfigValueKind::Text),
            ("host", ConfigValueKind::Text),
            ("dir", ConfigValueKind::Word),
            ("mrnet_topology", ConfigValueKind::Text),
        ],
        ConfigKind::Process => &[
            ("command", ConfigValueKind::Text),
            ("daemon", ConfigValueKind::Word),
            ("host", ConfigValueKind::Text),
            ("user", ConfigValueKind::Word),
            ("dir", ConfigValueKind::Text),
            ("autoStart", ConfigValueKind::Bool),
        ],
        ConfigKind::Visi => &[
            ("command", ConfigValueKind::Text),
            ("host", ConfigValueKind::Text),
            ("user", ConfigValueKind::Word),
            ("dir", ConfigValueKind::Text),
            ("force", ConfigValueKind::Int),
            ("limit", ConfigValueKind::Int),
            ("metfocus", ConfigValueKind::Text),
        ],
        ConfigKind::Tunables => &[],
    }
}

/// Keys that only the files of 1994 have.
const OLD_KEYS: [(&str, ConfigValueKind); 2] = [("name", ConfigValueKind::Text), ("args", ConfigValueKind::Texts)];

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
    pub(super) fn config(&mut self, kind: ConfigKind) -> Parsed<DefinitionKind> {
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
        Ok(DefinitionKind::Config(ConfigBlock { kind, name: name.or(old_name), items }))
    }

    fn config_item(&mut self, kind: ConfigKind) -> Parsed<ConfigItem> {
        let key = self.any_word("a field")?;
        let table = keys(kind);
        let Some((_, value)) = table.iter().chain(&OLD_KEYS).find(|(k, _)| *k == key.name) else {
            let names: Vec<&str> = table.iter().map(|(k, _)| *k).collect();
            let help = closest(&key.name, &names)
                .map_or_else(|| format!("one of: {}", names.join(", ")), |w| format!("did you mean `{w}`?"));
            self.error(codes::FIELD, key.span, format!("`{}` has no field `{}`", kind.keyword(), key.name)).help =
                Some(help);
            return Err(ErrorReported);
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
            ConfigValueKind::Text => ConfigValue::Text(self.text("a string")?.value),
            ConfigValueKind::Word => match self.peek() {
                TokenKind::Text(_) => return self.expected_help("a word", "write it without quotes"),
                _ => ConfigValue::Word(self.any_word("a word")?.name),
            },
            ConfigValueKind::Int => ConfigValue::Int(self.integer()?),
            ConfigValueKind::Bool => ConfigValue::Bool(self.boolean()?),
            ConfigValueKind::Texts => {
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

    pub(super) fn tunables(&mut self) -> Parsed<DefinitionKind> {
        let keyword = self.bump();
        let items = if self.at_mark("{") { self.block(Self::tunable)? } else { vec![self.tunable()?] };
        if items.is_empty() && !self.broken {
            self.error(codes::EXPECTED, keyword, "a `tunable_constant` without constants").help =
                Some("write `tunable_constant { \"costLimit\" 3; }`".to_owned());
        }
        Ok(DefinitionKind::Config(ConfigBlock { kind: ConfigKind::Tunables, name: None, items }))
    }

    fn tunable(&mut self) -> Parsed<ConfigItem> {
        let name = self.text("a tunable's name")?;
        if !TUNABLES.contains(&name.value.as_str()) {
            let help = closest(&name.value, &TUNABLES).map(|w| format!("did you mean `{w}`?"));
            let message = format!("no tunable has the name `{}`; it has no effect", name.value);
            self.report(codes::IGNORED, Severity::Warning, name.span, message).help = help;
        }
        let start = self.at;
        let value = match self.peek() {
            TokenKind::Int(value) => ConfigValue::Int(*value),
            TokenKind::Fixed(value) => ConfigValue::Fixed(*value),
            TokenKind::Bool(value) => ConfigValue::Bool(*value),
            _ => return self.expected("a number, `true` or `false`"),
        };
        self.bump();
        let span = self.span_from(start);
        self.semicolon()?;
        Ok(ConfigItem { key: Ident { name: name.value, span: name.span }, value, span })
    }
}
