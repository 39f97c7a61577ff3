//! Tests of `undying run` on a full disk: a program that dies meanwhile continues from its newest checkpoint as soon as
//! the disk has free space again.
//!
//! Owns: the full disk, which is an ext4 file system in a file.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use rustix::process::Signal;

use crate::common::{Guarded, Lab, supported, until};

const DISK_BYTES: u64 = 64 << 20;
/// The time that the disk stays full after the death. A restore is tried several times in this time.
const FULL: Duration = Duration::from_secs(3);

/// A file system that is unmounted on drop.
struct Disk {
    path: PathBuf,
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.path).status();
    }
}

impl Disk {
    /// Mounts an empty file system at a path. Prints the reason if this is impossible here.
    fn mount(lab: &Lab, path: &Path) -> Option<Self> {
        let image = lab.path("disk.image");
        File::create(&image).unwrap().set_len(DISK_BYTES).unwrap();
        fs::create_dir(path).unwrap();
        let done = |command: &mut Command| command.status().is_ok_and(|status| status.success());
        if !done(Command::new("/sbin/mkfs.ext4").args(["-q", "-F"]).arg(&image))
            || !done(Command::new("mount").args(["-o", "loop"]).arg(&image).arg(path))
        {
            println!("unsupported: a file system in a file");
            return None;
        }
        // The store must belong to its user alone.
        fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
        Some(Self { path: path.to_owned() })
    }

    /// Writes a file until no space is left.
    fn fill(&self) {
        let mut filler = File::create(self.path.join("filler")).unwrap();
        // The last piece is small, because other writers can release and use space meanwhile.
        for bytes in [1 << 20, 4096] {
            while filler.write_all(&vec![1; bytes]).is_ok() {}
        }
        let _ = filler.sync_all();
    }

    fn free(&self) {
        fs::remove_file(self.path.join("filler")).unwrap();
    }
}

/// Adds a line with the next number to a file, as often as the disk permits.
const COUNTING: &str = "n=0; until [ -e stop ]; do \
     echo $n >> files/numbers && n=$((n + 1)); sleep 0.01; done 2> /dev/null";

fn a_death_on_a_full_disk_is_survived(disk: &str) {
    if !supported() {
        return;
    }
    let lab = Lab::new();
    let Some(disk) = Disk::mount(&lab, &lab.path(disk)) else { return };
    fs::create_dir_all(lab.path("files")).unwrap();
    let guarded = Guarded::run(&lab, &["--files", "rewind"], COUNTING);
    guarded.await_checkpoints(3);
    disk.fill();
    std::thread::sleep(Duration::from_millis(500));
    let before = guarded.incarnation();
    guarded.root().signal(Signal::KILL).unwrap();
    std::thread::sleep(FULL);
    disk.free();
    guarded.await_incarnation(before + 1);
    let count = || fs::read_to_string(lab.path("files/numbers")).unwrap().lines().count();
    let first = count();
    until("more numbers", || (count() > first).then_some(()));
    let deaths = lab.json(&["deaths", "job"]);
    assert_eq!(deaths[0]["followed_by"], "restored", "{deaths} {}", guarded.said());
    assert_eq!(guarded.end(), 0);
    let numbers = fs::read_to_string(lab.path("files/numbers")).unwrap();
    for (expected, number) in numbers.lines().enumerate() {
        assert_eq!(number, expected.to_string(), "memory and file are of different moments");
    }
}

#[test]
fn a_full_disk_of_the_files_costs_no_checkpoint() {
    a_death_on_a_full_disk_is_survived("files");
}

#[test]
fn a_full_disk_of_the_store_costs_no_checkpoint() {
    a_death_on_a_full_disk_is_survived("store");
}
