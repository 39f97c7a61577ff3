//! Readiness through a pipe: the program writes a line or closes the pipe.
//!
//! Owns: the read end of the pipe.
//! Invariants: the read end stays open until all writers have closed the pipe, even after the report. A program that
//! writes a second line therefore gets no SIGPIPE.
//! Does not: choose the number of the write end in the program.

use std::os::fd::{AsFd, OwnedFd};

use rustix::io::Errno as RawErrno;
use rustix::pipe::{PipeFlags, pipe_with};
use sys::{Error, Result};

use super::met::Ready;
use crate::interest::{Handle, Interest};

/// Maximum number of bytes that one call reads: the capacity of a pipe.
const BYTES_PER_CALL: usize = 64 * 1024;
/// Buffer size of one read in bytes.
const PIECE_BYTES: usize = 4096;

/// A pipe on which a program reports its readiness.
#[derive(Debug)]
pub struct FdReady {
    /// The read end; `None` after the end of the file.
    pipe: Option<OwnedFd>,
    is_reported: bool,
}

impl FdReady {
    /// Creates a pipe. Returns the receiver, and the write end for the program (close-on-exec, blocking).
    ///
    /// # Errors
    ///
    /// The errno of pipe2(2) or ioctl(2).
    pub fn pipe() -> Result<(Self, OwnedFd)> {
        let failed = |errno: RawErrno| Error::new("make a pipe for the readiness of a program", errno);
        let (read, write) = pipe_with(PipeFlags::CLOEXEC).map_err(failed)?;
        // The read end has its own open file description, so the write end stays blocking.
        rustix::io::ioctl_fionbio(&read, true).map_err(failed)?;
        Ok((Self { pipe: Some(read), is_reported: false }, write))
    }

    /// Returns the descriptor and the event for which the caller waits. Returns `None` after the end of the file. The
    /// value can then be dropped.
    #[must_use]
    pub fn handle(&self) -> Option<Handle<'_>> {
        self.pipe.as_ref().map(|pipe| (pipe.as_fd(), Interest::Readable))
    }

    /// Reads the available data. Reports readiness once: at the first newline, or when all writers have closed the
    /// pipe.
    pub fn advance(&mut self) -> Option<Ready> {
        let mut piece = [0; PIECE_BYTES];
        let mut is_met = false;
        for _ in 0..BYTES_PER_CALL / PIECE_BYTES {
            let Some(pipe) = &self.pipe else { break };
            match rustix::io::read(pipe, &mut piece[..]) {
                Ok(count) if count > 0 => is_met |= memchr::memchr(b'\n', &piece[..count]).is_some(),
                Err(RawErrno::AGAIN | RawErrno::INTR) => break,
                // A pipe that cannot be read delivers no further data.
                Ok(_) | Err(_) => {
                    is_met = true;
                    self.pipe = None;
                }
            }
        }
        let is_new = is_met && !self.is_reported;
        self.is_reported |= is_met;
        is_new.then_some(Ready)
    }
}
