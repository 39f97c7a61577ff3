//! Prepares a program between fork and exec: a session of its own, another user, a directory, or an additional
//! descriptor.
//!
//! Owns: setsid(2), dup3(2), chdir(2), setgroups(2), setresgid(2), setresuid(2) between fork and exec.
//! Invariants: the groups are changed before the user, because only a privileged process may change groups.
//! If a call fails, the program is not started.
//! Does not: look up the names of users and groups.
//!
//! Man page: setsid(2), setgroups(2), setresuid(2)
//! Since: Linux 2.2
//! Probe: none; these calls are always available
//! Fallback: none

use std::ffi::CString;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use model::Fd;

use crate::error::{Errno, Error, Result};

/// The ids of a user.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct User {
    /// The user id.
    pub id: u32,
    /// The primary group id.
    pub group: u32,
    /// The supplementary group ids.
    pub groups: Vec<u32>,
}

/// Makes the program of a command start as the leader of a new session. The program then has no controlling
/// terminal, and gets no signals from a terminal.
pub fn start_in_session(command: &mut Command) -> &mut Command {
    // SAFETY: between fork and exec, the closure makes one system call, which accesses no memory.
    unsafe { command.pre_exec(|| check(libc::syscall(libc::SYS_setsid))) }
}

/// Makes the program of a command run as another user.
///
/// `pre_exec` closures that were added to the command before this call run with the privileges of this
/// process. Closures that are added later run without these privileges.
pub fn start_as(command: &mut Command, user: User) -> &mut Command {
    let prepare = move || {
        let User { id, group, groups } = &user;
        // SAFETY: the kernel reads `groups.len()` numbers, which is the length of the live slice. The other
        // calls take numbers. The raw system calls change only this thread, which is the only thread of the
        // process between fork and exec.
        unsafe {
            check(libc::syscall(libc::SYS_setgroups, groups.len(), groups.as_ptr()))?;
            check(libc::syscall(libc::SYS_setresgid, *group, *group, *group))?;
            check(libc::syscall(libc::SYS_setresuid, *id, *id, *id))
        }
    };
    // SAFETY: between fork and exec, the closure makes only system calls. It takes no lock and allocates
    // nothing.
    unsafe { command.pre_exec(prepare) }
}

/// Makes the program of a command start in a directory. The directory is entered with the credentials that the child
/// has at this step: after [`start_as`], with the rights of the other user.
///
/// # Errors
///
/// EINVAL if the path contains a zero byte.
pub fn start_in<'a>(command: &'a mut Command, directory: &Path) -> Result<&'a mut Command> {
    let name = CString::new(directory.as_os_str().as_bytes())
        .map_err(|_| Error::path("change to the directory", directory, Errno::EINVAL))?;
    // SAFETY: between fork and exec, the closure makes one system call. The string ends in a zero byte, and the
    // closure owns the string.
    Ok(unsafe { command.pre_exec(move || check(libc::syscall(libc::SYS_chdir, name.as_ptr()))) })
}

/// Makes the program of a command inherit `file` as descriptor `number`. If the child already has a
/// descriptor with this number, `file` replaces it. This process closes `file` when the command is dropped.
pub fn start_with_descriptor(command: &mut Command, number: Fd, file: OwnedFd) -> &mut Command {
    let prepare = move || {
        let own = file.as_raw_fd();
        // SAFETY: the calls take plain numbers, in a process that executes another program next.
        unsafe {
            // If both numbers are equal, dup3(2) fails. Then only FD_CLOEXEC is cleared.
            if own == number.get() {
                check(libc::syscall(libc::SYS_fcntl, own, libc::F_SETFD, 0))
            } else {
                check(libc::syscall(libc::SYS_dup3, own, number.get(), 0))
            }
        }
    };
    // SAFETY: between fork and exec, the closure makes one system call. It takes no lock and allocates
    // nothing.
    unsafe { command.pre_exec(prepare) }
}

fn check(result: libc::c_long) -> std::io::Result<()> {
    if result < 0 { Err(std::io::Error::from_raw_os_error(Errno::last().0)) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn output(command: &mut Command) -> String {
        let output = command.output().expect("the program starts");
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }

    #[test]
    fn a_program_leads_its_session() {
        let mut command = Command::new("sh");
        command.args(["-c", "cut -d' ' -f1,5,6 /proc/$$/stat"]);
        let ids = output(start_in_session(&mut command));
        let ids: Vec<&str> = ids.split(' ').collect();
        assert!(ids.len() == 3 && ids[0] == ids[1] && ids[0] == ids[2], "{ids:?}");
    }

    #[test]
    fn a_program_runs_as_another_user_without_the_groups_of_this_one() {
        if !rustix::process::geteuid().is_root() {
            println!("unsupported: root");
            return;
        }
        let mut command = Command::new("grep");
        command.args(["-E", "^(Uid|Gid|Groups|CapEff)", "/proc/self/status"]);
        let user = User { id: 65_534, group: 65_533, groups: vec![7, 65_533] };
        let ids = output(start_as(&mut command, user)).replace('\t', " ");
        for line in
            ["Uid: 65534 65534 65534 65534", "Gid: 65533 65533 65533 65533", "CapEff: 0000000000000000"]
        {
            assert!(ids.contains(line), "{line} is missing in {ids}");
        }
        assert!(ids.contains("Groups: 7 65533"), "{ids}");
    }
}
