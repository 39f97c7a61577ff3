//! A flipped bit never changes the output of a replicated program without a detection.

use undying_replica::inject::{Campaign, Injected, Outcome, Target, run};

use crate::common::bytes;

fn campaign(words: &[&str], targets: &[Target], faults: usize, random: &mut fastrand::Rng) -> Vec<Injected> {
    let campaign = Campaign {
        command: words.iter().map(Into::into).collect(),
        replicas: 2,
        faults,
        targets: targets.to_vec(),
        seed: random.u64(..),
    };
    run(&campaign, &bytes(200_000), &mut |injected| println!("{injected:?}")).unwrap()
}

#[test]
fn no_wrong_output_leaves_two_replicas() {
    let targets = [
        Target::Register,
        Target::InstructionPointer,
        Target::Flag,
        Target::ExtendedRegister,
        Target::Stack,
        Target::Heap,
        Target::Data,
        Target::Text,
    ];
    let mut random = testkit::seeded("injected faults");
    let (mut detected, mut harmful, mut rounds) = (0, 0, testkit::Rounds::new(1, 50));
    // The campaign is of use only if its faults do harm.
    while rounds.next(detected > 0 && harmful > 0).is_some() {
        for injected in campaign(&["sha256sum"], &targets, 6, &mut random) {
            assert!(
                ![Outcome::Sdc, Outcome::Escaped, Outcome::Hang].contains(&injected.outcome),
                "{injected:?}"
            );
            detected += usize::from(injected.outcome == Outcome::DetectedStopped);
            let is_harmful = [Outcome::Sdc, Outcome::Crash, Outcome::Hang].contains(&injected.unprotected);
            harmful += usize::from(is_harmful);
        }
    }
    println!("{detected} detected; without replicas {harmful} harmful");
    assert!(detected > 0 && harmful > 0);
}

#[test]
fn output_that_changes_after_its_comparison_is_reported_as_escaped() {
    let mut random = testkit::seeded("faults in buffers");
    let (mut escaped, mut rounds, mut found) = (0, testkit::Rounds::new(1, 40), Vec::new());
    while rounds.next(escaped > 0).is_some() {
        found.extend(campaign(&["gzip", "-n", "-c"], &[Target::Buffer], 8, &mut random));
        escaped = found.iter().filter(|one| one.outcome == Outcome::Escaped).count();
    }
    assert!(escaped > 0);
    for injected in &found {
        // A fault in the follower is found, too, although the output is right.
        let outcomes = [Outcome::Escaped, Outcome::DetectedStopped, Outcome::NotActivated];
        assert!(outcomes.contains(&injected.outcome), "{injected:?}");
        let is_found =
            injected.detection.as_ref().is_some_and(|one| one.kind == undying_replica::Kind::Escaped);
        assert_eq!(is_found, injected.location.is_some(), "{injected:?}");
    }
}

#[test]
fn the_same_seed_plans_the_same_faults() {
    let plan = || {
        let campaign = Campaign {
            command: vec!["sha256sum".into()],
            replicas: 2,
            faults: 3,
            targets: vec![Target::Register],
            seed: 5,
        };
        let found = run(&campaign, b"text", &mut |_| {}).unwrap();
        found.into_iter().map(|one| (one.fault, one.location)).collect::<Vec<_>>()
    };
    assert_eq!(plan(), plan());
}
