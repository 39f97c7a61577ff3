//! What a program that is about to be executed becomes first: leader of a session, another user; what it gets.
//!
//! Owns: setsid(2), dup3(2), setgroups(2), setresgid(2), setresuid(2) between fork and exec.
//! Invariants: groups go before the user, since only a privileged process may change them; a call that fails ends the
//! start.
//! Does not: look names up.
//!
//! Man page: setsid(2), setgroups(2), setresuid(2)
//! Since: Linux 2.2
//! Probe: none, they are never missing
//! Fallback: none

use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

use model::Fd;

use crate::error::Errno;

/// A user, as the kernel knows one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct User {
    /// The user.
    pub id: u32,
    /// The primary group.
    pub group: u32,
    /// Supplementary groups.
    pub groups: Vec<u32>,
}

/// Has a command begin a session of its own: no terminal, and none of the signals that one sends.
pub fn start_in_session(command: &mut Command) -> &mut Command {
    // SAFETY: between fork and exec it makes one system call on no memory.
    unsafe { command.pre_exec(|| check(libc::syscall(libc::SYS_setsid))) }
}

/// Has a command run as another user. What is prepared before this call happens with the privileges of this process,
/// what is prepared later without them.
pub fn start_as(command: &mut Command, user: User) -> &mut Command {
    let prepare = move || {
        let User { id, group, groups } = &user;
        // SAFETY: the kernel reads as many groups as the live slice has; the others take numbers. The raw calls change
        // this thread only, which is the only one of a process between fork and exec.
        unsafe {
            check(libc::syscall(libc::SYS_setgroups, groups.len(), groups.as_ptr()))?;
            check(libc::syscall(libc::SYS_setresgid, *group, *group, *group))?;
            check(libc::syscall(libc::SYS_setresuid, *id, *id, *id))
        }
    };
    // SAFETY: between fork and exec it makes system calls only; it takes no lock and allocates nothing.
    unsafe { command.pre_exec(prepare) }
}

/// Has a command get a descriptor under a number of its own, whatever was there. It is closed here with the command.
pub fn start_with_descriptor(command: &mut Command, number: Fd, file: OwnedFd) -> &mut Command {
    let prepare = move || {
        let own = file.as_raw_fd();
        // SAFETY: plain numbers, in a process that executes another program next. With equal numbers dup3(2) fails,
        // and the flag that closes on exec is cleared instead.
        unsafe {
            if own == number.get() {
                check(libc::syscall(libc::SYS_fcntl, own, libc::F_SETFD, 0))
            } else {
                check(libc::syscall(libc::SYS_dup3, own, number.get(), 0))
            }
        }
    };
    // SAFETY: between fork and exec it makes one system call; it takes no lock and allocates nothing.
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
