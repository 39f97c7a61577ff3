//! One schedule: several runs of guardians on one machine.
//!
//! Owns: the plans, the options of the log, and the order of runs, ends and restores by hand.
//! Invariants: a schedule has a bounded number of events.
//! Does not: judge.

use std::num::NonZeroUsize;
use std::time::Duration;

use fastrand::Rng;
use model::{ByteCount, PageCount};
use store::{
    BufferStock, LogOptions, LogThreads, RetentionPolicy, SegmentCompression, SizeLimit, StorageService,
};
use supervise::{
    BackOffPlan, Beginning, ChangedFiles, Event, OutputPoints, Plan, RestartLimit, RestartPolicy, State,
    Subject, Success,
};
use undo::simulated::FileSubject;

use undying_store as store;

use crate::guard::{Guard, Watch};
use crate::wire::Released;
use crate::world::{Coming, Down, World, fault_of, name};
use crate::{Canary, Tally};

/// The maximum number of runs on one machine.
const RUNS_MAX: u32 = 3;
/// The number of events of a run before its program is asked to end.
const EVENTS: usize = 120;
/// The maximum number of events between this request and the end.
const LAST_EVENTS: usize = 300;

/// Runs a schedule. Returns what is wrong.
pub(crate) fn run(seed: u64, canary: Option<Canary>, tally: &mut Tally) -> Option<String> {
    let mut random = Rng::with_seed(seed);
    let plan = plan(&mut random);
    let mut world = World::new(seed, canary, plan, random, tally);
    for _ in 0..world.random.u32(1..=RUNS_MAX) {
        world.run();
        if let Some(violation) = &world.violation {
            let shown: Vec<String> = world.shown.iter().cloned().collect();
            return Some(format!("{violation}\n{:?}\n{}", world.plan, shown.join("\n")));
        }
        world.tally.runs += 1;
    }
    None
}

fn plan(random: &mut Rng) -> Plan {
    Plan {
        every: Some(Duration::from_millis([10, 100, 1_000][random.usize(..3)])),
        cost_limit: None,
        once: false,
        awaits_ready: false,
        restart: RestartPolicy::OnFailure,
        success: Success::default(),
        limit: RestartLimit { count: random.usize(2..20), window: Duration::from_secs(60) },
        back_off: BackOffPlan::default(),
        files: ChangedFiles::Rewind,
        files_back_max: Duration::from_secs([5, 60, 3_600][random.usize(..3)]),
        can_start: true,
        ends_on_request: random.bool(),
        in_flight_max: store::EPOCHS_IN_FLIGHT_MAX,
    }
}

/// Returns random options of the log. The log works in the calling thread.
pub(crate) fn log_options(random: &mut Rng) -> LogOptions {
    let codec = store::codec("lz4").unwrap();
    let size = [SizeLimit::None, SizeLimit::Bytes(ByteCount(1))][random.usize(..2)];
    let keep = [RetentionPolicy::newest(1), RetentionPolicy::newest(3), RetentionPolicy::thinned(8)];
    LogOptions {
        buffers: NonZeroUsize::new(3).unwrap(),
        service: StorageService::new(BufferStock::new(PageCount(4))),
        segment: ByteCount(28 * 4096),
        keep: keep[random.usize(..3)],
        size,
        wasted_max: PageCount(2),
        compression: (random.u8(..8) == 0).then_some(SegmentCompression::new(codec, Duration::ZERO)),
        threads: LogThreads::Caller,
    }
}

impl World<'_> {
    /// Runs one guardian from its start to its end, and what follows.
    fn run(&mut self) {
        if let Err(error) = self.begin() {
            return self.violate(format!("a guardian cannot start: {error}"));
        }
        self.feed_started();
        let mut was_asked = false;
        for event in 0..EVENTS + LAST_EVENTS {
            if self.violation.is_some() || self.is_down() || matches!(self.state(), Some(State::Ended(_))) {
                break;
            }
            if event >= EVENTS && event % 30 == 0 {
                was_asked = true;
                self.happen(Coming::EndRequest);
            } else {
                self.next();
            }
            if let Some(why) = self.wire.error.take() {
                self.violate(why);
            }
        }
        self.coming.clear();
        if self.violation.is_some() {
            return;
        }
        let was_alive = self.is_alive() && self.program.is_some();
        if self.is_down() {
            let down = self.trouble.armed.unwrap_or(Down::Kill);
            self.crash(down);
            self.aftermath(down, was_alive);
        } else if matches!(self.state(), Some(State::Ended(_))) {
            self.judge_end(was_asked);
            self.leave();
            if self.is_down() {
                let down = self.trouble.armed.unwrap_or(Down::Kill);
                self.crash(down);
                return self.aftermath(down, false);
            }
            self.crash(Down::Kill);
            self.aftermath(Down::Kill, false);
        } else {
            let state = self.state();
            self.violate(format!("the run does not end: {state:?}"));
        }
    }

    fn begin(&mut self) -> Result<(), String> {
        let store = self.store().map_err(|error| error.to_string())?;
        let next = store.next_sequence(&name()).map_err(|error| error.to_string())?;
        let newest = store.newest(&name()).map_err(|error| error.to_string())?.map(|(sequence, _)| sequence);
        let log = self.open_log().map_err(|error| error.to_string())?;
        let files = FileSubject::new(self.files_disk.clone(), self.random.fork());
        let joins = self.random.bool();
        let watch = Watch::start(&self.files_disk, files, joins).map_err(|error| error.to_string())?;
        let output = (self.random.u8(..8) > 0).then(|| OutputPoints::new(self.now));
        let machine = Subject::new(self.plan, Beginning { next, first: next, newest }, self.now);
        self.guard = Some(Guard {
            machine,
            log: Some(log),
            tickets: Vec::new(),
            watch,
            output,
            pending: Default::default(),
            early: None,
            actions: Default::default(),
            incarnation: 0,
            needs_all: true,
        });
        self.begin_program();
        Ok(())
    }

    fn feed_started(&mut self) {
        self.report(Event::Started);
    }

    /// Advances the time to the next event, and handles it.
    fn next(&mut self) {
        let (now, is_running) = (self.now, self.is_alive() && !self.is_stopped());
        let guard = self.guard();
        let wake = guard.machine.wake(now);
        let late = guard.output.as_ref().filter(|_| is_running).map(|output| output.due());
        let wake = [wake, late].into_iter().flatten().min();
        let earliest = (0..self.coming.len()).min_by_key(|index| self.coming[*index].0);
        match (earliest, wake) {
            (Some(index), wake) if wake.is_none_or(|wake| self.coming[index].0 <= wake) => {
                let (at, thing) = self.coming.swap_remove(index);
                self.now = self.now.max(at);
                self.happen(thing);
                if !self.is_down() && self.random.bool() {
                    self.turn();
                }
            }
            (_, Some(wake)) => {
                self.now = self.now.max(wake);
                self.turn();
            }
            (_, None) => self.violate("nothing can happen any more"),
        }
    }

    /// Ends the run as a guardian does.
    fn leave(&mut self) {
        self.write();
        let state = self.state();
        if let Some(State::Ended(supervise::End::Failed(supervise::Failure::Stopped(sequence)))) = state {
            let _ = self.guard().watch.go_back(sequence);
        } else {
            let _ = self.guard().watch.subject_ended();
        }
        let last = self.wire.queued();
        self.wire.release(last.unwrap_or(0), Released::Unheld);
    }

    /// Ends the guardian. No operation that it has not completed reaches a disk any more.
    fn crash(&mut self, down: Down) {
        self.note(format!("{down:?}"));
        self.tally.kills += u64::from(down == Down::Kill);
        self.tally.power_cuts += u64::from(down == Down::PowerCut);
        if self.trouble.armed.is_none() || !self.store_disk.hit() {
            self.store_disk.plan(0, fault_of(down));
        }
        self.files_disk.end_after(Some(0));
        self.guard = None;
        self.files_disk.end_after(None);
        self.files_disk.set_full(false);
        if down == Down::PowerCut {
            self.store_disk.restart();
            self.files_disk.cut_power();
        } else {
            self.store_disk.heal();
        }
    }

    /// Lets the program run without a guardian for a while, if it lives. The fd holder marks the undo log.
    pub(crate) fn live_unwatched(&mut self, was_alive: bool) {
        let Some(mut sent) = self.program.take().filter(|_| was_alive) else {
            return self.wire.discard();
        };
        let last = self.wire.queued();
        self.wire.release(last.unwrap_or(0), Released::Unheld);
        if !self.trouble.is_holder_dead && self.files_disk.mark_unwatched().is_err() {
            return self.violate("the fd holder cannot mark the undo log");
        }
        let mut files = FileSubject::new(self.files_disk.clone(), self.random.fork());
        for _ in 0..self.random.u8(..6) {
            let _ = files.change(&mut None);
            self.wire.send(&mut sent, false);
        }
    }
}
