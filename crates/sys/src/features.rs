//! The features that this kernel provides to this user.
//!
//! Owns: the registry of kernel features with their probes.
//! Does not: decide what to do without a feature. The code that uses the feature falls back or refuses.

use std::path::Path;

use crate::error::{Errno, Result};
pub use crate::feature::{Feature, enabled};
use crate::probes;

/// The effect of a missing feature.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Need {
    /// Without the feature, no checkpoint or restore works.
    Required,
    /// Without the feature, some operation is slower or refused; `purpose` names it.
    Optional,
}

/// One entry of the registry.
#[derive(Clone, Copy, Debug)]
pub struct FeatureEntry {
    /// The feature.
    pub feature: Feature,
    /// The effect of a missing feature.
    pub need: Need,
    /// What the feature is used for, and what happens without it.
    pub purpose: &'static str,
    /// What the operator can do to get the feature.
    pub fix: &'static str,
    /// Tries the feature, and returns a description of the result. If the probe needs files, it creates them
    /// in the given directory.
    pub probe: fn(&Path) -> Result<String>,
}

/// The advice if a seccomp filter forbids the system call.
const FILTERED: &str =
    "allow the call in the seccomp filter of this container or service: this kernel has it, and refused it";

impl FeatureEntry {
    /// Returns the name in `undying doctor`.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        self.feature.name()
    }

    /// Returns the advice after the probe has failed with this error. A kernel without a system call returns
    /// ENOSYS. If a call that needs no privilege fails with EPERM or EACCES, a seccomp filter has refused the
    /// call.
    #[must_use]
    pub fn fix_after(&self, errno: Errno) -> &'static str {
        let needs_no_privilege = matches!(
            self.feature,
            Feature::ProcessMemory
                | Feature::Pidfd
                | Feature::Kcmp
                | Feature::PagemapScan
                | Feature::Cachestat
        );
        let is_refused = errno == Errno::EPERM || errno == Errno::EACCES;
        if needs_no_privilege && is_refused { FILTERED } else { self.fix }
    }
}

/// All features.
pub const REGISTRY: &[FeatureEntry] = &[
    FeatureEntry {
        feature: Feature::Ptrace,
        need: Need::Required,
        purpose: "stops and steers the subject",
        fix: "lift the seccomp filter or security module that forbids ptrace(2)",
        probe: probes::ptrace,
    },
    FeatureEntry {
        feature: Feature::ProcessMemory,
        need: Need::Required,
        purpose: "reads and writes the subject's memory",
        fix: "use a kernel with CONFIG_CROSS_MEMORY_ATTACH",
        probe: probes::process_memory,
    },
    FeatureEntry {
        feature: Feature::Pidfd,
        need: Need::Required,
        purpose: "duplicates the subject's descriptors",
        fix: "use Linux 5.6 or later",
        probe: probes::pidfd,
    },
    FeatureEntry {
        feature: Feature::Kcmp,
        need: Need::Required,
        purpose: "tells which descriptors share one description",
        fix: "use a kernel with CONFIG_KCMP",
        probe: probes::kcmp,
    },
    FeatureEntry {
        feature: Feature::ProcChildren,
        need: Need::Required,
        purpose: "finds the processes of the subject",
        fix: "use a kernel with CONFIG_PROC_CHILDREN, and mount /proc",
        probe: probes::proc_children,
    },
    FeatureEntry {
        feature: Feature::SetTid,
        need: Need::Required,
        purpose: "restores processes under their own numbers",
        fix: "run as root or with CAP_CHECKPOINT_RESTORE, on Linux 5.9 or later",
        probe: probes::set_tid,
    },
    FeatureEntry {
        feature: Feature::MapFiles,
        need: Need::Optional,
        purpose: "reaches memory that processes share; without it subjects that share memory are refused",
        fix: "run as root or with CAP_CHECKPOINT_RESTORE",
        probe: probes::map_files,
    },
    FeatureEntry {
        feature: Feature::TcpRepair,
        need: Need::Optional,
        purpose: "keeps TCP connections; without it subjects with established connections are refused",
        fix: "run as root or with CAP_NET_ADMIN",
        probe: probes::tcp_repair,
    },
    FeatureEntry {
        feature: Feature::PacketDrop,
        need: Need::Optional,
        purpose: "keeps the peers of a program connected while its sockets are replaced; without it a checkpoint that \
                  ends a program with connections fails",
        fix: "use a kernel with CONFIG_NF_TABLES_INET, and run as root or with CAP_NET_ADMIN",
        probe: probes::packet_drop,
    },
    FeatureEntry {
        feature: Feature::PacketHold,
        need: Need::Optional,
        purpose: "holds what a component sends until it is in a checkpoint; without it `output = \"committed\"` is refused",
        fix: "use Linux 5.12 or later with CONFIG_NETFILTER_NETLINK_QUEUE and CONFIG_NFT_QUEUE, and run as root or with \
              CAP_NET_ADMIN",
        probe: probes::packet_hold,
    },
    FeatureEntry {
        feature: Feature::PtraceScope,
        need: Need::Optional,
        purpose: "checkpoints programs that undying has not started; without it only those under `undying run`",
        fix: "run as root or with CAP_SYS_PTRACE, or set kernel.yama.ptrace_scope to 0",
        probe: probes::ptrace_scope,
    },
    FeatureEntry {
        feature: Feature::PagemapScan,
        need: Need::Optional,
        purpose: "finds pages by ranges; without it every page entry is read (slower)",
        fix: "use Linux 6.7 or later",
        probe: probes::pagemap_scan,
    },
    FeatureEntry {
        feature: Feature::UserfaultfdAsync,
        need: Need::Optional,
        purpose: "finds dirty pages without stopping writers; without it soft-dirty bits, or full copies",
        fix: "use Linux 6.7 or later with CONFIG_USERFAULTFD and CONFIG_PTE_MARKER_UFFD_WP",
        probe: probes::userfaultfd_async,
    },
    FeatureEntry {
        feature: Feature::UserfaultfdMissing,
        need: Need::Optional,
        purpose: "lets a program run before its memory is there, and fills memory faster; without it `restore --lazy` is \
              refused",
        fix: "use a kernel with CONFIG_USERFAULTFD, and run as root or with CAP_SYS_PTRACE",
        probe: probes::userfaultfd_missing,
    },
    FeatureEntry {
        feature: Feature::SoftDirty,
        need: Need::Optional,
        purpose: "finds dirty pages on kernels before 6.7; without it full copies",
        fix: "use a kernel with CONFIG_MEM_SOFT_DIRTY, or Linux 6.7 or later",
        probe: probes::soft_dirty,
    },
    FeatureEntry {
        feature: Feature::IoUring,
        need: Need::Optional,
        purpose: "keeps several writes of an image in flight, and reads live TCP connections in one call; without it one by one",
        fix: "use a kernel with CONFIG_IO_URING, and set kernel.io_uring_disabled to 0",
        probe: probes::io_uring,
    },
    FeatureEntry {
        feature: Feature::DirectIo,
        need: Need::Optional,
        purpose: "writes images past the page cache; without it through the cache with fdatasync",
        fix: "put the store on a file system that takes O_DIRECT (ext4, XFS, Btrfs …)",
        probe: probes::direct_io,
    },
    FeatureEntry {
        feature: Feature::Cachestat,
        need: Need::Optional,
        purpose: "reads images past the page cache where they are not in it; without it through the cache",
        fix: "use Linux 6.5 or later",
        probe: probes::cachestat,
    },
    FeatureEntry {
        feature: Feature::TaskReader,
        need: Need::Optional,
        purpose: "tells what has not changed in a thread since the last checkpoint; without it each thread is asked in \
                  each pause (slower)",
        fix: "use Linux 6.13 or later with CONFIG_DEBUG_INFO_BTF, and run as root or with CAP_BPF and CAP_PERFMON",
        probe: probes::task_reader,
    },
    FeatureEntry {
        feature: Feature::SendObserver,
        need: Need::Optional,
        purpose: "tells whether a program has sent something after it has synced a file; without it the program is taken to \
                  have sent something",
        fix: "use Linux 6.13 or later with CONFIG_DEBUG_INFO_BTF, and run as root or with CAP_BPF and CAP_PERFMON",
        probe: probes::send_observer,
    },
    FeatureEntry {
        feature: Feature::DirtyTracker,
        need: Need::Optional,
        purpose: "tells which pages of large files a program changes through shared mappings; without it no checkpoint is \
                  exact while a program maps more than 8 MiB of files for writing",
        fix: "use Linux 6.8 or later with CONFIG_DEBUG_INFO_BTF, and run as root or with CAP_BPF and CAP_PERFMON",
        probe: probes::dirty_tracker,
    },
    FeatureEntry {
        feature: Feature::ProcessEvents,
        need: Need::Optional,
        purpose: "tells when a child of the program dies; without it `run --restart-on child-signal` is refused",
        fix: "use a kernel with CONFIG_PROC_EVENTS, and run as root or with CAP_NET_ADMIN, outside of containers",
        probe: probes::process_events,
    },
    FeatureEntry {
        feature: Feature::FileNotify,
        need: Need::Optional,
        purpose: "sees calls that change files before they happen; without it files are not rolled back with the program",
        fix: "use Linux 5.5 or later with CONFIG_SECCOMP_FILTER, and run as root or with CAP_SYS_ADMIN, outside of any \
              sandbox",
        probe: probes::file_notify,
    },
    FeatureEntry {
        feature: Feature::FileContent,
        need: Need::Optional,
        purpose: "sees content of files before it changes; without it files whose content is overwritten are not rolled back \
                  with the program",
        fix: "use Linux 6.14 or later with CONFIG_FANOTIFY_ACCESS_PERMISSIONS, run as root or with CAP_SYS_ADMIN, and \
              keep the files on ext4, XFS or Btrfs",
        probe: probes::file_content,
    },
];

/// Returns the entry of a feature.
#[must_use]
pub fn entry(feature: Feature) -> &'static FeatureEntry {
    REGISTRY.iter().find(|entry| entry.feature == feature).expect("every feature has a row")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_every_feature_has_a_fix() {
        for (index, entry) in REGISTRY.iter().enumerate() {
            assert!(REGISTRY[..index].iter().all(|other| other.name() != entry.name()), "{}", entry.name());
            assert!(!entry.fix.is_empty() && !entry.purpose.is_empty(), "{}", entry.name());
        }
    }

    #[test]
    fn the_fix_fits_the_errno() {
        let cachestat = entry(Feature::Cachestat);
        assert_eq!(cachestat.fix_after(Errno::ENOSYS), cachestat.fix);
        assert!(cachestat.fix_after(Errno::EPERM).contains("seccomp"));
        let set_tid = entry(Feature::SetTid);
        assert_eq!(set_tid.fix_after(Errno::EPERM), set_tid.fix);
    }

    #[test]
    fn a_probe_answers_or_names_what_failed() {
        for entry in REGISTRY {
            match (entry.probe)(&std::env::temp_dir()) {
                Ok(detail) => assert!(!detail.is_empty(), "{}", entry.name()),
                Err(error) => println!("unsupported: {}: {error}", entry.name()),
            }
        }
    }
}
