//! Tests of sweeps over real programs whose executable pages change.
//!
//! Owns: a program with large text, a tracer that sets a breakpoint, and a program that patches itself.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use model::{Address, ByteCount, PAGE_BYTES, PageCount, Pid};
use sys::clock::Clock;
use testkit::{Guard, until};
use tracee::ProcessMemory;

use super::*;
use crate::test_support::{Running, compile};

const EVERY: Duration = Duration::from_secs(60);

/// The program touches several pages of its text, prints the address of the text, and then reads commands.
const PROGRAM: &str = r#"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096
#define BYTES (64 * PAGE)
__asm__(".text\n.balign 4096\n.globl code\ncode:\n.fill 262144, 1, 0x90\n.balign 4096\n");
extern const unsigned char code[];

static void patch(size_t at, unsigned char byte) {
    unsigned char *page = (unsigned char *)code + at / PAGE * PAGE;
    if (mprotect(page, PAGE, PROT_READ | PROT_WRITE) != 0)
        _exit(2);
    page[at % PAGE] = byte;
    if (mprotect(page, PAGE, PROT_READ | PROT_EXEC) != 0)
        _exit(2);
}

static void trace(void) {
    pid_t child = fork();
    if (child == 0) {
        ptrace(PTRACE_TRACEME, 0, 0, 0);
        raise(SIGSTOP);
        for (;;)
            pause();
    }
    int status;
    waitpid(child, &status, 0);
    printf("child %d\n", child);
    fflush(stdout);
    char line[32];
    while (fgets(line, sizeof line, stdin)) {
        long word = ptrace(PTRACE_PEEKTEXT, child, code + 5 * PAGE, 0);
        word = (word & ~0xffL) | (line[0] == 'b' ? 0xcc : 0x91);
        ptrace(PTRACE_POKETEXT, child, code + 5 * PAGE, word);
        puts("done");
        fflush(stdout);
    }
}

int main(int count, char **words) {
    if (count > 1 && strcmp(words[1], "early") == 0)
        for (size_t at = 0; at < 8; at++)
            patch(at * PAGE, 0x91);
    volatile unsigned char sum = 0;
    for (size_t at = 0; at < BYTES; at += PAGE)
        sum += code[at];
    printf("at %lx\n", (unsigned long)code);
    fflush(stdout);
    if (count > 1 && strcmp(words[1], "trace") == 0)
        trace();
    char line[32];
    while (fgets(line, sizeof line, stdin)) {
        size_t at = strtoul(line, NULL, 10);
        patch(at, code[at] ^ 1);
        puts("done");
        fflush(stdout);
    }
}
"#;

/// The running program, and the pipes to its standard input and output.
struct Program {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    code: Address,
    _guard: Guard,
    _folder: tempfile::TempDir,
}

impl Program {
    fn start(mode: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = compile(folder.path(), PROGRAM);
        let guard = Guard::new();
        let mut command = Command::new(path);
        guard.mark(&mut command).arg(mode).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let input = child.stdin.take().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let mut program = Self { child, input, output, code: Address(0), _guard: guard, _folder: folder };
        let line = program.line();
        let text = line.strip_prefix("at ").unwrap();
        program.code = Address(u64::from_str_radix(text, 16).unwrap());
        program
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    fn ask(&mut self, line: &str) {
        writeln!(self.input, "{line}").unwrap();
        assert_eq!(self.line(), "done");
    }

    fn pid(&self) -> Pid {
        Pid(self.child.id() as i32)
    }

    fn page(&self, number: u64) -> Address {
        self.code + ByteCount(number * PAGE_BYTES)
    }
}

/// Changes a byte in a process, even if the page is not writable.
fn change(pid: Pid, at: Address, with: impl FnOnce(u8) -> u8) {
    let memory = ProcessMemory::open(pid).unwrap();
    let byte = memory.read_vec(at, ByteCount(1)).unwrap()[0];
    memory.write(at, &[with(byte)]).unwrap();
}

/// A sweep with a simulated clock.
struct Swept {
    clock: Clock,
    sweep: Sweep,
}

impl Swept {
    fn over(root: Pid) -> Self {
        let clock = Clock::by_hand();
        let mut sweep = Sweep::new(EVERY, clock.now());
        sweep.set_root(Some(root), clock.now());
        let mut swept = Self { clock, sweep };
        assert_eq!(swept.pass(), []);
        swept
    }

    /// Runs one complete pass. The simulated clock advances; the test does not sleep.
    fn pass(&mut self) -> Vec<Changed> {
        let mut changed = Vec::new();
        let end = self.clock.now() + EVERY;
        while let Some(due) = self.sweep.due().filter(|due| *due < end) {
            self.clock.advance(due.saturating_duration_since(self.clock.now()));
            changed.extend(self.sweep.advance(self.clock.now()));
        }
        self.clock.advance(end.saturating_duration_since(self.clock.now()));
        changed
    }

    fn extent(&self) -> Extent {
        self.sweep.last_pass().unwrap()
    }
}

#[test]
fn a_flipped_bit_is_found_within_two_passes_and_reported_once() {
    let mut random = testkit::seeded("a_flipped_bit_is_found_within_two_passes_and_reported_once");
    let program = Program::start("");
    let mut swept = Swept::over(program.pid());
    for _ in 0..20 {
        let (page, byte, bit) = (random.u64(0..64), random.u64(0..PAGE_BYTES), random.u8(0..8));
        let at = program.page(page) + ByteCount(byte);
        change(program.pid(), at, |before| before ^ 1 << bit);
        let found: Vec<_> = (0..2).flat_map(|_| swept.pass()).collect();
        let [found] = &found[..] else { panic!("{found:?}") };
        let expected = (program.pid(), at, Some(1), Place::Process);
        assert_eq!((found.pid, found.address, found.bits, found.place), expected);
        assert!(found.is_flip(), "{found:?}");
        assert!(found.file.ends_with("program"), "{found:?}");
        assert_eq!(found.offset % PAGE_BYTES, byte);
    }
}

#[test]
fn nothing_is_reported_of_a_program_that_nothing_changes() {
    let program = Program::start("");
    let mut swept = Swept::over(program.pid());
    for _ in 0..50 {
        assert_eq!(swept.pass(), []);
    }
    let extent = swept.extent();
    assert!(extent.compared >= PageCount(64) && extent.mapped >= extent.compared, "{extent:?}");
    assert_eq!(extent.unreadable, ByteCount(0));
}

#[test]
fn the_breakpoint_of_a_tracer_is_no_flip() {
    let mut program = Program::start("trace");
    let line = program.line();
    let child = Pid(line.strip_prefix("child ").unwrap().parse().unwrap());
    let mut swept = Swept::over(program.pid());
    let mut kinds = Vec::new();
    for order in ["breakpoint", "other", "breakpoint"] {
        program.ask(order);
        for changed in (0..2).flat_map(|_| swept.pass()).collect::<Vec<_>>() {
            assert!(!changed.is_flip());
            assert_eq!((changed.pid, changed.address), (child, program.page(5)));
            kinds.push(changed.kind);
        }
    }
    assert_eq!(kinds, [Kind::Breakpoint, Kind::Traced, Kind::Breakpoint]);
}

#[test]
fn code_that_was_patched_before_the_first_pass_is_learnt() {
    let program = Program::start("early");
    let mut swept = Swept::over(program.pid());
    assert_eq!(swept.pass(), []);
    change(program.pid(), program.page(3) + ByteCount(9), |before| before ^ 4);
    let found: Vec<_> = (0..2).flat_map(|_| swept.pass()).collect();
    let [found] = &found[..] else { panic!("{found:?}") };
    assert_eq!((found.bits, found.kind), (Some(1), Kind::Flip));
}

#[test]
fn several_pages_or_many_bits_are_a_patch() {
    let mut program = Program::start("");
    let mut swept = Swept::over(program.pid());
    program.ask(&(7 * PAGE_BYTES).to_string());
    program.ask(&(9 * PAGE_BYTES).to_string());
    let found = swept.pass();
    assert_eq!(found.iter().map(|one| one.kind).collect::<Vec<_>>(), [Kind::Patched; 2]);
    change(program.pid(), program.page(20), |before| before ^ 0x55);
    let found = swept.pass();
    let [found] = &found[..] else { panic!("{found:?}") };
    assert_eq!((found.bits, found.kind), (Some(4), Kind::Patched));
    assert_eq!(swept.pass(), []);
}

#[test]
fn a_page_that_is_changed_back_is_not_reported() {
    let program = Program::start("");
    let mut swept = Swept::over(program.pid());
    let at = program.page(11);
    change(program.pid(), at, |before| before ^ 2);
    // Runs to the end of the pass, at which the recheck of the changed page is due.
    until("the recheck", || {
        swept.clock.advance(swept.sweep.due().unwrap().saturating_duration_since(swept.clock.now()));
        assert_eq!(swept.sweep.advance(swept.clock.now()), []);
        swept.sweep.is_recheck.then_some(())
    });
    change(program.pid(), at, |before| before ^ 2);
    assert_eq!(swept.pass(), []);
    assert_eq!(swept.pass(), []);
}

#[test]
fn a_deleted_file_is_still_compared() {
    let program = Program::start("");
    let pid = program.pid();
    std::fs::remove_file(program._folder.path().join("program")).unwrap();
    let mut swept = Swept::over(pid);
    if swept.extent().unreadable > ByteCount(0) {
        return testkit::unsupported("links of /proc/PID/map_files");
    }
    change(pid, program.page(30), |before| before ^ 0x80);
    let found: Vec<_> = (0..2).flat_map(|_| swept.pass()).collect();
    assert_eq!(found.iter().map(Changed::is_flip).collect::<Vec<_>>(), [true]);
}

#[test]
fn a_name_that_now_leads_to_a_fifo_is_not_opened() {
    let program = Program::start("");
    let path = program._folder.path().join("program");
    let mappings = process::list(program.pid()).unwrap().mappings;
    let mut mapping = mappings.into_iter().find(|mapping| mapping.name == path).unwrap();
    // No file is mapped at this range, so the file is opened by its name.
    mapping.range = model::AddressRange::new(Address(PAGE_BYTES), Address(2 * PAGE_BYTES));
    mapping.open(process::ReadSource::Cached).expect("the file has its name");
    std::fs::remove_file(&path).unwrap();
    rustix::fs::mkfifoat(rustix::fs::CWD, &path, rustix::fs::Mode::RWXU).unwrap();
    // An open of the FIFO would wait for a writer.
    mapping.open(process::ReadSource::Cached).unwrap_err();
}

#[test]
fn a_new_incarnation_and_the_end_of_one_are_no_changes() {
    let program = Program::start("");
    let mut swept = Swept::over(program.pid());
    change(program.pid(), program.page(1), |before| before ^ 1);
    swept.sweep.set_root(Some(program.pid()), swept.clock.now());
    assert_eq!(swept.pass(), [], "what the first pass finds is learnt");
    let Program { mut child, .. } = program;
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(swept.pass(), []);
    assert_eq!(swept.pass(), []);
    swept.sweep.set_root(None, swept.clock.now());
    assert_eq!(swept.sweep.due(), None);
}

#[test]
fn the_steps_of_a_pass_are_spread_over_its_time() {
    let program = Program::start("");
    let mut swept = Swept::over(program.pid());
    let began = swept.clock.now();
    let mut steps = 0;
    while swept.sweep.due().is_some_and(|due| due < began + EVERY) {
        let due = swept.sweep.due().unwrap();
        let (done, all) = swept.sweep.pass.as_ref().map_or((0, 1), |pass| pass.position());
        let expected = began + EVERY.mul_f64(done as f64 / all.max(1) as f64);
        assert_eq!(due.max(expected), due, "a step is due before its time");
        swept.clock.advance(due.saturating_duration_since(swept.clock.now()));
        assert_eq!(swept.sweep.advance(due), []);
        steps += 1;
    }
    let pages = swept.extent().mapped.get();
    assert!(steps >= pages / pass::STEP_PAGES, "{steps} steps for {pages} pages");
}

#[test]
fn a_file_is_compared_once_however_many_processes_map_it() {
    let running = Running::shell("sleep 1000 & sleep 1000 & sleep 1000 & sleep 1000 & sleep 1000 & wait");
    // A program that is still loading maps less.
    until("five programs with the same text", || {
        let members = tracee::tree::descendants(running.pid()).unwrap().len();
        let extent = Swept::over(running.pid()).extent();
        let is_shared = extent.compared > PageCount(0) && extent.mapped.get() > 4 * extent.compared.get();
        (members == 6 && is_shared).then_some(())
    });
}

#[test]
fn a_page_of_the_cache_is_judged_by_the_device() {
    let program = Program::start("");
    let mut swept = Swept::over(program.pid());
    let listing = process::list(program.pid()).unwrap();
    let mapping = listing.mappings.iter().find(|mapping| mapping.range.contains(program.code)).unwrap();
    if page::read_file(mapping, program.code, process::ReadSource::Direct).is_err() {
        return testkit::unsupported("direct reads of temporary files");
    }
    // Simulates that the page had another content when the file was first found.
    let number = mapping.page_in_file(program.page(8));
    swept.sweep.memory.set_sum_of_file(mapping.file, number, 1);
    let found = swept.pass();
    let [found] = &found[..] else { panic!("{found:?}") };
    let expected = (Place::PageCache, Kind::FileChanged, None, number * PAGE_BYTES);
    assert_eq!((found.place, found.kind, found.bits, found.offset), expected);
    assert_eq!(found.address, program.page(8));
    assert_eq!(swept.pass(), []);
    assert_eq!(found.drop_from_cache(), Ok(true));
}

/// A program whose 64 MiB of text are in its page tables.
const LARGE: &str = r#"
#include <stdio.h>
#include <unistd.h>
#define BYTES (64UL << 20)
__asm__(".text\n.balign 4096\n.globl code\ncode:\n.fill 67108864 / 8, 8, 0x9090909090909090\n.balign 4096\n");
extern const unsigned char code[];
int main(void) {
    volatile unsigned char sum = 0;
    for (unsigned long at = 0; at < BYTES; at += 4096)
        sum += code[at];
    puts("done");
    fflush(stdout);
    for (;;)
        pause();
}
"#;

/// Returns the CPU time of the calling thread.
fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

#[test]
fn the_cost_is_bounded() {
    const SHARE_MAX: f64 = 0.005;
    let folder = tempfile::tempdir().unwrap();
    let path = compile(folder.path(), LARGE);
    let guard = Guard::new();
    let mut child = guard.mark(&mut Command::new(path)).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let mut swept = Swept::over(Pid(child.id() as i32));
    let (before, began) = (cpu_time(), Instant::now());
    assert_eq!(swept.pass(), []);
    let (cpu, wall) = (cpu_time() - before, began.elapsed());
    let compared = swept.extent().compared;
    assert!(compared >= PageCount(16_384), "{compared}");
    let share = cpu.as_secs_f64() / EVERY.as_secs_f64();
    println!(
        "{compared} pages of text: {cpu:?} of CPU time, {wall:?}, {:.0} MiB/s, {:.3} % of a core once a minute",
        compared.bytes().get() as f64 / (1 << 20) as f64 / cpu.as_secs_f64(),
        share * 100.0
    );
    assert!(share <= SHARE_MAX, "{share}");
    guard.kill_all();
    let _reaped_already = child.wait();
}
