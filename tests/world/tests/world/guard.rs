//! The memory of a guardian: the real state machine, log of checkpoints, undo log and decisions about output.
//!
//! Owns: the parts of one guardian, and the model of the watch over files, which in a real guardian uses the kernel.
//! Invariants: the watch makes the same calls of the undo log in the same order as `undo::watch`.
//! Does not: decide what happens; `world` does.

use std::collections::{BTreeSet, VecDeque};

use model::{ByteCount, Sequence};
use store::{Completion, LogWriter, Ticket};
use supervise::{Action, OutputPoints, Subject};
use undo::Result;
use undo::log::UndoLog;
use undo::simulated::{Disk, FileSubject};

use undying_store as store;

use crate::BEGINNING;

/// The size limit of the undo log.
pub(crate) const UNDO_BYTES_MAX: ByteCount = ByteCount(1 << 30);

/// The parts of a guardian. A kill of the guardian loses all of them.
pub(crate) struct Guard {
    pub(crate) machine: Subject,
    /// `None` while the log cannot be opened.
    pub(crate) log: Option<LogWriter>,
    pub(crate) tickets: Vec<Ticket>,
    pub(crate) watch: Watch,
    /// `None` if output is not held.
    pub(crate) output: Option<OutputPoints<u64, ()>>,
    /// Checkpoints that were taken, and are not durable yet.
    pub(crate) pending: VecDeque<Sequence>,
    pub(crate) early: Option<Completion>,
    pub(crate) actions: VecDeque<Action>,
    pub(crate) incarnation: u64,
    /// Whether the next checkpoint needs all pages.
    pub(crate) needs_all: bool,
}

/// The watch over the files of the program.
pub(crate) struct Watch {
    disk: Disk,
    log: Option<UndoLog>,
    pub(crate) files: FileSubject,
    boundaries: BTreeSet<Sequence>,
    /// The oldest exact checkpoint with the files of the newest one.
    unchanged: Sequence,
    is_touched: bool,
    is_broken: bool,
    /// Whether a full disk has broken an epoch.
    pub(crate) has_been_broken: bool,
    joins: bool,
}

impl Watch {
    /// Begins the undo log of a program that starts from its beginning.
    pub(crate) fn start(disk: &Disk, files: FileSubject, joins: bool) -> Result<Self> {
        let (disk, boundaries) = (disk.clone(), BTreeSet::new());
        let mut watch = Self {
            disk,
            log: None,
            files,
            boundaries,
            unchanged: BEGINNING,
            is_touched: false,
            is_broken: false,
            has_been_broken: false,
            joins,
        };
        watch.start_over()?;
        Ok(watch)
    }

    pub(crate) fn start_over(&mut self) -> Result<()> {
        self.use_log(self.disk.create_log(BEGINNING, UNDO_BYTES_MAX)?);
        self.boundaries = BTreeSet::from([BEGINNING]);
        self.unchanged = BEGINNING;
        Ok(())
    }

    fn use_log(&mut self, mut log: UndoLog) {
        if self.joins {
            log.join_always();
        }
        self.log = Some(log);
        self.begin_epoch();
    }

    fn begin_epoch(&mut self) {
        self.files.forget();
        (self.is_broken, self.is_touched) = (false, false);
    }

    fn log(&mut self) -> &mut UndoLog {
        self.log.as_mut().expect("a watch has a log from its start on")
    }

    fn or_break(&mut self, outcome: Result<()>) {
        if let Err(error) = outcome
            && !self.is_broken
        {
            (self.is_broken, self.has_been_broken) = (true, true);
            let _ = self.log().broken(&error.to_string());
        }
    }

    /// Lets the program change a file. If the change cannot be recorded, it is made without a record. With `is_recorded ==
    /// false`, the watch misses the change.
    pub(crate) fn change(&mut self, is_recorded: bool) {
        self.is_touched |= is_recorded;
        if !is_recorded {
            let _ = self.files.change(&mut None);
            return;
        }
        if let Err(error) = self.files.change(&mut self.log) {
            self.or_break(Err(error));
        }
    }

    /// Ends the epoch in the pause of a checkpoint. With `is_deferred`, the boundary is deferred.
    pub(crate) fn boundary(&mut self, sequence: Sequence, is_deferred: bool) {
        self.log().hold();
        let outcome = if is_deferred { None } else { Some(self.log().boundary(sequence)) };
        match outcome {
            Some(Ok(begins)) => {
                self.boundaries.insert(sequence);
                if self.is_touched {
                    self.unchanged = sequence;
                }
                self.is_touched = false;
                if begins {
                    self.begin_epoch();
                }
            }
            Some(Err(_)) | None => {
                self.is_touched |= self.boundaries.remove(&sequence);
                let outcome = self.log().retract(sequence);
                self.or_break(outcome);
            }
        }
        self.log().end_hold();
    }

    pub(crate) fn after_pause(&mut self) {
        let outcome = self.log().writes().make();
        self.or_break(outcome);
        let prepared = self.log().writes().prepare().ok().flatten();
        prepared.into_iter().for_each(|prepared| self.log().prepared(prepared));
    }

    /// Returns those of the checkpoints to which files can be rolled back.
    pub(crate) fn exact(&self, sequences: &[Sequence]) -> Vec<Sequence> {
        let reached =
            self.log.as_ref().filter(|_| !self.is_broken).map(UndoLog::sequences).unwrap_or_default();
        let is_exact = |one: &Sequence| self.boundaries.contains(one) && reached.contains(one);
        sequences.iter().copied().filter(is_exact).collect()
    }

    /// Returns the oldest checkpoint after which no file has changed.
    pub(crate) fn unchanged_from(&self) -> Option<Sequence> {
        (!self.is_touched && !self.is_broken).then_some(self.unchanged)
    }

    pub(crate) fn retain(&mut self, kept: &[Sequence]) {
        let outcome = self.log().retain(kept);
        self.or_break(outcome);
        let newest = kept.last().copied().unwrap_or_default();
        self.boundaries.retain(|one| *one > newest || kept.contains(one));
        if self.joins {
            let _ = self.join();
        }
    }

    fn join(&mut self) -> Result<()> {
        let Some(joint) = self.log().to_join() else { return Ok(()) };
        let Some(joined) = joint.write()? else { return Ok(()) };
        if !self.log().can_join(&joined) || joined.publish().is_err() {
            return joined.discard();
        }
        let outcome = self.log().joined(joined);
        self.or_break(outcome);
        Ok(())
    }

    /// Records the end of the program.
    pub(crate) fn subject_ended(&mut self) -> Result<()> {
        let disk = self.disk.clone();
        match self.log().ended(|| disk.now(), &[]) {
            Err(error @ undo::UndoError::Kernel(_)) if !self.is_broken => Err(error),
            outcome => {
                self.or_break(outcome);
                Ok(())
            }
        }
    }

    /// Records that the program runs.
    pub(crate) fn runs(&mut self) {
        let outcome = self.log().running();
        self.or_break(outcome);
    }

    pub(crate) fn go_back(&mut self, to: Sequence) -> Result<()> {
        let outcome = self.log().writes().make();
        self.or_break(outcome);
        self.disk.go_back(to, undo::back::Durability::Kill)?;
        let log = self.disk.open_log(UNDO_BYTES_MAX)?;
        self.use_log(log);
        self.boundaries.retain(|one| *one <= to);
        self.unchanged = to;
        let outcome = self.log().idle();
        self.or_break(outcome);
        Ok(())
    }
}
