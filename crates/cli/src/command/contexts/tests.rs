use expect_test::{Expect, expect};
use ingraft_model::Svma;
use ingraft_report::{
    CallingContext, ContextFunction, ContextKind, ContextProfile, ContextValue, LiveFacts, ModuleInfo, ReturnSite,
    SavedProfile, UnprofiledFunction,
};

use super::*;
use crate::args::Format;
use crate::fake::Paper;

/// A server whose requests load products; `load` calls itself, a signal interrupts it, and `serve` ends by a jump to `send`.
fn profile() -> SavedProfile {
    let function = |module, name: &str, start| ContextFunction {
        module,
        name: name.to_owned(),
        start: Svma(start),
        size: 0x100,
        ..ContextFunction::default()
    };
    let functions = vec![
        function(0, "main", 0x1000),
        function(0, "_ZN4shop5serveEv", 0x1100),
        ContextFunction { left: 3, unrecorded: 2, ..function(0, "load", 0x1200) },
        function(1, "malloc", 0x2000),
        function(0, "send", 0x1300),
        function(0, "tick", 0x1400),
        function(0, "idle", 0x1500),
    ];
    let context = |parent, function, (module, at), kind, calls, metrics: [i64; 2]| CallingContext {
        parent,
        function,
        site: ReturnSite { module, at: Svma(at) },
        kind,
        calls,
        metrics: metrics.to_vec(),
    };
    let call = ContextKind::Call;
    let contexts = vec![
        context(None, 0, (Some(1), 0x2804), call, 0, [5_000_000, 0]),
        context(Some(0), 1, (Some(0), 0x1041), call, 1000, [20_000_000, 0]),
        context(Some(1), 2, (Some(0), 0x1120), call, 2000, [70_000_000, 0]),
        context(Some(2), 2, (Some(0), 0x1221), ContextKind::Recursion(2), 400, [0, 0]),
        context(Some(2), 3, (Some(0), 0x1234), call, 2400, [1_000_000, 5_000_000]),
        context(Some(1), 4, (Some(0), 0x1041), ContextKind::Tail, 1000, [3_000_000, 0]),
        context(Some(2), 5, (None, 0x7f00), ContextKind::Signal, 7, [700_000, 0]),
        context(Some(1), 3, (Some(0), 0x1140), call, 10, [10_000, 16_384]),
    ];
    let module =
        |name: &str| ModuleInfo { name: name.to_owned(), path: format!("/nowhere/{name}"), ..ModuleInfo::default() };
    let refused =
        UnprofiledFunction { module: 0, name: "tiny".to_owned(), start: Svma(0x1600), why: "too short".to_owned() };
    let contexts = ContextProfile {
        functions,
        contexts,
        metrics: vec!["wall_ns".to_owned(), "allocated_bytes".to_owned()],
        outside: vec![0, 4096],
        full: 12,
        ..ContextProfile::default()
    };
    SavedProfile {
        kind: ingraft_report::ProfileKind::Contexts,
        pid: 7,
        program: "/nowhere/shop".to_owned(),
        modules: vec![module("shop"), module("libc.so.6")],
        refused: vec![refused],
        contexts: Some(contexts),
        ..SavedProfile::default()
    }
}

fn layout() -> ContextLayout {
    ContextLayout::of(&ContextArgs::default())
}

fn check(profile: &SavedProfile, layout: ContextLayout, expected: Expect) {
    let shown = ShownContexts::of(profile, layout).expect("contexts");
    let text = text::text(&shown, &[], None);
    expected.assert_eq(&anstream::adapter::strip_str(&text).to_string());
}

fn records(layout: ContextLayout) -> Vec<String> {
    records_of(&profile(), layout)
}

fn records_of(profile: &SavedProfile, layout: ContextLayout) -> Vec<String> {
    let paper = Paper::default();
    let mut out = Output::to_sink(Format::Json, Box::new(paper.clone()));
    ShownContexts::of(profile, layout).expect("contexts").objects((None, 7), &mut out).expect("records");
    paper.read().lines().map(str::to_owned).collect()
}

#[test]
fn a_tree_has_a_line_for_each_context() {
    check(
        &profile(),
        layout(),
        expect![[r#"
            CALLS  TIME SELF  TIME TOTAL   SHARE  BYTES SELF  BYTES TOTAL   SHARE  CONTEXT                     AT                  MODULE
                0       5 ms     99.7 ms   100 %                  4.8 MiB   100 %  main                        [libc.so.6+0x2804]  shop
            1,000      20 ms     94.7 ms    95 %                  4.8 MiB   100 %   shop::serve()              +0x41               shop
            2,000      70 ms     71.7 ms    72 %                  4.8 MiB   100 %     load                     +0x20               shop
            2,400       1 ms        1 ms   1.0 %     4.8 MiB      4.8 MiB   100 %       malloc                 +0x34               libc.so.6
                7     700 µs      700 µs   0.7 %                                        ⟨signal⟩ tick                              shop
              400                                                                       ↑ load                 +0x21               shop
            1,000       3 ms        3 ms   3.0 %                                      → send                                       shop
               10                  10 µs  0.01 %                   16 KiB   0.3 %     … 1 context below 0.5 %
                                                       4 KiB        4 KiB  0.08 %  outside of all contexts
            7 contexts of 6 of 7 functions, 1 recursion, height 4
            12 calls have no context, because there was no room for more: the callees are in the contexts of the callers
            2 calls have no context, because too many calls were open in their threads, or because their threads had no memory of their own: load (2)
            3 calls have ended without a return, by an exception, by longjmp, or with the thread: load (3); their own times count for the calls around them that have returned
            1 function is left out: shop:tiny (too short)
        "#]],
    );
}

#[test]
fn calls_decide_without_a_metric() {
    let calls = ContextLayout { value: Some(ContextValue::Calls), stats: true, ..layout() };
    check(
        &profile(),
        calls,
        expect![[r#"
            CALLS  TOTAL  SHARE  CONTEXT                       AT                  MODULE
                0  6,817  100 %  main                          [libc.so.6+0x2804]  shop
            1,000  6,817  100 %   shop::serve()                +0x41               shop
            2,000  4,807   71 %     load                       +0x20               shop
            2,400  2,400   35 %       malloc                   +0x34               libc.so.6
              400    400  5.9 %       ↑ load                   +0x21               shop
                7      7  0.1 %       … 1 context below 0.5 %
            1,000  1,000   15 %     → send                                         shop
               10     10  0.1 %     … 1 context below 0.5 %
            7 contexts of 6 of 7 functions, 1 recursion, height 4
            2.0 contexts below one that calls, leaves at a depth of 3.5, at most 2 contexts of one function; 5 call sites, 5 of them in one context only
            12 calls have no context, because there was no room for more: the callees are in the contexts of the callers
            2 calls have no context, because too many calls were open in their threads, or because their threads had no memory of their own: load (2)
            3 calls have ended without a return, by an exception, by longjmp, or with the thread: load (3); their own times count for the calls around them that have returned
            1 function is left out: shop:tiny (too short)
        "#]],
    );
}

#[test]
fn small_contexts_are_hidden() {
    let large = ContextLayout { least: 5.0, by_function: true, value: Some(ContextValue::Metric(0)), ..layout() };
    check(
        &profile(),
        large,
        expect![[r#"
            CALLS  TIME SELF  TIME TOTAL  SHARE  CONTEXT                      MODULE
                0       5 ms     99.7 ms  100 %  main                         shop
            1,000      20 ms     94.7 ms   95 %   shop::serve()               shop
            2,000      70 ms     71.7 ms   72 %     load                      shop
              400                                     ↑ load                  shop
            2,407                 1.7 ms  1.7 %       … 2 contexts below 5 %
            1,010                3.01 ms  3.0 %     … 2 contexts below 5 %
            7 contexts of 6 of 7 functions, 1 recursion, height 4
            12 calls have no context, because there was no room for more: the callees are in the contexts of the callers
            2 calls have no context, because too many calls were open in their threads, or because their threads had no memory of their own: load (2)
            3 calls have ended without a return, by an exception, by longjmp, or with the thread: load (3); their own times count for the calls around them that have returned
            1 function is left out: shop:tiny (too short)
        "#]],
    );
    let few = ContextLayout { top: 2, value: Some(ContextValue::Metric(0)), ..layout() };
    check(
        &profile(),
        few,
        expect![[r#"
            CALLS  TIME SELF  TIME TOTAL  SHARE  CONTEXT                      AT                  MODULE
                0       5 ms     99.7 ms  100 %  main                         [libc.so.6+0x2804]  shop
            1,000      20 ms     94.7 ms   95 %   shop::serve()               +0x41               shop
            5,817                74.7 ms   75 %    … 6 contexts more (--top)
            7 contexts of 6 of 7 functions, 1 recursion, height 4
            12 calls have no context, because there was no room for more: the callees are in the contexts of the callers
            2 calls have no context, because too many calls were open in their threads, or because their threads had no memory of their own: load (2)
            3 calls have ended without a return, by an exception, by longjmp, or with the thread: load (3); their own times count for the calls around them that have returned
            1 function is left out: shop:tiny (too short)
        "#]],
    );
}

#[test]
fn callers_are_below_their_callees() {
    check(
        &profile(),
        ContextLayout { bottom_up: true, ..layout() },
        expect![[r#"
               TIME  SHARE  CALLS  FUNCTION AND CALLERS  AT             MODULE
              70 ms   70 %  2,400  load                                 shop
              70 ms   70 %  2,000    ← shop::serve()     +0x20          shop
              70 ms   70 %  2,000      ← main            +0x41          shop
              20 ms   20 %  1,000  shop::serve()                        shop
              20 ms   20 %  1,000    ← main              +0x41          shop
               5 ms  5.0 %      0  main                                 shop
               3 ms  3.0 %  1,000  send                                 shop
               3 ms  3.0 %  1,000    ← shop::serve()     [shop+0x1041]  shop
               3 ms  3.0 %  1,000      ← main            +0x41          shop
            1.01 ms  1.0 %  2,410  malloc                               libc.so.6
               1 ms  1.0 %  2,400    ← load              +0x34          shop
               1 ms  1.0 %  2,400      ← shop::serve()   +0x20          shop
               1 ms  1.0 %  2,400        ← main          +0x41          shop
             700 µs  0.7 %      7  tick                                 shop
             700 µs  0.7 %      7    ← load              [0x7f00]       shop
             700 µs  0.7 %      7      ← shop::serve()   +0x20          shop
             700 µs  0.7 %      7        ← main          +0x41          shop
            7 contexts of 6 of 7 functions, 1 recursion, height 4
            12 calls have no context, because there was no room for more: the callees are in the contexts of the callers
            2 calls have no context, because too many calls were open in their threads, or because their threads had no memory of their own: load (2)
            3 calls have ended without a return, by an exception, by longjmp, or with the thread: load (3); their own times count for the calls around them that have returned
            1 function is left out: shop:tiny (too short)
        "#]],
    );
}

#[test]
fn a_view_has_the_ways_to_a_value() {
    let mut bytes = profile();
    if let Some(contexts) = &mut bytes.contexts {
        contexts.metrics.remove(0);
        contexts.outside.remove(0);
        contexts.contexts.iter_mut().for_each(|context| context.metrics = vec![context.metrics[1]]);
    }
    check(
        &bytes,
        ContextLayout { is_view: true, ..layout() },
        expect![[r#"
          BYTES  SHARE  CALLS  FUNCTION  CALLED BY
        4.8 MiB  100 %  2,400  malloc    load +0x34 ← shop::serve() +0x20 ← main +0x41
         16 KiB  0.3 %     10  malloc    shop::serve() +0x40 ← main +0x41

        CALLS  BYTES SELF  BYTES TOTAL   SHARE  CONTEXT                     AT                  MODULE
            0                  4.8 MiB   100 %  main                        [libc.so.6+0x2804]  shop
        1,000                  4.8 MiB   100 %   shop::serve()              +0x41               shop
        2,000                  4.8 MiB   100 %     load                     +0x20               shop
        2,400     4.8 MiB      4.8 MiB   100 %      malloc                  +0x34               libc.so.6
           10                   16 KiB   0.3 %     … 1 context below 0.5 %
                    4 KiB        4 KiB  0.08 %  outside of all contexts
        5 contexts on the way to a value of 4 of 7 functions, height 4
        12 calls have no context, because there was no room for more: the callees are in the contexts of the callers
        2 calls have no context, because too many calls were open in their threads, or because their threads had no memory of their own: load (2)
        3 calls have ended without a return, by an exception, by longjmp, or with the thread: load (3)
        1 function is left out: shop:tiny (too short)
    "#]],
    );
}

/// Live bytes, of which one call has some, beside those that were asked for.
fn live(bytes: i64, facts: LiveFacts) -> SavedProfile {
    let mut profile = profile();
    if let Some(contexts) = &mut profile.contexts {
        contexts.metrics[0] = "live_bytes".to_owned();
        contexts.contexts.iter_mut().for_each(|context| context.metrics[0] = 0);
        contexts.contexts[7].metrics[0] = bytes;
        contexts.live = Some(facts);
    }
    profile
}

#[test]
fn live_bytes_decide_if_there_are_some() {
    let view = ContextLayout { is_view: true, ..layout() };
    let text = |profile: &SavedProfile| {
        let shown = ShownContexts::of(profile, view).expect("contexts");
        anstream::adapter::strip_str(&text::text(&shown, &[], None)).to_string()
    };
    let exact = LiveFacts { earlier: 3, ..LiveFacts::default() };
    let some = text(&live(2048, exact));
    assert!(some.trim_start().starts_with("LIVE") && some.contains("BYTES") && !some.contains('≈'), "{some}");
    assert!(some.contains("3 blocks were freed whose allocation was not seen"), "{some}");
    let none = text(&live(0, LiveFacts { lost: 5, left_out: 1, ..exact }));
    assert!(none.trim_start().starts_with("BYTES") && none.contains("≈ LIVE"), "{none}");
    assert!(none.contains("live memory is not exact: 5 records were lost"), "{none}");
    assert!(none.contains("live memory is not exact: 1 function that allocates or frees is left out"), "{none}");
}

/// A chain of so many calls that a function that calls itself for each would overflow the stack.
#[test]
fn a_deep_chain_can_be_read() {
    let function = |name: &str| ContextFunction { name: name.to_owned(), size: 1, ..ContextFunction::default() };
    let context = |parent, function| CallingContext {
        parent,
        function,
        site: ReturnSite::default(),
        kind: ContextKind::Call,
        calls: 1,
        metrics: Vec::new(),
    };
    let contexts: Vec<CallingContext> =
        (0..100_000_usize).map(|number| context(number.checked_sub(1), number % 2)).collect();
    let functions = ["f", "g"].map(function).to_vec();
    let contexts = ContextProfile { functions, contexts, ..ContextProfile::default() };
    let profile = SavedProfile { contexts: Some(contexts), ..profile() };
    let shown = ShownContexts::of(&profile, ContextLayout { top: 100_000, ..layout() }).expect("contexts");
    let text = anstream::adapter::strip_str(&text::text(&shown, &[], None)).to_string();
    let line = |number: usize| text.lines().nth(number + 1).unwrap_or_default().trim_start();
    let lines = [0, 1, 39, 40, 41, 42, 43].map(line).join("\n");
    expect![[r#"
        1  100,000   100 %  f                                                             shop
        1   99,999   100 %   g                                                            shop
        1   99,961   100 %                                         g                      shop
        1   99,960   100 %                                          f                     shop
        1   99,959   100 %                                          [41] g                shop
        1   99,958   100 %                                          [42] f                shop
        1   99,957   100 %                                          [43] g                shop"#]]
    .assert_eq(&lines);
    assert!(text.lines().all(|line| line.chars().count() < 120), "{}", text.lines().count());
}

#[test]
fn a_record_has_its_parent() {
    expect![[r#"
        {"type":"context","pid":7,"id":1,"parent":null,"kind":"call","module":"shop","function":"main","offset":"0x1000","caller_module":"libc.so.6","call_site":"0x2804","calls":0,"left":0,"caught_up":0,"metrics":{"allocated_bytes":0,"wall_ns":5000000},"how":{"allocated_bytes":"counted","wall_ns":"clocked"}}
        {"type":"context","pid":7,"id":2,"parent":1,"kind":"call","module":"shop","function":"shop::serve()","offset":"0x1100","caller_module":"shop","call_site":"0x1041","calls":1000,"left":0,"caught_up":0,"metrics":{"allocated_bytes":0,"wall_ns":20000000},"how":{"allocated_bytes":"counted","wall_ns":"clocked"}}
        {"type":"context","pid":7,"id":3,"parent":2,"kind":"call","module":"shop","function":"load","offset":"0x1200","caller_module":"shop","call_site":"0x1120","calls":2000,"left":null,"caught_up":0,"metrics":{"allocated_bytes":0,"wall_ns":70000000},"how":{"allocated_bytes":"counted","wall_ns":"clocked"}}
        {"type":"context","pid":7,"id":4,"parent":3,"kind":"recursion","back_to":3,"module":"shop","function":"load","offset":"0x1200","caller_module":"shop","call_site":"0x1221","calls":400,"left":null,"caught_up":0,"metrics":{"allocated_bytes":0,"wall_ns":0},"how":{"allocated_bytes":"counted","wall_ns":"clocked"}}
        {"type":"context","pid":7,"id":5,"parent":3,"kind":"call","module":"libc.so.6","function":"malloc","offset":"0x2000","caller_module":"shop","call_site":"0x1234","calls":2400,"left":0,"caught_up":0,"metrics":{"allocated_bytes":5000000,"wall_ns":1000000},"how":{"allocated_bytes":"counted","wall_ns":"clocked"}}
        {"type":"context","pid":7,"id":6,"parent":2,"kind":"tail","module":"shop","function":"send","offset":"0x1300","caller_module":"shop","call_site":"0x1041","calls":1000,"left":0,"caught_up":0,"metrics":{"allocated_bytes":0,"wall_ns":3000000},"how":{"allocated_bytes":"counted","wall_ns":"clocked"}}
        {"type":"context","pid":7,"id":7,"parent":3,"kind":"signal","module":"shop","function":"tick","offset":"0x1400","caller_module":null,"call_site":"0x7f00","calls":7,"left":0,"caught_up":0,"metrics":{"allocated_bytes":0,"wall_ns":700000},"how":{"allocated_bytes":"counted","wall_ns":"clocked"}}
        {"type":"context","pid":7,"id":8,"parent":2,"kind":"call","module":"libc.so.6","function":"malloc","offset":"0x2000","caller_module":"shop","call_site":"0x1140","calls":10,"left":0,"caught_up":0,"metrics":{"allocated_bytes":16384,"wall_ns":10000},"how":{"allocated_bytes":"counted","wall_ns":"clocked"}}
        {"type":"contexts","pid":7,"nodes":7,"back_edges":1,"height":4,"degree":2.0,"leaf_depth":3.5,"replication":2,"full":12,"unrecorded":2,"unseen":0,"left":3,"outside":{"allocated_bytes":4096,"wall_ns":0}}"#]].assert_eq(&records(layout()).join("\n"));
}

#[test]
fn records_of_functions_have_no_call_sites() {
    let records = records(ContextLayout { by_function: true, ..layout() });
    assert!(records[1].contains(r#""caller_module":null,"call_site":null,"calls":1000"#), "{records:?}");
}

#[test]
fn records_of_a_view_lead_to_a_value() {
    let value = Some(ContextValue::Metric(1));
    let records = records(ContextLayout { is_view: true, value, ..layout() });
    let of = |line: &String| {
        let record: serde_json::Value = serde_json::from_str(line).expect("a record");
        format!("{} {} {}", record["id"], record["parent"], record["function"])
    };
    let expected = ["1 null \"main\"", "2 1 \"shop::serve()\"", "3 2 \"load\"", "4 3 \"malloc\"", "5 2 \"malloc\""];
    assert_eq!(records[..5].iter().map(of).collect::<Vec<_>>(), expected);
    assert!(records[5].contains(r#""nodes":5,"back_edges":0"#), "{}", records[5]);
}

/// The same server, whose times are those of looks. One came 20 ms late.
fn looked() -> SavedProfile {
    let mut profile = profile();
    if let Some(contexts) = &mut profile.contexts {
        contexts.metrics = vec!["wall_ns".to_owned(), "looks".to_owned()];
        for context in &mut contexts.contexts {
            context.metrics[1] = context.metrics[0] / 1_000_000;
        }
        contexts.outside = vec![20_000_000, 1];
        contexts.look_squares = 99 * 1_000_000 + 400_000_000;
    }
    profile
}

#[test]
fn shares_of_looks_have_errors() {
    check(
        &looked(),
        ContextLayout { least: 2.0, ..layout() },
        expect![[r#"
        CALLS  TIME SELF  TIME TOTAL     SHARE      ±  CONTEXT                      AT                  MODULE
            0       5 ms     99.7 ms      83 %  7.0 %  main                         [libc.so.6+0x2804]  shop
        1,000      20 ms     94.7 ms      79 %  7.6 %   shop::serve()               +0x41               shop
        2,000      70 ms     71.7 ms      60 %  9.1 %     load                      +0x20               shop
          400                                               ↑ load                  +0x21               shop
        2,407                 1.7 ms     1.4 %  2.2 %       … 2 contexts below 2 %
        1,000       3 ms        3 ms     2.5 %  2.9 %     → send                                        shop
           10                  10 µs  < 0.01 %  0.2 %     … 1 context below 2 %
                   20 ms       20 ms      17 %  7.0 %  outside of all contexts
        7 contexts of 6 of 7 functions, 1 recursion, height 4
        12 calls have no context, because there was no room for more: the callees are in the contexts of the callers
        2 calls have no context, because too many calls were open in their threads, or because their threads had no memory of their own: load (2)
        times are those of 100 looks (some came late, so only as exact as 29) at threads that run or wait, ± one standard error of a share
        a thread is looked at from its first measured call on; calls that began earlier and have no context are outside
        3 calls have ended without a return, by an exception, by longjmp, or with the thread: load (3)
        1 function is left out: shop:tiny (too short)
    "#]],
    );
    check(
        &looked(),
        ContextLayout { bottom_up: true, top: 4, ..layout() },
        expect![[r#"
         TIME  SHARE      ±  CALLS  FUNCTION AND CALLERS  AT     MODULE
        70 ms   58 %  9.2 %  2,400  load                         shop
        70 ms   58 %  9.2 %  2,000    ← shop::serve()     +0x20  shop
        70 ms   58 %  9.2 %  2,000      ← main            +0x41  shop
        20 ms   17 %  7.0 %  1,000  shop::serve()                shop
        and more; --top shows more of them
        7 contexts of 6 of 7 functions, 1 recursion, height 4
        12 calls have no context, because there was no room for more: the callees are in the contexts of the callers
        2 calls have no context, because too many calls were open in their threads, or because their threads had no memory of their own: load (2)
        times are those of 100 looks (some came late, so only as exact as 29) at threads that run or wait, ± one standard error of a share
        a thread is looked at from its first measured call on; calls that began earlier and have no context are outside
        3 calls have ended without a return, by an exception, by longjmp, or with the thread: load (3)
        1 function is left out: shop:tiny (too short)
    "#]],
    );
    let by_looks = ContextLayout { value: Some(ContextValue::Metric(1)), top: 2, ..layout() };
    check(
        &looked(),
        by_looks,
        expect![[r#"
        CALLS  LOOKS SELF  LOOKS TOTAL  SHARE  CONTEXT                      AT                  MODULE
            0           5           99   99 %  main                         [libc.so.6+0x2804]  shop
        1,000          20           94   94 %   shop::serve()               +0x41               shop
        5,817                       74   74 %    … 6 contexts more (--top)
                        1            1  1.0 %  outside of all contexts
        7 contexts of 6 of 7 functions, 1 recursion, height 4
        12 calls have no context, because there was no room for more: the callees are in the contexts of the callers
        2 calls have no context, because too many calls were open in their threads, or because their threads had no memory of their own: load (2)
        times are those of 100 looks (some came late, so only as exact as 29) at threads that run or wait, ± one standard error of a share
        a thread is looked at from its first measured call on; calls that began earlier and have no context are outside
        3 calls have ended without a return, by an exception, by longjmp, or with the thread: load (3)
        1 function is left out: shop:tiny (too short)
    "#]],
    );
    let records = records_of(&looked(), layout());
    expect![[r#"
        {"type":"context","pid":7,"id":3,"parent":2,"kind":"call","module":"shop","function":"load","offset":"0x1200","caller_module":"shop","call_site":"0x1120","calls":2000,"left":null,"caught_up":0,"metrics":{"looks":70,"wall_ns":70000000},"how":{"looks":"looks","wall_ns":"looks"},"error":{"wall_ns":11007552}}
        {"type":"contexts","pid":7,"nodes":7,"back_edges":1,"height":4,"degree":2.0,"leaf_depth":3.5,"replication":2,"full":12,"unrecorded":2,"unseen":0,"left":3,"outside":{"looks":1,"wall_ns":20000000},"looks":100,"effective_looks":29}"#]].assert_eq(&[&*records[2], &*records[8]].join("\n"));
}

#[test]
fn times_without_a_look_are_missing() {
    let mut none = looked();
    if let Some(contexts) = &mut none.contexts {
        contexts.contexts.clear();
        (contexts.outside, contexts.look_squares) = (vec![0, 0], 0);
    }
    let shown = ShownContexts::of(&none, layout()).expect("contexts");
    assert!(text::text(&shown, &[], None).contains("there was no look at a thread in measured code"));
}
