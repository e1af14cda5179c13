//! A small ELF file built by hand: text at a fixed address, read-only data after it, and a symbol table.

use std::sync::Arc;

use iced_x86::code_asm::CodeAssembler;
use ingraft_analysis::{AnalysedImage, Function};

/// Address of the text of a test image.
pub const TEXT: u64 = 0x40_1000;
/// Address of the read-only data of a test image.
pub const RODATA: u64 = 0x50_0000;

/// `STT_FUNC`.
pub const FUNC: u8 = 2;
/// `STT_GNU_IFUNC`.
pub const IFUNC: u8 = 10;

/// Contents of the file to build.
#[derive(Default)]
pub struct TestElf {
    text: Vec<u8>,
    rodata: Vec<u8>,
    rodata_name: &'static str,
    is_rodata_writable: bool,
    symbols: Vec<(String, u64, u64, u8)>,
}

impl TestElf {
    pub fn new() -> Self {
        TestElf { rodata_name: ".rodata", ..TestElf::default() }
    }

    /// Appends code at the next multiple of 16, after `nop`s as padding, and gives it a symbol.
    pub fn function(mut self, name: &str, code: &[u8]) -> Self {
        while !self.text.len().is_multiple_of(16) {
            self.text.push(0x90);
        }
        let start = TEXT + self.text.len() as u64;
        self.text.extend_from_slice(code);
        self.symbols.push((name.to_owned(), start, code.len() as u64, FUNC));
        self
    }

    /// Assembles a function for the address at which it will lie.
    pub fn assemble(self, name: &str, write: impl FnOnce(&mut CodeAssembler)) -> Self {
        let start = TEXT + (self.text.len() as u64).next_multiple_of(16);
        let mut a = CodeAssembler::new(64).unwrap();
        write(&mut a);
        let code = a.assemble(start).unwrap();
        self.function(name, &code)
    }

    /// Appends bytes of text without a symbol.
    pub fn raw(mut self, bytes: &[u8]) -> Self {
        self.text.extend_from_slice(bytes);
        self
    }

    pub fn symbol(mut self, name: &str, at: u64, size: u64, kind: u8) -> Self {
        self.symbols.push((name.to_owned(), at, size, kind));
        self
    }

    pub fn rodata(mut self, bytes: &[u8]) -> Self {
        self.rodata.extend_from_slice(bytes);
        self
    }

    pub fn rodata_name(mut self, name: &'static str) -> Self {
        self.rodata_name = name;
        self
    }

    /// Lets the program write what is otherwise read-only data.
    pub fn writable(mut self) -> Self {
        self.is_rodata_writable = true;
        self
    }

    pub fn build(&self) -> Arc<[u8]> {
        let mut strings = vec![0u8];
        let mut symbols = vec![0u8; 24];
        for (name, at, size, kind) in &self.symbols {
            symbols.extend_from_slice(&(strings.len() as u32).to_le_bytes());
            symbols.extend_from_slice(&[1 << 4 | kind, 0, 1, 0]);
            symbols.extend_from_slice(&at.to_le_bytes());
            symbols.extend_from_slice(&size.to_le_bytes());
            strings.extend_from_slice(name.as_bytes());
            strings.push(0);
        }
        let mut names = vec![0u8];
        let mut name = |text: &str| {
            let at = names.len() as u32;
            names.extend_from_slice(text.as_bytes());
            names.push(0);
            at
        };
        let text_at = 0x1000u64;
        let rodata_at = text_at + self.text.len() as u64;
        let symbols_at = rodata_at + self.rodata.len() as u64;
        let strings_at = symbols_at + symbols.len() as u64;
        let names_at = strings_at + strings.len() as u64;
        let mut sections: Vec<[u64; 10]> = vec![[0; 10]];
        let mut section = |name: u32, kind: u64, flags: u64, addr: u64, at: u64, size: usize, link: u64| {
            sections.push([u64::from(name), kind, flags, addr, at, size as u64, link, 0, 1, 0]);
        };
        section(name(".text"), 1, 6, TEXT, text_at, self.text.len(), 0);
        section(name(self.rodata_name), 1, 2, RODATA, rodata_at, self.rodata.len(), 0);
        section(name(".symtab"), 2, 0, 0, symbols_at, symbols.len(), 4);
        section(name(".strtab"), 3, 0, 0, strings_at, strings.len(), 0);
        section(name(".shstrtab"), 3, 0, 0, names_at, 64, 0);
        names.resize(64, 0);
        let sections_at = names_at + 64;

        let mut out = Vec::new();
        out.extend_from_slice(b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0");
        out.extend_from_slice(&[2, 0, 62, 0, 1, 0, 0, 0]);
        for word in [TEXT, 64, sections_at] {
            out.extend_from_slice(&word.to_le_bytes());
        }
        out.extend_from_slice(&0u32.to_le_bytes());
        for half in [64u16, 56, 2, 64, 6, 5] {
            out.extend_from_slice(&half.to_le_bytes());
        }
        let data_flags = if self.is_rodata_writable { 6 } else { 4 };
        for (flags, at, addr, size) in
            [(5u32, text_at, TEXT, self.text.len()), (data_flags, rodata_at, RODATA, self.rodata.len())]
        {
            out.extend_from_slice(&1u32.to_le_bytes());
            out.extend_from_slice(&flags.to_le_bytes());
            for word in [at, addr, addr, size as u64, size as u64, 0x1000] {
                out.extend_from_slice(&word.to_le_bytes());
            }
        }
        out.resize(text_at as usize, 0);
        for part in [&self.text, &self.rodata, &symbols, &strings, &names] {
            out.extend_from_slice(part);
        }
        for s in sections {
            out.extend_from_slice(&(s[0] as u32).to_le_bytes());
            out.extend_from_slice(&(s[1] as u32).to_le_bytes());
            for word in &s[2..6] {
                out.extend_from_slice(&word.to_le_bytes());
            }
            out.extend_from_slice(&(s[6] as u32).to_le_bytes());
            out.extend_from_slice(&(s[7] as u32).to_le_bytes());
            for word in &s[8..] {
                out.extend_from_slice(&word.to_le_bytes());
            }
        }
        out.into()
    }

    pub fn image(&self) -> AnalysedImage {
        AnalysedImage::parse(self.build()).unwrap()
    }
}

/// The function with a name.
pub fn find<'a>(image: &'a AnalysedImage, name: &str) -> &'a Function {
    image
        .functions()
        .iter()
        .find(|f| f.names().iter().any(|n| n.mangled() == name))
        .unwrap_or_else(|| panic!("no {name}"))
}
