//! The memory kind of System V shared memory: segments that are attached with shmat(2).
//!
//! Owns: recognizing mappings named `/SYSV…`, the state of a segment, and creating a segment with its id.
//! Invariants: a segment is restored with its id, or the restore is refused. The restore is also refused if a process
//! outside the restored process tree has attached the segment. An existing segment is used only if key, length, owner
//! and mode are the recorded values.
//! Does not: attach segments; the restore attaches the segments in each process. Does not save semaphores and message
//! queues, which are not visible in a process.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

use model::{ByteCount, Pid};
use prost::Message;
use sys::clock::Deadline;
use sys::segment::{self, Segment, SegmentId, SegmentKey};
use sys::{Errno, Error};
use tracee::procfs::{self, Backing};

use super::kind::{Content, MappingOf, MemoryKind};
use super::record::ObjectRecord;
use crate::error::{ResourceError, Result};
use crate::obstacle::Obstacle;
use crate::opener::Opener;
use crate::support::outside;

const NAME: &str = "memory/sysv_shm";
const PREFIX: &str = "/SYSV";
/// The timeout for a killed process to detach from a segment.
const DETACH_LIMIT: Duration = Duration::from_secs(1);
const DETACH_POLL: Duration = Duration::from_millis(5);

/// The state of a segment in the image.
#[derive(Clone, PartialEq, Message)]
struct SegmentObject {
    #[prost(int32, tag = "1")]
    id: i32,
    #[prost(int32, tag = "2")]
    key: i32,
    #[prost(uint64, tag = "3")]
    length: u64,
    #[prost(uint32, tag = "4")]
    mode: u32,
    #[prost(uint32, tag = "5")]
    user: u32,
    #[prost(uint32, tag = "6")]
    group: u32,
    #[prost(uint32, tag = "7")]
    maker_user: u32,
    #[prost(uint32, tag = "8")]
    maker_group: u32,
    /// `true` if the segment is marked for removal. The kernel removes the segment at its last detach.
    #[prost(bool, tag = "9")]
    removed: bool,
    /// The bytes behind the end of the segment, in its last page.
    #[prost(bytes = "vec", tag = "10")]
    tail: Vec<u8>,
}

/// The memory kind of System V shared memory.
pub(super) struct SysvShm;

/// Reports whether a mapping is the attachment of a segment: by the name, and by the device, which is the internal tmpfs
/// of the kernel. A file of a program can have the same name, but is on another device.
pub(super) fn is_attachment(of: MappingOf<'_>) -> bool {
    const KERNEL_DEVICE: u32 = 0;
    let Backing::File { device, .. } = &of.mapping.backing else { return false };
    of.mapping.name.starts_with(PREFIX)
        && of.mapping.name.ends_with(" (deleted)")
        && device.0 == KERNEL_DEVICE
}

fn id_of(of: MappingOf<'_>) -> SegmentId {
    match &of.mapping.backing {
        Backing::File { inode, .. } => SegmentId(inode.get() as i32),
        Backing::Anonymous | Backing::Kernel(_) => SegmentId(-1),
    }
}

impl MemoryKind for SysvShm {
    fn name(&self) -> &'static str {
        NAME
    }

    fn claims(&self, of: MappingOf<'_>) -> bool {
        is_attachment(of) && !of.mapping.flags.has("ht")
    }

    fn content(&self, _of: MappingOf<'_>) -> Content {
        Content::Object
    }

    fn obstacles(&self, of: MappingOf<'_>) -> Vec<Obstacle> {
        match segment::status(id_of(of)) {
            Ok(segment) if segment.is_locked => vec![of.obstacle(
                "System V shared memory",
                "it is locked (SHM_LOCK), which is not supported",
                "unlock it (shmctl with SHM_UNLOCK), or lock the mapping with mlock instead",
            )],
            // With EINVAL, the segment no longer exists, so there is no content to save.
            Ok(_) | Err(Error { errno: Errno::EINVAL, .. }) => Vec::new(),
            Err(error) => vec![of.obstacle(
                "System V shared memory",
                &error.to_string(),
                "run undying as root or with CAP_IPC_OWNER",
            )],
        }
    }

    fn describe(&self, of: MappingOf<'_>) -> Result<(Vec<u8>, u64)> {
        let id = id_of(of);
        let object = SegmentObject::of(id, &segment::status(id)?);
        let length = object.length.next_multiple_of(model::PAGE_BYTES);
        Ok((object.encode_to_vec(), length))
    }

    fn inside(&self, record: &mut ObjectRecord) -> Result<()> {
        let object: SegmentObject = crate::error::decode(NAME, &record.payload)?;
        let id = SegmentId(object.id);
        let tail = segment::tail(id)?;
        record.payload =
            SegmentObject { tail, ..SegmentObject::of(id, &segment::status(id)?) }.encode_to_vec();
        Ok(())
    }

    fn makes_objects(&self) -> bool {
        false
    }

    fn check(&self, record: &ObjectRecord) -> Result<()> {
        crate::error::decode::<SegmentObject>(NAME, &record.payload).map(drop)
    }

    fn open(&self, record: &ObjectRecord, _opener: &Opener) -> Result<OwnedFd> {
        let object: SegmentObject = crate::error::decode(NAME, &record.payload)?;
        let id = SegmentId(object.id);
        match segment::status(id) {
            Ok(found) => object.accept(&found)?,
            Err(error) if error.errno == Errno::EINVAL => object.make()?,
            Err(error) => return Err(error.into()),
        }
        Ok(segment::memory(id)?)
    }

    fn clear(&self, _record: &ObjectRecord, memory: &OwnedFd) -> Result<()> {
        let length =
            rustix::fs::fstat(memory).map_err(|errno| Error::new("stat a System V segment", errno))?.st_size;
        let flags = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
        // The segment may end inside its last page. The bytes behind the end are cleared, too.
        let end = (length as u64).next_multiple_of(model::PAGE_BYTES);
        rustix::fs::fallocate(memory, flags, 0, end)
            .map_err(|errno| Error::new("clear a System V segment", errno))?;
        Ok(())
    }

    fn segment(&self, record: &ObjectRecord) -> Result<Option<SegmentId>> {
        let object: SegmentObject = crate::error::decode(NAME, &record.payload)?;
        Ok(Some(SegmentId(object.id)))
    }

    fn attached(&self, record: &ObjectRecord) -> Result<()> {
        let object: SegmentObject = crate::error::decode(NAME, &record.payload)?;
        let id = SegmentId(object.id);
        segment::set_tail(id, &object.tail)?;
        if object.removed {
            segment::remove(id)?;
        }
        Ok(())
    }

    fn abandon(&self, record: &ObjectRecord) {
        let Ok(object) = crate::error::decode::<SegmentObject>(NAME, &record.payload) else { return };
        let id = SegmentId(object.id);
        let ourselves = Pid(std::process::id() as i32);
        let is_ours =
            |found: &Segment| found.maker_pid == ourselves && !found.is_removed && object.is_like(found);
        if segment::status(id).is_ok_and(|found| is_ours(&found)) {
            // The segment has no content, or the content is in an image that still exists.
            let _ = segment::remove(id);
        }
    }
}

impl SegmentObject {
    fn of(id: SegmentId, segment: &Segment) -> Self {
        Self {
            id: id.0,
            key: segment.key.0,
            length: segment.length.get(),
            mode: segment.mode,
            user: segment.owner.0,
            group: segment.owner.1,
            maker_user: segment.maker.0,
            maker_group: segment.maker.1,
            removed: segment.is_removed,
            tail: Vec::new(),
        }
    }

    /// Reports whether a segment has the key, length, owner and mode of the checkpoint. A removed segment has no key.
    fn is_like(&self, found: &Segment) -> bool {
        (self.removed || self.key == found.key.0)
            && (self.length, self.mode) == (found.length.get(), found.mode)
            && (self.user, self.group) == found.owner
    }

    fn accept(&self, found: &Segment) -> Result<()> {
        if !self.is_like(found) {
            let why = "another segment now has this id";
            let fix =
                format!("remove it with `ipcrm -m {}` if it is not needed, then restore again", self.id);
            return Err(self.refused(why.to_owned(), &fix));
        }
        let deadline = Deadline::after(DETACH_LIMIT);
        while segment::status(SegmentId(self.id)).is_ok_and(|now| now.attachments > 0) {
            if deadline.has_passed() {
                let user = outside::describe(attached_by(self.id));
                let why =
                    format!("{user} has it attached too, and the restore would change that process's memory");
                return Err(self.refused(why, "end that process, then restore again"));
            }
            std::thread::sleep(DETACH_POLL);
        }
        match segment::status(SegmentId(self.id)) {
            Ok(_) => Ok(()),
            // The kernel removed the segment at its last detach.
            Err(error) if error.errno == Errno::EINVAL => self.make(),
            Err(error) => Err(error.into()),
        }
    }

    fn make(&self) -> Result<()> {
        let key = if self.removed { 0 } else { self.key };
        if let Some(other) = segment::find(SegmentKey(key)) {
            let why = format!("its key {key:#x} now leads to another segment, with id {}", other.0);
            let fix = format!(
                "remove that segment with `ipcrm -m {}` if it is not needed, then restore again",
                other.0
            );
            return Err(self.refused(why, &fix));
        }
        let wanted = Segment {
            key: SegmentKey(key),
            length: ByteCount(self.length),
            mode: self.mode,
            owner: (self.user, self.group),
            maker: (self.maker_user, self.maker_group),
            maker_pid: Pid(0),
            is_removed: false,
            is_locked: false,
            attachments: 0,
        };
        segment::make(SegmentId(self.id), &wanted).map_err(|error| {
            let fix = match error.errno {
                Errno::EEXIST => {
                    "`ipcs -m` lists the segments; remove those that are not needed, then restore again"
                }
                Errno::ENOSPC => "raise kernel.shmmni or kernel.shmall (`sysctl`), then restore again",
                _ => "restore as root or with CAP_CHECKPOINT_RESTORE",
            };
            self.refused(format!("it cannot be created: {error}"), fix)
        })
    }

    fn refused(&self, why: String, fix: &str) -> ResourceError {
        let path = format!("System V shared memory segment {}", self.id);
        ResourceError::File { path, why, fix: fix.to_owned() }
    }
}

/// Returns a process that has a segment attached.
fn attached_by(id: i32) -> Option<Pid> {
    let entries = std::fs::read_dir(Path::new("/proc")).ok()?;
    let mut pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok().map(Pid));
    pids.find(|pid| {
        let mappings = procfs::mappings(*pid).unwrap_or_default();
        mappings.iter().any(|mapping| {
            let of = MappingOf { pid: *pid, mapping };
            is_attachment(of) && id_of(of) == SegmentId(id)
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(id: i32, key: i32, removed: bool) -> ObjectRecord {
        let object = SegmentObject {
            id,
            key,
            length: 9000,
            mode: 0o600,
            user: rustix::process::geteuid().as_raw(),
            group: rustix::process::getegid().as_raw(),
            maker_user: rustix::process::geteuid().as_raw(),
            maker_group: rustix::process::getegid().as_raw(),
            removed,
            tail: b"behind the end".to_vec(),
        };
        ObjectRecord { payload: object.encode_to_vec(), length: 12288, ..ObjectRecord::default() }
    }

    #[test]
    fn a_segment_is_created_once_found_again_cleared_and_abandoned() {
        let record = record((5 << 15) + 3100, 0x5544_1001, false);
        let memory = match SysvShm.open(&record, &Opener::default()) {
            Ok(memory) => memory,
            Err(error) => return println!("unsupported: segments with a chosen id: {error}"),
        };
        rustix::io::pwrite(&memory, b"later", 5000).unwrap();
        let again = SysvShm.open(&record, &Opener::default()).unwrap();
        let mut read = [0; 5];
        rustix::io::pread(&again, &mut read, 5000).unwrap();
        assert_eq!(&read, b"later");
        SysvShm.clear(&record, &again).unwrap();
        rustix::io::pread(&again, &mut read, 5000).unwrap();
        assert_eq!(read, [0; 5]);
        SysvShm.attached(&record).unwrap();
        let id = SysvShm.segment(&record).unwrap().unwrap();
        assert!(segment::tail(id).unwrap().starts_with(b"behind the end"));
        SysvShm.abandon(&record);
        assert!(segment::status(SysvShm.segment(&record).unwrap().unwrap()).is_err());
    }

    #[test]
    fn another_segment_with_the_id_or_the_key_is_refused() {
        let first = record((5 << 15) + 3200, 0x5544_1002, false);
        if let Err(error) = SysvShm.open(&first, &Opener::default()) {
            return println!("unsupported: segments with a chosen id: {error}");
        }
        let same_key = SysvShm.open(&record((5 << 15) + 3201, 0x5544_1002, false), &Opener::default());
        let same_id = SysvShm.open(&record((5 << 15) + 3200, 0x5544_1003, false), &Opener::default());
        SysvShm.abandon(&first);
        let same_key = same_key.unwrap_err().to_string();
        assert!(
            same_key.contains("now leads to another segment") && same_key.contains("ipcrm"),
            "{same_key}"
        );
        let same_id = same_id.unwrap_err().to_string();
        assert!(
            same_id.contains("another segment now has this id") && same_id.contains("ipcrm"),
            "{same_id}"
        );
    }

    #[test]
    fn a_removed_segment_ends_when_it_has_no_attachment() {
        let record = record((5 << 15) + 3300, 0, true);
        if let Err(error) = SysvShm.open(&record, &Opener::default()) {
            return println!("unsupported: segments with a chosen id: {error}");
        }
        SysvShm.attached(&record).unwrap();
        assert!(segment::status(SysvShm.segment(&record).unwrap().unwrap()).is_err());
    }
}
