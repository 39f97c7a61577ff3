//! Random schedules of file changes, kills and power cuts, on a simulated disk.
//!
//! A schedule changes files, records the changes in an undo log, and rolls files back to random checkpoints.
//!
//! Owns: the operations of a schedule, and the conditions that must hold afterwards.
//! Invariants: the seed determines a schedule. `UNDYING_TEST_SEED` repeats the schedule of one seed.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use fastrand::Rng;
use model::{ByteCount, Sequence};

use super::{Conflicts, Durability, Terms, go_back_on, reachable_on};
use crate::error::{Result, UndoError};
use crate::key::Attributes;
use crate::log::UndoLog;
use crate::log::reader;
use crate::rights::Touch;
use crate::simulated::{
    ASIDE, Disk, FileSubject, Files, KEPT, LOG, NEW, Picture, ROOT, TRANSIT, difference, key_of, picture,
};

const LARGE: ByteCount = ByteCount(1 << 30);
/// Maximum number of interrupted attempts at one rollback.
const INTERRUPTED_MAX: usize = 4;

type Pictures = BTreeMap<Sequence, Picture>;

/// Counts of events in all schedules. A test uses these counts to check that schedules reach all cases.
#[derive(Debug, Default)]
struct Tally {
    went_back: usize,
    interrupted: usize,
    killed: usize,
    power_cuts: usize,
    after_power_cut: usize,
    refused: usize,
    full: usize,
    joined: usize,
    replaced: usize,
}

struct Schedule<'a> {
    disk: Disk,
    files: Files,
    subject: FileSubject,
    random: Rng,
    pictures: Pictures,
    next: u64,
    bytes_max: ByteCount,
    cuts_power: bool,
    tally: &'a mut Tally,
}

impl<'a> Schedule<'a> {
    fn terms(&self, durability: Durability) -> Terms<'static> {
        Terms { conflicts: Conflicts::Refuse, leave: &[], durability, time: self.disk.now() }
    }

    fn new(seed: u64, tally: &'a mut Tally) -> Self {
        let mut random = Rng::with_seed(seed);
        let cuts_power = random.u8(..4) == 0;
        let disk = Disk::new(random.u64(..), cuts_power);
        let subject = FileSubject::new(disk.clone(), random.fork());
        let files = Files { disk: disk.clone() };
        let bytes_max = ByteCount(if random.u8(..8) == 0 { random.u64(400..2500) } else { LARGE.get() });
        Self {
            disk,
            files,
            subject,
            random,
            pictures: Pictures::new(),
            next: 0,
            bytes_max,
            cuts_power,
            tally,
        }
    }

    fn run(&mut self) {
        for _ in 0..self.random.usize(..25) {
            self.subject.change(&mut None).unwrap();
        }
        self.disk.sync_all();
        self.subject.forget();
        self.pictures.insert(Sequence(0), picture(&self.disk));
        let mut log = Some(self.disk.create_log(Sequence(0), self.bytes_max).unwrap());
        for _ in 0..self.random.usize(1..5) {
            self.keep(log.take());
            if self.random.u8(..8) == 0 {
                return self.replace();
            }
            // The recording program can also be restarted, and then continues the same epoch.
            if self.random.u8(..4) > 0 && !self.go_back() {
                return;
            }
            let opened = self.disk.open_log(self.bytes_max).unwrap();
            assert_eq!(opened.sequences(), reachable_on(&self.disk.storage()).unwrap().0);
            log = Some(opened);
            self.subject.forget();
        }
    }

    /// Lets the subject change files in some epochs, until the subject ends or the recording program is killed.
    fn keep(&mut self, log: Option<UndoLog>) {
        let mut log = log;
        let is_killed = self.random.bool();
        self.disk.end_after(is_killed.then(|| self.random.u64(..120)));
        'epochs: for _ in 0..self.random.usize(1..6) {
            for _ in 0..self.random.usize(..12) {
                match self.subject.change(&mut log) {
                    Ok(()) => {}
                    Err(UndoError::Full { .. }) => {
                        self.tally.full += 1;
                        if log.as_mut().is_some_and(|log| log.broken("full").is_err()) {
                            break 'epochs;
                        }
                    }
                    Err(error) => {
                        assert!(self.disk.is_dead(), "{error}");
                        break 'epochs;
                    }
                }
            }
            self.next += 1;
            self.pictures.insert(Sequence(self.next), picture(&self.disk));
            let Some(present) = log.as_mut() else { break };
            match present.boundary(Sequence(self.next)) {
                Ok(true) => self.subject.forget(),
                Ok(false) => {}
                Err(_) => break,
            }
            if self.random.bool() && present.prepare().is_err() {
                break;
            }
            if self.random.u8(..3) == 0 && self.retain_some(present).is_err() {
                break;
            }
            if self.random.u8(..6) == 0 {
                let oldest = present.sequences().first().copied().unwrap_or_default();
                if present.forget_before(Sequence(oldest.get() + 1)).is_err() {
                    break;
                }
            }
        }
        if let Some(log) = log.as_mut().filter(|_| self.random.bool()) {
            // A program that has been killed cannot record the end.
            let _ = log.ended(|| self.disk.now(), &[]);
        }
        let (is_dead, expected) = (self.disk.is_dead(), log.as_ref().map(UndoLog::sequences));
        self.tally.killed += usize::from(is_dead);
        drop(log);
        self.disk.end_after(None);
        let (reachable, _) = reachable_on(&self.disk.storage()).unwrap();
        if let Some(expected) = expected.filter(|_| !is_dead) {
            // A file of an epoch names checkpoints that are no longer retained.
            assert!(expected.iter().all(|one| reachable.contains(one)), "{expected:?} {reachable:?}");
        }
        assert!(reachable.iter().all(|sequence| self.pictures.contains_key(sequence)));
    }

    /// Retains random checkpoints and the newest one, and joins epochs.
    fn retain_some(&mut self, log: &mut UndoLog) -> Result<()> {
        let mut kept = log.sequences();
        let Some(newest) = kept.pop() else { return Ok(()) };
        kept.retain(|_| self.random.u8(..3) == 0);
        kept.push(newest);
        log.retain(&kept)?;
        log.join_always();
        while log.join()? {
            self.tally.joined += 1;
        }
        assert!(log.sequences() == kept || self.bytes_max < LARGE);
        Ok(())
    }

    /// Lets another program replace a file by a copy. A rollback is then refused, or the files are still right.
    fn replace(&mut self) {
        let Some(path) = self.subject.replace().unwrap() else { return };
        let before = picture(&self.disk);
        for to in reachable_on(&self.disk.storage()).unwrap().0 {
            match go_back_on(&self.disk.storage(), &self.files, to, self.terms(Durability::Kill)) {
                Ok(_) => {
                    return self.check(to);
                }
                Err(UndoError::Replaced { paths, .. }) => {
                    assert!(paths.contains(&path), "{paths:?} without {path:?}");
                    self.tally.replaced += 1;
                }
                Err(error) => {
                    assert!(matches!(error, UndoError::Conflict { .. } | UndoError::Lost { .. }), "{error}")
                }
            }
            assert!(picture(&self.disk) == before);
        }
    }

    /// Rolls files back to a random checkpoint, with some interrupted attempts. Returns `false` if no checkpoint is
    /// reachable, and checks that this result is correct.
    fn go_back(&mut self) -> bool {
        if self.cuts_power && self.random.bool() {
            self.disk.sync_all();
        }
        let (mut possible, _) = reachable_on(&self.disk.storage()).unwrap();
        let present = picture(&self.disk);
        let files = self.disk.files_below(ROOT);
        let mut targets = BTreeSet::new();
        let (mut was_cut, mut was_durable) = (false, false);
        for attempt in 0..=INTERRUPTED_MAX {
            if possible.is_empty() {
                assert!(was_cut || picture(&self.disk) == present);
                self.tally.refused += 1;
                return false;
            }
            let to = possible[self.random.usize(..possible.len())];
            targets.insert(to);
            let is_interrupted = attempt < INTERRUPTED_MAX && self.random.u8(..4) > 0;
            self.disk.end_after(is_interrupted.then(|| self.random.u64(..30)));
            let durability = if self.cuts_power { Durability::PowerCut } else { Durability::Kill };
            let durability = if self.random.u8(..8) == 0 { Durability::Kill } else { durability };
            let outcome = go_back_on(&self.disk.storage(), &self.files, to, self.terms(durability));
            let is_dead = self.disk.is_dead();
            self.disk.end_after(None);
            match outcome {
                Ok(_) => {
                    self.check(to);
                    if self.cuts_power && durability == Durability::PowerCut && self.random.u8(..4) == 0 {
                        self.disk.cut_power();
                        let found = picture(&self.disk);
                        assert!(self.pictures[&to] == found, "{}", difference(&self.pictures[&to], &found));
                        return false;
                    }
                    self.check_aside(&files, targets.len() == 1 && !was_cut);
                    return true;
                }
                Err(error) => assert!(is_dead, "{error}"),
            }
            self.tally.interrupted += 1;
            was_durable |= durability == Durability::PowerCut;
            if self.cuts_power && self.random.bool() {
                was_cut = true;
                self.tally.power_cuts += 1;
                self.disk.cut_power();
                if !self.after_power_cut(to, was_durable) {
                    return false;
                }
            }
            possible = reachable_on(&self.disk.storage()).unwrap().0;
            self.refuse_others(&possible);
        }
        unreachable!("the last attempt is not interrupted")
    }

    /// Checks that a rollback to an unreachable checkpoint is refused, and changes nothing.
    fn refuse_others(&mut self, possible: &[Sequence]) {
        let others: Vec<_> = self.pictures.keys().filter(|sequence| !possible.contains(sequence)).collect();
        let Some(to) = self.random.choice(others) else { return };
        let before = picture(&self.disk);
        let (conflicts, durability) = (Conflicts::Refuse, Durability::Kill);
        let outcome =
            go_back_on(&self.disk.storage(), &self.files, *to, Terms { conflicts, ..self.terms(durability) });
        let error = outcome.unwrap_err();
        assert!(!matches!(error, UndoError::Step { .. } | UndoError::Kernel(_)), "{error}");
        assert!(picture(&self.disk) == before);
    }

    /// Reports whether a rollback can continue after a power cut.
    fn after_power_cut(&mut self, to: Sequence, was_durable: bool) -> bool {
        let (possible, _) = reachable_on(&self.disk.storage()).unwrap();
        if !possible.is_empty() {
            assert!(was_durable);
            self.tally.after_power_cut += 1;
            return true;
        }
        let outcome = go_back_on(&self.disk.storage(), &self.files, to, self.terms(Durability::Kill));
        let error = outcome.unwrap_err();
        assert!(!matches!(error, UndoError::Step { .. }), "{error}");
        self.tally.refused += 1;
        false
    }

    /// Checks that all files of the subject still exist, in the tree or aside. With `is_exact`, also checks that files
    /// aside are unchanged. After attempts for different checkpoints, or after a power cut, their content can differ.
    fn check_aside(&self, before: &BTreeMap<u64, Vec<u8>>, is_exact: bool) {
        let (tree, aside) = (self.disk.files_below(ROOT), self.disk.files_below(ASIDE));
        for (inode, data) in before.iter().filter(|(inode, _)| !tree.contains_key(inode)) {
            let found = aside.get(inode);
            assert!(
                found.is_some_and(|found| !is_exact || found == data),
                "inode {inode}: {found:?}, had {data:?}"
            );
        }
        assert!(reader::read(&self.disk.storage(), reader::Depth::All).unwrap().leftovers.is_empty());
        assert!(!self.disk.names_of(LOG).iter().any(|name| name.ends_with(b".joined")));
        if self.disk.names_of(LOG).iter().filter(|name| name.ends_with(b".epoch")).count() == 1 {
            assert!(self.disk.names_of(KEPT).is_empty());
        }
        assert!(self.disk.names_of(NEW).is_empty() && self.disk.names_of(TRANSIT).is_empty());
    }

    fn check(&mut self, to: Sequence) {
        let (wanted, found) = (&self.pictures[&to], picture(&self.disk));
        assert!(*wanted == found, "checkpoint {to}:\n{}", difference(wanted, &found));
        // Several checkpoints can have the same files.
        let (reachable, _) = reachable_on(&self.disk.storage()).unwrap();
        assert!(reachable.contains(&to));
        self.pictures.retain(|sequence, _| reachable.contains(sequence));
        self.tally.went_back += 1;
    }
}

/// Removing a link changes the time of the inode, which a rollback would take for a change by another program.
#[test]
fn links_that_no_epoch_needs_are_removed_before_the_end_of_the_subject() {
    let disk = Disk::new(1, false);
    let file = disk.create(ROOT, b"a", &Attributes { mode: 0o100_644, ..Attributes::default() }).unwrap();
    let mut log = disk.create_log(Sequence(0), LARGE).unwrap();
    let change = |log: &mut UndoLog| {
        let attributes = disk.inode(file).unwrap().attributes;
        let id = log.inode(&key_of(file), &attributes, Path::new("/a"), Touch::ANY, None).unwrap();
        disk.write_at(file, attributes.size, b"more").unwrap();
        id
    };
    let id = change(&mut log);
    log.linked(id, &disk.keep(Some(file)).unwrap().1).unwrap();
    for sequence in [1, 2] {
        log.boundary(Sequence(sequence)).unwrap();
        change(&mut log);
    }
    log.retain(&[Sequence(1), Sequence(2)]).unwrap();
    log.ended(|| disk.now(), &[]).unwrap();
    drop(log);
    disk.go_back(Sequence(1), Durability::Kill).unwrap();
    assert_eq!(disk.inode(file).unwrap().data, b"more");
}

/// After a power cut, an earlier log must not come back: its checkpoints can have the numbers of later ones.
#[test]
fn a_removed_log_does_not_return_after_a_power_cut() {
    for seed in 0..100 {
        let disk = Disk::new(seed, true);
        let mut subject = FileSubject::new(disk.clone(), Rng::with_seed(seed));
        let mut log = Some(disk.create_log(Sequence(0), LARGE).unwrap());
        for sequence in [1, 2] {
            (0..5).for_each(|_| subject.change(&mut log).unwrap());
            log.as_mut().unwrap().boundary(Sequence(sequence)).unwrap();
            subject.forget();
        }
        log.as_mut().unwrap().ended(|| disk.now(), &[]).unwrap();
        disk.go_back(Sequence(2), Durability::PowerCut).unwrap();
        disk.cut_power();
        let mut log = disk.create_log(Sequence(0), LARGE).unwrap();
        log.boundary(Sequence(2)).unwrap();
        disk.cut_power();
        assert!(disk.reachable().unwrap().is_empty(), "seed {seed}");
    }
}

/// Seeds of schedules that once ended with wrong files.
const FOUND: [u64; 4] = [
    1_434_633_444_042_128_212,
    1_319_495_008_361_366_215,
    4_983_296_222_239_050_401,
    1_987_181_671_765_044_951,
];

fn run(seed: u64, tally: &mut Tally) {
    Schedule::new(seed, tally).run();
}

#[test]
fn each_schedule_ends_at_a_checkpoint() {
    if let Ok(seed) = std::env::var("UNDYING_TEST_SEED") {
        return run(seed.parse().unwrap(), &mut Tally::default());
    }
    let start = std::time::Instant::now();
    let first = Rng::new().u64(..u64::MAX / 2);
    let schedules: usize = testkit::rounds(1_500, 10_000);
    let mut tally = Tally::default();
    for seed in FOUND.into_iter().chain(first..first + schedules as u64) {
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| run(seed, &mut tally)));
        if let Err(panic) = outcome {
            println!("UNDYING_TEST_SEED={seed} repeats it");
            std::panic::resume_unwind(panic);
        }
    }
    println!("seeds from {first}: {tally:?} in {:?}", start.elapsed());
    let share = |part: usize| schedules / part;
    assert!(
        tally.went_back > share(2) && tally.interrupted > share(2) && tally.killed > share(10),
        "{tally:?}"
    );
    assert!(tally.after_power_cut > share(100) && tally.full > share(500), "{tally:?}");
    assert!(tally.joined > share(10) && tally.replaced > share(100), "{tally:?}");
}
