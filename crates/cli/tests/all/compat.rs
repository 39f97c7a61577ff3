//! Tests with images, logs and states of earlier versions, the fixtures of `tests/compat`. Each fixture has its expected
//! results. A damaged fixture is restored correctly, or refused by name.
//!
//! Owns: the expected results of each fixture.
//! Invariants: each fixture has expectations, and each expectation has a fixture. All commands run in a mount and PID
//! namespace of their own, where the paths and pids of a fixture are free.
//! Does not: make fixtures; `tests/compat/make.sh` does.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::{Lab, Said, supported};

/// The exit code of the restored program if pages, threads, pipe and file are right.
const RIGHT: i32 = 42;
/// The exit code of the restored program if only its file has another state than the memory.
const OTHER_FILE: i32 = 13;

/// A command of the present version, its exit code, and a part of its output. `{}` is the directory of the fixture.
type Expected = (&'static str, i32, &'static str);

/// The files of a fixture are copies with other inode numbers. Therefore, a restore needs `--files keep`.
const ANOTHER_FILE: &str = "/data is another file than at the checkpoint";

/// An image whose program was killed by its checkpoint.
const IMAGE: &[Expected] = &[
    ("verify {}/image", 0, "{}/image is whole"),
    ("show {}/image", 0, "fd/pipe 2"),
    ("restore {}/image --late-timers", 3, ANOTHER_FILE),
    ("restore {}/image --late-timers --files keep", RIGHT, ""),
    ("restore {}/image --late-timers --files keep --lazy", RIGHT, ""),
];

/// A log of a program that changed nothing after its newest checkpoint.
const LOG: &[Expected] = &[
    ("ls job", 0, "compared"),
    ("verify job", 0, "job is whole"),
    ("show job@1", 0, "fd/pipe 2"),
    ("events", 0, "job: checkpoint 1 (full)"),
    ("get job {}/got", 0, "{}/got"),
    ("squash job", 0, "merged job@"),
    ("prune job --keep 2", 0, "removed job@1"),
    ("gc", 0, "found"),
    ("store job another", 0, "another"),
    ("restore job --late-timers", 3, ANOTHER_FILE),
    ("restore job --late-timers --files rewind", 3, "the subject has no undo log"),
    ("restore job --late-timers --files keep", RIGHT, ""),
    ("restore job@1 --late-timers --files keep", OTHER_FILE, ""),
    ("run --name job --every 50ms --restart never -- {}/program {} 1", RIGHT, ""),
];

/// The program of this log was killed, and then its guardian ended.
const ENDED: &[Expected] = &[
    ("status job", 0, "ended"),
    ("deaths", 0, "signal 9"),
    ("metrics", 0, "undying_subject_state{subject=\"job\",state=\"ended\"} 1"),
    ("verify copy", 0, "copy is whole"),
    ("restore copy --late-timers --files keep", RIGHT, ""),
];

/// The guardian of this log was killed together with its program.
const KILLED: &[Expected] = &[("status job", 0, "dead")];

/// A log with an undo log. The file of the program is newer than the newest checkpoint.
const UNDO: &[Expected] = &[
    ("ls job", 0, "rollback"),
    ("files job", 0, "PATH"),
    ("status job", 0, "ended"),
    ("restore job --late-timers --files rewind", 3, "removed or replaced"),
    ("restore job --late-timers --files refuse", 3, ANOTHER_FILE),
    ("restore job --late-timers --files keep", OTHER_FILE, ""),
    ("run --name job --every 50ms --restart never -- {}/program {} 1", RIGHT, ""),
];

/// The store of a system that was ended.
const UP: &[Expected] = &[
    ("ls job", 0, "rollback"),
    ("status", 0, "ended"),
    ("deaths", 0, "signal 15"),
    ("check {}/system.toml", 0, ""),
    ("down", 3, "no system is guarded"),
    ("up {}/system.toml", 125, "job: starts from its beginning; its checkpoints of earlier runs"),
];

/// All releases have the same fixtures.
const FIXTURES: [(&str, &[&[Expected]]); 8] = [
    ("four", &[IMAGE]),
    ("killed", &[LOG, KILLED]),
    ("log", &[LOG, ENDED]),
    ("lz4", &[IMAGE]),
    ("one", &[IMAGE]),
    ("undo", &[UNDO]),
    ("up", &[UP]),
    ("zstd", &[IMAGE]),
];
const RELEASES: [&str; 2] = ["0.2.0", "before-0.3.0"];

/// A fixture that is unpacked into a directory of its own.
struct Unpacked<'a> {
    lab: &'a Lab,
    folder: PathBuf,
    name: &'a str,
}

fn compat() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/compat")
}

impl<'a> Unpacked<'a> {
    fn new(lab: &'a Lab, release: &str, name: &'a str) -> Self {
        let folder = lab.path("unpacked");
        let _of_an_earlier_call = fs::remove_dir_all(&folder);
        fs::create_dir(&folder).unwrap();
        let archive = compat().join(release).join(format!("{name}.tar.gz"));
        let said = lab.call(lab.detached(
            Command::new("tar").arg("-C").arg(&folder).arg("-xpzf").arg(archive).arg("--no-same-owner"),
        ));
        assert_eq!(said.code, Some(0), "{said:?}");
        let unpacked = Self { lab, folder, name };
        // A restored program checks itself and ends.
        fs::write(unpacked.path("go"), "").unwrap();
        let _only_of_some = fs::remove_file(unpacked.path("hold"));
        unpacked
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.join(self.name).join(name)
    }

    fn say(&self, words: &str) -> Said {
        let mut command = Command::new("unshare");
        command.args(["--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c"]);
        // The shell stays the first process: `undying` is not the parent of all orphans.
        command.arg(r#"mount --bind "$0" /mnt && "$@"; exit $?"#).arg(&self.folder);
        command.arg(env!("CARGO_BIN_EXE_undying")).arg("--store").arg(format!("/mnt/{}/store", self.name));
        command.args(words.split_whitespace());
        self.lab.call(self.lab.detached(&mut command))
    }

    /// Returns the regular files whose paths contain `place`, except those that contain only zeros.
    fn parts(&self, place: &str) -> Vec<PathBuf> {
        let mut parts = Vec::new();
        let mut folders = vec![self.path("image"), self.path("store")];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).into_iter().flatten() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    folders.push(path);
                } else if path.to_str().unwrap().contains(place)
                    && fs::read(&path).unwrap().iter().any(|byte| *byte != 0)
                {
                    parts.push(path.strip_prefix(&self.folder).unwrap().to_owned());
                }
            }
        }
        assert!(!parts.is_empty(), "{} has no {place}", self.name);
        parts.sort();
        parts
    }
}

/// Returns a lab if this machine can run the tests.
fn lab() -> Option<Lab> {
    if !supported() {
        return None;
    }
    let lab = Lab::new();
    let mut unshare = Command::new("unshare");
    unshare.args([
        "--mount",
        "--pid",
        "--fork",
        "--kill-child",
        "--mount-proc",
        "mount",
        "--bind",
        "/",
        "/mnt",
    ]);
    let said = lab.call(lab.detached(&mut unshare));
    if said.code != Some(0) {
        println!("unsupported: namespaces: {}", said.stderr.trim());
        return None;
    }
    Some(lab)
}

/// Reports whether a fixture was made on this kernel and this type of processor. Otherwise its programs cannot run.
fn is_of_this_machine(release: &str) -> bool {
    let said = Command::new(compat().join("machine.sh")).output().unwrap();
    let is = fs::read(compat().join(release).join("machine")).unwrap() == said.stdout;
    if !is {
        println!("unsupported: the machine of the fixtures of {release}");
    }
    is
}

fn is_named(said: &Said) -> bool {
    said.code != Some(0) && said.stderr.contains("help: ") && !said.stderr.contains("panicked")
}

#[test]
fn fixtures_of_earlier_versions_have_the_expected_results() {
    let Some(lab) = lab() else { return };
    for release in RELEASES {
        let is_ours = is_of_this_machine(release);
        for (name, lists) in FIXTURES {
            for (words, code, text) in lists.iter().copied().flatten() {
                let folder = format!("/mnt/{name}");
                let (words, text) = (words.replace("{}", &folder), text.replace("{}", &folder));
                let said = Unpacked::new(&lab, release, name).say(&words);
                if !is_ours && words.starts_with("restore") && is_named(&said) {
                    continue;
                }
                assert_eq!(said.code, Some(*code), "{release}: {words}: {said:?}");
                let all = said.stdout + &said.stderr;
                assert!(all.contains(&text), "{release}: {words}: no {text:?} in {all}");
            }
        }
    }
}

#[test]
fn every_fixture_has_expectations() {
    let names = |folder: &Path| {
        let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
        let mut names: Vec<String> = entries.map(|entry| entry.file_name().into_string().unwrap()).collect();
        names.sort();
        names
    };
    let mut releases = names(&compat());
    releases.retain(|name| compat().join(name).is_dir());
    assert_eq!(releases, RELEASES);
    for release in RELEASES {
        let mut expected: Vec<String> = FIXTURES.iter().map(|(name, _)| format!("{name}.tar.gz")).collect();
        expected.push("machine".to_owned());
        expected.sort();
        assert_eq!(names(&compat().join(release)), expected, "{release}");
    }
}

/// Truncates a file, or flips one of its bits. Returns what was done.
fn damage(file: &Path, variant: usize, random: &mut fastrand::Rng) -> String {
    let length = fs::metadata(file).unwrap().len();
    let open = fs::File::options().read(true).write(true).open(file).unwrap();
    let cuts = [0, 1, length / 2, length - 1];
    if let Some(cut) = cuts.get(variant) {
        open.set_len(*cut).unwrap();
        return format!("cut to {cut} of {length} bytes");
    }
    let bytes = fs::read(file).unwrap();
    // Most of a segment is unused and zero.
    let used: Vec<usize> = (0..bytes.len()).filter(|at| bytes[*at] != 0).collect();
    let at = used[random.usize(..used.len())];
    let bit = random.u32(..8);
    open.write_all_at(&[bytes[at] ^ 1 << bit], at as u64).unwrap();
    format!("bit {bit} of byte {at} of {length}")
}

/// Fixtures, a part of the paths of the damaged files, a command, and its exit codes if the damage has no effect. With
/// `OTHER_FILE`, an older checkpoint was restored: the damaged one looks as if it had never been committed.
const DAMAGED: [(&str, &str, &str, &[i32]); 7] = [
    ("one", "/image/", "restore {}/image --late-timers --files keep", &[RIGHT]),
    ("zstd", "/image/", "restore {}/image --late-timers --files keep", &[RIGHT]),
    ("log", "/job/log/", "restore job --late-timers --files keep", &[RIGHT, OTHER_FILE]),
    ("log", "/copy/", "restore copy --late-timers --files keep", &[RIGHT]),
    ("undo", "/job/undo/", "ls job", &[0]),
    ("killed", ".json", "status job", &[0]),
    ("up", ".json", "events", &[0]),
];

#[test]
fn a_damaged_fixture_is_refused_by_name_or_restored_correctly() {
    const VARIANTS: usize = 2;
    let Some(lab) = lab() else { return };
    let mut random = testkit::seeded("a_damaged_fixture_is_refused_by_name_or_restored_correctly");
    let mut refused = 0;
    for (release, (name, place, words, codes)) in
        RELEASES.iter().flat_map(|release| DAMAGED.iter().map(move |row| (*release, *row)))
    {
        for part in Unpacked::new(&lab, release, name).parts(place) {
            for variant in 0..testkit::rounds(VARIANTS, 60) {
                let unpacked = Unpacked::new(&lab, release, name);
                let done = damage(&unpacked.folder.join(&part), variant, &mut random);
                let said = unpacked.say(&words.replace("{}", &format!("/mnt/{name}")));
                let context = format!("{release}: {words}: {}: {done}: {said:?}", part.display());
                if is_named(&said) {
                    refused += 1;
                    assert!(matches!(said.code, Some(3 | 4 | 5 | 125)), "{context}");
                } else {
                    assert!(codes.contains(&said.code.unwrap()), "{context}");
                }
                assert!(!said.stderr.contains("panicked"), "{context}");
            }
        }
    }
    assert!(refused > 0);
}
