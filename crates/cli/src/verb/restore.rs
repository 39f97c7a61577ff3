//! The command `undying restore IMAGE [--files rewind|refuse|keep|force] [--lazy] [--detach] [--lose-connections]
//! [--late-timers] [--on-restore CMD] [--pidfile F] [--pid auto|same]`: restores a program from an image.
//!
//! Owns: the arguments of the command, and its message.
//! Does not: restore a process tree; `guardian` does.

use std::path::PathBuf;

use clap::builder::PossibleValuesParser;
use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
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

pub(super) struct Restore;

impl Verb for Restore {
    fn name(&self) -> &'static str {
        "restore"
    }

    fn about(&self) -> &'static str {
        "Restore a process tree from an image, and exit with the status of its root"
    }

    fn arguments(&self, command: Command) -> Command {
        command
            .arg(parse::image())
            .arg(
                Arg::new("detach")
                    .long("detach")
                    .action(ArgAction::SetTrue)
                    .help("Exit as soon as the tree runs, instead of waiting for its end"),
            )
            .arg(
                Arg::new("lazy")
                    .long("lazy")
                    .action(ArgAction::SetTrue)
                    .help("Resume the program at once, and load its memory while it runs")
                    .long_help(LAZY_HELP),
            )
            .arg(parse::lose_connections())
            .arg(parse::on_restore())
            .arg(
                Arg::new("late-timers")
                    .long("late-timers")
                    .action(ArgAction::SetTrue)
                    .help("Restore although a clock of this machine is behind the time of the checkpoint")
                    .long_help(LATE_TIMERS_HELP),
            )
            .arg(
                Arg::new("files")
                    .long("files")
                    .value_name("POLICY")
                    .value_parser(PossibleValuesParser::new(RestoredFiles::NAMED.map(RestoredFiles::name)))
                    .hide_possible_values(true)
                    .help(FILES_HELP)
                    .long_help(FILES_LONG_HELP),
            )
            .arg(
                Arg::new("pidfile")
                    .long("pidfile")
                    .value_name("F")
                    .value_parser(value_parser!(PathBuf))
                    .help("Write the pid of the root process to this file"),
            )
            .arg(
                Arg::new("pid")
                    .long("pid")
                    .value_name("HOW")
                    .default_value("auto")
                    .hide_possible_values(true)
                    .value_parser(PossibleValuesParser::new(["auto", "same"]))
                    .help(PID_HELP),
            )
    }

    fn run(&self, matches: &ArgMatches) -> Result<u8, Failure> {
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
}
