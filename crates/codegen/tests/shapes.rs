//! The generated code of every shape, as a listing under `tests/golden/codegen`. `UPDATE_EXPECT=1` rewrites them.

mod support;

use expect_test::expect_file;
use ingraft_codegen::remove_points;
use ingraft_codegen::verify::verify_removal;
use ingraft_model::{Gpr, Svma, ThreadIdentity};
use support::*;

/// mov rax,[rdi]; add rax,rsi; ret
const PLAIN: [u8; 7] = [0x48, 0x8b, 0x07, 0x48, 0x01, 0xf0, 0xc3];

fn golden(name: &str, woven: &Woven) {
    let removal = match &woven.weave.woven[0] {
        Ok(point) => {
            let removal = remove_points([point]);
            verify_removal(&removal, std::slice::from_ref(point)).expect("the removal is right");
            format!("\nremoval\n{}", list_removal(&removal))
        }
        Err(_) => String::new(),
    };
    let path = format!("{}/../../tests/golden/codegen/{name}.txt", env!("CARGO_MANIFEST_DIR"));
    expect_file![path].assert_eq(&(list(&woven.weave.plan, &woven.weave.woven) + &removal));
}

#[test]
fn plain_count_by_thread_id() {
    golden("count_fs_offset", &weave(GLIBC, site(&PLAIN), &[], &[count()]));
}

#[test]
fn plain_count_by_fs_base() {
    golden("count_fs_base", &weave(ThreadIdentity::FsBase, site(&PLAIN), &[], &[count()]));
}

#[test]
fn plain_count_locked() {
    golden("count_locked", &weave(ThreadIdentity::Locked, site(&PLAIN), &[], &[count()]));
}

#[test]
fn no_scratch_register_and_live_flags() {
    let mut s = site(&PLAIN);
    s.scratch.clear();
    s.flags_dead = false;
    golden("saves", &weave(GLIBC, s.clone(), &[], &[count()]));
    golden("saves_locked", &weave(ThreadIdentity::Locked, s, &[], &[count()]));
}

#[test]
fn high_scratch_register() {
    let mut s = site(&PLAIN);
    s.scratch = vec![Gpr(2), Gpr(11)];
    golden("scratch_r11", &weave(GLIBC, s, &[], &[count(), count()]));
}

#[test]
fn short_function_uses_its_padding() {
    let mut s = site(&[0x89, 0xf8, 0xc3, 0x90, 0x90, 0x90]);
    s.own = 3;
    golden("padding", &weave(GLIBC, s, &[], &[count()]));
}

#[test]
fn short_function_hops_over_an_island() {
    let mut s = site(&[0x89, 0xf8, 0xc3]);
    s.landings = vec![Svma(0x401003)];
    golden("island", &weave(GLIBC, s, &[padding(0x401040, &[0xcc; 8])], &[count()]));
}
