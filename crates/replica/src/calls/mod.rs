//! The system calls that a replicated program can make, and what happens with each.
//!
//! A *part* of a call is memory that the call reads or writes: an input is compared between the replicas before the call,
//! and an output is copied to the followers after it.
//!
//! Owns: the classes and the parts, and the search in the table.
//! Invariants: a call that is not in the table is refused by name before any replica executes it.
//! Does not: execute calls; `group` does.

mod names;
mod special;
mod table;

use crate::calls::names::NAMES;
use crate::calls::special::SPECIAL;
use crate::calls::table::TABLE;

/// The arguments of a system call.
pub(crate) type Arguments = [u64; 6];

/// Which replicas execute a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Class {
    /// All: the call changes only the process that makes it. The results are compared.
    Local,
    /// All, with the result of the leader: the results can differ, for example a tid.
    Same,
    /// The leader. Nothing outside of the replicas changes.
    Query,
    /// The leader: what the call takes cannot be taken twice.
    Input,
    /// The leader: the call changes something outside of the replicas.
    Output,
    /// No replica. All get this result.
    Nobody(i64),
    /// All, and the process ends.
    End,
}

/// The length of a part in bytes. Arguments are numbered from 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Length {
    /// A number of bytes.
    Fixed(u64),
    /// The value of an argument, times a number of bytes.
    Argument(usize, u64),
    /// The result of the call, times a number of bytes.
    Result(u64),
    /// The 32-bit number at an argument.
    At(usize),
}

/// Memory that a call reads or writes. A null pointer stands for no memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Part {
    /// A string that ends in a zero byte, at an argument.
    Text(usize),
    /// A buffer at an argument.
    Bytes(usize, Length),
    /// Buffers that an array of `struct iovec` lists: the array at the first argument, its length in the second. At most
    /// `Length` bytes of them.
    Vector(usize, usize, Option<Length>),
}

/// What happens with one call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Rule {
    pub(crate) class: Class,
    pub(crate) inputs: &'static [Part],
    pub(crate) outputs: &'static [Part],
    /// The call makes the range at its first two arguments writable. It is refused if the range is shared: the replicas
    /// would write to the same memory.
    pub(crate) makes_writable: bool,
}

impl Rule {
    const fn plain(class: Class) -> Self {
        Self { class, inputs: &[], outputs: &[], makes_writable: false }
    }
}

/// A line of the table.
struct Row {
    number: i64,
    #[cfg_attr(not(test), expect(dead_code, reason = "tests compare the name with that of the number"))]
    name: &'static str,
    rule: Rule,
}

/// A call whose rule depends on its arguments.
struct SpecialRow {
    number: i64,
    #[cfg_attr(not(test), expect(dead_code, reason = "tests compare the name with that of the number"))]
    name: &'static str,
    decide: fn(&Arguments) -> Verdict,
}

/// What is decided about a call from its arguments.
enum Verdict {
    Decided(Rule),
    /// The call is refused for this reason.
    Refused(&'static str),
}

/// A call that cannot be made.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RefusedCall {
    /// The name of the call, or `call NUMBER`.
    pub name: String,
    /// The reason.
    pub why: &'static str,
}

/// The reason against memory to which all replicas would write.
pub(crate) const SHARED: &str = "the replicas would write to the same shared memory";

/// Returns the rule for a call.
pub(crate) fn decide(number: i64, arguments: &Arguments) -> Result<Rule, RefusedCall> {
    if let Some(row) = TABLE.iter().find(|row| row.number == number) {
        return Ok(row.rule);
    }
    let special = SPECIAL.iter().find(|row| row.number == number);
    let why = match special.map(|row| (row.decide)(arguments)) {
        Some(Verdict::Decided(rule)) => return Ok(rule),
        Some(Verdict::Refused(why)) => why,
        None => "replicated execution does not support the call yet",
    };
    Err(RefusedCall { name: name(number), why })
}

/// Returns the name of a call for messages.
pub(crate) fn name(number: i64) -> String {
    let known = NAMES.iter().find(|(known, _)| *known == number);
    known.map_or_else(|| format!("number {number}"), |(_, name)| (*name).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_call_has_one_row_and_rows_ascend() {
        assert!(TABLE.is_sorted_by(|one, next| one.number < next.number));
        assert!(SPECIAL.is_sorted_by(|one, next| one.number < next.number));
        assert!(SPECIAL.iter().all(|special| TABLE.iter().all(|row| row.number != special.number)));
    }

    #[test]
    fn each_row_has_the_name_of_its_number() {
        assert!(NAMES.is_sorted_by(|(one, _), (next, _)| one < next));
        let rows = TABLE.iter().map(|row| (row.number, row.name));
        for (number, known) in rows.chain(SPECIAL.iter().map(|row| (row.number, row.name))) {
            assert_eq!(name(number), known);
        }
    }

    #[test]
    fn a_call_that_is_in_no_table_is_refused_by_name() {
        let refused = decide(57, &[0; 6]).unwrap_err();
        assert!(refused.name == "fork" && refused.why.contains("processes"), "{refused:?}");
        assert!(decide(9999, &[0; 6]).unwrap_err().name.contains("9999"));
    }
}
