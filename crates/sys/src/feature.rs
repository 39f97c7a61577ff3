//! Kernel features by name, and the switch that forces one off.
//!
//! Owns: the names, and the variable `UNDYING_FEATURES_OFF`, which has some of them, comma-separated.
//! Invariants: a feature that is forced off is never used.
//! Does not: probe; `features` has a probe of each.
//!
//! Man page: none
//! Since: always
//! Probe: none needed
//! Fallback: none needed

use std::sync::OnceLock;

/// A kernel feature.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Feature {
    /// Stopping and steering other processes.
    Ptrace,
    /// Reading and writing their memory in bulk.
    ProcessMemory,
    /// Handles on processes and duplicates of their descriptors.
    Pidfd,
    /// Telling shared descriptions from equal ones.
    Kcmp,
    /// Listing the children of a process.
    ProcChildren,
    /// Processes with a chosen number.
    SetTid,
    /// The links to what areas map.
    MapFiles,
    /// Re-creating TCP connections.
    TcpRepair,
    /// Holding packets that a program sends.
    PacketHold,
    /// The PAGEMAP_SCAN request.
    PagemapScan,
    /// Write protection that the kernel lifts and remembers by itself.
    UserfaultfdAsync,
    /// Write protection that a handler lifts.
    UserfaultfdSync,
    /// Filling pages when they are first used.
    UserfaultfdMissing,
    /// Bits in the page map that tell written pages.
    SoftDirty,
    /// io_uring for writing images.
    IoUring,
    /// O_DIRECT on the store's file system.
    DirectIo,
    /// Telling how much of a file is in the page cache.
    Cachestat,
    /// Tracing processes that are no children.
    PtraceScope,
    /// Reading fields of the kernel's structures of a thread.
    TaskReader,
    /// Telling the starts and the deaths of processes.
    ProcessEvents,
    /// Telling of calls that change files, before they happen.
    FileNotify,
    /// Telling of changes of a file's content, before they happen.
    FileContent,
}

impl Feature {
    /// Its name in `doctor` and in `UNDYING_FEATURES_OFF`.
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
            Self::PacketHold => "packet-hold",
            Self::PtraceScope => "ptrace-scope",
            Self::PagemapScan => "pagemap-scan",
            Self::UserfaultfdAsync => "userfaultfd-async",
            Self::UserfaultfdSync => "userfaultfd-sync",
            Self::UserfaultfdMissing => "userfaultfd-missing",
            Self::SoftDirty => "soft-dirty",
            Self::IoUring => "io-uring",
            Self::DirectIo => "direct-io",
            Self::Cachestat => "cachestat",
            Self::TaskReader => "task-reader",
            Self::ProcessEvents => "process-events",
            Self::FileNotify => "file-notify",
            Self::FileContent => "file-content",
        }
    }
}

/// Whether a feature may be used: it is not forced off.
#[must_use]
pub fn enabled(feature: Feature) -> bool {
    static OFF: OnceLock<String> = OnceLock::new();
    let off = OFF.get_or_init(|| std::env::var("UNDYING_FEATURES_OFF").unwrap_or_default());
    off.split(',').all(|name| name.trim() != feature.name())
}
