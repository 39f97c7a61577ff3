//! The command `undying checkpoint PID --image DIR [--kill] [--lose-connections] [--compress CODEC]`: writes an image
//! of a process tree.
//!
//! Owns: the arguments of the command, and its message.
//! Does not: take a checkpoint; `guardian` does.

use std::path::PathBuf;

use clap::{ArgMatches, Command, value_parser};
use guardian::CheckpointRequest;

use super::interface::Verb;
use crate::failure::Failure;
use crate::{parse, print};

pub(super) const VERB: Verb = Verb {
    name: "checkpoint",
    about: "Write one image of a process tree; the tree continues to run",
    arguments,
    run,
};

fn arguments(command: Command) -> Command {
    command
        .arg(parse::pid("The root of the tree").required(true))
        .arg(
            parse::option(
                "image",
                "DIR",
                "The directory that becomes the image; it must not exist or be empty",
            )
            .required(true)
            .value_parser(value_parser!(PathBuf)),
        )
        .arg(parse::flag("kill", "End the tree once the image is committed"))
        .arg(parse::lose_connections())
        .arg(parse::compress(parse::COMPRESS_PAGES))
}

fn run(matches: &ArgMatches) -> Result<u8, Failure> {
    let request = CheckpointRequest {
        pid: parse::given_pid(matches),
        image: matches.get_one::<PathBuf>("image").cloned().unwrap_or_default(),
        kill: matches.get_flag("kill"),
        lose_connections: matches.get_flag("lose-connections"),
        compression: parse::given_compress(matches),
    };
    let done = guardian::checkpoint(&request)?;
    print::say(format_args!(
        "checkpoint of pid {} in {}: {} pages, {}; pause {}",
        request.pid,
        request.image.display(),
        done.pages,
        print::bytes(done.bytes.get()),
        print::duration(done.pause),
    ));
    Ok(0)
}
