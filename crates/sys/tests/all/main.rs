//! Tests of kernel interfaces. One program contains all of them, because each test program must be linked.
#![allow(clippy::unwrap_used, reason = "a test ends where it fails")]

mod child_stops;
mod common;
mod listener_holder;
mod seccomp_listener;
