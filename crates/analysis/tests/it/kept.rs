//! Facts that compilers know about functions besides the calling convention, and code that is taken for a function.

use ingraft_analysis::AnalysedImage;
use ingraft_model::{EdgeKind, EdgeTarget, Gpr};

use crate::support::find;
use crate::system::compile;

fn image(program: &std::path::Path) -> AnalysedImage {
    AnalysedImage::parse(std::fs::read(program).expect("a program").into()).expect("an image")
}

/// An interpreter as gcc compiles it: two loads of the next address lead to one jump. Of the registers that the convention leaves to it, it does not
/// use r11.
const LOOP: &str = r#"
    __asm__(".text\n.globl run\n.type run, @function\nrun:\n"
            "mov %rdi, %rax\nmov $0x13, %esi\nxor %edx, %edx\nmov %rdi, %r8\nlea code(%rip), %r9\nlea 1(%rdi), %rcx\n"
            "mov $4, %r10d\ndiv %rsi\nlea table(%rip), %rdi\nmovzbl (%r9,%rdx), %eax\nadd $2, %edx\n"
            "mov (%rdi,%rax,8), %rsi\n1: lea -1(%rdx), %eax\njmp *%rsi\n"
            "2: sub $0x13, %r10\n3: movzbl (%r9,%rax), %eax\ninc %edx\nmov (%rdi,%rax,8), %rsi\njmp 1b\n"
            "4: sub $0x75, %rcx\njmp 3b\n"
            "5: add %r10, %rcx\nlea 0x13(%r8,%rcx), %rax\nret\n.size run, . - run\n"
            ".section .data.rel.ro, \"aw\"\n.p2align 3\ntable: .quad 2b, 4b, 5b\n"
            ".section .rodata\ncode: .byte 0, 1, 0, 2, 0\n.text\n");
    int main(void) { return 0; }
"#;

#[test]
fn callers_may_keep_what_a_computed_goto_leaves_alone() {
    let Some((_dir, program)) = compile(LOOP, "gcc", &["-O2"]) else { return };
    let image = image(&program);
    let run = find(&image, "run");
    let entry = image.entry_site(run).expect("an entry");
    assert!(!entry.scratch().contains(&Gpr(11)), "{:?}", entry.scratch());
    for block in &image.body(run).expect("a whole function").blocks {
        assert!(!block.free.scratch.contains(&Gpr(11)), "{:?}: {:?}", block.block, block.free.scratch);
    }
}

/// A function whose jump is not resolved, with jumps over code that only this jump reaches.
const UNKNOWN: &str = "
    volatile unsigned long out;
    static unsigned long f(unsigned long a, unsigned long n) {
        unsigned long sum = 0;
        for (unsigned long i = 0; i < n; i++) {
            switch (a % 6) {
            case 0: sum += n; a += 3; break;
            case 1: a = sum ^= n > i ? n : i; continue;
            case 2: sum = sum / (i > 3 ? n | 1 : 1); a = i + 2; break;
            case 3: sum *= 7; a = sum + i; break;
            case 4: sum -= 3; a += 5; break;
            default: a += i;
            }
            out = (a < n ? sum : n) - i;
        }
        return sum;
    }
    int main(int argc, char **argv) { (void)argv; out = f((unsigned long)argc, 40); return 0; }
";

#[test]
fn code_behind_an_unknown_jump_is_no_function() {
    let flags = ["-O0", "-fno-asynchronous-unwind-tables"];
    let Some((_dir, with_names)) = compile(UNKNOWN, "gcc", &flags) else { return };
    let Some((_other, without)) = compile(UNKNOWN, "gcc", &[flags[0], flags[1], "-s"]) else { return };
    let (named, stripped) = (image(&with_names), image(&without));
    let f = find(&named, "f");
    let inside = f.start().0 + 1..f.start().0 + f.size();
    let starts: Vec<u64> = stripped.functions().iter().map(|function| function.start().0).collect();
    assert!(starts.contains(&f.start().0), "{starts:x?}");
    let wrong: Vec<&u64> = starts.iter().filter(|start| inside.contains(start)).collect();
    assert!(wrong.is_empty(), "{wrong:x?} within {inside:x?}");
}

/// Functions without tables, that jump to code of their own: through addresses below the stack pointer, and while registers of the caller are on
/// the stack.
const FRAMES: &str = r#"
    __asm__(".text\n.p2align 4\nbelow:\n"
            "lea 1f(%rip), %rax\nmov %rax, -0x10(%rsp)\nlea 2f(%rip), %rax\nmov %rax, -8(%rsp)\n"
            "and $1, %edi\njmp *-0x10(%rsp,%rdi,8)\n.p2align 4\n1: mov $1, %eax\nret\n.p2align 4\n2: mov $2, %eax\nret\n"
            ".p2align 4\npushed:\npush %rbx\nlea 3f(%rip), %rbx\nlea (%rbx,%rdi), %rbx\njmp *%rbx\n"
            ".p2align 4\n3: pop %rbx\nret\n.globl below\n.globl pushed\n");
    int below(long), pushed(long);
    int main(int argc, char **argv) { (void)argv; return below(argc) + pushed(0); }
"#;

#[test]
fn a_jump_within_an_open_frame_is_no_exit() {
    let flags = ["-O2", "-fno-asynchronous-unwind-tables"];
    let Some((_dir, with_names)) = compile(FRAMES, "gcc", &flags) else { return };
    let Some((_other, without)) = compile(FRAMES, "gcc", &[flags[0], flags[1], "-s"]) else { return };
    let (named, stripped) = (image(&with_names), image(&without));
    for name in ["below", "pushed"] {
        let start = find(&named, name).start();
        let function = stripped.functions().iter().find(|function| function.start() == start).expect(name);
        assert!(stripped.exit_sites(function).is_err(), "{name}: {:?}", stripped.exit_sites(function));
    }
}

/// Two functions that end by a call of one of them, through a table. The second one follows the first one without padding.
const FUNCTIONS: &str = "
    typedef unsigned long word;
    static word f(word, word), h(word, word);
    static word (*const table[2])(word, word) = {h, f};
    __attribute__((noinline)) static word f(word a, word b) { return b & 15 ? table[a & 1](b, (b & 15) - 1) : a + 1; }
    __attribute__((noinline)) static word h(word a, word b) { return (b & 15) < 2 ? a : table[b & 1](a + 1, (b & 15) - 1); }
    int main(int argc, char **argv) { (void)argv; return (int)(f((word)argc, 9) + h(3, (word)argc)); }
";

#[test]
fn a_table_of_functions_with_its_own_is_no_jump_table() {
    let Some((_dir, program)) = compile(FUNCTIONS, "gcc", &["-Os"]) else { return };
    let image = image(&program);
    for name in ["f", "h"] {
        let function = find(&image, name);
        assert_eq!(image.exit_sites(function).expect("proven exits").len(), 2, "{name}");
        let cfg = image.cfg(function);
        let inner = cfg.edges.iter().filter(|edge| edge.kind == EdgeKind::JumpTable);
        let inner: Vec<_> = inner.filter(|edge| matches!(edge.to, EdgeTarget::Block(_))).collect();
        assert!(inner.is_empty(), "{name}: {inner:?}");
    }
}

/// A library that calls a function in assembly through the loader. Its symbol has no type and no size.
const UNTYPED: &str = r#"
    __asm__(".text\n.p2align 4\n.byte 0x90\n.globl transfer\ntransfer:\npush %rbp\nmov %rsp, (%rdi)\nmov (%rsi), %rsp\npop %rbp\nret\n");
    void transfer(void **from, void **to);
    void give_way(void **from, void **to) { transfer(from, to); transfer(to, from); }
"#;

#[test]
fn what_is_called_by_its_name_is_a_function() {
    let flags = ["-O2", "-shared", "-fPIC", "-fplt", "-s", "-Wl,-z,lazy"];
    let Some((_dir, library)) = compile(UNTYPED, "gcc", &flags) else { return };
    let image = image(&library);
    let transfer = find(&image, "transfer");
    assert_eq!(image.exit_sites(transfer).expect("proven exits").len(), 1);
    let switches: Vec<_> = image.stack_switches().map(|function| function.start()).collect();
    assert_eq!(switches, [transfer.start()], "it goes on on another stack");
}
