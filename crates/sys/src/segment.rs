//! System V shared memory segments: reads their state, creates a segment with a chosen id, and opens their memory.
//!
//! Owns: shmget(2), shmctl(2), shmat(2) of this process, and the file that sets the id of the next segment.
//! Invariants: an attachment that a function makes is detached when the function returns. A segment that did not
//! get the wanted id is removed.
//! Does not: attach segments in other processes.
//!
//! Man page: shmget(2), shmctl(2), shmop(2), sysvipc(7)
//! Since: Linux 3.8 (`/proc/sys/kernel/shm_next_id`)
//! Probe: none needed; a segment is refused if its id cannot be chosen
//! Fallback: none

use std::fs::OpenOptions;
use std::os::fd::OwnedFd;
use std::time::Duration;

use model::{ByteCount, Pid};

use crate::error::{Errno, Error, Result};

/// The file that sets the id of the next segment. Writing needs CAP_CHECKPOINT_RESTORE or CAP_SYS_ADMIN.
const NEXT_ID: &str = "/proc/sys/kernel/shm_next_id";
/// Maximum number of attempts to get a wanted id. An attempt fails if another process creates a segment between
/// the write to `NEXT_ID` and shmget(2). Several restores can make segments at the same time. The segment of
/// another restore can then have the wanted id for a moment.
const TRIES_MAX: u32 = 40;
/// Maximum time between two attempts, in microseconds.
const PAUSE_MAX: u64 = 2_000;
const PERMISSIONS: u32 = 0o777;
const REMOVED: u32 = 0o1000;
const LOCKED: u32 = 0o2000;
/// IPC_PRIVATE: the segment has no key.
const NO_KEY: i32 = 0;

/// The id of a segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SegmentId(pub i32);

/// The key of a segment; 0 for no key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SegmentKey(pub i32);

/// The state of a segment, as shmctl(2) reports it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Segment {
    /// The key of the segment.
    pub key: SegmentKey,
    /// The length in bytes that the program asked for.
    pub length: ByteCount,
    /// The permission bits.
    pub mode: u32,
    /// User and group of the owner.
    pub owner: (u32, u32),
    /// User and group of the process that created the segment.
    pub maker: (u32, u32),
    /// The process that created the segment.
    pub maker_pid: Pid,
    /// The segment is marked for removal. The kernel frees the segment when the last attachment is detached.
    pub is_removed: bool,
    /// The segment cannot be swapped out (SHM_LOCK).
    pub is_locked: bool,
    /// The number of attachments in all processes.
    pub attachments: u64,
}

/// Reads the state of a segment.
///
/// # Errors
///
/// EINVAL if no segment has this id, EACCES without read permission.
pub fn status(id: SegmentId) -> Result<Segment> {
    let raw = raw_status(id)?;
    let mode = u32::from(raw.shm_perm.mode);
    Ok(Segment {
        key: SegmentKey(raw.shm_perm.__key),
        length: ByteCount(raw.shm_segsz as u64),
        mode: mode & PERMISSIONS,
        owner: (raw.shm_perm.uid, raw.shm_perm.gid),
        maker: (raw.shm_perm.cuid, raw.shm_perm.cgid),
        maker_pid: Pid(raw.shm_cpid),
        is_removed: mode & REMOVED != 0,
        is_locked: mode & LOCKED != 0,
        attachments: raw.shm_nattch as u64,
    })
}

/// Returns the id of the segment with a key; `None` if no segment has this key.
#[must_use]
pub fn find(key: SegmentKey) -> Option<SegmentId> {
    if key.0 == NO_KEY {
        return None;
    }
    // SAFETY: shmget takes integers and touches no memory.
    let id = unsafe { libc::shmget(key.0, 0, 0) };
    (id >= 0).then_some(SegmentId(id))
}

/// Creates a segment with a wanted id, and sets its key, length, mode, owner and creator.
///
/// # Errors
///
/// EEXIST if the id or the key is in use; EPERM, EACCES or EROFS if this user may not choose ids.
pub fn make(wanted: SegmentId, segment: &Segment) -> Result<()> {
    for _ in 0..TRIES_MAX {
        std::fs::write(NEXT_ID, wanted.0.to_string())
            .map_err(|error| Error::path("choose the id of a segment with", NEXT_ID, error))?;
        let made = get(segment)?;
        if made == wanted {
            return set_owner(wanted, segment).inspect_err(|_| drop(remove(wanted)));
        }
        remove(made)?;
        // Each attempt gets another id. Two restores thus wait for different times, and do not disturb each other again.
        std::thread::sleep(Duration::from_micros(u64::from(made.0.unsigned_abs()) * 37 % PAUSE_MAX));
    }
    Err(Error::new(format!("make the segment with id {}", wanted.0), Errno::EEXIST))
}

/// Marks a segment for removal. The kernel frees the segment when the last attachment is detached.
pub fn remove(id: SegmentId) -> Result<()> {
    // SAFETY: IPC_RMID ignores its buffer.
    if unsafe { libc::shmctl(id.0, libc::IPC_RMID, std::ptr::null_mut()) } < 0 {
        return Err(failed("remove", id));
    }
    Ok(())
}

/// Opens the memory of a segment for reading and writing. The descriptor does not count as an attachment.
///
/// # Errors
///
/// The errors of shmat(2), and of opening the link to the mapping.
pub fn memory(id: SegmentId) -> Result<OwnedFd> {
    let length = raw_status(id)?.shm_segsz as u64;
    let attachment = Attachment::make(id, 0)?;
    let start = attachment.address as u64;
    let end = start + length.next_multiple_of(model::PAGE_BYTES);
    let link = format!("/proc/self/map_files/{start:x}-{end:x}");
    let opened = OpenOptions::new().read(true).write(true).open(&link);
    Ok(opened.map_err(|error| Error::path("open the memory of a segment at", &link, error))?.into())
}

/// Returns the bytes between the end of a segment and the end of its last page. Programs can use these bytes, but
/// the file that [`memory`] opens does not contain them.
pub fn tail(id: SegmentId) -> Result<Vec<u8>> {
    let (from, length) = tail_of(id)?;
    let mut bytes = vec![0; length];
    if length > 0 {
        let attachment = Attachment::make(id, libc::SHM_RDONLY)?;
        // SAFETY: the attachment reaches to the end of the last page, and lives until the copy is made. No
        // reference in this process points into the attachment. `bytes` has `length` bytes.
        unsafe { std::ptr::copy(attachment.address.byte_add(from).cast::<u8>(), bytes.as_mut_ptr(), length) };
    }
    Ok(bytes)
}

/// Writes bytes after the end of a segment. Bytes that exceed the last page of the segment are ignored.
pub fn set_tail(id: SegmentId, bytes: &[u8]) -> Result<()> {
    let (from, length) = tail_of(id)?;
    let length = length.min(bytes.len());
    if length > 0 {
        let attachment = Attachment::make(id, 0)?;
        // SAFETY: as in `tail`, with source and destination exchanged.
        unsafe { std::ptr::copy(bytes.as_ptr(), attachment.address.byte_add(from).cast::<u8>(), length) };
    }
    Ok(())
}

/// Returns the offset and the length of the bytes after the end of a segment.
fn tail_of(id: SegmentId) -> Result<(usize, usize)> {
    let length = raw_status(id)?.shm_segsz;
    Ok((length, length.next_multiple_of(model::PAGE_BYTES as usize) - length))
}

/// An attachment of a segment in this process. Dropping this value detaches the segment.
struct Attachment {
    address: *mut libc::c_void,
}

impl Attachment {
    fn make(id: SegmentId, flags: libc::c_int) -> Result<Self> {
        // SAFETY: shmat makes a new mapping at an address of the kernel's choice. No reference points into the
        // mapping.
        let address = unsafe { libc::shmat(id.0, std::ptr::null(), flags) };
        if address as isize == -1 {
            return Err(failed("attach", id));
        }
        Ok(Self { address })
    }
}

impl Drop for Attachment {
    fn drop(&mut self) {
        // SAFETY: `make` made the attachment, and no reference into the attachment outlives this value.
        unsafe { libc::shmdt(self.address) };
    }
}

fn raw_status(id: SegmentId) -> Result<libc::shmid_ds> {
    // SAFETY: the structure contains only integers, for which zero is valid.
    let mut raw: libc::shmid_ds = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel writes one `struct shmid_ds` to `raw`.
    if unsafe { libc::shmctl(id.0, libc::IPC_STAT, &raw mut raw) } < 0 {
        return Err(failed("read the state of", id));
    }
    Ok(raw)
}

/// Creates a segment in the name of its recorded creator. A new thread takes on the uid and gid of the creator and
/// calls shmget(2). The other threads of this process keep their uids and gids.
fn get(segment: &Segment) -> Result<SegmentId> {
    let flags = libc::IPC_CREAT | libc::IPC_EXCL | segment.mode as i32;
    let (key, length, (user, group)) = (segment.key.0, segment.length.get() as usize, segment.maker);
    // SAFETY: geteuid and getegid cannot fail and touch no memory.
    let is_own = unsafe { (libc::geteuid(), libc::getegid()) } == (user, group);
    let make = move || {
        const UNCHANGED: u32 = u32::MAX;
        if !is_own {
            // SAFETY: the calls take integers. A raw system call changes the uid and gid of this thread alone. If
            // the thread may not change its uid and gid, the user of this process becomes the creator of the
            // segment.
            unsafe {
                libc::syscall(libc::SYS_setresgid, UNCHANGED, group, UNCHANGED);
                libc::syscall(libc::SYS_setresuid, UNCHANGED, user, UNCHANGED);
            }
        }
        // SAFETY: shmget takes integers and touches no memory.
        let id = unsafe { libc::shmget(key, length, flags) };
        if id < 0 { Err(Errno::last()) } else { Ok(SegmentId(id)) }
    };
    let made = std::thread::spawn(make).join().unwrap_or(Err(Errno::ESRCH));
    made.map_err(|errno| Error::new(format!("make a segment with key {key:#x}"), errno))
}

fn set_owner(id: SegmentId, segment: &Segment) -> Result<()> {
    let mut raw = raw_status(id)?;
    raw.shm_perm.uid = segment.owner.0;
    raw.shm_perm.gid = segment.owner.1;
    raw.shm_perm.mode = segment.mode as u16;
    // SAFETY: the kernel reads one `struct shmid_ds` from `raw`.
    if unsafe { libc::shmctl(id.0, libc::IPC_SET, &raw mut raw) } < 0 {
        return Err(failed("set the owner of", id));
    }
    Ok(())
}

fn failed(operation: &str, id: SegmentId) -> Error {
    Error::new(format!("{operation} the segment with id {}", id.0), Errno::last())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segment(key: i32) -> Segment {
        Segment {
            key: SegmentKey(key),
            length: ByteCount(10_000),
            mode: 0o640,
            owner: (12, 34),
            maker: (56, 78),
            maker_pid: Pid(0),
            is_removed: false,
            is_locked: false,
            attachments: 0,
        }
    }

    #[test]
    fn segments_of_several_restores_get_their_ids() {
        // Other runs of this test use other ids.
        let run = (std::process::id() % 30_000) as i32 + 9;
        let id = |restore: i32, at: i32| SegmentId((run << 15) + 3100 + 100 * restore + at);
        if let Err(error) = make(id(0, 99), &segment(NO_KEY)).and_then(|()| remove(id(0, 99))) {
            return println!("unsupported: segments with a chosen id: {error}");
        }
        let restore = |number: i32| -> Vec<Result<()>> {
            let made = (0..50).map(|at| make(id(number, at), &segment(NO_KEY)));
            made.collect::<Vec<_>>()
        };
        let made: Vec<Vec<Result<()>>> = std::thread::scope(|scope| {
            let restores: Vec<_> = (0..4).map(|number| scope.spawn(move || restore(number))).collect();
            restores.into_iter().map(|restore| restore.join().unwrap()).collect()
        });
        let removed: Vec<Result<()>> =
            (0..4).flat_map(|number| (0..50).map(move |at| remove(id(number, at)))).collect();
        made.into_iter().flatten().chain(removed).for_each(Result::unwrap);
    }

    #[test]
    fn a_segment_gets_id_owner_and_maker_and_its_memory_is_a_file() {
        const KEY: i32 = 0x5544_0001;
        let wanted = SegmentId((7 << 15) + 3000);
        if let Err(error) = make(wanted, &segment(KEY)) {
            return println!("unsupported: segments with a chosen id: {error}");
        }
        let taken = make(wanted, &segment(NO_KEY)).unwrap_err().errno;
        let found = status(wanted);
        let by_key = find(SegmentKey(KEY));
        let written = memory(wanted).map(|memory| rustix::io::pwrite(&memory, b"kept", 9996));
        let mut read = [0; 4];
        let kept_tail = set_tail(wanted, b"behind").and_then(|()| tail(wanted));
        let again = memory(wanted).map(|memory| rustix::io::pread(&memory, &mut read, 9996));
        remove(wanted).unwrap();
        let found = found.unwrap();
        let expected = Segment { maker_pid: found.maker_pid, ..segment(KEY) };
        assert_eq!((found, by_key, taken), (expected, Some(wanted), Errno::EEXIST));
        let kept_tail = kept_tail.unwrap();
        assert!(kept_tail.starts_with(b"behind") && kept_tail.len() == 2288, "{kept_tail:?}");
        assert!(written.is_ok() && again.is_ok() && read == *b"kept");
        assert!(status(wanted).is_err());
    }
}
