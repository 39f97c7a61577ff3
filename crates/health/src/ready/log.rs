//! Readiness through a line in a log file.
//!
//! Owns: the position in the file, and the last bytes of the previous read, which may be the beginning of the text.
//! Invariants: stores fewer bytes than the length of the text, so long lines need no memory. A call reads a limited
//! number of bytes.
//! Does not: find text that was written and truncated between two polls.

use std::fs::{self, File, OpenOptions};
use std::io::ErrorKind;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use memchr::memmem::Finder;
use sys::{Errno, Error, Result};

use super::met::Ready;

/// Interval between two polls of the file. inotify(7) would report each write to a busy log.
pub const LOG_POLL: Duration = Duration::from_millis(50);
/// Maximum number of bytes that one call reads: about 0.1 ms.
const BYTES_PER_CALL: usize = 256 * 1024;
/// O_PATH on x86-64.
const PATH: i32 = 0o10_000_000;

/// The reason why a text is not valid for a search.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum LogTextError {
    /// The text is empty.
    #[error("the text of a log line is empty")]
    Empty,
    /// The text contains a newline.
    #[error("{0:?} contains a line break; write the text of a single line")]
    SeveralLines(String),
}

/// A search for a line in a log file.
#[derive(Debug)]
pub struct LogReady {
    path: PathBuf,
    finder: Finder<'static>,
    /// The open file, and the position of the next read.
    file: Option<(File, u64)>,
    /// The offset of the first read in the first file.
    offset: u64,
    /// The last bytes of the previous read; fewer bytes than the text.
    carried: Vec<u8>,
    due: Option<Instant>,
}

impl LogReady {
    /// Creates a search for a line with this text, from `offset` onwards. The file may be created later.
    ///
    /// # Errors
    ///
    /// An error if the text is empty or contains a newline.
    pub fn new(
        path: &Path,
        offset: u64,
        text: &str,
        now: Instant,
    ) -> std::result::Result<Self, LogTextError> {
        if text.is_empty() {
            return Err(LogTextError::Empty);
        }
        if text.contains('\n') {
            return Err(LogTextError::SeveralLines(text.to_owned()));
        }
        let finder = Finder::new(text).into_owned();
        Ok(Self { path: path.to_owned(), finder, file: None, offset, carried: Vec::new(), due: Some(now) })
    }

    /// Returns the time of the next read; `None` after the line was found.
    #[must_use]
    pub fn due(&self) -> Option<Instant> {
        self.due
    }

    /// Reads data that was appended. If the file was truncated or replaced, reads from its beginning.
    ///
    /// # Errors
    ///
    /// The errno of opening or reading the file; EINVAL if it is not a regular file. The caller may retry at the due
    /// time.
    pub fn advance(&mut self, now: Instant) -> Result<Option<Ready>> {
        if self.due.is_none_or(|due| now < due) {
            return Ok(None);
        }
        self.due = Some(now + LOG_POLL);
        let mut left = BYTES_PER_CALL;
        loop {
            let Some(is_found) = self.read(&mut left)? else { return Ok(None) };
            if is_found {
                (self.due, self.file) = (None, None);
                return Ok(Some(Ready));
            }
            if left == 0 {
                self.due = Some(now);
                return Ok(None);
            }
            if !self.is_replaced() {
                return Ok(None);
            }
            (self.file, self.offset) = (None, 0);
            self.carried.clear();
        }
    }

    /// Reads up to the end of the file or the limit. Returns whether the text was found; `None` if the file does not
    /// exist.
    fn read(&mut self, left: &mut usize) -> Result<Option<bool>> {
        let failed = |error: std::io::Error| Error::path("read the log", &self.path, error);
        if self.file.is_none() {
            match open(&self.path)? {
                Some(file) => self.file = Some((file, std::mem::take(&mut self.offset))),
                None => return Ok(None),
            }
        }
        let Some((file, position)) = &mut self.file else { return Ok(None) };
        let length = file.metadata().map_err(failed)?.len();
        if length == *position {
            return Ok(Some(false));
        }
        if length < *position {
            *position = 0;
            self.carried.clear();
        }
        let kept = self.carried.len();
        // The kernel provides the zeroed memory. Only pages that receive data are allocated.
        let mut bytes = vec![0; kept + *left];
        bytes[..kept].copy_from_slice(&self.carried);
        let mut filled = kept;
        while filled < bytes.len() {
            match file.read_at(&mut bytes[filled..], *position) {
                Ok(0) => break,
                Ok(count) => (filled, *position) = (filled + count, *position + count as u64),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(failed(error)),
            }
        }
        *left -= filled - kept;
        bytes.truncate(filled);
        if self.finder.find(&bytes).is_some() {
            return Ok(Some(true));
        }
        let carry = (self.finder.needle().len() - 1).min(bytes.len());
        self.carried = bytes.split_off(bytes.len() - carry);
        Ok(Some(false))
    }

    /// Reports whether the path now names a file other than the open file.
    fn is_replaced(&self) -> bool {
        let identity = |metadata: fs::Metadata| (metadata.dev(), metadata.ino());
        let own = self.file.as_ref().and_then(|(file, _)| file.metadata().ok()).map(identity);
        let named = fs::metadata(&self.path).ok().map(identity);
        named.is_some() && named != own
    }
}

/// Opens a regular file for reading. The path can belong to a program with fewer rights than this process, so the path
/// is first resolved without an open: the open of a device or a FIFO could have an effect.
fn open(path: &Path) -> Result<Option<File>> {
    let failed = |error: std::io::Error| Error::path("open the log", path, error);
    let handle = match OpenOptions::new().read(true).custom_flags(PATH).open(path) {
        Ok(handle) => handle,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(error)),
    };
    if !handle.metadata().map_err(failed)?.is_file() {
        return Err(Error::path("read the log, which is no regular file,", path, Errno::EINVAL));
    }
    let link = format!("/proc/self/fd/{}", handle.as_raw_fd());
    OpenOptions::new().read(true).open(link).map(Some).map_err(failed)
}
