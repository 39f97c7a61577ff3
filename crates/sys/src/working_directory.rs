//! Runs work in another working directory or root directory, without changing the directories of the other threads.
//!
//! Owns: a thread with a private working directory and root directory.
//! Invariants: all other threads of the process keep their root directory, working directory and umask.
//! Does not: define the work; the caller does.
//!
//! Man page: unshare(2), chdir(2), chroot(2)
//! Since: Linux 2.6.16
//! Probe: none; `doctor` refuses older kernels
//! Fallback: none

use std::os::fd::BorrowedFd;
use std::path::Path;

use crate::error::{Error, Result, done};

/// Runs `work` in a thread whose working directory is `directory`.
pub fn within<Output: Send>(directory: &Path, work: impl FnOnce() -> Output + Send) -> Result<Output> {
    elsewhere(|| {
        rustix::process::chdir(directory).map_err(|errno| Error::path("work in", directory, errno))?;
        Ok(work())
    })
}

/// Runs `work` in a thread whose root directory and working directory are `root`. Needs CAP_SYS_CHROOT.
pub fn within_root<Output: Send>(
    root: BorrowedFd<'_>,
    work: impl FnOnce() -> Output + Send,
) -> Result<Output> {
    elsewhere(|| {
        let entered = rustix::process::fchdir(root).and_then(|()| rustix::process::chroot("."));
        entered.map_err(|errno| Error::new("change the root directory of a thread", errno))?;
        Ok(work())
    })
}

fn elsewhere<Output: Send>(work: impl FnOnce() -> Result<Output> + Send) -> Result<Output> {
    let there = || {
        // SAFETY: unshare takes no pointers. Only the root directory, working directory and umask of this thread
        // become private.
        done("get a private working directory", unsafe { libc::unshare(libc::CLONE_FS) })?;
        work()
    };
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new()
            .name("elsewhere".to_owned())
            .spawn_scoped(scope, there)
            .map_err(|error| Error::new("start a thread", error))?;
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_work_is_elsewhere() {
        let here = std::env::current_dir().unwrap();
        let there = within(Path::new("/proc"), || std::env::current_dir().unwrap()).unwrap();
        assert_eq!(there, Path::new("/proc"));
        assert_eq!(std::env::current_dir().unwrap(), here);
        assert!(within(Path::new("/proc/nothing"), || ()).unwrap_err().to_string().contains("/proc/nothing"));
    }

    #[test]
    fn only_the_work_has_another_root() {
        use std::os::fd::AsFd;

        let root = std::fs::File::open("/proc/self").unwrap();
        let is_there = || (Path::new("/status").exists(), std::env::current_dir().unwrap());
        match within_root(root.as_fd(), is_there) {
            Ok((found, directory)) => assert!(found && directory == Path::new("/")),
            Err(error) => println!("unsupported: {error}"),
        }
        assert!(!Path::new("/status").exists());
    }
}
