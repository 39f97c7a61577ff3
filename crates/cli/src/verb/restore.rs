//! The command `undying restore IMAGE [--files rewind|refuse|keep|force] [--lazy] [--detach] [--lose-connections]
//! [--late-timers] [--on-restore CMD] [--pidfile F] [--pid auto|same]`: restores a program from an image.
//!
//! Owns: the arguments of the command, and its message.
//! Does not: restore a process tree; `guardian` does.

use std::path::PathBuf;

use clap::builder::PossibleValuesParser;
use clap::{ArgMatches, Command, value_parser};
use guardian::{RestoreRequest, RestoredFiles, RunEvent};

use super::interface::Verb;
use crate::failure::Failure;
use crate::narrator::Narrator;
use crate::{parse, print};

const PID_HELP: &str = "\
Pids of the restored tree: same or auto. Both mean the pids of the checkpoint; refused if a pid is in use";

const FILES_HELP: &str = "\
What happens to files that the program has changed: rewind, refuse, keep or force [default: rewind if the subject has \
an undo log, else refuse]";

const FILES_LONG_HELP: &str = "\
What happens to files that the program has changed since the checkpoint. rewind: these files are rolled back to the \
checkpoint, and files that the program has created since are moved aside (`undying files NAME`). The restore is \
refused if another program has changed such a file since the program ended; the message names these files. force: as \
rewind, but these files are rolled back, too, and the end of the program need not be recorded. refuse: the restore is refused if a file has changed. A file counts as \
unchanged if the program has only appended to it: it is truncated to its length at the checkpoint, and the removed \
data is kept. It counts as changed if a file in the same directory was removed. keep: the files are not rolled back; \
this destroys databases and repeats lines of logs. Without this option: rewind if the subject has an undo log, else \
refuse";

const LAZY_HELP: &str = "\
Resume the program at once, and load its memory while it runs.
Pages that the program accesses are loaded first. undying stays until all pages are loaded, also with --detach. If \
undying is killed before, the program is killed, too. If a damaged page is found, the program is killed. Without \
--lazy, the whole image is checked before the program runs";

const LATE_TIMERS_HELP: &str = "\
Restore although a clock of this machine is behind the time of the checkpoint.
After a restart of the machine, the clocks CLOCK_MONOTONIC and CLOCK_BOOTTIME begin at zero. Programs store the times \
at which their waits end. Such a wait then lasts until the clock has reached the old time. The message of the refusal \
states by how long the clock is behind";

pub(super) const VERB: Verb = Verb {
    name: "restore",
    about: "Restore a process tree from an image, and exit with the status of its root",
    arguments,
    run,
};

fn arguments(command: Command) -> Command {
    command
        .arg(parse::image())
        .arg(parse::flag("detach", "Exit as soon as the tree runs, instead of waiting for its end"))
        .arg(
            parse::flag("lazy", "Resume the program at once, and load its memory while it runs")
                .long_help(LAZY_HELP),
        )
        .arg(parse::lose_connections())
        .arg(parse::on_restore())
        .arg(
            parse::flag(
                "late-timers",
                "Restore although a clock of this machine is behind the time of the checkpoint",
            )
            .long_help(LATE_TIMERS_HELP),
        )
        .arg(
            parse::option("files", "POLICY", FILES_HELP)
                .value_parser(PossibleValuesParser::new(RestoredFiles::NAMED.map(RestoredFiles::name)))
                .hide_possible_values(true)
                .long_help(FILES_LONG_HELP),
        )
        .arg(
            parse::option("pidfile", "F", "Write the pid of the root process to this file")
                .value_parser(value_parser!(PathBuf)),
        )
        .arg(
            parse::option("pid", "HOW", PID_HELP)
                .default_value("auto")
                .hide_possible_values(true)
                .value_parser(PossibleValuesParser::new(["auto", "same"])),
        )
}

fn run(matches: &ArgMatches) -> Result<u8, Failure> {
    let request = RestoreRequest {
        image: parse::given_image(matches),
        store: parse::given_store(matches)?,
        files: RestoredFiles::NAMED
            .into_iter()
            .find(|files| matches.get_one::<String>("files").is_some_and(|given| given == files.name()))
            .unwrap_or_default(),
        lazy: matches.get_flag("lazy"),
        late_timers: matches.get_flag("late-timers"),
        lose_connections: matches.get_flag("lose-connections"),
        detach: matches.get_flag("detach"),
        pidfile: matches.get_one::<PathBuf>("pidfile").cloned(),
        on_restore: parse::given_on_restore(matches),
    };
    let mut narrator = Narrator::default();
    let mut tell = |event: &RunEvent| narrator.tell(None, event);
    let resumed = guardian::restore(&request, &mut tell)?;
    drop(narrator);
    if request.detach {
        print::say(format_args!(
            "restored {} as pid {} ({} processes) in {}{}",
            request.image,
            resumed.root,
            resumed.processes,
            print::duration(resumed.total),
            if request.lazy {
                format!(", all memory loaded after {}", print::duration(resumed.filled))
            } else {
                String::new()
            },
        ));
    }
    Ok(resumed.status.map_or(0, guardian::SubjectStatus::code))
}
