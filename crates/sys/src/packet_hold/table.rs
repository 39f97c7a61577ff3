//! The packet filter tables (nf_tables) that pass packets to the queue.
//!
//! Owns: one table with one rule for each address family.
//! Invariants: a rule selects only TCP segments of sockets with the mark. It does not select segments with
//! SYN or RST, which begin or reset a connection. If no process has the queue open, all segments pass.
//! Does not: hold packets.

use super::wire::{Attributes, Message, Wire};
use crate::error::{Errno, Result};

const TABLES: u8 = 10;
const NEW_TABLE: (u8, u8) = (TABLES, 0);
const NEW_CHAIN: (u8, u8) = (TABLES, 3);
const NEW_RULE: (u8, u8) = (TABLES, 6);
const CREATE: u16 = 0x400;
const APPEND: u16 = 0x800;
/// NFT_TABLE_F_OWNER: the kernel removes the table when the socket that created it is closed.
const OWNED: u32 = 2;
const ACCEPT: u32 = 1;
const LOCAL_OUT: u32 = 3;
const CHAIN: &str = "outgoing";
const REGISTER: u32 = 1;
const META_MARK: u32 = 3;
const META_PROTOCOL: u32 = 16;
const TRANSPORT: u32 = 2;
const FLAGS_OFFSET: u32 = 13;
/// The TCP flags SYN and RST. Segments with one of these flags pass.
const PASSING_FLAGS: u8 = 0x02 | 0x04;
/// NFT_QUEUE_FLAG_BYPASS: packets pass if no process has the queue open.
const BYPASS: u16 = 1;

/// Creates the tables. The kernel removes the tables when `wire` is closed.
pub(super) fn make(wire: &Wire, mark: u32, queue: u16) -> Result<()> {
    let with = |last: &Attributes| {
        let families = [libc::AF_INET as u8, libc::AF_INET6 as u8 /* NFPROTO_IPV6 */];
        let all: Vec<Message> =
            families.into_iter().flat_map(|family| family_table(family, mark, last)).collect();
        wire.transact(TABLES, &all)
    };
    match with(&native(queue)) {
        // A kernel without the `queue` expression may have the older NFQUEUE target.
        Err(error) if error.errno == Errno::ENOENT => with(&target(queue)),
        outcome => outcome,
    }
}

fn family_table(family: u8, mark: u32, last: &Attributes) -> [Message; 3] {
    let table = format!("undying-{mark:08x}");
    let message = |kind, flags, body| Message { kind, flags: CREATE | flags, family, resource: 0, body };
    let hook = Attributes::default().word(1, LOCAL_OUT).word(2, 0);
    let chain = Attributes::default().text(1, &table).text(3, CHAIN).nest(4, hook);
    let rule = Attributes::default().text(1, &table).text(2, CHAIN);
    [
        message(NEW_TABLE, 0, Attributes::default().text(1, &table).word(2, OWNED)),
        message(NEW_CHAIN, 0, chain.word(5, ACCEPT).text(7, "filter")),
        message(NEW_RULE, APPEND, rule.nest(4, expressions(mark, last))),
    ]
}

fn expressions(mark: u32, last: &Attributes) -> Attributes {
    let meta = |key| Attributes::default().word(1, REGISTER).word(2, key);
    let value = |bytes: &[u8]| Attributes::default().bytes(1, bytes);
    let equal = |bytes: &[u8]| Attributes::default().word(1, REGISTER).word(2, 0).nest(3, value(bytes));
    let flags = Attributes::default().word(1, REGISTER).word(2, TRANSPORT).word(3, FLAGS_OFFSET).word(4, 1);
    let mask = Attributes::default().word(1, REGISTER).word(2, REGISTER).word(3, 1);
    let mask = mask.nest(4, value(&[PASSING_FLAGS])).nest(5, value(&[0]));
    [
        expression("meta", meta(META_MARK)),
        expression("cmp", equal(&mark.to_ne_bytes())),
        expression("meta", meta(META_PROTOCOL)),
        expression("cmp", equal(&[libc::IPPROTO_TCP as u8])),
        expression("payload", flags),
        expression("bitwise", mask),
        expression("cmp", equal(&[0])),
        last.clone(),
    ]
    .into_iter()
    .fold(Attributes::default(), |all, one| all.nest(1, one))
}

fn expression(name: &str, data: Attributes) -> Attributes {
    Attributes::default().text(1, name).nest(2, data)
}

fn native(queue: u16) -> Attributes {
    expression("queue", Attributes::default().half(1, queue).half(2, 1).half(3, BYPASS))
}

/// Returns the expression for the NFQUEUE target, with the structure `xt_NFQ_info_v3`.
fn target(queue: u16) -> Attributes {
    let words = [queue, 1, BYPASS, 0];
    let info: Vec<u8> = words.into_iter().flat_map(u16::to_ne_bytes).collect();
    expression("target", Attributes::default().text(1, "NFQUEUE").word(2, 3).bytes(3, &info))
}
