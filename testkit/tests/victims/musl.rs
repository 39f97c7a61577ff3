//! Tests with victims (test programs) that are statically linked to musl. They have no dynamic loader, no shared
//! object, and another allocator and thread implementation than glibc. Nevertheless they must be restorable.

use libtest_mimic::Trial;
use undying_testkit::{HarnessError, Library, Options, Victim};

use crate::common;

/// Victims whose state depends on the C library: threads, the heap, signals, the vDSO and the state of each thread.
const VICTIMS: &[&str] = &[
    "fd_epoll",
    "fd_pipe",
    "fd_tcp",
    "memory_private_anonymous",
    "memory_private_file",
    "state_sigactions",
    "state_sigaltstack",
    "state_thread_name",
    "state_threads",
    "state_tid_address",
    "state_tree",
];

pub(crate) fn trials() -> Vec<Trial> {
    let names = VICTIMS.iter().map(|name| (*name).to_owned()).collect();
    common::trials("musl", names, restore_twice)
}

fn restore_twice(name: &str) -> Result<(), HarnessError> {
    let options = Options { c_library: Library::StaticMusl, ..Options::default() };
    common::restore_twice(Victim::start_with(name, options)?)
}
