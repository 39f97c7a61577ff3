//! Tests of the view on terminals of several sizes.

use guardian::{CheckpointEvent, Clock, StoreLocation, SubjectReport};
use ratatui::Terminal;
use ratatui::backend::TestBackend;

use super::model::{Key, Model};
use super::rows::Subject;
use super::sampler::Sampler;
use super::view;

/// Returns the report of a running subject.
pub(super) fn report(name: &str, store_bytes: u64) -> SubjectReport {
    let mut report = SubjectReport::default();
    report.facts.name = name.to_owned();
    report.store_bytes = store_bytes;
    report.facts.requested_hz = 20.0;
    report.facts.achieved_hz = 19.9;
    report
}

fn sampler() -> (tempfile::TempDir, Sampler) {
    let folder = tempfile::tempdir().unwrap();
    let location = StoreLocation::new(Some(folder.path())).unwrap();
    let sampler = Sampler::new(location, None).unwrap();
    (folder, sampler)
}

/// Returns the lines that a terminal of this size shows.
fn drawn(model: &Model, sampler: &Sampler, width: u16, height: u16) -> Vec<String> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| view::draw(frame, model, sampler)).unwrap();
    let buffer = terminal.backend().buffer();
    let line = |y: u16| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>().trim_end().to_owned();
    (0..height).map(line).collect()
}

fn model(names: &[&str], sampler: &mut Sampler) -> Model {
    let now = Clock::default().now();
    for name in names {
        for pause_us in [700, 900] {
            let checkpoint = CheckpointEvent { pause_us, residual_pages: 30, ..CheckpointEvent::default() };
            sampler.series.add(name, now, checkpoint);
        }
    }
    let mut model = Model::default();
    let reports = names.iter().map(|name| report(name, 5 << 20)).collect();
    model.update(Subject::all(reports, &sampler.series, now), 0);
    model
}

#[test]
fn eighty_columns_have_every_figure_and_the_sparklines() {
    let (_folder, mut sampler) = sampler();
    let model = model(&["redis", "web"], &mut sampler);
    let lines = drawn(&model, &sampler, 80, 24);
    assert!(lines[0].starts_with(" undying top: 2 subjects, by NAME"), "{}", lines[0]);
    for name in ["NAME", "STATE", "RATE", "P50", "P99", "DIRTY/S", "STORE", "AGE", "D"] {
        assert!(lines[1].split_whitespace().any(|word| word == name), "{name}: {}", lines[1]);
    }
    assert!(
        lines[2].starts_with("redis") && lines[2].contains("19.9/20.0") && lines[2].contains("700 µs"),
        "{}",
        lines[2]
    );
    assert!(
        lines[3].contains("rate") && lines[3].contains("pause") && lines[3].contains('█'),
        "{}",
        lines[3]
    );
    assert!(lines[4].starts_with("web"));
}

#[test]
fn narrow_and_low_terminals_show_what_fits() {
    let (_folder, mut sampler) = sampler();
    let names: Vec<String> = (0..30).map(|number| format!("job-{number:02}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut model = model(&names, &mut sampler);
    let lines = drawn(&model, &sampler, 40, 12);
    assert!(
        lines[1].contains("NAME") && lines[1].contains("P99") && !lines[1].contains("STORE"),
        "{}",
        lines[1]
    );
    assert!(lines[11].starts_with("job-09"), "{lines:?}");
    // The selected row stays visible.
    for _ in 0..20 {
        model.press(Key::Down);
    }
    let lines = drawn(&model, &sampler, 40, 12);
    assert!(lines[11].starts_with("job-20") && lines[2].starts_with("job-11"), "{lines:?}");
    for (width, height) in [(1, 1), (3, 2), (10, 4), (200, 3), (20, 60)] {
        for key in [Key::Open, Key::Help, Key::Back] {
            model.press(key);
            assert_eq!(drawn(&model, &sampler, width, height).len(), usize::from(height));
        }
    }
}

#[test]
fn one_subject_has_its_figures_and_a_name_cannot_steer_the_terminal() {
    let (_folder, mut sampler) = sampler();
    let mut model = model(&["red\u{1b}[2Jis"], &mut sampler);
    model.press(Key::Open);
    let text = drawn(&model, &sampler, 80, 30).join("\n");
    for words in [
        "undying top: red\\",
        "incarnation",
        "pause: at most 900 µs",
        "dirty: at most 60 pages/s",
        "last events",
    ] {
        assert!(text.contains(words), "{words:?} is missing in\n{text}");
    }
    assert!(!text.contains('\u{1b}'));
    model.press(Key::Help);
    assert!(drawn(&model, &sampler, 80, 24).join("\n").contains("show the selected subject"));
}
