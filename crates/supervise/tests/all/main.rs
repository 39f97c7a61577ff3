//! Simulations of subjects and of systems. One program contains both, because each test program must be linked.
#![forbid(unsafe_code)]

mod incarnation;
mod systems;
