//! Identifiers of kernel objects: processes, threads, file descriptors, signals.
//!
//! Owns: one newtype for each kind of number, so that numbers of different kinds cannot be confused.
//! Does not: check that the object exists.

use std::fmt;

macro_rules! number {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
        pub struct $name(pub $inner);

        impl $name {
            /// Returns the plain integer, for a system call, a record or a path.
            #[must_use]
            pub const fn get(self) -> $inner {
                self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

number! {
    /// A process ID (thread group ID) in the pid namespace of this program.
    Pid(i32)
}
number! {
    /// A thread ID in the pid namespace of this program.
    Tid(i32)
}
number! {
    /// A file descriptor number in the table of a subject's process, never in the table of this program.
    Fd(i32)
}
number! {
    /// A signal number, from 1 to 64.
    Signal(i32)
}
number! {
    /// The start time of a process in clock ticks since boot. Start time and pid together identify a process uniquely.
    StartTime(u64)
}
number! {
    /// The sequence number of a checkpoint of one subject (protected program). Each checkpoint increases the number by
    /// one.
    Sequence(u64)
}
number! {
    /// An inode number, unique within its file system.
    Inode(u64)
}
number! {
    /// The number of an open file description of a subject, unique within one image.
    DescriptionId(u32)
}

impl Pid {
    /// Returns the tid of the thread group leader, which is equal to the pid.
    #[must_use]
    pub const fn leader(self) -> Tid {
        Tid(self.0)
    }
}

/// The identity of a process: a later process with the same pid has another start time.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ProcessKey {
    /// The pid.
    pub pid: Pid,
    /// The start time.
    pub start: StartTime,
}

impl fmt::Display for ProcessKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.pid)
    }
}
