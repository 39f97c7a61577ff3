//! Tests of `undying replicate` and `undying inject`.

use serde_json::Value;

use crate::common::Lab;

fn report(lab: &Lab, name: &str) -> Value {
    serde_json::from_slice(&std::fs::read(lab.path(name)).unwrap()).unwrap()
}

#[test]
fn a_replicated_program_has_its_output_and_its_exit_code() {
    let lab = Lab::new();
    let path = lab.path("report");
    let path = path.to_str().unwrap();
    let said = lab.say(["replicate", "--report", path, "--", "sh", "-c", "echo right; exit 9"]);
    assert_eq!((said.code, said.stdout.as_str(), said.stderr.as_str()), (Some(9), "right\n", ""));
    let report = report(&lab, "report");
    assert_eq!(report["program_exit"], 9);
    assert_eq!(report["replicas"], 2);
    assert!(
        report["syscalls"].as_u64() > Some(10) && report["checks"].as_u64() >= report["syscalls"].as_u64()
    );
    assert_eq!(report["detections"], Value::Array(Vec::new()));
    let unwritable = lab.say(["replicate", "--report", "/nowhere/report", "--", "echo", "wrong"]);
    assert_eq!((unwritable.code, unwritable.stdout.as_str()), (Some(125), ""), "{unwritable:?}");
    let killed = lab.say(["replicate", "--", "sh", "-c", "kill -15 $$"]);
    assert_eq!(killed.code, Some(128 + 15), "{killed:?}");
}

#[test]
fn what_replicas_cannot_do_is_named() {
    let lab = Lab::new();
    let said = lab.say(["replicate", "--", "sh", "-c", "echo before; (true); echo after"]);
    assert_eq!((said.code, said.stdout.as_str()), (Some(3), "before\n"), "{said:?}");
    assert!(said.stderr.contains("before the call") && said.stderr.contains("help: "), "{said:?}");
    for (program, code) in [("/nowhere/program", 127), ("/etc/passwd", 126)] {
        let said = lab.say(["replicate", "--", program]);
        assert_eq!(said.code, Some(code), "{said:?}");
        assert!(said.stderr.contains(program), "{said:?}");
    }
}

#[test]
fn a_campaign_reports_each_fault_twice() {
    let lab = Lab::new();
    let path = lab.path("report");
    let words = ["inject", "--faults", "3", "--target", "register,flag", "--seed", "4", "--report"];
    let program = [path.to_str().unwrap(), "--", "sha256sum"];
    let said = lab.say(words.iter().chain(&program));
    assert_eq!(said.code, Some(0), "{said:?}");
    assert!(said.stdout.contains("seed 4") && said.stdout.contains("95 % interval"), "{said:?}");
    let report = report(&lab, "report");
    assert_eq!(report["faults"].as_array().unwrap().len(), 6);
    for counts in [&report["outcomes"], &report["unprotected"]] {
        for target in ["register", "flag"] {
            let counts = counts[target].as_object().unwrap();
            assert_eq!(counts.values().filter_map(Value::as_u64).sum::<u64>(), 3);
            assert_eq!(counts["escaped"], 0);
        }
    }
    let refused = lab.say(["inject", "--faults", "1", "--target", "flag", "--", "date", "+%N"]);
    assert_eq!(refused.code, Some(125), "{refused:?}");
    assert!(refused.stderr.contains("differs between runs without a fault"), "{refused:?}");
}
