//! The programs for a run on another kernel, which are built on this machine.
//!
//! Owns: the meaning of the first word of a command line, and the build of tests and victims (test programs).
//! Invariants: an unknown test name is refused before the machine boots.
//! Does not: run the programs.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use cargo_metadata::camino::Utf8PathBuf;
use cargo_metadata::{Artifact, Message, MetadataCommand};

use crate::failure::Failure;
use crate::vm::output;

/// The prefix of the package names of this workspace.
const PREFIX: &str = "undying-";
/// Arguments of cargo that compile every victim and print its path.
const VICTIMS: &[&str] = &["run", "--quiet", "--package", "undying-testkit", "--example", "compile_victims"];

/// One command line.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Line {
    /// The `NAME=VALUE` words before the program.
    settings: Vec<String>,
    program: Program,
    arguments: String,
}

#[derive(Debug, PartialEq, Eq)]
enum Program {
    Test { package: String, target: String },
    Undying,
    Other(String),
}

impl Line {
    /// Parses a command line.
    pub(crate) fn parse(text: &str) -> Result<Self, Failure> {
        let mut rest = text.trim();
        let mut settings = Vec::new();
        loop {
            let (word, after) = rest.split_once(' ').unwrap_or((rest, ""));
            if word.is_empty() {
                return Err(Failure::NoSuchTest { name: text.to_owned() });
            }
            rest = after.trim_start();
            if word.split_once('=').is_some_and(|(name, _)| !name.contains('/')) {
                settings.push(word.to_owned());
                continue;
            }
            let program = match word.split_once('/') {
                _ if word == "undying" => Program::Undying,
                Some((package, target)) if !package.is_empty() => {
                    Program::Test { package: package.to_owned(), target: target.to_owned() }
                }
                _ => Program::Other(word.to_owned()),
            };
            return Ok(Self { settings, program, arguments: rest.to_owned() });
        }
    }
}

/// The results of the build.
pub(crate) struct Build {
    /// The root of the source tree.
    pub(crate) root: PathBuf,
    /// The build directory for the target of this machine.
    pub(crate) target: PathBuf,
    /// The built programs and victims.
    pub(crate) files: Vec<PathBuf>,
    /// The command lines in the form for a shell.
    pub(crate) lines: Vec<String>,
}

/// A test program, and the directory in which it must run.
struct Test {
    executable: PathBuf,
    folder: PathBuf,
}

/// Builds the programs that the lines name, `undying` itself, and the victims if a line may need them.
pub(crate) fn build(lines: &[Line]) -> Result<Build, Failure> {
    let root = MetadataCommand::new().no_deps().exec()?.workspace_root.into_std_path_buf();
    let undying = program("undying-cli")?;
    // The target directory is the parent of the profile directory.
    let target = undying.ancestors().nth(2).map(Path::to_path_buf).unwrap_or_default();
    let mut files = vec![undying.clone()];
    let mut packages: Vec<&str> = lines.iter().filter_map(package).collect();
    packages.sort_unstable();
    packages.dedup();
    let mut tests = BTreeMap::new();
    for package in &packages {
        tests.extend(tests_of(package)?);
    }
    if packages.contains(&"testkit") {
        let compiled = cargo(VICTIMS)?;
        files.extend(compiled.lines().map(PathBuf::from));
    }
    let mut commands = Vec::new();
    for line in lines {
        let settings: String = line.settings.iter().map(|setting| format!("{setting} ")).collect();
        let command = match &line.program {
            Program::Undying => format!("{settings}{}", quoted(&undying)),
            Program::Other(program) => format!("{settings}{program}"),
            Program::Test { package, target } => {
                let name = format!("{package}/{target}");
                let test = tests.get(&name).ok_or(Failure::NoSuchTest { name })?;
                files.push(test.executable.clone());
                format!("cd {} && {settings}{}", quoted(&test.folder), quoted(&test.executable))
            }
        };
        commands.push(format!("{command} {}", line.arguments));
    }
    Ok(Build { root, target, files, lines: commands })
}

fn package(line: &Line) -> Option<&str> {
    match &line.program {
        Program::Test { package, .. } => Some(package),
        _ => None,
    }
}

/// Quotes a path for a shell. Paths of a build contain no quotation marks.
fn quoted(path: &Path) -> String {
    format!("'{}'", path.display())
}

/// Builds the program of a package, and returns its path.
fn program(package: &str) -> Result<PathBuf, Failure> {
    let printed = cargo(&["build", "--package", package, "--message-format=json-render-diagnostics"])?;
    let found = artifacts(&printed).find_map(|artifact| artifact.executable);
    found.map(Utf8PathBuf::into_std_path_buf).ok_or_else(|| Failure::NoSuchTest { name: package.to_owned() })
}

fn artifacts(printed: &str) -> impl Iterator<Item = Artifact> {
    Message::parse_stream(printed.as_bytes()).map_while(Result::ok).filter_map(|message| match message {
        Message::CompilerArtifact(artifact) => Some(artifact),
        _ => None,
    })
}

/// Builds the test programs of a package. The key is `PACKAGE/TARGET`.
fn tests_of(package: &str) -> Result<BTreeMap<String, Test>, Failure> {
    let full = format!("{PREFIX}{package}");
    let printed =
        cargo(&["test", "--no-run", "--package", &full, "--message-format=json-render-diagnostics"])?;
    let mut tests = BTreeMap::new();
    for artifact in artifacts(&printed) {
        let Some(executable) = artifact.executable.filter(|_| artifact.profile.test) else { continue };
        let name = if artifact.target.is_test() { artifact.target.name.as_str() } else { "lib" };
        let folder = artifact.manifest_path.parent().map(|folder| folder.as_std_path().to_path_buf());
        let test = Test { executable: executable.into_std_path_buf(), folder: folder.unwrap_or_default() };
        tests.insert(format!("{package}/{name}"), test);
    }
    Ok(tests)
}

/// Runs the cargo that has started this program. The messages of cargo go to the terminal.
fn cargo(arguments: &[&str]) -> Result<String, Failure> {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    output(command.args(arguments).stdin(Stdio::null()).stderr(Stdio::inherit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_word_says_what_runs() {
        let line = Line::parse("A=1 track/all soak::soft --nocapture").unwrap();
        let program = Program::Test { package: "track".to_owned(), target: "all".to_owned() };
        let expected = Line {
            settings: vec!["A=1".to_owned()],
            program,
            arguments: "soak::soft --nocapture".to_owned(),
        };
        assert_eq!(line, expected);
        assert_eq!(Line::parse("PATH=/bin undying doctor").unwrap().settings, ["PATH=/bin"]);
        assert_eq!(Line::parse("undying doctor").unwrap().program, Program::Undying);
        assert_eq!(Line::parse("/bin/uname -a").unwrap().program, Program::Other("/bin/uname".to_owned()));
        assert!(Line::parse(" ").is_err());
    }
}
