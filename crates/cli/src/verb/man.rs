//! The command `undying man`: prints the manual page.
//!
//! Owns: the structure of the manual page: the program, and then every verb (subcommand).
//! Does not: contain the name of any verb; the page is generated from the whole command line.

use std::io::Write;

use clap::{ArgMatches, Command};
use clap_mangen::Man;

use super::interface::Verb;
use crate::failure::Failure;

/// Returns the verb. `run` prints the page.
pub(super) const fn verb(run: fn(&ArgMatches) -> Result<u8, Failure>) -> Verb {
    Verb {
        name: "man",
        about: "Print the manual page (`undying man | man -l -`)",
        arguments: |command| command,
        run,
    }
}

/// Prints the manual page of the command line `whole`.
pub(super) fn print(mut whole: Command) -> Result<u8, Failure> {
    whole.build();
    let mut text = Vec::new();
    let verbs: Vec<Command> = whole.get_subcommands().cloned().collect();
    Man::new(whole).render(&mut text)?;
    // Each verb is a section of this page, and has no separate page.
    let mut page = String::from_utf8_lossy(&text).into_owned();
    for verb in &verbs {
        let name = verb.get_name();
        page = page.replace(&format!("undying\\-{name}(1)"), &format!("undying {name}"));
    }
    let mut text = page.into_bytes();
    for verb in verbs {
        let title = format!(".SH \"UNDYING {}\"\n", verb.get_name().to_uppercase());
        text.write_all(title.as_bytes())?;
        let page = Man::new(verb);
        page.render_description_section(&mut text)?;
        page.render_synopsis_section(&mut text)?;
        page.render_options_section(&mut text)?;
    }
    std::io::stdout().lock().write_all(&text)?;
    Ok(0)
}
