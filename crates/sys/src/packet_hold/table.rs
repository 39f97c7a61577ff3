//! The packet filter tables that pass packets to the queue.
//!
//! Owns: one table with one rule for each address family.
//! Invariants: a rule selects only TCP segments of sockets with the mark. It does not select segments with
//! SYN or RST, which begin or reset a connection. If no process has the queue open, all segments pass.
//! Does not: hold packets.

use crate::error::{Errno, Result};
use crate::netlink::Attributes;
use crate::nf_tables::{
    self, Header, Hook, Meta, REGISTER, SUBSYSTEM, Table, equal, expression, meta, value,
};
use crate::nfnetlink::{Message, Wire};

const CHAIN: &str = "outgoing";
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
        wire.transact(SUBSYSTEM, &all)
    };
    match with(&native(queue)) {
        // A kernel without the `queue` expression may have the older NFQUEUE target.
        Err(error) if error.errno == Errno::ENOENT => with(&target(queue)),
        outcome => outcome,
    }
}

fn family_table(family: u8, mark: u32, last: &Attributes) -> [Message; 3] {
    let table = Table { family, name: format!("undying-{mark:08x}"), is_owned: true };
    let rule = table.rule(CHAIN, expressions(mark, last));
    [table.create(), table.chain(CHAIN, Hook::Output, 0), rule]
}

fn expressions(mark: u32, last: &Attributes) -> [Attributes; 8] {
    let mask = Attributes::default().word(1, REGISTER).word(2, REGISTER).word(3, 1);
    let mask = mask.nest(4, value(&[PASSING_FLAGS])).nest(5, value(&[0]));
    [
        meta(Meta::Mark),
        equal(&mark.to_ne_bytes()),
        meta(Meta::Protocol),
        equal(&[libc::IPPROTO_TCP as u8]),
        nf_tables::load(REGISTER, Header::Transport, FLAGS_OFFSET, 1),
        expression("bitwise", mask),
        equal(&[0]),
        last.clone(),
    ]
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
