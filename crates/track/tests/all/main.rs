//! Tests of the trackers. One program contains all of them, because each test program must be linked.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "a test ends where it fails")]

mod ahead;
mod allocations;
mod cases;
mod common;
mod deaths;
mod moves;
mod soak;
