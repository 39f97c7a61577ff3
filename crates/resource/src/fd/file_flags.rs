//! Test: every fcntl(2) request and posix_fadvise(2) flag in the kernel's headers has a verdict.
//!
//! Owns: the table of verdicts. A verdict states whether the state behind a name is restored, refused or lost.
//! Does not: save state; the module `envelope` and the descriptor kinds do.

use crate::support::kernel_headers::Verdict::{Action, Derived, Ignored, Kept, Lost, Same, Value};
use crate::support::kernel_headers::{Verdict, definitions, judge};

const FILE_OWNER: &str = "crates/sys/src/file_owner.rs";
const FILE_LOCK: &str = "crates/sys/src/file_lock.rs";

/// Verdicts for the requests and flags up to Linux 6.18.
const VERDICTS: &[(&str, Verdict)] = &[
    ("F_DUPFD*", Action),
    ("F_CREATED_QUERY", Derived),
    ("F_GETFD", Same("FD_CLOEXEC")),
    ("F_SETFD", Same("FD_CLOEXEC")),
    ("FD_CLOEXEC", Kept("crates/resource/src/fd/pidfd.rs")),
    ("F_GETFL", Same("F_SETFL")),
    ("F_SETFL", Kept(FILE_OWNER)),
    ("F_GETLK*", Same("F_SETLK")),
    ("F_SETLK*", Kept("testkit/victims/state_record_locks.c")),
    ("F_CANCELLK", Ignored),
    ("F_OFD_GETLK", Same("F_OFD_SETLK")),
    ("F_OFD_SETLK*", Kept(FILE_LOCK)),
    ("F_SETOWN*", Kept(FILE_OWNER)),
    ("F_GETOWN", Same("F_SETOWN")),
    ("F_GETOWN_EX", Same("F_SETOWN")),
    // A restored process sets the owner after its user ids are restored, so the kernel stores the same user ids.
    ("F_GETOWNER_UIDS", Same("F_SETOWN")),
    ("F_OWNER_*", Value),
    ("F_SETSIG", Kept(FILE_OWNER)),
    ("F_GETSIG", Same("F_SETSIG")),
    ("F_SETLEASE", Kept(FILE_LOCK)),
    ("F_GETLEASE", Same("F_SETLEASE")),
    ("F_NOTIFY", Lost("`F_NOTIFY`")),
    ("F_SETPIPE_SZ", Kept("testkit/victims/fd_pipe.c")),
    ("F_GETPIPE_SZ", Same("F_SETPIPE_SZ")),
    ("F_ADD_SEALS", Kept("testkit/victims/fd_memfd.c")),
    ("F_GET_SEALS", Same("F_ADD_SEALS")),
    ("F_SEAL_*", Value),
    // These hints are state of the file, not of the description. Newer kernels lack the requests for a description.
    ("F_GET_RW_HINT", Derived),
    ("F_SET_RW_HINT", Derived),
    ("F_GET_FILE_RW_HINT", Ignored),
    ("F_SET_FILE_RW_HINT", Ignored),
    ("F_GETDELEG", Same("F_SETDELEG")),
    ("F_SETDELEG", Same("F_SETLEASE")),
    ("F_RDLCK", Value),
    ("F_WRLCK", Value),
    ("F_UNLCK", Value),
    ("F_EXLCK", Value),
    ("F_SHLCK", Value),
    ("F_LINUX_SPECIFIC_BASE", Value),
    ("DN_*", Value),
    ("LOCK_*", Value),
    ("POSIX_FADV_WILLNEED", Action),
    ("POSIX_FADV_DONTNEED", Action),
    ("POSIX_FADV_*", Lost("`posix_fadvise`")),
];

#[test]
fn every_request_of_fcntl_has_a_verdict() {
    let prefixes = ["F_", "FD_", "DN_", "LOCK_", "POSIX_FADV_"];
    let headers = ["asm-generic/fcntl.h", "linux/fcntl.h", "linux/fadvise.h"];
    let found: Vec<_> =
        headers.iter().filter_map(|header| definitions(header, &prefixes)).flatten().collect();
    if found.is_empty() {
        return println!("unsupported: kernel headers");
    }
    judge(found.iter().map(|one| one.name.as_str()), |_| false, VERDICTS);
}
