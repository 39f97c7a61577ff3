//! The output of `undying metrics`.
//!
//! Owns: the names of the metrics, the address that they are served at.
//! Does not: read the state of subjects; `guardian::status` does.

mod serve;
mod text;

pub(crate) use self::serve::{Address, serve};
pub(crate) use self::text::text;
