//! Errors of channels.
//!
//! Owns: `ChannelError`.
//! Invariants: every error names its operation and its object.
//! Does not: report a failure while a single call of a program is handled. In this case, the call continues.

use model::Escaped;

/// A failure of this crate.
#[derive(Debug, thiserror::Error)]
pub enum ChannelError {
    /// A kernel call failed.
    #[error(transparent)]
    Kernel(#[from] sys::Error),
    /// An address in a system file is not valid.
    #[error("cannot understand the address `{}`: {why}", Escaped(text))]
    BadAddress {
        /// The address.
        text: String,
        /// The defect of the address.
        why: &'static str,
    },
}

/// A result of this crate.
pub type Result<T> = std::result::Result<T, ChannelError>;
