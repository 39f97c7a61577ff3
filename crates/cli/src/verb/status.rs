//! The commands `undying status [NAME] [--json]` and `undying status --graph`: show the state of subjects (protected
//! process trees).
//!
//! Owns: the table of subjects, and the lines about each subject.
//! Invariants: the whole answer is on standard output. Standard error has only the errors of subjects that cannot be read.
//! Does not: read the state of subjects; `guardian` does.

use std::time::Duration;

use clap::{Arg, ArgMatches, Command};
use guardian::{ChangedFiles, ConnectionsReport, RefusalReport, SubjectReport};
use model::Escaped;

use super::interface::Verb;
use crate::failure::{Failure, report_left_out};
use crate::{parse, print, shown};

pub(super) const VERB: Verb =
    Verb { name: "status", about: "Show the state of guarded subjects", arguments, run };

fn arguments(command: Command) -> Command {
    command.arg(Arg::new("NAME").help("The subject")).arg(parse::json()).arg(
        parse::flag(
            "graph",
            "Print the components of a system with their dependencies and states, for Graphviz",
        )
        .conflicts_with_all(["json", "NAME"]),
    )
}

fn run(matches: &ArgMatches) -> Result<u8, Failure> {
    let name = matches.get_one::<String>("NAME").map(String::as_str);
    let store = parse::given_store(matches)?;
    if name.is_none() {
        print::say_if_missing(&store);
    }
    let found = guardian::status(&store, name)?;
    if matches.get_flag("graph") {
        print::lines(&super::graph::text(&found.rows))?;
        return Ok(report_left_out(&found.failed));
    }
    if matches.get_flag("json") {
        print::json(&found.rows)?;
        return Ok(report_left_out(&found.failed));
    }
    let rows: Vec<Vec<String>> = found.rows.iter().map(row).collect();
    let head = [
        "NAME",
        "PID",
        "STATE",
        "POLICY",
        "INCARNATION",
        "CHECKPOINTS",
        "AGE",
        "RATE",
        "PAUSE P99",
        "PAUSE LIMIT",
        "SIZE",
        "LAST DEATH",
    ];
    print::table(&head, &rows)?;
    shown::tell_unprotected(&found.rows)?;
    for subject in &found.rows {
        if let Some(fresh) = &subject.facts.fresh {
            say(format_args!(
                "{}: started from its beginning at {}: {}",
                subject.facts.name,
                fresh.time,
                guardian::one_line(&fresh.reason)
            ))?;
        }
        tell_component(subject)?;
        tell_left(subject)?;
        tell_slices(subject)?;
        tell_costs(subject)?;
        tell_stored(subject)?;
        tell_connections(subject)?;
        tell_files(subject)?;
        tell_outlook(subject)?;
        let names_files = subject.state.is_watched() && !subject.facts.files.is_empty();
        if names_files && subject.facts.files.policy != ChangedFiles::Keep {
            say(format_args!("{}: {}", subject.facts.name, subject.facts.files))?;
        }
        tell_missing(subject)?;
    }
    Ok(report_left_out(&found.failed))
}

/// Prints a part of the answer about a subject.
fn say(what: std::fmt::Arguments<'_>) -> std::io::Result<()> {
    print::lines(&what.to_string())
}

/// Reports processes that still run although the subject has ended.
fn tell_left(subject: &SubjectReport) -> std::io::Result<()> {
    let [first, others @ ..] = subject.left.as_slice() else { return Ok(()) };
    let (run, others) = match others.len() {
        0 => ("runs and is", String::new()),
        1 => ("run and are", " and 1 other process of it".to_owned()),
        count => ("run and are", format!(" and {count} other processes of it")),
    };
    let (name, program) = (&subject.facts.name, Escaped(&first.program));
    say(format_args!("{name}: pid {} ({program}){others} still {run} not guarded", first.pid))
}

/// Reports that stops last longer than requested, and that the last checkpoint needed several stops.
fn tell_slices(subject: &SubjectReport) -> std::io::Result<()> {
    let (name, slices) = (&subject.facts.name, subject.facts.slices);
    let time = |microseconds| print::duration(Duration::from_micros(microseconds));
    if subject.state.is_watched()
        && let (Some(asked), Some(now)) = (subject.facts.max_pause_asked_us, subject.facts.max_pause_us)
    {
        say(format_args!(
            "{name}: a stop of all threads takes longer than the requested {}; stops may last {}",
            time(asked),
            time(now)
        ))?;
    }
    let longest = subject.facts.pause_us.max;
    if let Some(limit) =
        subject.facts.max_pause_us.filter(|limit| subject.state.is_watched() && longest > 2 * limit)
    {
        say(format_args!(
            "{name}: the longest of the recent pauses took {}, although pauses should take at most {}; `undying events {name}` \
             shows when",
            time(longest),
            time(limit)
        ))?;
    }
    if subject.state.is_watched() && slices.count > 0 {
        say(format_args!(
            "{name}: the last checkpoint needed {} more {} of at most {}, {} in total: the program writes to pages faster \
             than they can be copied in one pause",
            slices.count,
            if slices.count == 1 { "stop" } else { "stops" },
            time(slices.longest_us),
            time(slices.total_us)
        ))?;
    }
    Ok(())
}

/// Reports checkpoints that were taken late, or not at all.
fn tell_missing(subject: &SubjectReport) -> std::io::Result<()> {
    let name = &subject.facts.name;
    let is_new = |told: &&RefusalReport| !subject.is_unprotected_because(&told.reason);
    for slow in subject.facts.held_back.iter().filter(is_new) {
        say(format_args!("{name}: {} taken late: {}", checkpoints_were(slow.count), slow.reason))?;
    }
    for refusal in subject.facts.refusals.iter().filter(is_new) {
        let reason = guardian::headline(&refusal.reason);
        say(format_args!("{name}: {} not taken: {reason}", checkpoints_were(refusal.count)))?;
    }
    Ok(())
}

fn checkpoints_were(count: u64) -> String {
    if count == 1 { "1 checkpoint was".to_owned() } else { format!("{count} checkpoints were") }
}

/// Reports that fewer checkpoints are kept than requested.
fn tell_stored(subject: &SubjectReport) -> std::io::Result<()> {
    let (name, stored) = (&subject.facts.name, subject.facts.stored);
    if let Some(max) = stored.max_bytes.filter(|_| stored.is_shortened) {
        say(format_args!(
            "{name}: {} checkpoints are kept, because more would need more than {} (--store-max)",
            stored.kept,
            print::bytes(max)
        ))?;
        if subject.store_bytes > max {
            say(format_args!(
                "{name}: the store needs {} now, more than this limit: at least two checkpoints are kept",
                print::bytes(subject.store_bytes)
            ))?;
        }
    }
    Ok(())
}

/// Reports that checkpoints are taken less often than requested because of their cost.
fn tell_costs(subject: &SubjectReport) -> std::io::Result<()> {
    let (name, costs) = (&subject.facts.name, subject.facts.costs);
    let Some((interval, limit)) = costs.interval_us.zip(costs.max_percent) else { return Ok(()) };
    if subject.state.is_watched() {
        let interval = print::duration(Duration::from_micros(interval));
        say(format_args!(
            "{name}: checkpoints are taken every {interval}, because more of them would cost more than {limit} % of the \
             program's time (--cost-max); they cost {:.1} % now",
            costs.percent
        ))?;
    }
    Ok(())
}

/// Reports the connections that survive the death of the subject.
fn tell_connections(subject: &SubjectReport) -> std::io::Result<()> {
    let (name, connections) = (&subject.facts.name, subject.facts.connections);
    let ConnectionsReport { idle, kept, ended, held, unheld, rewound, late_releases } = connections;
    if !subject.state.is_watched() {
        return Ok(());
    }
    if unheld > 0 {
        say(format_args!(
            "{name}: the program can forget answers that a peer has: output of {unheld} UDP or Unix socket{} is not held",
            if unheld == 1 { "" } else { "s" }
        ))?;
    }
    if late_releases > 0 {
        say(format_args!(
            "{name}: held output was sent {late_releases} time{} before a checkpoint contained it",
            if late_releases == 1 { "" } else { "s" }
        ))?;
    }
    if (ConnectionsReport { unheld: 0, late_releases: 0, ..connections }) != ConnectionsReport::default() {
        say(format_args!(
            "{name}: connections that survive a death now: {held} with held output, {idle} idle; at earlier deaths, {rewound} \
             continued from the checkpoint, {kept} stayed open, {ended} ended"
        ))?;
    }
    Ok(())
}

/// Reports why the files of a subject are not rolled back, or not to every checkpoint.
fn tell_files(subject: &SubjectReport) -> std::io::Result<()> {
    let (name, files) = (&subject.facts.name, &subject.facts.files);
    if !subject.state.is_watched() {
        return Ok(());
    }
    if let Some(why) = &files.because {
        say(format_args!("{name}: files are not rolled back with the program: {}", guardian::one_line(why)))?;
    }
    if let Some(why) = &files.unnoticed {
        say(format_args!(
            "{name}: a restart compares only files that were open at the checkpoint: {}",
            guardian::one_line(why)
        ))?;
    }
    let apart = Duration::from_micros(files.apart_us);
    if apart.as_secs_f64() * subject.facts.requested_hz > 1.0 {
        say(format_args!(
            "{name}: files can be rolled back to at most one checkpoint per {}, because recording old content takes {:.1} % of the time",
            print::duration(apart),
            files.cost * 100.0
        ))?;
    }
    Ok(())
}

/// Reports what a death now would bring, and that checkpoints are late.
fn tell_outlook(subject: &SubjectReport) -> std::io::Result<()> {
    let name = &subject.facts.name;
    if !subject.state.is_watched() {
        return Ok(());
    }
    if let Some(held) = &subject.facts.held {
        let (seq, until) = (held.seq, &held.until);
        say(format_args!(
            "{name}: is held at checkpoint {seq}, at most until {until}; `undying release {name}` ends this"
        ))?;
    }
    if let Some(death_now) = &subject.facts.death_now {
        let age = death_now.taken.as_deref().and_then(guardian::age).map(print::duration);
        let lost = age.map_or(String::new(), |age| format!("; the work of {age} would be lost"));
        say(format_args!("{name}: a death now {death_now}{lost}"))?;
    }
    if let Some(late) = &subject.facts.late {
        say(format_args!("{name}: no checkpoint was committed since {}: {}", late.since, late.reason))?;
    }
    Ok(())
}

/// Reports the dependencies for which a component waits, its last fault, and its own status text.
fn tell_component(subject: &SubjectReport) -> std::io::Result<()> {
    let Some(component) = &subject.component else { return Ok(()) };
    let name = &component.name;
    if !component.waits_for.is_empty() {
        say(format_args!("{name}: waits for {}", component.waits_for.join(", ")))?;
    }
    if let Some(fault) = &component.last_fault {
        say(format_args!("{name}: was last killed because the component {fault}"))?;
    }
    if let Some(error) = &component.last_error {
        say(format_args!("{name}: last error: {error}"))?;
    }
    if let Some(report) = &component.reports {
        say(format_args!("{name} reports: {report}"))?;
    }
    for channel in &subject.channels {
        let is_waiting = !channel.is_taken && !channel.kind.is_empty();
        let note = if is_waiting { ", held open while the component is down" } else { "" };
        say(format_args!("{name}: {} {}{note}", channel.level, channel.local))?;
    }
    if component.callers > 0 {
        say(format_args!("{name}: {} callers wait for this component", component.callers))?;
    }
    if component.complaints > 0 {
        let (sum, quorum) = (component.complaints, component.quorum);
        say(format_args!(
            "{name}: complaints have the weight {sum}; a weight of {quorum} restarts the component"
        ))?;
    }
    Ok(())
}

fn row(subject: &SubjectReport) -> Vec<String> {
    let time = |microseconds| print::duration(Duration::from_micros(microseconds));
    let death =
        subject.facts.last_death.as_ref().map_or("-".to_owned(), |death| match (death.signal, death.exit) {
            (Some(signal), _) => format!("signal {signal}, {}", death.time),
            (None, Some(code)) => format!("exit {code}, {}", death.time),
            (None, None) => death.time.clone(),
        });
    vec![
        subject.facts.name.clone(),
        if subject.pid == 0 { "-".to_owned() } else { subject.pid.to_string() },
        shown::state(subject),
        subject.facts.policy.clone(),
        subject.facts.incarnation.to_string(),
        subject.facts.checkpoints.to_string(),
        subject.checkpoint_age_us.map_or("-".to_owned(), time),
        shown::rate(subject),
        time(subject.facts.pause_us.p99),
        subject.facts.max_pause_us.map_or("-".to_owned(), time),
        print::bytes(subject.store_bytes),
        death,
    ]
}
