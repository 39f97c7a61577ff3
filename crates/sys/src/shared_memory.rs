//! Shared anonymous memory objects that can be handed on as descriptors.
//!
//! Owns: mmap(2) of shared anonymous memory and the `map_files` link that leads to the object.
//! Invariants: the mapping made for it is gone when the function returns; the descriptor keeps the object.
//! Does not: fill the object.
//!
//! Man page: mmap(2), proc_pid_map_files(5)
//! Since: Linux 4.3 (map_files without CONFIG_CHECKPOINT_RESTORE)
//! Probe: `features::REGISTRY` entry "map-files"
//! Fallback: a memory file (memfd), which behaves alike but has another name in `/proc/PID/maps`

use std::fs::OpenOptions;
use std::os::fd::OwnedFd;

use model::ByteCount;

use crate::error::{Errno, Error, Result};

/// A new shared anonymous object of a length in whole pages.
pub fn anonymous(length: ByteCount) -> Result<OwnedFd> {
    let bytes = length.get() as usize;
    // SAFETY: a fresh mapping at an address of the kernel's choice; nothing else refers to it.
    let address = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            bytes,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
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
    // SAFETY: the mapping was made above with this length and no reference points into it.
    unsafe { libc::munmap(address, bytes) };
    match object {
        Ok(file) => Ok(file.into()),
        Err(_) => memory_file(length),
    }
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
