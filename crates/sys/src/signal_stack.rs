//! Lets the threads of a program run without signal stacks.
//!
//! Owns: the handlers for SIGSEGV and SIGBUS that are set before the Rust runtime starts.
//! Invariants: the program ends by these signals as with the default action. A handler that was inherited stays.
//! Does not: report a stack overflow; the kernel ends the program.
//!
//! The Rust runtime reports stack overflows from handlers for these signals, and maps a signal stack for each thread. If
//! there is no memory for this stack, the runtime aborts the program, although the thread could run. The runtime maps no
//! signal stacks if the signals already have handlers.
//!
//! Man page: sigaction(2), sigaltstack(2)
//! Since: all versions
//! Probe: none needed
//! Fallback: none needed

use std::mem;
use std::ptr;

const SIGNALS: [libc::c_int; 2] = [libc::SIGSEGV, libc::SIGBUS];

#[used]
// SAFETY: the C library calls each function in this section once, before `main`, with only one thread.
#[unsafe(link_section = ".init_array")]
static BEFORE_RUNTIME: extern "C" fn() = set_handlers;

extern "C" fn set_handlers() {
    for signal in SIGNALS {
        // SAFETY: a zeroed `struct sigaction` is valid. The kernel reads and writes structures of this type.
        unsafe {
            let mut action: libc::sigaction = mem::zeroed();
            if libc::sigaction(signal, ptr::null(), &mut action) == 0 && action.sa_sigaction == libc::SIG_DFL
            {
                let end: extern "C" fn(libc::c_int) = end;
                action.sa_sigaction = end as libc::sighandler_t;
                action.sa_flags = libc::SA_RESETHAND;
                libc::sigaction(signal, &action, ptr::null_mut());
            }
        }
    }
}

/// Repeats the signal, which now has its default action.
extern "C" fn end(signal: libc::c_int) {
    // SAFETY: raise(3) may be called in a signal handler.
    unsafe { libc::raise(signal) };
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::Command;

    /// Runs in a child, which only this test starts.
    const CHILD: &str = "UNDYING_SIGNAL_STACK_CHILD";

    #[test]
    fn threads_have_no_signal_stack_and_the_signals_end_the_program() {
        if std::env::var_os(CHILD).is_some() {
            let has_stack = std::thread::spawn(|| {
                // SAFETY: the kernel writes the present stack to a structure of this type.
                unsafe {
                    let mut now: libc::stack_t = std::mem::zeroed();
                    assert_eq!(libc::sigaltstack(std::ptr::null(), &mut now), 0);
                    now.ss_flags & libc::SS_DISABLE == 0
                }
            });
            assert!(!has_stack.join().unwrap());
            rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::SEGV).unwrap();
            std::thread::sleep(std::time::Duration::from_secs(5));
            return;
        }
        let name = "signal_stack::tests::threads_have_no_signal_stack_and_the_signals_end_the_program";
        let status = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", name])
            .env(CHILD, "1")
            .output()
            .unwrap()
            .status;
        assert_eq!(status.signal(), Some(libc::SIGSEGV), "{status}");
    }
}
