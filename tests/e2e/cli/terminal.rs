//! What people see on terminals of several widths, read back through a terminal emulator.

use std::io::Read;
use std::process::Stdio;

use ingraft_testing::{Mutatee, have, skip};

use crate::tool;

/// Lines of the terminals of these tests.
const ROWS: u16 = 30;

/// Runs `ingraft` on a terminal of so many columns until it ends. `screens` gets the screen after each part of the output, as rows.
fn on_terminal(
    columns: u16,
    arguments: &[&str],
    target: &mut Mutatee,
    order: &str,
    mut screens: impl FnMut(&[String]),
) {
    let tool = tool();
    let plain = tool.plain_command(arguments);
    // a shell sets the size before anything is drawn; `script` gives it a terminal of its own
    let mut command = std::process::Command::new("script");
    let words: Vec<String> = std::iter::once(plain.get_program())
        .chain(plain.get_args())
        .map(|word| format!("'{}'", word.to_string_lossy()))
        .collect();
    let line = format!("stty rows {ROWS} cols {columns}; exec {}", words.join(" "));
    command.args(["-q", "-e", "-f", "-c", &line, "/dev/null"]).env("TERM", "xterm");
    for (key, value) in plain.get_envs() {
        match value {
            Some(value) => command.env(key, value),
            None => command.env_remove(key),
        };
    }
    let mut child =
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("run script");
    let mut output = child.stdout.take().expect("piped");
    let mut terminal = vt100::Parser::new(ROWS, columns, 0);
    let mut part = [0; 4096];
    let mut asked = false;
    loop {
        let n = output.read(&mut part).expect("the terminal's output");
        if n == 0 {
            break;
        }
        terminal.process(&part[..n]);
        let rows: Vec<String> = terminal.screen().rows(0, columns).collect();
        if !asked && rows.iter().any(|row| row.contains(" in after ")) {
            asked = true;
            target.ask(order);
        }
        screens(&rows);
    }
    let status = child.wait().expect("script ends");
    assert!(asked && status.success(), "{status:?}: {:?}", terminal.screen().contents());
}

#[test]
fn live_views_fit_every_terminal_and_leave_no_stale_line() {
    if !have("script") {
        skip!("no script (util-linux)");
    }
    for columns in [60, 80, 200] {
        let mut target = Mutatee::start("times", &[]);
        let pid = target.pid_text();
        let watch = ["watch", "-p", &pid, "latency@/Code/times/nap", "latency@/Code/times/spin", "--interval", "20ms"];
        let latency = ["latency", "-p", &pid, "times:nap", "times:spin", "times:around", "--interval", "20ms"];
        for arguments in [&watch[..], &latency[..]] {
            let arguments = [arguments, &["--for", "700ms"]].concat();
            let (mut headings, mut frames) = (0, 0);
            let seen = |rows: &[String]| {
                let heading = if arguments[0] == "watch" { "METRIC" } else { "FUNCTION" };
                let here = rows.iter().filter(|row| row.trim_start().starts_with(heading)).count();
                headings = headings.max(here);
                frames += usize::from(here > 0);
                // a row that is wider than the screen goes on in the next one, without its first column
                let stray =
                    rows.iter().find(|row| row.starts_with(" ms") || row.starts_with("ms ") || row.starts_with(" %"));
                assert!(stray.is_none(), "{columns} columns: {rows:#?}");
            };
            on_terminal(columns, &arguments, &mut target, "nest 40 2000", seen);
            assert_eq!(headings, 1, "{columns} columns: a frame is left above the next one: {arguments:?}");
            assert!(frames > 3, "{columns} columns: {frames} frames");
        }
    }
}

#[test]
fn piped_lists_are_not_padded_to_the_longest_name() {
    let target = Mutatee::start("twin", &[]);
    let output = tool().plain_command(["functions", "-p", &target.pid_text()]).output().expect("run ingraft");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let name = |line: &str| line.split("  ").next().unwrap_or_default().chars().count();
    let long = text.lines().map(name).max().unwrap_or(0);
    assert!(long > 100, "names are whole: {long}");
    let short = text.lines().filter(|line| name(line) <= 60).map(|line| line.chars().count()).max().unwrap_or(0);
    assert!(short < 250, "a line with a short name has {short} columns");
}
