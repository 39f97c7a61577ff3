//! The BPF programs of the observer.
//!
//! Owns: the instructions of the programs, and the layout of keys and values.
//! Invariants: no program has a loop. The search for a filter follows at most `FILTERS_MAX` filters.
//! Does not: load or attach a program.
//!
//! Man page: the kernel's documentation of the BPF instruction set; bpf-helpers(7)
//! Since: as in the module `send_observer`
//! Probe: as in the module `send_observer`
//! Fallback: as in the module `send_observer`

use std::os::fd::AsFd;

use crate::bpf::Map;
use crate::bpf::assembler::{
    Assembler, EIGHTH, FIRST, FOURTH, FRAME, GET_CURRENT_TASK, IF_EQUAL, IF_GREATER, Instruction,
    KTIME_GET_NS, LOAD_LONG, LOAD_WORD, Label, MAP_LOOKUP, MAP_UPDATE, MOVE, MOVE_CONSTANT, NINTH, RESULT,
    SECOND, SEVENTH, SHIFT_LEFT, SHIFT_RIGHT_SIGNED, SIXTH, STORE_CONSTANT, STORE_LONG, THIRD, UNLESS_EQUAL,
};
use crate::bpf::types::{FieldPath, KernelTypes};
use crate::error::{Errno, Error, Result};

/// Results of the program that finds a listener. The third result means that no filter has a listener.
pub(super) const FOUND: u32 = 0;
pub(super) const NO_THREAD: u32 = 1;
const NO_LISTENER: i32 = 2;
/// Bytes of the context of this program: the tid, and the address of the listener.
pub(super) const FINDER_BYTES: usize = 16;

/// A key: the address of the listener in the kernel, and the inode number of the socket.
pub(super) const KEY_BYTES: usize = 16;
pub(super) const VALUE_BYTES: usize = 80;

/// Maximum number of filters of a thread that a program follows. A thread with more filters above the filter of the
/// watch is not observed; programs that confine themselves install one to ten filters.
const FILTERS_MAX: usize = 32;

/// Offsets in a value, in bytes.
const SENT: usize = 0;
const FAMILY: usize = 8;
const KIND: usize = 10;
const USER_LOCKS: usize = 12;
const UNIX_ADDRESS: usize = 16;
const UNIX_PEER: usize = 24;
const REMOTE_PORT: usize = 32;
const LOCAL_PORT: usize = 34;
const REMOTE_V4: usize = 40;
const LOCAL_V4: usize = 44;
const REMOTE_V6: usize = 48;
const LOCAL_V6: usize = 64;
/// Whether the port was chosen by bind(2): the bit SOCK_BINDPORT_LOCK of the field `sk_userlocks`.
const BOUND_PORT_LOCK: u8 = 8;

/// Places on the stack, relative to the frame pointer.
const SCRATCH_AT: i16 = -8;
const KEY_AT: i16 = -24;
const VALUE_AT: i16 = KEY_AT - VALUE_BYTES as i16;

/// Registers.
const CONTEXT: u8 = SIXTH;
const TASK: u8 = SEVENTH;
const SOCKET: u8 = SEVENTH;
const FILTER: u8 = EIGHTH;
const LISTENER: u8 = NINTH;

/// The offset and the length of a field in bytes.
type Span = (usize, usize);

/// Offsets of the fields that the programs read.
#[derive(Debug)]
pub(super) struct Offsets {
    filter: usize,
    previous: usize,
    listener: usize,
    /// `sk_socket` in `struct sock`.
    socket: usize,
    /// The inode number, relative to the `struct socket` of the same `struct socket_alloc`.
    inode: usize,
    /// Offset of `sk_userlocks` in `struct sock`, and the shift of the field in its byte.
    user_locks: (usize, u32),
    unix_peer: usize,
    /// Fields of `struct sock` and the places of their copies in a value.
    copied: Vec<(Span, usize)>,
}

impl Offsets {
    pub(super) fn of(types: &KernelTypes) -> Result<Self> {
        let at = |structure: &str, path: &str| Ok(direct(&types.find(structure, path)?, path)?.0);
        let span = |structure: &str, path: &str| direct(&types.find(structure, path)?, path);
        let copied = [
            ("sock", "__sk_common.skc_family", FAMILY),
            ("sock", "sk_type", KIND),
            ("sock", "__sk_common.skc_dport", REMOTE_PORT),
            ("sock", "__sk_common.skc_num", LOCAL_PORT),
            ("sock", "__sk_common.skc_daddr", REMOTE_V4),
            ("sock", "__sk_common.skc_rcv_saddr", LOCAL_V4),
            ("sock", "__sk_common.skc_v6_daddr", REMOTE_V6),
            ("sock", "__sk_common.skc_v6_rcv_saddr", LOCAL_V6),
            ("unix_sock", "addr", UNIX_ADDRESS),
        ];
        let copied = copied.iter().map(|(structure, path, to)| Ok((span(structure, path)?, *to)));
        Ok(Self {
            filter: at("task_struct", "seccomp.filter")?,
            previous: at("seccomp_filter", "prev")?,
            listener: at("seccomp_filter", "notif")?,
            socket: at("sock", "sk_socket")?,
            inode: at("socket_alloc", "vfs_inode.i_ino")? - at("socket_alloc", "socket")?,
            user_locks: types.bits("sock", "sk_userlocks")?,
            unix_peer: at("unix_sock", "peer")?,
            copied: copied.collect::<Result<_>>()?,
        })
    }
}

/// Returns offset and length of a field that no pointer leads to.
fn direct(path: &FieldPath, name: &str) -> Result<Span> {
    if path.pointers.is_empty() {
        Ok((path.offset, path.length))
    } else {
        Err(Error::new(format!("find {name} without a pointer"), Errno::EINVAL))
    }
}

/// Returns the program that finds the listener of a thread. The context begins with the tid. The program writes the
/// address of the listener to the second word.
pub(super) fn find_listener(offsets: &Offsets, types: &KernelTypes) -> Result<Vec<Instruction>> {
    let (find, release) = (types.kfunc("bpf_task_from_vpid")?, types.kfunc("bpf_task_release")?);
    let mut code = Assembler::default();
    let (is_there, found, none) = (code.label(), code.label(), code.label());
    code.push(MOVE, CONTEXT, FIRST, 0, 0);
    code.push(LOAD_WORD, FIRST, CONTEXT, 0, 0);
    code.call_kfunc(find);
    code.jump(UNLESS_EQUAL, RESULT, 0, is_there);
    code.exit(NO_THREAD as i32);
    code.place(is_there);
    code.push(MOVE, TASK, RESULT, 0, 0);
    search_listener(&mut code, offsets, (found, none));
    code.place(found);
    code.push(STORE_LONG, CONTEXT, LISTENER, 8, 0);
    code.push(MOVE, FIRST, TASK, 0, 0);
    code.call_kfunc(release);
    code.exit(FOUND as i32);
    code.place(none);
    code.push(MOVE, FIRST, TASK, 0, 0);
    code.call_kfunc(release);
    code.exit(NO_LISTENER);
    Ok(code.finish())
}

/// Searches the filters of the task in the register `TASK` for a listener. Jumps to `found` with the address of the
/// listener in `LISTENER`, or to `none`.
fn search_listener(code: &mut Assembler, offsets: &Offsets, (found, none): (Label, Label)) {
    load(code, FILTER, (TASK, offsets.filter));
    code.jump(IF_EQUAL, FILTER, 0, none);
    for _ in 0..FILTERS_MAX {
        load(code, LISTENER, (FILTER, offsets.listener));
        code.jump(UNLESS_EQUAL, LISTENER, 0, found);
        load(code, FILTER, (FILTER, offsets.previous));
        code.jump(IF_EQUAL, FILTER, 0, none);
    }
    code.jump_always(none);
}

/// Loads a word of kernel memory into a register.
fn load(code: &mut Assembler, register: u8, from: (u8, usize)) {
    code.read(SCRATCH_AT, 8, from);
    code.push(LOAD_LONG, register, FRAME, SCRATCH_AT, 0);
}

/// Returns the program that records a send or a receipt. Its context is `struct sock *`, and the result of the call.
pub(super) fn record<const V: usize, const T: usize>(
    offsets: &Offsets,
    trees: &Map<8, T>,
    sockets: &Map<KEY_BYTES, V>,
    is_send: bool,
) -> Vec<Instruction> {
    let mut code = Assembler::default();
    let (has_data, found, out) = (code.label(), code.label(), code.label());
    code.push(MOVE, CONTEXT, FIRST, 0, 0);
    // The result is an int. A call that has failed has sent nothing.
    code.push(LOAD_LONG, FIRST, CONTEXT, 8, 0);
    code.push(SHIFT_LEFT, FIRST, 0, 0, 32);
    code.push(SHIFT_RIGHT_SIGNED, FIRST, 0, 0, 32);
    code.jump(IF_GREATER, FIRST, 0, has_data);
    code.exit(0);
    code.place(has_data);
    code.call(GET_CURRENT_TASK);
    code.push(MOVE, TASK, RESULT, 0, 0);
    search_listener(&mut code, offsets, (found, out));
    code.place(found);
    code.push(STORE_LONG, FRAME, LISTENER, KEY_AT, 0);
    code.load_map(FIRST, trees.as_fd());
    code.address(SECOND, KEY_AT);
    code.call(MAP_LOOKUP);
    code.jump(IF_EQUAL, RESULT, 0, out);
    code.push(LOAD_LONG, SOCKET, CONTEXT, 0, 0);
    load(&mut code, FILTER, (SOCKET, offsets.socket));
    code.read(KEY_AT + 8, 8, (FILTER, offsets.inode));
    describe(&mut code, offsets);
    if is_send {
        code.call(KTIME_GET_NS);
        code.push(STORE_LONG, FRAME, RESULT, VALUE_AT + SENT as i16, 0);
    } else {
        // A record keeps the time of the last send.
        code.load_map(FIRST, sockets.as_fd());
        code.address(SECOND, KEY_AT);
        code.call(MAP_LOOKUP);
        code.jump(UNLESS_EQUAL, RESULT, 0, out);
    }
    code.load_map(FIRST, sockets.as_fd());
    code.address(SECOND, KEY_AT);
    code.address(THIRD, VALUE_AT);
    code.push(MOVE_CONSTANT, FOURTH, 0, 0, 0);
    code.call(MAP_UPDATE);
    code.place(out);
    code.exit(0);
    code.finish()
}

/// Writes what is known of the socket in the register `SOCKET` to the value on the stack.
fn describe(code: &mut Assembler, offsets: &Offsets) {
    let at = |field: usize| VALUE_AT + field as i16;
    for word in (0..VALUE_BYTES).step_by(8) {
        code.push(STORE_CONSTANT, FRAME, 0, at(word), 0);
    }
    for ((offset, length), to) in &offsets.copied {
        code.read(at(*to), *length, (SOCKET, *offset));
    }
    code.read(at(USER_LOCKS), 1, (SOCKET, offsets.user_locks.0));
    // For a socket of another family, the next reads copy unrelated memory, which the decoder ignores.
    load(code, FILTER, (SOCKET, offsets.unix_peer));
    load(code, FILTER, (FILTER, offsets.socket));
    code.read(at(UNIX_PEER), 8, (FILTER, offsets.inode));
}

/// What a program has recorded of a socket. Ends have an IPv4 address and an IPv6 address; the family decides.
#[derive(Debug)]
pub(super) struct Value {
    pub(super) sent: u64,
    pub(super) family: u16,
    pub(super) kind: u16,
    pub(super) has_bound_port: bool,
    pub(super) unix_address: u64,
    pub(super) unix_peer: u64,
    pub(super) local: ([u8; 4], [u8; 16]),
    pub(super) remote: ([u8; 4], [u8; 16]),
    pub(super) local_port: u16,
    pub(super) remote_port: u16,
}

impl Value {
    pub(super) fn decode(bytes: &[u8; VALUE_BYTES], offsets: &Offsets) -> Self {
        let short = |at| u16::from_ne_bytes(part(bytes, at));
        let long = |at| u64::from_ne_bytes(part(bytes, at));
        Self {
            sent: long(SENT),
            family: short(FAMILY),
            kind: short(KIND),
            has_bound_port: bytes[USER_LOCKS] >> offsets.user_locks.1 & BOUND_PORT_LOCK != 0,
            unix_address: long(UNIX_ADDRESS),
            unix_peer: long(UNIX_PEER),
            local: (part(bytes, LOCAL_V4), part(bytes, LOCAL_V6)),
            remote: (part(bytes, REMOTE_V4), part(bytes, REMOTE_V6)),
            local_port: short(LOCAL_PORT),
            // The kernel keeps the remote port in the byte order of the network.
            remote_port: u16::from_be_bytes(part(bytes, REMOTE_PORT)),
        }
    }
}

fn part<const N: usize>(bytes: &[u8; VALUE_BYTES], at: usize) -> [u8; N] {
    std::array::from_fn(|index| bytes[at + index])
}
