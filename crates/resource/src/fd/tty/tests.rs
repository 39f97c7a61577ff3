//! Tests of the terminal kind.

use std::os::fd::OwnedFd;
use std::time::Duration;

use model::Inode;
use rustix::pty::{OpenptFlags, openpt};
use rustix::termios::Winsize;

use super::*;
use crate::support::testing::{Subject, describe, flags};

const RDWR: u32 = 2;

/// Number of pairs that are opened first and closed again. Other programs then get lower numbers than the test's
/// pairs.
const LOWER_NUMBERS: usize = 24;

fn open_pair() -> (OwnedFd, OwnedFd) {
    let lower: Vec<OwnedFd> =
        (0..LOWER_NUMBERS).map(|_| openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap()).collect();
    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
    terminal::set_locked(master.as_fd(), false).unwrap();
    let slave = terminal::open_slave(master.as_fd(), RDWR).unwrap();
    drop(lower);
    (master, slave)
}

fn raw(slave: &OwnedFd) {
    let mut modes = terminal::modes(slave.as_fd()).unwrap();
    (modes.input, modes.output, modes.local) = (0, 0, 0);
    terminal::set_modes(slave.as_fd(), &modes).unwrap();
}

fn settle() {
    std::thread::sleep(Duration::from_millis(20));
}

fn read(file: &OwnedFd) -> rustix::io::Result<Vec<u8>> {
    let mut bytes = vec![0; 4096];
    let count = rustix::io::read(file, &mut bytes[..])?;
    bytes.truncate(count);
    Ok(bytes)
}

/// Captures the ends, closes them as at the end of the subject, and restores them.
fn recreate(files: Vec<OwnedFd>) -> Result<Vec<OwnedFd>> {
    let borrowed: Vec<&dyn AsFd> = files.iter().map(|file| file as _).collect();
    let mut subject = Subject::new(&borrowed);
    assert_eq!(subject.obstacles(&Tty), Vec::new());
    let envelopes = subject.capture(&Tty, || {})?;
    subject.descriptions.clear();
    drop(borrowed);
    drop(files);
    subject.build(&Tty, &envelopes, &[])
}

#[test]
fn a_pair_is_restored_with_number_modes_window_and_bytes() {
    let _alone = testkit::alone();
    let (other, _other_slave) = open_pair();
    let (master, slave) = open_pair();
    raw(&slave);
    let window = Winsize { ws_row: 31, ws_col: 93, ws_xpixel: 7, ws_ypixel: 9 };
    rustix::termios::tcsetwinsize(&slave, window).unwrap();
    rustix::fs::fcntl_setfl(&master, OFlags::NONBLOCK).unwrap();
    rustix::io::write(&master, b"down").unwrap();
    rustix::io::write(&slave, b"up").unwrap();
    settle();
    let number = terminal::pair_number(master.as_fd()).unwrap();
    let modes = terminal::modes(slave.as_fd()).unwrap();
    let expected = [flags(&slave), flags(&master)];
    let built = recreate(vec![slave, master]).unwrap();
    drop(other);
    assert_eq!([flags(&built[0]), flags(&built[1])], expected);
    assert_eq!(terminal::pair_number(built[1].as_fd()).unwrap(), number);
    assert_eq!(terminal::device(built[0].as_fd()).unwrap(), (SLAVE_MAJOR, number));
    assert_eq!(terminal::modes(built[0].as_fd()).unwrap(), modes);
    let now = rustix::termios::tcgetwinsize(&built[0]).unwrap();
    assert_eq!((now.ws_row, now.ws_col, now.ws_xpixel, now.ws_ypixel), (31, 93, 7, 9));
    settle();
    assert_eq!(read(&built[0]).unwrap(), b"down");
    assert_eq!(read(&built[1]).unwrap(), b"up");
}

#[test]
fn packet_mode_lock_and_exclusive_mode_are_restored() {
    let _alone = testkit::alone();
    let (master, slave) = open_pair();
    terminal::set_packet_mode(master.as_fd(), true).unwrap();
    terminal::set_exclusive(slave.as_fd()).unwrap();
    terminal::set_locked(master.as_fd(), true).unwrap();
    let built = recreate(vec![master, slave]).unwrap();
    assert!(terminal::is_packet_mode(built[0].as_fd()).unwrap());
    assert!(terminal::is_exclusive(built[1].as_fd()).unwrap());
    assert!(terminal::is_locked(built[0].as_fd()).unwrap());
}

#[test]
fn a_master_without_slaves_is_restored_hung_up_or_not() {
    let _alone = testkit::alone();
    let fresh = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    let built = recreate(vec![fresh]).unwrap();
    assert!(!is_hung_up(&describe(0, &built[0])));
    assert!(terminal::is_locked(built[0].as_fd()).unwrap());
    drop(built);
    let (master, slave) = open_pair();
    rustix::io::write(&slave, b"last\n").unwrap();
    settle();
    drop(slave);
    let built = recreate(vec![master]).unwrap();
    assert!(is_hung_up(&describe(0, &built[0])));
    assert_eq!(read(&built[0]).unwrap(), b"last\r\n");
    assert_eq!(read(&built[0]), Err(rustix::io::Errno::IO));
}

#[test]
fn a_slave_without_master_stays_hung_up() {
    let _alone = testkit::alone();
    let (master, slave) = open_pair();
    drop(master);
    let built = recreate(vec![slave]).unwrap();
    assert_eq!(read(&built[0]).unwrap(), b"");
    assert_eq!(rustix::io::write(&built[0], b"x"), Err(rustix::io::Errno::IO));
}

#[test]
fn several_pairs_keep_their_numbers_and_a_used_one_is_refused() {
    let _alone = testkit::alone();
    let pairs = [open_pair(), open_pair(), open_pair()];
    let numbers = pairs.each_ref().map(|(master, _)| terminal::pair_number(master.as_fd()).unwrap());
    let [first, second, third] = pairs;
    drop(second);
    let files: Vec<&dyn AsFd> = vec![&third.0, &first.1, &first.0, &third.1];
    let subject = Subject::new(&files);
    let envelopes = subject.capture(&Tty, || {}).unwrap();
    let error = subject.build(&Tty, &envelopes, &[]).unwrap_err().to_string();
    assert!(error.contains(&format!("/dev/pts/{}", numbers[0])) && error.contains("help:"), "{error}");
    drop(subject);
    drop((first, third));
    let built = Subject::new(&[]).build(&Tty, &envelopes, &[]).unwrap();
    assert_eq!(terminal::pair_number(built[0].as_fd()).unwrap(), numbers[2]);
    assert_eq!(terminal::pair_number(built[2].as_fd()).unwrap(), numbers[0]);
}

#[test]
fn an_outside_terminal_is_opened_by_path_or_passed_on() {
    let _alone = testkit::alone();
    let (master, slave) = open_pair();
    raw(&slave);
    let mut subject = Subject::new(&[&slave]);
    assert_eq!(subject.obstacles(&Tty), Vec::new());
    let envelopes = subject.capture(&Tty, || {}).unwrap();
    let built = subject.build(&Tty, &envelopes, &[]).unwrap();
    rustix::io::write(&built[0], b"by path").unwrap();
    settle();
    assert_eq!(read(&master).unwrap(), b"by path");
    let stat = subject.descriptions[0].stat;
    let key = (stat.st_dev, Inode(stat.st_ino));
    subject.inherited = vec![key];
    let envelopes = subject.capture(&Tty, || {}).unwrap();
    let handed = [(key.0, key.1, slave.try_clone().unwrap())];
    let mut modes = terminal::modes(slave.as_fd()).unwrap();
    modes.local |= 8;
    terminal::set_modes(slave.as_fd(), &modes).unwrap();
    let built = subject.build(&Tty, &envelopes, &handed).unwrap();
    assert_eq!(terminal::modes(built[0].as_fd()).unwrap().local, 0);
    subject.descriptions.clear();
    drop((built, handed, slave, master));
    let error = subject.build(&Tty, &envelopes, &[]).unwrap_err().to_string();
    assert!(error.contains("help:"), "{error}");
    // A new terminal with the same number is another terminal. The terminal of the restoring process replaces the
    // saved terminal.
    let (master, slave) = open_pair();
    let error = subject.build(&Tty, &envelopes, &[]).unwrap_err().to_string();
    assert!(error.contains("another terminal") || error.contains("does not exist"), "{error}");
    let handed = [(0, Inode(0), slave.try_clone().unwrap())];
    let built = subject.build(&Tty, &envelopes, &handed).unwrap();
    rustix::io::write(&built[0], b"new home").unwrap();
    settle();
    assert_eq!(read(&master).unwrap(), b"new home");
}

#[test]
fn a_slave_in_use_outside_is_an_obstacle() {
    let _alone = testkit::alone();
    let (master, slave) = open_pair();
    let mut child = std::process::Command::new("sleep")
        .arg("60")
        .stdin(std::process::Stdio::from(slave))
        .spawn()
        .unwrap();
    let found = Subject::new(&[&master]).obstacles(&Tty);
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(found.len() == 1 && found[0].why.contains("(sleep)"), "{found:?}");
}

#[test]
fn device_numbers_are_encoded_as_in_proc() {
    assert_eq!(encode((136, 3)), 34_819);
    assert_eq!(encode((136, 300)), (0x2c | (136 << 8) | (0x100 << 12)));
}

#[test]
fn other_devices_are_not_claimed() {
    let null = std::fs::File::open("/dev/null").unwrap();
    assert!(!Tty.claims(&describe(0, &null)));
    let named = rustix::fs::open("/dev/ptmx", OFlags::PATH, rustix::fs::Mode::empty()).unwrap();
    assert!(!Tty.claims(&describe(0, &named)));
}
