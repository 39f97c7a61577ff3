//! Requests to nf_tables, the packet filter of the kernel: tables, chains and rules.
//!
//! Owns: the numbers of the requests, and the expressions of rules.
//! Invariants: none.
//! Does not: send requests, or decide which packets are selected.
//!
//! Man page: none; include/uapi/linux/netfilter/nf_tables.h
//! Since: Linux 3.13, with CONFIG_NF_TABLES
//! Probe: that of `packet_hold`
//! Fallback: that of the calling module

use crate::netlink::Attributes;
use crate::nfnetlink::Message;

/// The number of the subsystem.
pub(crate) const SUBSYSTEM: u8 = 10;
pub(crate) const NEW_TABLE: (u8, u8) = (SUBSYSTEM, 0);
pub(crate) const NEW_CHAIN: (u8, u8) = (SUBSYSTEM, 3);
pub(crate) const NEW_RULE: (u8, u8) = (SUBSYSTEM, 6);
pub(crate) const DELETE_RULES: (u8, u8) = (SUBSYSTEM, 8);
pub(crate) const NEW_SET: (u8, u8) = (SUBSYSTEM, 9);
pub(crate) const NEW_ELEMENTS: (u8, u8) = (SUBSYSTEM, 12);
pub(crate) const DELETE_ELEMENTS: (u8, u8) = (SUBSYSTEM, 14);

/// NLM_F_CREATE: what a request names is created, unless it exists.
const CREATE: u16 = 0x400;
/// NLM_F_APPEND: a rule becomes the last rule of its chain.
const APPEND: u16 = 0x800;
/// NFT_TABLE_F_OWNER: the kernel removes the table when the socket that created it is closed.
const OWNED: u32 = 2;
/// NF_ACCEPT: packets that no rule selects pass.
const ACCEPT: u32 = 1;
/// NF_DROP.
const DROP: u32 = 0;
/// NFT_REG_VERDICT.
const VERDICT: u32 = 0;
/// NFT_REG_1, which holds 16 bytes.
pub(crate) const REGISTER: u32 = 1;

/// Where a chain sees packets.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Hook {
    /// Packets to sockets of this machine.
    Input = 1,
    /// Packets from sockets of this machine.
    Output = 3,
}

/// A property of a packet.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Meta {
    /// The mark of the packet, which is that of its socket.
    Mark = 3,
    /// The address family, in one byte.
    Family = 15,
    /// The transport protocol, in one byte.
    Protocol = 16,
}

/// The header of a packet that an offset refers to.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Header {
    Network = 1,
    Transport = 2,
}

/// A table of one address family.
#[derive(Clone, Debug)]
pub(crate) struct Table {
    pub(crate) family: u8,
    pub(crate) name: String,
    /// Whether the kernel removes the table when the socket that has created it is closed.
    pub(crate) is_owned: bool,
}

impl Table {
    /// Returns a request about this table. It creates what it names, unless that exists.
    pub(crate) fn request(&self, kind: (u8, u8), body: Attributes) -> Message {
        Message { kind, flags: CREATE, family: self.family, resource: 0, body }
    }

    /// Returns attributes that begin with the name of the table.
    pub(crate) fn named(&self) -> Attributes {
        Attributes::default().text(1, &self.name)
    }

    /// Creates the table.
    pub(crate) fn create(&self) -> Message {
        self.request(NEW_TABLE, if self.is_owned { self.named().word(2, OWNED) } else { self.named() })
    }

    /// Creates a chain that sees the packets of a hook. Packets that no rule selects pass.
    pub(crate) fn chain(&self, name: &str, hook: Hook, priority: i32) -> Message {
        let hook = Attributes::default().word(1, hook as u32).word(2, priority.cast_unsigned());
        self.request(NEW_CHAIN, self.named().text(3, name).nest(4, hook).word(5, ACCEPT).text(7, "filter"))
    }

    /// Deletes all rules of a chain.
    pub(crate) fn flush(&self, chain: &str) -> Message {
        self.request(DELETE_RULES, self.named().text(2, chain))
    }

    /// Appends a rule to a chain.
    pub(crate) fn rule(&self, chain: &str, expressions: impl IntoIterator<Item = Attributes>) -> Message {
        let all = expressions.into_iter().fold(Attributes::default(), |all, one| all.nest(1, one));
        let request = self.request(NEW_RULE, self.named().text(2, chain).nest(4, all));
        Message { flags: CREATE | APPEND, ..request }
    }
}

/// Returns an expression of a rule.
pub(crate) fn expression(name: &str, data: Attributes) -> Attributes {
    Attributes::default().text(1, name).nest(2, data)
}

/// Loads a property into `REGISTER`.
pub(crate) fn meta(key: Meta) -> Attributes {
    expression("meta", Attributes::default().word(1, REGISTER).word(2, key as u32))
}

/// Ends the rule unless `REGISTER` has this value.
pub(crate) fn equal(bytes: &[u8]) -> Attributes {
    expression("cmp", Attributes::default().word(1, REGISTER).word(2, 0).nest(3, value(bytes)))
}

/// Loads bytes of a header into a register.
pub(crate) fn load(register: u32, header: Header, offset: u32, bytes: u32) -> Attributes {
    let data = Attributes::default().word(1, register).word(2, header as u32);
    expression("payload", data.word(3, offset).word(4, bytes))
}

/// Ends the rule unless a set contains the value that begins in a register.
pub(crate) fn is_in(set: &str, register: u32) -> Attributes {
    expression("lookup", Attributes::default().text(1, set).word(2, register))
}

/// Drops the packet.
pub(crate) fn drop_packet() -> Attributes {
    let verdict = Attributes::default().nest(2, Attributes::default().word(1, DROP));
    expression("immediate", Attributes::default().word(1, VERDICT).nest(2, verdict))
}

/// Returns a value in an attribute.
pub(crate) fn value(bytes: &[u8]) -> Attributes {
    Attributes::default().bytes(1, bytes)
}
