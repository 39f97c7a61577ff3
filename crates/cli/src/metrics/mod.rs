//! What `undying metrics` tells.
//!
//! Owns: the names of the metrics, the address that they are served at.
//! Does not: know how subjects are; `guardian::status` does.

mod serve;
mod text;

pub(crate) use self::serve::{Address, serve};
pub(crate) use self::text::text;
