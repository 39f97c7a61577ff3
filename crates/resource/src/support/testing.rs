//! Test support: captures descriptions of this process, and restores the descriptions.
//!
//! Owns: a substitute for the engine, which calls the descriptor kinds.
//! Does not: exist outside tests.

use std::collections::{HashMap, HashSet};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use model::{DescriptionId, Fd, Inode, Pid};
use rustix::fs::inotify::{self, ReadFlags, WatchFlags};
use tracee::procfs;

use crate::error::Result;
use crate::fd::description::{Description, Known};
use crate::fd::envelope::Envelope;
use crate::fd::kind::{FdCapture, FdCreate, FdKind, FdRecord, Kept};
use crate::fd::pieces::Pieces;
use crate::fd::scope::CaptureScope;
use crate::fd::sockets::Sockets;
use crate::fd::test_support::known_of;
use crate::files::Covered;
use crate::obstacle::Obstacle;
use crate::opener::Opener;
use crate::shared::Shared;

/// Returns the pid of this process.
pub(crate) fn ourselves() -> Pid {
    Pid(std::process::id() as i32)
}

/// Returns the description of a descriptor of this process, as the engine lists descriptions.
pub(crate) fn describe(number: u32, file: impl AsFd) -> Description {
    let fd = Fd(file.as_fd().as_raw_fd());
    let duplicate = rustix::io::fcntl_dupfd_cloexec(&file, 3).unwrap();
    let info = procfs::descriptor_info(ourselves(), fd).unwrap();
    let stat = rustix::fs::fstat(&duplicate).unwrap();
    Description::new(Arc::new(Known::new(DescriptionId(number), (ourselves(), fd), info, stat)), duplicate)
}

/// A subject for tests, which consists of descriptors of this process.
pub(crate) struct Subject {
    pub(crate) descriptions: Vec<Description>,
    known: Vec<Arc<Known>>,
    pub(crate) pids: Vec<Pid>,
    pub(crate) inherited: Vec<(u64, Inode)>,
    pub(crate) covered: Covered,
    pub(crate) objects: HashMap<u64, OwnedFd>,
    pub(crate) kills: bool,
    pub(crate) loses_connections: bool,
    pub(crate) sockets: Sockets,
    pub(crate) opener: Opener,
}

/// The restored descriptions, in the order of the originals.
pub(crate) type Built = Vec<OwnedFd>;

impl Subject {
    pub(crate) fn new(files: &[&dyn AsFd]) -> Self {
        let descriptions: Vec<_> =
            files.iter().enumerate().map(|(index, file)| describe(index as u32, *file)).collect();
        Self {
            known: known_of(&descriptions),
            descriptions,
            pids: vec![ourselves()],
            inherited: Vec::new(),
            covered: Covered::default(),
            objects: HashMap::new(),
            kills: false,
            loses_connections: false,
            sockets: Sockets::default(),
            opener: Opener::default(),
        }
    }

    /// Replaces one description.
    pub(crate) fn with(mut self, index: usize, description: Description) -> Self {
        self.descriptions[index] = description;
        self.known = known_of(&self.descriptions);
        self
    }

    pub(crate) fn scope(&self) -> CaptureScope<'_> {
        CaptureScope {
            pids: &self.pids,
            descriptions: &self.known,
            open: &self.descriptions,
            inherited: &self.inherited,
            table: &[],
            kills: self.kills,
            loses_connections: self.loses_connections,
            sockets: &self.sockets,
            // For a process that may not be inspected, the list of mappings is empty.
            mappings: self
                .pids
                .iter()
                .map(|pid| (*pid, procfs::mappings(*pid).unwrap_or_default().into()))
                .collect(),
            index: Default::default(),
        }
    }

    pub(crate) fn obstacles(&self, kind: &dyn FdKind) -> Vec<Obstacle> {
        let scope = self.scope();
        self.descriptions.iter().flat_map(|description| kind.obstacles(description, &scope)).collect()
    }

    /// Runs all steps of a checkpoint. `meanwhile` runs after the pause, before the steps that follow the pause.
    pub(crate) fn capture(&self, kind: &dyn FdKind, meanwhile: impl FnOnce()) -> Result<Vec<Envelope>> {
        let scope = self.scope();
        let mut captures: Vec<Box<dyn FdCapture>> = Vec::new();
        for description in &self.descriptions {
            assert!(kind.claims(description), "{} does not claim {description:?}", kind.name());
            captures.push(kind.prepare(description, &scope)?);
        }
        let mut envelopes = Vec::new();
        for (description, capture) in self.descriptions.iter().zip(&mut captures) {
            capture.inside(description)?;
            envelopes.push(Envelope::inside(description)?);
        }
        for (description, capture) in self.descriptions.iter().zip(&mut captures) {
            capture.relate(description, &scope)?;
        }
        meanwhile();
        let mut complete = Vec::new();
        for ((description, capture), envelope) in self.descriptions.iter().zip(&mut captures).zip(envelopes) {
            let envelope = envelope.complete(kind, capture.after(description)?);
            let mut records = image::RecordSet::new();
            let kind = envelope.kind.clone();
            envelope.put(description.id, capture.parts(), &mut records);
            let mut pieces = Pieces::take(&mut records)?;
            let record = records.take(&kind, image::Owner::Description(description.id)).unwrap();
            complete.push(Envelope::from_record(&record, description.id, &mut pieces)?);
        }
        Ok(complete)
    }

    /// Runs the steps of a restore that precede the creation of processes.
    pub(crate) fn build(
        &self,
        kind: &dyn FdKind,
        envelopes: &[Envelope],
        inherited: &[(u64, Inode, OwnedFd)],
    ) -> Result<Built> {
        let records: Vec<FdRecord> = envelopes
            .iter()
            .enumerate()
            .map(|(index, envelope)| envelope.fd_record(DescriptionId(index as u32), self.opener.clone()))
            .collect();
        let (mut created, mut shared) = (HashMap::new(), Shared::default());
        let mut handed_on = HashSet::new();
        let mut context = FdCreate {
            created: &mut created,
            inherited,
            held: &mut Vec::new(),
            handed_on: &mut handed_on,
            covered: &self.covered,
            objects: &self.objects,
            connections_lost: false,
            kept: &Kept::default(),
            connections: &mut Default::default(),
            shared: &mut shared,
        };
        kind.create(&records, &mut context)?;
        shared.keep();
        let mut built = Vec::new();
        for (index, envelope) in envelopes.iter().enumerate() {
            let file =
                created.remove(&DescriptionId(index as u32)).expect("the kind creates all its records");
            envelope.apply(file.as_fd(), handed_on.contains(&DescriptionId(index as u32)))?;
            built.push(file);
        }
        Ok(built)
    }

    /// Captures the descriptions, and restores the descriptions as new files. The original descriptions are unchanged.
    pub(crate) fn round_trip(&self, kind: &dyn FdKind) -> Result<Built> {
        assert_eq!(self.obstacles(kind), Vec::new());
        let envelopes = self.capture(kind, || {})?;
        self.build(kind, &envelopes, &[])
    }
}

/// The events that another user can observe in a directory.
pub(crate) struct Watched(OwnedFd);

impl Watched {
    pub(crate) fn new(directory: &Path) -> Self {
        let watch = inotify::init(inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK).unwrap();
        let flags = WatchFlags::CREATE | WatchFlags::ATTRIB | WatchFlags::MOVED_TO;
        inotify::add_watch(&watch, directory, flags).unwrap();
        Self(watch)
    }

    /// Returns the events since the last call, with file names, without events of private directories.
    pub(crate) fn events(&self) -> Vec<(ReadFlags, String)> {
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut reader = inotify::Reader::new(&self.0, &mut buffer);
        let mut seen = Vec::new();
        while let Ok(event) = reader.next() {
            let name = event.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
            seen.push((event.events(), name));
        }
        seen.retain(|(flags, _)| !flags.contains(ReadFlags::ISDIR));
        seen
    }
}

/// Returns the status flags without O_LARGEFILE, which has no meaning on 64-bit machines.
pub(crate) fn flags(file: impl AsFd) -> u32 {
    rustix::fs::fcntl_getfl(file).unwrap().bits() & !0o100_000
}

/// Returns the position of a file.
pub(crate) fn position(file: impl AsFd) -> u64 {
    rustix::fs::tell(file).unwrap()
}
