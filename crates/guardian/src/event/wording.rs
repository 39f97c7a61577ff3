//! The text of events.
//!
//! Owns: the wording of each event.
//! Invariants: `{}` writes one line. `{:#}` also writes advice and lists, for the operator of a run.
//! Does not: print.

use std::borrow::Cow;
use std::fmt::{self, Display as _};
use std::time::Duration;

use model::Escaped;
use supervise::{ChangedFiles, Fault, SubjectStatus};
use sys::Errno;

use super::kind::EventKind;
use super::reason::{headline, one_line, seconds, too_old};
use super::{CheckpointEvent, RunEvent};
use crate::exit::MORE_DESCRIPTORS;
use crate::files::FilesReport;

const CHILDREN_UNSEEN: &str =
    "more processes were started and ended than could be followed; the death of a child may have been missed";
const KILLS_ITS_CHILDREN: &str =
    "; one that kills its own children has to run without --restart-on child-signal";
/// The text about a process that has left the tree while the run continues. [`UNGUARDED`] is the text at the end of the
/// run.
const DEPARTED: &str = " has left the program's tree and is in no checkpoint: a restart from a checkpoint leaves it \
                        running, one from the beginning ends it; an agent or helper without state of the program needs no more";
const UNGUARDED: &str = ", which the program has started, goes on and is not guarded; a daemon is guarded when it \
                         stays in the foreground";
/// The same for many processes.
const MANY_DEPARTED: &str = " have left the program's tree and are in no checkpoint: a restart from a checkpoint leaves \
                             them running, one from the beginning ends them; agents or helpers without state of the \
                             program need no more";
const MANY_UNGUARDED: &str = ", which the program has started, go on and are not guarded; a daemon is guarded when it \
                              stays in the foreground";

/// The advice after the last permitted restart.
const GOES_ON: &str =
    "; --max-restarts permits more, and `undying restore` continues from a checkpoint without a guardian";
/// The advice after the second exit with the same code.
const SUCCESS: &str = "; with --success, a run ends at the first exit with this code";
const NOT_BEGUN_ANEW: &str = "the program is not restarted: each of its checkpoints led to another death, and its \
                              files cannot be rolled back to its beginning; they stay as they are";

fn milliseconds(us: u64) -> String {
    format!("{:.1} ms", Duration::from_micros(us).as_secs_f64() * 1e3)
}

/// Returns a time that is often below a second.
fn interval(us: u64) -> String {
    if us < 1_000_000 { milliseconds(us) } else { seconds(us) }
}

/// Returns the complete reason for `{:#}`. Otherwise returns the headline of the reason.
fn shown<'a>(reason: &'a str, f: &fmt::Formatter<'_>) -> Cow<'a, str> {
    if f.alternate() { reason.into() } else { headline(reason).into() }
}

impl fmt::Display for RunEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind() {
            EventKind::Deaths => of_deaths(self, f),
            EventKind::Restores => of_restores(self, f),
            EventKind::Checkpoints | EventKind::Refusals => of_checkpoints(self, f),
            EventKind::Files => of_files(self, f),
            EventKind::Connections => of_connections(self, f),
            EventKind::Components => of_components(self, f),
        }
    }
}

/// Writes the text about the protection of a program: the interval, and what a restart does with files.
fn protected(
    subject: &str,
    every_us: Option<u64>,
    files: ChangedFiles,
    is_adopted: bool,
    f: &mut fmt::Formatter<'_>,
) -> fmt::Result {
    let Some(every) = every_us.map(Duration::from_micros) else {
        return write!(
            f,
            "{subject} is protected without checkpoints: a restart starts it from its beginning"
        );
    };
    let files = match files {
        ChangedFiles::Rewind => "its files are rolled back with it",
        ChangedFiles::Fresh => "if its files have changed, it starts from its beginning",
        ChangedFiles::Trim => {
            "files that have only grown are truncated; if other files have changed, it starts from its beginning"
        }
        ChangedFiles::Append => "if it does more than append to files, it starts from its beginning",
        ChangedFiles::Keep => "its files stay as they are",
        ChangedFiles::Refuse => "if its files have changed, it is not restarted",
    };
    let files = if is_adopted {
        files.replace("it starts from its beginning", "it is not restarted, because its command is not known")
    } else {
        files.to_owned()
    };
    let begin = if is_adopted { " from its first checkpoint on" } else { "" };
    write!(f, "{subject} is protected by a checkpoint every {every:?}{begin}; at a restart, {files}")
}

fn started(pid: i32, why: Option<&str>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    write!(f, "started from the beginning as pid {pid}")?;
    match why {
        Some(why) if f.alternate() => write!(f, ": {why}"),
        Some(why) => write!(f, ": {}", one_line(why)),
        None => Ok(()),
    }
}

fn of_restores(event: &RunEvent, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    match event {
        RunEvent::Started { pid, why } => started(*pid, why.as_deref(), f),
        RunEvent::Protected { subject, every_us, files, is_adopted } => {
            protected(subject, *every_us, *files, *is_adopted, f)
        }
        RunEvent::NotStartedTwice { pid } => write!(
            f,
            "pid {pid} was started by an earlier `undying run` of this command, whose guardian was killed; the command \
             is not executed a second time"
        ),
        RunEvent::Adopted { pid, subject } => write!(f, "pid {pid} is guarded as {subject}"),
        RunEvent::DamageStays { file, offset, reason } => {
            write!(f, "byte {offset} of {} stays damaged in memory: {reason}", Escaped(file))
        }
        RunEvent::Held { pid, seq, until } => {
            write!(f, "pid {pid} is held at checkpoint {seq}, until `undying release` or {until}")
        }
        RunEvent::Released { pid, is_late: false } => write!(f, "pid {pid} is released, and continues"),
        RunEvent::Released { pid, is_late: true } => {
            write!(f, "the time of the hold is over, and pid {pid} continues")
        }
        RunEvent::StoppedForRestart { pid, seq } => {
            write!(f, "pid {pid} is stopped for a restart, until checkpoint {seq} is durable")
        }
        RunEvent::NotRestarted { reason } => {
            write!(f, "the program is not restarted, and continues: {}", shown(reason, f))
        }
        RunEvent::BackOff { wait_us } => {
            let wait = Duration::from_micros(*wait_us).as_secs_f64();
            write!(f, "the restart waits {wait:.2} s, since two incarnations in succession were short")
        }
        RunEvent::RestartRepeated { reason, .. } => {
            write!(f, "the restart is not possible now, and is tried again: {}", shown(reason, f))
        }
        RunEvent::Restored { pid, seq, took_us, age_us } => {
            let took = Duration::from_micros(*took_us).as_secs_f64() * 1e3;
            write!(f, "pid {pid} is back at checkpoint {seq} after {took:.1} ms")?;
            age_us.map_or(Ok(()), |age| write!(f, "; the work of {} before the death is lost", seconds(age)))
        }
        RunEvent::RestoreFailed { seq, reason } => {
            write!(f, "checkpoint {seq} cannot be restored: {}", shown(reason, f))
        }
        RunEvent::OnRestoreFailed { reason } => {
            write!(f, "the command after the restore (on-restore) has failed: {reason}; the program goes on")
        }
        RunEvent::Poisoned { seq } => {
            write!(f, "checkpoint {seq} led to another death; the previous checkpoint is used")
        }
        _ => Ok(()),
    }
}

fn of_connections(event: &RunEvent, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    match event {
        RunEvent::Connections { kept, rewound, ended, .. } => {
            let counts = [
                (kept, "stayed open"),
                (rewound, "continued from the checkpoint"),
                (ended, "ended with the program"),
            ];
            let told = counts.into_iter().filter(|(count, _)| **count > 0).enumerate();
            for (place, (count, what)) in told {
                let noun = match (place, count) {
                    (0, 1) => " connection",
                    (0, _) => " connections",
                    _ => "",
                };
                write!(f, "{}{count}{noun} {what}", if place == 0 { "" } else { ", " })?;
            }
            Ok(())
        }
        RunEvent::ListenersNotKept { reason } => {
            write!(f, "clients are refused while a component is down: {}", shown(reason, f))
        }
        RunEvent::OutputReleased { after_us, reason } => write!(
            f,
            "output of the program is sent before a checkpoint contains it, because no checkpoint that a restart uses \
             became durable for {}: {}. If the program dies now, its connections end, and it can forget this output",
            seconds(*after_us),
            headline(reason)
        ),
        _ => Ok(()),
    }
}

/// Writes the text of an event about one component of a system.
fn of_components(event: &RunEvent, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let seconds = |us: &u64| Duration::from_micros(*us).as_secs_f64();
    match event {
        RunEvent::LeftRunning { pid } => {
            write!(
                f,
                "pid {pid} goes on unguarded: an earlier guardian has started it, and this system file does not have it"
            )
        }
        RunEvent::RestEnded { count } => {
            write!(
                f,
                "{count} processes that its components had left were ended (a component that puts itself into the \
                 background is not guarded: run it in the foreground)"
            )
        }
        RunEvent::NotContinued { checkpoint } => {
            write!(
                f,
                "starts from its beginning; its checkpoints of earlier runs, the last of them {checkpoint}, stay \
                 until newer ones take their place (`undying restore NAME@{checkpoint}` brings one back)"
            )
        }
        RunEvent::Ready { took_us } => write!(f, "ready after {:.2} s", seconds(took_us)),
        RunEvent::NotReady { timeout_us } => write!(f, "not ready within {:.2} s", seconds(timeout_us)),
        RunEvent::Waits { needs } => write!(f, "waits for {}", needs.join(", ")),
        RunEvent::KeysChanged { restarted, at_once, next_run } => f.write_str(&listed([
            ("restarted with the new", restarted),
            ("follows the new", at_once),
            ("follows after its next `restart` the new", next_run),
        ])),
        RunEvent::ComponentFailed { reason } => f.write_str(&shown(reason, f)),
        RunEvent::Stopped {} => f.write_str("stopped"),
        RunEvent::NotStopped { timeout_us } => {
            write!(f, "did not end within {:.0} s of the request, and is killed", seconds(timeout_us))
        }
        RunEvent::StaysEnded {} => f.write_str("has ended, and its policy does not restart it"),
        RunEvent::NotStarted {} => f.write_str("is not started, since the system goes down"),
        RunEvent::GivenUp { cause, follows } => write!(f, "{cause}: {follows}"),
        RunEvent::Executed { pid, program } => write!(f, "{} runs as pid {pid}", Escaped(program)),
        _ => of_systems(event, f),
    }
}

/// Writes the text of an event about several components.
fn of_systems(event: &RunEvent, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    match event {
        RunEvent::GroupRestarts { died } => write!(f, "is restarted, since {died} of its group died"),
        RunEvent::Complaint { by, weight: 1, why } => write!(f, "{by} complains: {}", Escaped(why)),
        RunEvent::Complaint { by, weight, why } => {
            write!(f, "{by} complains with weight {weight}: {}", Escaped(why))
        }
        RunEvent::ComplaintCounted { sum, quorum } => {
            write!(f, "complaints have the weight {sum}; a weight of {quorum} restarts the component")
        }
        RunEvent::ComplaintRefused { reason } => write!(f, "the complaint does not count: {reason}"),
        RunEvent::Reloaded { added, removed, restarted } => {
            write!(f, "reloaded: {}", reloaded(added, removed, restarted))
        }
        RunEvent::NotReloaded { reason } => write!(f, "not reloaded: {}", shown(reason, f)),
        RunEvent::SystemRestarts {} => f.write_str("all components are ended, and started again"),
        RunEvent::SystemGoesDown { has_failed: false } => f.write_str("goes down"),
        RunEvent::SystemGoesDown { has_failed: true } => {
            f.write_str("goes down, since a component gave up again after all were restarted")
        }
        _ => Ok(()),
    }
}

/// Joins lists of names, each after its label. Omits empty lists.
fn listed(lists: [(&str, &[String]); 3]) -> String {
    let lists = lists.into_iter().filter(|(_, names)| !names.is_empty());
    lists.map(|(words, names)| format!("{words} {}", names.join(", "))).collect::<Vec<_>>().join("; ")
}

/// Describes a reload by the names of the changed components.
pub(crate) fn reloaded(added: &[String], removed: &[String], restarted: &[String]) -> String {
    let what = listed([("added", added), ("removed", removed), ("restarted", restarted)]);
    if what.is_empty() { "no component is added, removed or restarted".to_owned() } else { what }
}

fn of_deaths(event: &RunEvent, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    match event {
        RunEvent::Died { pid, signal, exit } | RunEvent::Ended { pid, signal, exit } => {
            write!(f, "pid {pid} {}", SubjectStatus::of(*signal, *exit))
        }
        RunEvent::MemberLeft { pid, signal, exit } => {
            let status = SubjectStatus::of(*signal, *exit);
            write!(f, "pid {pid} {status}; the other members of the group continue")
        }
        RunEvent::Faulted { pid, fault: fault @ Fault::Requested } => write!(f, "pid {pid} {fault}"),
        RunEvent::Faulted { pid, fault } => write!(f, "pid {pid} {fault}, and is killed for it"),
        RunEvent::EndedAgain { exit } => {
            write!(f, "the program exited with {exit} again after its restart, so it has ended")?;
            f.write_str(if f.alternate() { SUCCESS } else { "" })
        }
        RunEvent::NotBegunAnew {} => f.write_str(NOT_BEGUN_ANEW),
        RunEvent::GaveUp { restarts, within_us } => {
            let within = Duration::from_micros(*within_us).as_secs();
            write!(f, "gave up after {restarts} restarts within {within} s")?;
            f.write_str(if f.alternate() { GOES_ON } else { "" })
        }
        RunEvent::CodeChanged { pid, file, offset, bits, what } => {
            let bits = match bits {
                None => String::new(),
                Some(1) => ", 1 bit".to_owned(),
                Some(bits) => format!(", {bits} bits"),
            };
            write!(f, "the code of pid {pid} has changed at byte {offset} of {}{bits}: {what}", Escaped(file))
        }
        RunEvent::ChildDied { pid, signal, again } => {
            write!(f, "child pid {pid} was killed by signal {signal}; the program is ended for it")?;
            f.write_str(if *again && f.alternate() { KILLS_ITS_CHILDREN } else { "" })
        }
        RunEvent::Departed { pid, program, others, is_end } => {
            write!(f, "pid {pid} ({})", Escaped(program))?;
            match (others.len(), is_end) {
                (0, true) => f.write_str(UNGUARDED),
                (0, false) => f.write_str(DEPARTED),
                (others, true) => write!(f, " and {others} other processes{MANY_UNGUARDED}"),
                (others, false) => write!(f, " and {others} other processes{MANY_DEPARTED}"),
            }
        }
        RunEvent::ChildrenUnseen => f.write_str(CHILDREN_UNSEEN),
        _ => Ok(()),
    }
}

/// Writes the text of an event about files.
fn of_files(event: &RunEvent, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    match event {
        RunEvent::MovedAside { path, bytes, to } => {
            write!(
                f,
                "{path} was rolled back to the checkpoint; the {bytes} bytes that were cut off are in {to}"
            )
        }
        RunEvent::FilesInPlace { in_place, unknown } => {
            let (in_place, unknown) = (in_place.clone(), unknown.clone());
            FilesReport { in_place, unknown, ..FilesReport::default() }.fmt(f)
        }
        RunEvent::FilesCompared { reason } => {
            write!(f, "files are not rolled back with the program: {}", shown(reason, f))?;
            f.write_str("; if they have changed when it dies, it starts from its beginning")
        }
        RunEvent::FilesNotRolledBack { is_compared: true } => f.write_str(
            "only the files that were open for writing at the checkpoint were compared; other files can be newer than the \
             memory of the program",
        ),
        RunEvent::FilesNotRolledBack { is_compared: false } => {
            f.write_str("files stay as they are, and can be newer than the memory of the program")
        }
        RunEvent::FilesDeferred { seq, reason } => {
            write!(f, "files cannot be rolled back to checkpoint {seq}: {}", shown(reason, f))
        }
        RunEvent::FilesBroken { reason } => {
            write!(f, "files cannot be rolled back to any checkpoint so far: {}", shown(reason, f))?;
            f.write_str("; a death now starts the program from its beginning")
        }
        RunEvent::FilesTooOld { seq, age_us, reason } => {
            write!(
                f,
                "{}; a death now starts the program from its beginning",
                too_old(*seq, *age_us, reason)
            )?;
            f.write_str(" with its present files")
        }
        RunEvent::FilesExactAgain { seq } => write!(f, "files can be rolled back again, to checkpoint {seq}"),
        _ => went_back(event, f),
    }
}

fn went_back(event: &RunEvent, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let RunEvent::FilesWentBack { seq, changed, aside, aside_paths, left, .. } = event else { return Ok(()) };
    match seq {
        0 => write!(f, "files were rolled back to the beginning: {changed} changed")?,
        seq => write!(f, "files were rolled back to checkpoint {seq}: {changed} changed")?,
    }
    if *aside > 0 {
        write!(f, ", {aside} moved aside: {}", aside_paths.join(", "))?;
        let rest = aside.saturating_sub(aside_paths.len());
        if rest > 0 {
            write!(f, " and {rest} more")?;
        }
    }
    if *left > 0 {
        write!(f, "; {left} standard streams stayed, since other programs write to their files")?;
    }
    Ok(())
}

fn of_checkpoints(event: &RunEvent, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    match event {
        RunEvent::StatusUnwritable { reason } => {
            write!(f, "the status cannot be written: {}", shown(reason, f))
        }
        RunEvent::EventsLost { count } => {
            let events = if *count == 1 { "event was" } else { "events were" };
            write!(f, "{count} {events} not recorded, because the disk was full or did not respond")
        }
        RunEvent::Checkpoint(one) => checkpoint_text(one, f),
        RunEvent::Scan { pages, scan_us, .. } => write!(f, "{pages} pages were dirty, found in {scan_us} us"),
        RunEvent::Verified { seq, pages, differences, examples } => {
            write!(f, "checkpoint {seq}: {differences} of {pages} pages differ from the subject")?;
            let shown = if f.alternate() { examples.as_slice() } else { &[] };
            shown.iter().try_for_each(|example| write!(f, "\n  {example}"))
        }
        RunEvent::Refused { reason } => {
            write!(f, "no checkpoint: {}", shown(reason, f))?;
            let is_unhelpful = reason.contains(&Errno::EMFILE.to_string()) && !reason.contains("help:");
            if f.alternate() && is_unhelpful { write!(f, "\nhelp: {MORE_DESCRIPTORS}") } else { Ok(()) }
        }
        RunEvent::Resumed { seq } => write!(f, "checkpoint {seq} could be taken again"),
        RunEvent::Dropped { seq } => write!(f, "checkpoint {seq} was still being written and is dropped"),
        RunEvent::CheckpointsLate { age_us, reason } => {
            write!(f, "no checkpoint was committed for {}: {reason}", seconds(*age_us))
        }
        RunEvent::PauseRaised { asked_us, max_pause_us } => write!(
            f,
            "a stop of all threads takes longer than --max-pause {}; stops may now last {}",
            milliseconds(*asked_us),
            milliseconds(*max_pause_us)
        ),
        RunEvent::IntervalRaised { asked_us, interval_us, max_percent } => write!(
            f,
            "checkpoints every {} would cost more than {max_percent} % of the program's time (--cost-max); they are taken \
             every {}",
            interval(*asked_us),
            interval(*interval_us)
        ),
        RunEvent::CheckpointsOnTime { seq } => {
            write!(f, "checkpoint {seq} was committed; checkpoints continue")
        }
        RunEvent::HoldEnded { pid } => {
            write!(f, "pid {pid} has held checkpoints back for too long; they are taken again")
        }
        RunEvent::Tracker { tracker, reason } => write!(f, "tracker {tracker} is used: {}", shown(reason, f)),
        _ => Ok(()),
    }
}

fn checkpoint_text(one: &CheckpointEvent, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let kind = if one.full { "full" } else { "delta" };
    let (copied, pause) = (one.precopied_pages + one.residual_pages, one.pause_us);
    write!(f, "checkpoint {} ({kind}): {} pages, {copied} of them copied, ", one.seq, one.pages)?;
    write!(f, "{} in the pause of {pause} us; ", one.residual_pages)?;
    if one.slices.count > 0 {
        write!(f, "{} slices before it, the longest {} us", one.slices.count, one.slices.longest_us)?;
        one.max_pause_us.map_or(Ok(()), |budget| write!(f, " (budget {budget} us)"))?;
        f.write_str("; ")?;
    }
    write!(f, "durable after {} us", one.commit_us)
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use model::{ByteCount, Sequence};
    use undo::back::{MovedAside, WentBack};

    use super::*;
    use crate::record::SlicesReport;

    #[test]
    fn reasons_of_several_lines_fit_on_one() {
        let reason = "files do not fit:\n  /a was written to\n  /b is gone\nhelp: none";
        assert_eq!(one_line(reason), "files do not fit: /a was written to; /b is gone; help: none");
        assert_eq!(headline(reason), "files do not fit: /a was written to");
        assert_eq!(headline("no room\nhelp: make some"), "no room");
    }

    #[test]
    fn advice_is_for_the_operator_of_the_run() {
        let event = RunEvent::FilesDeferred { seq: 4, reason: "mapped\nhelp: none".to_owned() };
        assert_eq!(event.to_string(), "files cannot be rolled back to checkpoint 4: mapped");
        assert_eq!(format!("{event:#}"), "files cannot be rolled back to checkpoint 4: mapped\nhelp: none");
    }

    #[test]
    fn a_checkpoint_is_reported_with_the_pages_that_ls_lists() {
        let checkpoint = CheckpointEvent {
            seq: 7,
            pages: 400,
            precopied_pages: 20,
            residual_pages: 3,
            ..CheckpointEvent::default()
        };
        let text = RunEvent::Checkpoint(checkpoint.clone()).to_string();
        assert!(text.contains("400 pages, 23 of them copied, 3 in the pause"), "{text}");
        assert!(!text.contains("slices"), "{text}");
        let slices = SlicesReport { count: 4, total_us: 15_000, longest_us: 4_900 };
        let checkpoint = CheckpointEvent { slices, max_pause_us: Some(5_000), ..checkpoint };
        let text = RunEvent::Checkpoint(checkpoint).to_string();
        assert!(text.contains("4 slices before it, the longest 4900 us (budget 5000 us)"), "{text}");
    }

    fn moved(count: usize) -> Vec<MovedAside> {
        let one = |number| MovedAside {
            path: PathBuf::from(format!("/data/{number}")),
            to: PathBuf::from(format!("/aside/{number}")),
            bytes: ByteCount(7),
        };
        (1..=count).map(one).collect()
    }

    #[test]
    fn many_processes_that_leave_the_tree_are_one_line() {
        let text = |others, is_end| {
            RunEvent::Departed { pid: 7, program: "worker".to_owned(), others, is_end }.to_string()
        };
        assert!(text(vec![], true).starts_with("pid 7 (worker), which the program has started, goes on"));
        let many = text(vec![8, 9], true);
        assert!(
            many.starts_with("pid 7 (worker) and 2 other processes, which the program has started, go on")
        );
        assert!(text(vec![8, 9], false).contains("2 other processes have left the program's tree"));
    }

    #[test]
    fn what_went_back_is_counted_and_a_few_are_named() {
        let text = |to, changed, aside, left| {
            let went = WentBack { changed, aside: moved(aside), uncovered: Vec::new() };
            RunEvent::went_back(Sequence(to), &went, left).to_string()
        };
        assert_eq!(text(7, 3, 0, 0), "files were rolled back to checkpoint 7: 3 changed");
        assert_eq!(
            text(0, 1, 1, 0),
            "files were rolled back to the beginning: 1 changed, 1 moved aside: /data/1"
        );
        let many = text(9, 12, 5, 1);
        assert!(many.contains("5 moved aside: /data/1, /data/2, /data/3 and 2 more"), "{many}");
        assert!(
            many.ends_with("; 1 standard streams stayed, since other programs write to their files"),
            "{many}"
        );
    }
}
