//! The disks of the emulated machine, with programs of this machine at their usual paths.
//!
//! Owns: the content of the disks, and their creation without a mount.
//! Invariants: each program is copied with the libraries that it loads on this machine. Symbolic links stay links.
//! Does not: copy files that no test needs, for example the rest of the build directory.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Component, Path, PathBuf};
use std::process::Command;

use crate::failure::Failure;
use crate::vm::kernel::Kernel;
use crate::vm::programs::Build;
use crate::vm::{at, find_program, machine, output};

/// The script of the first process, before the main disk is mounted.
const EARLY: &str = include_str!("early.sh");
/// The script of the first process, after the main disk is mounted.
const INIT: &str = include_str!("init.sh");
/// Programs that tests call. A program that is missing on this machine is also missing on the emulated machine, and the
/// tests report it.
const PROGRAMS: &[&str] = &[
    "as", "bash", "busybox", "cat", "cc", "chmod", "cp", "dd", "echo", "env", "false", "gcc", "grep", "head",
    "id", "ip", "kill", "ld", "ln", "ls", "mkdir", "mktemp", "mount", "mv", "nft", "nice", "ps", "rm", "sed",
    "setpriv", "setsid", "sh", "sleep", "sort", "stat", "stty", "sync", "tail", "tee", "timeout", "touch",
    "true", "umount", "uname", "unshare", "wc",
];
/// Directories of the workspace that tests read.
const SOURCES: &[&str] = &["crates", "testkit", "docs"];
/// Files for the lookup of user accounts and libraries.
const ACCOUNTS: &[&str] = &["/etc/passwd", "/etc/group", "/etc/nsswitch.conf", "/etc/ld.so.cache"];
/// Free space for files that tests write, in MiB. The disk is a sparse file.
const FREE_MIB: u64 = 3072;

/// The disks from which the machine boots.
pub(crate) struct Disks {
    /// The archive of the initial file system, which the kernel loads into memory.
    pub(crate) early: PathBuf,
    /// The disk with the main file system.
    pub(crate) main: PathBuf,
}

/// Creates both disks.
pub(crate) fn make(folder: &Path, kernel: &Kernel, build: &Build) -> Result<Disks, Failure> {
    let early = early(folder, kernel)?;
    let mut tree = Tree::new(folder.join("root"))?;
    tree.place_all(build)?;
    tree.place_compiler()?;
    tree.place_modules(kernel)?;
    tree.place_system(build)?;
    let main = folder.join("disk");
    let _of_an_earlier_run = fs::remove_file(&main);
    let bytes = output(Command::new("du").args(["-sm", "--apparent-size"]).arg(&tree.root))?;
    let used: u64 = bytes.split_whitespace().next().and_then(|word| word.parse().ok()).unwrap_or(FREE_MIB);
    let mke2fs = find_program("mke2fs").unwrap_or_else(|| "mke2fs".into());
    let mut command = Command::new(mke2fs);
    command.args(["-q", "-F", "-t", "ext4", "-E", "root_owner=0:0,lazy_itable_init=1", "-d"]);
    output(command.arg(&tree.root).arg(&main).arg(format!("{}M", used * 5 / 4 + FREE_MIB)))?;
    Ok(Disks { early, main })
}

/// Creates the archive of the initial file system: a shell, the modules that the main disk needs, and the first script.
fn early(folder: &Path, kernel: &Kernel) -> Result<PathBuf, Failure> {
    let root = folder.join("early");
    empty(&root)?;
    for name in ["bin", "proc", "dev", "sys", "root"] {
        let below = root.join(name);
        fs::create_dir(&below).map_err(at(&below))?;
    }
    let busybox = find_program("busybox")
        .ok_or(Failure::MissingProgram { program: "busybox", package: "busybox-static" })?;
    copy(&busybox, &root.join("bin/busybox"))?;
    // The main disk needs these modules. Several kernels have them built in.
    let found = output(Command::new("find").arg(&kernel.modules).args(["-name", "virtio*.ko"]))?;
    let modules = root.join("lib/modules").join(kernel.release());
    for path in found.lines().map(Path::new) {
        let to = modules.join(path.strip_prefix(&kernel.modules).unwrap_or(path));
        fs::create_dir_all(to.parent().unwrap_or(&modules)).map_err(at(&to))?;
        copy(path, &to)?;
    }
    for list in ["modules.builtin", "modules.order"] {
        copy(&kernel.modules.join(list), &modules.join(list))?;
    }
    depmod(&root, kernel)?;
    write_script(&root.join("init"), EARLY)?;
    let archive = folder.join("early.cpio");
    let script = r#"cd "$1" && busybox find . | busybox cpio -o -H newc > "$2""#;
    output(Command::new("sh").args(["-c", script, "sh"]).arg(&root).arg(&archive))?;
    Ok(archive)
}

/// Creates the list of module dependencies. The Debian package does not contain the list, because its installation
/// script creates it.
fn depmod(root: &Path, kernel: &Kernel) -> Result<(), Failure> {
    output(Command::new("busybox").args(["depmod", "-b"]).arg(root).arg(kernel.release())).map(drop)
}

fn empty(folder: &Path) -> Result<(), Failure> {
    if folder.is_dir() {
        fs::remove_dir_all(folder).map_err(at(folder))?;
    }
    fs::create_dir_all(folder).map_err(at(folder))
}

fn copy(from: &Path, to: &Path) -> Result<(), Failure> {
    fs::copy(from, to).map(drop).map_err(at(from))
}

fn write_script(path: &Path, text: &str) -> Result<(), Failure> {
    fs::write(path, text).map_err(at(path))?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).map_err(at(path))
}

/// The main file system during its construction.
struct Tree {
    root: PathBuf,
    placed: BTreeSet<PathBuf>,
}

impl Tree {
    fn new(root: PathBuf) -> Result<Self, Failure> {
        empty(&root)?;
        Ok(Self { root, placed: BTreeSet::new() })
    }

    fn inside(&self, path: &Path) -> PathBuf {
        self.root.join(path.strip_prefix("/").unwrap_or(path))
    }

    /// Copies the built programs, and the programs and files that tests use.
    fn place_all(&mut self, build: &Build) -> Result<(), Failure> {
        for program in PROGRAMS {
            if let Some(path) = find_program(program) {
                self.place_program(&path)?;
            }
        }
        for file in &build.files {
            self.place_program(file)?;
        }
        for folder in SOURCES {
            self.place_folder(&build.root.join(folder))?;
        }
        for file in ACCOUNTS.iter().map(Path::new).filter(|file| file.exists()) {
            self.place(file)?;
        }
        Ok(())
    }

    /// Copies the files that `cc` needs to compile and link a C program.
    fn place_compiler(&mut self) -> Result<(), Failure> {
        let ask = |question: String| {
            output(Command::new("cc").arg(question)).map(|answer| PathBuf::from(answer.trim()))
        };
        for program in ["cc1", "collect2", "lto-wrapper"] {
            let path = ask(format!("-print-prog-name={program}"))?;
            if path.is_absolute() {
                self.place_program(&path)?;
            }
        }
        for file in [
            "crtbegin.o",
            "crtbeginS.o",
            "crtend.o",
            "crtendS.o",
            "libgcc.a",
            "libgcc_s.so",
            "crt1.o",
            "Scrt1.o",
            "crti.o",
            "crtn.o",
            "libc.so",
            "libc_nonshared.a",
            "libm.so",
            "libmvec.so",
            "libpthread.a",
            "librt.a",
            "libgcc_s.so.1",
            "liblto_plugin.so",
        ] {
            let path = ask(format!("-print-file-name={file}"))?;
            if path.is_absolute() {
                self.place_program(&path)?;
            }
        }
        let own = ask("-print-file-name=include".to_owned())?;
        let machine = ask("-print-multiarch".to_owned())?;
        let general = Path::new("/usr/include");
        self.place_folder(&own)?;
        for name in ["linux", "asm-generic", "bits", "sys", "net", "netinet", "arpa", "rpc"] {
            self.place_folder(&general.join(name))?;
        }
        self.place_folder(&general.join(machine))?;
        let entries = fs::read_dir(general).map_err(at(general))?;
        for path in entries.filter_map(|entry| Some(entry.ok()?.path())).filter(|path| path.is_file()) {
            self.place(&path)?;
        }
        Ok(())
    }

    fn place_modules(&mut self, kernel: &Kernel) -> Result<(), Failure> {
        let to = self.root.join("usr/lib/modules");
        fs::create_dir_all(&to).map_err(at(&to))?;
        output(Command::new("cp").arg("-r").arg(&kernel.modules).arg(&to))?;
        depmod(&self.root, kernel)
    }

    /// Creates the directories, the first script, and the scripts of the command lines.
    fn place_system(&mut self, build: &Build) -> Result<(), Failure> {
        for name in
            ["proc", "sys", "dev", "run", "tmp", "root", "etc", "mnt", "var/tmp", "vm/lines", "usr/sbin"]
        {
            let path = self.root.join(name);
            fs::create_dir_all(&path).map_err(at(&path))?;
        }
        // The kernel calls /sbin/modprobe.
        for name in ["/bin", "/sbin", "/lib", "/lib64"] {
            self.place(Path::new(name))?;
        }
        for name in ["tmp", "var/tmp"] {
            let path = self.root.join(name);
            fs::set_permissions(&path, fs::Permissions::from_mode(0o1777)).map_err(at(&path))?;
        }
        let temporary = self.inside(&build.target.join("tmp"));
        fs::create_dir_all(&temporary).map_err(at(&temporary))?;
        let modprobe = self.root.join("sbin/modprobe");
        let _there_already = symlink("/usr/bin/busybox", &modprobe);
        write_script(&self.root.join("vm/init"), INIT)?;
        for (number, line) in build.lines.iter().enumerate() {
            let script = format!("export {}\n{line}\n", machine::SLOWNESS);
            write_script(&self.root.join(format!("vm/lines/{number:03}")), &script)?;
        }
        Ok(())
    }

    /// Copies a program or a library, with the libraries that it loads.
    fn place_program(&mut self, path: &Path) -> Result<(), Failure> {
        self.place(path)?;
        // A static program, a script or an archive loads no libraries. In this case, `ldd` exits with an error.
        let Ok(listed) = output(Command::new("ldd").arg(path)) else { return Ok(()) };
        for library in libraries(&listed) {
            self.place(library)?;
        }
        Ok(())
    }

    fn place_folder(&mut self, folder: &Path) -> Result<(), Failure> {
        self.place(folder)?;
        let Ok(entries) = fs::read_dir(folder) else { return Ok(()) };
        for path in entries.filter_map(|entry| Some(entry.ok()?.path())) {
            if path.is_dir() && !path.is_symlink() { self.place_folder(&path)? } else { self.place(&path)? }
        }
        Ok(())
    }

    /// Copies a file or an empty directory to the same path, with every symbolic link on the path.
    fn place(&mut self, path: &Path) -> Result<(), Failure> {
        let mut rest = components(path);
        let mut here = PathBuf::from("/");
        while let Some(name) = rest.pop() {
            if name == ".." {
                here.pop();
                continue;
            }
            let next = here.join(&name);
            let Ok(metadata) = fs::symlink_metadata(&next) else { return Ok(()) };
            let inside = self.inside(&next);
            let new = self.placed.insert(next.clone());
            if metadata.is_symlink() {
                let target = fs::read_link(&next).map_err(at(&next))?;
                if new {
                    symlink(&target, &inside).map_err(at(&inside))?;
                }
                if target.is_absolute() {
                    here = PathBuf::from("/");
                }
                rest.extend(components(&target));
                continue;
            }
            if metadata.is_dir() && new {
                fs::create_dir_all(&inside).map_err(at(&inside))?;
            } else if metadata.is_file() && new {
                copy(&next, &inside)?;
            }
            here = next;
        }
        Ok(())
    }
}

/// Returns the components of a path, in reverse order.
fn components(path: &Path) -> Vec<OsString> {
    let mut names: Vec<OsString> = path
        .components()
        .filter(|component| matches!(component, Component::Normal(_) | Component::ParentDir))
        .map(|component| component.as_os_str().to_owned())
        .collect();
    names.reverse();
    names
}

/// Returns the paths in the output of `ldd`.
fn libraries(listed: &str) -> impl Iterator<Item = &Path> {
    listed.split_whitespace().filter(|word| word.starts_with('/')).map(Path::new)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_the_paths_that_ldd_prints() {
        let listed =
            "\tlinux-vdso.so.1 (0x00007ffe)\n\tlibc.so.6 => /lib/libc.so.6 (0x00007f)\n\t/lib64/ld.so (0x7f)";
        let expected = ["/lib/libc.so.6", "/lib64/ld.so"].map(Path::new);
        assert_eq!(libraries(listed).collect::<Vec<_>>(), expected);
    }

    #[test]
    fn links_on_the_way_stay_links() {
        let folder = std::env::temp_dir().join(format!("xtask-vm-{}", std::process::id()));
        let here = folder.join("here");
        fs::create_dir_all(here.join("real/deep")).unwrap();
        fs::write(here.join("real/deep/file"), "text").unwrap();
        symlink("../here/real", here.join("link")).unwrap();
        symlink(here.join("real/deep"), here.join("absolute")).unwrap();
        let mut tree = Tree::new(folder.join("tree")).unwrap();
        tree.place(&here.join("link/deep/file")).unwrap();
        tree.place_folder(&here.join("absolute")).unwrap();
        assert_eq!(fs::read_link(tree.inside(&here.join("link"))).unwrap(), Path::new("../here/real"));
        assert!(tree.inside(&here.join("absolute")).is_symlink());
        assert_eq!(fs::read_to_string(tree.inside(&here.join("real/deep/file"))).unwrap(), "text");
        fs::remove_dir_all(&folder).unwrap();
    }
}
