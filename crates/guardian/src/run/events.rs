//! What a guardian has to say while it guards.
//!
//! Owns: the events and their wording.
//! Does not: print.

use std::fmt;
use std::time::Duration;

use engine::{Comparison, Difference};
use model::{Escaped, Pid, Sequence, Signal};

use supervise::{RestartLimit, SubjectStatus};
use undo::back::WentBack;

use super::watching::BEGINNING;
use crate::aside::MovedPart;
use crate::error::GuardianError;
use crate::files::FilesReport;
use crate::journal::What;
use crate::restoring::RestoreEvent;
use crate::time::microseconds;

/// How it is said that events of processes were lost.
pub(crate) const CHILDREN_UNSEEN: &str =
    "more processes were started and ended than could be followed; the death of a child may have been missed";

const KILLS_ITS_CHILDREN: &str =
    "; one that kills its own children has to run without --restart-on child-signal";
/// What a process that has left the tree means for restarts, and at the end of the run.
const DEPARTED: &str = " has left the program's tree and is in no checkpoint: a restart from a checkpoint leaves it \
                        running, one from the beginning ends it";
const UNGUARDED: &str = ", which the program has started, goes on and is not guarded; a daemon is guarded when it \
                         stays in the foreground";

/// How it is said that files do not go back in this run.
pub(crate) fn files_compared(why: &str) -> String {
    format!(
        "files do not go back with the program: {why}; if they have changed when it dies, it starts from its beginning"
    )
}

/// How it is said that the way back is lost.
pub(crate) fn files_broken(why: &str) -> String {
    format!(
        "files cannot go back to any checkpoint so far: {why}; a death now starts the program from its beginning"
    )
}

/// Something that whoever runs a subject wants to know.
#[derive(Debug)]
pub enum RunEvent<'a> {
    /// A running process is guarded from now on.
    Adopted {
        /// Its root.
        pid: Pid,
        /// The name it has now.
        name: &'a str,
    },
    /// A checkpoint was not taken, for a reason that has not been told yet.
    CheckpointFailed(&'a GuardianError),
    /// A checkpoint was compared with the subject.
    Verified(Sequence, &'a Comparison),
    /// The subject has held checkpoints back for too long.
    HoldEnded(Pid),
    /// The tracker in use could not be attached; another is used from now on.
    TrackerReplaced {
        /// The new one.
        name: &'a str,
        /// Why not the one before.
        error: &'a GuardianError,
    },
    /// The first checkpoint after some that failed.
    CheckpointsAgain(Sequence),
    /// A checkpoint was being written when the subject died; an older one brings it back sooner.
    CheckpointDropped(Sequence),
    /// The subject died, and somebody does something about it.
    Died {
        /// Its root.
        pid: Pid,
        /// How.
        status: SubjectStatus,
    },
    /// A process of the subject that is not its root has failed, and the root is ended for it.
    ChildDied {
        /// The process.
        pid: Pid,
        /// What it died of.
        signal: Signal,
        /// It is not the first one in this run.
        again: bool,
    },
    /// The kernel could not tell all starts and deaths of processes.
    ChildrenUnseen,
    /// A process has left the tree of the subject, as a daemon does when its parent ends.
    Departed {
        /// The process.
        pid: Pid,
        /// Its name.
        name: &'a str,
        /// The run ends.
        is_end: bool,
    },
    /// A checkpoint is not used any more, since the subject dies of what it holds.
    Poisoned(Sequence),
    /// A checkpoint could not be restored; an older one is next.
    RestoreFailed(Sequence, &'a GuardianError),
    /// The subject runs again.
    Restored {
        /// Its root.
        pid: Pid,
        /// From this checkpoint.
        sequence: Sequence,
        /// From the notice of its death to its first instruction.
        took: Duration,
    },
    /// The program was started from its beginning.
    StartedAfresh {
        /// Its root.
        pid: Pid,
        /// Why none of its checkpoints was used, if it had any.
        why: Option<&'a str>,
    },
    /// The restart waits so long, since the program has hardly lived.
    BacksOff(Duration),
    /// The end of a file that only grew was cut off.
    MovedAside(&'a MovedPart),
    /// Files of this run do not go back with the program, for this reason.
    FilesCompared(&'a str),
    /// Files were taken back after a death.
    FilesWentBack(WentBackEvent<'a>),
    /// Files cannot go back to this checkpoint, for a reason that was not told yet.
    FilesDeferred(Sequence, &'a str),
    /// The way back of files is lost, for this reason.
    FilesBroken(&'a str),
    /// Files can go back again, to this checkpoint first.
    FilesExactAgain(Sequence),
    /// A message that has waited until files had gone back.
    Waited(&'a str),
    /// A checkpoint has recorded files that can prevent a restart from it, as none before.
    FilesInPlace(&'a FilesReport),
    /// Too many restarts.
    GaveUp(RestartLimit),
    /// The status file cannot be written; `status` will know less.
    StatusUnwritable(&'a GuardianError),
}

/// What going back has done.
#[derive(Clone, Copy, Debug)]
pub struct WentBackEvent<'a> {
    /// The checkpoint, 0 for the beginning of the program.
    pub to: Sequence,
    /// What was changed and moved aside.
    pub went: &'a WentBack,
    /// Standard streams that stayed as they were, since other programs write to their files.
    pub left: usize,
}

/// Files that a message names.
const NAMED_MAX: usize = 3;

impl fmt::Display for WentBackEvent<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { to, went, left } = self;
        let WentBack { changed, aside, .. } = went;
        match *to == BEGINNING {
            true => write!(f, "files went back to the beginning: {changed} changed")?,
            false => write!(f, "files went back to checkpoint {to}: {changed} changed")?,
        }
        if !aside.is_empty() {
            let named = aside.iter().take(NAMED_MAX).map(|one| one.path.display().to_string());
            write!(f, ", {} moved aside: {}", aside.len(), named.collect::<Vec<_>>().join(", "))?;
            let rest = aside.len().saturating_sub(NAMED_MAX);
            if rest > 0 {
                write!(f, " and {rest} more")?;
            }
        }
        if *left > 0 {
            write!(f, "; {left} standard streams stayed, since other programs write to their files")?;
        }
        Ok(())
    }
}

impl RunEvent<'_> {
    /// The same for those who ask later.
    pub(super) fn what(&self) -> What {
        let reason = |error: &GuardianError| error.to_string();
        match self {
            Self::Adopted { pid, .. } => What::Adopted { pid: pid.get() },
            Self::CheckpointFailed(error) | Self::StatusUnwritable(error) => {
                What::Refused { reason: reason(error) }
            }
            Self::Verified(sequence, found) => What::Verified {
                seq: sequence.get(),
                pages: found.pages.get(),
                differences: found.differences.get(),
            },
            Self::HoldEnded(pid) => What::HoldEnded { pid: pid.get() },
            Self::TrackerReplaced { name, error } => {
                What::Tracker { tracker: (*name).to_owned(), reason: reason(error) }
            }
            Self::CheckpointsAgain(sequence) => What::Resumed { seq: sequence.get() },
            Self::CheckpointDropped(sequence) => What::Dropped { seq: sequence.get() },
            Self::Died { pid, status } => {
                What::Died { pid: pid.get(), signal: status.signal(), exit: status.exit() }
            }
            Self::ChildDied { pid, signal, .. } => What::ChildDied { pid: pid.get(), signal: signal.get() },
            Self::ChildrenUnseen => What::ChildrenUnseen,
            Self::Departed { pid, name, .. } => {
                What::Departed { pid: pid.get(), program: (*name).to_owned() }
            }
            Self::Poisoned(sequence) => What::Poisoned { seq: sequence.get() },
            Self::RestoreFailed(sequence, error) => {
                What::RestoreFailed { seq: sequence.get(), reason: reason(error) }
            }
            Self::Restored { pid, sequence, took } => {
                What::Restored { pid: pid.get(), seq: sequence.get(), took_us: microseconds(*took) }
            }
            Self::StartedAfresh { pid, why } => What::Started { pid: pid.get(), why: why.map(str::to_owned) },
            Self::BacksOff(wait) => What::BackOff { wait_us: microseconds(*wait) },
            Self::MovedAside(part) => What::MovedAside {
                path: part.path.display().to_string(),
                bytes: part.bytes,
                to: part.to.display().to_string(),
            },
            Self::FilesCompared(why) => What::FilesCompared { reason: (*why).to_owned() },
            Self::FilesWentBack(WentBackEvent { to, went, left }) => What::FilesWentBack {
                seq: to.get(),
                changed: went.changed,
                aside: went.aside.len(),
                uncovered: went.uncovered.len(),
                left: *left,
            },
            Self::FilesDeferred(sequence, why) => {
                What::FilesDeferred { seq: sequence.get(), reason: (*why).to_owned() }
            }
            Self::FilesBroken(why) => What::FilesBroken { reason: (*why).to_owned() },
            Self::FilesExactAgain(sequence) => What::FilesExactAgain { seq: sequence.get() },
            // It was written down when it happened.
            Self::Waited(text) => What::Refused { reason: (*text).to_owned() },
            Self::FilesInPlace(files) => {
                What::FilesInPlace { in_place: files.in_place.clone(), unknown: files.unknown.clone() }
            }
            Self::GaveUp(limit) => {
                What::GaveUp { restarts: limit.count, within_us: microseconds(limit.window) }
            }
        }
    }
}

impl fmt::Display for RunEvent<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Adopted { pid, name } => write!(f, "pid {pid} is guarded as {name}"),
            Self::CheckpointFailed(error) => write!(f, "no checkpoint: {error}"),
            Self::Verified(sequence, found) => {
                let Comparison { pages, differences, first } = found;
                write!(f, "checkpoint {sequence}: {differences} of {pages} pages differ from the subject")?;
                for Difference { pid, address, area, image } in first {
                    let pid = pid.map_or("a shared object".to_owned(), |pid| format!("pid {pid}"));
                    let area = Escaped(area);
                    write!(f, "\n  {pid} at {address} ({area}), {image} in the image")?;
                }
                Ok(())
            }
            Self::HoldEnded(pid) => {
                write!(f, "pid {pid} has held checkpoints back for too long; they are taken again")
            }
            Self::TrackerReplaced { name, error } => write!(f, "tracker {name} is used: {error}"),
            Self::CheckpointsAgain(sequence) => write!(f, "checkpoint {sequence} could be taken again"),
            Self::CheckpointDropped(sequence) => {
                write!(f, "checkpoint {sequence} was still being written and is dropped")
            }
            Self::Died { pid, status } => write!(f, "pid {pid} {status}"),
            Self::ChildDied { pid, signal, again } => {
                write!(f, "child pid {pid} was killed by signal {signal}; the program is ended for it")?;
                f.write_str(if *again { KILLS_ITS_CHILDREN } else { "" })
            }
            Self::ChildrenUnseen => f.write_str(CHILDREN_UNSEEN),
            Self::Departed { pid, name, is_end } => {
                write!(f, "pid {pid} ({}){}", Escaped(name), if *is_end { UNGUARDED } else { DEPARTED })
            }
            Self::Poisoned(sequence) => {
                write!(f, "checkpoint {sequence} leads to death again; the one before it is used")
            }
            Self::RestoreFailed(sequence, error) => {
                write!(f, "checkpoint {sequence} cannot be restored: {error}")
            }
            Self::Restored { pid, sequence, took } => {
                let milliseconds = took.as_secs_f64() * 1e3;
                write!(f, "pid {pid} is back at checkpoint {sequence} after {milliseconds:.1} ms")
            }
            Self::StartedAfresh { pid, why } => {
                write!(f, "started from the beginning as pid {pid}")?;
                why.map_or(Ok(()), |why| write!(f, ": {why}"))
            }
            Self::BacksOff(wait) => {
                write!(
                    f,
                    "the restart waits {:.2} s, since this life and the one before were short",
                    wait.as_secs_f64()
                )
            }
            Self::MovedAside(part) => RestoreEvent::MovedAside(part).fmt(f),
            Self::FilesCompared(why) => f.write_str(&files_compared(why)),
            Self::FilesWentBack(event) => event.fmt(f),
            Self::FilesDeferred(sequence, why) => {
                write!(f, "files cannot go back to checkpoint {sequence}: {why}")
            }
            Self::FilesBroken(why) => f.write_str(&files_broken(why)),
            Self::FilesExactAgain(sequence) => write!(f, "files can go back again, to checkpoint {sequence}"),
            Self::Waited(text) => f.write_str(text),
            Self::FilesInPlace(files) => files.fmt(f),
            Self::GaveUp(limit) => {
                let RestartLimit { count, window } = limit;
                write!(f, "gave up after {count} restarts within {} s", window.as_secs())
            }
            Self::StatusUnwritable(error) => write!(f, "the status cannot be written: {error}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use model::ByteCount;
    use undo::back::MovedAside;

    use super::*;

    fn moved(count: usize) -> Vec<MovedAside> {
        let one = |number| MovedAside {
            path: PathBuf::from(format!("/data/{number}")),
            to: PathBuf::from(format!("/aside/{number}")),
            bytes: ByteCount(7),
        };
        (1..=count).map(one).collect()
    }

    #[test]
    fn what_went_back_is_counted_and_a_few_are_named() {
        let text = |to, changed, aside, left| {
            let went = WentBack { changed, aside: moved(aside), uncovered: Vec::new() };
            WentBackEvent { to: Sequence(to), went: &went, left }.to_string()
        };
        assert_eq!(text(7, 3, 0, 0), "files went back to checkpoint 7: 3 changed");
        assert_eq!(text(0, 1, 1, 0), "files went back to the beginning: 1 changed, 1 moved aside: /data/1");
        let many = text(9, 12, 5, 1);
        assert!(many.contains("5 moved aside: /data/1, /data/2, /data/3 and 2 more"), "{many}");
        assert!(
            many.ends_with("; 1 standard streams stayed, since other programs write to their files"),
            "{many}"
        );
    }

    #[test]
    fn events_of_files_are_told_and_written_down_alike() {
        let why = "no privilege\nhelp: become root";
        let told = RunEvent::FilesCompared("no privilege");
        assert_eq!(told.to_string(), RunEvent::FilesCompared(why).what().to_string());
        for event in [
            RunEvent::FilesDeferred(Sequence(4), "mapped"),
            RunEvent::FilesBroken("the log is full"),
            RunEvent::FilesExactAgain(Sequence(5)),
        ] {
            assert_eq!(event.to_string(), event.what().to_string());
        }
    }
}
