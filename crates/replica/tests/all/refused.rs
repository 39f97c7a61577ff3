//! What is not supported ends the program before it happens.

use undying_replica::{End, Limits};

use crate::common::replicated;

#[test]
fn a_call_that_is_not_supported_is_named() {
    for (words, name) in [
        (&["sh", "-c", "echo before; (true); echo after"][..], "fork clone vfork clone3"),
        (&["timeout", "5", "true"], "setpgid timer_create setitimer"),
        (&["env", "true"], "execve"),
    ] {
        let run = replicated(words, &[], Limits::default());
        let End::Refused(call) = &run.end else { panic!("{words:?}: {:?}", run.end) };
        assert!(name.split(' ').any(|name| name == call.name), "{words:?}: {call:?}");
        assert!(!run.output.windows(5).any(|part| part == b"after"), "{words:?}");
    }
}

#[test]
fn a_program_that_does_not_exist_is_an_error_of_the_start() {
    for name in ["/nowhere/program", "/etc/passwd"] {
        let error =
            undying_replica::replicate(std::process::Command::new(name), 2, Limits::default()).unwrap_err();
        assert!(matches!(error, undying_replica::ReplicaError::Start(_)), "{name}: {error}");
    }
}

#[test]
fn memory_that_all_replicas_would_write_is_refused_whatever_gives_the_right() {
    let Some(program) = testkit::compiled(env!("CARGO_MANIFEST_DIR"), "shared", &["-O2"]) else { return };
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    std::fs::write(&file, [b'a'; 4096]).unwrap();
    for call in ["mmap", "mprotect"] {
        let words = [program.to_str().unwrap(), file.to_str().unwrap(), call];
        let run = replicated(&words, &[], Limits::default());
        let End::Refused(refused) = &run.end else { panic!("{call}: {:?}", run.end) };
        assert!(refused.name == call && refused.why.contains("shared memory"), "{refused:?}");
        assert_eq!(std::fs::read(&file).unwrap()[0], b'a', "{call}");
    }
}
