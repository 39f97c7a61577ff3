//! The command `undying checkpoint PID --image DIR [--kill] [--lose-connections] [--compress CODEC]`: writes an image
//! of a process tree.
//!
//! Owns: the arguments of the command, and its message.
//! Does not: take a checkpoint; `guardian` does.

use std::path::PathBuf;

use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use guardian::CheckpointRequest;

use super::interface::Verb;
use crate::failure::Failure;
use crate::{parse, print};

pub(super) struct Checkpoint;

impl Verb for Checkpoint {
    fn name(&self) -> &'static str {
        "checkpoint"
    }

    fn about(&self) -> &'static str {
        "Write one image of a process tree; the tree continues to run"
    }

    fn arguments(&self, command: Command) -> Command {
        command
            .arg(parse::pid("The root of the tree").required(true))
            .arg(
                Arg::new("image")
                    .long("image")
                    .value_name("DIR")
                    .required(true)
                    .value_parser(value_parser!(PathBuf))
                    .help("The directory that becomes the image; it must not exist or be empty"),
            )
            .arg(
                Arg::new("kill")
                    .long("kill")
                    .action(ArgAction::SetTrue)
                    .help("End the tree once the image is committed"),
            )
            .arg(parse::lose_connections())
            .arg(parse::compress(parse::COMPRESS_PAGES))
    }

    fn run(&self, matches: &ArgMatches) -> Result<u8, Failure> {
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
}
