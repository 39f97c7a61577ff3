//! Holds a program between fork(2) and execve(2) until a tracer has attached to its process.
//!
//! Owns: the two pipes between the child and this process.
//! Invariants: the program inherits no additional descriptor. If this process ends before [`HeldStart::start`], the
//! program is not started.
//! Does not: attach.
//!
//! Man page: pipe(7), fork(2)
//! Since: Linux 2.6.27 (pipe2)
//! Probe: none; these calls are always available
//! Fallback: none

use std::io::{PipeReader, PipeWriter, Read, Write, pipe};
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::process::Command;

use model::Pid;

use crate::error::{Errno, Error, Result};

/// The other ends of the pipes of a child that waits.
#[derive(Debug)]
pub struct HeldStart {
    pid: PipeReader,
    go: PipeWriter,
}

/// Makes the child of a command wait before it executes the program. `Command::spawn` returns only after
/// [`HeldStart::start`], so it must run on another thread.
pub fn hold_before_exec(command: &mut Command) -> Result<HeldStart> {
    let new = || pipe().map_err(|error| Error::new("make a pipe", error));
    let ((pid, pid_writer), (go_reader, go)) = (new()?, new()?);
    let others = [pid.as_raw_fd(), go.as_raw_fd()];
    let prepare = move || {
        // SAFETY: the calls take numbers, and the addresses of variables that outlive them. In the child, the two closed
        // descriptors have no other owner that runs before execve(2).
        unsafe {
            // Otherwise the child would wait for an end of file that its own descriptor prevents.
            for number in others {
                let _ = libc::close(number);
            }
            let own = libc::getpid();
            let length = size_of_val(&own);
            let written = libc::write(pid_writer.as_raw_fd(), (&raw const own).cast(), length);
            let mut byte = 0_u8;
            let read = libc::read(go_reader.as_raw_fd(), (&raw mut byte).cast(), 1);
            if written == length as isize && read == 1 {
                return Ok(());
            }
        }
        Err(std::io::Error::from_raw_os_error(libc::ECANCELED))
    };
    // SAFETY: between fork and exec, the closure makes system calls only. The closure takes no lock and allocates nothing.
    unsafe { command.pre_exec(prepare) };
    Ok(HeldStart { pid, go })
}

impl HeldStart {
    /// Waits until the child exists, and returns its pid.
    ///
    /// # Errors
    ///
    /// The child was not created, or has ended.
    pub fn pid(&mut self) -> Result<Pid> {
        let mut bytes = [0; 4];
        let outcome = self.pid.read_exact(&mut bytes);
        outcome.map_err(|_| Error::new("wait for the child", Errno(libc::ECHILD)))?;
        Ok(Pid(i32::from_ne_bytes(bytes)))
    }

    /// Makes the child execute the program.
    pub fn start(mut self) -> Result<()> {
        self.go.write_all(&[1]).map_err(|error| Error::new("resume the child", error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(words: &[&str]) -> (HeldStart, std::thread::JoinHandle<std::io::Result<std::process::Child>>) {
        let mut command = Command::new(words[0]);
        command.args(&words[1..]);
        let held = hold_before_exec(&mut command).unwrap();
        (held, std::thread::spawn(move || command.spawn()))
    }

    #[test]
    fn a_program_starts_only_when_it_may() {
        let (mut held, starter) = held(&["true"]);
        let pid = held.pid().unwrap();
        let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap();
        assert_ne!(name.trim(), "true");
        held.start().unwrap();
        let mut child = starter.join().unwrap().unwrap();
        assert_eq!(child.id() as i32, pid.get());
        assert!(child.wait().unwrap().success());
    }

    #[test]
    fn a_program_without_permission_to_start_is_not_started() {
        let (mut held, starter) = held(&["true"]);
        held.pid().unwrap();
        drop(held);
        assert_eq!(starter.join().unwrap().unwrap_err().raw_os_error(), Some(libc::ECANCELED));
    }
}
