//! Saves and restores fanotify(7) groups: the descriptor kind `fd/fanotify`.
//!
//! Owns: the flags of a group, and its marks on files, mounts and file systems.
//! Invariants: a marked file is found by its file handle. Marks are added last, so that a restore causes no events. A
//! group that could belong to a program without CAP_SYS_ADMIN is created with the rights of its holders, because such a
//! group reports less.
//! Does not: save unread events. They are lost, as the events while the subject does not exist. A program that waits for
//! the answer to an unread permission event continues when the subject ends.

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use model::DescriptionId;
use prost::Message;
use sys::fanotify::group;
use sys::file_handle::FileHandle;

use super::description::{Description, Known};
use super::fdinfo::{FdInfo, unparsable};
use super::kind::{FdCapture, FdCreate, FdFacts, FdKind, FdRecord};
use super::scope::CaptureScope;
use crate::error::Result;
use crate::obstacle::Obstacle;
use crate::opener::{Opener, Refusal};
use crate::support::marked;
use crate::support::path;

const NAME: &str = "fd/fanotify";
const WHAT: &str = "fanotify group";
/// FAN_CLASS_CONTENT and FAN_CLASS_PRE_CONTENT, FAN_UNLIMITED_QUEUE and FAN_UNLIMITED_MARKS, FAN_ENABLE_AUDIT.
const PRIVILEGED: u32 = 0x04 | 0x08 | 0x10 | 0x20 | 0x40;
/// FAN_REPORT_FID, which a program without CAP_SYS_ADMIN must set.
const REPORT_FID: u32 = 0x200;
/// Descriptor kind ([`FdKind`]) of fanotify groups.
#[derive(Debug)]
pub struct Fanotify;

#[derive(Clone, PartialEq, Message)]
struct State {
    /// The flags of fanotify_init(2).
    #[prost(uint32, tag = "1")]
    flags: u32,
    /// The flags of descriptors in events.
    #[prost(uint32, tag = "2")]
    event_flags: u32,
    #[prost(message, repeated, tag = "3")]
    marks: Vec<Mark>,
}

#[derive(Clone, PartialEq, Message)]
struct Mark {
    /// FAN_MARK_MOUNT, FAN_MARK_FILESYSTEM or 0 for one file.
    #[prost(uint32, tag = "1")]
    target: u32,
    #[prost(uint32, tag = "2")]
    flags: u32,
    #[prost(uint64, tag = "3")]
    mask: u64,
    #[prost(uint64, tag = "4")]
    ignored: u64,
    /// The device of the file, the mount or the file system.
    #[prost(uint64, tag = "5")]
    device: u64,
    #[prost(uint64, tag = "6")]
    inode: u64,
    #[prost(int32, tag = "7")]
    handle_kind: i32,
    #[prost(bytes = "vec", tag = "8")]
    handle: Vec<u8>,
    /// The mount point of a mount.
    #[prost(bytes = "vec", tag = "9")]
    path: Vec<u8>,
}

#[derive(Debug, Default)]
struct Capture {
    info: FdInfo,
}

impl FdKind for Fanotify {
    fn facts(&self) -> FdFacts {
        FdFacts::of::<State>(NAME)
    }

    fn claims(&self, description: &Description) -> bool {
        description.target() == "anon_inode:[fanotify]"
    }

    fn obstacles(&self, description: &Description, _scope: &CaptureScope<'_>) -> Vec<Obstacle> {
        let mut info = FdInfo::default();
        let state = match info.take(description).and_then(|()| parse(&info)) {
            Ok(state) => state,
            Err(error) => return vec![description.obstacle(WHAT, &error.to_string(), CLOSE)],
        };
        let lost = state.marks.iter().filter(|mark| find(mark).is_none());
        lost.map(|mark| Obstacle {
            place: format!("mark on inode {} of device {}", mark.inode, mark.device),
            ..description.obstacle(
                WHAT,
                "the marked file was deleted, or its file system offers no usable file handle",
                "let the program remove this mark",
            )
        })
        .collect()
    }

    fn prepare(&self, _description: &Description, _scope: &CaptureScope<'_>) -> Result<Box<dyn FdCapture>> {
        Ok(Box::<Capture>::default())
    }

    fn create(&self, records: &[FdRecord], context: &mut FdCreate<'_>) -> Result<()> {
        context.make_each(NAME, records, |state: State, record, _| {
            let make = || group::create(state.flags, state.event_flags);
            let made = if state.needs_privilege() { make()? } else { record.opener.run(make)?? };
            Ok(made)
        })
    }

    fn start(&self, records: &[FdRecord], created: &HashMap<DescriptionId, OwnedFd>) -> Result<()> {
        for record in records {
            let state: State = crate::error::decode(NAME, &record.payload)?;
            if let Some(group) = created.get(&record.id) {
                state.marks.iter().try_for_each(|mark| add(group.as_fd(), mark))?;
            }
        }
        Ok(())
    }
}

const CLOSE: &str = "close the group before the checkpoint";

impl FdCapture for Capture {
    fn inside(&mut self, description: &Description) -> Result<()> {
        self.info.take(description)
    }

    fn after(&mut self, _description: &Known) -> Result<Vec<u8>> {
        Ok(parse(&self.info)?.encode_to_vec())
    }
}

impl State {
    /// Reports whether only a program with CAP_SYS_ADMIN can create this group.
    fn needs_privilege(&self) -> bool {
        self.flags & PRIVILEGED != 0
            || self.flags & REPORT_FID == 0
            || self.marks.iter().any(|mark| mark.target != 0)
    }
}

/// Parses the lines of fdinfo: one for the group, and one for each mark.
fn parse(info: &FdInfo) -> Result<State> {
    let lines = info.text().lines().filter_map(|line| line.strip_prefix("fanotify "));
    let mut state = State::default();
    for line in lines {
        let read = if line.starts_with("flags:") {
            read_group(line, &mut state)
        } else {
            read_mark(line, &mut state)
        };
        read.ok_or_else(|| unparsable("fanotify"))?;
    }
    Ok(state)
}

fn read_group(line: &str, state: &mut State) -> Option<()> {
    state.flags = marked::number(line, "flags")? as u32;
    state.event_flags = marked::number(line, "event-flags")? as u32;
    Some(())
}

fn read_mark(line: &str, state: &mut State) -> Option<()> {
    let mut mark = Mark {
        flags: marked::number(line, "mflags")? as u32,
        mask: marked::number(line, "mask")?,
        ignored: marked::number(line, "ignored_mask")?,
        ..Mark::default()
    };
    if let Some(mount) = marked::number(line, "mnt_id") {
        // The kernel prints the id of a mount in hexadecimal, and mountinfo in decimal.
        let (device, place) = marked::mount_with_id(mount)?;
        (mark.target, mark.device) = (group::MOUNT, device);
        mark.path = path::to_bytes(&place);
    } else if let Some(inode) = marked::number(line, "ino") {
        mark.inode = inode;
        mark.device = marked::device(line)?;
        let handle = marked::handle(line)?;
        (mark.handle_kind, mark.handle) = (handle.kind, handle.bytes);
    } else {
        (mark.target, mark.device) = (group::FILE_SYSTEM, marked::device(line)?);
    }
    state.marks.push(mark);
    Some(())
}

/// Finds a file that stands for the marked object.
fn find(mark: &Mark) -> Option<OwnedFd> {
    match mark.target {
        0 => {
            let handle = FileHandle { kind: mark.handle_kind, bytes: mark.handle.clone() };
            marked::find(mark.device, mark.inode, &handle)
        }
        group::FILE_SYSTEM => marked::mounts(mark.device).iter().find_map(|place| open(place, mark.device)),
        _ => open(&path::from_bytes(&mark.path), mark.device),
    }
}

/// Opens a mount point, if it still belongs to the device.
fn open(place: &Path, device: u64) -> Option<OwnedFd> {
    let found = Opener::default().find(place, None).ok()?.into_path_descriptor();
    rustix::fs::fstat(&found).is_ok_and(|stat| stat.st_dev == device).then_some(found)
}

/// Adds a mark with its mask and its ignore mask. A mark on one file needs the right to read the file, as at the first
/// time. The holders had this right.
fn add(group: BorrowedFd<'_>, mark: &Mark) -> Result<()> {
    let shown = || match mark.path.is_empty() {
        true => PathBuf::from(format!("inode {} of device {}", mark.inode, mark.device)),
        false => path::from_bytes(&mark.path),
    };
    let refused = |refusal: Refusal| {
        refusal.of(&shown(), "the program watched this file", "put the file back, then restore again")
    };
    let file = find(mark).ok_or_else(|| refused(Refusal::Failed(sys::Errno::ENOENT)))?;
    let masks = [(mark.mask, mark.flags & group::KEPT), (mark.ignored, group::ignoring(mark.flags))];
    for (mask, flags) in masks.into_iter().filter(|(mask, _)| *mask != 0) {
        group::mark(group, mark.target | flags, mask, file.as_fd())
            .map_err(|error| refused(Refusal::Failed(error.errno)))?;
    }
    Ok(())
}
