//! Tests with victims (test programs) that are statically linked to musl. They have no dynamic loader, no shared
//! object, and another allocator and thread implementation than glibc. Nevertheless they must be restorable.

mod common;

use std::process::ExitCode;

use undying_testkit::{HarnessError, Library, Options, Undying, Verdict, Victim};

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

fn main() -> ExitCode {
    let names = VICTIMS.iter().map(|name| (*name).to_owned()).collect();
    common::run(common::trials("musl", names, restore_twice))
}

fn restore_twice(name: &str) -> Result<(), HarnessError> {
    let undying = Undying::find()?;
    let options = Options { c_library: Library::StaticMusl, ..Options::default() };
    let mut victim = Victim::start_with(name, options)?;
    for _life in 0..2 {
        common::let_it_work(name);
        victim.checkpoint_and_kill(&undying)?;
        victim.restore(&undying)?;
        let image = victim.image();
        std::fs::remove_dir_all(&image).map_err(|source| HarnessError::File {
            operation: "remove",
            path: image.clone(),
            source,
        })?;
    }
    match victim.judge()? {
        Verdict::Pass => Ok(()),
        Verdict::Fail(reason) => Err(common::wrong(name, &reason)),
    }
}
