//! Reads and sets the modes and other properties of terminals and pseudo terminal pairs.
//!
//! Owns: the ioctl requests of terminals that `rustix` lacks, and `struct termios2`.
//! Invariants: modes have the kernel's values, and speeds are plain numbers.
//! Does not: interpret modes.
//!
//! Man page: ioctl_tty(2), TCSETS2(2const), TIOCGPTPEER(2const)
//! Since: Linux 4.13 (TIOCGPTPEER)
//! Probe: none needed
//! Fallback: none needed

use std::mem::{offset_of, size_of};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use model::Pid;

use crate::error::{Errno, Error, Result, owned};

const TCGETS2: libc::c_ulong = 0x802c_542a;
const TCSETS2: libc::c_ulong = 0x402c_542b;
const TIOCEXCL: libc::c_ulong = 0x540c;
const TIOCGPGRP: libc::c_ulong = 0x540f;
const TIOCPKT: libc::c_ulong = 0x5420;
const TIOCGETD: libc::c_ulong = 0x5424;
const TIOCGSID: libc::c_ulong = 0x5429;
const TIOCGPTN: libc::c_ulong = 0x8004_5430;
const TIOCSPTLCK: libc::c_ulong = 0x4004_5431;
const TIOCGDEV: libc::c_ulong = 0x8004_5432;
const TIOCGPKT: libc::c_ulong = 0x8004_5438;
const TIOCGPTLCK: libc::c_ulong = 0x8004_5439;
const TIOCGEXCL: libc::c_ulong = 0x8004_5440;
const TIOCGPTPEER: libc::c_ulong = 0x5441;

/// TIOCSCTTY: the request by which a session leader acquires a terminal. Another process makes the call.
pub const TAKE_CONTROL_REQUEST: u64 = 0x540e;
/// TIOCSPGRP: the request that sets the foreground process group. The argument points to an `i32`.
pub const SET_FOREGROUND_REQUEST: u64 = 0x5410;

/// Number of control characters of a terminal.
pub const CONTROL_CHARACTERS: usize = 19;

/// Value that means "no such control character" (_POSIX_VDISABLE).
pub const NO_CHARACTER: u8 = 0;

/// Modes of a terminal (`struct termios2`).
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Modes {
    /// Input modes (c_iflag).
    pub input: u32,
    /// Output modes (c_oflag).
    pub output: u32,
    /// Control modes (c_cflag).
    pub control: u32,
    /// Local modes (c_lflag).
    pub local: u32,
    /// Line discipline (c_line).
    pub line: u8,
    /// Control characters (c_cc).
    pub characters: [u8; CONTROL_CHARACTERS],
    /// Input speed in bits per second.
    pub input_speed: u32,
    /// Output speed in bits per second.
    pub output_speed: u32,
}

const _: () = assert!(size_of::<Modes>() == 44);
const _: () = assert!(offset_of!(Modes, output_speed) == 40);
const _: () = assert!(offset_of!(Modes, characters) == 17);

fn get_number(terminal: BorrowedFd<'_>, request: libc::c_ulong, operation: &'static str) -> Result<i32> {
    let mut number = 0_i32;
    // SAFETY: each request used with this function writes one `int`.
    let result = unsafe { libc::ioctl(terminal.as_raw_fd(), request, &raw mut number) };
    if result < 0 { Err(Error::new(operation, Errno::last())) } else { Ok(number) }
}

fn set_number(
    terminal: BorrowedFd<'_>,
    request: libc::c_ulong,
    number: i32,
    operation: &'static str,
) -> Result<()> {
    // SAFETY: each request used with this function reads one `int`.
    let result = unsafe { libc::ioctl(terminal.as_raw_fd(), request, &raw const number) };
    if result < 0 { Err(Error::new(operation, Errno::last())) } else { Ok(()) }
}

/// Returns the modes of a terminal. For a master, returns the modes of its slave.
pub fn modes(terminal: BorrowedFd<'_>) -> Result<Modes> {
    let mut modes = Modes::default();
    // SAFETY: the kernel writes one `struct termios2`, which `modes` is.
    let result = unsafe { libc::ioctl(terminal.as_raw_fd(), TCGETS2, &raw mut modes) };
    if result < 0 { Err(Error::new("get the modes of a terminal", Errno::last())) } else { Ok(modes) }
}

/// Sets the modes of a terminal at once, without waiting until the output is sent.
pub fn set_modes(terminal: BorrowedFd<'_>, modes: &Modes) -> Result<()> {
    // SAFETY: the kernel reads one `struct termios2`, which `modes` is.
    let result = unsafe { libc::ioctl(terminal.as_raw_fd(), TCSETS2, &raw const *modes) };
    if result < 0 { Err(Error::new("set the modes of a terminal", Errno::last())) } else { Ok(()) }
}

/// Returns the number of the pseudo terminal of a master.
pub fn pair_number(master: BorrowedFd<'_>) -> Result<u32> {
    get_number(master, TIOCGPTN, "get the number of a pseudo terminal").map(i32::cast_unsigned)
}

/// Opens the slave of a master without using the path of the slave. `flags` are the flags of open(2).
///
/// The request is made without O_CLOEXEC, and O_CLOEXEC is set on the new descriptor afterwards. Otherwise, the
/// kernel would store O_CLOEXEC in the flags of the open file description. `/proc` would show this flag for every
/// descriptor of the description.
pub fn open_slave(master: BorrowedFd<'_>, flags: u32) -> Result<OwnedFd> {
    let operation = "open the other end of a pseudo terminal";
    let flags = (flags as libc::c_int & !libc::O_CLOEXEC) | libc::O_NOCTTY;
    // SAFETY: the request takes plain numbers, and returns a new descriptor without another owner.
    let slave = unsafe { owned(libc::ioctl(master.as_raw_fd(), TIOCGPTPEER, flags)) };
    let slave = slave.map_err(|errno| Error::new(operation, errno))?;
    rustix::io::fcntl_setfd(&slave, rustix::io::FdFlags::CLOEXEC)
        .map_err(|errno| Error::new(operation, errno))?;
    Ok(slave)
}

/// Reports whether the slave of a master is locked, so that it cannot be opened.
pub fn is_locked(master: BorrowedFd<'_>) -> Result<bool> {
    Ok(get_number(master, TIOCGPTLCK, "get the lock of a pseudo terminal")? != 0)
}

/// Locks or unlocks the slave of a master.
pub fn set_locked(master: BorrowedFd<'_>, locked: bool) -> Result<()> {
    set_number(master, TIOCSPTLCK, i32::from(locked), "lock a pseudo terminal")
}

/// Reports whether packet mode is on. In packet mode, the data of each read of the master begins with a status
/// byte.
pub fn is_packet_mode(master: BorrowedFd<'_>) -> Result<bool> {
    Ok(get_number(master, TIOCGPKT, "get the packet mode of a pseudo terminal")? != 0)
}

/// Switches packet mode on or off.
pub fn set_packet_mode(master: BorrowedFd<'_>, on: bool) -> Result<()> {
    set_number(master, TIOCPKT, i32::from(on), "set the packet mode of a pseudo terminal")
}

/// Reports whether a terminal is in exclusive mode, in which the kernel refuses further opens.
pub fn is_exclusive(terminal: BorrowedFd<'_>) -> Result<bool> {
    Ok(get_number(terminal, TIOCGEXCL, "get the exclusive mode of a terminal")? != 0)
}

/// Puts a terminal into exclusive mode, in which the kernel refuses further opens.
pub fn set_exclusive(terminal: BorrowedFd<'_>) -> Result<()> {
    // SAFETY: the request takes no argument.
    let result = unsafe { libc::ioctl(terminal.as_raw_fd(), TIOCEXCL) };
    if result < 0 { Err(Error::new("set the exclusive mode of a terminal", Errno::last())) } else { Ok(()) }
}

/// Returns the number of the line discipline. 0 is the usual line discipline.
pub fn line_discipline(terminal: BorrowedFd<'_>) -> Result<i32> {
    get_number(terminal, TIOCGETD, "get the line discipline of a terminal")
}

/// Returns the major and minor device number of the terminal itself, even if the terminal was opened as `/dev/tty`
/// or `/dev/console`.
pub fn device(terminal: BorrowedFd<'_>) -> Result<(u32, u32)> {
    let number = get_number(terminal, TIOCGDEV, "get the device of a terminal")?.cast_unsigned();
    Ok(((number & 0xf_ff00) >> 8, (number & 0xff) | ((number >> 12) & 0xf_ff00)))
}

/// Returns the foreground process group of a terminal; `None` without a foreground group. For a master, returns the
/// group of its slave.
pub fn foreground(terminal: BorrowedFd<'_>) -> Result<Option<Pid>> {
    let number = get_number(terminal, TIOCGPGRP, "get the foreground group of a terminal")?;
    Ok((number > 0).then_some(Pid(number)))
}

/// Makes a process group of the caller's session the foreground group of the caller's controlling terminal. A
/// caller in the background must block SIGTTOU.
pub fn set_foreground(terminal: BorrowedFd<'_>, group: Pid) -> Result<()> {
    let request = SET_FOREGROUND_REQUEST as libc::c_ulong;
    set_number(terminal, request, group.get(), "set the foreground group of a terminal")
}

/// Returns the session that a terminal controls; `None` without a session. For a master, returns the session of its
/// slave.
pub fn session(terminal: BorrowedFd<'_>) -> Result<Option<Pid>> {
    let number = get_number(terminal, TIOCGSID, "get the session of a terminal")?;
    Ok((number > 0).then_some(Pid(number)))
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use rustix::pty::{OpenptFlags, openpt};

    use super::*;

    #[test]
    fn a_pair_reports_and_accepts_its_properties() {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        let master = master.as_fd();
        assert!(is_locked(master).unwrap());
        set_locked(master, false).unwrap();
        assert!(!is_locked(master).unwrap());
        let slave = open_slave(master, 2).unwrap();
        let number = pair_number(master).unwrap();
        assert_eq!(rustix::io::fcntl_getfd(&slave).unwrap(), rustix::io::FdFlags::CLOEXEC);
        assert_eq!(rustix::fs::fcntl_getfl(&slave).unwrap().bits() & libc::O_CLOEXEC as u32, 0);
        assert_eq!(device(slave.as_fd()).unwrap(), (136, number));
        assert_eq!(session(master).ok().flatten(), None);
        let mut wanted = modes(slave.as_fd()).unwrap();
        wanted.local &= !10;
        wanted.characters[4] = 26;
        set_modes(slave.as_fd(), &wanted).unwrap();
        assert_eq!(modes(master).unwrap(), wanted);
        assert!(!is_packet_mode(master).unwrap());
        set_packet_mode(master, true).unwrap();
        assert!(is_packet_mode(master).unwrap());
        assert_eq!(line_discipline(slave.as_fd()).unwrap(), 0);
        set_exclusive(slave.as_fd()).unwrap();
        assert!(is_exclusive(slave.as_fd()).unwrap());
    }

    #[test]
    fn a_file_that_is_no_terminal_is_recognized() {
        let (reader, _writer) = rustix::pipe::pipe().unwrap();
        assert_eq!(modes(reader.as_fd()).unwrap_err().errno, Errno(libc::ENOTTY));
    }
}
