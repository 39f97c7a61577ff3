//! Starting or adopting a subject, and building its guard.
//!
//! Owns: the steps from a request to a guarded subject, their order, and the first reports.
//! Invariants: a name is claimed before a program is started. A program that was started continues if a later step
//! fails.
//! Does not: guard the subject; the other modules of the guard do.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use model::{Pid, Sequence};
use store::{EPOCHS_IN_FLIGHT_MAX, LogWriter, Store, SubjectName};
use supervise::{Beginning, ChangedFiles, Event, Plan};
use sys::clock::boot_id;
use sys::listener_holder::ListenerHolder;
use sys::packet_hold::SocketMark;
use tracee::procfs;
use undo::watch::CallReports;

use super::super::children::Children;
use super::super::claim::{Claim, UNDO_DIRECTORY};
use super::super::connections::IdleConnections;
use super::super::departed::Departed;
use super::super::earlier;
use super::super::leftovers::{self, descendants};
use super::super::mapped_files::MappedFiles;
use super::super::output::HeldOutput;
use super::super::place::Place;
use super::super::rebuild::{Incarnation, Rebuild, Shared, spawn};
use super::super::request::{Guarded, RunRequest};
use super::super::requested_restart::RequestedRestart;
use super::super::requests::Requests;
use super::super::tracer::{Tracer, Tracking};
use super::super::waits::Waits;
use super::super::watching::{self, Choice, FileWatch, Watching};
use super::members::Members;
use super::outbox::Outbox;
use super::parts::{Driver, Guard, Progress, Refusals, ReportedOnce, Taking, Tree, Voice, WatchedFiles};
use crate::ancestry;
use crate::error::Result;
use crate::event::RunEvent;
use crate::files::FilesReport;
use crate::foreground::Foreground;
use crate::journal::Journal;
use crate::mark;
use crate::record::{CostsReport, ProcessName, Record, SubjectFacts};
use crate::streams::Streams;
use crate::subject::{Root, Subject};
use crate::time;

/// Executes a request until its subject runs and is guarded. Waits for the disk, and until the program is executed.
///
/// # Errors
///
/// The subject cannot be started or watched. A running program continues.
pub(crate) fn start(mut request: RunRequest, host: Arc<Shared>, foreground: Foreground) -> Result<Guard> {
    let started_as = earlier::recognise(&mut request)?;
    request.adopted().map_or(Ok(()), refuse_own)?;
    let mut choice = watching::choose(&request)?;
    let mut tracking = tracking(&request)?;
    let output = request.holds_output.then(|| held_output(&request, &host)).transpose()?;
    let Ground { store, mut claim, streams, watch, log } =
        Ground::prepare(&request, &mut choice, &host, output.as_ref().map(HeldOutput::mark))?;
    tracking.watch = watch.of_checkpoints();
    tracking.hold = output.as_ref().map(HeldOutput::hold);
    let mut children = request.child_signals.then(Children::listen).transpose()?;
    let (subject, requests, first) =
        run_or_adopt(&request, &host, (&store, &claim), (&streams, watch.calls()))?;
    claim.use_it();
    let beginning = beginning(&store, &claim, first)?;
    children.as_mut().map_or(Ok(()), |children| children.begin(subject.pid(), Duration::ZERO))?;
    let mut record = first_record((&request, &choice), &claim, &subject, first, &tracking)?;
    requests.name.clone_into(&mut record.requests);
    record.started_as = started_as.or_else(|| earlier::recorded(&claim.directory, &record));
    let journal = Journal::start(&claim.directory, claim.name.as_str(), host.clock.clone())?;
    let known = descendants(subject.roots());
    let owner = host.reaper.admit(subject.keys(), &requests.name, request.adopted().is_some());
    host.reaper.note(owner, &known);
    let tracer = match log {
        Some((place, log)) => Tracer::start(place, log, tracking, &host)?,
        None => Tracer::none(&host)?,
    };
    let began = host.clock.now();
    let mut guard = Guard {
        driver: Driver::begin(plan(&request, choice.policy), beginning, began),
        tree: Tree {
            children,
            child_death: None,
            known,
            departed: Departed::default(),
            resumed_after: Duration::ZERO,
            death: None,
            dead: Pid(0),
            members: Members::default(),
        },
        rebuild: Rebuild {
            streams,
            launch: request.launch.clone(),
            store,
            name: claim.name.clone(),
            directory: claim.directory.clone(),
            subject: Arc::new(subject),
            owner,
            policy: choice.policy,
            file_watch: watch,
            foreground: Arc::new(Mutex::new(foreground)),
            mapped: MappedFiles::default(),
            host,
        },
        request,
        claim,
        requests,
        taking: Taking::of(tracer),
        refusals: Refusals::new(began),
        files: WatchedFiles::default(),
        connections: IdleConnections::new()?,
        output,
        voice: Voice::of(journal, record),
    };
    guard.tree.members.note_root(guard.rebuild.subject.pid(), guard.request.success);
    guard.report_begin(choice.no_rewind.as_deref());
    Ok(guard)
}

fn held_output(request: &RunRequest, host: &Shared) -> Result<HeldOutput> {
    let output = HeldOutput::start(request.every, host.clock.now())?;
    // A component inherits no socket.
    Ok(if request.launch.channels.is_none() { output.with_inherited() } else { output })
}

/// Refuses to adopt a process that this process descends from, or that another guardian protects.
fn refuse_own(pid: Pid) -> Result<()> {
    ancestry::refuse(pid)?;
    ancestry::refuse_guarded(pid)
}

/// The root, the socket for requests, and the sequence number of the first checkpoint.
type Begun = (Subject, Requests, Sequence);

fn run_or_adopt(
    request: &RunRequest,
    host: &Shared,
    (store, claim): (&Store, &Claim),
    (streams, calls): (&Streams, Option<&CallReports>),
) -> Result<Begun> {
    match (&request.what, request.adopted()) {
        (_, Some(pid)) => adopt(pid, request, store, claim),
        (Guarded::Process(pid), None) => Err(engine::EngineError::NoProcess(*pid).into()),
        (Guarded::Command(words), None) => {
            end_leftovers(request, claim)?;
            let requests = Requests::open(mark_before(request, claim).as_deref())?;
            let (launch, log) = (&request.launch, streams.log());
            let root = spawn(words, host, (launch, log), &requests.name, Incarnation::New(calls))?;
            Ok((root.into(), requests, store.next_sequence(&claim.name)?))
        }
    }
}

/// The values that are prepared before the program is started.
struct Ground {
    store: Store,
    claim: Claim,
    streams: Arc<Streams>,
    watch: FileWatch,
    /// The log of the checkpoints, if checkpoints are taken.
    log: Option<(Place, LogWriter)>,
}

impl Ground {
    /// `mark` is the mark of sockets whose output is held. Changes `choice` if the files cannot be watched.
    fn prepare(
        request: &RunRequest,
        choice: &mut Choice,
        host: &Arc<Shared>,
        mark: Option<SocketMark>,
    ) -> Result<Self> {
        let streams = match request.launch.open_log()? {
            Some(log) => Arc::new(host.streams.with_log(log)?),
            None => Arc::clone(&host.streams),
        };
        let store = request.store.create()?;
        let claim = claim(&store, request)?;
        if let Some(channels) = request.launch.channels.as_ref().filter(|_| request.every.is_some()) {
            channels.expect_stops();
            channels.mark_sockets(mark);
        }
        let watch = match watch(request, choice, &claim, host, (&streams, mark)) {
            Err(error) => {
                *choice = watching::choose_after(request, &error)?.ok_or(error)?;
                watch(request, choice, &claim, host, (&streams, mark))?
            }
            outcome => outcome?,
        };
        let place = request.every.map(|_| Place::new(&store, &claim.name, request, &host.storage));
        let log = place.map(|place| place.open().map(|log| (place, log))).transpose()?;
        Ok(Self { store, claim, streams, watch, log })
    }
}

/// Starts to watch the files of a subject that is to be started, if this is needed.
fn watch(
    request: &RunRequest,
    choice: &Choice,
    claim: &Claim,
    host: &Arc<Shared>,
    (streams, mark): (&Streams, Option<SocketMark>),
) -> Result<FileWatch> {
    let rolls_back = choice.policy == ChangedFiles::Rewind;
    if !rolls_back && !choice.is_noticing {
        return Ok(FileWatch::None);
    }
    let host = Arc::clone(host);
    let holder = ListenerHolder::start(move |create| host.reaper.create_exempt(create))?;
    if !rolls_back {
        return Ok(FileWatch::notice(request, holder, mark));
    }
    let undo = claim.directory.join(UNDO_DIRECTORY);
    Ok(FileWatch::RollsBack(Arc::new(Watching::start(undo, request, holder, streams, mark)?)))
}

impl Voice {
    fn of(journal: Journal, record: Record) -> Self {
        let reported = ReportedOnce::default();
        Self { journal, record, reported, outbox: Outbox::default(), redraws: false }
    }
}

impl Taking {
    fn of(tracer: Tracer) -> Self {
        let pending = VecDeque::with_capacity(EPOCHS_IN_FLIGHT_MAX);
        Self {
            tracer,
            pending,
            early: None,
            raised: Duration::ZERO,
            longest: Duration::ZERO,
            waits: Waits::default(),
            recheck: None,
        }
    }
}

impl Driver {
    /// Returns the driver for a subject that already runs.
    fn begin(plan: Plan, beginning: Beginning, now: Instant) -> Self {
        let mut machine = supervise::Subject::new(plan, beginning, now);
        Self {
            actions: machine.step(now, Event::Started).into(),
            incarnation: machine.incarnation(),
            machine,
            last_error: None,
            signals: VecDeque::new(),
            progress: Progress::Own,
            restart: RequestedRestart::default(),
        }
    }
}

impl Guard {
    /// Tells the operator of `undying run` how the program is protected. The system file of a component says this already.
    fn report_protection(&mut self) {
        if self.request.launch.is_service {
            return;
        }
        let every = self.request.every.filter(|_| !self.request.dry_run_tracking);
        let (subject, files) = (self.claim.name.to_string(), self.rebuild.policy);
        let every_us = every.map(time::microseconds);
        let is_adopted = matches!(self.request.what, Guarded::Process(_));
        self.voice.outbox.push(RunEvent::Protected { subject, every_us, files, is_adopted });
    }

    /// Reports the start of the subject. `no_rewind` is the reason why files are not rolled back, and is reported too.
    fn report_begin(&mut self, no_rewind: Option<&str>) {
        match self.request.adopted() {
            Some(pid) => {
                let subject = self.claim.name.to_string();
                let is_known = matches!(self.request.what, Guarded::Command(_));
                self.report(RunEvent::Adopted { pid: pid.get(), subject });
                if is_known && !self.request.launch.is_service {
                    self.report(RunEvent::NotStartedTwice { pid: pid.get() });
                }
            }
            None => {
                let pid = self.rebuild.subject.pid().get();
                self.voice.journal.record_event(RunEvent::Started { pid, why: None });
            }
        }
        self.report_protection();
        if let Some(why) = no_rewind {
            self.report(RunEvent::FilesCompared { reason: why.to_owned() });
        }
        self.renew_outlook();
        self.write_record();
    }
}

fn beginning(store: &Store, claim: &Claim, first: Sequence) -> Result<Beginning> {
    let newest = store.newest(&claim.name)?.map(|(sequence, _)| sequence);
    Ok(Beginning { next: store.next_sequence(&claim.name)?, first, newest })
}

fn plan(request: &RunRequest, files: ChangedFiles) -> Plan {
    Plan {
        every: request.every,
        cost_limit: request.cost_limit(),
        once: request.once,
        awaits_ready: request.await_ready,
        restart: request.policy,
        success: request.success,
        limit: request.limit,
        back_off: request.back_off,
        files,
        files_back_max: request.files_back_max(),
        can_start: matches!(request.what, Guarded::Command(_)),
        ends_on_request: request.launch.is_service,
        in_flight_max: EPOCHS_IN_FLIGHT_MAX,
    }
}

fn first_record(
    (request, choice): (&RunRequest, &Choice),
    claim: &Claim,
    subject: &Subject,
    first: Sequence,
    tracking: &Tracking,
) -> Result<Record> {
    let own = tracee::procfs::key(model::Pid(std::process::id() as i32))?;
    let facts = SubjectFacts {
        name: claim.name.to_string(),
        policy: request.component_policy.unwrap_or(request.policy.name()).to_owned(),
        incarnation: 1,
        max_pause_us: request.tuning.max_pause.map(time::microseconds),
        costs: CostsReport {
            max_percent: request.cost_limit().map(|limit| 100.0 * limit.share),
            ..Default::default()
        },
        requested_hz: request.every.filter(|_| !request.once).map_or(0.0, |every| 1.0 / every.as_secs_f64()),
        tracker: tracking.kind.name().to_owned(),
        files: first_files(request, choice),
        ..SubjectFacts::default()
    };
    let (guardian, root) = (ProcessName::of(own), ProcessName::of(subject.key()));
    Ok(Record { facts, boot: boot_id(), guardian, root, first_sequence: first.get(), ..Record::default() })
}

fn first_files(request: &RunRequest, choice: &Choice) -> FilesReport {
    let back_max_us = time::microseconds(request.files_back_max());
    let (because, unnoticed) = (choice.no_rewind.clone(), choice.unnoticed.clone());
    FilesReport { policy: choice.policy, because, unnoticed, back_max_us, ..FilesReport::default() }
}

fn tracking(request: &RunRequest) -> Result<Tracking> {
    let choice = track::choose(&request.tracker).map_err(engine::EngineError::from)?;
    Ok(Tracking { kind: choice.kind, request: request.clone(), watch: None, hold: None })
}

fn claim(store: &Store, request: &RunRequest) -> Result<Claim> {
    match (&request.name, &request.what) {
        (Some(name), _) => Claim::named(store, &SubjectName::chosen(name)?),
        (None, Guarded::Command(words)) => {
            let program = words.first().map(Path::new).and_then(Path::file_name);
            Claim::after(store, &valid(&program.unwrap_or_default().to_string_lossy()), None)
        }
        (None, Guarded::Process(pid)) => match name_of(store, *pid)? {
            Some(name) => Claim::named(store, &name),
            None => {
                let stat = procfs::stat(*pid).map_err(|_| engine::EngineError::NoProcess(*pid))?;
                Claim::after(store, &valid(&stat.comm), Some(stat.key()))
            }
        },
    }
}

/// Returns the name of a program in the form that a store accepts.
fn valid(program: &str) -> String {
    let is_plain = |letter: char| letter.is_alphanumeric() || "-_.+".contains(letter);
    let name: String = program.chars().map(|letter| if is_plain(letter) { letter } else { '_' }).collect();
    let name = name.trim_start_matches('.');
    if name.is_empty() { "subject".to_owned() } else { name.to_owned() }
}

/// Returns the name under which a process was guarded before.
fn name_of(store: &Store, pid: Pid) -> Result<Option<SubjectName>> {
    for name in store.names()? {
        // A record that cannot be read is not a record of this process.
        let record = Record::read(&store.root().join(name.as_str())).ok().flatten();
        if record.is_some_and(|record| record.has_root() && record.root.pid == pid.get()) {
            return Ok(Some(name));
        }
    }
    Ok(None)
}

/// Ends the remaining processes of an incarnation whose guardian died first. These processes would still occupy
/// addresses and files.
fn end_leftovers(request: &RunRequest, claim: &Claim) -> Result<()> {
    match Record::read(&claim.directory).ok().flatten() {
        Some(record) if request.ends_tree && record.is_of_this_boot() && !record.has_root() => {
            leftovers::end_left_by(&record.requests, record.root.key().pid)
        }
        _ => Ok(()),
    }
}

/// Returns the mark of the earlier processes of a component: the name of their socket for requests. The next processes
/// get the same mark. If the status cannot be written any more, the next guardian finds them by this mark.
fn mark_before(request: &RunRequest, claim: &Claim) -> Option<String> {
    let record = Record::read(&claim.directory).ok().flatten();
    Some(record.filter(|record| request.ends_tree && record.is_of_this_boot())?.requests)
}

/// Adopts a running process. If its last guardian has recorded this very process, two recorded values are reused. These
/// are the name of the request socket, which the process knows, and the first checkpoint of the process. If only the mark
/// shows that the process belongs to the subject, the record can be old, and only the name is reused.
fn adopt(pid: Pid, request: &RunRequest, store: &Store, claim: &Claim) -> Result<Begun> {
    let subject = Root::stranger(pid).map(Subject::from).map_err(|_| engine::EngineError::NoProcess(pid))?;
    if request.runs_already.is_some_and(|expected| expected != subject.key()) {
        return Err(engine::EngineError::NoProcess(pid).into());
    }
    if let Some(channels) = &request.launch.channels {
        channels.take_over(pid)?;
    }
    let before = Record::read(&claim.directory).ok().flatten();
    let same = |record: &Record| record.has_root() && record.root == ProcessName::of(subject.key());
    let is_known = |record: &Record| same(record) || mark::is_on(pid, &record.requests);
    let recorded = before.as_ref().filter(|record| is_known(record)).map(|record| record.requests.as_str());
    let requests = Requests::open(recorded)?;
    let before = before.filter(same);
    let first = match before {
        Some(record) => Sequence(record.first_sequence),
        None => store.next_sequence(&claim.name)?,
    };
    Ok((subject, requests, first))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_program_has_a_name_that_a_store_takes() {
        for (program, name) in
            [("redis-server", "redis-server"), ("a b@c", "a_b_c"), (".hidden", "hidden"), ("..", "subject")]
        {
            assert_eq!(valid(program), name);
            assert!(valid(program).parse::<store::SubjectName>().is_ok());
        }
    }
}
