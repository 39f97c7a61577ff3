//! Compilation of the victims (test programs) and of other C programs of tests, once for each version of their sources.
//!
//! Owns: the list of victims, the compiler flags, and the directory of compiled programs.
//! Invariants: a compiled program is published by a rename, so it is always complete. A change of a source or a header
//! causes a new compilation.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::fs::{FlockOperation, flock};

use crate::error::HarnessError;
use crate::paths::{folder_in_target, victims_folder};

/// The optimisation is low, but keeps values in registers. Warnings are errors, like in the whole project.
const FLAGS: &[&str] =
    &["-std=gnu17", "-D_GNU_SOURCE", "-O1", "-g", "-pthread", "-Wall", "-Wextra", "-Werror"];

/// The flags for programs of other packages.
const SUBJECT_FLAGS: &[&str] = &["-Wall", "-Wno-unused-result", "-pthread"];

/// The C library that a victim is linked to.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Library {
    /// The default C library of the system.
    #[default]
    System,
    /// musl, linked statically without a dynamic loader: `musl-gcc` of the Debian package musl-tools.
    StaticMusl,
}

impl Library {
    fn compiler(self) -> OsString {
        match self {
            Self::System => system_compiler(),
            Self::StaticMusl => "musl-gcc".into(),
        }
    }

    fn flags(self) -> &'static [&'static str] {
        match self {
            Self::System => &[],
            Self::StaticMusl => &["-static"],
        }
    }

    /// Returns the directory for programs with this library.
    fn folder(self) -> &'static str {
        match self {
            Self::System => "victims",
            Self::StaticMusl => "victims-musl",
        }
    }
}

/// Returns the names of all victims, sorted.
///
/// # Errors
/// An error if the directory cannot be read.
pub fn victims() -> Result<Vec<String>, HarnessError> {
    let sources = files_with_extension("c")?;
    Ok(sources
        .iter()
        .filter_map(|path| path.file_stem())
        .map(|stem| stem.to_string_lossy().into_owned())
        .collect())
}

/// Compiles a victim unless this version is already compiled, and returns the path of the program. The compiler is `CC`
/// or `cc`.
///
/// # Errors
/// An error if the victim does not exist, if the compiler is missing, or if the compiler rejects the source.
pub fn compile(victim: &str) -> Result<PathBuf, HarnessError> {
    compile_with(victim, Library::System)
}

/// Compiles a victim with the given library, like [`compile`].
///
/// # Errors
/// The errors of [`compile`]; `Unsupported` if the compiler for the library is missing.
pub(crate) fn compile_with(victim: &str, library: Library) -> Result<PathBuf, HarnessError> {
    let source = victims_folder().join(format!("{victim}.c"));
    if !source.is_file() {
        return Err(HarnessError::NoSuchVictim(victim.to_owned()));
    }
    let mut key = Fnv::new();
    FLAGS.iter().for_each(|flag| key.add(flag.as_bytes()));
    for header in files_with_extension("h")? {
        key.add(&read(&header)?);
    }
    let mut command = Command::new(library.compiler());
    command.args(FLAGS).args(library.flags());
    built(victim, library.folder(), key, command, &source).map_err(|error| match error {
        HarnessError::Spawn { source, .. }
            if library == Library::StaticMusl && source.kind() == ErrorKind::NotFound =>
        {
            HarnessError::Unsupported { victim: victim.to_owned(), reason: "musl-gcc".to_owned() }
        }
        other => other,
    })
}

/// Compiles a C program among the test subjects of a package unless this version is already compiled, and returns its
/// path. `package` is the directory of the package. Other tests execute the same file. Without a C compiler,
/// prints `unsupported` and returns `None`.
///
/// # Panics
///
/// Panics if the source does not compile.
#[must_use]
pub fn compiled(package: &str, name: &str, flags: &[&str]) -> Option<PathBuf> {
    compiled_source(&Path::new(package).join("tests/subjects").join(name).with_extension("c"), flags)
}

/// Like [`compiled`], for any C program. A header beside the program belongs to its version.
///
/// # Panics
///
/// Panics if the source does not compile.
#[must_use]
pub fn compiled_source(source: &Path, flags: &[&str]) -> Option<PathBuf> {
    let name = source.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let mut key = Fnv::new();
    flags.iter().chain(SUBJECT_FLAGS).for_each(|flag| key.add(flag.as_bytes()));
    let beside = source.parent().and_then(|folder| fs::read_dir(folder).ok()).into_iter().flatten().flatten();
    let mut headers: Vec<PathBuf> = beside.map(|entry| entry.path()).collect();
    headers.retain(|path| path.extension().is_some_and(|extension| extension == "h"));
    headers.sort();
    headers.iter().filter_map(|header| fs::read(header).ok()).for_each(|text| key.add(&text));
    let mut command = Command::new(system_compiler());
    command.args(flags).args(SUBJECT_FLAGS);
    match built(&name, "subjects", key, command, source) {
        Ok(program) => Some(program),
        Err(HarnessError::Spawn { .. }) => {
            println!("unsupported: a C compiler");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

fn system_compiler() -> OsString {
    std::env::var_os("CC").unwrap_or_else(|| "cc".into())
}

/// Runs the compiler unless the program exists. The key is that of the flags and headers.
fn built(
    name: &str,
    folder: &str,
    mut key: Fnv,
    command: Command,
    source: &Path,
) -> Result<PathBuf, HarnessError> {
    key.add(&read(source)?);
    let folder = folder_in_target(folder)?.join(format!("{:016x}", key.0));
    let program = folder.join(name);
    if program.is_file() {
        return Ok(program);
    }
    fs::create_dir_all(&folder).map_err(file_error("create", &folder))?;
    let _lock = lock(&folder)?;
    if !program.is_file() {
        run_compiler(name, command, source, &program)?;
    }
    Ok(program)
}

/// Reports whether the opening comment of a victim has a line with this beginning. With such lines, a victim declares
/// how the harness must check the victim.
///
/// # Errors
/// An error if the source cannot be read.
pub(crate) fn declares(victim: &str, beginning: &str) -> Result<bool, HarnessError> {
    let source = victims_folder().join(format!("{victim}.c"));
    let text = fs::read_to_string(&source).map_err(file_error("read", &source))?;
    let comment = text.split("*/").next().unwrap_or_default();
    Ok(comment.lines().any(|one| one.trim_matches([' ', '*', '/']).starts_with(beginning)))
}

fn run_compiler(name: &str, mut command: Command, source: &Path, program: &Path) -> Result<(), HarnessError> {
    let partial = program.with_extension("partial");
    let output = command.arg("-o").arg(&partial).arg(source).output().map_err(|source| {
        HarnessError::Spawn { program: command.get_program().to_string_lossy().into_owned(), source }
    })?;
    if !output.status.success() {
        return Err(HarnessError::Compile {
            victim: name.to_owned(),
            output: String::from_utf8_lossy(&output.stderr).into_owned(),
        });
    }
    fs::rename(&partial, program).map_err(file_error("publish", program))
}

/// Locks the directory of a victim, so that only one compiler runs for the victim. The lock ends when the file is
/// closed.
fn lock(folder: &Path) -> Result<File, HarnessError> {
    let path = folder.join("lock");
    let file = File::create(&path).map_err(file_error("create", &path))?;
    flock(&file, FlockOperation::LockExclusive).map_err(|error| file_error("lock", &path)(error.into()))?;
    Ok(file)
}

fn read(path: &Path) -> Result<Vec<u8>, HarnessError> {
    fs::read(path).map_err(file_error("read", path))
}

fn files_with_extension(extension: &str) -> Result<Vec<PathBuf>, HarnessError> {
    let folder = victims_folder();
    let entries = fs::read_dir(&folder).map_err(file_error("list", &folder))?;
    let mut files = entries
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<Result<Vec<_>, _>>()
        .map_err(file_error("list", &folder))?;
    files.retain(|path| path.extension() == Some(OsStr::new(extension)));
    files.sort();
    Ok(files)
}

fn file_error(operation: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> HarnessError {
    let path = path.to_path_buf();
    move |source| HarnessError::File { operation, path, source }
}

/// The hash FNV-1a with 64 bits (Fowler, Noll, Vo). The hash identifies a content, but gives no protection against
/// attacks.
struct Fnv(u64);

impl Fnv {
    fn new() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }

    fn add(&mut self, bytes: &[u8]) {
        for byte in bytes.iter().copied().chain([0xff]) {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_victim_is_named() {
        let error = compile("no_such_thing").unwrap_err();
        assert!(error.to_string().contains("no_such_thing"), "{error}");
    }

    #[test]
    fn a_victim_is_compiled_once() {
        let first = compile("state_umask").unwrap();
        let modified = fs::metadata(&first).unwrap().modified().unwrap();
        assert_eq!(compile("state_umask").unwrap(), first);
        assert_eq!(fs::metadata(&first).unwrap().modified().unwrap(), modified);
    }

    #[test]
    fn every_source_says_what_it_proves() {
        for path in files_with_extension("c").unwrap().into_iter().chain(files_with_extension("h").unwrap()) {
            let text = fs::read_to_string(&path).unwrap();
            assert!(text.starts_with("/* "), "{} does not open with a comment", path.display());
            assert!(text.lines().count() <= 600, "{} is too long", path.display());
        }
    }
}
