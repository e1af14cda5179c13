//! Functions, variables, stubs and slots of an image by their address or name.

use iced_x86::{Code, Instruction, Mnemonic};
use ingraft_model::Svma;

use crate::file::{relocs, symbols};
use crate::functions::function::Function;
use crate::image::AnalysedImage;
use crate::text::decode::{self, DecodeCursor};

/// Largest number of bytes of padding between two functions.
const PADDING_MAX: usize = 64;

impl AnalysedImage {
    /// Address of a variable that the image exports under this name.
    pub fn variable(&self, name: &str) -> Option<Svma> {
        symbols::variable(&self.elf, name).map(Svma)
    }

    /// The function whose first byte is at an address.
    pub fn function_at(&self, start: Svma) -> Option<&Function> {
        let index = self.found.functions.binary_search_by_key(&start.0, |f| f.start).ok()?;
        self.found.functions.get(index)
    }

    /// The function whose head contains an address; if several do, the innermost.
    pub fn function_containing(&self, at: Svma) -> Option<&Function> {
        let after = self.found.functions.partition_point(|f| f.start <= at.0);
        self.found.functions[..after].last().filter(|f| f.range().contains(&at))
    }

    /// The function whose part contains an address or, if there is none, whose head does.
    pub(crate) fn function_around(&self, at: u64) -> Option<&Function> {
        let after = self.parts.partition_point(|(range, _)| range.start <= at);
        let part = self.parts[..after].last().filter(|(range, _)| range.contains(&at));
        part.map(|(_, i)| &self.found.functions[*i]).or_else(|| self.function_containing(Svma(at)))
    }

    /// The function whose part contains an address or, if there is none, the innermost one whose head does.
    pub fn function_around_address(&self, at: Svma) -> Option<&Function> {
        self.function_around(at.0)
    }

    /// The function in which control is that arrives at an address: the one around it or, if the address lies in padding, the next one.
    /// If a part of a function ends in a call that never returns, compilers let it jump to the end of the head, where padding begins.
    pub fn function_reached_at(&self, at: Svma) -> Option<&Function> {
        self.function_around(at.0).or_else(|| {
            let next = self.found.functions.get(self.found.functions.partition_point(|f| f.start <= at.0))?;
            let between = self.elf.data_at(at.0, next.start - at.0).filter(|bytes| bytes.len() <= PADDING_MAX)?;
            let mut cursor = DecodeCursor::new(between, at.0);
            let mut end = at.0;
            let padding = |i: &Instruction| decode::is_nop(i) || i.mnemonic() == Mnemonic::Int3;
            let is_padding = std::iter::from_fn(|| cursor.next()).inspect(|i| end = i.next_ip()).all(|i| padding(&i));
            (is_padding && end == next.start).then_some(next)
        })
    }

    /// The call instruction of a function from which control returns to an address; `None` if no call ends there.
    pub fn call_before(&self, function: &Function, returns_to: Svma) -> Option<Svma> {
        let before = Svma(returns_to.0.checked_sub(1)?);
        let blocks = self.blocks(function);
        let start = blocks.iter().find(|block| block.range.contains(&before))?.range.start.0;
        let mut cursor = DecodeCursor::new(self.elf.data_from(start)?, start);
        let last = std::iter::from_fn(|| cursor.next()).find(|i| i.next_ip() >= returns_to.0)?;
        let is_call = last.next_ip() == returns_to.0 && (last.is_call_near() || last.is_call_near_indirect());
        is_call.then(|| Svma(last.ip()))
    }

    /// Whether an address lies in the linker's stubs (`.plt`).
    pub fn is_stub(&self, at: Svma) -> bool {
        self.elf.text_index(at.0).is_some_and(|region| self.elf.text[region].stubs)
    }

    /// Whether an address lies in text of the file.
    pub fn is_text(&self, at: Svma) -> bool {
        self.elf.text_index(at.0).is_some()
    }

    /// The slot that a stub of the linker jumps through.
    pub fn stub_slot(&self, stub: Svma) -> Option<Svma> {
        if !self.is_stub(stub) {
            return None;
        }
        let at = stub.0 + if self.elf.begins_with_endbr(stub.0) { 4 } else { 0 };
        let jump = decode::one(self.elf.data_from(at)?, at)?;
        let through_memory = jump.code() == Code::Jmp_rm64 && jump.is_ip_rel_memory_operand();
        through_memory.then(|| Svma(jump.ip_rel_memory_address()))
    }

    /// The name that the loader looks up to fill a slot of the global offset table.
    pub fn import_at(&self, slot: Svma) -> Option<&str> {
        let imports = self.imports.get_or_init(|| relocs::imports(&self.elf));
        let index = imports.binary_search_by_key(&slot.0, |import| import.0).ok()?;
        self.elf.dynamic_name(imports[index].1)
    }

    /// Whether the loader looks up one of these names for this file.
    pub fn imports_any(&self, names: &[&str]) -> bool {
        let imports = self.imports.get_or_init(|| relocs::imports(&self.elf));
        imports.iter().any(|import| self.elf.dynamic_name(import.1).is_some_and(|name| names.contains(&name)))
    }

    /// A slot of this file in which the loader puts the choice of a resolver (IFUNC), if there is one.
    pub fn chosen_by(&self, resolver: Svma) -> Option<Svma> {
        relocs::chosen_by(&self.elf, resolver.0).map(Svma)
    }
}
