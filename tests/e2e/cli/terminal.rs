//! Tests of the output on terminals of several widths, as people see it. A terminal emulator reads it back.

use std::io::Read;
use std::process::{Child, ChildStdout, Command, Stdio};

use ingraft_testing::{Mutatee, have, skip};

use crate::tool;

/// Number of lines of the terminals in these tests.
const ROWS: u16 = 30;

/// Returns a command as words for a shell.
pub(crate) fn quoted(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| format!("'{}'", word.to_string_lossy())).collect::<Vec<_>>().join(" ")
}

/// Runs a line of shell on a terminal of its own, with the environment of `like`. Returns the child that runs it, and the output on the
/// terminal.
pub(crate) fn on_terminal(line: &str, like: &Command) -> (Child, ChildStdout) {
    let mut command = Command::new("script");
    command.args(["-q", "-e", "-f", "-c", line, "/dev/null"]).env("TERM", "xterm").env("SHELL", "/bin/sh");
    for (key, value) in like.get_envs() {
        match value {
            Some(value) => command.env(key, value),
            None => command.env_remove(key),
        };
    }
    let mut child =
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("run script");
    let output = child.stdout.take().expect("piped");
    (child, output)
}

/// Runs `ingraft` on a terminal with this many columns until it ends. `screens` gets the screen after each part of the output, as rows.
fn watch_on_terminal(
    columns: u16,
    arguments: &[&str],
    target: &mut Mutatee,
    order: &str,
    mut screens: impl FnMut(&[String]),
) {
    let tool = tool();
    let plain = tool.plain_command(arguments);
    // The shell sets the size before `ingraft` draws anything.
    let line = format!("stty rows {ROWS} cols {columns}; exec {}", quoted(&plain));
    let (mut child, mut output) = on_terminal(&line, &plain);
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
                // A row that is wider than the screen continues in the next row, which then lacks the first column.
                let stray =
                    rows.iter().find(|row| row.starts_with(" ms") || row.starts_with("ms ") || row.starts_with(" %"));
                assert!(stray.is_none(), "{columns} columns: {rows:#?}");
            };
            watch_on_terminal(columns, &arguments, &mut target, "nest 40 2000", seen);
            assert_eq!(headings, 1, "{columns} columns: a frame is left above the next one: {arguments:?}");
            assert!(frames > 3, "{columns} columns: {frames} frames");
        }
    }
}

/// Mark that is printed when the terminal has become narrower. It sets the terminal's title, so it is not visible.
const NARROWER: &[u8] = b"\x1b]2;narrower\x07";

/// Returns a narrower terminal with the text above the cursor of a wider one. Long lines are wrapped as most terminals wrap them.
fn narrowed(terminal: &vt100::Parser, columns: u16) -> vt100::Parser {
    let screen = terminal.screen();
    let above = usize::from(screen.cursor_position().0);
    let mut narrow = vt100::Parser::new(ROWS, columns, 0);
    for row in screen.rows(0, screen.size().1).take(above) {
        narrow.process(row.trim_end().as_bytes());
        narrow.process(b"\r\n");
    }
    narrow
}

#[test]
fn a_live_view_follows_a_terminal_that_becomes_narrower_between_two_frames() {
    if !have("script") {
        skip!("no script (util-linux)");
    }
    let mut target = Mutatee::start("times", &[]);
    let pid = target.pid_text();
    let temporary = tempfile::tempdir().expect("a directory");
    let at = |name: &str| temporary.path().join(name).to_str().expect("a path").to_owned();
    let (order, stopped) = (at("order"), at("pid"));
    let directory = temporary.path().display();
    let arguments = ["watch", "-p", &pid, "latency@/Code/times/nap", "latency@/Code/times/spin", "--interval", "20ms"];
    let tool = tool();
    let plain = tool.plain_command([&arguments[..], &["--until-exit"]].concat());
    // The command is stopped while the terminal changes, so that it is known which width each frame was drawn for.
    let line = format!(
        "stty rows {ROWS} cols 120
         (until [ -e '{order}' ] || [ ! -e '{directory}' ]; do sleep 0.01; done
          kill -STOP $(cat '{stopped}'); stty cols 60 </dev/tty
          printf '\\033]2;narrower\\007' >/dev/tty; kill -CONT $(cat '{stopped}')) &
         sh -c 'echo $$ >\"$0\"; exec \"$@\"' '{stopped}' {}",
        quoted(&plain)
    );
    let (mut child, mut output) = on_terminal(&line, &plain);
    let mut terminal = vt100::Parser::new(ROWS, 120, 0);
    let (mut waiting, mut part) = (Vec::new(), [0; 4096]);
    let (mut wide, mut narrow, mut changed) = (0, 0, false);
    loop {
        let n = output.read(&mut part).expect("the terminal's output");
        if n == 0 {
            break;
        }
        waiting.extend_from_slice(&part[..n]);
        if let Some(at) = waiting.windows(NARROWER.len()).position(|bytes| bytes == NARROWER) {
            terminal.process(&waiting[..at]);
            terminal = narrowed(&terminal, 60);
            waiting.drain(..at + NARROWER.len());
            changed = true;
        }
        // The rest of the output may be the beginning of the mark.
        let whole = if changed { waiting.len() } else { waiting.len().saturating_sub(NARROWER.len() - 1) };
        terminal.process(&waiting[..whole]);
        waiting.drain(..whole);
        let columns = terminal.screen().size().1;
        let rows: Vec<String> = terminal.screen().rows(0, columns).collect();
        let headings: Vec<&String> = rows.iter().filter(|row| row.trim_start().starts_with("METRIC")).collect();
        assert!(headings.len() < 2, "a frame is left above the next one: {rows:#?}");
        let Some(heading) = headings.first() else { continue };
        if changed {
            narrow += 1;
            if narrow == 5 {
                target.tell("exit 0");
            }
            continue;
        }
        wide += 1;
        if wide == 1 {
            target.ask("nest 40 2000");
        }
        // If the heading has values, it is too wide for the narrow terminal and must be wrapped.
        if heading.trim_end().chars().count() > 60 {
            std::fs::write(&order, "").expect("an order");
        }
    }
    let status = child.wait().expect("script ends");
    assert!(changed && narrow >= 5 && status.success(), "{status:?}: {:?}", terminal.screen().contents());
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
