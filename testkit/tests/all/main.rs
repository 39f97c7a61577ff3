//! Tests of single victims (test programs). One program contains all of them, because each test program must be linked.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "a test ends where it fails")]

mod cgroups;
mod killed;
mod locks;
mod stolen_paths;
