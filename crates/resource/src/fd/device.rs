//! Character devices without state, and the refusal of all other devices by name.
//!
//! Owns: the table of devices that can simply be opened again.
//! Invariants: what is opened has the device number it had, whatever the path leads to by now.
//! Does not: know terminals.

use std::os::fd::OwnedFd;
use std::path::Path;

use prost::Message;
use rustix::fs::{FileType, major, minor};
use sys::Error;

use super::tty::is_terminal;
use super::{CaptureScope, Constant, Description, FdCapture, FdCreate, FdKind, FdRecord};
use crate::error::{ResourceError, Result};
use crate::obstacle::Obstacle;
use crate::support::opening::{self, is_path_only};
use crate::support::path::{self, Name};

const NAME: &str = "fd/device";

/// Devices that keep nothing about who opened them: major, minor, usual path.
const STATELESS: &[(u32, u32, &str)] = &[
    (1, 3, "/dev/null"),
    (1, 5, "/dev/zero"),
    (1, 7, "/dev/full"),
    (1, 8, "/dev/random"),
    (1, 9, "/dev/urandom"),
];

/// One open device as the image keeps it.
#[derive(Clone, PartialEq, Message)]
struct DevicePayload {
    #[prost(bytes = "vec", tag = "1")]
    path: Vec<u8>,
    #[prost(uint32, tag = "2")]
    major: u32,
    #[prost(uint32, tag = "3")]
    minor: u32,
}

/// The kind.
#[derive(Clone, Copy, Debug)]
pub struct Device;

impl FdKind for Device {
    fn name(&self) -> &'static str {
        NAME
    }

    fn summary(&self) -> &'static str {
        "/dev/null, zero, full, random and urandom"
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
        let payload = DevicePayload {
            path: path::to_bytes(Name::of(description).path()),
            major: major(description.stat.st_rdev),
            minor: minor(description.stat.st_rdev),
        };
        Ok(Box::new(Constant(payload.encode_to_vec())))
    }

    fn create(&self, records: &[FdRecord], context: &mut FdCreate<'_>) -> Result<()> {
        for record in records {
            let payload: DevicePayload = crate::decode(NAME, &record.payload)?;
            context.created.insert(record.id, open(record, &payload)?);
        }
        Ok(())
    }
}

/// The usual path of a device that can be opened again.
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

fn open(record: &FdRecord, payload: &DevicePayload) -> Result<OwnedFd> {
    let saved = path::from_bytes(&payload.path);
    let usual = find(payload.major, payload.minor).map(Path::new);
    let path = [Some(saved.as_path()), usual].into_iter().flatten().find(|path| is_device(path, payload));
    let Some(path) = path else {
        return Err(ResourceError::File {
            path: saved.display().to_string(),
            why: format!("it is not character device {}:{} here", payload.major, payload.minor),
            fix: "restore where /dev is complete".to_owned(),
        });
    };
    let flags = opening::flags_for(record.flags);
    Ok(rustix::fs::open(path, flags, rustix::fs::Mode::empty())
        .map_err(|errno| Error::path("open", path, errno))?)
}

fn is_device(path: &Path, payload: &DevicePayload) -> bool {
    rustix::fs::stat(path).is_ok_and(|stat| {
        FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice
            && (major(stat.st_rdev), minor(stat.st_rdev)) == (payload.major, payload.minor)
    })
}

#[cfg(test)]
mod tests {
    use std::fs::{File, OpenOptions};

    use super::*;
    use crate::support::testing::{Subject, describe, flags};

    #[test]
    fn the_devices_of_the_table_come_back() {
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
    fn another_file_in_its_place_is_passed_over() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let null = File::open("/dev/null").unwrap();
        let subject = Subject::new(&[&null]);
        let mut envelopes = subject.capture(&Device, || {}).unwrap();
        let mut payload: DevicePayload = crate::decode(NAME, &envelopes[0].payload).unwrap();
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
    fn other_devices_are_refused_by_their_number() {
        let null = File::open("/dev/null").unwrap();
        let mut description = describe(0, &null);
        description.stat.st_rdev = rustix::fs::makedev(10, 200);
        let subject = Subject { descriptions: vec![description], ..Subject::new(&[]) };
        let found = subject.obstacles(&Device);
        assert!(found.len() == 1 && found[0].what.contains("character device 10:200"), "{found:?}");
    }
}
