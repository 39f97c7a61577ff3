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
use std::os::fd::{BorrowedFd, OwnedFd};
use std::ptr::null_mut;

use model::ByteCount;
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};

use crate::error::{Error, Result};

const READ_WRITE: ProtFlags = ProtFlags::READ.union(ProtFlags::WRITE);

/// Creates a shared anonymous object. `length` is a multiple of the page size.
pub fn anonymous(length: ByteCount) -> Result<OwnedFd> {
    match mapped(length, MapFlags::empty())? {
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
    let size_bits = page_size.get().trailing_zeros() << libc::MAP_HUGE_SHIFT;
    mapped(length, MapFlags::from_bits_retain(libc::MAP_HUGETLB as u32 | size_bits))?
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
    let address =
        unsafe { mmap(null_mut(), whole, READ_WRITE, MapFlags::SHARED, object, at.get() - skipped as u64) };
    let address = address.map_err(|errno| Error::new("map shared memory", errno))?;
    // SAFETY: the mapping was made above and has `whole` bytes, which is at least `skipped + length`. The kernel has
    // reserved its pages, so that each access succeeds. `bytes` is memory of this program, outside of the mapping.
    unsafe {
        std::ptr::copy_nonoverlapping(bytes.as_ptr(), address.cast::<u8>().add(skipped), length);
        let _ = munmap(address, whole);
    }
    Ok(())
}

/// Maps shared anonymous memory, and opens its object. The inner result is the error of the open.
fn mapped(length: ByteCount, flags: MapFlags) -> Result<Result<OwnedFd>> {
    let bytes = length.get() as usize;
    // SAFETY: mmap makes a new mapping at an address of the kernel's choice. No reference points into the mapping.
    let address = unsafe {
        mmap_anonymous(null_mut(), bytes, READ_WRITE, MapFlags::SHARED | MapFlags::NORESERVE | flags)
    };
    let address = address.map_err(|errno| Error::new("map shared memory", errno))?;
    let start = address as u64;
    let link = format!("/proc/self/map_files/{start:x}-{:x}", start + length.get());
    let object = OpenOptions::new().read(true).write(true).open(&link);
    // SAFETY: the mapping was made above with this length, and no reference points into the mapping.
    let _ = unsafe { munmap(address, bytes) };
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
