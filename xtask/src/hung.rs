//! Test binaries that hang.
//!
//! Owns: the search for test binaries among the processes of `cargo test`, and the kill of a test binary.
//! Invariants: a compiler is never killed, even if it prints nothing for a long time.
//! Does not: define the time limit; `ci` does.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Kills the test binaries that cargo currently runs, and returns their paths.
pub(crate) fn kill_tests_of(cargo: u32) -> Vec<PathBuf> {
    let mut killed = Vec::new();
    for child in children_of(cargo) {
        let Ok(program) = fs::read_link(format!("/proc/{child}/exe")) else { continue };
        let ended = is_test(&program) && Command::new("kill").args(["-KILL", &child]).status().is_ok();
        if ended {
            killed.push(program);
        }
    }
    killed
}

/// Returns the pids of the children of all threads of a process, as decimal numbers.
fn children_of(pid: u32) -> Vec<String> {
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else { return Vec::new() };
    threads
        .filter_map(|thread| fs::read_to_string(thread.ok()?.path().join("children")).ok())
        .flat_map(|list| list.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
        .collect()
}

/// Reports whether a program is a test binary. Only test binaries are executed directly from a directory `deps`.
fn is_test(program: &Path) -> bool {
    program.parent().and_then(Path::file_name).is_some_and(|folder| folder == "deps")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_lies_in_deps_is_a_test() {
        assert!(is_test(Path::new("/a/target/debug/deps/files-0123456789abcdef")));
        assert!(!is_test(Path::new("/a/toolchains/stable/bin/rustc")));
        assert!(!is_test(Path::new("/a/target/debug/build/prost-0123456789abcdef/build-script-build")));
    }

    #[test]
    fn the_children_of_every_thread_are_found() {
        let mut child = Command::new("sleep").arg("60").spawn().expect("start sleep");
        let found = children_of(std::process::id());
        assert!(found.contains(&child.id().to_string()), "{found:?}");
        assert_eq!(kill_tests_of(std::process::id()), Vec::<PathBuf>::new(), "sleep is no test");
        child.kill().and_then(|()| child.wait()).expect("end sleep");
    }
}
