//! Variables of a target by address, which give names to keys that are addresses.

use ingraft_analysis::DataSymbol;
use ingraft_mdl::ProgramFacts;
use ingraft_model::{Avma, AvmaRange};

use crate::program::modules::Modules;

/// Longest name that is reported, in bytes.
const NAME_MAX: usize = 256;

/// The variables of the analysed modules, by address.
#[derive(Debug, Default)]
pub struct Symbols(Vec<(AvmaRange, String)>);

impl Symbols {
    /// Lists the variables of all modules that were analysed.
    pub fn of(modules: &Modules) -> Self {
        let mut all: Vec<(AvmaRange, bool, String)> = Vec::new();
        for (_, file, module) in modules.loaded().filter(|(_, file, _)| file.is_mapped) {
            let elf = module.image.elf();
            DataSymbol::each(elf, file.debug(modules.pid(), elf), &mut |name, symbol| {
                if symbol.per_thread || name.len() > NAME_MAX {
                    return;
                }
                let place = match &symbol.file {
                    Some(source) if file.is_program => Some(source),
                    _ => Some(&file.name).filter(|_| !file.is_program),
                };
                let text = place.map_or_else(|| name.to_owned(), |place| format!("{place}:{name}"));
                let at = symbol.at.to_avma(module.bias);
                let end = Avma(at.0.saturating_add(symbol.size.max(1)));
                all.push((at..end, symbol.local, text));
            });
        }
        // of several names of one address, a global one comes first and is kept
        all.sort_by(|a, b| (a.0.start, a.1, &a.2).cmp(&(b.0.start, b.1, &b.2)));
        all.dedup_by_key(|(range, ..)| range.start);
        Symbols(all.into_iter().map(|(range, _, name)| (range, name)).collect())
    }

    /// The variable that contains an address, with the distance from its beginning.
    pub fn name(&self, at: u64) -> Option<String> {
        let before = self.0.partition_point(|(range, _)| range.start.0 <= at).checked_sub(1)?;
        let (range, name) = self.0.get(before)?;
        match at - range.start.0 {
            0 => Some(name.clone()),
            offset if at < range.end.0 => Some(format!("{name}+{offset:#x}")),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_called_by_its_variable() {
        let symbols =
            Symbols(vec![(Avma(0x100)..Avma(0x140), "pool".to_owned()), (Avma(0x200)..Avma(0x201), "lock".to_owned())]);
        let names: Vec<_> = [0xff, 0x100, 0x13f, 0x140, 0x200, 0x201].map(|at| symbols.name(at)).into();
        let some = |name: &str| Some(name.to_owned());
        assert_eq!(names, [None, some("pool"), some("pool+0x3f"), None, some("lock"), None]);
    }
}
