//! Descriptor tables of all processes, and the open file descriptions behind them.
//!
//! Owns: which descriptors refer to the same description, and the duplicates through which descriptions are read.
//! Invariants: a description is listed once, however many processes and descriptors refer to it. While the subject
//! runs, no duplicate is open, except one at a time in the first scan.
//! Does not: know the kind of a description; the descriptor kinds do.

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
use sys::packet_hold::{PacketHold, PacketNumber};
use sys::{Errno, Error, pidfd};
use tracee::procfs;
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
    /// Duplicates of all that are known, or of none: see `Hold`.
    open: Vec<Description>,
    /// As long as there are any.
    limit: Option<RaisedLimit>,
    captures: HashMap<DescriptionId, Box<dyn FdCapture>>,
    /// Every description of a kind was there when it was to be prepared.
    is_prepared: bool,
    envelopes: HashMap<DescriptionId, Envelope>,
    pub(super) files: Files,
    /// Those of the checkpoint that is taken.
    pub(super) options: CheckpointOptions,
    /// Kept from one checkpoint to the next.
    sockets: Sockets,
}

/// Regular files that the subject may write.
#[derive(Default)]
pub(super) struct Files {
    /// As they are in the pause.
    states: Option<FileStates>,
    /// The directories of such files as they were listed last. Kept from one checkpoint to the next.
    directories: Directories,
    /// The files once the pause is over.
    pub(super) written: Vec<FileRecord>,
}

/// Whether a look leaves duplicates of what it finds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Hold {
    /// The first look at a subject, or one while it stands.
    All,
    /// One of many looks at a subject that runs and closes what it likes.
    Nothing,
}

/// Descriptors that a pause needs beside duplicates of what is listed: what is in flight, handles. Few, so that a small
/// subject needs no larger table than the one of 64 that each process begins with.
const ROOM_SLACK: i32 = 16;

impl Descriptors {
    pub(super) fn survey(&mut self, processes: &Processes, hold: Hold) -> Result<()> {
        self.let_go();
        self.listing = Listing::default();
        self.info.clear();
        self.captures.clear();
        self.limit = (hold == Hold::All).then(RaisedLimit::new);
        let mut files = ByFile::new();
        for pid in processes.pids() {
            match self.look_at_process(pid, &mut files, hold) {
                // Ended between the listing and now; `refresh` compares again inside the pause.
                Err(error) if is_gone(&error) => {}
                outcome => outcome?,
            }
        }
        self.listing.end(files);
        if hold == Hold::All { self.discover(false) } else { Ok(()) }
    }

    fn look_at_process(&mut self, pid: Pid, files: &mut ByFile, hold: Hold) -> sys::Result<()> {
        let handle = pidfd::open(pid)?;
        for number in procfs::descriptors(pid)? {
            match self.look_at((pid, number), handle.as_fd(), files, hold) {
                // Closed between the listing and now.
                Err(error) if is_gone(&error) => {}
                outcome => outcome?,
            }
        }
        Ok(())
    }

    fn look_at(
        &mut self,
        place: (Pid, Fd),
        handle: BorrowedFd<'_>,
        files: &mut ByFile,
        hold: Hold,
    ) -> sys::Result<()> {
        let (pid, fd) = place;
        let (info, file) = self.info.open(place)?;
        let failed = |errno| Error::descriptor("look at the file", pid, fd, errno);
        let duplicate = (hold == Hold::All).then(|| pidfd::duplicate(handle, pid, fd)).transpose()?;
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

    /// Adds what no descriptor refers to.
    fn discover(&mut self, takes: bool) -> Result<()> {
        in_flight::discover(&mut self.open, takes)?;
        self.listing.set_hidden(&self.open);
        Ok(())
    }

    /// Whether some description reads and writes past the page cache.
    pub(super) fn bypass_cache(&self) -> bool {
        self.listing.known.iter().any(|known| known.info.flags & DIRECT != 0)
    }

    /// Lists the directories of files that may have to be cut back. Not inside the pause: a directory can be large.
    /// With `waits`, those that changed just now are given some milliseconds.
    pub(super) fn list_directories(&mut self, waits: bool) {
        let known = self.listing.known.iter().map(Arc::as_ref);
        self.files.directories.list(known, &self.options.inherited, &store::is_staging_name, waits);
    }

    /// Adds the records of the files that the last pause has found, and of their directories.
    pub(super) fn write_files(&mut self, records: &mut RecordSet) {
        let (files, directories) = self.files.states.take().map(FileStates::finish).unwrap_or_default();
        let files = FilesMessage { files };
        files.put(records, Owner::Tree);
        self.files.written = files.files;
        if !directories.is_empty() {
            DirectoriesMessage { directories }.put(records, Owner::Tree);
        }
    }

    /// What kinds may know of the subject.
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
            areas: processes.view().into_iter().map(|(pid, areas)| (pid, areas.into())).collect(),
            index: ScopeIndex::default(),
        }
    }

    /// Calls with each description, one after the other; `true` when all were there. Each is closed at once where
    /// not all are held.
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

    /// Lets each kind prepare what it needs inside the pause, and tells what stands in the way.
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
            self.make_room();
        }
        self.is_prepared = all && found.is_empty();
        self.captures = captures;
        Ok(found)
    }

    /// Has our own descriptor table grow before the pause to what the pause will put into it: the kernel waits for all
    /// processors when a table grows that threads share, for milliseconds. It never shrinks.
    fn make_room(&self) {
        let Some(any) = self.info.any_file() else { return };
        let number = |least| rustix::io::fcntl_dupfd_cloexec(any, least);
        // Past the limit there is no room to be had, and the pause will say so.
        if let Ok(first_free) = number(0) {
            drop(number(first_free.as_raw_fd() + self.listing.known.len() as i32 + ROOM_SLACK));
        }
    }

    /// Lets each kind look at the descriptors of the whole subject, once all have taken their own state.
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

    /// Holds everything of the stopped tree; looks again at all of it when something changed, and says so.
    pub(super) fn settle(&mut self, processes: &Processes) -> Result<bool> {
        // What is in flight has no descriptor by which it could be compared.
        let had_hidden = self.listing.has_hidden();
        self.listing.forget_hidden();
        let is_current = self.is_prepared && self.hold_again(processes)?;
        if is_current {
            self.discover(self.options.kill)?;
        } else {
            self.survey(processes, Hold::All)?;
            if self.options.kill {
                self.open.truncate(self.listing.held);
                self.discover(true)?;
            }
        }
        Ok(!is_current || had_hidden || self.listing.has_hidden())
    }

    /// Takes what may have changed of every description.
    pub(super) fn take(&mut self, processes: &Processes) -> Result<()> {
        self.info.read(&self.listing, &self.open)?;
        self.sockets.begin_pause();
        self.tell();
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
        let areas = processes.pids().flat_map(|pid| &processes.living[&pid].space.areas);
        areas.for_each(|area| states.add_mapping(area));
        states.add_directories(&self.files.directories);
        self.files.states = Some(states);
        self.relate(processes)
    }

    /// Closes the duplicates once nothing more is asked of them. A subject that is to end keeps what was done to its
    /// connections until it has ended.
    pub(super) fn end_take(&mut self) {
        if !self.options.kill {
            self.let_go();
        }
    }

    /// Adds the records of descriptions and tables.
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
            records.push(envelope.complete(kind, payload).into_record(Owner::Description(description.id)));
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

    /// Closes every duplicate. As long as one is open, a last close inside the subject is none: the reader of a pipe
    /// sees no end, a port and a lock stay taken, a program that was just written cannot be started.
    pub(super) fn let_go(&mut self) {
        self.open.clear();
        self.limit = None;
    }

    /// Connections to the outside that may outlive the subject.
    pub(super) fn take_connections(&self) -> Vec<Arc<OwnedFd>> {
        let _limit = RaisedLimit::new();
        self.sockets.take_connections()
    }

    /// From the next pause on, what the subject sends is held.
    pub(super) fn hold_output(&self, hold: Arc<PacketHold>) {
        self.sockets.hold_output(hold);
    }

    /// The last packet that was held before the pause.
    pub(super) fn held_through(&self) -> Option<PacketNumber> {
        self.sockets.held_through()
    }

    /// Forgets all but the options, what sockets share, and listings of directories.
    pub(super) fn forget(&mut self) {
        let (options, sockets) = (std::mem::take(&mut self.options), std::mem::take(&mut self.sockets));
        let directories = std::mem::take(&mut self.files.directories);
        let files = Files { directories, ..Files::default() };
        *self = Self { options, sockets, files, ..Self::default() };
    }

    /// Takes back what was done to descriptions of a subject that was to end and goes on.
    pub(super) fn release(&mut self) {
        for description in &self.open {
            if let Some(capture) = self.captures.get_mut(&description.id) {
                capture.release(description);
            }
        }
    }

    /// The descriptions through which regular files can be changed, as the pause has found them.
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

    /// Files that can be changed through mappings, as the pause has found them.
    pub(super) fn mapped_for_writing(&self) -> &[MappedForWriting] {
        self.files.states.as_ref().map_or(&[], FileStates::mapped_for_writing)
    }

    /// Hands on what fdinfo said.
    fn tell(&mut self) {
        let mut next = 0;
        for ((_, _, description), one) in self.listing.rows.iter().zip(&self.info.texts) {
            // Descriptions are numbered as their first descriptors come.
            if description.get() == next {
                next += 1;
                if let Some(capture) = self.captures.get_mut(description) {
                    capture.fdinfo_read(&one.text);
                }
            }
        }
    }

    /// Duplicates all that is known of the stopped tree; `false` when its descriptors are not those that were listed.
    fn hold_again(&mut self, processes: &Processes) -> Result<bool> {
        self.let_go();
        self.limit = Some(RaisedLimit::new());
        Ok(self.hold_rows(processes)? && self.listing.are_distinct(&self.open)?)
    }

    fn hold_rows(&mut self, processes: &Processes) -> Result<bool> {
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
