//! What goes wrong with channels.
//!
//! Owns: `ChannelError`.
//! Invariants: every error names its operation and its object.
//! Does not: report what goes wrong with a single call of a program: that call then continues.

use model::Escaped;

/// A failure of this crate.
#[derive(Debug, thiserror::Error)]
pub enum ChannelError {
    /// A kernel call failed.
    #[error(transparent)]
    Kernel(#[from] sys::Error),
    /// A program was not started.
    #[error("cannot start {}: {source}", Escaped(program))]
    Spawn {
        /// Its first word.
        program: String,
        /// Why.
        source: std::io::Error,
    },
    /// An address of a system file is not understood.
    #[error("cannot understand the address `{}`: {why}", Escaped(text))]
    BadAddress {
        /// The address.
        text: String,
        /// Why.
        why: &'static str,
    },
}

/// A result of this crate.
pub type Result<T> = std::result::Result<T, ChannelError>;
