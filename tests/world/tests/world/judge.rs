//! The judgements on a schedule.
//!
//! Owns: what must hold when a checkpoint is restored, when the program starts from its beginning, after the end of a
//! guardian, and at the end of a run.
//! Invariants: a judgement uses only the history of the schedule, the disks and the output that the peer has received.
//! Does not: change anything, except the restore by hand, which is judged.

use std::collections::HashSet;

use model::Sequence;
use store::ImageReader;
use supervise::{DurableParts as _, End, Failure, FreshReason, State};
use undo::back::{Durability, Standing};
use undo::simulated::{difference, picture};

use undying_store as store;

use crate::wire::Released;
use crate::world::{Down, Trouble, World, name};

impl World<'_> {
    pub(crate) fn violate(&mut self, what: impl Into<String>) {
        let what = what.into();
        self.note(what.clone());
        self.violation.get_or_insert(what);
    }

    /// A checkpoint is whole: the image has the pages and records that were committed with this number.
    pub(crate) fn judge_image(&mut self, sequence: Sequence, image: &ImageReader) {
        if let Err(why) = self.memory.compare(sequence, image) {
            self.violate(format!("the image is wrong: {why}"));
        }
    }

    /// Files and memory are of one moment: the files are those of the checkpoint.
    pub(crate) fn judge_files(&mut self, sequence: Sequence) {
        let (wanted, found) = (&self.moments[&sequence].files, picture(&self.files_disk));
        if *wanted != found {
            let text = difference(wanted, &found);
            self.violate(format!("the files are not those of checkpoint {sequence}:\n{text}"));
        }
    }

    /// Judges a restore by the guardian, before anything is changed. Output that no usable checkpoint contains is lost.
    pub(crate) fn judge_choice(&mut self, sequence: Sequence) {
        self.judge_acknowledged(Some(sequence));
        let known: HashSet<u64> = self.moments[&sequence].sent.all.iter().copied().collect();
        let is_unchanged = self.guard().watch.unchanged_from().is_some_and(|from| from <= sequence);
        let mut late = self.wire.received.iter().filter(|one| one.how == Released::Late);
        let forgotten = late.find(|one| !is_unchanged && !known.contains(&one.output)).copied();
        if let Some(forgotten) = forgotten {
            self.violate(format!(
                "files are rolled back to checkpoint {sequence}, and the peer has {forgotten:?}"
            ));
        }
        self.wire.received.retain(|one| known.contains(&one.output));
    }

    /// Judges the result of a restore by the guardian. `continues` states whether connections continue.
    pub(crate) fn judge_restored(&mut self, sequence: Sequence, continues: bool) {
        self.judge_files(sequence);
        let sent = &self.moments[&sequence].sent;
        if continues && !self.wire.continues(sent) {
            self.violate(format!(
                "a connection continues at checkpoint {sequence}, and the peer has received other output"
            ));
        }
    }

    /// Judges a start from the beginning.
    pub(crate) fn judge_start(&mut self, why: Option<FreshReason>) {
        let is_allowed = match why {
            // These decisions of the policy lose output, and the operator is told so.
            Some(
                FreshReason::LastRestart
                | FreshReason::OutputSent(_)
                | FreshReason::TooOld(_)
                | FreshReason::FilesStay(_),
            ) => true,
            Some(FreshReason::NotRestorable { .. }) => self.trouble.has_failed_step,
            Some(FreshReason::EachDied) => !self.trouble.unusable.is_empty(),
            Some(FreshReason::NoneExact) => self.guard().watch.has_been_broken,
            None => false,
            Some(FreshReason::FilesChanged | FreshReason::ChangedSince(_) | FreshReason::Told(_)) => {
                return self.violate(format!("a start for a reason that cannot be: {why:?}"));
            }
        };
        if !is_allowed {
            self.judge_acknowledged(None);
        }
    }

    /// No acknowledged output is lost: a checkpoint contains all output that a durable checkpoint has released. The restart
    /// uses such a checkpoint, unless each of them is unusable. `used` is the checkpoint of the restart; `None` for a start
    /// from the beginning.
    fn judge_acknowledged(&mut self, used: Option<Sequence>) {
        let holders = self.holders();
        if holders.as_ref().is_none_or(|holders| used.is_some_and(|used| holders.contains(&used))) {
            return;
        }
        let holders: Vec<Sequence> = holders.into_iter().flatten().collect();
        let is_unusable = |one: &Sequence| self.trouble.unusable.contains(one);
        let exact = if self.trouble.has_excluded { Vec::new() } else { self.exact(&holders) };
        if let Some(usable) = exact.iter().find(|one| !is_unusable(one)) {
            let used = used.map_or_else(|| "the beginning".to_owned(), |used| format!("checkpoint {used}"));
            self.violate(format!("{used} is used, although checkpoint {usable} has all acknowledged output"));
        } else if !self.trouble.has_excluded && !holders.iter().any(is_unusable) {
            let sent = used.map(|used| &self.moments[&used].sent.all);
            let what = format!("{holders:?} have all of {:?}; the used one has {sent:?}", self.wire.received);
            self.violate(format!("no restart can reach acknowledged output: {what}"));
        }
    }

    /// Returns the listed checkpoints that contain all acknowledged output. `None` if no output was acknowledged.
    fn holders(&mut self) -> Option<Vec<Sequence>> {
        let acknowledged: Vec<u64> = self
            .wire
            .received
            .iter()
            .filter(|one| one.how == Released::Committed)
            .map(|one| one.output)
            .collect();
        if acknowledged.is_empty() {
            return None;
        }
        let listed = self.store().and_then(|store| store.list(&name())).unwrap_or_default();
        let holds = |sequence: &Sequence| {
            self.moments.get(sequence).is_some_and(|moment| {
                let known: HashSet<&u64> = moment.sent.all.iter().collect();
                acknowledged.iter().all(|output| known.contains(output))
            })
        };
        Some(listed.into_iter().map(|(sequence, _)| sequence).filter(holds).collect())
    }

    /// Judges the disks after the end of a guardian: each checkpoint is whole or absent, what was reported as durable is
    /// there, and acknowledged output is in a checkpoint.
    pub(crate) fn judge_disks(&mut self) {
        let whole = match self.store() {
            Ok(store) => self.memory.compare_all(&store, &name()),
            Err(error) => Err(error.to_string()),
        };
        let whole = match whole {
            Ok(whole) => whole,
            Err(why) => return self.violate(format!("the log is wrong: {why}")),
        };
        if whole.last().copied() < self.answered {
            return self
                .violate(format!("{:?} was reported as durable, and {whole:?} are there", self.answered));
        }
        if self.holders().is_some_and(|holders| holders.is_empty()) {
            self.violate(format!("acknowledged output is in no checkpoint of {whole:?}"));
        }
    }

    /// Restores by hand, as `undying restore NAME` does, and judges the files. Returns whether the files were rolled back.
    pub(crate) fn restore_by_hand(&mut self) -> bool {
        let listed = self.store().and_then(|store| store.list(&name())).unwrap_or_default();
        let listed: Vec<Sequence> = listed.into_iter().map(|(sequence, _)| sequence).collect();
        let (Ok(standing), Ok(reached)) = (self.files_disk.standing(), self.files_disk.reachable()) else {
            self.violate("the undo log cannot be read");
            return false;
        };
        let to = match &standing {
            Standing::At(at) => listed.iter().rfind(|one| at.contains(one)).or(listed.last()),
            Standing::Unknown | Standing::Complete => listed.last(),
        };
        let Some(to) = to.copied() else { return false };
        self.note(format!("by hand: {to} of {listed:?}; {standing:?}, reached {reached:?}"));
        let is_older = matches!(&standing, Standing::At(at) if at.iter().all(|one| *one < to));
        if is_older || !reached.contains(&to) || standing == Standing::Unknown {
            if !reached.contains(&to) {
                self.refuses(to);
            }
            self.tally.by_hand_refused += 1;
            return false;
        }
        match self.files_disk.go_back(to, Durability::PowerCut) {
            Ok(_) => self.judge_files(to),
            Err(error) => {
                self.violate(format!("the files are not rolled back to checkpoint {to}: {error}"));
                return false;
            }
        }
        self.tally.by_hand += 1;
        if self.random.bool() {
            self.note("power cut after the restore by hand".to_owned());
            self.files_disk.cut_power();
            self.judge_files(to);
        } else if self.files_disk.give_up("the program has run without being watched").is_err()
            || self.files_disk.reachable().is_ok_and(|reached| !reached.is_empty())
        {
            self.violate("files can be rolled back past a time without a watch");
        }
        true
    }

    /// A rollback to a checkpoint that is not reachable is refused, and changes nothing.
    fn refuses(&mut self, to: Sequence) {
        let before = picture(&self.files_disk);
        if self.files_disk.go_back(to, Durability::Kill).is_ok() || picture(&self.files_disk) != before {
            self.violate(format!("checkpoint {to} is not reachable, and a rollback to it changes files"));
        }
    }

    /// The run ends in a state that the policy allows.
    pub(crate) fn judge_end(&mut self, was_asked: bool) {
        let Some(State::Ended(end)) = self.state() else { return };
        let is_allowed = match end {
            End::Over(_) => was_asked,
            End::GaveUp(_) => self.guard().machine.restart_count() > 0 || !self.trouble.unusable.is_empty(),
            End::Failed(Failure::LastError | Failure::Stopped(_) | Failure::NotRestorable { .. }) => {
                self.trouble.has_failed_step
            }
            End::Failed(Failure::NoWayBack | Failure::ChangedSince(_)) | End::Left => false,
        };
        if !is_allowed {
            self.violate(format!("the policy does not allow this end: {end:?}"));
        }
    }

    /// What happens after the end of a guardian, up to the next guardian.
    pub(crate) fn aftermath(&mut self, down: Down, was_alive: bool) {
        if let Some(why) = self.wire.error.take() {
            self.violate(why);
        }
        if down == Down::Kill {
            self.live_unwatched(was_alive);
        } else {
            self.wire.discard();
        }
        self.program = None;
        if self.violation.is_none() {
            self.judge_disks();
        }
        if self.violation.is_none() {
            self.restore_by_hand();
        }
        self.trouble = Trouble::default();
    }
}
