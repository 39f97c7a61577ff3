//! State of a terminal, as it is in the image.
//!
//! Owns: the payload and its protobuf messages, and reading their content from a terminal.
//! Does not: determine the role of a terminal; `role` does.

use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};

use prost::Message;
use rustix::fs::{Stat, major, minor};
use rustix::termios::Winsize;
use sys::Error;
use sys::terminal::{self, CONTROL_CHARACTERS, Modes};

use super::queue::Queues;
use super::role::{Role, SLAVE_MAJOR};
use crate::error::{ResourceError, Result};

pub(super) const NAME: &str = "fd/tty";

/// Directory of the slaves' files.
const SLAVES: &str = "/dev/pts";

/// Whether slaves of a pair are open, or were ever open.
#[derive(Clone, Copy, PartialEq, Eq, Debug, prost::Enumeration)]
#[repr(i32)]
pub(super) enum Slaves {
    /// No slave was ever opened.
    Never = 0,
    /// The subject has an open slave.
    Open = 1,
    /// All slaves were closed.
    Closed = 2,
}

/// The payload: one open terminal as it is in the image.
#[derive(Clone, PartialEq, Message)]
pub(super) struct TtyPayload {
    #[prost(bytes = "vec", tag = "1")]
    pub(super) path: Vec<u8>,
    #[prost(enumeration = "Role", tag = "2")]
    pub(super) role: i32,
    /// Major device number of the terminal itself. For a pseudo terminal, the minor number is the number of the pair.
    #[prost(uint32, tag = "3")]
    pub(super) major: u32,
    #[prost(uint32, tag = "4")]
    pub(super) minor: u32,
    /// Device number of the file system. Device and inode of the opened file identify an inherited descriptor.
    #[prost(uint64, tag = "5")]
    pub(super) file_system: u64,
    #[prost(uint64, tag = "6")]
    pub(super) inode: u64,
    #[prost(bool, tag = "7")]
    pub(super) inherited: bool,
    /// Owner, mode and ctime of a slave's file.
    #[prost(message, optional, tag = "8")]
    pub(super) node: Option<Node>,
    /// State of a pair, in the record of the master. For an outside terminal, only modes and window size.
    #[prost(message, optional, tag = "9")]
    pub(super) state: Option<State>,
    /// The session leader of the subject whose controlling terminal this is; 0 if there is none.
    #[prost(int32, tag = "10")]
    pub(super) session: i32,
    #[prost(int32, tag = "11")]
    pub(super) foreground: i32,
    /// Set when the kernel refuses further opens (TIOCEXCL).
    #[prost(bool, tag = "12")]
    pub(super) exclusive: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub(super) struct Node {
    #[prost(uint32, tag = "1")]
    pub(super) user: u32,
    #[prost(uint32, tag = "2")]
    pub(super) group: u32,
    #[prost(uint32, tag = "3")]
    pub(super) mode: u32,
    /// ctime of the file in seconds: the time when the terminal was created, or its owner last changed.
    #[prost(int64, tag = "4")]
    pub(super) changed_s: i64,
    #[prost(uint64, tag = "5")]
    pub(super) changed_ns: u64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct State {
    /// Input, output, control and local modes, line discipline, input speed, output speed.
    #[prost(uint32, repeated, tag = "1")]
    pub(super) modes: Vec<u32>,
    #[prost(bytes = "vec", tag = "2")]
    pub(super) characters: Vec<u8>,
    /// Rows, columns, width and height in pixels.
    #[prost(uint32, repeated, tag = "3")]
    pub(super) window: Vec<u32>,
    #[prost(bool, tag = "4")]
    pub(super) packets: bool,
    #[prost(bool, tag = "5")]
    pub(super) locked: bool,
    #[prost(enumeration = "Slaves", tag = "6")]
    pub(super) slaves: i32,
    #[prost(message, optional, tag = "7")]
    pub(super) queues: Option<Queues>,
}

impl Node {
    pub(super) fn of(stat: &Stat) -> Self {
        Self {
            user: stat.st_uid,
            group: stat.st_gid,
            mode: stat.st_mode & 0o7777,
            changed_s: stat.st_ctime,
            changed_ns: stat.st_ctime_nsec,
        }
    }
}

/// Returns owner, mode and ctime of the file of the slave with this device number. The stat of a descriptor of
/// `/dev/tty` describes `/dev/tty` instead, so the usual path is tried.
pub(super) fn node_of(opened: &Stat, device: (u32, u32)) -> Option<Node> {
    let is_slave =
        |stat: &Stat| (major(stat.st_rdev), minor(stat.st_rdev)) == device && device.0 == SLAVE_MAJOR;
    if is_slave(opened) {
        return Some(Node::of(opened));
    }
    let stat = rustix::fs::stat(slave_path(device.1)).ok()?;
    is_slave(&stat).then(|| Node::of(&stat))
}

/// Returns the usual path of a slave.
pub(super) fn slave_path(number: u32) -> PathBuf {
    Path::new(SLAVES).join(number.to_string())
}

impl State {
    /// Reads modes and window size of a terminal. For a master, reads modes and window size of its slave.
    pub(super) fn of(terminal: BorrowedFd<'_>) -> Result<Self> {
        let modes = terminal::modes(terminal)?;
        let window = rustix::termios::tcgetwinsize(terminal)
            .map_err(|errno| Error::new("get the window size of a terminal", errno))?;
        let words = [
            modes.input,
            modes.output,
            modes.control,
            modes.local,
            u32::from(modes.line),
            modes.input_speed,
            modes.output_speed,
        ];
        let sides = [window.ws_row, window.ws_col, window.ws_xpixel, window.ws_ypixel];
        Ok(Self {
            modes: words.to_vec(),
            characters: modes.characters.to_vec(),
            window: sides.map(u32::from).to_vec(),
            ..Self::default()
        })
    }

    pub(super) fn modes(&self) -> Result<Modes> {
        let malformed = || ResourceError::malformed(NAME, "modes of a terminal are incomplete");
        let words: [u32; 7] = self.modes.as_slice().try_into().map_err(|_| malformed())?;
        let characters: [u8; CONTROL_CHARACTERS] =
            self.characters.as_slice().try_into().map_err(|_| malformed())?;
        let [input, output, control, local, line, input_speed, output_speed] = words;
        let line = line as u8;
        Ok(Modes { input, output, control, local, line, characters, input_speed, output_speed })
    }

    pub(super) fn window(&self) -> Winsize {
        let side = |index: usize| self.window.get(index).map_or(0, |side| *side as u16);
        Winsize { ws_row: side(0), ws_col: side(1), ws_xpixel: side(2), ws_ypixel: side(3) }
    }
}
