//! Accepted form of the routine that reads a hardware event. Abstract execution could not find out that the routine closes only the
//! descriptor that it has opened. Nor could it find out that the routine executes RDPMC only where the thread's own page permits it.

use ingraft_model::ThreadIdentity;
use ingraft_model::layout::{EVENT_PAGES, EVENT_WORDS, header};

use super::form::{self, Right, put};
use super::interpreter::Interpreter;
use super::{Flaw, VerifyError, fail};
use crate::code::environment::Environment;

/// Proves the routine at `at`.
pub(super) fn prove(interpreter: &mut Interpreter<'_>, env: &Environment, at: u64) -> Result<(), VerifyError> {
    match env.identity {
        ThreadIdentity::FsOffset(tid) if env.readable.process.is_some() => {
            form::prove(interpreter, &form(env, tid), at).map(drop)
        }
        ThreadIdentity::FsOffset(_) | ThreadIdentity::FsBase | ThreadIdentity::Locked => fail(at, Flaw::Forbidden),
    }
}

fn form(env: &Environment, tid: u32) -> Vec<Right> {
    let data = &env.data;
    let own = |r: &str, word: u32| format!("ptr gs:[{r}+{:#x}]", data.displacement(word));
    let (state, last) = (own("r9", EVENT_WORDS), own("r9", EVENT_WORDS + 8));
    let page = |field: u32| own("r10", EVENT_PAGES + field);
    let (lock, index, offset, may, width) = (page(8), page(12), page(16), page(40), page(48));
    let words = |text: &str| text.split("; ").map(str::to_owned).collect::<Vec<_>>();

    let mut form: Vec<Right> = Vec::new();
    let f = &mut form;
    put(f, words("push r8; push r9; push r10; push rbx; mov rbx,rax; push rdx; push rsi; push rdi; push r11"));
    // Index of one of eight events, with 16 bytes of words and one page each.
    put(f, words("and edx,0x7; mov r9d,edx; shl r9d,0x4; mov r10d,edx; shl r10d,0xc"));
    put(f, [format!("mov eax,dword {state}"), "cmp eax,0x1".to_owned()]);
    f.push(Right::Jump("je", "read"));
    put(f, ["test eax,eax"]);
    f.push(Right::Jump("jne", "unread"));

    // perf_event_open(&event, this thread, any processor, no group, PERF_FLAG_FD_CLOEXEC)
    put(f, [format!("mov dword {state},0x2"), "mov edi,r9d".to_owned(), "shl edi,0x3".to_owned()]);
    put(f, [format!("add edi,{:#x}", data.displacement(header::EVENTS)), format!("mov esi,dword ptr fs:[{tid:#x}]")]);
    put(f, words("mov rdx,0xffffffffffffffff; push r10; mov r10,rdx; mov r8d,0x8; mov eax,0x12a; syscall; pop r10"));
    put(f, ["test eax,eax"]);
    f.push(Right::Jump("js", "refused"));
    // mmap(page of the event, 4096, PROT_READ, MAP_SHARED | MAP_FIXED, the opened descriptor, 0)
    put(f, words("mov r8d,eax; rdgsbase rdi"));
    put(f, [format!("lea rdi,[rdi+r10+{:#x}]", data.displacement(EVENT_PAGES))]);
    put(f, words("mov esi,0x1000; mov edx,0x1; push r9; push r10; mov r10d,0x11; xor r9d,r9d; mov eax,0x9; syscall"));
    put(f, words("pop r10; pop r9; sub rax,rdi"));
    // close(the opened descriptor)
    put(f, words("push rax; mov edi,r8d; mov eax,0x3; syscall; pop rax"));
    f.push(Right::Label("refused"));
    put(f, ["test rax,rax"]);
    f.push(Right::Jump("jne", "unread"));
    put(f, [format!("mov dword {state},0x1")]);

    f.push(Right::Label("read"));
    put(f, ["mov esi,0x8"]);
    f.push(Right::Label("again"));
    put(f, [format!("mov edi,dword {lock}"), format!("mov eax,dword {may}"), "test eax,0x4".to_owned()]);
    f.push(Right::Jump("je", "unread"));
    put(f, [format!("mov ecx,dword {index}"), "test ecx,ecx".to_owned()]);
    f.push(Right::Jump("je", "unread"));
    put(f, [format!("mov r8,qword {offset}"), format!("movzx r11d,word {width}")]);
    put(f, words("dec ecx; rdpmc; shl rdx,0x20; or rax,rdx"));
    put(f, words("mov ecx,0x40; sub ecx,r11d; shl rax,cl; sar rax,cl; add r8,rax; mov rcx,r8"));
    put(f, [format!("cmp edi,dword {lock}")]);
    f.push(Right::Jump("je", "whole"));
    put(f, ["dec esi"]);
    f.push(Right::Jump("jne", "again"));

    f.push(Right::Label("unread"));
    put(f, [format!("lock inc dword ptr [{:#x}]", data.displacement(header::EVENTS_UNREAD))]);
    put(f, [format!("mov rcx,qword {last}")]);
    f.push(Right::Jump("jmp", "done"));
    f.push(Right::Label("whole"));
    put(f, [format!("mov qword {last},rcx")]);
    f.push(Right::Label("done"));
    put(f, words("pop r11; pop rdi; pop rsi; pop rdx; mov rax,rbx; pop rbx; pop r10; pop r9; pop r8; jmp rax"));
    form
}
