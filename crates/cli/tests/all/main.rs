//! Tests of the command line. One program contains all of them, because each test program must be linked.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "a test ends where it fails")]

mod accepted;
mod bad_input;
mod by_hand;
mod chain;
mod check;
mod child_signal;
mod common;
mod compat;
mod connections;
mod disk_full;
mod files;
mod foreground;
mod forgotten;
mod heart;
mod history;
mod hold;
mod journald;
mod kept_connections;
mod killed;
mod late;
mod lazy;
mod mapped;
mod metrics;
mod on_restore;
mod orders;
mod packaging;
mod planted;
mod policies;
mod refusals;
mod reload;
mod replicate;
mod requests;
mod restart;
mod rewind;
mod rights;
mod run;
mod store_size;
mod supervision;
mod system;
mod terminal;
mod together;
mod top;
mod verbs;
mod warm;
