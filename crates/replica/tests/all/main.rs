//! Tests of replicated execution with real programs.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "a test ends where it fails")]

mod common;
mod faults;
mod programs;
mod refused;
mod signals;
