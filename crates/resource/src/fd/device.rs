//! Saves and restores open character devices without state: the descriptor kind `fd/device`. Refuses all other
//! devices.
//!
//! Owns: the table of devices that can be opened again, and device nodes whose name was removed.
//! Invariants: an opened file has the recorded device number, whatever its path leads to. A removed node is created
//! again with its mode and owner, opened, and unlinked. The node is created once for all its open file descriptions.
//! Does not: handle terminals.

use std::collections::HashMap;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;

use prost::Message;
use rustix::fs::{FileType, Mode, Stat, major, makedev, minor, mknodat};
use sys::{Errno, Error};

use super::description::{Description, Known};
use super::kind::{FdCapture, FdCreate, FdFacts, FdKind, FdRecord};
use super::scope::CaptureScope;
use super::tty::is_terminal;
use crate::error::{ResourceError, Result};
use crate::obstacle::Obstacle;
use crate::opener::{Found, Opener};
use crate::support::making::{self, Ownership};
use crate::support::opening::{self, is_path_only};
use crate::support::path::{self, Link, Name};

const NAME: &str = "fd/device";

/// Devices without state per open: major number, minor number, usual path.
const STATELESS: &[(u32, u32, &str)] = &[
    (1, 3, "/dev/null"),
    (1, 5, "/dev/zero"),
    (1, 7, "/dev/full"),
    (1, 8, "/dev/random"),
    (1, 9, "/dev/urandom"),
];

/// The payload: one open device as it is in the image.
#[derive(Clone, PartialEq, Message)]
struct DevicePayload {
    #[prost(bytes = "vec", tag = "1")]
    path: Vec<u8>,
    #[prost(uint32, tag = "2")]
    major: u32,
    #[prost(uint32, tag = "3")]
    minor: u32,
    /// The state of a node without a name; `None` for a node with a name.
    #[prost(message, optional, tag = "4")]
    nameless: Option<Nameless>,
}

/// A device node whose name was removed.
#[derive(Clone, PartialEq, Message)]
struct Nameless {
    #[prost(uint32, tag = "1")]
    mode: u32,
    #[prost(uint32, tag = "2")]
    user: u32,
    #[prost(uint32, tag = "3")]
    group: u32,
    /// Device number of the file system. Descriptions with equal device and inode share the node.
    #[prost(uint64, tag = "4")]
    device: u64,
    #[prost(uint64, tag = "5")]
    inode: u64,
}

/// Descriptor kind ([`FdKind`]) of open character devices without state.
#[derive(Clone, Copy, Debug)]
pub struct Device;

impl FdKind for Device {
    fn facts(&self) -> FdFacts {
        FdFacts::of::<DevicePayload>(NAME)
    }

    fn claims(&self, description: &Description) -> bool {
        let format = FileType::from_raw_mode(description.stat.st_mode);
        matches!(format, FileType::CharacterDevice | FileType::BlockDevice)
            && !is_path_only(description.info.flags)
            && !is_terminal(description)
    }

    fn obstacles(&self, description: &Description, _scope: &CaptureScope<'_>) -> Vec<Obstacle> {
        if usual_path(description).is_some() {
            return Vec::new();
        }
        let number = description.stat.st_rdev;
        let format = FileType::from_raw_mode(description.stat.st_mode);
        let kind = if format == FileType::BlockDevice { "block" } else { "character" };
        let what = format!("{kind} device {}:{}", major(number), minor(number));
        vec![description.obstacle(
            &what,
            "its driver keeps state that cannot be saved",
            "let the program close the device before the checkpoint",
        )]
    }

    fn prepare(&self, description: &Description, _scope: &CaptureScope<'_>) -> Result<Box<dyn FdCapture>> {
        Ok(Box::new(DeviceCapture { link: Link::new(), stat: description.stat }))
    }

    fn label(&self, payload: &[u8]) -> Option<String> {
        crate::support::label::first_field(payload)
    }

    fn create(&self, records: &[FdRecord], context: &mut FdCreate<'_>) -> Result<()> {
        let mut nodes: HashMap<(u64, u64), OwnedFd> = HashMap::new();
        context.make_each(NAME, records, |payload: DevicePayload, record, _| {
            let opened = match &payload.nameless {
                None => open(record, &payload)?,
                Some(nameless) => {
                    let key = (nameless.device, nameless.inode);
                    if let std::collections::hash_map::Entry::Vacant(entry) = nodes.entry(key) {
                        entry.insert(make(&payload, nameless)?);
                    }
                    opening::reopen(&nodes[&key], opening::flags_for(record.flags))?
                }
            };
            Ok(opened)
        })
    }
}

/// Link in `/proc/PID/fd` and stat of the node. Both can change until the pause.
#[derive(Debug)]
struct DeviceCapture {
    link: Link,
    stat: Stat,
}

impl FdCapture for DeviceCapture {
    fn inside(&mut self, description: &Description) -> Result<()> {
        self.stat = rustix::fs::fstat(&description.duplicate).map_err(|errno| {
            Error::descriptor("stat the device", description.pid, description.fd, Errno::from(errno))
        })?;
        Ok(self.link.read(description)?)
    }

    fn after(&mut self, _description: &Known) -> Result<Vec<u8>> {
        let (name, stat) = (Name::new(self.link.bytes(), &self.stat), &self.stat);
        let nameless = matches!(name, Name::Gone(_)).then(|| Nameless {
            mode: stat.st_mode & 0o7777,
            user: stat.st_uid,
            group: stat.st_gid,
            device: stat.st_dev,
            inode: stat.st_ino,
        });
        let payload = DevicePayload {
            path: path::to_bytes(name.path()),
            major: major(stat.st_rdev),
            minor: minor(stat.st_rdev),
            nameless,
        };
        Ok(payload.encode_to_vec())
    }
}

/// Creates a node without a name. The returned descriptor is an O_PATH descriptor.
fn make(payload: &DevicePayload, nameless: &Nameless) -> Result<OwnedFd> {
    if find(payload.major, payload.minor).is_none() {
        let why = format!("character device {}:{} keeps state", payload.major, payload.minor);
        return Err(ResourceError::malformed(NAME, why));
    }
    let last = path::from_bytes(&payload.path);
    let ownership = Ownership { mode: nameless.mode, user: nameless.user, group: nameless.group };
    let number = makedev(payload.major, payload.minor);
    let make = |directory: BorrowedFd<'_>, name: &str| {
        mknodat(directory, name, FileType::CharacterDevice, Mode::RUSR | Mode::WUSR, number)
    };
    making::make_nameless(&last, ownership, make).map_err(|error| cannot_make(&last, payload, error))
}

fn cannot_make(last: &Path, payload: &DevicePayload, error: Error) -> ResourceError {
    if error.errno.may_pass() {
        return error.into();
    }
    ResourceError::File {
        path: last.display().to_string(),
        why: format!(
            "the deleted node of character device {}:{} cannot be created near its path: {}",
            payload.major, payload.minor, error.errno
        ),
        fix: "restore as root (CAP_MKNOD), on a file system that is mounted without nodev".to_owned(),
    }
}

/// Returns the usual path of a device without state; `None` for other devices.
fn usual_path(description: &Description) -> Option<&'static str> {
    if FileType::from_raw_mode(description.stat.st_mode) != FileType::CharacterDevice {
        return None;
    }
    let number = description.stat.st_rdev;
    find(major(number), minor(number))
}

fn find(major: u32, minor: u32) -> Option<&'static str> {
    STATELESS.iter().find(|row| (row.0, row.1) == (major, minor)).map(|row| row.2)
}

/// Opens a device with the rights of the restoring process. The device number alone identifies a device without
/// state.
fn open(record: &FdRecord, payload: &DevicePayload) -> Result<OwnedFd> {
    let saved = path::from_bytes(&payload.path);
    let usual = find(payload.major, payload.minor).map(Path::new);
    let opener = Opener::default();
    let mut places = [Some(saved.as_path()), usual].into_iter().flatten();
    let found =
        places.find_map(|path| opener.find(path, None).ok().filter(|found| is_device(found, payload)));
    let Some(found) = found else {
        return Err(ResourceError::File {
            path: saved.display().to_string(),
            why: format!("it is not character device {}:{}", payload.major, payload.minor),
            fix: "restore where /dev is complete".to_owned(),
        });
    };
    found.open(opening::flags_for(record.flags)).map_err(|refusal| {
        refusal.of(&saved, "the program has this device open", "restore where /dev is complete")
    })
}

fn is_device(found: &Found<'_>, payload: &DevicePayload) -> bool {
    found.stat().is_ok_and(|stat| {
        FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice
            && (major(stat.st_rdev), minor(stat.st_rdev)) == (payload.major, payload.minor)
    })
}

#[cfg(test)]
mod tests {
    use std::fs::{File, OpenOptions};
    use std::os::fd::{AsFd, AsRawFd};

    use rustix::fs::CWD;

    use super::*;
    use crate::support::testing::{Subject, Watched, flags, ourselves};

    #[test]
    fn the_devices_of_the_table_are_restored() {
        let files: Vec<File> = STATELESS
            .iter()
            .map(|row| {
                let mut options = OpenOptions::new();
                options.read(true).append(row.1 == 3);
                options.open(row.2).unwrap()
            })
            .collect();
        let borrowed: Vec<&dyn std::os::fd::AsFd> = files.iter().map(|file| file as _).collect();
        let built = Subject::new(&borrowed).round_trip(&Device).unwrap();
        for (original, again) in files.iter().zip(&built) {
            let number = |file: &dyn std::os::fd::AsFd| rustix::fs::fstat(file.as_fd()).unwrap().st_rdev;
            assert_eq!(number(original), number(again));
            assert_eq!(flags(original), flags(again));
        }
    }

    #[test]
    fn another_file_at_the_path_is_skipped() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let null = File::open("/dev/null").unwrap();
        let subject = Subject::new(&[&null]);
        let mut envelopes = subject.capture(&Device, || {}).unwrap();
        let mut payload: DevicePayload = crate::error::decode(NAME, &envelopes[0].payload).unwrap();
        payload.path = path::to_bytes(file.path());
        envelopes[0].payload = payload.encode_to_vec();
        let built = subject.build(&Device, &envelopes, &[]).unwrap();
        assert_eq!(rustix::fs::fstat(&built[0]).unwrap().st_rdev, rustix::fs::fstat(&null).unwrap().st_rdev);
        payload.minor = 200;
        envelopes[0].payload = payload.encode_to_vec();
        let error = subject.build(&Device, &envelopes, &[]).unwrap_err().to_string();
        assert!(error.contains("1:200") && error.contains("help:"), "{error}");
    }

    #[test]
    fn a_removed_node_is_restored_without_a_name() {
        let folder = tempfile::tempdir().unwrap();
        let node = folder.path().join("zero");
        let number = rustix::fs::makedev(1, 5);
        if let Err(errno) = rustix::fs::mknodat(CWD, &node, FileType::CharacterDevice, Mode::RUSR, number) {
            return println!("unsupported: device nodes: {errno}");
        }
        rustix::fs::chmod(&node, Mode::from_raw_mode(0o640)).unwrap();
        let Ok(file) = File::open(&node) else { return println!("unsupported: device nodes in {node:?}") };
        let again = OpenOptions::new().read(true).write(true).open(&node).unwrap();
        let subject = Subject::new(&[&file, &again]);
        let early = subject.capture(&Device, || {}).unwrap();
        std::fs::remove_file(&node).unwrap();
        let watched = Watched::new(folder.path());
        let built = Subject::new(&[&file, &again]).round_trip(&Device).unwrap();
        assert_eq!(watched.events(), [], "another user never sees a node while it is created");
        let stat = |file: &dyn AsFd| rustix::fs::fstat(file.as_fd()).unwrap();
        let first = stat(&built[0]);
        assert_eq!((first.st_rdev, first.st_mode & 0o7777, first.st_nlink), (number, 0o640, 0));
        assert_eq!(first.st_ino, stat(&built[1]).st_ino);
        assert_eq!((flags(&built[0]), flags(&built[1])), (flags(&file), flags(&again)));
        let late = subject.capture(&Device, || {}).unwrap();
        assert_ne!(
            early[0].payload, late[0].payload,
            "a name removed after `prepare` is recorded as removed"
        );
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn other_devices_are_refused_with_their_number() {
        let null = File::open("/dev/null").unwrap();
        let mut stat = rustix::fs::fstat(&null).unwrap();
        stat.st_rdev = rustix::fs::makedev(10, 200);
        let holder = (ourselves(), model::Fd(null.as_raw_fd()));
        let info = tracee::procfs::descriptor_info(holder.0, holder.1).unwrap();
        let known = Known::new(model::DescriptionId(0), holder, info, stat);
        let subject = Subject::new(&[&null]).with(0, Description::new(known.into(), null.into()));
        let found = subject.obstacles(&Device);
        assert!(found.len() == 1 && found[0].what.contains("character device 10:200"), "{found:?}");
    }
}
