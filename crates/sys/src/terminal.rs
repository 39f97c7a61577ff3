//! Terminals: modes, pseudo terminal pairs, what is queued.
//!
//! Owns: the ioctl requests of terminals that `rustix` lacks, and `struct termios2`.
//! Invariants: modes are the kernel's, speeds as plain numbers included.
//! Does not: interpret modes.
//!
//! Man page: ioctl_tty(2), TCSETS2(2const), TIOCGPTPEER(2const)
//! Since: Linux 4.13 (TIOCGPTPEER)
//! Probe: none needed
//! Fallback: none needed

use std::mem::{offset_of, size_of};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use model::Pid;

use crate::error::{Errno, Error, Result};

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

/// The request by which a session leader takes a terminal, for a call made by another process.
pub const TAKE_CONTROL_REQUEST: u64 = 0x540e;
/// The request that sets the foreground process group; its argument points to an `i32`.
pub const SET_FOREGROUND_REQUEST: u64 = 0x5410;

/// Control characters of a terminal.
pub const CONTROL_CHARACTERS: usize = 19;

/// What stands for "no such control character".
pub const NO_CHARACTER: u8 = 0;

/// Modes of a terminal: `struct termios2`.
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
    /// Line discipline.
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

/// The modes of a terminal; asked of a master, those of its slave.
pub fn modes(terminal: BorrowedFd<'_>) -> Result<Modes> {
    let mut modes = Modes::default();
    // SAFETY: the kernel writes one `struct termios2`, which `modes` is.
    let result = unsafe { libc::ioctl(terminal.as_raw_fd(), TCGETS2, &raw mut modes) };
    if result < 0 { Err(Error::new("get the modes of a terminal", Errno::last())) } else { Ok(modes) }
}

/// Sets the modes at once, without waiting for output to drain.
pub fn set_modes(terminal: BorrowedFd<'_>, modes: &Modes) -> Result<()> {
    // SAFETY: the kernel reads one `struct termios2`, which `modes` is.
    let result = unsafe { libc::ioctl(terminal.as_raw_fd(), TCSETS2, &raw const *modes) };
    if result < 0 { Err(Error::new("set the modes of a terminal", Errno::last())) } else { Ok(()) }
}

/// The number of a pseudo terminal, asked of its master.
pub fn pair_number(master: BorrowedFd<'_>) -> Result<u32> {
    get_number(master, TIOCGPTN, "get the number of a pseudo terminal").map(i32::cast_unsigned)
}

/// Opens the slave of a master without going through its path; `flags` are those of open(2).
///
/// The kernel would keep O_CLOEXEC among the flags of the description, where `/proc` shows it for every
/// descriptor of it; so the descriptor gets it afterwards.
pub fn open_slave(master: BorrowedFd<'_>, flags: u32) -> Result<OwnedFd> {
    let operation = "open the other end of a pseudo terminal";
    let flags = (flags as libc::c_int & !libc::O_CLOEXEC) | libc::O_NOCTTY;
    // SAFETY: the request takes plain numbers.
    let result = unsafe { libc::ioctl(master.as_raw_fd(), TIOCGPTPEER, flags) };
    if result < 0 {
        return Err(Error::new(operation, Errno::last()));
    }
    // SAFETY: the kernel returned a new descriptor without another owner.
    let slave = unsafe { OwnedFd::from_raw_fd(result) };
    rustix::io::fcntl_setfd(&slave, rustix::io::FdFlags::CLOEXEC)
        .map_err(|errno| Error::new(operation, errno))?;
    Ok(slave)
}

/// Whether the slave cannot be opened, asked of the master.
pub fn is_locked(master: BorrowedFd<'_>) -> Result<bool> {
    Ok(get_number(master, TIOCGPTLCK, "get the lock of a pseudo terminal")? != 0)
}

/// Locks or unlocks the slave.
pub fn set_locked(master: BorrowedFd<'_>, locked: bool) -> Result<()> {
    set_number(master, TIOCSPTLCK, i32::from(locked), "lock a pseudo terminal")
}

/// Whether reads of the master give packets with a status byte.
pub fn is_packet_mode(master: BorrowedFd<'_>) -> Result<bool> {
    Ok(get_number(master, TIOCGPKT, "get the packet mode of a pseudo terminal")? != 0)
}

/// Switches packet mode.
pub fn set_packet_mode(master: BorrowedFd<'_>, on: bool) -> Result<()> {
    set_number(master, TIOCPKT, i32::from(on), "set the packet mode of a pseudo terminal")
}

/// Whether further opens are refused.
pub fn is_exclusive(terminal: BorrowedFd<'_>) -> Result<bool> {
    Ok(get_number(terminal, TIOCGEXCL, "get the exclusive mode of a terminal")? != 0)
}

/// Refuses further opens.
pub fn set_exclusive(terminal: BorrowedFd<'_>) -> Result<()> {
    // SAFETY: the request takes no argument.
    let result = unsafe { libc::ioctl(terminal.as_raw_fd(), TIOCEXCL) };
    if result < 0 { Err(Error::new("set the exclusive mode of a terminal", Errno::last())) } else { Ok(()) }
}

/// The number of the line discipline; 0 is the usual one.
pub fn line_discipline(terminal: BorrowedFd<'_>) -> Result<i32> {
    get_number(terminal, TIOCGETD, "get the line discipline of a terminal")
}

/// The device number of the terminal itself, also when it was opened as `/dev/tty` or `/dev/console`:
/// major and minor.
pub fn device(terminal: BorrowedFd<'_>) -> Result<(u32, u32)> {
    let number = get_number(terminal, TIOCGDEV, "get the device of a terminal")?.cast_unsigned();
    Ok(((number & 0xf_ff00) >> 8, (number & 0xff) | ((number >> 12) & 0xf_ff00)))
}

/// The foreground process group; asked of a master, that of its slave. `None` when there is none.
pub fn foreground(terminal: BorrowedFd<'_>) -> Result<Option<Pid>> {
    let number = get_number(terminal, TIOCGPGRP, "get the foreground group of a terminal")?;
    Ok((number > 0).then_some(Pid(number)))
}

/// Makes a process group of our session the foreground one of our controlling terminal. From the background, SIGTTOU
/// must be blocked.
pub fn set_foreground(terminal: BorrowedFd<'_>, group: Pid) -> Result<()> {
    let request = SET_FOREGROUND_REQUEST as libc::c_ulong;
    set_number(terminal, request, group.get(), "set the foreground group of a terminal")
}

/// The session that a terminal controls; asked of a master, that of its slave.
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
    fn a_pair_tells_and_takes_its_properties() {
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
    fn what_is_no_terminal_says_so() {
        let (reader, _writer) = rustix::pipe::pipe().unwrap();
        assert_eq!(modes(reader.as_fd()).unwrap_err().errno, Errno(libc::ENOTTY));
    }
}
