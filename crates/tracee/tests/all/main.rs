//! Tests of traced processes. One program contains all of them, because each test program must be linked.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "a test ends where it fails")]

mod attach;
mod common;
mod ends;
mod freeze;
mod opened;
mod remote;
