//! Interfaces of the kernel, one module for each. This is the only crate with unsafe code.
//!
//! Owns: system calls, kernel structures with checks of their layouts, and probes of kernel features.
//! Invariants: every public function is safe to call. Every error names the operation, the object and the
//! errno. A function without a section on errors returns the errors of the calls in the header of its module.
//! Does not: contain policy, or know what a checkpoint is.

pub mod aio_contexts;
pub mod allocation_count;
mod bpf;
pub mod bpf_map;
pub mod call_trap;
pub mod clear_refs;
pub mod clock;
pub mod clone;
pub mod close_range;
pub mod datagram;
pub mod dead_man;
pub mod dead_process;
pub mod descriptor_table;
pub mod direct_io;
pub mod dirty_tracker;
pub mod epoll;
pub mod error;
pub mod fanotify;
mod fd_passing;
mod feature;
pub mod features;
pub mod file_handle;
pub mod file_lock;
pub mod file_owner;
pub mod file_rights;
pub mod free_memory;
pub mod heap;
pub mod held_start;
pub mod huge_pages;
pub mod inotify;
pub mod kcmp;
pub mod launch;
pub mod listener_holder;
pub mod mapping_changes;
pub mod message_queue;
mod netlink;
mod nf_tables;
mod nfnetlink;
pub mod packet_drop;
pub mod packet_hold;
pub mod page_buffer;
pub mod pagemap;
pub mod part_reader;
pub mod pidfd;
mod probes;
pub mod process_events;
pub mod process_memory;
pub mod ptrace;
mod residence;
pub mod robust_list;
pub mod scheduling;
pub mod scratch;
pub mod seccomp;
pub mod seccomp_listener;
pub mod segment;
pub mod send_observer;
pub mod session;
pub mod shared_memory;
pub mod signal;
mod signal_stack;
pub mod signalfd;
pub mod sock_diag;
pub mod socket;
pub mod socket_call;
pub mod socket_option;
pub mod stand_in;
pub mod task_reader;
pub mod tcp_repair;
pub mod terminal;
pub mod timerfd;
pub mod userfaultfd;
pub mod wait_timer;
mod watch_filter;
pub mod watched_start;
pub mod working_directory;
mod write_ring;
pub mod writeback;
pub mod xsave;

pub use error::{Errno, Error, Result, Target};
