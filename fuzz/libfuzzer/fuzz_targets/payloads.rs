//! The target `payloads`, driven by libFuzzer.
//!
//! Owns: nothing; the function is in `fuzz/src/lib.rs`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    if let Some(target) = undying_fuzz::target("payloads") {
        let _is_accepted = (target.run)(input);
    }
});
