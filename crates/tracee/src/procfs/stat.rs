//! Reads `/proc/PID/stat` (state, relations, layout of the address space) and `statm` (size of the address
//! space).
//!
//! Owns: the parsers of both files.
//! Does not: interpret the exit code.

use model::{Address, PageCount, Pid, ProcessKey, StartTime, Tid};
use sys::Result;

use super::files::{malformed, parsed, path_of_thread};
use super::kept::KeptFiles;

/// The name of the file of a process or a thread.
const FILE: &str = "stat";

/// The required fields of `/proc/PID/stat`, with the names of proc_pid_stat(5).
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are those of proc_pid_stat(5)")]
pub struct Stat {
    pub pid: Pid,
    pub comm: String,
    pub state: char,
    pub ppid: Pid,
    pub pgrp: Pid,
    pub session: Pid,
    pub tty_nr: i32,
    pub tpgid: i32,
    pub flags: u64,
    pub nice: i32,
    pub num_threads: usize,
    pub starttime: StartTime,
    pub startcode: Address,
    pub endcode: Address,
    pub startstack: Address,
    pub exit_signal: i32,
    pub processor: i32,
    pub start_data: Address,
    pub end_data: Address,
    pub start_brk: Address,
    pub arg_start: Address,
    pub arg_end: Address,
    pub env_start: Address,
    pub env_end: Address,
    pub exit_code: i32,
}

impl Stat {
    /// Reports whether the process has ended and was not reaped yet.
    #[must_use]
    pub fn is_zombie(&self) -> bool {
        matches!(self.state, 'Z' | 'X')
    }

    /// Reports whether the task is ending or has ended: PF_EXITING, PF_POSTCOREDUMP, PF_DUMPCORE in
    /// `linux/sched.h`.
    #[must_use]
    pub fn is_ending(&self) -> bool {
        const ENDING: u64 = 0x4 | 0x8 | 0x200;
        self.is_zombie() || self.flags & ENDING != 0
    }

    /// Reports whether this is a kernel thread, which runs no program: PF_KTHREAD in `linux/sched.h`.
    #[must_use]
    pub fn is_kernel_thread(&self) -> bool {
        const PF_KTHREAD: u64 = 0x0020_0000;
        self.flags & PF_KTHREAD != 0
    }

    /// Reports whether the process was created by fork(2) and has not called execve(2) since: PF_FORKNOEXEC in
    /// `linux/sched.h`. Such a process can share pages with its parent, copy-on-write.
    #[must_use]
    pub fn is_forked(&self) -> bool {
        const PF_FORKNOEXEC: u64 = 0x40;
        self.flags & PF_FORKNOEXEC != 0
    }

    /// Reports whether two readings may belong to the same execution of a program. An exec(2) normally
    /// changes the layout of the address space. Without address space randomisation, the layout may stay the
    /// same.
    #[must_use]
    pub fn may_be_program_of(&self, other: &Self) -> bool {
        let layout = |stat: &Self| (stat.startcode, stat.startstack, stat.start_brk, stat.arg_start);
        self.key() == other.key() && layout(self) == layout(other)
    }

    /// Returns pid and start time, which together identify the process.
    #[must_use]
    pub fn key(&self) -> ProcessKey {
        ProcessKey { pid: self.pid, start: self.starttime }
    }
}

/// Reads and parses `/proc/PID/stat`.
pub fn stat(pid: Pid) -> Result<Stat> {
    parsed(&format!("/proc/{pid}/stat"), parse)
}

/// Reads and parses `/proc/PID/task/TID/stat`.
pub fn thread_stat(pid: Pid, tid: Tid) -> Result<Stat> {
    parsed(&format!("/proc/{pid}/task/{tid}/stat"), parse)
}

/// Reads like [`stat`], through the files that are kept open.
pub fn stat_through(files: &mut KeptFiles, pid: Pid) -> Result<Stat> {
    let text = files.read(pid, pid.leader(), FILE)?;
    std::str::from_utf8(text)
        .map_or_else(|_| parse(&String::from_utf8_lossy(text)), parse)
        .ok_or_else(|| malformed(&path_of_thread(pid, pid.leader(), FILE)))
}

/// Reads pid and start time of a process, which together identify it.
pub fn key(pid: Pid) -> Result<ProcessKey> {
    stat(pid).map(|stat| stat.key())
}

fn parse(text: &str) -> Option<Stat> {
    let (head, tail) = text.rsplit_once(')')?;
    let (pid, comm) = head.split_once('(')?;
    let fields: Vec<&str> = tail.split_whitespace().collect();
    // Field 3 in the manual page is the first after the name.
    let word = |number: usize| fields.get(number - 3).copied();
    let signed = |number: usize| word(number)?.parse::<i32>().ok();
    let wide = |number: usize| word(number)?.parse::<u64>().ok();
    let address = |number: usize| wide(number).map(Address);
    Some(Stat {
        pid: Pid(pid.trim().parse().ok()?),
        comm: comm.to_owned(),
        state: word(3)?.chars().next()?,
        ppid: Pid(signed(4)?),
        pgrp: Pid(signed(5)?),
        session: Pid(signed(6)?),
        tty_nr: signed(7)?,
        tpgid: signed(8)?,
        flags: wide(9)?,
        nice: signed(19)?,
        num_threads: word(20)?.parse().ok()?,
        starttime: StartTime(wide(22)?),
        startcode: address(26)?,
        endcode: address(27)?,
        startstack: address(28)?,
        exit_signal: signed(38)?,
        processor: signed(39)?,
        start_data: address(45)?,
        end_data: address(46)?,
        start_brk: address(47)?,
        arg_start: address(48)?,
        arg_end: address(49)?,
        env_start: address(50)?,
        env_end: address(51)?,
        exit_code: signed(52)?,
    })
}

/// Returns the number of resident pages that belong to no file and no shared memory, from the fast counters
/// of the kernel.
pub fn own_pages(pid: Pid) -> Result<PageCount> {
    parsed(&format!("/proc/{pid}/statm"), |text| {
        let word = |index: usize| text.split(' ').nth(index)?.parse::<u64>().ok();
        let (resident, shared) = (word(1)?, word(2)?);
        Some(PageCount(resident.saturating_sub(shared)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_brackets_and_spaces_does_not_shift_the_fields() {
        let numbers: Vec<String> = (4..=52).map(|number| number.to_string()).collect();
        let text = format!("77 (a) b (c)) S {}", numbers.join(" "));
        let stat = parse(&text).unwrap();
        assert_eq!(stat.pid, Pid(77));
        assert_eq!(stat.comm, "a) b (c)");
        assert_eq!((stat.ppid, stat.starttime), (Pid(4), StartTime(22)));
        assert_eq!(stat.env_end, Address(51));
        assert_eq!(stat.num_threads, 20);
        assert_eq!(parse("77 (a"), None);
    }

    #[test]
    fn our_own_entry_is_understood() {
        let pid = Pid(std::process::id() as i32);
        assert_eq!(stat(pid).unwrap().pid, pid);
    }
}
