//! Saves and restores memory files, created with memfd_create(2): the descriptor kind `fd/memfd`.
//!
//! Owns: name, length, mode and seals of a memory file, and the content of files that the subject does not map.
//! Invariants: the memory kinds (code that saves mappings) save and fill a mapped file, so its content is saved once.
//! Seals are set last, since they forbid filling the file. A file that could be executed before the checkpoint can be
//! executed after the restore.
//! Does not: save memory files with huge pages.

use std::collections::{BTreeMap, HashMap};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

use model::DescriptionId;
use prost::Message;
use rustix::fs::{FileType, MemfdFlags, Mode, OFlags, SealFlags, Stat};
use sys::{Errno, Error};

use super::description::{Description, Known};
use super::kind::{FdCapture, FdCreate, FdFacts, FdKind, FdRecord};
use super::scope::CaptureScope;
use crate::error::{ResourceError, Result};
use crate::obstacle::Obstacle;
use crate::support::content::{Content, ContentCopy, Copied, DATA_BYTES_MAX, data_bytes};
use crate::support::generation;
use crate::support::opening::reader;
use crate::support::opening::{flags_for, own_link, reopen};
use crate::support::ownership::owner;

const NAME: &str = "fd/memfd";
const PREFIX: &[u8] = b"/memfd:";
const SUFFIX: &[u8] = b" (deleted)";
/// Mask of flags that identify a description created by memfd_create(2): of these flags, only O_RDWR is set. The mask
/// contains O_APPEND, although O_APPEND can be set later, since the memory kinds write through the created
/// description.
const MADE_WITH: OFlags =
    OFlags::RWMODE.union(OFlags::SYNC).union(OFlags::DSYNC).union(OFlags::PATH).union(OFlags::APPEND);
const HUGETLBFS: i64 = 0x9584_58f6;

/// The payload: one open memory file as it is in the image.
#[derive(Clone, PartialEq, Message)]
struct MemfdPayload {
    #[prost(bytes = "vec", tag = "1")]
    name: Vec<u8>,
    #[prost(uint64, tag = "2")]
    inode: u64,
    #[prost(uint64, tag = "3")]
    size: u64,
    /// F_SEAL_* bits.
    #[prost(uint32, tag = "4")]
    seals: u32,
    #[prost(uint32, tag = "5")]
    mode: u32,
    #[prost(uint32, tag = "6")]
    user: u32,
    #[prost(uint32, tag = "7")]
    group: u32,
    /// The content. `None` if the file is mapped, and in all records of the file except one.
    #[prost(message, optional, tag = "8")]
    content: Option<Content>,
}

/// Descriptor kind ([`FdKind`]) of memory files.
#[derive(Clone, Copy, Debug)]
pub struct Memfd;

/// Reports whether a description refers to a memory file.
pub(super) fn is_memfd(description: &Description) -> bool {
    let link = description.info.target.as_os_str().as_bytes();
    FileType::from_raw_mode(description.stat.st_mode) == FileType::RegularFile
        && description.stat.st_nlink == 0
        && link.starts_with(PREFIX)
        && link.ends_with(SUFFIX)
}

impl FdKind for Memfd {
    fn facts(&self) -> FdFacts {
        FdFacts::of::<MemfdPayload>(NAME)
    }

    fn claims(&self, description: &Description) -> bool {
        is_memfd(description)
    }

    fn obstacles(&self, description: &Description, scope: &CaptureScope<'_>) -> Vec<Obstacle> {
        let system = rustix::fs::fstatfs(&description.duplicate).map_or(0, |system| system.f_type);
        if system == HUGETLBFS {
            return vec![description.obstacle(
                "memory file of huge pages",
                "hugetlb pages are not supported",
                "let the program use memfd_create without MFD_HUGETLB (madvise can request huge pages instead)",
            )];
        }
        if scope.maps(description) {
            return Vec::new();
        }
        let why = match reader(description.as_fd()).and_then(|reader| data_bytes(reader.as_fd())) {
            Ok(bytes) if bytes <= DATA_BYTES_MAX => return Vec::new(),
            Ok(_) => format!(
                "it is not mapped and contains more than {} MiB, the limit of an image for such a file",
                DATA_BYTES_MAX >> 20
            ),
            Err(error) => format!("its content cannot be read: {error}"),
        };
        vec![description.obstacle("memory file", &why, "let the program map it")]
    }

    fn prepare(&self, description: &Description, scope: &CaptureScope<'_>) -> Result<Box<dyn FdCapture>> {
        let first = scope.of_file(description.file()).next();
        let reader = reader(description.as_fd())?;
        let mut capture = MemfdCapture {
            is_carrier: first.is_none_or(|first| first.id == description.id),
            is_mapped: scope.maps(description),
            reader,
            stat: description.stat,
            seals: SealFlags::empty(),
            copy: ContentCopy::default(),
            copied: None,
        };
        if capture.saves_content() {
            capture.copy.reserve(capture.reader.as_fd())?;
        }
        Ok(Box::new(capture))
    }

    fn label(&self, payload: &[u8]) -> Option<String> {
        crate::support::label::first_field(payload)
    }

    fn create(&self, records: &[FdRecord], context: &mut FdCreate<'_>) -> Result<()> {
        let mut files: BTreeMap<u64, MemoryFile> = BTreeMap::new();
        for record in records {
            let payload: MemfdPayload = crate::error::decode(NAME, &record.payload)?;
            let file = files.entry(payload.inode).or_default();
            file.records.push((record.id, record.flags));
            if file.records.len() == 1 || payload.content.is_some() {
                file.state = payload;
            }
        }
        for file in files.values() {
            file.create(context)?;
        }
        Ok(())
    }

    fn start(&self, records: &[FdRecord], created: &HashMap<DescriptionId, OwnedFd>) -> Result<()> {
        for record in records {
            let payload: MemfdPayload = crate::error::decode(NAME, &record.payload)?;
            if let Some(file) = created.get(&record.id) {
                seal(file, SealFlags::from_bits_retain(payload.seals))?;
            }
        }
        Ok(())
    }
}

/// Adds the missing seals of a memory file. The kernel accepts seals only through a writable description.
fn seal(file: &OwnedFd, wanted: SealFlags) -> Result<()> {
    let writable = reopen(file, OFlags::RDWR | OFlags::CLOEXEC)?;
    let has = rustix::fs::fcntl_get_seals(&writable).map_err(|errno| failed("get the seals", errno))?;
    // F_SEAL_SEAL forbids further seals, so all seals are added in one call.
    if has.contains(wanted) {
        return Ok(());
    }
    rustix::fs::fcntl_add_seals(&writable, wanted - has).map_err(|errno| failed("set the seals", errno))?;
    Ok(())
}

#[derive(Debug)]
struct MemfdCapture {
    is_carrier: bool,
    is_mapped: bool,
    reader: OwnedFd,
    stat: Stat,
    seals: SealFlags,
    copy: ContentCopy,
    copied: Option<Copied>,
}

impl MemfdCapture {
    fn saves_content(&self) -> bool {
        self.is_carrier && !self.is_mapped
    }
}

impl FdCapture for MemfdCapture {
    fn inside(&mut self, _description: &Description) -> Result<()> {
        self.stat = rustix::fs::fstat(&self.reader).map_err(|errno| failed("stat", errno))?;
        self.seals =
            rustix::fs::fcntl_get_seals(&self.reader).map_err(|errno| failed("get the seals", errno))?;
        if self.saves_content() {
            self.copied = Some(self.copy.copy(self.reader.as_fd())?);
        }
        Ok(())
    }

    /// Copies the content of a file that was unmapped after [`FdKind::prepare`], since the memory kinds do not save
    /// this content.
    fn relate(&mut self, description: &Description, scope: &CaptureScope<'_>) -> Result<()> {
        if self.is_carrier && self.copied.is_none() && !scope.maps(description) {
            self.copied = Some(self.copy.copy(self.reader.as_fd())?);
        }
        Ok(())
    }

    fn after(&mut self, description: &Known) -> Result<Vec<u8>> {
        if self.copied == Some(Copied::TooMuch) {
            return Err(description
                .obstacle(
                    "memory file",
                    &format!(
                        "it is not mapped and grew beyond {} MiB during the checkpoint",
                        DATA_BYTES_MAX >> 20
                    ),
                    "let the program map it",
                )
                .into());
        }
        let link = description.info.target.as_os_str().as_bytes();
        let name = &link[PREFIX.len()..link.len() - SUFFIX.len()];
        let payload = MemfdPayload {
            name: name.to_vec(),
            inode: self.stat.st_ino,
            size: self.stat.st_size as u64,
            seals: self.seals.bits(),
            mode: self.stat.st_mode & 0o7777,
            user: self.stat.st_uid,
            group: self.stat.st_gid,
            content: self.copied.map(|_| self.copy.message()),
        };
        Ok(payload.encode_to_vec())
    }
}

/// One memory file of a restore, with all its descriptions.
#[derive(Default)]
struct MemoryFile {
    records: Vec<(DescriptionId, u32)>,
    state: MemfdPayload,
}

impl MemoryFile {
    fn create(&self, context: &mut FdCreate<'_>) -> Result<()> {
        let object = context.objects.get(&self.state.inode).filter(|object| names_memory(object));
        let file = match (object, &self.state.content) {
            (Some(object), _) => {
                object.try_clone().map_err(|error| Error::new("duplicate a memory file", error))?
            }
            (None, Some(content)) => self.make(content)?,
            (None, None) => {
                let name = String::from_utf8_lossy(&self.state.name).into_owned();
                let why = format!("the content of memory file {name} is missing");
                return Err(ResourceError::malformed(NAME, why));
            }
        };
        self.set_attributes(&file)?;
        let maker = self.maker();
        for (id, flags) in &self.records {
            if Some(*id) != maker {
                context.created.insert(*id, reopen(&file, flags_for(*flags))?);
            }
        }
        if let Some(id) = maker {
            context.created.insert(id, file);
        }
        Ok(())
    }

    /// Returns the description that memfd_create(2) creates: the first description with matching flags. The kernel
    /// does not count this description as a writer, but counts every later writable open. A file with a counted
    /// writer cannot be executed.
    fn maker(&self) -> Option<DescriptionId> {
        let is_like = |flags: u32| flags_for(flags) & MADE_WITH == OFlags::RDWR;
        self.records.iter().find(|record| is_like(record.1)).map(|record| record.0)
    }

    fn make(&self, content: &Content) -> Result<OwnedFd> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = rustix::fs::memfd_create(self.state.name.as_slice(), flags)
            .map_err(|errno| failed("create", errno))?;
        content.write_to(file.as_fd())?;
        generation::advance(&self.state.name, &file)?;
        Ok(file)
    }

    fn set_attributes(&self, file: &OwnedFd) -> Result<()> {
        let state = &self.state;
        let now = rustix::fs::fstat(file).map_err(|errno| failed("stat", errno))?;
        if now.st_size as u64 != state.size {
            rustix::fs::ftruncate(file, state.size).map_err(|errno| failed("set the length of", errno))?;
        }
        if (now.st_uid, now.st_gid) != (state.user, state.group) {
            let (user, group) = owner(state.user, state.group)?;
            rustix::fs::fchown(file, Some(user), Some(group))
                .map_err(|errno| failed("set the owner of", errno))?;
        }
        if now.st_mode & 0o7777 != state.mode {
            rustix::fs::fchmod(file, Mode::from_raw_mode(state.mode))
                .map_err(|errno| failed("set the mode of", errno))?;
        }
        Ok(())
    }
}

fn names_memory(file: &OwnedFd) -> bool {
    rustix::fs::readlink(own_link(file), Vec::new()).is_ok_and(|link| link.to_bytes().starts_with(PREFIX))
}

fn failed(operation: &'static str, errno: impl Into<Errno>) -> Error {
    Error::new(format!("{operation} a memory file"), errno)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;
    use crate::support::content::same;
    use crate::support::opening;
    use crate::support::testing::{Subject, flags, position};

    fn memfd(name: &str, content: &[u8]) -> OwnedFd {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = rustix::fs::memfd_create(name, flags).unwrap();
        rustix::io::write(&file, content).unwrap();
        file
    }

    fn link(file: &OwnedFd) -> String {
        rustix::fs::readlink(opening::own_link(file), Vec::new()).unwrap().into_string().unwrap()
    }

    fn start(subject: &Subject, built: Vec<OwnedFd>) -> Result<Vec<OwnedFd>> {
        let envelopes = subject.capture(&Memfd, || {})?;
        let ids = (0..).map(DescriptionId);
        let records: Vec<FdRecord> = envelopes
            .iter()
            .zip(ids.clone())
            .map(|(envelope, id)| envelope.fd_record(id, crate::Opener::default()))
            .collect();
        let mut created: HashMap<_, _> = ids.zip(built).collect();
        Memfd.start(&records, &created)?;
        Ok(records.iter().map(|record| created.remove(&record.id).unwrap()).collect())
    }

    #[test]
    fn content_of_a_file_unmapped_after_prepare_is_copied_in_the_pause() {
        let file = memfd("passing", b"what it holds");
        let subject = Subject::new(&[&file]);
        let description = &subject.descriptions[0];
        let (inode, name) = (description.stat.st_ino, description.target());
        let text = format!("7f0000000000-7f0000001000 rw-s 00000000 00:01 {inode} {name}\n");
        let mappings = tracee::procfs::mappings_in(text.as_bytes()).unwrap();
        let mapped =
            || CaptureScope { mappings: vec![(description.pid, mappings.clone().into())], ..subject.scope() };
        let content = |in_pause: &CaptureScope<'_>| {
            let mut capture = Memfd.prepare(description, &mapped()).unwrap();
            capture.inside(description).unwrap();
            capture.relate(description, in_pause).unwrap();
            let payload = capture.after(description).unwrap();
            MemfdPayload::decode(payload.as_slice()).unwrap().content
        };
        assert_eq!(content(&mapped()), None);
        let bytes = content(&subject.scope()).unwrap().extents.remove(0).bytes;
        assert!(bytes.starts_with(b"what it holds"), "{bytes:?}");
    }

    #[test]
    fn name_content_seals_and_sharing_are_restored() {
        let plain = memfd("with spaces", b"0123456789");
        let again = opening::reopen(&plain, OFlags::RDONLY | OFlags::CLOEXEC).unwrap();
        rustix::fs::seek(&again, rustix::fs::SeekFrom::Start(5)).unwrap();
        let sealed = memfd("sealed", b"for ever");
        let wanted = SealFlags::SHRINK | SealFlags::WRITE | SealFlags::SEAL;
        rustix::fs::fcntl_add_seals(&sealed, wanted).unwrap();
        let subject = Subject::new(&[&plain, &again, &sealed]);
        let built = subject.round_trip(&Memfd).unwrap();
        assert!(same(&built[0], &plain) && same(&built[2], &sealed));
        assert_eq!(rustix::fs::fcntl_get_seals(&built[2]).unwrap(), SealFlags::empty());
        let built = start(&subject, built).unwrap();
        let originals = [&plain, &again, &sealed];
        for (original, again) in originals.into_iter().zip(&built) {
            assert_eq!((link(again), flags(again)), (link(original), flags(original)));
            assert_eq!(
                rustix::fs::fcntl_get_seals(again).unwrap(),
                rustix::fs::fcntl_get_seals(original).unwrap()
            );
        }
        assert_eq!((position(&built[0]), position(&built[1])), (10, 5));
        let inode = |file: &OwnedFd| rustix::fs::fstat(file).unwrap().st_ino;
        assert_eq!(inode(&built[0]), inode(&built[1]));
        assert!(rustix::io::pwrite(&built[2], b"x", 0).is_err());
    }

    #[test]
    fn a_single_read_only_descriptor_of_a_sealed_file_is_restored() {
        let file = memfd("once", b"content");
        let seals = SealFlags::WRITE | SealFlags::GROW;
        rustix::fs::fcntl_add_seals(&file, seals).unwrap();
        let reader = opening::reopen(&file, OFlags::RDONLY | OFlags::CLOEXEC).unwrap();
        drop(file);
        let subject = Subject::new(&[&reader]);
        let built = subject.round_trip(&Memfd).unwrap();
        let built = start(&subject, built).unwrap();
        assert_eq!(rustix::fs::fcntl_get_seals(&built[0]).unwrap(), seals);
        assert!(same(&built[0], &reader));
    }

    #[test]
    fn a_mapped_file_is_taken_from_the_memory_objects() {
        let file = memfd("mapped", b"1234");
        let mut subject = Subject::new(&[&file]);
        let envelopes = subject.capture(&Memfd, || {}).unwrap();
        let inode = rustix::fs::fstat(&file).unwrap().st_ino;
        // This object is on another file system and has the same inode number by chance. This object must be skipped.
        subject.objects.insert(inode, OwnedFd::from(tempfile::tempfile().unwrap()));
        assert!(same(&subject.build(&Memfd, &envelopes, &[]).unwrap()[0], &file));
        let object = memfd("mapped", b"");
        subject.objects.insert(inode, object.try_clone().unwrap());
        let built = subject.build(&Memfd, &envelopes, &[]).unwrap();
        assert_ne!(built[0].as_raw_fd(), object.as_raw_fd());
        let (one, two) = (rustix::fs::fstat(&built[0]).unwrap(), rustix::fs::fstat(&object).unwrap());
        assert_eq!((one.st_ino, one.st_size), (two.st_ino, 4));
    }

    #[test]
    fn an_executable_file_can_be_executed_after_the_restore() {
        let script = b"#!/bin/true";
        let runs = |file: &OwnedFd| {
            let link = format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd());
            std::process::Command::new(link).status()
        };
        // A child process that another test has just forked may still have a duplicate of the writer that is closed
        // here.
        let runs_soon = |file: &OwnedFd| {
            let busy = |error: &std::io::Error| error.kind() == std::io::ErrorKind::ExecutableFileBusy;
            let pause = || std::thread::sleep(std::time::Duration::from_millis(10));
            let tries = (0..100).map(|_| runs(file).inspect_err(|_| pause()));
            let mut answers = tries.filter(|answer| !answer.as_ref().is_err_and(busy));
            answers.next().is_some_and(|answer| answer.unwrap().success())
        };
        let made = memfd("program", script);
        let reader = opening::reopen(&made, OFlags::RDONLY | OFlags::CLOEXEC).unwrap();
        let mut subject = Subject::new(&[&reader, &made]);
        let built = subject.round_trip(&Memfd).unwrap();
        assert!(runs_soon(&built[1]));
        drop(built);
        let envelopes = subject.capture(&Memfd, || {}).unwrap();
        let object = memfd("program", script);
        subject.objects.insert(rustix::fs::fstat(&made).unwrap().st_ino, object);
        let built = subject.build(&Memfd, &envelopes, &[]).unwrap();
        assert!(runs_soon(&built[1]));
        let writer = opening::reopen(&made, OFlags::RDWR | OFlags::CLOEXEC).unwrap();
        assert_eq!(Errno::from(runs(&made).unwrap_err()), Errno(26), "ETXTBSY");
        let built = Subject::new(&[&made, &writer]).round_trip(&Memfd).unwrap();
        assert!(runs(&built[0]).is_err());
    }

    #[test]
    fn huge_pages_and_content_above_the_limit_are_obstacles() {
        let large = memfd("large", b"");
        let piece = vec![7_u8; 1 << 20];
        for _ in 0..=DATA_BYTES_MAX >> 20 {
            rustix::io::write(&large, &piece).unwrap();
        }
        let found = Subject::new(&[&large]).obstacles(&Memfd);
        assert!(found.len() == 1 && found[0].why.contains("64 MiB"), "{found:?}");
        match rustix::fs::memfd_create("huge", MemfdFlags::HUGETLB | MemfdFlags::CLOEXEC) {
            Ok(huge) => {
                let found = Subject::new(&[&huge]).obstacles(&Memfd);
                assert!(found.len() == 1 && found[0].what.contains("huge pages"), "{found:?}");
            }
            Err(errno) => println!("unsupported: huge pages: {errno}"),
        }
    }
}
