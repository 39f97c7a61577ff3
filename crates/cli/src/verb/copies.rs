//! The commands `undying store IMAGE COPY`, `get COPY DIR [--compress CODEC]`, `link COPY NEW` and `del COPY`, which
//! manage named copies of checkpoints.
//!
//! Owns: the arguments of the commands, and their messages.
//! Does not: copy data; `guardian` does.

use std::path::PathBuf;

use clap::{Arg, ArgMatches, Command, value_parser};

use super::interface::Verb;
use crate::failure::Failure;
use crate::{parse, print};

pub(super) struct StoreCopy;
pub(super) struct GetCopy;
pub(super) struct LinkCopy;
pub(super) struct DelCopy;

impl Verb for StoreCopy {
    fn name(&self) -> &'static str {
        "store"
    }

    fn about(&self) -> &'static str {
        "Keep a checkpoint as a named copy, which shares the pages of the checkpoint"
    }

    fn arguments(&self, command: Command) -> Command {
        command.arg(parse::image()).arg(parse::name("COPY", "The name of the copy, which must be unused"))
    }

    fn run(&self, matches: &ArgMatches) -> Result<u8, Failure> {
        let image = parse::given_image(matches);
        tell(guardian::store_copy(&parse::given_store(matches)?, &image, &parse::given(matches, "COPY"))?)
    }
}

impl Verb for GetCopy {
    fn name(&self) -> &'static str {
        "get"
    }

    fn about(&self) -> &'static str {
        "Write a copy or a checkpoint to a directory that shares nothing with the store"
    }

    fn arguments(&self, command: Command) -> Command {
        let directory = Arg::new("DIR").required(true).value_parser(value_parser!(PathBuf));
        command
            .arg(parse::image())
            .arg(directory.help("The image's directory, which does not exist yet"))
            .arg(parse::compress(parse::COMPRESS_PAGES))
    }

    fn run(&self, matches: &ArgMatches) -> Result<u8, Failure> {
        let directory = matches.get_one::<PathBuf>("DIR").cloned().unwrap_or_default();
        let (store, image) = (parse::given_store(matches)?, parse::given_image(matches));
        tell(guardian::get_copy(&store, &image, &directory, parse::given_compress(matches))?)
    }
}

impl Verb for LinkCopy {
    fn name(&self) -> &'static str {
        "link"
    }

    fn about(&self) -> &'static str {
        "Give a copy a second name"
    }

    fn arguments(&self, command: Command) -> Command {
        let new = parse::name("NEW", "The second name, which must be unused");
        command.arg(parse::name("COPY", "The copy")).arg(new)
    }

    fn run(&self, matches: &ArgMatches) -> Result<u8, Failure> {
        let (copy, new) = (parse::given(matches, "COPY"), parse::given(matches, "NEW"));
        tell(guardian::link_copy(&parse::given_store(matches)?, &copy, &new)?)
    }
}

impl Verb for DelCopy {
    fn name(&self) -> &'static str {
        "del"
    }

    fn about(&self) -> &'static str {
        "Remove a copy; a subject's own checkpoints are left to prune"
    }

    fn arguments(&self, command: Command) -> Command {
        command.arg(parse::name("COPY", "The copy"))
    }

    fn run(&self, matches: &ArgMatches) -> Result<u8, Failure> {
        let copy = parse::given(matches, "COPY");
        guardian::remove_copy(&parse::given_store(matches)?, &copy)?;
        print::line(format_args!("removed {copy}"))?;
        Ok(0)
    }
}

fn tell(copied: guardian::Copied) -> Result<u8, Failure> {
    print::line(format_args!("{}", copied.path))?;
    Ok(0)
}
