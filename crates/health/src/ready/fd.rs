//! Readiness by a pipe: a line, or the end of the file.
//!
//! Owns: the read end of the pipe.
//! Invariants: the pipe stays open until its writers have closed it, also after the report. A program that writes a
//! second line gets no SIGPIPE.
//! Does not: give the write end its number in the program.

use std::os::fd::{AsFd, OwnedFd};

use rustix::io::Errno as RawErrno;
use rustix::pipe::{PipeFlags, pipe_with};
use sys::{Error, Result};

use super::met::Ready;
use crate::interest::{Handle, Interest};

/// Bytes that one call takes, at most: the size of a pipe.
const BYTES_PER_CALL: usize = 64 * 1024;
/// Bytes of one read.
const PIECE_BYTES: usize = 4096;

/// A pipe on which a program reports that it is ready.
#[derive(Debug)]
pub struct FdReady {
    /// Until the end of the file.
    pipe: Option<OwnedFd>,
    is_reported: bool,
}

impl FdReady {
    /// A pipe: its read end, and the write end for the program (close-on-exec, blocking).
    ///
    /// # Errors
    ///
    /// What pipe2(2) reports.
    pub fn pipe() -> Result<(Self, OwnedFd)> {
        let failed = |errno: RawErrno| Error::new("make a pipe for the readiness of a program", errno);
        let (read, write) = pipe_with(PipeFlags::CLOEXEC).map_err(failed)?;
        // The flag belongs to the open file description of the read end alone.
        rustix::io::ioctl_fionbio(&read, true).map_err(failed)?;
        Ok((Self { pipe: Some(read), is_reported: false }, write))
    }

    /// What is waited for; `None` after the end of the file: the value can be dropped.
    #[must_use]
    pub fn handle(&self) -> Option<Handle<'_>> {
        self.pipe.as_ref().map(|pipe| (pipe.as_fd(), Interest::Readable))
    }

    /// Reads available data. A program that has neither written a line nor closed the pipe is not ready.
    pub fn advance(&mut self) -> Option<Ready> {
        let mut piece = [0; PIECE_BYTES];
        let mut is_met = false;
        for _ in 0..BYTES_PER_CALL / PIECE_BYTES {
            let Some(pipe) = &self.pipe else { break };
            match rustix::io::read(pipe, &mut piece[..]) {
                Ok(count) if count > 0 => is_met |= memchr::memchr(b'\n', &piece[..count]).is_some(),
                Err(RawErrno::AGAIN | RawErrno::INTR) => break,
                // A pipe that cannot be read delivers nothing more.
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
