//! Indirect jumps that programs execute, as valgrind records them, compared with the edges of the graphs. Valgrind shares no code with this
//! crate: it translates what runs.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction};
use ingraft_analysis::{AnalysedImage, Function};
use ingraft_model::{Cfg, EdgeKind, EdgeTarget, Svma};

use crate::system::compile;

/// Jumps and calls that ran in each file: (address of the instruction, address of the target).
type Transfers = BTreeMap<String, BTreeSet<(u64, u64)>>;

/// Runs a program under callgrind and returns the transfers of control that ran. `None` if that is not possible here.
fn transfers(command: &[&str], environment: &[(&str, &str)]) -> Option<Transfers> {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    let tool = ["--tool=callgrind", "--dump-instr=yes", "--collect-jumps=yes", "--skip-plt=no", "--compress-pos=no"];
    let mut valgrind = Command::new("valgrind");
    valgrind.args(tool).arg("--compress-strings=no").arg(format!("--callgrind-out-file={}", out.display()));
    let Ok(output) = valgrind.args(command).envs(environment.iter().copied()).output() else {
        eprintln!("skipped: no valgrind");
        return None;
    };
    let Ok(text) = std::fs::read_to_string(&out) else {
        eprintln!("skipped: {command:?} cannot run under valgrind here");
        return None;
    };
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    Some(parse(&text))
}

/// The transfers in a profile of callgrind without compression ("Callgrind Format Specification").
fn parse(text: &str) -> Transfers {
    let number = |word: &str| u64::from_str_radix(word.strip_prefix("0x")?, 16).ok();
    let mut transfers = Transfers::new();
    let (mut object, mut callee, mut target) = (String::new(), None, None);
    for line in text.lines() {
        if let Some(name) = line.strip_prefix("ob=") {
            object = name.to_owned();
        } else if let Some(name) = line.strip_prefix("cob=") {
            callee = Some(name.to_owned());
        } else if let Some(rest) = line.strip_prefix("jump=").or(line.strip_prefix("jcnd=")) {
            target = rest.split_whitespace().nth(1).and_then(number);
        } else if let Some(rest) = line.strip_prefix("calls=") {
            let inside = callee.take().is_none_or(|callee| callee == object);
            target = rest.split_whitespace().nth(1).and_then(number).filter(|_| inside);
        } else if let Some(from) = line.split_whitespace().next().and_then(number) {
            let of = transfers.entry(object.clone()).or_default();
            of.extend(target.take().map(|to| (from, to)));
        }
    }
    transfers
}

/// Numbers of what was compared.
#[derive(Clone, Copy, Debug, Default)]
struct Compared {
    /// Indirect jumps in functions whose ways in are proven.
    jumps: usize,
    /// Pairs of such a jump and an address in its function to which it led.
    targets: usize,
    /// Transfers into the middle of functions whose ways in are proven, from elsewhere.
    ways_in: usize,
}

/// Checks the jumps and calls of one file that ran.
fn check(path: &Path, ran: &BTreeSet<(u64, u64)>) -> Compared {
    let image = AnalysedImage::parse(std::fs::read(path).unwrap().into()).unwrap();
    let mut graphs: BTreeMap<u64, Cfg> = BTreeMap::new();
    let (mut jumps, mut compared, mut wrong) = (BTreeSet::new(), Compared::default(), Vec::new());
    for &(from, to) in ran {
        let bytes = (1..=15).rev().find_map(|n| image.bytes_at(Svma(from), n));
        let Some(bytes) = bytes else { continue };
        let i: Instruction = Decoder::with_ip(64, bytes, from, DecoderOptions::NONE).decode();
        let function = image.function_around_address(Svma(from));
        let entered = image.function_around_address(Svma(to)).filter(|entered| entered.contains(Svma(to)));
        let is_left = |entered: &&Function| function.is_none_or(|function| function.start() != entered.start());
        if let Some(entered) = entered.filter(is_left).filter(|entered| entered.start().0 != to)
            && i.flow_control() != FlowControl::Return
        {
            let cfg = graphs.entry(entered.start().0).or_insert_with(|| image.cfg(entered));
            if cfg.ways_in_proven.is_ok() {
                compared.ways_in += 1;
                if !cfg.ways_in.iter().any(|way| way.at.0 == to) {
                    wrong.push(format!("{}: no way in at {to:#x}, from {from:#x}", entered.display_name()));
                }
            }
        }
        let Some(function) = function.filter(|_| i.flow_control() == FlowControl::IndirectBranch) else { continue };
        let cfg = graphs.entry(function.start().0).or_insert_with(|| image.cfg(function));
        if cfg.ways_in_proven.is_err() {
            continue;
        }
        let block = cfg
            .blocks
            .entries()
            .find(|(_, block)| block.range.end.0 == i.next_ip() && block.range.contains(&Svma(from)));
        let Some((block, _)) = block else {
            wrong.push(format!("{}: the jump at {from:#x} ends no block", function.display_name()));
            continue;
        };
        let inside = function.contains(Svma(to));
        let leads = cfg.edges_from(block).any(|(_, edge)| match edge.to {
            EdgeTarget::Block(to_block) => cfg.blocks.get(to_block).is_some_and(|block| block.range.start.0 == to),
            EdgeTarget::Outside(at) => at.0 == to,
            // A function may call itself by its first byte.
            EdgeTarget::Dynamic => edge.kind == EdgeKind::TailJump && (!inside || to == function.start().0),
        });
        jumps.insert(from);
        compared.targets += usize::from(inside);
        if !leads {
            wrong.push(format!("{}: no edge from the jump at {from:#x} to {to:#x}", function.display_name()));
        }
    }
    compared.jumps = jumps.len();
    assert!(wrong.is_empty(), "{}: {} of {compared:?}: {wrong:#?}", path.display(), wrong.len());
    compared
}

/// Compares all files of a run. Returns how much was compared in each.
fn compare(what: &str, transfers: &Transfers) -> BTreeMap<String, Compared> {
    let files = transfers.iter().filter(|(path, _)| Path::new(path).is_file());
    let counts: BTreeMap<_, _> = files.map(|(path, ran)| (path.clone(), check(Path::new(path), ran))).collect();
    println!("{what}: {counts:?}");
    counts
}

/// Profiles of callgrind that `RECORDED` names, separated by spaces. The options are those of [`transfers`].
#[test]
#[ignore = "for profiles of programs that are not part of the tests"]
fn recorded_jumps_are_edges() {
    let mut all = Transfers::new();
    for profile in std::env::var("RECORDED").expect("RECORDED names profiles").split_whitespace() {
        for (path, ran) in parse(&std::fs::read_to_string(profile).unwrap()) {
            all.entry(path).or_default().extend(ran);
        }
    }
    let counts = compare("recorded", &all);
    let sum = |of: fn(&Compared) -> usize| counts.values().map(of).sum::<usize>();
    let (jumps, targets, ways_in) = (sum(|c| c.jumps), sum(|c| c.targets), sum(|c| c.ways_in));
    println!("{} files: {jumps} jumps, {targets} targets, {ways_in} ways in", counts.len());
}

const PYTHON_PROGRAM: &str = r#"
import json, re
class A:
    def __init__(self, n): self.n = n
    def __add__(self, o): return A(self.n + o.n)
def gen(n):
    x = 0
    while x < n:
        y = yield x
        x += 1 if y is None else y
def f(*a, k=1, **kw):
    try: return sum(a) * k / len(kw)
    except ZeroDivisionError as e: return str(e)
    finally: pass
async def co():
    async def g():
        for i in range(3): yield i
    return [x async for x in g()]
r = []
for i in range(40):
    r += [(A(i) + A(2)).n, f(i, 2, k=3, z=1), f(i), *gen(5)]
    d = {**{'a': i}, 'b': [i, *r[:3]]}
    match d:
        case {'a': 0}: r.append('zero')
        case {'a': x, 'b': [y, *z]}: r.append(x)
    a, *b = r
    del a
    r.append(json.dumps(d) + re.sub(r'\d+', lambda m: str(int(m[0]) + 1), 'a1b22c'))
    r.append(f"{i!r:>5}{ {q for q in range(3)} }{ {q: -q for q in range(3)} }")
try: co().send(None)
except StopIteration as e: r.append(e.value)
assert len(r) == 441, len(r)
"#;

#[test]
fn jumps_of_python_are_edges() {
    if !Path::new("/usr/bin/python3.11").exists() {
        eprintln!("skipped: no /usr/bin/python3.11");
        return;
    }
    let Some(ran) = transfers(&["/usr/bin/python3.11", "-S", "-c", PYTHON_PROGRAM], &[]) else { return };
    let counts = compare("python3.11", &ran);
    // The interpreter's loop alone has more pairs of opcodes than that.
    assert!(counts["/usr/bin/python3.11"].targets > 500, "{counts:?}");
}

#[test]
fn jumps_of_perl_and_sqlite_are_edges() {
    let perl = "my %h; for (1..60) { $h{$_ % 7} .= chr($_ + 40); $s .= sprintf('%05d %x %s', $_, $_, lc $h{3}) } \
                $s =~ s/(\\d+)\\s*[a-f]{1,2}/<$1>/g; print length join ',', sort { $a <=> $b } map { ord } split //, $s";
    let sql = "create table t(a integer primary key, b text, c real); \
               with recursive n(i) as (select 1 union all select i + 1 from n where i < 200) \
               insert into t select i, 'text' || (i % 13), i / 7.0 from n; create index u on t(b, c); \
               select b, count(*), sum(c), max(a) from t where b > 'text2' group by b order by 2 desc, 1; \
               select upper(substr(b, 2)), printf('%08.3f|%d', c, a) from t where b like '%1%' and c between 3 and 20;";
    for command in [vec!["/usr/bin/perl", "-e", perl], vec!["/usr/bin/sqlite3", ":memory:", sql]] {
        if !Path::new(command[0]).exists() {
            eprintln!("skipped: no {}", command[0]);
            continue;
        }
        let Some(ran) = transfers(&command, &[]) else { return };
        let counts = compare(command[0], &ran);
        assert!(counts.values().map(|c| c.targets).sum::<usize>() > 100, "{counts:?}");
    }
}

const STRINGS: &str = r#"
    #include <string.h>
    #include <strings.h>
    #include <stdio.h>
    int main(void) {
        static char a[4096], b[4096];
        long sum = 0;
        for (int i = 0; i < 48; i++) for (int j = 0; j < 48; j++) for (int n = 0; n < 140; n += 1 + n / 9) {
            memset(a, 0, sizeof a);
            memset(b, 0, sizeof b);
            memset(a + i, 'x', n);
            memset(b + j, i & 1 ? 'x' : 'X', n);
            if (n > 2) b[j + n - 1 - (i * j) % (n - 1)] ^= j & 2;
            sum += strcmp(a + i, b + j) > 0;
            sum += strncmp(a + i, b + j, n / 2 + j) > 0;
            sum += strcasecmp(a + i, b + j) > 0;
            sum += strncasecmp(a + i, b + j, n + i - 20) > 0;
            sum += strspn(a + i, "abxX") + strcspn(b + j, "Y") + (strpbrk(a + i, "qx") != 0);
            strncpy(a + 2000 + i, b + j, n / 3 + 2 * i);
            memmove(a + 2500 + i, b + j, n);
            sum += a[2000 + i] + memcmp(a + 2500 + i, b + j, n) + (strstr(a + i, "xxX") != 0);
        }
        printf("%ld\n", sum);
        return 0;
    }
"#;

/// The string functions of the C library for processors without AVX jump to places that they compute from the alignment of their arguments.
#[test]
fn jumps_of_string_functions_are_edges() {
    let Some((_dir, program)) = compile(STRINGS, "gcc", &["-O1", "-fno-builtin"]) else { return };
    let without = |features: &str| {
        let all: Vec<String> = features.split(' ').map(|feature| format!("-{feature}")).collect();
        format!("glibc.cpu.hwcaps={}", all.join(","))
    };
    let avx = "AVX2_Usable AVX2 AVX AVX_Fast_Unaligned_Load ERMS FSRM";
    for features in [avx.to_owned(), format!("{avx} SSE4_2"), format!("{avx} SSE4_2 SSE4_1 SSSE3")] {
        let tunables = without(&features);
        let Some(ran) = transfers(&[program.to_str().unwrap()], &[("GLIBC_TUNABLES", &tunables)]) else { return };
        compare(&features, &ran);
    }
}
