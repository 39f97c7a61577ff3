//! Opens the open file descriptions of the image in the restoring process, and installs the descriptors of each
//! restored process.
//!
//! Owns: the temporary descriptors, whose numbers are higher than every fd of the tree; the rights with which recorded
//! paths are opened. Each stub inherits the temporary descriptors, and needs one dup3(2) for each fd.
//! Invariants: before a process runs, its unneeded inherited descriptors are closed. A description in flight in a
//! socket belongs to no process, and is opened with the rights of all processes.
//! Does not: depend on a kind; this module calls the registry of kinds.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use model::{DescriptionId, Fd, Inode, Pid};
use resource::fd::{self, Connections, FdConnect, FdCreate, FdKind, FdRecord, InheritedFile, Kept, Vacated};
use resource::files::Covered;
use resource::memory::{MemoryKind, ObjectRecord};
use resource::{Opener, Shared, memory};
use rustix::fs::{Mode, OFlags};
use sys::Error;
use sys::file_rights::FileRights;
use tracee::Stub;
use tracee::arch::numbers as nr;

use super::built::Built;
use super::hooks::Rollback;
use super::plan::{Plan, PlannedProcess};
use super::segments::Unfinished;
use crate::descriptor_limit::RaisedLimit;
use crate::error::{EngineError, Result};

const O_CLOEXEC: u64 = 0o2_000_000;

/// All objects and descriptions that are open in this process for the restore.
pub(super) struct OpenFiles {
    objects: HashMap<u64, OwnedFd>,
    /// The objects of `objects` that are open for writing, opened once more for reading only. A mapping keeps the
    /// access mode of its descriptor, and a file that is open for writing cannot be executed.
    readable: HashMap<u64, OwnedFd>,
    descriptions: HashMap<DescriptionId, OwnedFd>,
    /// The processes for which each object and description is opened.
    pub(super) holders: Holders,
    unfinished: Unfinished,
    /// What happened to connections with peers outside the subject.
    pub(super) connections: Connections,
    vacated: Vacated,
    /// Keeps the descriptor limit raised while the descriptors are open.
    _limit: RaisedLimit,
}

impl OpenFiles {
    pub(super) fn object(&self, id: u64) -> Result<&OwnedFd> {
        self.objects.get(&id).ok_or_else(|| EngineError::Incomplete(format!("object {id} is missing")))
    }

    /// Closes the descriptors that can write to an executable. The image contains the content of an executable whose
    /// name was removed, so the file was open for writing until now. The kernel accepts no such file as executable.
    /// Must be called after the content was written, and before a process inherits the descriptors.
    pub(super) fn close_writers_of_executables(&mut self, plan: &Plan) {
        for process in plan.living() {
            let id = process.message.executable;
            if let Some(reader) = self.readable.remove(&id) {
                self.objects.insert(id, reader);
            }
        }
    }

    /// Closes all descriptors after a successful restore, and keeps the objects that were created for the tree.
    pub(super) fn complete(mut self, shared: Shared) {
        self.unfinished.0.clear();
        self.vacated.forget();
        drop(shared);
    }

    /// Returns a read-only descriptor of an object, or the original descriptor if no read-only descriptor was
    /// made.
    pub(super) fn readable(&self, id: u64) -> Result<&OwnedFd> {
        self.readable.get(&id).map_or_else(|| self.object(id), Ok)
    }
}

/// Descriptors from the caller of the restore, and facts about files and connections.
pub(super) struct Given {
    pub(super) inherited: Vec<(u64, Inode, OwnedFd)>,
    pub(super) held: Vec<OwnedFd>,
    pub(super) kept: Kept,
    pub(super) mapped: Vec<Arc<OwnedFd>>,
    /// Whether written files are found by their paths only.
    pub(super) prefers_paths: bool,
    pub(super) covered: Covered,
    pub(super) connections_lost: bool,
}

/// Opens the objects and descriptions of a plan.
///
/// Descriptions that do not depend on files come first, then the rollback of files, if there is one. The rollback is
/// thus not made if one of these descriptions is refused.
pub(super) fn open(
    plan: &Plan,
    mut given: Given,
    shared: &mut Shared,
    rollback: Option<Rollback>,
) -> Result<OpenFiles> {
    let limit = RaisedLimit::new();
    let mapped = std::mem::take(&mut given.mapped);
    let opener = Opener::default().holding(mapped.into()).preferring_paths(given.prefers_paths);
    let holders = Holders::of(plan, opener)?;
    let unfinished = Unfinished(plan.objects.clone());
    let numbers = plan.descriptor_numbers();
    let mut objects = HashMap::new();
    let mut readable = HashMap::new();
    let kept = given.kept.clone();
    let mut creation = Creation::of(given);
    let (after, before): (Vec<_>, Vec<_>) =
        records_of_kinds(plan, &holders).partition(|(kind, _)| kind.facts().needs_files);
    creation.create(before, shared)?;
    if let Some(rollback) = rollback {
        check_objects(plan, &holders, &rollback)?;
        rollback.go()?;
    }
    for object in &plan.objects {
        let kind = kind_of(object)?;
        let file = lift(kind.open(object, holders.object(object.id))?, &numbers)?;
        if kind.makes_objects() {
            let copy = file.try_clone().map_err(|error| Error::new("duplicate a descriptor", error))?;
            creation.objects.insert(object.inode, copy);
        }
        if is_writable(&file) {
            readable.insert(object.id, lift(reopen_readable(&file)?, &numbers)?);
        }
        objects.insert(object.id, file);
    }
    creation.create(after, shared)?;
    let Creation { mut created, handed_on, connections, .. } = creation;
    let mut descriptions = HashMap::new();
    for (id, envelope) in &plan.envelopes {
        let id = DescriptionId(*id);
        // A kind may create a description in its `connect` step, which comes later.
        let Some(file) = created.remove(&id) else { continue };
        envelope.apply(file.as_fd(), handed_on.contains(&id))?;
        descriptions.insert(id, lift(file, &numbers)?);
    }
    let vacated = kept.vacated.clone();
    Ok(OpenFiles {
        objects,
        readable,
        descriptions,
        holders,
        unfinished,
        connections,
        vacated,
        _limit: limit,
    })
}

/// The descriptions that were created so far, and the data that their creation needs.
struct Creation {
    given: Given,
    created: HashMap<DescriptionId, OwnedFd>,
    handed_on: HashSet<DescriptionId>,
    /// The objects that this restore has created, by inode.
    objects: HashMap<u64, OwnedFd>,
    connections: Connections,
}

impl Creation {
    fn of(given: Given) -> Self {
        let (created, handed_on, objects) = (HashMap::new(), HashSet::new(), HashMap::new());
        Self { given, created, handed_on, objects, connections: Connections::default() }
    }

    fn create(&mut self, kinds: Vec<(&dyn FdKind, Vec<FdRecord>)>, shared: &mut Shared) -> Result<()> {
        for (kind, records) in kinds {
            let mut context = FdCreate {
                created: &mut self.created,
                inherited: &self.given.inherited,
                held: &mut self.given.held,
                handed_on: &mut self.handed_on,
                covered: &self.given.covered,
                objects: &self.objects,
                connections_lost: self.given.connections_lost,
                kept: &self.given.kept,
                connections: &mut self.connections,
                shared: &mut *shared,
            };
            kind.create(&records, &mut context)?;
        }
        Ok(())
    }
}

fn kind_of(object: &ObjectRecord) -> Result<&'static dyn MemoryKind> {
    memory::kind_named(&object.kind)
        .ok_or_else(|| EngineError::UnknownRecord { kind: object.kind.clone(), version: object.version })
}

/// Checks that the existing files that the program maps can be found. An error is ignored if the rollback may change the
/// file.
fn check_objects(plan: &Plan, holders: &Holders, rollback: &Rollback) -> Result<()> {
    for object in &plan.objects {
        let kind = kind_of(object)?;
        if let Err(error) = kind.check_file(object, holders.object(object.id))
            && !kind.label(object).is_some_and(|path| rollback.may_change(Path::new(&path)))
        {
            return Err(error.into());
        }
    }
    Ok(())
}

/// Checks that the objects outside the tree exist that the descriptions need. Changes nothing.
pub(super) fn check_outside(plan: &Plan, inherited: &[InheritedFile]) -> Result<()> {
    let holders = Holders::of(plan, Opener::default())?;
    for (kind, records) in records_of_kinds(plan, &holders) {
        kind.check_outside(&records, inherited)?;
    }
    Ok(())
}

/// Checks that the files of all objects and descriptions of a plan can be found. Opens and creates nothing.
pub(super) fn check(plan: &Plan) -> Result<()> {
    let holders = Holders::of(plan, Opener::default().needing_names(true))?;
    for object in &plan.objects {
        if let Some(kind) = memory::kind_named(&object.kind) {
            kind.check_file(object, holders.object(object.id))?;
        }
    }
    for (kind, records) in records_of_kinds(plan, &holders) {
        kind.check_files(&records)?;
    }
    Ok(())
}

fn is_writable(file: &OwnedFd) -> bool {
    rustix::fs::fcntl_getfl(file).is_ok_and(|flags| flags & OFlags::ACCMODE != OFlags::RDONLY)
}

fn reopen_readable(file: &OwnedFd) -> Result<OwnedFd> {
    let link = format!("/proc/self/fd/{}", file.as_raw_fd());
    rustix::fs::open(&link, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
        .map_err(|errno| Error::path("open for reading", &link, errno).into())
}

fn records_of_kinds(
    plan: &Plan,
    holders: &Holders,
) -> impl Iterator<Item = (&'static dyn FdKind, Vec<FdRecord>)> {
    let records_of = |kind: &&'static dyn FdKind| {
        let wanted = plan.envelopes.iter().filter(|(_, envelope)| envelope.kind == kind.name());
        let records = wanted.map(|(id, envelope)| {
            let id = DescriptionId(*id);
            envelope.fd_record(id, holders.description(id).clone())
        });
        (*kind, records.collect::<Vec<_>>())
    };
    fd::REGISTRY.iter().map(records_of).filter(|(_, records)| !records.is_empty())
}

/// Moves a descriptor to a number that no process of the plan uses, so that [`install`] does not overwrite it.
fn lift(file: OwnedFd, numbers: &BTreeSet<i32>) -> Result<OwnedFd> {
    if !numbers.contains(&file.as_raw_fd()) {
        return Ok(file);
    }
    let highest = numbers.last().copied().unwrap_or(0);
    let moved = rustix::io::fcntl_dupfd_cloexec(&file, highest.saturating_add(1));
    if let Ok(moved) = moved {
        return Ok(moved);
    }
    // The program uses numbers directly below the limit (bash, valgrind). There may be room below them.
    let mut from = 0;
    loop {
        // EINVAL means that the number is above the limit.
        let moved = rustix::io::fcntl_dupfd_cloexec(&file, from).map_err(|errno| match errno {
            rustix::io::Errno::INVAL => rustix::io::Errno::MFILE,
            errno => errno,
        });
        let moved = moved.map_err(|errno| Error::new("find a number for a descriptor", errno))?;
        if !numbers.contains(&moved.as_raw_fd()) {
            return Ok(moved);
        }
        from = moved.as_raw_fd() + 1;
    }
}

/// Calls `lead` of each kind for a new session leader. `lead` sets the state that the children of the session
/// leader inherit.
pub(super) fn lead(plan: &Plan, open: &OpenFiles, leader: &mut Stub) -> Result<()> {
    for (kind, records) in records_of_kinds(plan, &open.holders) {
        kind.lead(&records, &open.descriptions, leader)?;
    }
    Ok(())
}

/// Installs the descriptors of every process, and closes all other descriptors. A process that shares the table of its
/// parent gets them with the parent.
pub(super) fn install(plan: &Plan, open: &OpenFiles, built: &mut Built) -> Result<()> {
    for process in plan.living().filter(|process| process.has_own_descriptors()) {
        let target = built.get(process.pid)?;
        let (stub, _) = target.leader();
        let mut kept = Vec::new();
        for row in &process.descriptors {
            let Some(file) = open.descriptions.get(&DescriptionId(row.description)) else { continue };
            let flags = if row.close_on_exec { O_CLOEXEC } else { 0 };
            stub.call(nr::DUP3, [file.as_raw_fd() as u64, row.fd as u64, flags, 0, 0, 0])?;
            kept.push(row.fd as u64);
        }
        kept.sort_unstable();
        let mut next = 0;
        for fd in kept.into_iter().chain([u64::from(u32::MAX)]) {
            if next < fd {
                stub.call(nr::CLOSE_RANGE, [next, fd - 1, 0, 0, 0, 0])?;
            }
            next = fd + 1;
        }
    }
    connect(plan, open, built)
}

/// Sets the signal owner of each description, and acquires the locks of the description. One process that holds
/// the description makes these calls. This process already has its own credentials.
pub(super) fn own(plan: &Plan, open: &OpenFiles, built: &mut Built) -> Result<()> {
    let mut holders_of: HashMap<u32, Vec<(Pid, Fd)>> = HashMap::new();
    for process in plan.living() {
        for row in &process.descriptors {
            holders_of.entry(row.description).or_default().push((process.pid, Fd(row.fd)));
        }
    }
    for (id, envelope) in plan.envelopes.iter().filter(|(_, envelope)| envelope.needs_process()) {
        let holders = holders_of.remove(id).unwrap_or_default();
        let taker = holders.iter().find(|holder| Some(holder.0) == envelope.taker());
        if let Some((pid, fd)) = taker.or(holders.first()) {
            let (stub, memory) = built.get(*pid)?.leader();
            envelope.connect(stub, memory, *fd)?;
        } else if let Some(file) = open.descriptions.get(&DescriptionId(*id)) {
            envelope.connect_in_flight(file.as_fd())?;
        }
    }
    Ok(())
}

/// Runs the last step of each kind. This step has effects outside the tree, so every process must be complete
/// before the call.
pub(super) fn start(plan: &Plan, open: &OpenFiles) -> Result<()> {
    open.vacated.pass()?;
    for (kind, records) in records_of_kinds(plan, &open.holders) {
        kind.start(&records, &open.descriptions)?;
    }
    Ok(())
}

fn connect(plan: &Plan, open: &OpenFiles, built: &mut Built) -> Result<()> {
    let records_of_kinds: Vec<_> = records_of_kinds(plan, &open.holders).collect();
    for process in plan.living().filter(|process| process.has_own_descriptors()) {
        let table: Vec<(Fd, DescriptionId)> =
            process.descriptors.iter().map(|row| (Fd(row.fd), DescriptionId(row.description))).collect();
        let in_table: HashSet<DescriptionId> = table.iter().map(|(_, id)| *id).collect();
        for (kind, records) in &records_of_kinds {
            let held: Vec<&FdRecord> =
                records.iter().filter(|record| in_table.contains(&record.id)).collect();
            if held.is_empty() {
                continue;
            }
            let target = built.get(process.pid)?;
            let (stub, memory) = target.leader();
            kind.connect(&held, &mut FdConnect { stub, memory, table: &table })?;
        }
    }
    Ok(())
}

/// The openers. An opener opens files with the rights of the processes that hold an object or description.
pub(super) struct Holders {
    all: Opener,
    processes: HashMap<Pid, Opener>,
    descriptions: HashMap<u32, Opener>,
    objects: HashMap<u64, Opener>,
}

impl Holders {
    /// Finds the holders of each object and description of an image. The openers have the settings of `finding`, which
    /// has no holders. Fails if a record of credentials cannot be decoded.
    fn of(plan: &Plan, finding: Opener) -> Result<Self> {
        let mut rights = HashMap::new();
        for process in plan.living() {
            rights.extend(rights_of(process)?.map(|rights| (process.pid, rights)));
        }
        let mut openers = Openers { rights, finding, made: HashMap::new() };
        let mut descriptions: HashMap<u32, BTreeSet<Pid>> = HashMap::new();
        let mut objects: HashMap<u64, BTreeSet<Pid>> = HashMap::new();
        let mut processes = HashMap::new();
        let mut everybody = BTreeSet::new();
        for process in plan.living() {
            let pid = process.pid;
            for row in &process.descriptors {
                descriptions.entry(row.description).or_default().insert(pid);
            }
            let mapped = process.areas.iter().map(|area| area.object).chain([process.message.executable]);
            for object in mapped {
                objects.entry(object).or_default().insert(pid);
            }
            everybody.insert(pid);
            processes.insert(pid, openers.of(BTreeSet::from([pid]))?);
        }
        Ok(Self {
            all: openers.of(everybody)?,
            processes,
            descriptions: openers.of_each(descriptions)?,
            objects: openers.of_each(objects)?,
        })
    }

    pub(super) fn process(&self, pid: Pid) -> &Opener {
        self.processes.get(&pid).unwrap_or(&self.all)
    }

    /// Returns the opener for the processes that hold a description.
    pub(super) fn description(&self, id: DescriptionId) -> &Opener {
        self.descriptions.get(&id.get()).unwrap_or(&self.all)
    }

    /// Returns the opener for the processes that map or execute an object.
    pub(super) fn object(&self, id: u64) -> &Opener {
        self.objects.get(&id).unwrap_or(&self.all)
    }
}

/// The openers that exist already, one for each set of processes.
struct Openers {
    rights: HashMap<Pid, FileRights>,
    /// An opener without holders.
    finding: Opener,
    made: HashMap<BTreeSet<Pid>, Opener>,
}

impl Openers {
    fn of(&mut self, holders: BTreeSet<Pid>) -> Result<Opener> {
        if let Some(made) = self.made.get(&holders) {
            return Ok(made.clone());
        }
        let opener =
            self.finding.clone().with(holders.iter().filter_map(|pid| self.rights.get(pid).cloned()))?;
        self.made.insert(holders, opener.clone());
        Ok(opener)
    }

    fn of_each<Key: std::hash::Hash + Eq>(
        &mut self,
        holders: HashMap<Key, BTreeSet<Pid>>,
    ) -> Result<HashMap<Key, Opener>> {
        holders.into_iter().map(|(key, pids)| Ok((key, self.of(pids)?))).collect()
    }
}

/// Returns the file rights of the leader of a process. Returns `None` if the image has no credentials. In this
/// case, the rights of the restoring process apply.
fn rights_of(process: &PlannedProcess) -> Result<Option<FileRights>> {
    let Some(leader) = process.threads.first() else { return Ok(None) };
    for state in &leader.states {
        if let Some(rights) = state.kind.file_rights(state.version, &state.payload)? {
            return Ok(Some(rights));
        }
    }
    Ok(None)
}
