//! Reads and sets socket options as raw bytes.
//!
//! Owns: getsockopt(2), setsockopt(2), and the classic packet filters of sockets and of groups that share a port.
//! Invariants: values are passed through unchanged. This module does not interpret any option.
//! Does not: know which options a socket family supports.
//!
//! Man page: getsockopt(2), socket(7)
//! Since: Linux 3.8 (SO_GET_FILTER), 4.5 (SO_ATTACH_REUSEPORT_CBPF), 5.3 (SO_DETACH_REUSEPORT_BPF)
//! Probe: none; an unknown option fails with ENOPROTOOPT
//! Fallback: the caller leaves out an unknown option

use std::mem::{offset_of, size_of};
use std::os::fd::{AsRawFd, BorrowedFd};

use crate::error::{Errno, Error, Result, done};

/// A socket option, with its name for error messages.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct SocketOption {
    /// Level of the option: SOL_SOCKET, IPPROTO_TCP …
    pub level: i32,
    /// Number of the option within its level.
    pub number: i32,
    /// Name of the option in the manual page.
    pub name: &'static str,
}

/// The option for reading a filter (SO_GET_FILTER) and for attaching a filter (SO_ATTACH_FILTER).
const FILTER: SocketOption =
    SocketOption { level: libc::SOL_SOCKET, number: libc::SO_ATTACH_FILTER, name: "SO_ATTACH_FILTER" };
/// Size of one instruction of a classic packet filter in bytes.
const INSTRUCTION_BYTES: usize = 8;
/// Most instructions that the kernel accepts (BPF_MAXINSNS).
const INSTRUCTIONS_MAX: usize = 4096;
/// A packet filter that drops every packet: the instruction `ret 0`.
pub const FILTER_DROPS_ALL: [u8; INSTRUCTION_BYTES] = [0x06, 0, 0, 0, 0, 0, 0, 0];

#[repr(C)]
struct FilterProgram {
    length: u16,
    instructions: *const u8,
}

const _: () = assert!(size_of::<FilterProgram>() == 16);
const _: () = assert!(offset_of!(FilterProgram, instructions) == 8);

/// Reads an option into `buffer`. Returns the length of the value in bytes.
pub fn get(socket: BorrowedFd<'_>, option: SocketOption, buffer: &mut [u8]) -> Result<usize> {
    let mut length = buffer.len() as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes, which is the length of the buffer.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            option.level,
            option.number,
            buffer.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    Errno::check(result).map_err(|errno| Error::new(format!("read socket option {}", option.name), errno))?;
    Ok((length as usize).min(buffer.len()))
}

/// Sets an option.
pub fn set(socket: BorrowedFd<'_>, option: SocketOption, value: &[u8]) -> Result<()> {
    // SAFETY: the kernel reads `value.len()` bytes from the slice.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            option.level,
            option.number,
            value.as_ptr().cast(),
            value.len() as libc::socklen_t,
        )
    };
    Errno::check(result)
        .map(drop)
        .map_err(|errno| Error::new(format!("set socket option {}", option.name), errno))
}

/// Reads an option of type `int`.
pub fn get_int(socket: BorrowedFd<'_>, option: SocketOption) -> Result<i32> {
    let mut value = [0; 4];
    let length = get(socket, option, &mut value)?;
    // For a few options of the IP level, the kernel returns one byte.
    Ok(if length == 1 { i32::from(value[0]) } else { i32::from_ne_bytes(value) })
}

/// Sets an option of type `int`.
pub fn set_int(socket: BorrowedFd<'_>, option: SocketOption, value: i32) -> Result<()> {
    set(socket, option, &value.to_ne_bytes())
}

/// Reads the classic packet filter of a socket; empty without a filter. Fails with EACCES for a filter that was
/// loaded as an extended program (eBPF), because the kernel cannot return the program.
pub fn filter(socket: BorrowedFd<'_>) -> Result<Vec<u8>> {
    let read = |buffer: &mut [u8]| {
        // For this option, the length is a number of instructions.
        let mut length = (buffer.len() / INSTRUCTION_BYTES) as libc::socklen_t;
        // SAFETY: the kernel writes at most `length` instructions of eight bytes, which is the length of the
        // buffer.
        let result = unsafe {
            libc::getsockopt(
                socket.as_raw_fd(),
                FILTER.level,
                FILTER.number,
                buffer.as_mut_ptr().cast(),
                &raw mut length,
            )
        };
        done("read the packet filter of a socket", result)?;
        Ok((length as usize).min(INSTRUCTIONS_MAX) * INSTRUCTION_BYTES)
    };
    let mut program = vec![0; read(&mut [])?];
    if !program.is_empty() {
        read(&mut program)?;
    }
    Ok(program)
}

/// Attaches a classic packet filter, which replaces any other filter.
pub fn attach_filter(socket: BorrowedFd<'_>, program: &[u8]) -> Result<()> {
    attach(socket, FILTER, program)
}

/// Makes a group of sockets that share a port by SO_REUSEPORT hand every new connection or datagram to one socket.
/// `place` is the position of this socket in the order in which listeners began to listen, or in which UDP sockets
/// were bound. The filter replaces any other program of the group.
pub fn steer_to(member: BorrowedFd<'_>, place: u32) -> Result<()> {
    let option = SocketOption {
        level: libc::SOL_SOCKET,
        number: libc::SO_ATTACH_REUSEPORT_CBPF,
        name: "SO_ATTACH_REUSEPORT_CBPF",
    };
    let mut program = FILTER_DROPS_ALL;
    program[4..].copy_from_slice(&place.to_ne_bytes());
    attach(member, option, &program)
}

/// Makes a group of sockets that share a port choose a socket by the hash of the addresses again.
pub fn stop_steering(member: BorrowedFd<'_>) -> Result<()> {
    const SO_DETACH_REUSEPORT_BPF: i32 = 68;
    let name = "SO_DETACH_REUSEPORT_BPF";
    set_int(member, SocketOption { level: libc::SOL_SOCKET, number: SO_DETACH_REUSEPORT_BPF, name }, 0)
}

fn attach(socket: BorrowedFd<'_>, option: SocketOption, program: &[u8]) -> Result<()> {
    let length = program.len() / INSTRUCTION_BYTES;
    let raw = FilterProgram { length: length as u16, instructions: program.as_ptr() };
    // SAFETY: the structure and its instructions live through the call. The length in the structure counts whole
    // instructions inside the slice.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            option.level,
            option.number,
            (&raw const raw).cast(),
            size_of::<FilterProgram>() as libc::socklen_t,
        )
    };
    Errno::check(result)
        .map(drop)
        .map_err(|errno| Error::new(format!("attach a packet filter with {}", option.name), errno))
}

/// Removes the packet filter of a socket.
pub fn detach_filter(socket: BorrowedFd<'_>) -> Result<()> {
    let option =
        SocketOption { level: libc::SOL_SOCKET, number: libc::SO_DETACH_FILTER, name: "SO_DETACH_FILTER" };
    set_int(socket, option, 0)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn a_filter_is_read_back_as_it_was_attached() {
        let (left, right) = std::os::unix::net::UnixDatagram::pair().unwrap();
        assert!(filter(right.as_fd()).unwrap().is_empty());
        attach_filter(right.as_fd(), &FILTER_DROPS_ALL).unwrap();
        assert_eq!(filter(right.as_fd()).unwrap(), FILTER_DROPS_ALL);
        left.send(b"lost").unwrap();
        detach_filter(right.as_fd()).unwrap();
        left.send(b"kept").unwrap();
        let mut buffer = [0; 8];
        assert_eq!(right.recv(&mut buffer).unwrap(), 4);
        assert_eq!(&buffer[..4], b"kept");
        assert!(detach_filter(right.as_fd()).is_err());
    }

    #[test]
    fn an_unknown_option_is_named_in_its_error() {
        let (left, _right) = std::os::unix::net::UnixDatagram::pair().unwrap();
        let option = SocketOption { level: libc::SOL_SOCKET, number: 9999, name: "SO_NOTHING" };
        let error = get_int(left.as_fd(), option).unwrap_err();
        assert!(error.to_string().contains("SO_NOTHING"), "{error}");
    }
}
