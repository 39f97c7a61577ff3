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

pub(super) const STORE: Verb = Verb {
    name: "store",
    about: "Keep a checkpoint as a named copy, which shares the pages of the checkpoint",
    arguments: |command| {
        command.arg(parse::image()).arg(parse::name("COPY", "The name of the copy, which must be unused"))
    },
    run: store,
};

fn store(matches: &ArgMatches) -> Result<u8, Failure> {
    let image = parse::given_image(matches);
    tell(guardian::store_copy(&parse::given_store(matches)?, &image, &parse::given(matches, "COPY"))?)
}

pub(super) const GET: Verb = Verb {
    name: "get",
    about: "Write a copy or a checkpoint to a directory that shares nothing with the store",
    arguments: get_arguments,
    run: get,
};

fn get_arguments(command: Command) -> Command {
    let directory = Arg::new("DIR").required(true).value_parser(value_parser!(PathBuf));
    command
        .arg(parse::image())
        .arg(directory.help("The image's directory, which does not exist yet"))
        .arg(parse::compress(parse::COMPRESS_PAGES))
}

fn get(matches: &ArgMatches) -> Result<u8, Failure> {
    let directory = matches.get_one::<PathBuf>("DIR").cloned().unwrap_or_default();
    let (store, image) = (parse::given_store(matches)?, parse::given_image(matches));
    tell(guardian::get_copy(&store, &image, &directory, parse::given_compress(matches))?)
}

pub(super) const LINK: Verb =
    Verb { name: "link", about: "Give a copy a second name", arguments: link_arguments, run: link };

fn link_arguments(command: Command) -> Command {
    let new = parse::name("NEW", "The second name, which must be unused");
    command.arg(parse::name("COPY", "The copy")).arg(new)
}

fn link(matches: &ArgMatches) -> Result<u8, Failure> {
    let (copy, new) = (parse::given(matches, "COPY"), parse::given(matches, "NEW"));
    tell(guardian::link_copy(&parse::given_store(matches)?, &copy, &new)?)
}

pub(super) const DEL: Verb = Verb {
    name: "del",
    about: "Remove a copy; a subject's own checkpoints are left to prune",
    arguments: |command| command.arg(parse::name("COPY", "The copy")),
    run: del,
};

fn del(matches: &ArgMatches) -> Result<u8, Failure> {
    let copy = parse::given(matches, "COPY");
    guardian::remove_copy(&parse::given_store(matches)?, &copy)?;
    print::line(format_args!("removed {copy}"))?;
    Ok(0)
}

fn tell(copied: guardian::Copied) -> Result<u8, Failure> {
    print::line(format_args!("{}", copied.path))?;
    Ok(0)
}
