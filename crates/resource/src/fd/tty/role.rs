//! Role of an open file description of a terminal: master of a pair, slave of a pair, or outside terminal.
//!
//! Owns: determining the role, and finding the other end of a pair.
//! Does not: read the state of a terminal.

use std::os::fd::AsFd;
use std::sync::Arc;

use rustix::event::PollFlags;
use rustix::fs::{FileType, major, makedev, minor};
use sys::terminal;

use crate::fd::description::{Description, Known};
use crate::fd::pipe::events;
use crate::fd::scope::CaptureScope;
use crate::support::opening;

/// Major number of the slaves of pseudo terminals.
pub(super) const SLAVE_MAJOR: u32 = 136;
/// Minor numbers of `/dev/tty`, `/dev/console` and `/dev/ptmx`.
const FRONTS: std::ops::RangeInclusive<u32> = 0..=2;

/// Role of a description of a terminal.
#[derive(Clone, Copy, PartialEq, Eq, Debug, prost::Enumeration)]
#[repr(i32)]
pub(super) enum Role {
    /// An outside terminal: its master is outside the subject, or it has no master (a serial line).
    Outside = 0,
    /// The master of a pair.
    Master = 1,
    /// A slave of a pair whose master is in the subject, or is closed.
    Slave = 2,
}

/// Reports whether a description refers to a terminal.
pub(crate) fn is_terminal(description: &Description) -> bool {
    let number = description.stat.st_rdev;
    let is_known = match major(number) {
        SLAVE_MAJOR => true,
        5 => FRONTS.contains(&minor(number)),
        _ => false,
    };
    FileType::from_raw_mode(description.stat.st_mode) == FileType::CharacterDevice
        && !opening::is_path_only(description.info.flags)
        && (is_known || terminal::modes(description.as_fd()).is_ok())
}

/// Reports whether another description refers to a terminal that satisfies `is_such`.
pub(super) fn is_terminal_that(
    other: &Arc<Known>,
    scope: &CaptureScope<'_>,
    is_such: impl FnOnce(&Description) -> bool,
) -> bool {
    FileType::from_raw_mode(other.stat.st_mode) == FileType::CharacterDevice
        && scope.with_duplicate(other, |other| is_terminal(other) && is_such(other)).unwrap_or(false)
}

/// Returns the number of a pair, if the description is the master of the pair.
pub(super) fn master_number(description: &Description) -> Option<u32> {
    let is_front = description.stat.st_rdev == makedev(5, 2);
    is_front.then(|| terminal::pair_number(description.as_fd()).ok())?
}

/// Returns the device number of a slave description. `/dev/tty` is resolved to the terminal behind it.
pub(super) fn device_of(description: &Description) -> (u32, u32) {
    let number = description.stat.st_rdev;
    terminal::device(description.as_fd()).unwrap_or((major(number), minor(number)))
}

pub(super) fn is_hung_up(description: &Description) -> bool {
    events(description).contains(PollFlags::HUP)
}

fn master_of<'a>(number: u32, scope: &'a CaptureScope<'_>) -> Option<&'a Arc<Known>> {
    scope
        .descriptions
        .iter()
        .find(|other| is_terminal_that(other, scope, |other| master_number(other) == Some(number)))
}

pub(super) fn role_of(description: &Description, scope: &CaptureScope<'_>) -> Role {
    if master_number(description).is_some() {
        return Role::Master;
    }
    let (major, minor) = device_of(description);
    if major == SLAVE_MAJOR && (master_of(minor, scope).is_some() || is_hung_up(description)) {
        Role::Slave
    } else {
        Role::Outside
    }
}

/// Reports whether the subject has a description of a slave of the pair.
pub(super) fn has_slave(number: u32, scope: &CaptureScope<'_>) -> bool {
    let is_slave =
        |other: &Description| master_number(other).is_none() && device_of(other) == (SLAVE_MAJOR, number);
    scope.descriptions.iter().any(|other| is_terminal_that(other, scope, is_slave))
}

/// Encodes a device number as `/proc/PID/stat` shows it.
pub(super) fn encode((major, minor): (u32, u32)) -> i32 {
    ((minor & 0xff) | (major << 8) | ((minor & !0xff) << 12)).cast_signed()
}
