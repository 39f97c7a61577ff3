//! Saves and restores inotify(7) instances: the descriptor kind `fd/inotify`.
//!
//! Owns: the watches of an instance. A watch has a watch descriptor (wd), a mask and a watched file.
//! Invariants: a watch refers to an inode. The file is found by its file handle, even after a rename. The name is
//! used only where handles do not work. Watches are added last, so that a restore causes no events. Unread events
//! cannot be restored singly. Instead, the program receives one queue overflow event, after which every user of
//! inotify must rescan.
//! Does not: record changes while the subject does not exist.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{Read, Seek, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use model::DescriptionId;
use prost::Message;
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use rustix::fs::{FileType, Mode, OFlags, mknodat};
use sys::Error;
use sys::file_handle::FileHandle;

use super::description::{Description, Known};
use super::fdinfo::{FdInfo, unparsable};
use super::kind::{FdCapture, FdCreate, FdFacts, FdKind, FdRecord};
use super::scope::CaptureScope;
use crate::error::{ResourceError, Result};
use crate::obstacle::Obstacle;
use crate::opener::{Opener, Refusal};
use crate::support::making::{Ownership, make_nameless};
use crate::support::marked;
use crate::support::opening::reopen;

const NAME: &str = "fd/inotify";
const QUEUE_LIMIT: &str = "/proc/sys/fs/inotify/max_queued_events";
/// Maximum queue length (events) for which an overflow is forced.
const QUEUE_LIMIT_MAX: usize = 1 << 20;
/// Bytes of an event without a name.
const EVENT_BYTES: usize = 16;

/// Descriptor kind ([`FdKind`]) of inotify instances.
#[derive(Debug)]
pub struct Inotify;

#[derive(Clone, PartialEq, Eq, Message)]
struct State {
    #[prost(message, repeated, tag = "1")]
    watches: Vec<Watch>,
    /// Set when unread events were in the queue.
    #[prost(bool, tag = "2")]
    had_events: bool,
}

#[derive(Clone, PartialEq, Eq, Message)]
struct Watch {
    #[prost(int32, tag = "1")]
    number: i32,
    #[prost(uint32, tag = "2")]
    mask: u32,
    #[prost(uint64, tag = "3")]
    inode: u64,
    #[prost(uint64, tag = "4")]
    device: u64,
    #[prost(int32, tag = "5")]
    handle_kind: i32,
    #[prost(bytes = "vec", tag = "6")]
    handle: Vec<u8>,
    #[prost(bytes = "vec", tag = "7")]
    path: Vec<u8>,
}

#[derive(Debug, Default)]
struct Capture {
    info: FdInfo,
    had_events: bool,
}

impl FdKind for Inotify {
    fn facts(&self) -> FdFacts {
        FdFacts::of::<State>(NAME)
    }

    fn claims(&self, description: &Description) -> bool {
        description.target() == "anon_inode:inotify" || description.target() == "anon_inode:[inotify]"
    }

    fn obstacles(&self, description: &Description, _scope: &CaptureScope<'_>) -> Vec<Obstacle> {
        let mut info = FdInfo::default();
        let watches = info.take(description).and_then(|()| watches(&info)).unwrap_or_default();
        let lost = watches.iter().filter(|watch| matches!(find(watch), Err(Lost::Nowhere)));
        lost.map(|watch| Obstacle {
            place: format!("watch {} on inode {}", watch.number, watch.inode),
            ..description.obstacle(
                "inotify",
                "the watched file was deleted, or its file system offers no usable file handle",
                "let the program remove this watch, or run undying as root, which may open files by handle",
            )
        })
        .collect()
    }

    fn prepare(&self, _description: &Description, _scope: &CaptureScope<'_>) -> Result<Box<dyn FdCapture>> {
        Ok(Box::<Capture>::default())
    }

    fn create(&self, records: &[FdRecord], context: &mut FdCreate<'_>) -> Result<()> {
        context.make_each(NAME, records, |state: State, _, _| {
            let instance = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)
                .map_err(|errno| Error::new("create an inotify instance", errno))?;
            if state.had_events {
                overflow(&instance)?;
            }
            Ok(instance)
        })
    }

    fn start(&self, records: &[FdRecord], created: &HashMap<DescriptionId, OwnedFd>) -> Result<()> {
        for record in records {
            let state: State = crate::error::decode(NAME, &record.payload)?;
            if let Some(instance) = created.get(&record.id) {
                state.watches.iter().try_for_each(|watch| add(instance, watch, &record.opener))?;
            }
        }
        Ok(())
    }
}

impl FdCapture for Capture {
    fn inside(&mut self, description: &Description) -> Result<()> {
        self.info.take(description)?;
        self.had_events = sys::socket::readable_bytes(description.as_fd())? > 0;
        Ok(())
    }

    fn after(&mut self, _description: &Known) -> Result<Vec<u8>> {
        let mut watches = watches(&self.info)?;
        for watch in &mut watches {
            if let Ok(file) = find(watch) {
                watch.path = path_of(&file).as_os_str().as_bytes().to_vec();
            }
        }
        // The watches are added in ascending order, as the kernel has assigned their watch descriptors.
        watches.sort_by_key(|watch| watch.number);
        Ok(State { watches, had_events: self.had_events }.encode_to_vec())
    }
}

fn watches(info: &FdInfo) -> Result<Vec<Watch>> {
    let lines = info.text().lines().filter(|line| line.starts_with("inotify "));
    lines.map(|line| parse(line).ok_or_else(|| unparsable("inotify"))).collect()
}

fn parse(line: &str) -> Option<Watch> {
    let handle = marked::handle(line)?;
    Some(Watch {
        number: marked::number(line, "wd")? as i32,
        mask: marked::number(line, "mask")? as u32,
        inode: marked::number(line, "ino")?,
        device: marked::device(line)?,
        handle_kind: handle.kind,
        handle: handle.bytes,
        path: Vec::new(),
    })
}

/// The reason why a watched file was not found.
#[derive(Debug)]
enum Lost {
    /// The file has no name, or no mount leads to it.
    Nowhere,
}

/// Finds the watched file by its file handle.
fn find(watch: &Watch) -> std::result::Result<OwnedFd, Lost> {
    let handle = FileHandle { kind: watch.handle_kind, bytes: watch.handle.clone() };
    marked::find(watch.device, watch.inode, &handle).ok_or(Lost::Nowhere)
}

fn path_of(file: &OwnedFd) -> PathBuf {
    tracee::procfs::link(format!("/proc/self/fd/{}", file.as_raw_fd())).unwrap_or_default()
}

/// Adds a watch under its saved watch descriptor.
fn add(instance: &OwnedFd, watch: &Watch, opener: &Opener) -> Result<()> {
    let path = Path::new(OsStr::from_bytes(&watch.path));
    sys::inotify::set_next_watch(instance.as_fd(), watch.number)?;
    let flags = WatchFlags::from_bits_retain(watch.mask);
    let added = match find(watch) {
        Ok(file) => inotify::add_watch(instance, format!("/proc/self/fd/{}", file.as_raw_fd()), flags)
            .map_err(|errno| Refusal::Failed(errno.into())),
        Err(Lost::Nowhere) => add_by_path(instance, watch, opener, path, flags),
    };
    let number = added.map_err(|refusal| {
        refusal.of(path, "the program watched this file", "put the file back, then restore again")
    })?;
    if number == watch.number {
        return Ok(());
    }
    Err(ResourceError::File {
        path: path.display().to_string(),
        why: format!(
            "this file already has watch {number} of the program, and two watches on one file are not possible"
        ),
        fix: "put back the files that the program watched, then restore again".to_owned(),
    })
}

/// Adds a watch by path. Device and inode show whether the path leads to the watched file. For another file, the
/// holders of the description need the right to read it.
fn add_by_path(
    instance: &OwnedFd,
    watch: &Watch,
    opener: &Opener,
    path: &Path,
    flags: WatchFlags,
) -> std::result::Result<i32, Refusal> {
    let named = Opener::default();
    let found = named.find(path, None)?;
    let now = found.stat()?;
    let is_watched = (now.st_dev, now.st_ino) == (watch.device, watch.inode);
    let others = if is_watched { found } else { opener.find(path, None)? };
    others.act(|link| inotify::add_watch(instance, link, flags))
}

/// Fills the queue until it overflows, and then reads all events except the overflow event.
fn overflow(instance: &OwnedFd) -> Result<()> {
    let limit = tracee::procfs::read_text(QUEUE_LIMIT)?.trim().parse().unwrap_or(usize::MAX);
    if limit > QUEUE_LIMIT_MAX {
        return Err(ResourceError::File {
            path: QUEUE_LIMIT.to_owned(),
            why: format!(
                "unread events are restored as an overflow of the queue, whose length of {limit} exceeds the limit"
            ),
            fix: format!(
                "lower it during the restore: sysctl fs.inotify.max_queued_events={QUEUE_LIMIT_MAX}"
            ),
        });
    }
    let failed = |error: std::io::Error| Error::new("make an inotify queue overflow", error);
    let mut file = tempfile()?;
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    let watch = inotify::add_watch(instance, path, WatchFlags::MODIFY | WatchFlags::ACCESS)
        .map_err(|errno| Error::new("make an inotify queue overflow", errno))?;
    // Two types of events alternate, since the kernel merges equal consecutive events.
    for _ in 0..=limit / 2 {
        file.rewind().and_then(|()| file.write_all(b"x")).map_err(failed)?;
        file.rewind().and_then(|()| file.read_exact(&mut [0; 1])).map_err(failed)?;
    }
    inotify::remove_watch(instance, watch)
        .map_err(|errno| Error::new("make an inotify queue overflow", errno))?;
    for _ in 0..limit {
        let mut event = [std::mem::MaybeUninit::uninit(); EVENT_BYTES];
        let mut reader = inotify::Reader::new(instance, &mut event);
        let seen = reader.next().map_err(|errno| Error::new("make an inotify queue overflow", errno))?;
        debug_assert!(!seen.events().contains(ReadFlags::QUEUE_OVERFLOW), "the overflow comes last");
    }
    Ok(())
}

/// Creates a file without a name on a file system that supports watches.
fn tempfile() -> Result<File> {
    let ownership = Ownership {
        mode: 0o600,
        user: rustix::process::geteuid().as_raw(),
        group: rustix::process::getegid().as_raw(),
    };
    let file = make_nameless(&std::env::temp_dir().join("queue"), ownership, |directory, name| {
        mknodat(directory, name, FileType::RegularFile, Mode::RUSR | Mode::WUSR, 0)
    })?;
    Ok(reopen(&file, OFlags::RDWR | OFlags::CLOEXEC)?.into())
}

#[cfg(test)]
mod tests {
    use super::super::test_support::{capture, create, describe_all, known_of};
    use super::*;

    fn init() -> OwnedFd {
        inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).unwrap()
    }

    /// Returns all unread events.
    fn events(instance: &OwnedFd) -> Vec<(i32, ReadFlags, String)> {
        let mut buffer = [std::mem::MaybeUninit::uninit(); 512];
        let mut reader = inotify::Reader::new(instance, &mut buffer);
        let mut found = Vec::new();
        while let Ok(event) = reader.next() {
            let name = event.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
            found.push((event.wd(), event.events(), name));
        }
        found
    }

    fn restore(instance: &OwnedFd) -> OwnedFd {
        let records = capture(&Inotify, &describe_all(&[instance.as_fd()]), true).unwrap();
        let mut created = create(&Inotify, &records, HashMap::new(), false).unwrap();
        Inotify.start(&records, &created).unwrap();
        created.remove(&DescriptionId(0)).unwrap()
    }

    fn may_find(folder: &Path) -> bool {
        let instance = init();
        inotify::add_watch(&instance, folder, WatchFlags::CREATE).unwrap();
        let mut info = FdInfo::default();
        info.take(&instance).unwrap();
        let may = find(&watches(&info).unwrap()[0]).is_ok();
        if !may {
            println!("unsupported: file handles");
        }
        may
    }

    #[test]
    fn watches_are_restored_with_their_numbers_also_on_renamed_files() {
        let folder = tempfile::tempdir().unwrap();
        let (old, new) = (folder.path().join("old"), folder.path().join("new"));
        std::fs::write(&old, b"x").unwrap();
        let instance = init();
        let gone = inotify::add_watch(&instance, "/", WatchFlags::CREATE).unwrap();
        let here = inotify::add_watch(&instance, folder.path(), WatchFlags::CREATE).unwrap();
        inotify::remove_watch(&instance, gone).unwrap();
        let file = inotify::add_watch(&instance, &old, WatchFlags::MODIFY).unwrap();
        assert_eq!(events(&instance)[0].1, ReadFlags::IGNORED);
        std::fs::rename(&old, &new).unwrap();
        if !may_find(folder.path()) {
            return;
        }
        let copy = restore(&instance);
        assert_eq!(events(&copy), []);
        std::fs::write(&new, b"y").unwrap();
        std::fs::write(folder.path().join("third"), b"z").unwrap();
        let expected =
            [(file, ReadFlags::MODIFY, String::new()), (here, ReadFlags::CREATE, "third".to_owned())];
        assert_eq!(events(&copy), expected);
        let fresh = inotify::add_watch(&copy, "/", WatchFlags::CREATE).unwrap();
        assert!(![here, file].contains(&fresh));
    }

    #[test]
    fn unread_events_are_restored_as_an_overflow() {
        let folder = tempfile::tempdir().unwrap();
        if !may_find(folder.path()) {
            return;
        }
        let instance = init();
        inotify::add_watch(&instance, folder.path(), WatchFlags::CREATE).unwrap();
        std::fs::write(folder.path().join("a"), b"").unwrap();
        let copy = restore(&instance);
        assert_eq!(events(&copy), [(-1, ReadFlags::QUEUE_OVERFLOW, String::new())]);
        std::fs::write(folder.path().join("b"), b"").unwrap();
        assert_eq!(events(&copy)[0].2, "b");
        assert_eq!(events(&instance)[0].2, "a");
    }

    #[test]
    fn a_deleted_file_is_an_obstacle_with_its_watch_number() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        let kept = File::create(&path).unwrap();
        let instance = init();
        inotify::add_watch(&instance, &path, WatchFlags::MODIFY).unwrap();
        std::fs::remove_file(&path).unwrap();
        let descriptions = describe_all(&[instance.as_fd()]);
        let scope = CaptureScope {
            pids: &[],
            descriptions: &known_of(&descriptions),
            open: &descriptions,
            inherited: &[],
            table: &[],
            kills: false,
            loses_connections: false,
            sockets: &Default::default(),
            mappings: Vec::new(),
            index: Default::default(),
        };
        let found = Inotify.obstacles(&descriptions[0], &scope);
        assert!(found.len() == 1 && found[0].place.contains("watch 1"), "{found:?}");
        drop(kept);
    }
}
