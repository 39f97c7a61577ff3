//! Errors of this crate.
//!
//! Owns: what can go wrong while files are watched, kept or taken back.
//! Does not: decide what follows.

/// A result of this crate.
pub type Result<T> = std::result::Result<T, UndoError>;

/// What can go wrong.
#[derive(Debug, thiserror::Error)]
pub enum UndoError {
    /// The kernel refused something.
    #[error(transparent)]
    Kernel(#[from] sys::Error),
    /// The log has taken all that it may.
    #[error("the undo log is full: {bytes_max} bytes")]
    Full {
        /// Its bound.
        bytes_max: u64,
    },
}
