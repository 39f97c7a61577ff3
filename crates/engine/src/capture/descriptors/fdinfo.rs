//! The fdinfo of each descriptor inside the pause, with the leases and locks of its open file description.
//!
//! Owns: the open fdinfo files, and their texts.
//! Invariants: the texts are in the order of the rows of a listing.
//! Does not: list descriptors.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::sync::Arc;

use model::{DescriptionId, Fd, Pid};
use resource::fd::locks::{self, Lock};
use resource::fd::{Description, Known};
use resource::state::DescriptorText;
use sys::Error;
use tracee::WorkerPool;
use tracee::procfs::{self, DescriptorInfo, Permit, ReadAhead};

use super::listing::{Listing, ourselves};
use crate::error::{EngineError, Result};

/// The number of fdinfo files that may stay open also beside duplicates, and when descriptors have become scarce.
const FILES_MIN: usize = 256;
/// The initial size of the memory for one text, in bytes. It is sufficient for the fdinfo of most descriptor
/// kinds.
const TEXT_CAPACITY: usize = 4096;

pub(super) type OpenFile = (Arc<File>, Permit);

#[derive(Default)]
pub(crate) struct Fdinfo {
    /// The open fdinfo file of each row. Without a permit, the file is opened inside the pause.
    files: Vec<Option<OpenFile>>,
    /// The open files that a worker pool reads in the pause.
    ahead: ReadAhead,
    /// The texts that were read inside the pause, one for each row.
    pub(super) texts: Vec<DescriptorText>,
    /// The texts of descriptions that no descriptor refers to.
    hidden: Vec<String>,
    /// Descriptions with a lease on a file without a name.
    unlinked: HashSet<DescriptionId>,
    leased: HashSet<DescriptionId>,
}

impl Fdinfo {
    pub(super) fn clear(&mut self) {
        self.files.clear();
        self.ahead.forget();
        self.texts.clear();
    }

    /// Reads the fdinfo of a descriptor. Also returns the open file, if this process may keep it open. Duplicates of
    /// descriptors, which the caller keeps, have priority.
    pub(super) fn open(
        &self,
        (pid, fd): (Pid, Fd),
        keeps_duplicates: bool,
    ) -> sys::Result<(DescriptorInfo, Option<OpenFile>)> {
        let may_keep = !keeps_duplicates || self.files.len() < FILES_MIN;
        let Some(permit) = may_keep.then(Permit::new).flatten() else {
            return Ok((procfs::descriptor_info(pid, fd)?, None));
        };
        let (info, file) = procfs::open_descriptor_info(pid, fd)?;
        Ok((info, Some((Arc::new(file), permit))))
    }

    /// Closes files if more are open in this process than permitted.
    pub(super) fn fit(&mut self) {
        if Permit::are_exceeded() {
            self.files.iter_mut().skip(FILES_MIN).for_each(|file| *file = None);
        }
    }

    pub(super) fn add(&mut self, (pid, fd): (Pid, Fd), file: Option<OpenFile>) {
        let text = Vec::with_capacity(if file.is_some() { TEXT_CAPACITY } else { 0 });
        self.texts.push(DescriptorText { pid, fd, text });
        self.files.push(file);
    }

    pub(super) fn any_file(&self) -> Option<&Arc<File>> {
        self.files.iter().flatten().map(|(file, _)| file).next()
    }

    /// Lists all files, so that a worker pool can read them in the next pause.
    pub(crate) fn prepare_ahead(&mut self) {
        self.ahead.prepare(self.files.iter().flatten().map(|(file, _)| (Arc::clone(file), TEXT_CAPACITY)));
    }

    /// Makes a worker pool begin to read the files.
    pub(crate) fn begin_ahead(&mut self, worker_pool: &WorkerPool) {
        self.ahead.begin(worker_pool);
    }

    /// Reads the fdinfo of all descriptions, inside the pause. Must be called before any descriptor kind,
    /// because a kind may open a file. An open breaks a lease on the file.
    pub(super) fn read(&mut self, listing: &Listing, open: &[Description]) -> Result<()> {
        let mut listed = 0;
        for (file, one) in self.files.iter().zip(&mut self.texts) {
            let failed = |errno| Error::descriptor("read fdinfo of", one.pid, one.fd, errno);
            match file {
                Some((file, _)) => {
                    if !self.ahead.take(listed, &mut one.text) {
                        procfs::read_whole(file, &mut one.text).map_err(failed)?;
                    }
                    listed += 1;
                }
                None => one.text = procfs::read(format!("/proc/{}/fdinfo/{}", one.pid, one.fd))?,
            }
        }
        self.hidden.clear();
        for description in &open[listing.held..] {
            let info = procfs::descriptor_info(ourselves(), Fd(description.duplicate.as_raw_fd()))?;
            self.hidden.push(info.text);
        }
        self.unlinked.clear();
        self.leased.clear();
        for ((_, _, description), one) in listing.rows.iter().zip(&self.texts) {
            if locks::has_lease(&one.text) {
                self.leased.insert(*description);
                if locks::is_unlinked(&open[description.get() as usize]) {
                    self.unlinked.insert(*description);
                }
            }
        }
        Ok(())
    }

    pub(crate) fn texts_of(&self, pid: Pid) -> &[DescriptorText] {
        let first = self.texts.iter().position(|text| text.pid == pid).unwrap_or(self.texts.len());
        let count = self.texts[first..].iter().take_while(|text| text.pid == pid).count();
        &self.texts[first..first + count]
    }

    pub(super) fn has_lease(&self, description: DescriptionId) -> bool {
        self.leased.contains(&description)
    }

    pub(super) fn locks(&self, listing: &Listing) -> Result<HashMap<DescriptionId, Vec<Lock>>> {
        let mut found = HashMap::new();
        let mut read = |known: &Known, text: &str, in_flight| {
            let holding = locks::Holding { in_flight, unlinked: self.unlinked.contains(&known.id) };
            let locks = locks::read(known, text, holding);
            let locks = locks.map_err(|obstacle| EngineError::Refused(vec![*obstacle]))?;
            found.insert(known.id, locks);
            Ok::<(), EngineError>(())
        };
        for ((_, _, description), one) in listing.rows.iter().zip(&self.texts) {
            let text = String::from_utf8_lossy(&one.text);
            read(&listing.known[description.get() as usize], &text, false)?;
        }
        for (known, text) in listing.known[listing.held..].iter().zip(&self.hidden) {
            read(known, text, true)?;
        }
        Ok(found)
    }
}
