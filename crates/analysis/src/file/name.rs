//! Names of functions: as the file has them (mangled), and as people read them (demangled).

use std::sync::OnceLock;

use ingraft_model::names::abbreviated;

/// Longest name that is demangled, in bytes. Longer names are shown as they are, because to demangle them takes long, and the result is too
/// long to read.
const DEMANGLE_MAX: usize = 4096;

/// Largest depth to which the parts of a C++ name nest. Hostile names nest deeply, and threads of a pool have small stacks. A tree of maps of
/// strings in the standard library nests deeper than 64.
const NESTED_MAX: u32 = 160;

/// Visibility of a symbol to the linker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum SymbolBinding {
    /// Visible everywhere.
    Global,
    /// Visible everywhere; a global symbol of the same name takes precedence.
    Weak,
    /// Visible in its own object file only.
    Local,
}

/// The version of a dynamic symbol.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SymbolVersion {
    /// Name of the version, e.g. `GLIBC_2.2.5`.
    pub name: Box<str>,
    /// Whether new programs are linked against this version (`name@@version` instead of `name@version`).
    pub default: bool,
}

/// One name of a function.
#[derive(Clone, Debug)]
pub struct FunctionName {
    mangled: Box<str>,
    version: Option<SymbolVersion>,
    binding: SymbolBinding,
    hidden: bool,
    ifunc: bool,
    demangled: OnceLock<Option<Box<str>>>,
}

impl FunctionName {
    pub(crate) fn new(text: &str, version: Option<SymbolVersion>, binding: SymbolBinding, hidden: bool) -> Self {
        // In a shared object, .symtab writes the version into the name.
        let (mangled, version) = match (text.split_once('@'), version) {
            (Some((name, rest)), None) if !name.is_empty() => {
                let default = rest.starts_with('@');
                (name, Some(SymbolVersion { name: rest.trim_start_matches('@').into(), default }))
            }
            (_, version) => (text, version),
        };
        FunctionName { mangled: mangled.into(), version, binding, hidden, ifunc: false, demangled: OnceLock::new() }
    }

    /// The name as the file has it, without a version.
    pub fn mangled(&self) -> &str {
        &self.mangled
    }

    /// The version of the symbol.
    pub fn version(&self) -> Option<&SymbolVersion> {
        self.version.as_ref()
    }

    /// Visibility of the symbol to the linker.
    pub fn binding(&self) -> SymbolBinding {
        self.binding
    }

    /// Whether the symbol is hidden from other images although it is global.
    pub fn hidden(&self) -> bool {
        self.hidden
    }

    /// Whether the name stands for the function that a resolver chooses, not for the code at its address (`STT_GNU_IFUNC`).
    pub fn is_ifunc(&self) -> bool {
        self.ifunc
    }

    /// The name in its source language (C++ and Rust), if it is mangled.
    pub fn demangled(&self) -> Option<&str> {
        self.demangled.get_or_init(|| demangle(&self.mangled)).as_deref()
    }

    /// The name as people read it: demangled if that is possible.
    pub fn display(&self) -> &str {
        self.demangled().unwrap_or(&self.mangled)
    }

    /// The demangled name without parameter list and return type, e.g. `std::vector<int>::push_back`. `None` if the name
    /// is not mangled or has no parameter list.
    pub fn without_parameters(&self) -> Option<&str> {
        without_parameters(self.demangled()?)
    }

    /// The demangled name with and without parameter list, each without ABI tags, as the source has it: `lookup(int)` and `lookup` for
    /// `lookup[abi:cxx11](int)`. None if there are no tags.
    pub fn without_tags(&self) -> impl Iterator<Item = String> {
        [self.demangled(), self.without_parameters()].into_iter().flatten().filter_map(without_tags)
    }

    /// The demangled name with and without parameter list, each without the defaults of the standard library (see
    /// [`ingraft_model::names::abbreviated`]). None if there are none.
    pub fn abbreviated(&self) -> impl Iterator<Item = String> {
        [self.demangled(), self.without_parameters()].into_iter().flatten().filter_map(abbreviated)
    }

    /// The name with its version, as tools of the linker write it, e.g. `memcpy@@GLIBC_2.14`.
    pub fn versioned(&self) -> Option<String> {
        let version = self.version.as_ref()?;
        let at = if version.default { "@@" } else { "@" };
        Some(format!("{}{at}{}", self.mangled, version.name))
    }

    pub(crate) fn same_symbol(&self, other: &FunctionName) -> bool {
        self.mangled == other.mangled && self.version == other.version
    }

    pub(crate) fn with_ifunc(mut self, ifunc: bool) -> Self {
        self.ifunc = ifunc;
        self
    }

    /// Sort key among the names of one function; the name with the smallest key is shown.
    pub(crate) fn rank(&self) -> (bool, bool, bool, usize, usize, &str) {
        // Libraries export a weak `send` beside a strong `__send`, and nobody knows the latter.
        let local = self.binding == SymbolBinding::Local;
        let old_version = self.version.as_ref().is_some_and(|v| !v.default);
        let underscores = if self.mangled.starts_with("_Z") || self.mangled.starts_with("_R") {
            0
        } else {
            self.mangled.bytes().take_while(|&b| b == b'_').count()
        };
        (self.ifunc, local, old_version, underscores, self.mangled.len(), &self.mangled)
    }
}

/// A mangled name as people read it. `None` if the name is not mangled, or too long to demangle.
pub fn demangle(name: &str) -> Option<Box<str>> {
    if name.len() > DEMANGLE_MAX {
        return None;
    }
    // Legacy Rust names have the form of C++ names, so Rust is tried first.
    if let Ok(rust) = rustc_demangle::try_demangle(name) {
        let text = format!("{rust:#}");
        return (text.len() <= 4 * DEMANGLE_MAX).then(|| text.into());
    }
    if !name.starts_with("_Z") {
        return None;
    }
    let options = cpp_demangle::ParseOptions::default().recursion_limit(NESTED_MAX);
    let symbol = cpp_demangle::Symbol::new_with_options(name, &options).ok()?;
    let options = cpp_demangle::DemangleOptions::default().recursion_limit(NESTED_MAX);
    let mut out = BoundedText { text: String::new(), room: 4 * DEMANGLE_MAX };
    symbol.structured_demangle(&mut out, &options).ok()?;
    Some(out.text.into())
}

/// A text that refuses to grow without bound: in a hostile name, every few bytes of back references can double the output.
struct BoundedText {
    text: String,
    room: usize,
}

impl std::fmt::Write for BoundedText {
    fn write_str(&mut self, s: &str) -> std::fmt::Result {
        self.room = self.room.checked_sub(s.len()).ok_or(std::fmt::Error)?;
        self.text.push_str(s);
        Ok(())
    }
}

/// Cuts `f(int) const` to `f`, and `int f<int>(int)` to `f<int>`.
fn without_parameters(text: &str) -> Option<&str> {
    let bytes = text.as_bytes();
    // The parenthesis that opens the last group at depth 0 opens the parameter list; template arguments may hold other parentheses.
    let mut depth = 0usize;
    let mut open = None;
    for (i, &b) in bytes.iter().enumerate().rev() {
        match b {
            b')' => depth += 1,
            b'(' => {
                depth = depth.checked_sub(1)?;
                if depth == 0 {
                    open = Some(i);
                    break;
                }
            }
            _ => {}
        }
    }
    let mut name = &text[..open?];
    if name.ends_with("operator") {
        name = &text[..open? + 2];
    }
    // A return type, which only templates have, ends at the last space outside of all brackets.
    let mut depth = 0usize;
    let mut start = 0;
    for (i, b) in name.bytes().enumerate() {
        match b {
            b'<' | b'(' | b'{' | b'[' => depth += 1,
            b'>' | b')' | b'}' | b']' => depth = depth.saturating_sub(1),
            b' ' if depth == 0 && !name[..i].ends_with("operator") => start = i + 1,
            _ => {}
        }
    }
    if name.contains("operator") {
        start = 0;
    }
    let name = &name[start..];
    (!name.is_empty()).then_some(name)
}

/// Takes the ABI tags out of a name, which compilers of C++ add to functions whose result has a type with such a tag.
fn without_tags(text: &str) -> Option<String> {
    const TAG: &str = "[abi:";
    let (first, mut rest) = text.split_once(TAG)?;
    let mut out = first.to_owned();
    loop {
        let (_tag, after) = rest.split_once(']')?;
        match after.split_once(TAG) {
            Some((between, next)) => {
                out.push_str(between);
                rest = next;
            }
            None => {
                out.push_str(after);
                return Some(out);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> FunctionName {
        FunctionName::new(text, None, SymbolBinding::Global, false)
    }

    #[test]
    fn names_that_nest_deeply_are_demangled() {
        let of_map = name(
            "_ZNSt8_Rb_treeINSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEESt4pairIKS5_St3mapIS5_St6vectorISt8functionIFiRS7_RKS9_IS5_SaI\
             S5_EEEESaISH_EESt4lessIS5_ESaIS6_IS7_SJ_EEEESt10_Select1stISP_ESL_SaISP_EE14_M_lower_boundEPSt13_Rb_tree_nodeISP_EPSt18_Rb_tree\
             _node_baseSB_",
        );
        let short = of_map.abbreviated().last().expect("a short name");
        assert!(
            short.starts_with("std::_Rb_tree<std::string, std::pair<std::string const, std::map<std::string, "),
            "{short}"
        );
        assert!(short.ends_with("::_M_lower_bound"), "{short}");
        for hostile in ["P", "FPK", "N1aI", "S_I", "DpT_"] {
            let _ = demangle(&format!("_Z1f{}i", hostile.repeat(1000)));
        }
    }

    #[test]
    fn names_are_demangled() {
        for (mangled, display, short) in [
            ("main", "main", None),
            ("_ZN3foo3barEic", "foo::bar(int, char)", Some("foo::bar")),
            ("_ZNK3foo3barEv", "foo::bar() const", Some("foo::bar")),
            ("_Z3addIiET_S0_S0_", "int add<int>(int, int)", Some("add<int>")),
            ("_ZN3foo3barE", "foo::bar", None),
            ("_ZN1AclEi", "A::operator()(int)", Some("A::operator()")),
            ("_ZN4core3fmt9Formatter3pad17h0123456789abcdefE", "core::fmt::Formatter::pad", None),
            ("_RNvC6_123foo3bar", "123foo::bar", None),
            ("_Zgarbage", "_Zgarbage", None),
        ] {
            assert_eq!(name(mangled).display(), display);
            assert_eq!(name(mangled).without_parameters(), short, "{mangled}");
        }
    }

    #[test]
    fn tags_can_be_left_out() {
        for (mangled, without) in [
            ("_Z6lookupB5cxx11i", &["lookup(int)", "lookup"][..]),
            ("_ZN1AB2v15printB5cxx11Ev", &["A::print()", "A::print"]),
            ("_ZN3foo3barEic", &[]),
        ] {
            assert_eq!(
                name(mangled).without_tags().collect::<Vec<_>>(),
                without,
                "{mangled}: {}",
                name(mangled).display()
            );
        }
        assert_eq!(without_tags("f[abi:"), None);
    }

    #[test]
    fn versions_are_split_from_names() {
        let new = name("memcpy@@GLIBC_2.14");
        assert_eq!((new.mangled(), new.versioned().as_deref()), ("memcpy", Some("memcpy@@GLIBC_2.14")));
        let old = name("memcpy@GLIBC_2.2.5");
        assert_eq!(old.versioned().as_deref(), Some("memcpy@GLIBC_2.2.5"));
        assert!(new.rank() < old.rank());
    }

    #[test]
    fn hostile_names_end() {
        let mut nested = String::from("_Z1f");
        nested.push_str(&"P".repeat(4000));
        nested.push('i');
        name(&nested).display();
        let long = format!("_ZN{}E", "1a".repeat(100_000));
        assert_eq!(name(&long).display(), long);
        // Every back reference doubles the text.
        let mut bomb = String::from("_Z1fI");
        for i in 0..30 {
            bomb.push_str(&format!("St4pairIS{i}_S{i}_E"));
        }
        bomb.push_str("Evv");
        assert!(name(&bomb).display().len() <= 4 * DEMANGLE_MAX);
    }
}
