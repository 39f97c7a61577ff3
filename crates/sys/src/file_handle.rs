//! Opens files by their file handles. A file handle is the identifier that the file system gives to a file.
//!
//! Owns: open_by_handle_at(2), name_to_handle_at(2).
//! Invariants: the type and the bytes of a handle are those of the kernel, unchanged.
//! Does not: interpret handles.
//!
//! Man page: open_by_handle_at(2)
//! Since: Linux 2.6.39
//! Probe: none; file systems without handles return EOPNOTSUPP
//! Fallback: the caller looks for the file under the paths that it knows

use std::mem::{offset_of, size_of};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use crate::error::{Errno, Error, Result, done, owned};

/// Maximum length of a handle in bytes (MAX_HANDLE_SZ).
const HANDLE_BYTES_MAX: usize = 128;

/// Maximum number of attempts to open a file by its handle. The kernel looks up the path of the file. This
/// lookup can fail with ENOMEM although memory is available, while a parent directory is moved or leaves the
/// cache.
const ATTEMPTS_MAX: u32 = 20;
/// Pause between two attempts.
const PAUSE: Duration = Duration::from_millis(1);

#[repr(C)]
struct RawHandle {
    bytes: u32,
    kind: i32,
    handle: [u8; HANDLE_BYTES_MAX],
}

const _: () = assert!(size_of::<RawHandle>() == 8 + HANDLE_BYTES_MAX);
const _: () = assert!(offset_of!(RawHandle, kind) == 4);
const _: () = assert!(offset_of!(RawHandle, handle) == 8);

/// The handle of a file: bytes, and a type that the file system defines.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct FileHandle {
    /// The type, which identifies the format of the bytes to the file system.
    pub kind: i32,
    /// The content of the handle.
    pub bytes: Vec<u8>,
}

/// Opens a file by its handle, with O_PATH. `mount` is a descriptor of any file on the same mount.
pub fn open(mount: BorrowedFd<'_>, handle: &FileHandle) -> Result<OwnedFd> {
    let name = "open a file by its handle";
    if handle.bytes.len() > HANDLE_BYTES_MAX {
        return Err(Error::new(name, Errno::EINVAL));
    }
    let mut raw =
        RawHandle { bytes: handle.bytes.len() as u32, kind: handle.kind, handle: [0; HANDLE_BYTES_MAX] };
    raw.handle[..handle.bytes.len()].copy_from_slice(&handle.bytes);
    let mut attempt = 1;
    loop {
        // SAFETY: the kernel reads the header and as many bytes as the header says. The array has at least
        // this length.
        let result = unsafe {
            libc::syscall(
                libc::SYS_open_by_handle_at,
                mount.as_raw_fd(),
                &raw const raw,
                libc::O_PATH | libc::O_CLOEXEC,
            )
        };
        // SAFETY: the kernel returned a new descriptor without another owner.
        match unsafe { owned(result) } {
            Err(Errno(libc::ENOMEM)) if attempt < ATTEMPTS_MAX => {}
            outcome => return outcome.map_err(|errno| Error::new(name, errno)),
        }
        attempt += 1;
        std::thread::sleep(PAUSE);
    }
}

/// Returns the handle of an open file.
pub fn of(file: BorrowedFd<'_>) -> Result<FileHandle> {
    let mut raw = RawHandle { bytes: HANDLE_BYTES_MAX as u32, kind: 0, handle: [0; HANDLE_BYTES_MAX] };
    let mut mount = 0_i32;
    // SAFETY: the kernel writes one i32, and at most `bytes` bytes into the array that follows the header.
    // The path is an empty string that ends in a zero byte.
    let result = unsafe {
        libc::syscall(
            libc::SYS_name_to_handle_at,
            file.as_raw_fd(),
            c"".as_ptr(),
            &raw mut raw,
            &raw mut mount,
            libc::AT_EMPTY_PATH,
        )
    };
    done("get the handle of a file", result)?;
    Ok(FileHandle { kind: raw.kind, bytes: raw.handle[..raw.bytes as usize].to_vec() })
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn a_handle_leads_back_to_its_file() {
        let file = std::fs::File::open(std::env::current_exe().unwrap()).unwrap();
        let handle = match of(file.as_fd()) {
            Ok(handle) => handle,
            Err(error) => return println!("unsupported: {error}"),
        };
        match open(file.as_fd(), &handle) {
            Ok(again) => {
                let stat = rustix::fs::fstat(&again).unwrap();
                assert_eq!(stat.st_ino, rustix::fs::fstat(&file).unwrap().st_ino);
            }
            Err(error) => println!("unsupported: {error}"),
        }
    }
}
