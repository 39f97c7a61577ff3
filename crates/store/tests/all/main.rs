//! Tests of the store. One program contains all of them, because each test program must be linked.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;
mod compressed;
mod damage;
mod log;
mod log_compression;
mod log_damage;
mod log_power_cut;
mod log_segments;
mod log_size;
mod power_cut;
mod remote;
mod round_trip;
mod service;
mod simulated;
mod store;
mod trust;
