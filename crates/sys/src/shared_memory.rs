//! Shared anonymous memory objects, as descriptors that can be passed to other processes.
//!
//! Owns: mmap(2) of shared anonymous memory, and the link in `/proc/self/map_files` that leads to the object.
//! Invariants: the temporary mapping of the object is removed when the function returns. The descriptor keeps the
//! object alive.
//! Does not: choose the content of the object.
//!
//! Man page: mmap(2), proc_pid_map_files(5)
//! Since: Linux 4.3 (map_files without CONFIG_CHECKPOINT_RESTORE)
//! Probe: `features::REGISTRY` entry "map-files"
//! Fallback: a memory file (memfd), which behaves in the same way but has another name in `/proc/PID/maps`

use std::fs::OpenOptions;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use model::ByteCount;

use crate::error::{Errno, Error, Result};

/// Creates a shared anonymous object. `length` is a multiple of the page size.
pub fn anonymous(length: ByteCount) -> Result<OwnedFd> {
    match mapped(length, 0)? {
        Ok(file) => Ok(file),
        Err(_) => memory_file(length),
    }
}

/// Creates a shared anonymous object with pages of hugetlbfs. `length` is a multiple of `page_size`. No page is reserved.
///
/// # Errors
///
/// EINVAL if the kernel has no pages of this size.
pub fn huge(length: ByteCount, page_size: ByteCount) -> Result<OwnedFd> {
    let size_bits = page_size.get().trailing_zeros() as i32;
    mapped(length, libc::MAP_HUGETLB | size_bits << libc::MAP_HUGE_SHIFT)?
}

/// Writes to an object that write(2) does not support, such as a file of hugetlbfs. `page_size` is its page size.
///
/// # Errors
///
/// ENOMEM if there are too few free pages.
pub fn write_mapped(object: BorrowedFd<'_>, page_size: ByteCount, at: ByteCount, bytes: &[u8]) -> Result<()> {
    let (page, length) = (page_size.get() as usize, bytes.len());
    let skipped = at.get() as usize % page;
    let whole = (skipped + length).next_multiple_of(page);
    // SAFETY: mmap makes a new mapping at an address of the kernel's choice. No reference points into the mapping.
    let address = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            whole,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED,
            object.as_raw_fd(),
            (at.get() as usize - skipped) as libc::off_t,
        )
    };
    if address == libc::MAP_FAILED {
        return Err(Error::new("map shared memory", Errno::last()));
    }
    // SAFETY: the mapping was made above and has `whole` bytes, which is at least `skipped + length`. The kernel has
    // reserved its pages, so that each access succeeds. `bytes` is memory of this program, outside of the mapping.
    unsafe {
        std::ptr::copy_nonoverlapping(bytes.as_ptr(), address.cast::<u8>().add(skipped), length);
        libc::munmap(address, whole);
    }
    Ok(())
}

/// Maps shared anonymous memory, and opens its object. The inner result is the error of the open.
fn mapped(length: ByteCount, flags: i32) -> Result<Result<OwnedFd>> {
    let bytes = length.get() as usize;
    // SAFETY: mmap makes a new mapping at an address of the kernel's choice. No reference points into the mapping.
    let address = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            bytes,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | flags,
            -1,
            0,
        )
    };
    if address == libc::MAP_FAILED {
        return Err(Error::new("map shared memory", Errno::last()));
    }
    let start = address as u64;
    let link = format!("/proc/self/map_files/{start:x}-{:x}", start + length.get());
    let object = OpenOptions::new().read(true).write(true).open(&link);
    // SAFETY: the mapping was made above with this length, and no reference points into the mapping.
    unsafe { libc::munmap(address, bytes) };
    Ok(object.map(OwnedFd::from).map_err(|error| Error::path("open", link, error)))
}

fn memory_file(length: ByteCount) -> Result<OwnedFd> {
    let file = rustix::fs::memfd_create("undying-shared", rustix::fs::MemfdFlags::CLOEXEC)
        .map_err(|errno| Error::new("create a memory file", errno))?;
    rustix::fs::ftruncate(&file, length.get()).map_err(|errno| Error::new("size a memory file", errno))?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_keeps_what_is_written_through_its_descriptor() {
        let object = anonymous(ByteCount(8192)).unwrap();
        rustix::io::pwrite(&object, b"kept", 4096).unwrap();
        let mut read = [0_u8; 4];
        rustix::io::pread(&object, &mut read, 4096).unwrap();
        assert_eq!(&read, b"kept");
        assert_eq!(rustix::fs::fstat(&object).unwrap().st_size, 8192);
    }
}
