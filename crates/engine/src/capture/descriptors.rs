//! Descriptor tables of all processes, and the open file descriptions behind them.
//!
//! Owns: which descriptors are one description, the duplicates through which descriptions are read.
//! Invariants: a description is listed once, in whichever processes and under however many numbers it is held.
//! Does not: know what a description is; the descriptor kinds do.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::collections::HashMap;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use image::RecordSet;
use model::{DescriptionId, Fd, Pid};
use resource::fd::envelope::Envelope;
use resource::fd::locks::{self, Lock};
use resource::fd::sockets::Sockets;
use resource::fd::{self, CaptureScope, Description, FdCapture, KnownKind, in_flight};
use resource::state::DescriptorText;
use sys::kcmp;
use sys::{Errno, Error, pidfd};
use tracee::procfs::{self, Area};

use super::CheckpointOptions;
use super::before::{Before, ProcessBefore};
use crate::error::{EngineError, Result};
use crate::records::{DescriptorRow, DescriptorsMessage, EngineRecord, of_description, of_process};

/// O_DIRECT on x86-64.
const DIRECT: u32 = 0o40_000;

/// The descriptors of a subject.
#[derive(Default)]
pub(super) struct Descriptors {
    /// Rising by process in tree order, then by number.
    rows: Vec<Row>,
    /// fdinfo of each row, held open; past a limit it is opened inside the pause.
    files: Vec<Option<File>>,
    /// What fdinfo of each row said inside the pause.
    texts: Vec<DescriptorText>,
    /// The same of descriptions that no descriptor refers to.
    hidden_texts: Vec<String>,
    descriptions: Vec<Description>,
    /// How many of them, the first ones, some process has a descriptor of.
    held: usize,
    captures: HashMap<DescriptionId, Box<dyn FdCapture>>,
    envelopes: HashMap<DescriptionId, Envelope>,
    /// `rows` without what only this file needs, for the scope that kinds see.
    table: Vec<(Pid, Fd, DescriptionId)>,
    /// What the last `prepare` was told.
    options: CheckpointOptions,
    /// Kept from one checkpoint to the next.
    sockets: Sockets,
}

struct Row {
    pid: Pid,
    fd: Fd,
    description: DescriptionId,
}

/// Files of fdinfo held open at most; see `KeptFiles`.
const FILES_MAX: usize = 256;
/// fdinfo of most kinds.
const TEXT_ROOM: usize = 4096;

impl Descriptors {
    /// Lists and duplicates every descriptor.
    pub(super) fn look(&mut self, processes: &HashMap<Pid, ProcessBefore>, order: &[Pid]) -> Result<()> {
        self.rows.clear();
        self.files.clear();
        self.texts.clear();
        self.descriptions.clear();
        self.captures.clear();
        for pid in order.iter().filter(|pid| processes.contains_key(pid)) {
            match self.look_at_process(*pid) {
                // Ended between the listing and now; `refresh` compares again inside the pause.
                Err(error) if error.errno == Errno::ESRCH || error.errno == Errno::ENOENT => {}
                outcome => outcome?,
            }
        }
        self.table = self.rows.iter().map(|row| (row.pid, row.fd, row.description)).collect();
        self.held = self.descriptions.len();
        Ok(in_flight::discover(&mut self.descriptions, false)?)
    }

    fn look_at_process(&mut self, pid: Pid) -> sys::Result<()> {
        let handle = pidfd::open(pid)?;
        for number in procfs::descriptors(pid)? {
            match self.look_at(pid, number, handle.as_fd()) {
                // Closed between the listing and now.
                Err(error) if error.errno == Errno::ENOENT || error.errno == Errno::EBADF => {}
                outcome => outcome?,
            }
        }
        Ok(())
    }

    fn look_at(&mut self, pid: Pid, number: Fd, handle: BorrowedFd<'_>) -> sys::Result<()> {
        let (info, file) = if self.rows.len() < FILES_MAX {
            let (info, file) = procfs::open_descriptor_info(pid, number)?;
            (info, Some(file))
        } else {
            (procfs::descriptor_info(pid, number)?, None)
        };
        let duplicate = pidfd::duplicate(handle, pid, number)?;
        let stat = rustix::fs::fstat(&duplicate)
            .map_err(|errno| Error::descriptor("look at the file", pid, number, errno))?;
        let ourselves = Pid(std::process::id() as i32);
        let own = Fd(duplicate.as_raw_fd());
        let candidates = self.descriptions.iter().filter(|known| {
            known.stat.st_ino == stat.st_ino
                && known.stat.st_dev == stat.st_dev
                && known.info.target == info.target
        });
        let mut found = None;
        for known in candidates {
            let other = Fd(known.duplicate.as_raw_fd());
            if kcmp::compare_files((ourselves, own), (ourselves, other))? == Ordering::Equal {
                found = Some(known.id);
                break;
            }
        }
        let description = found.unwrap_or_else(|| {
            let id = DescriptionId(self.descriptions.len() as u32);
            let kind = KnownKind::default();
            self.descriptions.push(Description { id, pid, fd: number, info, stat, duplicate, kind });
            id
        });
        self.rows.push(Row { pid, fd: number, description });
        let text = Vec::with_capacity(if file.is_some() { TEXT_ROOM } else { 0 });
        self.texts.push(DescriptorText { pid, fd: number, text });
        self.files.push(file);
        Ok(())
    }

    /// Whether some description reads and writes past the page cache.
    pub(super) fn bypass_cache(&self) -> bool {
        self.descriptions.iter().any(|description| description.info.flags & DIRECT != 0)
    }

    /// What kinds may know of the subject.
    pub(super) fn scope_of<'a>(
        &'a self,
        pids: &'a [Pid],
        areas: Vec<(Pid, Cow<'a, [Area]>)>,
        options: &'a CheckpointOptions,
    ) -> CaptureScope<'a> {
        CaptureScope {
            pids,
            descriptions: &self.descriptions,
            inherited: &options.inherited,
            table: &self.table,
            kills: options.kill,
            sockets: &self.sockets,
            areas,
        }
    }

    /// Lets each kind prepare what it needs inside the pause.
    pub(super) fn prepare(
        &mut self,
        pids: &[Pid],
        areas: Vec<(Pid, Cow<'_, [Area]>)>,
        options: &CheckpointOptions,
    ) -> Result<()> {
        let mut captures = HashMap::new();
        self.sockets.begin_preparing();
        {
            let scope = self.scope_of(pids, areas, options);
            for description in &self.descriptions {
                if let Some(kind) = fd::kind_of(description) {
                    captures.insert(description.id, kind.prepare(description, &scope)?);
                }
            }
        }
        self.captures = captures;
        self.options = options.clone();
        Ok(())
    }

    /// Lets each kind look at the descriptors of the whole subject, once all have taken their own state.
    fn relate(&mut self, pids: &[Pid], areas: Vec<(Pid, Cow<'_, [Area]>)>) -> Result<()> {
        let mut captures = std::mem::take(&mut self.captures);
        let scope = self.scope_of(pids, areas, &self.options);
        let related = self.descriptions.iter().try_for_each(|description| {
            captures.get_mut(&description.id).map_or(Ok(()), |capture| capture.relate(description, &scope))
        });
        self.captures = captures;
        Ok(related?)
    }

    /// Compares with the stopped tree; looks again at everything when something changed, and says so.
    pub(super) fn refresh(&mut self, processes: &HashMap<Pid, ProcessBefore>, order: &[Pid]) -> Result<bool> {
        let is_current = self.is_current(processes, order)?;
        if !is_current {
            self.look(processes, order)?;
        }
        // What is in flight has no descriptor by which it could be compared.
        let had_hidden = self.descriptions.len() > self.held;
        self.descriptions.truncate(self.held);
        in_flight::discover(&mut self.descriptions, self.options.kill)?;
        Ok(!is_current || had_hidden || self.descriptions.len() > self.held)
    }

    /// Closes every duplicate. As long as one is open, a last close inside the subject is none: the reader of a pipe
    /// sees no end, a lock stays.
    pub(super) fn forget(&mut self) {
        *self = Self { sockets: std::mem::take(&mut self.sockets), ..Self::default() };
    }

    /// Takes back what was done to descriptions of a subject that was to end and goes on.
    pub(super) fn release(&mut self) {
        for description in &self.descriptions {
            if let Some(capture) = self.captures.get_mut(&description.id) {
                capture.release(description);
            }
        }
    }

    /// What fdinfo of a process's descriptors said inside the pause.
    pub(super) fn texts_of(&self, pid: Pid) -> &[DescriptorText] {
        let first = self.texts.iter().position(|text| text.pid == pid).unwrap_or(self.texts.len());
        let count = self.texts[first..].iter().take_while(|text| text.pid == pid).count();
        &self.texts[first..first + count]
    }

    /// Looks again at what belongs to descriptors, and at the locks of their descriptions. To be asked before any kind:
    /// opening a file on which there is a lease breaks it.
    fn look_inside(&mut self) -> Result<()> {
        for (file, one) in self.files.iter().zip(&mut self.texts) {
            let failed = |errno| Error::descriptor("read fdinfo of", one.pid, one.fd, errno);
            match file {
                Some(file) => procfs::read_whole(file, &mut one.text).map_err(failed)?,
                None => one.text = procfs::read(format!("/proc/{}/fdinfo/{}", one.pid, one.fd))?,
            }
        }
        self.hidden_texts.clear();
        for description in &self.descriptions[self.held..] {
            let own = Fd(description.duplicate.as_raw_fd());
            let info = procfs::descriptor_info(Pid(std::process::id() as i32), own)?;
            self.hidden_texts.push(info.text);
        }
        Ok(())
    }

    /// Hands on what `look_inside` read.
    fn tell(&mut self) {
        let mut next = 0;
        for (row, one) in self.rows.iter().zip(&self.texts) {
            // Descriptions are numbered as their first descriptors come.
            if row.description.get() == next {
                next += 1;
                if let Some(capture) = self.captures.get_mut(&row.description) {
                    capture.told(&one.text);
                }
            }
        }
    }

    /// The locks that `look_inside` saw.
    fn locks(&self) -> Result<HashMap<DescriptionId, Vec<Lock>>> {
        let mut found = HashMap::new();
        let mut read = |description: &Description, text: &str, in_flight| {
            let locks = locks::read(description, text, in_flight);
            let locks = locks.map_err(|obstacle| EngineError::Refused(vec![*obstacle]))?;
            found.insert(description.id, locks);
            Ok::<(), EngineError>(())
        };
        for (row, one) in self.rows.iter().zip(&self.texts) {
            let text = String::from_utf8_lossy(&one.text);
            read(&self.descriptions[row.description.get() as usize], &text, false)?;
        }
        for (description, text) in self.descriptions[self.held..].iter().zip(&self.hidden_texts) {
            read(description, text, true)?;
        }
        Ok(found)
    }

    fn is_current(&self, processes: &HashMap<Pid, ProcessBefore>, order: &[Pid]) -> Result<bool> {
        let ourselves = Pid(std::process::id() as i32);
        let mut rows = self.rows.iter();
        for pid in order.iter().filter(|pid| processes.contains_key(pid)) {
            for number in procfs::descriptors(*pid)? {
                let Some(row) = rows.next() else { return Ok(false) };
                if row.pid != *pid || row.fd != number {
                    return Ok(false);
                }
                let own = Fd(self.descriptions[row.description.get() as usize].duplicate.as_raw_fd());
                if kcmp::compare_files((ourselves, own), (*pid, number))? != Ordering::Equal {
                    return Ok(false);
                }
            }
        }
        Ok(rows.next().is_none())
    }
}

/// What a scope knows of areas.
pub(super) fn areas_of<'a>(
    processes: &'a HashMap<Pid, ProcessBefore>,
    order: &[Pid],
) -> Vec<(Pid, Cow<'a, [Area]>)> {
    let known = order.iter().filter_map(|pid| processes.get(pid).map(|process| (*pid, process)));
    known.map(|(pid, process)| (pid, process.areas.as_slice().into())).collect()
}

/// Takes what may have changed of every description.
pub(super) fn inside(before: &mut Before) -> Result<()> {
    let Before { descriptors, processes, order, .. } = before;
    descriptors.look_inside()?;
    descriptors.sockets.begin_pause();
    descriptors.tell();
    for description in &descriptors.descriptions {
        if let Some(capture) = descriptors.captures.get_mut(&description.id) {
            capture.inside(description)?;
        }
        let envelope = Envelope::inside(description)?;
        descriptors.envelopes.insert(description.id, envelope);
    }
    let areas = areas_of(processes, order);
    descriptors.relate(order, areas)
}

/// Adds the records of descriptions and tables.
pub(super) fn after(before: &mut Before, records: &mut RecordSet) -> Result<()> {
    let mut locks = before.descriptors.locks()?;
    let Descriptors { rows, texts, descriptions, captures, envelopes, .. } = &mut before.descriptors;
    for description in descriptions.iter() {
        let found =
            (fd::kind_of(description), captures.get_mut(&description.id), envelopes.remove(&description.id));
        let (Some(kind), Some(capture), Some(mut envelope)) = found else { continue };
        envelope.locks = locks.remove(&description.id).unwrap_or_default();
        let payload = capture.after(description)?;
        records.push(envelope.complete(kind, payload).into_record(of_description(description.id.get())));
    }
    for pid in before.order.iter().filter(|pid| before.processes.contains_key(pid)) {
        let mut found = Vec::new();
        for (row, one) in rows.iter().zip(&*texts).filter(|(row, _)| row.pid == *pid) {
            let close_on_exec = procfs::closes_on_exec(&String::from_utf8_lossy(&one.text))
                .ok_or_else(|| Error::descriptor("understand fdinfo of", row.pid, row.fd, Errno::EINVAL))?;
            let (fd, description) = (row.fd.get(), row.description.get());
            found.push(DescriptorRow { fd, close_on_exec, description });
        }
        DescriptorsMessage { rows: found }.put(records, of_process(*pid));
    }
    Ok(())
}
