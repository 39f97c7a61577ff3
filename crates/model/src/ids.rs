//! Names of kernel objects: processes, threads, descriptors, signals.
//!
//! Owns: one newtype per kind of number, so that one cannot be passed for another.
//! Does not: check that the object exists.

use std::fmt;

macro_rules! number {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
        pub struct $name(pub $inner);

        impl $name {
            /// The bare number, for a system call, a record or a path.
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
    /// A process (thread group) number in the pid namespace of this program.
    Pid(i32)
}
number! {
    /// A thread number in the pid namespace of this program.
    Tid(i32)
}
number! {
    /// A file descriptor number in some process's table; never one of our own.
    Fd(i32)
}
number! {
    /// A signal number, 1 to 64.
    Signal(i32)
}
number! {
    /// When a process started, in clock ticks since boot; with the pid it names a process for ever.
    StartTime(u64)
}
number! {
    /// The number of a checkpoint of one subject, rising by one.
    Sequence(u64)
}
number! {
    /// An inode number; unique within its file system.
    Inode(u64)
}
number! {
    /// An open file description of a subject, numbered within one image.
    DescriptionId(u32)
}

impl Pid {
    /// The thread that carries the process's own number.
    #[must_use]
    pub const fn leader(self) -> Tid {
        Tid(self.0)
    }
}

/// A process that cannot be mistaken for a later one with the same number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ProcessKey {
    /// The process number.
    pub pid: Pid,
    /// When it started.
    pub start: StartTime,
}

impl fmt::Display for ProcessKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.pid)
    }
}
