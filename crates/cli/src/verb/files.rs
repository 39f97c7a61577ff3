//! The command `undying files NAME [--put-back PATH] [--json]`: manages files that a restart has moved aside.
//!
//! Owns: the arguments of the command, and the list of moved files.
//! Does not: move files; `guardian` does.

use std::path::PathBuf;

use clap::{ArgMatches, Command, value_parser};

use super::interface::Verb;
use crate::failure::Failure;
use crate::{parse, print};

pub(super) const VERB: Verb = Verb {
    name: "files",
    about: "List files that restarts of a subject have moved aside, or put one back",
    arguments,
    run,
};

fn arguments(command: Command) -> Command {
    command
        .arg(parse::name("NAME", "The subject"))
        .arg(
            parse::option(
                "put-back",
                "PATH",
                "Put the newest that was moved aside from PATH back there; nothing may be there now",
            )
            .value_parser(value_parser!(PathBuf)),
        )
        .arg(parse::json())
}

fn run(matches: &ArgMatches) -> Result<u8, Failure> {
    let (store, name) = (parse::given_store(matches)?, parse::given(matches, "NAME"));
    let json = matches.get_flag("json");
    if let Some(path) = matches.get_one::<PathBuf>("put-back") {
        let row = guardian::put_back(&store, &name, path)?;
        if json {
            print::json(&row)?;
        } else {
            print::line(format_args!("put back {}", row.path))?;
        }
        return Ok(0);
    }
    let found = guardian::moved_aside(&store, &name)?;
    if json {
        print::json(&found)?;
        return Ok(0);
    }
    let rows: Vec<Vec<String>> =
        found.iter().map(|row| vec![print::bytes(row.bytes), row.path.clone(), row.to.clone()]).collect();
    print::table(&["SIZE", "PATH", "NOW IN"], &rows)?;
    Ok(0)
}
