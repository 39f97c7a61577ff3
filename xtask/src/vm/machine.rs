//! The emulated machine: QEMU with serial lines and a disk.
//!
//! Owns: the command line of the emulator, the forwarding of program output, and the parser of exit statuses.
//! Invariants: the emulator is killed at the time limit, even if this program was killed before.
//! Does not: use hardware virtualization. The results must not depend on the features of the host.

use std::fs;
use std::io::{Read as _, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::failure::Failure;
use crate::vm::at;
use crate::vm::disk::Disks;
use crate::vm::kernel::Kernel;

/// Memory of the machine in MiB. The largest test writes a gigabyte.
const MEMORY_MIB: u32 = 3072;

/// The factor by which the tests multiply their time limits (testkit/src/limits.rs). On emulated CPUs, the restart
/// matrix took six times as long as on the host. The limits are long enough for the difference.
pub(crate) const SLOWNESS: &str = "UNDYING_TEST_SLOWNESS=5";

/// The result of a command line.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Outcome {
    /// The number of the command line, starting with 0.
    pub(crate) line: usize,
    /// The exit status.
    pub(crate) status: i32,
    /// The duration in seconds, measured with the clock of the emulated machine.
    pub(crate) seconds: u64,
}

/// Boots the machine and forwards its output. Returns the results of the command lines and the whole output.
pub(crate) fn run(
    folder: &Path,
    kernel: &Kernel,
    disks: &Disks,
    limit: Duration,
) -> Result<(Vec<Outcome>, String), Failure> {
    let (said, kernels, ended) =
        (folder.join("output"), folder.join("kernel-messages"), folder.join("ended"));
    for path in [&said, &kernels, &ended] {
        let _of_an_earlier_run = fs::remove_file(path);
    }
    let mut command = emulator(kernel, disks, limit);
    command.arg("-serial").arg("stdio");
    command.arg("-serial").arg(format!("file:{}", kernels.display()));
    command.arg("-serial").arg(format!("file:{}", ended.display()));
    let failed = |source| Failure::Command { command: "qemu-system-x86_64".to_owned(), source };
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().map_err(failed)?;
    let mut output = child.stdout.take().expect("the pipe was asked for one line above");
    let mut kept = fs::File::create(&said).map_err(at(&said))?;
    let mut buffer = [0; 4096];
    loop {
        let count = output.read(&mut buffer).map_err(failed)?;
        if count == 0 {
            break;
        }
        kept.write_all(&buffer[..count]).map_err(at(&said))?;
        std::io::stdout().write_all(&buffer[..count]).map_err(at(Path::new("the terminal")))?;
        let _the_terminal_may_be_slow = std::io::stdout().flush();
    }
    let status = child.wait().map_err(failed)?;
    if !status.success() {
        println!("vm: the machine ended with {status}; the kernel's messages are in {}", kernels.display());
    }
    let text = fs::read_to_string(&ended).map_err(at(&ended))?;
    let said = fs::read(&said).map_err(at(&said))?;
    Ok((text.lines().filter_map(outcome).collect(), String::from_utf8_lossy(&said).into_owned()))
}

/// Creates the command of the emulator. `timeout` kills the emulator even if no process waits for it.
fn emulator(kernel: &Kernel, disks: &Disks, limit: Duration) -> Command {
    let mut command = Command::new("timeout");
    command.args(["--foreground", "--kill-after=5"]).arg(limit.as_secs().to_string());
    command.arg("qemu-system-x86_64").args(["-nodefaults", "-display", "none", "-no-reboot"]);
    command.args(["-accel", "tcg,thread=multi", "-cpu", "max,la57=off", "-smp", "2"]);
    command.arg("-m").arg(MEMORY_MIB.to_string());
    command.arg("-kernel").arg(&kernel.image).arg("-initrd").arg(&disks.early);
    command.args(["-append", "console=ttyS1 panic=-1 mitigations=off"]);
    let disk = format!("file={},format=raw,if=virtio,cache=unsafe", disks.main.display());
    command.args(["-drive", &disk]);
    command
}

/// Parses a line like `007 101 12`: number, exit status, seconds.
fn outcome(text: &str) -> Option<Outcome> {
    let mut words = text.split_whitespace();
    let line = words.next()?.parse().ok()?;
    Some(Outcome { line, status: words.next()?.parse().ok()?, seconds: words.next()?.parse().ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn how_a_line_ended_is_read() {
        assert_eq!(outcome("007 101 12\r"), Some(Outcome { line: 7, status: 101, seconds: 12 }));
        assert_eq!(outcome("007 101"), None);
    }
}
