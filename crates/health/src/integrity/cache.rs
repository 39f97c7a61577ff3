//! Removal of a damaged page from the page cache.
//!
//! Owns: the advice to the kernel, and the check that the kernel has followed the advice.
//! Does not: end the processes that map the file.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};

use model::{ByteCount, PAGE_BYTES};
use rustix::fs::{Advice, fadvise};
use sys::page_buffer::PageBuffer;
use sys::{Error, Result};

use super::changed::Changed;
use super::process::DIRECT;

impl Changed {
    /// Drops the clean pages of the file from the page cache. The next incarnation then reads the pages from the
    /// device. The kernel keeps pages that a process maps, so call this function between two incarnations. Returns
    /// whether the page in the cache is now equal to the page on the device.
    ///
    /// # Errors
    ///
    /// An error if the file cannot be opened by its name. EINVAL if the file system does not support direct reads.
    pub fn drop_from_cache(&self) -> Result<bool> {
        let failed = |operation| move |error: std::io::Error| Error::path(operation, &self.file, error);
        let cached = File::open(&self.file).map_err(failed("open"))?;
        let direct = OpenOptions::new().read(true).custom_flags(DIRECT).open(&self.file);
        let direct = direct.map_err(failed("read directly from"))?;
        fadvise(&cached, 0, None, Advice::DontNeed)
            .map_err(|errno| Error::path("drop pages of", &self.file, errno))?;
        let (mut now, mut device) = (PageBuffer::new(PAGE)?, PageBuffer::new(PAGE)?);
        let offset = self.offset / PAGE_BYTES * PAGE_BYTES;
        let of_device = direct.read_at(&mut device, offset).map_err(failed("read directly from"))?;
        let of_cache = cached.read_at(&mut now, offset).map_err(failed("read"))?;
        Ok(of_device == of_cache && now[..] == device[..])
    }
}

/// Number of compared bytes.
const PAGE: ByteCount = ByteCount(PAGE_BYTES);
