//! Manual pages and shell completions of both programs, made from the definitions of their arguments.

use std::io::Write;
use std::path::Path;

use clap::{Command, CommandFactory};
use clap_complete::Shell;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};

use crate::args::{Cli, Program};
use crate::exit::{Failure, Stop};
use crate::output::Output;

/// Paths that both programs use, and the content of each.
const FILES: &[(&str, &str)] = &[
    ("/var/lib/ingraft, ~/.local/state/ingraft", "Journal and cache of root and of other users."),
    ("/etc/ingraft/ingraftd.toml", "Configuration of the daemon that the service manager starts."),
    ("/run/ingraft/ingraftd.sock", "Socket of that daemon."),
];

/// Prints the completions of a program for a shell.
pub(crate) fn completions(shell: Shell, program: Program, out: &mut Output) -> Result<(), Stop> {
    let mut text = Vec::new();
    let mut command = definition(program);
    let name = command.get_name().to_owned();
    clap_complete::generate(shell, &mut command, name, &mut text);
    out.verbatim(&text)
}

/// Prints the main page, or writes all pages into a directory: one for `ingraft`, one for each of its commands, one for `ingraftd`.
pub(crate) fn man(dir: Option<&Path>, out: &mut Output) -> Result<(), Stop> {
    let cannot =
        |e: std::io::Error| Failure::failed(format!("cannot write manual pages: {e}"), "choose another directory");
    match dir {
        Some(dir) => {
            std::fs::create_dir_all(dir).map_err(cannot)?;
            for page in pages() {
                let mut text = Vec::new();
                page.render(&mut text).map_err(cannot)?;
                std::fs::write(dir.join(page.man.get_filename()), text).map_err(cannot)?;
            }
            out.text(&format!("manual pages are in {}\n", dir.display()))
        }
        None => {
            let mut text = Vec::new();
            main_page().render(&mut text).map_err(cannot)?;
            out.verbatim(&text)
        }
    }
}

/// Returns the arguments of a program.
fn definition(program: Program) -> Command {
    match program {
        Program::Ingraft => Cli::command(),
        Program::Ingraftd => ingraft_daemon::config::Flags::command(),
    }
}

/// A manual page: the sections that are made from the arguments, and the rest.
struct ManualPage {
    man: Man,
    /// First line of the page.
    title: String,
    /// Text below the options of `--help`: examples and notes.
    after: String,
    /// Other pages to read, with their sections.
    see_also: &'static [(&'static str, &'static str)],
    /// Whether the page lists [`FILES`].
    files: bool,
    /// Whether the program has commands with pages of their own.
    commands: bool,
}

fn main_page() -> ManualPage {
    let mut command = Cli::command().disable_help_subcommand(true);
    command.build();
    ManualPage::new(command, "1", "User Commands", &[("ingraftd", "8"), ("ptrace", "2")], true)
}

fn pages() -> Vec<ManualPage> {
    let mut main = Cli::command().disable_help_subcommand(true);
    main.build();
    let mut pages = vec![main_page()];
    for command in main.get_subcommands().filter(|command| !command.is_hide_set()) {
        pages.push(ManualPage::new(
            command.clone(),
            "1",
            "User Commands",
            &[("ingraft", "1"), ("ingraftd", "8")],
            false,
        ));
    }
    let daemon = definition(Program::Ingraftd);
    pages.push(ManualPage::new(
        daemon,
        "8",
        "System Administration",
        &[("ingraft", "1"), ("systemd.service", "5")],
        true,
    ));
    pages
}

impl ManualPage {
    fn new(
        command: Command,
        section: &'static str,
        manual: &'static str,
        see_also: &'static [(&'static str, &'static str)],
        files: bool,
    ) -> ManualPage {
        let after = command.get_after_long_help().or(command.get_after_help()).map(ToString::to_string);
        let commands = command.get_subcommands().any(|command| !command.is_hide_set());
        let name = command.get_display_name().unwrap_or(command.get_name()).to_owned();
        // clap_mangen omits an empty date, and the next field would take its place.
        let title = format!(
            ".TH {} {section} \"\" \"ingraft {}\" \"{manual}\"\n",
            name.to_uppercase(),
            env!("CARGO_PKG_VERSION")
        );
        // The generated usage of a command with many options would list them all.
        let command = if command.get_overridden_usage().is_some() || command.get_display_name().is_some() {
            command
        } else if commands {
            command.override_usage(format!("{name} [OPTIONS] <COMMAND>"))
        } else {
            command.override_usage(format!("{name} [OPTIONS]"))
        };
        let man = Man::new(command).section(section);
        ManualPage { man, title, after: after.unwrap_or_default(), see_also, files, commands }
    }

    /// Writes the page in the order of sections that man-pages(7) gives.
    fn render(&self, to: &mut dyn Write) -> std::io::Result<()> {
        to.write_all(self.title.as_bytes())?;
        self.man.render_name_section(to)?;
        self.man.render_synopsis_section(to)?;
        self.man.render_description_section(to)?;
        if self.commands {
            self.man.render_subcommands_section(to)?;
        }
        self.man.render_options_section(to)?;
        let mut roff = Roff::default();
        notes(&self.after, &mut roff);
        if self.files {
            roff.control("SH", ["FILES"]);
            for (path, holds) in FILES {
                roff.control("TP", []);
                roff.text([bold(*path)]);
                roff.text([roman(*holds)]);
            }
        }
        roff.control("SH", ["SEE ALSO"]);
        for (at, (page, section)) in self.see_also.iter().enumerate() {
            let end = if at + 1 == self.see_also.len() { "" } else { "," };
            roff.text([bold(*page), roman(format!("({section}){end}"))]);
        }
        roff.to_writer(to)
    }
}

/// Renders the text below the options. Its paragraphs are separated by empty lines; examples keep their lines.
fn notes(text: &str, roff: &mut Roff) {
    let (mut others, mut last) = (Vec::new(), Vec::new());
    for paragraph in text.split("\n\n") {
        if let Some(examples) = paragraph.strip_prefix("Examples:\n") {
            roff.control("SH", ["EXAMPLES"]);
            roff.control("nf", []);
            for line in examples.lines() {
                roff.text([roman(line.trim_start())]);
            }
            roff.control("fi", []);
        } else if let Some(statuses) = paragraph.strip_prefix("Exit status: ") {
            last.push(("EXIT STATUS", statuses));
        } else if !paragraph.trim().is_empty() {
            others.push(paragraph);
        }
    }
    for (heading, paragraph) in last {
        roff.control("SH", [heading]);
        sentences(paragraph, roff);
    }
    for (at, paragraph) in others.into_iter().enumerate() {
        if at == 0 {
            roff.control("SH", ["NOTES"]);
        } else {
            roff.control("PP", []);
        }
        sentences(paragraph, roff);
    }
}

fn sentences(paragraph: &str, roff: &mut Roff) {
    for line in paragraph.lines() {
        roff.text([roman(line)]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rendered(page: &ManualPage) -> String {
        let mut text = Vec::new();
        page.render(&mut text).unwrap();
        String::from_utf8(text).unwrap()
    }

    #[test]
    fn each_program_and_each_visible_command_has_a_page() {
        let names: Vec<String> = pages().iter().map(|page| page.man.get_filename()).collect();
        for name in ["ingraft.1", "ingraft-count.1", "ingraft-detach.1", "ingraftd.8"] {
            assert!(names.iter().any(|n| n == name), "{names:?}");
        }
        assert!(!names.iter().any(|name| name.contains("man.") || name.contains("server")), "{names:?}");
    }

    #[test]
    fn examples_keep_their_lines() {
        let text = rendered(&main_page());
        let examples = text.split(".SH EXAMPLES\n").nth(1).unwrap().split(".fi").next().unwrap();
        assert!(examples.starts_with(".nf\ningraft demo "), "{examples}");
        assert!(examples.lines().count() > 5, "{examples}");
        assert!(text.contains(".SH \"EXIT STATUS\"\n0 done"), "{text}");
        assert!(!text.contains("EXTRA"));
    }

    #[test]
    fn a_page_ends_with_others_to_read() {
        for page in pages() {
            let text = rendered(&page);
            let last = text.rsplit(".SH ").next().unwrap();
            assert!(last.starts_with("\"SEE ALSO\"\n"), "{text}");
        }
    }
}
