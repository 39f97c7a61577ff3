//! The command `undying check FILE.toml`: checks a system file, which describes a group of programs.
//!
//! Owns: the arguments of the command, and the text form of a system.
//! Does not: read or check the file; `guardian` does.

use std::path::PathBuf;

use clap::{Arg, ArgMatches, Command, value_parser};

use super::interface::Verb;
use crate::failure::Failure;
use crate::{parse, print};

pub(super) const VERB: Verb = Verb {
    name: "check",
    about: "Check a system file: errors, users and programs, and start order",
    arguments,
    run,
};

fn arguments(command: Command) -> Command {
    command
        .arg(
            Arg::new("FILE")
                .value_parser(value_parser!(PathBuf))
                .required_unless_present("schema")
                .help("The system file (TOML)"),
        )
        .arg(
            parse::flag(
                "file-only",
                "Do not check whether this machine has the users, programs, directories and logs",
            )
            .requires("FILE"),
        )
        .arg(parse::flag("schema", "Print the JSON schema of system files").conflicts_with("FILE"))
}

fn run(matches: &ArgMatches) -> Result<u8, Failure> {
    let Some(path) = matches.get_one::<PathBuf>("FILE") else {
        print::lines(&guardian::System::schema())?;
        return Ok(0);
    };
    let system = guardian::check_system(path, matches.get_flag("file-only"))?;
    let (name, components, groups) =
        (system.system.name.get_ref(), system.component.len(), system.group.len());
    print::line(format_args!("{name}: {components} components, {groups} groups"))?;
    for (row, components) in system.start_order().iter().enumerate() {
        print::line(format_args!("{}. {}", row + 1, components.join(", ")))?;
    }
    if !matches.get_flag("file-only") {
        guardian::lacks_for(&system).iter().for_each(|lack| print::say(format_args!("undying: {lack}")));
    }
    Ok(0)
}
