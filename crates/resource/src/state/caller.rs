//! A stopped thread that makes system calls for state kinds.
//!
//! Owns: one interface for the two kinds of such threads: a thread of a process under construction (a stub), and a thread
//! of a living process.
//! Does not: decide which calls are made.

use model::{Address, ByteCount, Pid, Tid};
use sys::Result;
use tracee::RemoteError;

/// A stopped thread that makes system calls.
pub(super) trait Caller {
    /// Returns the pid of the process, and the tid of the thread.
    fn ids(&self) -> (Pid, Tid);

    /// Makes one system call. `arguments` receives the address of the data, which begins with `bytes`.
    fn call_with(
        &mut self,
        number: i64,
        bytes: &[u8],
        arguments: impl FnOnce(Address) -> [u64; 6],
    ) -> std::result::Result<u64, RemoteError>;

    /// Reads the start of the data after a call.
    fn read_data(&mut self, length: ByteCount) -> Result<Vec<u8>>;
}
