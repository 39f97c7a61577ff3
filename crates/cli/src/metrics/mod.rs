//! The output of `undying metrics`.
//!
//! Owns: the names of the metrics, and the address at which metrics are served.
//! Does not: read the state of subjects (protected process trees); `guardian::status` does.

mod serve;
mod text;

pub(crate) use self::serve::{Address, serve};
pub(crate) use self::text::text;
