//! Debugging information of compilers about arguments and variables, and damaged information.

use std::sync::Arc;

use ingraft_analysis::{AnalysedImage, DataSymbol, DebugInfo, DebugSections, Elf, MemberPath, TypeError};
use ingraft_model::{IntegerWidth, Scalar, Svma};
use proptest::prelude::*;

use crate::system::compile;

const C: &str = r#"
#include <stdint.h>
struct later;
struct pair { long a, b; };
struct big { long a[4]; };
struct list { struct list *next; union { short half; char letter; }; struct later *hidden; unsigned bits : 5; const volatile int *to; };
enum small { A, B } __attribute__((packed));
typedef struct list *list_t;
#define KEPT __attribute__((noipa, used))
KEPT int plain(list_t l, struct list *m) { return l->half + m->half; }
KEPT int floats(double x, struct list *l, float y, int n) { return (int)(x + y) + l->half + n; }
KEPT struct pair *returns(struct pair *p) { return p + 1; }
KEPT struct big structure(struct list *l) { return (struct big){{l->half}}; }
KEPT int value(struct pair p, struct list *l) { return (int)p.a + l->half; }
KEPT int wide(__int128 x, struct list *l) { return (int)x + l->half; }
KEPT int many(int a, int b, int c, int d, int e, int f, struct list *l) { return a + b + c + d + e + f + l->half; }
KEPT int many_floats(double x, int a, int b, int c, int d, int e, int f, struct list *l) { return (int)x + a + b + c + d + e + f + l->half; }
struct later { uint8_t first; struct pair pairs; enum small kind; };
uint16_t counter = 3;
long double precise = 1;
struct list one = {0};
static int8_t hidden_one = 1;
int main(void) { __asm__ volatile("" : : "m"(hidden_one)); return plain(&one, &one) + counter + (int)precise; }
"#;

const CPP: &str = r#"
struct Base { virtual ~Base() {} long weight = 1; };
struct Other { int extra = 2; };
struct Derived : Base, Other { short own = 3; static int shared; int get(int n); };
int Derived::shared = 4;
__attribute__((noipa, used)) int Derived::get(int n) { return n + own; }
namespace space { unsigned char inside = 5; }
__attribute__((noipa, used)) int by_reference(const Derived &d) { return d.own; }
int main() { Derived d; return d.get(1) + by_reference(d) + space::inside + Derived::shared; }
"#;

fn scalar(bytes: u64, signed: bool) -> Scalar {
    Scalar { width: IntegerWidth::of(bytes).expect("a width"), signed }
}

fn reach(pointers: &[i64], offset: i64, bytes: u64, signed: bool) -> Result<MemberPath, TypeError> {
    Ok(MemberPath { pointers: pointers.to_vec(), offset, scalar: scalar(bytes, signed) })
}

struct Compiled {
    image: AnalysedImage,
}

impl Compiled {
    fn new(source: &str, compiler: &str, arguments: &[&str]) -> Option<Compiled> {
        let (_dir, program) = compile(source, compiler, arguments)?;
        let bytes: Arc<[u8]> = std::fs::read(program).expect("the program").into();
        Some(Compiled { image: AnalysedImage::parse(bytes).expect("an image") })
    }

    fn argument(&self, function: &str, n: u8, members: &str) -> Result<MemberPath, TypeError> {
        let of = |f: &&ingraft_analysis::Function| f.spellings().any(|name| name == function);
        let at = self.image.functions().iter().find(of).unwrap_or_else(|| panic!("no {function}")).start();
        let sections = DebugSections::of(self.image.elf())?;
        let info = DebugInfo::of(&sections)?;
        info.reach_in_argument(at, n, &members.split('.').collect::<Vec<_>>())
    }

    fn variable(&self, name: &str, members: &[&str]) -> Result<MemberPath, TypeError> {
        let symbols = DataSymbol::named(self.image.elf(), None, name);
        let sections = DebugSections::of(self.image.elf())?;
        DebugInfo::of(&sections)?.reach_in_variable(symbols[0].at, symbols[0].per_thread, members)
    }
}

#[test]
fn arguments_and_variables_of_c() {
    for version in ["-gdwarf-5", "-gdwarf-4", "-gdwarf-3"] {
        let Some(c) = Compiled::new(C, "gcc", &["-O2", version]) else { return };
        assert_eq!(c.argument("plain", 0, "half"), reach(&[], 8, 2, true), "{version}");
        assert_eq!(c.argument("plain", 1, "next.next.letter"), reach(&[0, 0], 8, 1, true));
        assert_eq!(c.argument("plain", 0, "hidden.pairs.b"), reach(&[16], 16, 8, true));
        assert_eq!(c.argument("plain", 0, "hidden.kind"), reach(&[16], 24, 1, false));
        assert_eq!(c.argument("plain", 0, "to"), reach(&[], 32, 8, false));
        // arguments are counted as the calling convention counts integers
        assert_eq!(c.argument("floats", 0, "half"), reach(&[], 8, 2, true));
        assert_eq!(c.argument("many", 6, "half"), reach(&[], 8, 2, true));
        let misplaced = |found| matches!(found, Err(TypeError::Misplaced { .. }));
        assert!(misplaced(c.argument("many_floats", 6, "half")));
        assert!(misplaced(c.argument("structure", 0, "half")));
        assert!(misplaced(c.argument("value", 0, "half")));
        assert!(misplaced(c.argument("wide", 0, "half")));
        assert!(matches!(c.argument("plain", 2, "half"), Err(TypeError::NotDescribed { .. })));
        assert!(matches!(c.argument("plain", 0, "bits"), Err(TypeError::BitField { .. })));
        assert!(matches!(c.argument("plain", 0, "half.x"), Err(TypeError::NoStructure { .. })));
        assert!(matches!(c.argument("floats", 1, "x"), Err(TypeError::NoStructure { .. })));
        match c.argument("plain", 0, "hafl") {
            Err(TypeError::NoMember { has, .. }) => {
                assert_eq!(has, ["next", "half", "letter", "hidden", "bits", "to"]);
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(c.variable("counter", &[]), reach(&[], 0, 2, false));
        assert_eq!(c.variable("hidden_one", &[]), reach(&[], 0, 1, true));
        assert_eq!(c.variable("one", &["hidden", "first"]), reach(&[16], 0, 1, false));
        assert!(matches!(c.variable("precise", &[]), Err(TypeError::NoInteger { .. })));
        assert!(matches!(c.variable("one", &[]), Err(TypeError::NoInteger { .. })));
    }
    let Some(c) = Compiled::new(C, "gcc", &["-O2", "-g0"]) else { return };
    assert_eq!(c.variable("counter", &[]), Err(TypeError::NoDebugInfo));
    for format in ["-gz=zlib", "-gz=zstd"] {
        // A compiler without one of the formats is no reason to skip the other.
        let Some(c) = Compiled::new(C, "gcc", &["-O2", "-g", format]) else { continue };
        assert_eq!(c.variable("counter", &[]), reach(&[], 0, 2, false), "{format}");
        assert_eq!(c.variable("one", &["hidden", "first"]), reach(&[16], 0, 1, false), "{format}");
    }
}

#[test]
fn classes_have_the_members_of_their_bases() {
    let Some(cpp) = Compiled::new(CPP, "g++", &["-O2", "-g"]) else { return };
    assert_eq!(cpp.argument("Derived::get", 0, "own"), reach(&[], 20, 2, true));
    assert_eq!(cpp.argument("Derived::get", 0, "weight"), reach(&[], 8, 8, true));
    assert_eq!(cpp.argument("by_reference", 0, "extra"), reach(&[], 16, 4, true));
    assert!(matches!(cpp.argument("Derived::get", 0, "shared"), Err(TypeError::NoMember { .. })));
    assert_eq!(cpp.variable("space::inside", &[]), reach(&[], 0, 1, false));
    assert_eq!(cpp.variable("Derived::shared", &[]), reach(&[], 0, 4, true));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn damaged_debugging_information_is_an_answer_or_an_error(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..40),
    ) {
        static SEED: std::sync::OnceLock<Option<(Vec<u8>, Vec<usize>)>> = std::sync::OnceLock::new();
        let seed = SEED.get_or_init(|| {
            let (_dir, program) = compile(C, "gcc", &["-O2", "-g"])?;
            let bytes = std::fs::read(program).ok()?;
            // the debugging information lies after the last mapped byte
            let image = AnalysedImage::parse(bytes.clone().into()).ok()?;
            let end = image.segments().iter().map(|s| s.file_offset + s.file_size).max()?;
            let places = (end as usize..bytes.len().checked_sub(64 * 40)?).collect();
            Some((bytes, places))
        });
        let Some((bytes, places)) = seed else { return Ok(()) };
        let mut bytes = bytes.clone();
        for (place, byte) in &changes {
            bytes[*place.get(places)] = *byte;
        }
        let Ok(elf) = Elf::parse(bytes.into()) else { return Ok(()) };
        let Ok(sections) = DebugSections::of(&elf) else { return Ok(()) };
        let Ok(info) = DebugInfo::of(&sections) else { return Ok(()) };
        for name in DataSymbol::names(&elf, None) {
            for symbol in DataSymbol::named(&elf, None, &name) {
                let _ = info.reach_in_variable(symbol.at, symbol.per_thread, &[]);
                let _ = info.reach_in_variable(symbol.at, symbol.per_thread, &["hidden", "pairs", "b"]);
            }
        }
        for at in (0x1000..0x1400).step_by(16).map(Svma) {
            let _ = info.reach_in_argument(at, 0, &["hidden", "pairs", "b"]);
            let _ = info.reach_in_result(at, &["a"]);
        }
    }
}
