//! Tests of checkpoints and restores. One program contains all of them, because each test program must be linked.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "a test ends where it fails")]

mod applying;
mod budget;
mod checked_before_kill;
mod continuous;
mod hold;
mod hot;
mod huge;
mod killed_in_pause;
mod known_answers;
mod late;
#[path = "../../../guardian/tests/all/medium.rs"]
mod medium;
mod outside;
mod passing;
mod slow_log;
