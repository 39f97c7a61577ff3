//! Common code of the tests of the guardian: a store on a medium of the test, and a guard on the thread of the test.
//!
//! A guard protects one subject (a process tree). A script is the part of a test that runs beside the guard.
//!
//! Owns: the folder, the subject, and the thread that runs the script.
//! Invariants: every wait has a limit. When the script ends or fails, the subject ends, and then the guard.
//! Does not: assert anything about the reports of the guard.

use std::path::PathBuf;
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use crate::medium::{Gate, GatedMedium};
use model::{Pid, Sequence};
use store::Store;
use tempfile::TempDir;
use testkit::ProcessId;
use undying_guardian as guardian;

pub(crate) use testkit::until;

use guardian::{ChangedFiles, Guarded, RestartLimit, RunEvent, RunRequest, StoreLocation, SubjectState};

/// Time limit of every wait, even on a loaded machine.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);
/// A time longer than the maximum age of a status.
const STALE: Duration = Duration::from_millis(500);
const NAME: &str = "large";
const KILL: rustix::process::Signal = rustix::process::Signal::KILL;
const TERM: rustix::process::Signal = rustix::process::Signal::TERM;

/// The reports of the guard that matter to the tests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Reported {
    Died,
    Dropped(Sequence),
    Restored(Sequence, Duration),
    StartedAfresh(Pid),
}

/// The working environment of a test.
pub(crate) struct Lab {
    folder: TempDir,
    medium: Arc<GatedMedium>,
    gate: Arc<Gate>,
    death: Mutex<SystemTime>,
}

impl Lab {
    pub(crate) fn new(gate: &Arc<Gate>) -> Self {
        let folder = TempDir::with_prefix_in("undying-guardian-", env!("CARGO_TARGET_TMPDIR")).unwrap();
        let medium = Arc::new(GatedMedium::new(gate));
        Self { folder, medium, gate: Arc::clone(gate), death: Mutex::new(SystemTime::UNIX_EPOCH) }
    }

    /// Guards a subject with `mebibytes` of memory until the script has ended. `on_event` receives every event, on the
    /// thread of the guard.
    pub(crate) fn guard_large(
        &self,
        mebibytes: &str,
        every: Duration,
        on_event: impl Fn(&Reported),
        script: impl FnOnce(&Self, &Receiver<Reported>) + Send,
    ) {
        let program = self.compile();
        let request = RunRequest {
            name: Some(NAME.to_owned()),
            every: Some(every),
            keep: 4,
            files: Some(ChangedFiles::Keep),
            limit: RestartLimit { count: 100, window: LIMIT },
            ..RunRequest::new(Guarded::Command(vec![program.into(), mebibytes.into()]), self.location())
        };
        let (sender, reports) = mpsc::channel();
        std::thread::scope(|scope| {
            let player = scope.spawn(move || {
                let _end = End(self);
                script(self, &reports);
            });
            let outcome = guardian::run(&request, &mut |event| {
                println!("    {event}");
                if let Some(event) = of_event(event) {
                    on_event(&event);
                    // The script may have ended.
                    let _ = sender.send(event);
                }
            });
            if let Err(panic) = player.join() {
                std::panic::resume_unwind(panic);
            }
            outcome.unwrap();
        });
    }

    /// Closes the gate after the guard has opened its log, and before there is a checkpoint.
    pub(crate) fn close_before_the_first(&self) {
        until("the subject", || self.subject());
        self.gate.close();
        assert_eq!(self.newest(), Sequence(0), "the gate was closed too late");
    }

    /// Waits until a checkpoint is being written. The closed gate keeps the write from ending.
    pub(crate) fn wait_taken(&self) {
        std::thread::sleep(STALE);
        let status = || guardian::status(&self.location(), Some(NAME)).ok();
        until("a write", || status()?.rows.first()?.facts.in_flight.checked_sub(1));
    }

    /// Waits until checkpoint `number` of the whole run is committed.
    pub(crate) fn wait_committed(&self, number: u64) {
        until("checkpoints", || (self.newest() >= Sequence(number)).then_some(()));
    }

    /// Waits until `number` more checkpoints are committed.
    pub(crate) fn wait_committed_more(&self, number: u64) {
        self.wait_committed(self.newest().get() + number);
    }

    /// Returns the newest committed checkpoint, or 0 if there is none.
    pub(crate) fn newest(&self) -> Sequence {
        self.store().list(&NAME.parse().unwrap()).unwrap().last().map_or(Sequence(0), |(number, _)| *number)
    }

    /// Returns when the subject was stopped for the newest committed checkpoint, if there is one.
    pub(crate) fn newest_time(&self) -> Option<SystemTime> {
        self.store().list(&NAME.parse().unwrap()).unwrap().last().map(|(_, commit)| commit.time)
    }

    /// Returns the checkpoints newer than `above` that were taken before a time.
    pub(crate) fn between(&self, above: Sequence, before: SystemTime) -> Vec<Sequence> {
        let images = self.store().list(&NAME.parse().unwrap()).unwrap().into_iter();
        let of_then = images.filter(|(number, commit)| *number > above && commit.time < before);
        of_then.map(|(number, _)| number).collect()
    }

    /// Returns when the subject was killed last.
    pub(crate) fn death(&self) -> SystemTime {
        *self.death.lock().unwrap()
    }

    pub(crate) fn kill(&self) {
        *self.death.lock().unwrap() = SystemTime::now();
        self.subject().unwrap().signal(KILL).unwrap();
    }

    pub(crate) fn terminate(&self) {
        if let Some(subject) = self.subject() {
            // The subject may have ended meanwhile.
            let _ = subject.signal(TERM);
        }
    }

    fn subject(&self) -> Option<ProcessId> {
        let status = guardian::status(&self.location(), Some(NAME)).ok()?;
        ProcessId::of(Pid(status.rows.first()?.pid)).ok()
    }

    fn store(&self) -> Store {
        Store::open_on(self.medium.clone(), &self.root()).unwrap()
    }

    fn location(&self) -> StoreLocation {
        StoreLocation::on(self.medium.clone(), self.root())
    }

    fn root(&self) -> PathBuf {
        self.folder.path().join("store")
    }

    fn compile(&self) -> PathBuf {
        testkit::compiled(env!("CARGO_MANIFEST_DIR"), "large", &["-O1"]).unwrap()
    }
}

/// Opens the gate for all waiting writes, and ends the subject.
struct End<'a>(&'a Lab);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.gate.open();
        let deadline = Instant::now() + LIMIT;
        // A subject that is being restored gets the signal in its next incarnation.
        while Instant::now() < deadline && self.0.is_guarded() {
            self.0.terminate();
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

impl Lab {
    fn is_guarded(&self) -> bool {
        let status = guardian::status(&self.location(), Some(NAME));
        status.is_ok_and(|status| {
            status.rows.iter().any(|one| matches!(one.state, SubjectState::Running | SubjectState::Restoring))
        })
    }
}

fn of_event(event: &RunEvent) -> Option<Reported> {
    match event {
        RunEvent::Died { .. } => Some(Reported::Died),
        RunEvent::Dropped { seq } => Some(Reported::Dropped(Sequence(*seq))),
        RunEvent::Restored { seq, took_us, .. } => {
            Some(Reported::Restored(Sequence(*seq), Duration::from_micros(*took_us)))
        }
        RunEvent::Started { pid, .. } => Some(Reported::StartedAfresh(Pid(*pid))),
        _ => None,
    }
}
