//! Tests of `undying check`: a system file is checked, and compared with the limits of this machine. Nothing is started.

use std::process::Command;

use serde_json::Value;

use crate::common::Lab;

#[test]
fn a_check_says_for_how_many_components_the_limits_suffice() {
    let lab = Lab::new();
    let file = lab.path("many.toml");
    let of_one = |number: usize| {
        format!(
            "[component.c{number}]\ncommand = [\"/bin/true\"]\npolicy = \"checkpointed\"\nfiles = \"keep\"\n"
        )
    };
    std::fs::write(&file, format!("[system]\nname = \"many\"\n{}", (0..40).map(of_one).collect::<String>()))
        .unwrap();
    let check = |limit: u64, more: &str| {
        let script = format!("ulimit -n {limit}; exec \"$0\" check \"$1\" {more}");
        let mut command = Command::new("sh");
        command.args(["-c", &script, env!("CARGO_BIN_EXE_undying")]).arg(&file);
        let said = lab.call(lab.detached(&mut command));
        assert_eq!(said.code, Some(0), "{said:?}");
        assert!(said.stdout.starts_with("many: 40 components"), "{said:?}");
        said.stderr
    };
    let few = check(1024, "");
    assert!(few.contains("suffices for about 12 of 40 components") && few.contains("help: raise"), "{few}");
    assert_eq!(check(4096, ""), "");
    assert_eq!(check(1024, "--file-only"), "");
}

#[test]
fn a_system_file_is_checked_and_nothing_is_started() {
    let lab = Lab::new();
    let file = lab.path("shop.toml");
    let started = lab.path("started");
    let content = |needs: &str| {
        format!(
            "[system]\nname = \"shop\"\n[component.web]\ncommand = [\"touch\", {started:?}]\nneeds = [{needs:?}]\n\
             [component.db]\ncommand = [\"touch\", {started:?}]\n"
        )
    };
    std::fs::write(&file, content("db")).unwrap();
    let good = lab.say(["check".as_ref(), file.as_os_str()]);
    assert_eq!(
        (good.code, &*good.stdout),
        (Some(0), "shop: 2 components, 0 groups\n1. db\n2. web\n"),
        "{good:?}"
    );

    std::fs::write(&file, content("dv")).unwrap();
    let bad = lab.say(["check".as_ref(), file.as_os_str()]);
    assert_eq!((bad.code, &*bad.stdout), (Some(2), ""));
    for part in ["is not a valid system file", "no component `dv`", "shop.toml:5:10", "^^^^", "write `db`"] {
        assert!(bad.stderr.contains(part), "{part} is missing in {}", bad.stderr);
    }

    let missing = lab.say(["check", "nowhere.toml"]);
    assert!(missing.code == Some(125) && missing.stderr.contains("cannot read nowhere.toml"), "{missing:?}");
    assert_eq!(lab.say(["check", "/dev/null"]).code, Some(2));
    assert_eq!(lab.say(["check"]).code, Some(2));
    let schema: Value = serde_json::from_str(&lab.say(["check", "--schema"]).stdout).unwrap();
    for key in ["system", "component", "group"] {
        assert!(schema["properties"].get(key).is_some(), "{key}");
    }
    assert!(!started.exists());
}
