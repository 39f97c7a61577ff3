//! The names of kernel features, and the switch that forces features off.
//!
//! Owns: the names, and the environment variable `UNDYING_FEATURES_OFF`. Its value is a comma-separated list
//! of names.
//! Invariants: a feature that is forced off is never used.
//! Does not: probe features; `features` has a probe for each.
//!
//! Man page: none
//! Since: always
//! Probe: none needed
//! Fallback: none needed

use std::sync::OnceLock;

/// A kernel feature.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Feature {
    /// Stopping and controlling other processes.
    Ptrace,
    /// Reading and writing large parts of the memory of other processes.
    ProcessMemory,
    /// Opening pidfds of processes, and duplicating descriptors of processes.
    Pidfd,
    /// Detecting whether two descriptors share one open file description.
    Kcmp,
    /// Listing the children of a process.
    ProcChildren,
    /// Creating processes with chosen pids.
    SetTid,
    /// The links of `/proc/PID/map_files` to mapped objects.
    MapFiles,
    /// Restoring TCP connections.
    TcpRepair,
    /// Dropping the packets of connections whose sockets are being replaced.
    PacketDrop,
    /// Holding packets that a program sends.
    PacketHold,
    /// The PAGEMAP_SCAN request.
    PagemapScan,
    /// Write protection of pages that the kernel itself lifts and records.
    UserfaultfdAsync,
    /// Filling pages at their first use.
    UserfaultfdMissing,
    /// Bits in `/proc/PID/pagemap` that mark written pages.
    SoftDirty,
    /// io_uring for writing images.
    IoUring,
    /// O_DIRECT on the file system of the store.
    DirectIo,
    /// Reading how much of a file is in the page cache.
    Cachestat,
    /// Tracing processes that are not children of this process.
    PtraceScope,
    /// Reading fields of the kernel structures of a thread.
    TaskReader,
    /// Observing when process trees send data over sockets.
    SendObserver,
    /// Reports of pages of files that turn dirty.
    DirtyTracker,
    /// Reports of the start and the death of processes.
    ProcessEvents,
    /// Reports of system calls that change files, before the change.
    FileNotify,
    /// Reports of changes to the content of a file, before the change.
    FileContent,
}

impl Feature {
    /// Returns the name in `undying doctor` and in `UNDYING_FEATURES_OFF`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ptrace => "ptrace",
            Self::ProcessMemory => "process-memory",
            Self::Pidfd => "pidfd",
            Self::Kcmp => "kcmp",
            Self::ProcChildren => "proc-children",
            Self::SetTid => "set-tid",
            Self::MapFiles => "map-files",
            Self::TcpRepair => "tcp-repair",
            Self::PacketDrop => "packet-drop",
            Self::PacketHold => "packet-hold",
            Self::PtraceScope => "ptrace-scope",
            Self::PagemapScan => "pagemap-scan",
            Self::UserfaultfdAsync => "userfaultfd-async",
            Self::UserfaultfdMissing => "userfaultfd-missing",
            Self::SoftDirty => "soft-dirty",
            Self::IoUring => "io-uring",
            Self::DirectIo => "direct-io",
            Self::Cachestat => "cachestat",
            Self::TaskReader => "task-reader",
            Self::SendObserver => "send-observer",
            Self::DirtyTracker => "dirty-tracker",
            Self::ProcessEvents => "process-events",
            Self::FileNotify => "file-notify",
            Self::FileContent => "file-content",
        }
    }
}

/// Reports whether a feature may be used, which means that it is not forced off.
#[must_use]
pub fn enabled(feature: Feature) -> bool {
    static OFF: OnceLock<String> = OnceLock::new();
    let off = OFF.get_or_init(|| std::env::var("UNDYING_FEATURES_OFF").unwrap_or_default());
    off.split(',').all(|name| name.trim() != feature.name())
}
