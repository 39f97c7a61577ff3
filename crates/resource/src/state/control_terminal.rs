//! The state kind of the controlling terminal of a session, which a device number identifies.
//!
//! Owns: the pseudoterminal of a session leader, even if no process of the program has the terminal open; the
//! foreground process group.
//! Invariants: only the recorded terminal becomes the controlling terminal again. The restore is refused if the
//! terminal of a session leader no longer exists.
//! Does not: open terminals for the program. If a process of the program has a descriptor of the terminal, the
//! descriptor kind has already restored the controlling terminal.

use std::path::{Path, PathBuf};

use model::{Address, Pid};
use prost::Message;
use rustix::fs::{FileType, Stat, major, minor};
use sys::{Errno, terminal};
use tracee::arch::numbers as nr;
use tracee::{ProcessMemory, RemoteError, Stub, procfs};

use super::kind::{Level, RawState, Stage, StateCapture, StateFacts, StateKind, StateRestore};
use crate::error::{ResourceError, Result};
use crate::obstacle::Obstacle;

const NAME: &str = "state/control_terminal";

/// The major device number of pseudoterminal slaves.
const SLAVE_MAJOR: u32 = 136;
/// O_RDWR | O_NOCTTY | O_NONBLOCK | O_CLOEXEC.
const OPEN_FLAGS: u64 = 0o2 | 0o400 | 0o4000 | 0o2_000_000;
const AT_FDCWD: u64 = -100_i64 as u64;

/// The state kind of controlling terminals.
pub(super) struct ControlTerminal;

#[derive(Clone, Copy, PartialEq, Message)]
struct ControlTerminalMessage {
    #[prost(uint32, tag = "1")]
    minor: u32,
    /// The inode and the next two fields distinguish terminals that have had the same number. `changed` is the ctime.
    #[prost(uint64, tag = "2")]
    inode: u64,
    #[prost(int64, tag = "3")]
    changed_s: i64,
    #[prost(uint64, tag = "4")]
    changed_ns: u64,
    /// The foreground process group; -1 for no group.
    #[prost(sint32, tag = "5")]
    foreground: i32,
}

impl StateKind for ControlTerminal {
    fn facts(&self) -> StateFacts {
        StateFacts { name: NAME, level: Level::Process, stage: Stage::Setup }
    }

    fn obstacles(&self, pid: Pid) -> Vec<Obstacle> {
        // Most processes are not session leaders. One system call is enough to skip such a process.
        if sys::session::of(pid).is_ok_and(|session| session != pid) {
            return Vec::new();
        }
        let Ok(stat) = procfs::stat(pid) else { return Vec::new() };
        let (major, minor) = decode(stat.tty_nr);
        if stat.session != pid || stat.tty_nr == 0 || major == SLAVE_MAJOR || has_open(pid, (major, minor)) {
            return Vec::new();
        }
        vec![Obstacle {
            pid,
            what: "controlling terminal".to_owned(),
            place: format!("device {major}:{minor}"),
            why: "it is not a pseudo terminal, and its session leader has no descriptor of it".to_owned(),
            fix: "start the program with setsid, without a controlling terminal".to_owned(),
        }]
    }

    fn inside(&self, capture: &mut StateCapture<'_>, raw: &mut RawState) -> Result<()> {
        // Most processes are not session leaders. One system call is enough to skip such a process.
        if sys::session::of(capture.pid).is_ok_and(|session| session == capture.pid) {
            raw.extend(procfs::read(format!("/proc/{}/stat", capture.pid))?);
        }
        Ok(())
    }

    fn after(&self, raw: &[u8]) -> Result<Option<Vec<u8>>> {
        let text = String::from_utf8_lossy(raw);
        let behind_name = text.rsplit_once(')').map_or("", |(_, rest)| rest);
        let field = |number: usize| behind_name.split_whitespace().nth(number - 3)?.parse::<i32>().ok();
        let (Some(device), Some(foreground)) = (field(7), field(8)) else { return Ok(None) };
        let (major, minor) = decode(device);
        if major != SLAVE_MAJOR {
            return Ok(None);
        }
        // A terminal that no longer exists was hung up, and is therefore not a controlling terminal.
        let Some(stat) = inspect(&path_of(minor), minor) else { return Ok(None) };
        let message = ControlTerminalMessage {
            minor,
            inode: stat.st_ino,
            changed_s: stat.st_ctime,
            changed_ns: stat.st_ctime_nsec,
            foreground,
        };
        Ok(Some(message.encode_to_vec()))
    }

    fn lead(&self, _version: u32, payload: &[u8], stub: &mut Stub, memory: &ProcessMemory) -> Result<()> {
        let message: ControlTerminalMessage = crate::error::decode(NAME, payload)?;
        let pid = stub.pid();
        if procfs::stat(pid)?.tty_nr != 0 {
            return Ok(());
        }
        let path = path_of(message.minor);
        let refused = |why: String| ResourceError::Unsupported {
            pid,
            what: format!("controlling terminal {}", path.display()),
            why,
            fix: "keep the terminal open, or start the program with setsid, without a controlling terminal"
                .to_owned(),
        };
        let is_same = inspect(&path, message.minor).is_some_and(|stat| message.is_of(&stat));
        if !is_same {
            return Err(refused("it no longer exists, or is another terminal".to_owned()));
        }
        let terminal =
            open(stub, memory, &path).map_err(|error| refused(format!("it cannot be opened: {error}")))?;
        let taken = stub.call(nr::IOCTL, [terminal, terminal::TAKE_CONTROL_REQUEST, 0, 0, 0, 0]);
        stub.call(nr::CLOSE, [terminal, 0, 0, 0, 0, 0])?;
        taken.map_err(|error| refused(format!("it cannot become the controlling terminal: {error}")))?;
        if procfs::stat(pid)?.tty_nr == 0 {
            return Err(refused("no process has it open".to_owned()));
        }
        Ok(())
    }

    fn check(&self, _version: u32, payload: &[u8]) -> Result<()> {
        crate::error::decode::<ControlTerminalMessage>(NAME, payload).map(drop)
    }

    /// Sets the foreground process group, through the session leader. Called when the process groups exist.
    fn restore(&self, _version: u32, payload: &[u8], restore: &mut StateRestore<'_>) -> Result<()> {
        let message: ControlTerminalMessage = crate::error::decode(NAME, payload)?;
        let StateRestore { stub, memory, .. } = restore;
        if message.foreground <= 0 {
            return Ok(());
        }
        let terminal = match open(stub, memory, Path::new("/dev/tty")) {
            Ok(terminal) => terminal,
            // The descriptor kind has restored another controlling terminal, or no controlling terminal.
            Err(RemoteError::Refused { .. }) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        let group = message.foreground.to_ne_bytes();
        let call = |at: Address| [terminal, terminal::SET_FOREGROUND_REQUEST, at.get(), 0, 0, 0];
        let outcome = stub.call_with(memory, nr::IOCTL, &group, call);
        stub.call(nr::CLOSE, [terminal, 0, 0, 0, 0, 0])?;
        match outcome {
            // The group has no process any more, or is outside the restored process tree.
            Ok(_) | Err(RemoteError::Refused { errno: Errno::ESRCH | Errno::EPERM, .. }) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

impl ControlTerminalMessage {
    fn is_of(&self, stat: &Stat) -> bool {
        (self.inode, self.changed_s, self.changed_ns) == (stat.st_ino, stat.st_ctime, stat.st_ctime_nsec)
    }
}

fn path_of(minor: u32) -> PathBuf {
    PathBuf::from(format!("/dev/pts/{minor}"))
}

/// Returns the stat of `path` if the path leads to the pseudoterminal with this number.
fn inspect(path: &Path, number: u32) -> Option<Stat> {
    let stat = rustix::fs::stat(path).ok()?;
    let is_terminal = FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice;
    (is_terminal && (major(stat.st_rdev), minor(stat.st_rdev)) == (SLAVE_MAJOR, number)).then_some(stat)
}

/// Decodes a device number of `/proc/PID/stat` into major and minor number.
fn decode(device: i32) -> (u32, u32) {
    let device = device.cast_unsigned();
    ((device >> 8) & 0xfff, (device & 0xff) | ((device >> 12) & 0xf_ff00))
}

/// Reports whether a process has an open descriptor of a device.
fn has_open(pid: Pid, device: (u32, u32)) -> bool {
    let is_it = |fd: &model::Fd| {
        rustix::fs::stat(format!("/proc/{pid}/fd/{fd}")).is_ok_and(|stat| {
            FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice
                && (major(stat.st_rdev), minor(stat.st_rdev)) == device
        })
    };
    procfs::descriptors(pid).is_ok_and(|descriptors| descriptors.iter().any(is_it))
}

fn open(stub: &mut Stub, memory: &ProcessMemory, path: &Path) -> std::result::Result<u64, RemoteError> {
    let mut bytes = path.as_os_str().as_encoded_bytes().to_vec();
    bytes.push(0);
    stub.call_with(memory, nr::OPENAT, &bytes, |at| [AT_FDCWD, at.get(), OPEN_FLAGS, 0, 0, 0])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_numbers_are_decoded_as_the_kernel_encodes_them() {
        assert_eq!(decode(34_816), (136, 0));
        assert_eq!(decode(34_819), (136, 3));
        assert_eq!(decode((136 << 8) | 5 | (1 << 20)), (136, 261));
        assert_eq!(decode(1025), (4, 1));
    }

    #[test]
    fn a_process_without_a_terminal_has_no_record() {
        assert_eq!(ControlTerminal.after(b"").unwrap(), None);
        assert_eq!(ControlTerminal.after(b"7 (a b) S 1 7 7 0 -1 4194560").unwrap(), None);
    }
}
