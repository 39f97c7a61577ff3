//! Real programs, each under load, ended by `checkpoint --kill` at random moments and restored, many times in a row.
//!
//! Owns: one module per program, with what must hold for it; what they share.
//! Invariants: the same process lives through all rounds; every wait has a limit; the seed of the moments is
//! printed and can be given (`UNDYING_TEST_SEED`); a program that is not installed is counted as unsupported.
//! Does not: look into images, or know what the programs hold.
//!
//! `UNDYING_ROUNDS` says how often each program dies; the default is short, 20 is the long form.

mod connection;
mod figures;
mod group;
mod http;
mod load;
mod problem;
mod requirements;
mod sources;
mod subject;

mod bash;
mod demo;
mod go;
mod jvm;
mod memcached;
mod nginx;
mod node;
mod python;
mod redis;
mod sqlite;

/// Every wait for a single event; far above what a loaded two-core machine needs.
const LIMIT: std::time::Duration = std::time::Duration::from_secs(60);
/// Between two looks at something that has no event to wait for.
const POLL: std::time::Duration = std::time::Duration::from_millis(2);
