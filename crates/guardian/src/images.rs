//! Lists, shows, verifies and prunes images.
//!
//! Owns: the output of `ls`, `show`, `verify` and `prune`.
//! Invariants: only `prune` changes the store.
//! Does not: know the storage format of an image.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use engine::{Effect, FileRecord, ImageDescriptor, ImageMapping, ImageProcess, Inventory, ProcessState};
use image::{Commit, ImageKind};
use model::{ByteCount, Sequence};
use serde::Serialize;
use store::{Store, SubjectName};

use crate::error::GuardianError;
use crate::error::{Found, Result};
use crate::location::StoreLocation;
use crate::record::Record;
use crate::run::{UNDO_DIRECTORY, requests};
use crate::system::SystemRecord;
use crate::{aside, time, undoing};

/// The unit of `st_blocks` (stat(2)), in bytes.
const BLOCK: u64 = 512;

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
    /// Whether files can be rolled back to this checkpoint.
    pub files_exact: bool,
}

/// One subject of a store.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct SubjectRow {
    /// Name of the subject.
    pub name: String,
    /// Number of committed checkpoints.
    pub checkpoints: usize,
    /// Sequence number of the newest committed checkpoint.
    pub seq: Option<u64>,
    /// Time of the newest committed checkpoint.
    pub time: Option<String>,
    /// Size of all committed checkpoints in bytes.
    pub bytes: u64,
    /// The subject from which this copy was taken. `None` if this subject is not a copy.
    pub copy_of: Option<String>,
}

/// One image.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct ImageReport {
    /// Directory of the image.
    pub path: String,
    /// Name of the subject; empty for a checkpoint without a name.
    pub subject: String,
    /// The row of the checkpoint in the output of `ls`.
    #[serde(flatten)]
    pub checkpoint: CheckpointRow,
    /// Pids of the processes. The root is first.
    pub pids: Vec<i32>,
    /// Release of the kernel on which the checkpoint was taken.
    pub kernel: String,
    /// Version of `undying` that took the checkpoint.
    pub tool_version: String,
    /// Number of pages that the image stores. Zero pages are not stored.
    pub stored_pages: u64,
    /// Number of records of each kind.
    pub records: BTreeMap<String, usize>,
    /// Regular files that a restore compares with the checkpoint, if files are not rolled back. `None` if an earlier
    /// version has written the image.
    pub compared: Option<Vec<String>>,
    /// Files that a rollback does not change, because changes of these files can stay undetected. A restore compares
    /// these files with the checkpoint.
    pub uncovered: Vec<String>,
    /// The reason why processes, descriptors and mappings are not listed: the image contains a record of a later
    /// version, or is damaged. `None` if they are listed.
    pub unlisted_because: Option<String>,
    /// The processes. Parents come before their children.
    pub processes: Vec<ProcessRow>,
    /// Descriptors of the processes.
    pub descriptors: Vec<DescriptorRow>,
    /// Mappings of the processes.
    pub mappings: Vec<MappingRow>,
}

/// A process of an image, as ps(1) shows a living process.
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
    /// Bytes of all mappings of the process.
    pub mapped: u64,
    /// Bytes of all mappings that the image stores. Zero pages are not stored.
    pub stored: u64,
    /// Name of up to 15 bytes, as in `/proc/PID/comm`.
    pub name: String,
    pub executable: String,
    pub command: String,
}

/// A descriptor of an image, as lsof(8) shows a descriptor of a living process.
#[derive(Clone, PartialEq, Debug, Serialize)]
#[expect(missing_docs, reason = "the keys of the contract")]
pub struct DescriptorRow {
    pub pid: i32,
    pub fd: i32,
    /// Number of the open file description. Descriptors of the same open file description have the same number.
    pub description: u32,
    pub kind: String,
    /// `r`, `w`, `u` (read and write) or `p` (O_PATH).
    pub access: char,
    pub close_on_exec: bool,
    pub position: Option<u64>,
    pub name: String,
}

/// A mapping of an image, as pmap(1) shows a mapping of a living process.
#[derive(Clone, PartialEq, Debug, Serialize)]
#[expect(missing_docs, reason = "the keys of the contract")]
pub struct MappingRow {
    pub pid: i32,
    /// Start address in hexadecimal digits.
    pub address: String,
    pub bytes: u64,
    /// Bytes of the mapping that the image stores. Zero pages are not stored. Bytes of shared objects are counted for
    /// no mapping.
    pub stored: u64,
    /// Access mode, like `rw-p`.
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

/// The result of verifying an undamaged image.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct VerifyReport {
    /// Number of records.
    pub records: usize,
    /// Number of pages, including zero pages.
    pub pages: u64,
    /// Number of bytes that were read and checked.
    pub bytes: u64,
}

/// Receives the progress of a long step: the bytes done so far, and the total bytes. Several threads call this
/// function.
pub type Progress<'a> = &'a (dyn Fn(ByteCount, ByteCount) + Sync);

/// Returns the subjects of a store.
///
/// # Errors
///
/// The store cannot be read.
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

/// Returns the checkpoints of a subject in rising order, including uncommitted checkpoints.
///
/// # Errors
///
/// The name is not valid, the store does not contain this subject, or the store cannot be read.
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

/// Describes one image from its commit record, record file and index, and from the pages that contain the command
/// lines.
///
/// # Errors
///
/// The image does not exist, or is damaged.
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
/// The first damage that was found in the image.
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

/// Removes all but the newest `keep` checkpoints of a subject. Returns the sequence numbers of the removed checkpoints. The
/// guardian of a running subject takes a checkpoint, and keeps at least this checkpoint.
///
/// # Errors
///
/// The store does not contain this subject, or cannot be changed.
pub fn prune(location: &StoreLocation, name: &str, keep: usize) -> Result<Vec<u64>> {
    let name: SubjectName = name.parse()?;
    let store = location.with_subject(&name)?;
    if let Some(socket) = guardian_socket(&store, &name)? {
        return prune_running(&store, &name, &socket, keep);
    }
    let removed = store.prune(&name, keep)?;
    if store.list(&name)?.is_empty() {
        // The subject has no checkpoint left, so files cannot be rolled back any more.
        undoing::remove_unused_log(&store, &name)?;
    }
    Ok(removed.into_iter().map(|sequence| sequence.get()).collect())
}

/// Restarts a guarded subject from a checkpoint of this moment. Returns the name of the image.
///
/// # Errors
///
/// No guardian protects the subject, or the subject cannot be restarted in this way. The subject then continues.
pub fn restart_with_state(location: &StoreLocation, name: &str) -> Result<String> {
    let (name, socket) = guarded(location, name)?;
    Ok(format!("{name}@{}", requests::restart(&socket)?))
}

/// Stops a guarded subject after a checkpoint of this moment, for at most `time`. A member of a group is stopped with the
/// whole group. Returns the name of the image.
///
/// # Errors
///
/// No guardian protects the subject, or no checkpoint can be taken of it. The subject then continues.
pub fn hold(location: &StoreLocation, name: &str, time: Duration) -> Result<String> {
    let (name, socket) = guarded(location, name)?;
    Ok(format!("{name}@{}", requests::hold(&socket, time)?))
}

/// Lets a subject continue that is held.
///
/// # Errors
///
/// No guardian protects the subject, or the subject is not held.
pub fn release(location: &StoreLocation, name: &str) -> Result<()> {
    let (_, socket) = guarded(location, name)?;
    requests::release(&socket)
}

/// Returns the name of a guarded subject, and of the request socket of its guardian. The checkpoints of a member of a group
/// are those of the group.
fn guarded(location: &StoreLocation, name: &str) -> Result<(SubjectName, String)> {
    let system = location.open()?.map(|store| SystemRecord::read(&store)).transpose()?.flatten();
    let group = system.as_ref().and_then(|system| system.group_of(name));
    let name: SubjectName = group.unwrap_or(name).parse()?;
    let store = location.with_subject(&name)?;
    match guardian_socket(&store, &name)? {
        Some(socket) => Ok((name, socket)),
        None => {
            let why = format!("no guardian protects {name}\nhelp: `undying status` lists the subjects");
            Err(GuardianError::NotDone { why, code: None })
        }
    }
}

/// Returns the name of the request socket of the guardian, if a guardian protects the subject.
fn guardian_socket(store: &Store, name: &SubjectName) -> Result<Option<String>> {
    let record = Record::read(&store.root().join(name.as_str()))?;
    Ok(record.filter(|record| record.is_guarded() && !record.state.is_over()).map(|record| record.requests))
}

/// Lets the guardian of a running subject remove checkpoints. The checkpoint that a restart would use stays.
fn prune_running(store: &Store, name: &SubjectName, socket: &str, keep: usize) -> Result<Vec<u64>> {
    let listed = || -> Result<Vec<u64>> {
        Ok(store.list(name)?.into_iter().map(|(sequence, _)| sequence.get()).collect())
    };
    let mut before = listed()?;
    requests::prune(socket, keep)?;
    let after = listed()?;
    before.retain(|sequence| !after.contains(sequence));
    Ok(before)
}

/// Returns the total size of checkpoints in bytes.
fn bytes_of(images: &[(Sequence, Commit)]) -> u64 {
    images.iter().map(|(_, commit)| commit.bytes.get()).sum()
}

/// Returns the number of bytes that the checkpoints of a subject occupy on the disk. Pages that a later checkpoint has
/// replaced count, too, until their segment of the log is used again.
pub(crate) fn occupied(store: &Store, name: &SubjectName) -> u64 {
    // Files that disappear meanwhile do not count.
    let listed = |path: &Path| std::fs::read_dir(path).into_iter().flatten().flatten();
    let directory = store.root().join(name.as_str());
    let parts = listed(&directory).filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    let of_others = [OsStr::new(UNDO_DIRECTORY), OsStr::new(aside::DIRECTORY)];
    let parts = parts.filter(|entry| !of_others.contains(&entry.file_name().as_os_str()));
    let files = parts.flat_map(|entry| listed(&entry.path()));
    files.filter_map(|entry| Some(entry.metadata().ok()?.blocks() * BLOCK)).sum()
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
