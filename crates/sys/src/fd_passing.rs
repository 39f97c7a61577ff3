//! Sends and receives descriptors without allocating memory.
//!
//! Owns: sendmsg(2) and recvmsg(2) of SCM_RIGHTS with at most two descriptors and one byte.
//! Invariants: no memory is allocated, so that a process can use this module between fork and exec. Received
//! descriptors are close-on-exec.
//! Does not: transfer data; `socket` does.
//!
//! Man page: unix(7), sendmsg(2), recvmsg(2)
//! Since: Linux 2.6.23 (MSG_CMSG_CLOEXEC)
//! Probe: none needed
//! Fallback: none needed

use std::mem::{offset_of, size_of, zeroed};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use crate::error::{Errno, Error, Result};

/// Maximum number of descriptors in one message.
pub(crate) const DESCRIPTORS_MAX: usize = 2;
const CONTROL_BYTES: usize = 32;
const HEADER_BYTES: usize = 16;

/// Space for one control header and its descriptors, with the alignment of such a header.
#[repr(C, align(8))]
struct Control {
    length: usize,
    level: i32,
    kind: i32,
    descriptors: [RawFd; 4],
}

const _: () = assert!(size_of::<Control>() == CONTROL_BYTES);
const _: () = assert!(offset_of!(Control, descriptors) == HEADER_BYTES);

/// Sends one byte and the descriptors. Does not wait.
pub(crate) fn send_descriptors(socket: BorrowedFd<'_>, descriptors: &[RawFd]) -> Result<()> {
    debug_assert!(descriptors.len() <= DESCRIPTORS_MAX, "callers send one listener and one file");
    let mut byte = 0_u8;
    let mut part = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
    let length = HEADER_BYTES + size_of_val(descriptors);
    let mut control =
        Control { length, level: libc::SOL_SOCKET, kind: libc::SCM_RIGHTS, descriptors: [-1; 4] };
    for (slot, descriptor) in control.descriptors.iter_mut().zip(descriptors) {
        *slot = *descriptor;
    }
    // SAFETY: a message header of zeroes is valid. It has no address, no buffers and no control data.
    let mut header: libc::msghdr = unsafe { zeroed() };
    header.msg_iov = &raw mut part;
    header.msg_iovlen = 1;
    if !descriptors.is_empty() {
        header.msg_control = (&raw mut control).cast();
        header.msg_controllen = length;
    }
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: each pointer in the header points to a local variable that has at least the given length. The
    // kernel only reads these variables.
    let result = unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const header, flags) };
    if result < 0 { Err(Error::new("send descriptors", Errno::last())) } else { Ok(()) }
}

/// Receives one message of `send_descriptors`.
///
/// # Errors
///
/// Returns EPIPE if the other end of the socket is closed. Returns EAGAIN if there is no message and `flags`
/// contains MSG_DONTWAIT.
pub(crate) fn receive_descriptors(
    socket: BorrowedFd<'_>,
    flags: i32,
) -> Result<[Option<OwnedFd>; DESCRIPTORS_MAX]> {
    let mut byte = 0_u8;
    let mut part = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
    let mut control = Control { length: 0, level: 0, kind: 0, descriptors: [-1; 4] };
    // SAFETY: a message header of zeroes is valid. It has no address, no buffers and no control data.
    let mut header: libc::msghdr = unsafe { zeroed() };
    header.msg_iov = &raw mut part;
    header.msg_iovlen = 1;
    header.msg_control = (&raw mut control).cast();
    // The length leaves no space for more descriptors, because the kernel would open these, too.
    header.msg_controllen = HEADER_BYTES + DESCRIPTORS_MAX * size_of::<RawFd>();
    // SAFETY: each pointer in the header points to a local variable that has at least the given length.
    let result =
        unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut header, flags | libc::MSG_CMSG_CLOEXEC) };
    if result <= 0 {
        let errno = if result == 0 { Errno(libc::EPIPE) } else { Errno::last() };
        return Err(Error::new("receive descriptors", errno));
    }
    let is_rights = header.msg_controllen as usize >= HEADER_BYTES
        && (control.level, control.kind) == (libc::SOL_SOCKET, libc::SCM_RIGHTS);
    let count = if is_rights { (control.length - HEADER_BYTES) / size_of::<RawFd>() } else { 0 };
    let mut received = [const { None }; DESCRIPTORS_MAX];
    for (slot, descriptor) in received.iter_mut().zip(control.descriptors).take(count) {
        // SAFETY: the kernel has opened this descriptor for the message, so the descriptor has no other
        // owner.
        *slot = Some(unsafe { OwnedFd::from_raw_fd(descriptor) });
    }
    Ok(received)
}
