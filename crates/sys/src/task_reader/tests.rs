//! Tests that the fields of a thread have the values that system calls have set.
//!
//! Owns: tests.
//! Invariants: a test restores every setting that it changes.
//! Does not: know the kernel's structures. A test prints `unsupported` where these structures cannot be read.

use super::*;

fn reader(fields: &[Field]) -> Option<TaskReader> {
    match TaskReader::new(fields) {
        Err(error) if [libc::EPERM, libc::ENOSYS, libc::ENOENT].contains(&error.errno.0) => {
            println!("unsupported: {error}");
            None
        }
        reader => Some(reader.unwrap()),
    }
}

fn own() -> Tid {
    Tid(rustix::thread::gettid().as_raw_nonzero().get())
}

#[test]
fn fields_are_those_that_calls_have_set() {
    let fields = ["pdeath_signal", "sas_ss_sp", "sas_ss_size", "cred->securebits", "group_leader->pid"];
    let Some(mut reader) = reader(&fields.map(Field)) else { return };
    let mut stack = vec![0_u8; 1 << 16];
    let wanted = libc::stack_t { ss_sp: stack.as_mut_ptr().cast(), ss_flags: 0, ss_size: stack.len() };
    // SAFETY: no signal is handled on the new stack before the old stack is set again.
    let mut before = unsafe { std::mem::zeroed::<libc::stack_t>() };
    // SAFETY: as above.
    assert_eq!(unsafe { libc::sigaltstack(&raw const wanted, &raw mut before) }, 0);
    // SAFETY: the request takes a number, and takes effect only when the thread that started this thread ends.
    assert_eq!(unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGURG) }, 0);
    let bytes = reader.read(own()).unwrap().to_vec();
    // SAFETY: as above.
    unsafe {
        libc::prctl(libc::PR_SET_PDEATHSIG, 0);
        libc::sigaltstack(&raw const before, std::ptr::null_mut());
    }
    let words: Vec<u64> =
        bytes.chunks_exact(8).map(|word| u64::from_ne_bytes(word.try_into().unwrap())).collect();
    let stack = (stack.as_ptr() as u64, stack.len() as u64);
    assert_eq!(words, [libc::SIGURG as u64, stack.0, stack.1, 0, u64::from(std::process::id())]);
    assert_ne!(reader.read(own()).unwrap(), bytes);
}

#[test]
fn handlers_of_a_process_are_read_whole() {
    let Some(mut reader) = reader(&[Field("sighand->action")]) else { return };
    let of = |bytes: &[u8], signal: i32| bytes[32 * (signal as usize - 1)..32 * signal as usize].to_vec();
    let before = of(reader.read(own()).unwrap(), libc::SIGUSR2);
    // SAFETY: the signal is ignored for a moment. No other test uses this signal.
    let old = unsafe { libc::signal(libc::SIGUSR2, libc::SIG_IGN) };
    let between = of(reader.read(own()).unwrap(), libc::SIGUSR2);
    // SAFETY: the call sets the previous action again.
    unsafe { libc::signal(libc::SIGUSR2, old) };
    assert_eq!(between[..8], (libc::SIG_IGN as u64).to_ne_bytes());
    assert_ne!(before, between);
    assert_eq!(reader.read(own()).unwrap().len(), 64 * 32);
}

#[test]
fn a_thread_that_has_gone_has_no_fields() {
    let Some(mut reader) = reader(&[Field("pdeath_signal")]) else { return };
    let gone = std::thread::spawn(own).join().unwrap();
    assert_eq!(reader.read(gone).unwrap_err().errno, Errno::ESRCH);
}

#[test]
fn a_field_that_no_kernel_has_is_named() {
    let Some(_) = reader(&[Field("pdeath_signal")]) else { return };
    for name in ["no_such_field", "signal->no_such_field", "pdeath_signal->value"] {
        let error = TaskReader::new(&[Field(name)]).unwrap_err();
        assert_eq!(error.errno, Errno::ENOENT);
        assert!(error.to_string().contains(name), "{error}");
    }
}
