//! The command `undying squash NAME [--json]`: merges the deltas (incremental checkpoints) of a subject, which is a
//! protected process tree.
//!
//! Owns: the arguments of the command, and its message.
//! Does not: merge data; `guardian` does.

use clap::ArgMatches;

use super::interface::Verb;
use crate::failure::Failure;
use crate::{parse, print};

pub(super) const VERB: Verb = Verb {
    name: "squash",
    about: "Merge the deltas of a subject that is not running: its newest checkpoint in one piece",
    arguments: |command| command.arg(parse::name("NAME", "The subject")).arg(parse::json()),
    run,
};

fn run(matches: &ArgMatches) -> Result<u8, Failure> {
    let report = guardian::squash(&parse::given_store(matches)?, &parse::given(matches, "NAME"))?;
    if matches.get_flag("json") {
        print::json(&report)?;
        return Ok(0);
    }
    let Some(sequence) = report.seq else {
        print::line(format_args!(
            "{}: nothing to merge, each checkpoint is an image of its own",
            report.name
        ))?;
        return Ok(0);
    };
    let size = print::bytes(report.bytes);
    print::line(format_args!(
        "merged {}@{sequence}: {size} of pages, {} index parts",
        report.name, report.parts
    ))?;
    let (before, after) = (print::bytes(report.before_bytes), print::bytes(report.after_bytes));
    print::line(format_args!(
        "the log used {before} and now uses {after}; {} older checkpoints stay",
        report.older
    ))?;
    Ok(0)
}
