//! `ingraft ps`: lists processes, whether each can be measured, and if not, why and what would allow it.

use std::collections::HashMap;

use crate::args::{Common, PsArgs};
use crate::conn::Engines;
use crate::exit::{Exit, Failure, Stop};
use crate::objects::{Object, ProcessObject};
use crate::output::progress::Progress;
use crate::output::table::{Cell, TextTable};
use crate::output::{BAD, DIM, GOOD, Output};

/// Runs the command.
pub(crate) async fn run(args: PsArgs, engines: &Engines, common: &Common, out: &mut Output) -> Result<(), Stop> {
    let mut processes = Vec::new();
    for client in engines.clients() {
        let mut progress = Progress::new("looking at processes", common.format);
        let found = client.processes(args.glob.as_deref(), &mut progress).await?;
        processes.extend(found.into_iter().map(|process| ProcessObject::new(process, client.host())));
    }
    if let (true, Some(glob)) = (processes.is_empty(), &args.glob) {
        let what = format!("no process is called `{glob}`");
        return Err(Failure::new(Exit::NotFound, what, "`ingraft ps` without a name lists all").into());
    }
    let text = render(&processes, out.width());
    out.text(&text)?;
    processes.into_iter().try_for_each(|p| out.object(&Object::Process(p)))
}

fn render(processes: &[ProcessObject], width: Option<usize>) -> String {
    let mut users = Users::default();
    let mut table = TextTable::new()
        .shrinking("HOST")
        .right("PID")
        .right("PARENT")
        .left("USER")
        .shrinking("NAME")
        .left("ATTACH")
        .shrinking("WHY NOT")
        .shrinking("TITLE")
        .optional(&["PARENT", "TITLE"]);
    // One hint often holds for many processes, so it is printed once, below the table.
    let mut hints: Vec<(&str, usize)> = Vec::new();
    for p in processes {
        let answer = if p.attachable { Cell::styled("yes", GOOD) } else { Cell::styled("no", BAD) };
        let hint = p.hint.as_deref().unwrap_or_default();
        if !hint.is_empty() {
            match hints.iter_mut().find(|(text, _)| *text == hint) {
                Some((_, n)) => *n += 1,
                None => hints.push((hint, 1)),
            }
        }
        table.row(vec![
            p.host.clone().unwrap_or_default().into(),
            p.pid.to_string().into(),
            Some(p.parent).filter(|parent| *parent != 0).map(|p| p.to_string()).unwrap_or_default().into(),
            users.name(p.uid, p.host.is_some()).into(),
            p.name.as_str().into(),
            answer,
            Cell::styled(p.why_not.clone().unwrap_or_default(), DIM),
            Cell::styled(p.title.as_str(), DIM),
        ]);
    }
    let mut text = table.render(width);
    for (hint, n) in hints {
        let times = if n > 1 { format!(" {DIM}({n} processes){DIM:#}") } else { String::new() };
        text += &format!("hint: {hint}{times}\n");
    }
    text
}

/// Names of users from /etc/passwd of this host; of users of other hosts only the number is known.
#[derive(Default)]
struct Users {
    names: Option<HashMap<u32, String>>,
}

impl Users {
    fn name(&mut self, uid: u32, elsewhere: bool) -> String {
        if elsewhere {
            return uid.to_string();
        }
        let names =
            self.names.get_or_insert_with(|| parse_passwd(&std::fs::read_to_string("/etc/passwd").unwrap_or_default()));
        names.get(&uid).cloned().unwrap_or_else(|| uid.to_string())
    }
}

fn parse_passwd(text: &str) -> HashMap<u32, String> {
    let line = |line: &str| {
        let mut fields = line.split(':');
        let name = fields.next()?.to_owned();
        Some((fields.nth(1)?.parse().ok()?, name))
    };
    text.lines().filter_map(line).collect()
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    #[test]
    fn users_are_read() {
        let names = parse_passwd("root:x:0:0:root:/root:/bin/bash\nbroken\nredis:x:104:106::/:/bin/false\n");
        assert_eq!(names.get(&104).map(String::as_str), Some("redis"));
        assert_eq!(names.len(), 2);
    }

    #[test]
    fn hints_are_said_once() {
        let process = |pid, why: Option<&str>| ProcessObject {
            host: Some("unix:/a".to_owned()),
            pid,
            name: format!("p{pid}"),
            uid: 77,
            attachable: why.is_none(),
            why_not: why.map(str::to_owned),
            hint: why.map(|_| "run as its user or as root".to_owned()),
            parent: 1,
            title: format!("p{pid}: idle"),
            with_parent: false,
        };
        let all = [process(1, Some("another user's")), process(22, None), process(333, Some("another user's"))];
        expect![[r#"
            HOST     PID  PARENT  USER  NAME  ATTACH  WHY NOT         TITLE
            unix:/a    1       1  77    p1    no      another user's  p1: idle
            unix:/a   22       1  77    p22   yes                     p22: idle
            unix:/a  333       1  77    p333  no      another user's  p333: idle
            hint: run as its user or as root (2 processes)
        "#]]
        .assert_eq(&anstream::adapter::strip_str(&render(&all, None)).to_string());
    }
}
