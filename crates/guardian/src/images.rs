//! Listing, showing, checking and pruning images.
//!
//! Owns: the answers of `ls`, `show`, `verify` and `prune` in the form of the contract.
//! Invariants: only `prune` changes anything.
//! Does not: know the storage format of an image.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use engine::{Effect, FileRecord, ImageDescriptor, ImageMapping, ImageProcess, Inventory, ProcessState};
use image::{Commit, ImageKind};
use model::{ByteCount, Sequence};
use serde::Serialize;
use store::{Store, SubjectName};

use crate::error::{Found, Result};
use crate::location::StoreLocation;
use crate::{time, undoing};

/// One checkpoint of a subject.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
#[expect(missing_docs, reason = "the keys of the contract")]
pub struct CheckpointRow {
    pub seq: u64,
    pub kind: &'static str,
    pub time: String,
    pub pause_us: u64,
    pub stop_us: u64,
    pub scan_us: u64,
    pub copy_us: u64,
    pub pages: u64,
    pub bytes: u64,
    pub committed: bool,
    /// Files can go back to it.
    pub files_exact: bool,
}

/// One subject of a store.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct SubjectRow {
    /// Its name.
    pub name: String,
    /// Committed checkpoints.
    pub checkpoints: usize,
    /// The newest of them.
    pub seq: Option<u64>,
    /// When that was taken.
    pub time: Option<String>,
    /// Bytes of all of them.
    pub bytes: u64,
    /// For a copy, the subject that it was taken from.
    pub copy_of: Option<String>,
}

/// One image.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct ImageReport {
    /// Its directory.
    pub path: String,
    /// The subject; empty for a checkpoint without a name.
    pub subject: String,
    /// As in `ls`.
    #[serde(flatten)]
    pub checkpoint: CheckpointRow,
    /// The processes, the root first.
    pub pids: Vec<i32>,
    /// The kernel it was taken on.
    pub kernel: String,
    /// The version that took it.
    pub tool_version: String,
    /// Pages that were written; the others were zero.
    pub stored_pages: u64,
    /// How many records of each kind.
    pub records: BTreeMap<String, usize>,
    /// Regular files that a restore compares, unless files go back to this checkpoint; `None` in an image of an earlier
    /// version.
    pub compared: Option<Vec<String>>,
    /// Files that do not go back where the others do, since they can be changed without a trace. A restore compares them.
    pub uncovered: Vec<String>,
    /// Why processes, descriptors and mappings cannot be listed, if they cannot: a record of a later version, or damage.
    pub unlisted_because: Option<String>,
    /// The processes, parents first.
    pub processes: Vec<ProcessRow>,
    /// Their descriptors.
    pub descriptors: Vec<DescriptorRow>,
    /// Their mappings.
    pub mappings: Vec<MappingRow>,
}

/// A process of an image, as ps(1) shows a living one.
#[derive(Clone, PartialEq, Debug, Serialize)]
#[expect(missing_docs, reason = "the keys of the contract")]
pub struct ProcessRow {
    pub pid: i32,
    pub ppid: i32,
    pub pgid: i32,
    pub sid: i32,
    /// `running`, `stopped` or `zombie`.
    pub state: &'static str,
    pub threads: usize,
    /// Bytes of all its mappings.
    pub mapped: u64,
    /// Bytes of them that the image holds, zero pages apart.
    pub stored: u64,
    /// Up to 15 bytes, as in `/proc/PID/comm`.
    pub name: String,
    pub executable: String,
    pub command: String,
}

/// A descriptor of an image, as lsof(8) shows one of a living process.
#[derive(Clone, PartialEq, Debug, Serialize)]
#[expect(missing_docs, reason = "the keys of the contract")]
pub struct DescriptorRow {
    pub pid: i32,
    pub fd: i32,
    /// Descriptors of the same open file description have the same number here.
    pub description: u32,
    pub kind: String,
    /// `r`, `w`, `u` (both) or `p` (O_PATH).
    pub access: char,
    pub close_on_exec: bool,
    pub position: Option<u64>,
    pub name: String,
}

/// A mapping of an image, as pmap(1) shows one of a living process.
#[derive(Clone, PartialEq, Debug, Serialize)]
#[expect(missing_docs, reason = "the keys of the contract")]
pub struct MappingRow {
    pub pid: i32,
    /// In hexadecimal digits.
    pub address: String,
    pub bytes: u64,
    /// Bytes of it that the image holds, zero pages apart; those of shared objects belong to no mapping.
    pub stored: u64,
    /// Like `rw-p`.
    pub mode: String,
    pub offset: u64,
    pub name: String,
}

impl From<ImageProcess> for ProcessRow {
    fn from(process: ImageProcess) -> Self {
        Self {
            pid: process.pid.get(),
            ppid: process.parent.get(),
            pgid: process.group.get(),
            sid: process.session.get(),
            state: match process.state {
                ProcessState::Running => "running",
                ProcessState::Stopped => "stopped",
                ProcessState::Zombie => "zombie",
            },
            threads: process.threads,
            mapped: process.mapped.get(),
            stored: process.stored.get(),
            name: process.name,
            executable: process.executable,
            command: process.command,
        }
    }
}

impl From<ImageDescriptor> for DescriptorRow {
    fn from(descriptor: ImageDescriptor) -> Self {
        Self {
            pid: descriptor.pid.get(),
            fd: descriptor.fd.get(),
            description: descriptor.description,
            kind: descriptor.kind,
            access: descriptor.access,
            close_on_exec: descriptor.close_on_exec,
            position: descriptor.position,
            name: descriptor.name,
        }
    }
}

impl From<ImageMapping> for MappingRow {
    fn from(mapping: ImageMapping) -> Self {
        Self {
            pid: mapping.pid.get(),
            address: format!("{:x}", mapping.start.get()),
            bytes: mapping.length.get(),
            stored: mapping.stored.get(),
            mode: mapping.protection,
            offset: mapping.offset.get(),
            name: mapping.name,
        }
    }
}

/// An image that was found good.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct VerifyReport {
    /// Records.
    pub records: usize,
    /// Pages, zero pages included.
    pub pages: u64,
    /// Bytes that were read and checked.
    pub bytes: u64,
}

/// Hears how far a long step has come; called from several threads.
pub type Progress<'a> = &'a (dyn Fn(ByteCount, ByteCount) + Sync);

/// The subjects of a store.
///
/// # Errors
///
/// When the store cannot be read.
pub fn subjects(location: &StoreLocation) -> Result<Found<SubjectRow>> {
    location.rows(None, |store, name| subject(store, name).map(Some))
}

fn subject(store: &Store, name: &SubjectName) -> Result<SubjectRow> {
    let images = store.list(name)?;
    let newest = images.last();
    Ok(SubjectRow {
        name: name.to_string(),
        checkpoints: images.len(),
        seq: newest.map(|(sequence, _)| sequence.get()),
        time: newest.map(|(_, commit)| time::rfc3339(commit.time)),
        bytes: bytes_of(&images),
        copy_of: store.copy_of(name)?,
    })
}

/// The checkpoints of a subject, in rising order, including uncommitted ones.
///
/// # Errors
///
/// When the name is none, the store has no such subject, or the store cannot be read.
pub fn checkpoints(location: &StoreLocation, name: &str) -> Result<Vec<CheckpointRow>> {
    let name: SubjectName = name.parse()?;
    let store = location.with_subject(&name)?;
    let reached = undoing::reached(&store, &name);
    let rows = store.entries(&name)?.into_iter().map(|entry| {
        let seq = entry.sequence.get();
        match entry.commit {
            Ok(commit) => {
                let files_exact = reached.contains(&entry.sequence);
                CheckpointRow { seq, files_exact, ..row(&commit) }
            }
            Err(_) => CheckpointRow { seq, kind: "full", ..CheckpointRow::default() },
        }
    });
    Ok(rows.collect())
}

/// One image, from its commit record, record file and index, and from the pages with the command lines.
///
/// # Errors
///
/// When there is no such image, or it is damaged.
pub fn show(location: &StoreLocation, image: &str) -> Result<ImageReport> {
    let reader = location.read(image)?;
    let mut records = BTreeMap::new();
    for record in reader.records().iter() {
        *records.entry(record.kind.clone()).or_insert(0) += 1;
    }
    let commit = reader.commit();
    let checkpoint = row(commit);
    let reached = match location.subject_of(image)? {
        Some((store, name)) => undoing::reach(&store, &name, commit.sequence),
        None => None,
    };
    let files = engine::recorded_files(location.read(image)?).ok();
    let (inventory, unlisted_because) = match engine::inventory(location.read(image)?) {
        Ok(inventory) => (inventory, None),
        Err(error) => (Inventory::default(), Some(error.to_string())),
    };
    let compared = |file: &&FileRecord| file.effect() != Effect::Stays;
    let path_of = |file: &FileRecord| file.path().display().to_string();
    let compared = files.map(|files| files.iter().filter(compared).map(path_of).collect());
    Ok(ImageReport {
        path: reader.path().display().to_string(),
        subject: commit.subject.clone(),
        checkpoint: CheckpointRow { files_exact: reached.is_some(), ..checkpoint },
        compared,
        uncovered: reached.unwrap_or_default().iter().map(|path| path.display().to_string()).collect(),
        pids: commit.pids.iter().map(|pid| pid.get()).collect(),
        kernel: commit.kernel_release.clone(),
        tool_version: commit.tool_version.clone(),
        stored_pages: reader.index().stored_pages().get(),
        records,
        unlisted_because,
        processes: inventory.processes.into_iter().map(ProcessRow::from).collect(),
        descriptors: inventory.descriptors.into_iter().map(DescriptorRow::from).collect(),
        mappings: inventory.mappings.into_iter().map(MappingRow::from).collect(),
    })
}

/// Reads and checks every byte of an image.
///
/// # Errors
///
/// The first thing that is wrong with it.
pub fn verify(location: &StoreLocation, image: &str, progress: Progress<'_>) -> Result<VerifyReport> {
    let reader = location.read(image)?;
    let total = reader.index().stored_pages().bytes();
    let done = AtomicU64::new(0);
    progress(ByteCount(0), total);
    let found = reader.verify(|ByteCount(bytes)| {
        let before = done.fetch_add(bytes, Ordering::Relaxed);
        progress(ByteCount(before + bytes), total);
    })?;
    Ok(VerifyReport { records: found.records, pages: found.pages.get(), bytes: found.bytes.get() })
}

/// Removes all but the newest checkpoints of a subject, and gives the numbers that went.
///
/// # Errors
///
/// When the store has no such subject or cannot be changed.
pub fn prune(location: &StoreLocation, name: &str, keep: usize) -> Result<Vec<u64>> {
    let name: SubjectName = name.parse()?;
    let store = location.with_subject(&name)?;
    let removed = store.prune(&name, keep)?;
    if store.list(&name)?.is_empty() {
        // Nothing is left that files could go back to.
        undoing::remove_unused_log(&store, &name)?;
    }
    Ok(removed.into_iter().map(|sequence| sequence.get()).collect())
}

/// Bytes of checkpoints.
pub(crate) fn bytes_of(images: &[(Sequence, Commit)]) -> u64 {
    images.iter().map(|(_, commit)| commit.bytes.get()).sum()
}

fn row(commit: &Commit) -> CheckpointRow {
    CheckpointRow {
        seq: commit.sequence.get(),
        kind: match commit.kind {
            ImageKind::Full => "full",
            ImageKind::Delta => "delta",
        },
        time: time::rfc3339(commit.time),
        pause_us: time::microseconds(commit.timings.pause),
        stop_us: time::microseconds(commit.timings.stop),
        scan_us: time::microseconds(commit.timings.scan),
        copy_us: time::microseconds(commit.timings.copy),
        pages: commit.pages.get(),
        bytes: commit.bytes.get(),
        committed: true,
        files_exact: false,
    }
}
