//! Tests of the files that `make install` and `make deb` install. No file may remain after the removal.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

const BINARY: &str = env!("CARGO_BIN_EXE_undying");

/// Creates a small script that executes the tested program. The program itself is large, and takes a minute to
/// compress.
fn small_program(folder: &Path) -> PathBuf {
    let path = folder.join("undying");
    std::fs::write(&path, format!("#!/bin/sh\nexec '{BINARY}' \"$@\"\n")).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    path
}

fn script(name: &str) -> Command {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging").join(name);
    let mut command = Command::new(path);
    // A script has no symbols to strip.
    command.env("STRIP", "");
    command
}

fn said(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { found.extend(files(&path)) } else { found.push(path) }
    }
    found
}

#[test]
fn an_installation_is_complete_and_its_removal_too() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().to_string_lossy().into_owned();
    let programs = tempfile::tempdir().unwrap();
    let program = small_program(programs.path());
    said(script("install.sh").arg(&program).args(["/usr/local", &root]));
    let installed = folder.path().join("usr/local");
    for file in [
        "bin/undying",
        "share/man/man1/undying.1.gz",
        "share/bash-completion/completions/undying",
        "share/zsh/site-functions/_undying",
        "share/fish/vendor_completions.d/undying.fish",
        "share/doc/undying/README.md",
        "share/doc/undying/docs/operating/system.md",
        "share/doc/undying/examples/undying@.service",
    ] {
        let length =
            std::fs::metadata(installed.join(file)).unwrap_or_else(|error| panic!("{file}: {error}")).len();
        assert!(length > 0, "{file}");
    }
    let version = said(Command::new(installed.join("bin/undying")).arg("--version"));
    assert_eq!(version.trim(), concat!("undying ", env!("CARGO_PKG_VERSION")));
    // The installed example must be a valid system file.
    // The programs of its components need not be installed here.
    said(
        Command::new(BINARY)
            .args(["check", "--file-only"])
            .arg(installed.join("share/doc/undying/examples/shop.toml")),
    );
    said(script("uninstall.sh").args(["/usr/local", &root]));
    assert_eq!(files(folder.path()), Vec::<PathBuf>::new());
}

#[test]
fn packages_are_the_same_for_the_same_program() {
    if Command::new("dpkg-deb").arg("--version").output().is_err() {
        println!("unsupported: dpkg-deb");
        return;
    }
    let programs = tempfile::tempdir().unwrap();
    let program = small_program(programs.path());
    for kind in ["deb", "tar"] {
        let (first, second) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let made = [&first, &second].map(|folder| {
            let mut command = script("package.sh");
            command.arg(kind).arg(&program).arg(folder.path()).env("SOURCE_DATE_EPOCH", "1700000000");
            let path = said(&mut command).trim().to_owned();
            assert!(path.contains(env!("CARGO_PKG_VERSION")), "{path}");
            std::fs::read(path).unwrap()
        });
        assert!(made[0] == made[1], "two packages of kind {kind} differ");
    }
}
