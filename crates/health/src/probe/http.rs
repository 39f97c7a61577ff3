//! An HTTP GET request, and the status line of the response.
//!
//! Owns: the request, the bounded buffer of the response, and the parser of the status line.
//! Invariants: stops reading after `ANSWER_BYTES_MAX` bytes, or after the status line of the final response.
//! Does not: parse headers or a body.

use std::os::fd::{AsFd, OwnedFd};

use memchr::memmem;
use rustix::io::Errno as RawErrno;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use sys::Errno;

use super::question::HttpTarget;
use crate::interest::{Handle, Interest};

/// Maximum number of bytes that are read: interim responses (status 1xx) with their headers, and a status line.
const ANSWER_BYTES_MAX: usize = 8192;
/// Buffer size of one read in bytes. The first read usually contains the whole status line.
const PIECE_BYTES: usize = 512;

/// The reason why no status was received.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum AnswerError {
    /// The response does not begin with an HTTP status line.
    #[error("it does not begin with a status line")]
    NotHttp,
    /// The bytes that were read contain no complete status line.
    #[error("there is no status line in its first {ANSWER_BYTES_MAX} bytes")]
    TooLong,
    /// The server closed the connection before the end of the status line.
    #[error("the server closed the connection before the status line ended")]
    Ended,
    /// The connection has failed.
    #[error("the connection failed: {0}")]
    Failed(Errno),
}

#[derive(Debug)]
pub(super) struct Exchange {
    socket: OwnedFd,
    request: Vec<u8>,
    sent: usize,
    answer: Vec<u8>,
}

impl Exchange {
    /// Creates a GET request on a connected, non-blocking socket.
    pub(super) fn new(socket: OwnedFd, target: &HttpTarget) -> Self {
        let request = format!(
            "GET {} HTTP/1.1\r\nHost: {}\r\nUser-Agent: undying\r\nAccept: */*\r\nConnection: close\r\n\r\n",
            target.path, target.host
        );
        Self { socket, request: request.into_bytes(), sent: 0, answer: Vec::new() }
    }

    pub(super) fn handle(&self) -> Handle<'_> {
        let is_sent = self.sent == self.request.len();
        (self.socket.as_fd(), if is_sent { Interest::Readable } else { Interest::Writable })
    }

    /// Advances as far as possible without blocking. Returns the status if it was received.
    pub(super) fn advance(&mut self) -> Result<Option<u16>, AnswerError> {
        while self.sent < self.request.len() {
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            match send(&self.socket, &self.request[self.sent..], flags) {
                Ok(count) => self.sent += count,
                Err(RawErrno::AGAIN) => return Ok(None),
                Err(errno) => return Err(AnswerError::Failed(errno.into())),
            }
        }
        loop {
            let mut piece = [0; PIECE_BYTES];
            match recv(&self.socket, &mut piece[..], RecvFlags::DONTWAIT) {
                Ok((0, _)) => return Err(AnswerError::Ended),
                Ok((count, _)) => self.answer.extend(&piece[..count]),
                Err(RawErrno::AGAIN) => return Ok(None),
                Err(errno) => return Err(AnswerError::Failed(errno.into())),
            }
            if let Some(status) = final_status(&self.answer)? {
                return Ok(Some(status));
            }
            if self.answer.len() > ANSWER_BYTES_MAX {
                return Err(AnswerError::TooLong);
            }
        }
    }
}

/// Returns the status of the first response that is not an interim response (RFC 9110, section 15.2). Returns `None`
/// until the status line is complete.
fn final_status(mut answer: &[u8]) -> Result<Option<u16>, AnswerError> {
    loop {
        let Some(status) = status_of(answer)? else { return Ok(None) };
        if !(100..200).contains(&status) {
            return Ok(Some(status));
        }
        match memmem::find(answer, b"\r\n\r\n") {
            Some(end) => answer = &answer[end + 4..],
            None => return Ok(None),
        }
    }
}

/// Parses the status at the beginning of a response, for example `HTTP/1.1 204 No Content`.
fn status_of(answer: &[u8]) -> Result<Option<u16>, AnswerError> {
    const VERSION: &[u8] = b"HTTP/1.";
    let known = VERSION.len().min(answer.len());
    if answer[..known] != VERSION[..known] {
        return Err(AnswerError::NotHttp);
    }
    let Some(end) = memchr::memchr(b'\n', answer) else { return Ok(None) };
    let words = answer[VERSION.len()..end].strip_suffix(b"\r").unwrap_or(&answer[VERSION.len()..end]);
    let status = match words {
        [version, b' ', digits @ ..] if version.is_ascii_digit() => digits,
        _ => return Err(AnswerError::NotHttp),
    };
    let digits = status.split(|byte| *byte == b' ').next().unwrap_or_default();
    let parsed = std::str::from_utf8(digits).ok().filter(|_| digits.len() == 3);
    let number = parsed.and_then(|digits| digits.parse().ok()).filter(|status| *status >= 100);
    number.map(Some).ok_or(AnswerError::NotHttp)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_line_is_read_once_it_is_whole() {
        assert_eq!(final_status(b""), Ok(None));
        assert_eq!(final_status(b"HTTP/1.1 20"), Ok(None));
        assert_eq!(final_status(b"HTTP/1.1 204 No Content\r\n"), Ok(Some(204)));
        assert_eq!(final_status(b"HTTP/1.0 503\n"), Ok(Some(503)));
        let interim = b"HTTP/1.1 103 Early Hints\r\nLink: a\r\n\r\nHTTP/1.1 200 OK\r\n";
        assert_eq!(final_status(interim), Ok(Some(200)));
        assert_eq!(final_status(&interim[..40]), Ok(None));
    }

    #[test]
    fn nothing_else_is_a_status_line() {
        for text in [
            "SSH-2.0-x\r\n",
            "H\0",
            "HTTP/2 200\r\n",
            "HTTP/1.1 \r\n",
            "HTTP/1.1 99 a\r\n",
            "HTTP/1.1 2000\r\n",
        ] {
            assert_eq!(final_status(text.as_bytes()), Err(AnswerError::NotHttp), "{text}");
        }
    }
}
