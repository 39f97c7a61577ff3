//! A lock for tests that share state of the machine.
//!
//! Owns: the lock on the test program.
//! Does not: exclude other test programs.

use std::fs::File;

/// Waits until no other test of this test program has the lock. Tests can run in one process or in several processes.
/// The lock ends when the result is dropped.
///
/// # Panics
///
/// Panics if the test program cannot be opened or locked.
#[must_use]
pub fn alone() -> File {
    let program = std::env::current_exe().and_then(File::open).expect("a test can read its program");
    program.lock().expect("the file system has locks");
    program
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_test_at_a_time_has_the_lock() {
        let first = alone();
        let program = File::open(std::env::current_exe().unwrap()).unwrap();
        assert!(program.try_lock().is_err());
        drop(first);
        program.lock().unwrap();
    }
}
