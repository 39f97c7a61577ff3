//! The errors of this crate.
//!
//! Owns: one variant for each reason why replicas cannot be started or controlled.
//! Does not: describe differences between replicas; these are results.

/// The result of a function of this crate.
pub type Result<T> = std::result::Result<T, ReplicaError>;

/// A reason why replicated execution failed.
#[derive(Debug, thiserror::Error)]
pub enum ReplicaError {
    /// A kernel call failed.
    #[error(transparent)]
    Kernel(#[from] sys::Error),
    /// The program could not be executed.
    #[error("cannot execute the program: {0}")]
    Start(std::io::Error),
    /// A call that a replica made for this program failed.
    #[error("{call} in a replica failed: {errno}")]
    Remote {
        /// The name of the call.
        call: &'static str,
        /// The error.
        errno: sys::Errno,
    },
    /// A replica stopped in a way that no step of this program expects.
    #[error("a replica stopped unexpectedly: {0}")]
    Unexpected(String),
    /// A file of a fault-injection campaign could not be written or read.
    #[error("cannot {operation}: {source}")]
    Campaign {
        /// What was tried.
        operation: &'static str,
        /// The error.
        source: std::io::Error,
    },
    /// The program does not end, or does not end in the same way each time, without a fault.
    #[error("{0}")]
    NotComparable(String),
}
