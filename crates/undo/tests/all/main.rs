//! Tests of the undo log. One program contains all of them, because each test program must be linked.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "a test ends where it fails")]

mod channels;
mod common;
mod mapped;
mod notice;
mod rights;
mod shortage;
mod watch;
