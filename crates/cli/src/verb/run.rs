//! The command `undying run [OPTIONS] -- CMD ARG...`: starts and supervises a program.
//!
//! Owns: the arguments of the command, and the form of its reports.
//! Does not: supervise the program; `guardian` does.

use std::ffi::OsString;
use std::num::{NonZeroU32, NonZeroU64};

use clap::builder::PossibleValuesParser;
use clap::{Arg, ArgMatches, Command, value_parser};
use guardian::{
    ChangedFiles, CostMax, Guarded, Launch, Preference, RestartLimit, RestartPolicy, RunRequest, SizeLimit,
    Success, Tuning,
};
use model::Pid;

use super::interface::Verb;
use crate::failure::Failure;
use crate::narrator::Narrator;
use crate::parse::Processors;
use crate::{parse, print};

pub(super) const VERB: Verb = Verb {
    name: "run",
    about: "Run a program, take checkpoints of it, and restore it when it dies",
    arguments,
    run,
};

fn arguments(command: Command) -> Command {
    let command = command
        .arg(parse::option("name", "N", "The name of the subject [default: the name of the program]"))
        .arg(
            parse::option("every", "DUR", "Time between two checkpoints, at least 10ms [default: 30s]")
                .value_parser(parse::every),
        )
        .arg(
            parse::flag("await-ready", "Take the first checkpoint when the program sends `ready` to UNDYING_SOCKET"),
        )
        .arg(
            parse::option("keep", "K", "Maximum number of checkpoints that are kept: the newest, and older ones at increasing distances [default: 8]")
                .value_parser(value_parser!(u32).range(1..)),
        )
        .arg(parse::option("store-max", "SIZE", STORE_MAX).long_help(STORE_MAX_LONG).value_parser(parse::store_max))
        .arg(parse::compress(COMPRESS))
        .arg(
            parse::option("compress-after", "DUR", COMPRESS_AFTER)
                .requires("compress")
                .value_parser(parse::duration),
        );
    with_tuning(with_restarts(command))
        .arg(parse::option("verify-every", "K", VERIFY).value_parser(value_parser!(NonZeroU64)))
        .arg(
            parse::flag(
                "dry-run-tracking",
                "Find dirty pages, but take no checkpoints; shows the cost of tracking alone",
            )
            .conflicts_with("verify-every"),
        )
        .arg(parse::option("tracker", "T", TRACKER).default_value(guardian::TRACKER_DEFAULT))
        .arg(parse::lose_connections())
        .arg(parse::on_restore())
        .arg(
            parse::option("output", "WHEN", OUTPUT)
                .long_help(OUTPUT_LONG)
                .value_parser(["at-once", "committed"]),
        )
        .arg(
            parse::option("adopt", "PID", "Protect a process that already runs")
                .value_parser(parse::parse_pid)
                .conflicts_with("CMD"),
        )
        .arg(
            Arg::new("CMD")
                .num_args(1..)
                .last(true)
                .required_unless_present("adopt")
                .value_parser(value_parser!(OsString))
                .help("The program and its arguments"),
        )
}

fn run(matches: &ArgMatches) -> Result<u8, Failure> {
    let request = request(matches)?;
    let mut narrator = Narrator::default();
    let status = guardian::run(&request, &mut |event| narrator.tell(None, event))?;
    drop(narrator);
    if status == guardian::SubjectStatus::Unknown {
        print::say(format_args!("undying: the subject {status}"));
    }
    Ok(status.code())
}

const OUTPUT: &str = "\
When TCP output of the program is sent: at-once, or committed (once a checkpoint contains it) [default: at-once]";

const OUTPUT_LONG: &str = "\
When TCP output of the program is sent: at-once, or committed: once a checkpoint contains the output. With committed, \
no peer has received data that a restored program does not know, and connections that a checkpoint contains continue \
after a restore. Each reply waits for the next checkpoint, so --every must be 1s or less [default: at-once]";

const VERIFY: &str = "\
Compare every K-th checkpoint with the memory of the program, page by page; the program is stopped meanwhile";

const TRACKER: &str = "How dirty pages are found: auto, pagemap-scan, soft-dirty or full";

const COPIERS: &str = "\
Number of threads that scan for dirty pages during a pause; more than one only from 128 MiB on [default: 2]";
/// Maximum of `--copiers`. More threads would only wait for memory.
const COPIERS_MAX: i64 = 64;
/// Maximum of `--granularity` in pages: a huge page.
const GRANULARITY_MAX: i64 = 512;

const MAX_PAUSE: &str = "Maximum time for which the program is stopped at once, at least 1ms [default: 5ms]";

const MAX_PAUSE_LONG: &str = "\
Maximum time for which the program is stopped at once, at least 1ms [default: 5ms]. If the program writes to pages \
faster than they are copied, one checkpoint consists of several stops of at most this time, and the program runs in \
between. A stop can still take longer because of state other than pages, for example hundreds of threads. The limit \
does not apply to trackers other than pagemap-scan, to files opened with O_DIRECT, and to shared memory";

const PREFER: &str = "\
What to optimize: pause (dirty pages are also copied before the pause) or throughput (up to 512 dirty pages are copied \
only in the pause)";

const COMPRESS: &str = "\
Compress segments of the store that have not changed for the time of --compress-after";

const COMPRESS_AFTER: &str = "Time without a change after which a segment is compressed [default: 1m]";

const RESTART: &str = "\
After which deaths the program is restarted: never, on-failure (every end that is no success) or always (after a \
success, it starts from its beginning)";

const RESTART_LONG: &str = "\
After which deaths the program is restarted. never: the program is not restarted. on-failure: it is restarted after \
every end that is no success (--success). If the restarted program exits by itself with the same code again, it has \
ended. always: it is restarted after every end; after a success, it starts from its beginning";

const RESTART_FROM: &str = "\
Take no checkpoints, and restart the program always from its beginning with its present files: beginning [default: \
restart from a checkpoint]";

const SUCCESS: &str = "\
Further exit codes and signals that count as success, like 10,20,SIGUSR1 [always: 0, 129, 130, 143, HUP, INT, PIPE, TERM]";

const SUCCESS_LONG: &str = "\
Further exit codes and signals that count as success, like 10,20,SIGUSR1. The program is not restarted from a \
checkpoint after a success. These ends always count as success: exit code 0; the signals HUP, INT, PIPE and TERM; and \
the exit codes 129, 130 and 143, with which Java and other programs end after the signals HUP, INT and TERM. The exit \
status of `undying run` is that of the program in each case";

/// The value of `--restart-from` for a program that no restart restores.
const BEGINNING: &str = "beginning";
/// The options that have no effect without checkpoints.
const OF_CHECKPOINTS: [&str; 10] = [
    "every",
    "await-ready",
    "verify-every",
    "dry-run-tracking",
    "output",
    "adopt",
    "files",
    "files-back-max",
    "cost-max",
    "store-max",
];

/// The event name of `--restart-on`.
const CHILD_SIGNAL: &str = "child-signal";

const RESTART_ON: &str = "\
An additional event that counts as a death of the program: child-signal (a child was killed by KILL, SEGV, BUS or \
ABRT)";

const RESTART_ON_LONG: &str = "\
An additional event that counts as a death of the program. child-signal: a descendant of the program was killed by \
SIGKILL (also by the OOM killer), SIGSEGV, SIGBUS or SIGABRT. Then all processes of the program are killed, and \
restored from the last checkpoint before this event. Do not use it for programs that kill their own children. Needs \
CAP_NET_ADMIN, CONFIG_PROC_EVENTS and the initial PID namespace";

const FILES: &str = "\
What a restart does with files that the program has changed: rewind, fresh, trim, keep or refuse [default: rewind if \
possible, else trim]";

const FILES_LONG: &str = "\
What a restart does with files that the program has changed since the checkpoint. rewind: these files are rolled back \
to the checkpoint, with their names and attributes; files that the program has created since are moved aside (`undying \
files NAME`). Needs Linux 6.14 or later and CAP_SYS_ADMIN. fresh: no file is touched; if the program has \
changed a file, it starts from its beginning and recovers from its files, as without undying. trim: a file to which \
the program has only appended is truncated to its length at the checkpoint, and the removed data is kept in the store; \
if it has changed another file, or a file in the same directory was removed, the program starts from its \
beginning. keep: the program is restored, and its files are not rolled back; this destroys databases and repeats lines \
of logs. refuse: undying exits with code 3 if the program has changed a file. Without this option: rewind if it \
is possible, else trim, with a message that names the reason";

const FILES_BACK_MAX: &str = "\
Maximum age of a checkpoint to which changed files are set back, at a death; beyond it, the program starts from its \
beginning with its present files [default: four times --every, at least 20s]";

const FILES_UNDO_MAX: &str = "\
Maximum size of the undo log of files, like 500MiB; above it, files can be rolled back only to newer checkpoints \
[default: 2GiB]";

const STORE_MAX: &str = "\
Maximum size of the checkpoints in the store; above it, fewer old ones are kept, but at least two; `off`: no limit [default: \
four times the memory of the program, at least three times and 64 MiB]";

const STORE_MAX_LONG: &str = "\
Maximum size of the checkpoints in the store. If as many checkpoints as --keep requests need more, fewer old ones are kept, \
but at least two. `status` says so. `off`: no limit. [default: four times the memory that the newest checkpoint contains, \
or three times and 64 MiB if that is more]";

const COST_MAX: &str = "\
How much longer, in per cent, the program may take because of checkpoints; above it, the interval grows; `off`: no \
limit [default: 10; off with --output committed]";

const COST_MAX_LONG: &str = "\
How much longer, in per cent, the program may take because of checkpoints: stops, page faults, and processor time of \
`undying` that the program could have used. If checkpoints at the requested interval cost more, the interval grows, up \
to half of --files-back-max. `status` shows the cost and the interval. `off`: no limit. [default: 10; off with --output \
committed]";

const FILES_COST_MAX: &str = "\
Maximum part of the time, in per cent, that recording old file content may take; above it, files can be rolled back \
only to every n-th checkpoint [default: 10; no limit with --output committed]";

fn with_tuning(command: Command) -> Command {
    command
        .arg(parse::option("copiers", "N", COPIERS).value_parser(value_parser!(u32).range(1..=COPIERS_MAX)))
        .arg(
            parse::option(
                "copier-cpus",
                "LIST",
                "Processors on which these threads run, like 0,2-3 [default: those of undying and of the program]",
            )
            .value_parser(parse::processors),
        )
        .arg(
            parse::option("granularity", "G", "Copy dirty pages in aligned groups of G pages [default: 1]")
                .value_parser(value_parser!(u32).range(1..=GRANULARITY_MAX)),
        )
        .arg(parse::option("max-pause", "DUR", MAX_PAUSE).long_help(MAX_PAUSE_LONG).value_parser(parse::max_pause))
        .arg(parse::option("cost-max", "PERCENT", COST_MAX).long_help(COST_MAX_LONG).value_parser(parse::cost_max))
        .arg(
            parse::option("prefer", "WHAT", PREFER)
                .default_value(Preference::default().name())
                .hide_possible_values(true)
                .value_parser(PossibleValuesParser::new(Preference::ALL.map(Preference::name))),
        )
}

/// Adds the arguments that define which events count as a death, and what follows a death.
fn with_restarts(command: Command) -> Command {
    let policies = RestartPolicy::ALL.map(RestartPolicy::name);
    command
        .arg(
            parse::option("restart", "POLICY", RESTART)
                .long_help(RESTART_LONG)
                .default_value(RestartPolicy::default().name())
                .hide_possible_values(true)
                .value_parser(PossibleValuesParser::new(policies)),
        )
        .arg(
            parse::option("restart-on", "EVENT", RESTART_ON)
                .hide_possible_values(true)
                .long_help(RESTART_ON_LONG)
                .value_parser(PossibleValuesParser::new([CHILD_SIGNAL])),
        )
        .arg(
            parse::option(
                "max-restarts",
                "N/DUR",
                "Give up after N restarts in the time DUR [default: 5/1m]",
            )
            .value_parser(parse::limit),
        )
        .arg(parse::option("success", "CODES", SUCCESS).long_help(SUCCESS_LONG).value_parser(parse::success))
        .arg(
            parse::option("restart-from", "WHERE", RESTART_FROM)
                .hide_possible_values(true)
                .value_parser([BEGINNING])
                .conflicts_with_all(OF_CHECKPOINTS),
        )
        .arg(
            parse::option("files", "POLICY", FILES)
                .hide_possible_values(true)
                .long_help(FILES_LONG)
                .value_parser(PossibleValuesParser::new(ChangedFiles::ALL.map(ChangedFiles::name))),
        )
        .arg(parse::option("files-back-max", "DUR", FILES_BACK_MAX).value_parser(parse::duration))
        .arg(parse::option("files-undo-max", "SIZE", FILES_UNDO_MAX).value_parser(parse::size))
        .arg(parse::option("files-cost-max", "PERCENT", FILES_COST_MAX).value_parser(parse::percent))
}

fn tuning(matches: &ArgMatches) -> Tuning {
    let wanted = matches.get_one::<String>("prefer").map(String::as_str);
    let standard = Tuning::default();
    let given = |name: &str| matches.get_one::<u32>(name).copied().and_then(NonZeroU32::new);
    Tuning {
        copiers: given("copiers").and_then(|count| count.try_into().ok()).unwrap_or(standard.copiers),
        processors: matches
            .get_one::<Processors>("copier-cpus")
            .map_or(standard.processors, |list| list.0.clone()),
        granularity: given("granularity").map_or(standard.granularity, NonZeroU64::from),
        max_pause: matches.get_one("max-pause").copied().or(standard.max_pause),
        prefer: Preference::ALL.into_iter().find(|one| Some(one.name()) == wanted).unwrap_or_default(),
    }
}

fn request(matches: &ArgMatches) -> Result<RunRequest, Failure> {
    let wanted = matches.get_one::<String>("restart").map(String::as_str);
    let policy = RestartPolicy::ALL.into_iter().find(|policy| Some(policy.name()) == wanted);
    let wanted = matches.get_one::<String>("files").map(String::as_str);
    let files = ChangedFiles::ALL.into_iter().find(|policy| Some(policy.name()) == wanted);
    let what = match matches.get_one::<Pid>("adopt") {
        Some(pid) => Guarded::Process(*pid),
        None => Guarded::Command(matches.get_many("CMD").into_iter().flatten().cloned().collect()),
    };
    let standard = RunRequest::new(what, parse::given_store(matches)?);
    let starts_anew = matches.contains_id("restart-from");
    let every = matches.get_one("every").copied().unwrap_or(guardian::EVERY_DEFAULT);
    let every = (!starts_anew).then_some(every);
    Ok(RunRequest {
        name: matches.get_one::<String>("name").cloned(),
        every,
        await_ready: matches.get_flag("await-ready"),
        launch: Launch { on_restore: parse::given_on_restore(matches), ..Launch::default() },
        lose_connections: matches.get_flag("lose-connections"),
        holds_output: matches.get_one::<String>("output").is_some_and(|when| when == "committed"),
        keep: matches.get_one::<u32>("keep").map_or(guardian::KEEP_DEFAULT, |keep| *keep as usize),
        compression: parse::given_compress(matches),
        compress_after: matches
            .get_one("compress-after")
            .copied()
            .unwrap_or(guardian::COMPRESS_AFTER_DEFAULT),
        verify_every: matches.get_one::<NonZeroU64>("verify-every").copied(),
        dry_run_tracking: matches.get_flag("dry-run-tracking"),
        tuning: tuning(matches),
        tracker: matches.get_one("tracker").cloned().unwrap_or_default(),
        policy: policy.unwrap_or_default(),
        success: matches.get_one::<Success>("success").copied().unwrap_or_default(),
        child_signals: matches.get_one::<String>("restart-on").is_some(),
        files,
        files_undo_max: matches
            .get_one("files-undo-max")
            .copied()
            .unwrap_or(guardian::FILES_UNDO_MAX_DEFAULT),
        files_back_max: matches.get_one("files-back-max").copied(),
        store_max: matches.get_one::<SizeLimit>("store-max").copied().unwrap_or_default(),
        cost_max: matches.get_one::<CostMax>("cost-max").copied().unwrap_or_default(),
        files_cost_max: matches.get_one("files-cost-max").copied(),
        limit: matches.get_one::<RestartLimit>("max-restarts").copied().unwrap_or_default(),
        ..standard
    })
}
