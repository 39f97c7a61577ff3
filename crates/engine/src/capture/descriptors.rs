//! Captures the descriptor tables of all processes, and the open file descriptions (short: *descriptions*) of the
//! subject.
//!
//! Owns: the relation between descriptors and descriptions; the duplicates, through which descriptions are
//! read.
//! Invariants: a description is listed once, even if several processes and descriptors refer to it. While the
//! subject runs, only the first scan holds duplicates of all descriptions. The following scans open at most
//! one duplicate at a time.
//! Does not: know the type of a description; the descriptor kinds (one for each type) do.

mod fdinfo;
mod listing;

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use image::{Owner, RecordSet};
use model::{DescriptionId, Fd, Inode, Pid};
use resource::Obstacle;
use resource::fd::envelope::Envelope;
use resource::fd::sockets::Sockets;
use resource::fd::{self, CaptureScope, Description, FdCapture, Known, ScopeIndex, in_flight};
use resource::files::{Directories, FileRecord, FileStates, MappedForWriting};
use sys::{Errno, Error, pidfd};
use tracee::procfs::{self, ReservedDescriptors};
use undo::watch::OpenFile;

use self::fdinfo::Fdinfo;
use self::listing::{ByFile, Listing, is_gone};
use super::options::CheckpointOptions;
use super::processes::Processes;
use crate::descriptor_limit::RaisedLimit;
use crate::error::{EngineError, Result};
use crate::obstacles;
use crate::records::{DescriptorRow, DescriptorsMessage, DirectoriesMessage, EngineRecord, FilesMessage};

/// O_DIRECT on x86-64.
const DIRECT: u32 = 0o40_000;

#[derive(Default)]
pub(super) struct Descriptors {
    listing: Listing,
    pub(super) info: Fdinfo,
    /// Duplicates of all known descriptions in the order of their ids, or empty. See `Duplicates`.
    open: Vec<Description>,
    /// Raises RLIMIT_NOFILE of this process while duplicates are open.
    limit: Option<RaisedLimit>,
    reserved: ReservedDescriptors,
    captures: HashMap<DescriptionId, Box<dyn FdCapture>>,
    /// Whether the captures of all known descriptions are prepared, and no obstacle was found.
    is_prepared: bool,
    envelopes: HashMap<DescriptionId, Envelope>,
    pub(super) files: Files,
    pub(super) options: CheckpointOptions,
    /// State that all sockets share. This state is kept between checkpoints.
    pub(super) sockets: Sockets,
}

/// Regular files that the subject may write.
#[derive(Default)]
pub(super) struct Files {
    /// The state of the files in the last pause.
    states: Option<FileStates>,
    /// The last listings of the directories that contain these files. The listings are kept between
    /// checkpoints.
    directories: Directories,
    /// The records of the files, available after the pause.
    pub(super) written: Vec<FileRecord>,
}

/// Whether a scan keeps a duplicate of each description open.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Duplicates {
    /// Keeps duplicates. Used in the first scan of a subject, and in scans of a stopped subject.
    Keep,
    /// Keeps no duplicates, because the running subject may close descriptors. Used in all other scans.
    Drop,
}

/// The number of descriptors that a pause needs in addition to the duplicates of listed descriptions: pidfds,
/// and descriptions in flight in sockets. The number is small: for a small subject, the initial descriptor
/// table of this process (64 entries) stays large enough.
const TABLE_SLACK: i32 = 16;

impl Descriptors {
    pub(super) fn survey(&mut self, processes: &Processes, duplicates: Duplicates) -> Result<()> {
        self.close_duplicates();
        self.listing = Listing::default();
        self.info.clear();
        self.captures.clear();
        self.limit = (duplicates == Duplicates::Keep).then(RaisedLimit::new);
        let mut files = ByFile::new();
        for pid in processes.pids() {
            match self.inspect_process(pid, &mut files, duplicates) {
                // The process has ended since the list of processes was read. `settle` compares the
                // descriptors again inside the pause.
                Err(error) if is_gone(&error) => {}
                outcome => outcome?,
            }
        }
        self.listing.end(files);
        self.reserved.set(self.listing.known.len());
        self.info.fit();
        if duplicates == Duplicates::Keep { self.discover(false) } else { Ok(()) }
    }

    fn inspect_process(&mut self, pid: Pid, files: &mut ByFile, duplicates: Duplicates) -> sys::Result<()> {
        let handle = pidfd::open(pid)?;
        for number in procfs::descriptors(pid)? {
            match self.inspect_descriptor((pid, number), handle.as_fd(), files, duplicates) {
                // The descriptor was closed since the list of descriptors was read.
                Err(error) if is_gone(&error) => {}
                outcome => outcome?,
            }
        }
        Ok(())
    }

    fn inspect_descriptor(
        &mut self,
        place: (Pid, Fd),
        handle: BorrowedFd<'_>,
        files: &mut ByFile,
        duplicates: Duplicates,
    ) -> sys::Result<()> {
        let (pid, fd) = place;
        let (info, file) = self.info.open(place, duplicates == Duplicates::Keep)?;
        let failed = |errno| Error::descriptor("look at the file", pid, fd, errno);
        let duplicate =
            (duplicates == Duplicates::Keep).then(|| pidfd::duplicate(handle, pid, fd)).transpose()?;
        let stat = match &duplicate {
            Some(duplicate) => rustix::fs::fstat(duplicate).map_err(failed)?,
            None => rustix::fs::stat(format!("/proc/{pid}/fd/{fd}")).map_err(failed)?,
        };
        let candidates = files.entry((stat.st_dev, Inode(stat.st_ino))).or_default();
        let description = match self.listing.search(&self.open, candidates, place)? {
            Ok(index) => self.listing.known[candidates[index]].id,
            Err(index) => {
                let number = self.listing.known.len();
                candidates.insert(index, number);
                let id = DescriptionId(number as u32);
                let known = Arc::new(Known::new(id, place, info, stat));
                self.open.extend(duplicate.map(|duplicate| Description::new(Arc::clone(&known), duplicate)));
                self.listing.known.push(known);
                id
            }
        };
        self.listing.rows.push((pid, fd, description));
        self.info.add(place, file);
        Ok(())
    }

    /// Adds the descriptions that have no descriptor in the subject, because they are in flight in sockets.
    fn discover(&mut self, takes: bool) -> Result<()> {
        in_flight::discover(&mut self.open, takes)?;
        self.listing.set_hidden(&self.open);
        Ok(())
    }

    /// Reports whether a description has O_DIRECT, so that reads and writes bypass the page cache.
    pub(super) fn bypass_cache(&self) -> bool {
        self.listing.known.iter().any(|known| known.info.flags & DIRECT != 0)
    }

    /// Lists the directories of files that a restore may truncate. Must not be called inside the pause,
    /// because a directory can be large. With `waits`, waits some milliseconds for directories that have just
    /// changed.
    pub(super) fn list_directories(&mut self, waits: bool) {
        let known = self.listing.known.iter().map(Arc::as_ref);
        self.files.directories.list(known, &self.options.inherited, &store::is_staging_name, waits);
    }

    /// Adds the records of the files that the last pause found, and of their directories.
    pub(super) fn write_files(&mut self, records: &mut RecordSet) {
        let (files, directories) = self.files.states.take().map(FileStates::finish).unwrap_or_default();
        let files = FilesMessage { files };
        files.put(records, Owner::Tree);
        self.files.written = files.files;
        if !directories.is_empty() {
            DirectoriesMessage { directories }.put(records, Owner::Tree);
        }
    }

    /// Returns the information about the subject that the descriptor kinds receive.
    fn scope_of<'a>(&'a self, processes: &'a Processes) -> CaptureScope<'a> {
        CaptureScope {
            pids: &processes.order,
            descriptions: &self.listing.known,
            open: &self.open,
            inherited: &self.options.inherited,
            table: &self.listing.rows,
            kills: self.options.kill,
            loses_connections: self.options.lose_connections,
            sockets: &self.sockets,
            mappings: processes.view().into_iter().map(|(pid, mappings)| (pid, mappings.into())).collect(),
            index: ScopeIndex::default(),
        }
    }

    /// Calls `visit` with each description in turn. Returns `true` if all descriptions still exist. If
    /// duplicates are not held, each duplicate is closed immediately after the call.
    fn each(&self, mut visit: impl FnMut(&Description) -> Result<()>) -> Result<bool> {
        let mut handles: HashMap<Pid, OwnedFd> = HashMap::new();
        let mut all = true;
        for known in &self.listing.known {
            if let Some(open) = self.open.get(known.id.get() as usize) {
                visit(open)?;
                continue;
            }
            let found = match handles.entry(known.pid) {
                Entry::Occupied(entry) => Description::beside(known, entry.get().as_fd()),
                Entry::Vacant(entry) => pidfd::open(known.pid)
                    .and_then(|handle| Description::beside(known, entry.insert(handle).as_fd())),
            };
            match found {
                Ok(Some(description)) => visit(&description)?,
                Ok(None) => all = false,
                Err(error) if is_gone(&error) => all = false,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(all)
    }

    /// Makes each kind prepare its captures before the pause. Returns the obstacles (reasons to refuse a
    /// checkpoint).
    pub(super) fn prepare(&mut self, processes: &Processes) -> Result<Vec<Obstacle>> {
        let mut captures = HashMap::new();
        let mut found = Vec::new();
        self.sockets.begin_preparing();
        let scope = self.scope_of(processes);
        let all = self.each(|description| {
            found.extend(obstacles::of_descriptor(description, &scope));
            if found.is_empty()
                && let Some(kind) = fd::kind_of(description)
            {
                captures.insert(description.id, kind.prepare(description, &scope)?);
            }
            Ok(())
        })?;
        drop(scope);
        if self.open.is_empty() {
            self.grow_table();
        }
        self.is_prepared = all && found.is_empty();
        self.captures = captures;
        Ok(found)
    }

    /// Enlarges the descriptor table of this process for the descriptors of the next pause. When a table that
    /// threads share grows, the kernel waits for all processors. This wait takes milliseconds, so the wait
    /// must not occur in the pause. The kernel never shrinks the table.
    fn grow_table(&self) {
        let Some(any) = self.info.any_file() else { return };
        let number = |least| rustix::io::fcntl_dupfd_cloexec(any, least);
        // An error is ignored. If the limit on descriptors is too low, the pause cannot open the duplicates,
        // and reports the error.
        if let Ok(first_free) = number(0) {
            drop(number(first_free.as_raw_fd() + self.listing.known.len() as i32 + TABLE_SLACK));
        }
    }

    /// Makes each capture relate its description to the other descriptions of the subject. Called after
    /// `inside` of all captures.
    fn relate(&mut self, processes: &Processes) -> Result<()> {
        let mut captures = std::mem::take(&mut self.captures);
        let scope = self.scope_of(processes);
        let foreign =
            self.open.iter().filter_map(|open| self.envelopes.get(&open.id)?.obstacle(open, &scope));
        let foreign: Vec<_> = foreign.collect();
        let related = self.open.iter().try_for_each(|description| {
            captures.get_mut(&description.id).map_or(Ok(()), |capture| capture.relate(description, &scope))
        });
        self.captures = captures;
        related?;
        if foreign.is_empty() { Ok(()) } else { Err(EngineError::Refused(foreign)) }
    }

    /// Opens duplicates of all descriptions of the stopped tree. Inspects all descriptors again if the
    /// preparation was incomplete or the descriptors have changed. Returns whether descriptions may have
    /// changed since the preparation.
    pub(super) fn settle(&mut self, processes: &Processes) -> Result<bool> {
        // Descriptions in flight in sockets have no descriptor, so a change of these descriptions cannot be
        // detected.
        let had_hidden = self.listing.has_hidden();
        self.listing.forget_hidden();
        let is_current = self.is_prepared && self.duplicate_again(processes)?;
        if is_current {
            self.discover(self.options.kill)?;
        } else {
            self.survey(processes, Duplicates::Keep)?;
            if self.options.kill {
                self.open.truncate(self.listing.held);
                self.discover(true)?;
            }
        }
        Ok(!is_current || had_hidden || self.listing.has_hidden())
    }

    /// Captures the changeable state of every description.
    pub(super) fn take(&mut self, processes: &Processes) -> Result<()> {
        self.info.read(&self.listing, &self.open)?;
        self.sockets.keep_all(self.options.keep_connections);
        self.sockets.begin_pause();
        self.pass_fdinfo();
        let mut states = FileStates::begin(self.options.kill);
        for description in &self.open {
            if let Some(capture) = self.captures.get_mut(&description.id) {
                capture.inside(description)?;
            }
            let envelope = Envelope::inside(description)?;
            let is_inherited = self.options.inherited.contains(&description.file());
            states.add(description, &envelope, is_inherited, self.info.has_lease(description.id))?;
            self.envelopes.insert(description.id, envelope);
        }
        let mappings = processes.pids().flat_map(|pid| &processes.living[&pid].space.mappings);
        mappings.for_each(|mapping| states.add_mapping(mapping));
        states.add_directories(&self.files.directories);
        self.files.states = Some(states);
        self.relate(processes)
    }

    /// Closes the duplicates, unless the subject is to be killed. Before a kill, captures may change the
    /// connections of the subject. With open duplicates, these changes stay in effect until the subject has
    /// ended, and `release` can revert the changes.
    pub(super) fn end_take(&mut self) {
        if !self.options.kill {
            self.close_duplicates();
        }
    }

    /// Adds the records of descriptions and descriptor tables.
    pub(super) fn write(&mut self, processes: &Processes, records: &mut RecordSet) -> Result<()> {
        let mut locks = self.info.locks(&self.listing)?;
        let Self { listing, info, captures, envelopes, .. } = self;
        for description in &listing.known {
            let found = (
                fd::known_kind(description),
                captures.get_mut(&description.id),
                envelopes.remove(&description.id),
            );
            let (Some(kind), Some(capture), Some(mut envelope)) = found else { continue };
            envelope.locks = locks.remove(&description.id).unwrap_or_default();
            let payload = capture.after(description)?;
            envelope.complete(kind, payload).put(description.id, capture.parts(), records);
        }
        for pid in processes.pids() {
            let mut found = Vec::new();
            for (row, one) in listing.rows.iter().zip(&info.texts).filter(|(row, _)| row.0 == pid) {
                let text = String::from_utf8_lossy(&one.text);
                let close_on_exec = procfs::closes_on_exec(&text).ok_or_else(|| {
                    Error::descriptor("understand fdinfo of", one.pid, one.fd, Errno::EINVAL)
                })?;
                found.push(DescriptorRow { fd: one.fd.get(), close_on_exec, description: row.2.get() });
            }
            DescriptorsMessage { rows: found }.put(records, Owner::Process(pid));
        }
        Ok(())
    }

    /// Closes all duplicates. While a duplicate is open, the last close(2) of the subject does not release
    /// the open file description. For example, the reader of a pipe gets no end of file, and ports and locks
    /// stay in use. execve(2) of a newly written program fails.
    pub(super) fn close_duplicates(&mut self) {
        self.open.clear();
        self.limit = None;
    }

    /// Returns the connections that can stay open when the subject dies. The peers of these connections are
    /// outside the subject.
    pub(super) fn take_connections(&self) -> Vec<Arc<OwnedFd>> {
        let _limit = RaisedLimit::new();
        self.sockets.take_connections()
    }

    /// Removes all state except the options, the shared state of the sockets, and the listings of
    /// directories.
    pub(super) fn forget(&mut self) {
        let (options, sockets) = (std::mem::take(&mut self.options), std::mem::take(&mut self.sockets));
        let directories = std::mem::take(&mut self.files.directories);
        let files = Files { directories, ..Files::default() };
        *self = Self { options, sockets, files, ..Self::default() };
    }

    /// Reverts the changes that captures before a kill have made. Called if the subject is not killed and
    /// continues to run.
    pub(super) fn release(&mut self) {
        for description in &self.open {
            if let Some(capture) = self.captures.get_mut(&description.id) {
                capture.release(description);
            }
        }
    }

    /// Returns the descriptions through which regular files can be changed, with their state in the pause.
    pub(super) fn open_for_writing(&self) -> Vec<OpenFile<'_>> {
        let open = self.open.iter().filter_map(|description| {
            let envelope = self.envelopes.get(&description.id)?;
            let is_inherited = self.options.inherited.contains(&description.file());
            resource::files::is_changeable(description, envelope.flags, is_inherited).then_some(OpenFile {
                file: description.duplicate.as_fd(),
                flags: envelope.flags,
                position: envelope.position,
                is_inherited,
            })
        });
        open.collect()
    }

    /// Returns the files that can be changed through mappings, with their state in the pause.
    pub(super) fn mapped_for_writing(&self) -> &[MappedForWriting] {
        self.files.states.as_ref().map_or(&[], FileStates::mapped_for_writing)
    }

    /// Passes the fdinfo texts of this pause to the captures.
    fn pass_fdinfo(&mut self) {
        let mut next = 0;
        for ((_, _, description), one) in self.listing.rows.iter().zip(&self.info.texts) {
            // The ids of descriptions rise in the order of the first descriptors of the descriptions. Each
            // capture receives the text of the first descriptor.
            if description.get() == next {
                next += 1;
                if let Some(capture) = self.captures.get_mut(description) {
                    capture.fdinfo_read(&one.text);
                }
            }
        }
    }

    /// Opens duplicates of all known descriptions of the stopped tree. Returns `false` if the descriptors of
    /// the tree differ from the listed descriptors.
    fn duplicate_again(&mut self, processes: &Processes) -> Result<bool> {
        self.close_duplicates();
        self.limit = Some(RaisedLimit::new());
        Ok(self.duplicate_rows(processes)? && self.listing.are_distinct(&self.open)?)
    }

    fn duplicate_rows(&mut self, processes: &Processes) -> Result<bool> {
        let Self { listing, open, .. } = self;
        let mut rows = listing.rows.iter();
        for pid in processes.pids() {
            let handle = pidfd::open(pid)?;
            for number in procfs::descriptors(pid)? {
                let place = (pid, number);
                let Some(row) = rows.next().filter(|row| (row.0, row.1) == place) else { return Ok(false) };
                let known = &listing.known[row.2.get() as usize];
                if (known.pid, known.fd) != place {
                    if !listing.is_same(open, known, place)? {
                        return Ok(false);
                    }
                    continue;
                }
                match Description::inside(known, handle.as_fd())? {
                    Some(description) => open.push(description),
                    None => return Ok(false),
                }
            }
        }
        Ok(rows.next().is_none())
    }
}
