//! The terminal of the live view: its modes, its keys, the signals that end or stop the view.
//!
//! Owns: the alternate screen and the raw mode, from the start of the view to its end, also at a panic.
//! Invariants: the terminal is in its own mode again when the view ends, is stopped, or is ended by SIGTERM or SIGINT.
//! Does not: know what is shown.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use signal_hook::consts::{SIGCONT, SIGHUP, SIGINT, SIGTERM, SIGTSTP};

use super::model::{Key, Model};
use super::sampler::Sampler;
use super::view;
use crate::failure::Failure;

/// How soon a signal is noticed.
const SIGNALS_EVERY: Duration = Duration::from_millis(200);

/// Signals that have arrived.
#[derive(Default)]
struct Signals {
    end: Arc<AtomicBool>,
    stop: Arc<AtomicBool>,
    continued: Arc<AtomicBool>,
}

/// What a key event means for the screen itself.
enum Pressed {
    Key(Key),
    Suspend,
    Nothing,
}

/// Shows the view until it is ended.
pub(super) fn show(mut sampler: Sampler, interval: Duration) -> Result<(), Failure> {
    let signals = Signals::default();
    for signal in [SIGTERM, SIGINT] {
        signal_hook::flag::register(signal, Arc::clone(&signals.end))?;
    }
    signal_hook::flag::register(SIGTSTP, Arc::clone(&signals.stop))?;
    signal_hook::flag::register(SIGCONT, Arc::clone(&signals.continued))?;
    // Reading a terminal that is gone does not return (crossterm 0.29). SIGHUP ends this process even where the caller
    // had ignored it; there is no terminal to restore then.
    signal_hook::flag::register_conditional_default(SIGHUP, Arc::new(AtomicBool::new(true)))?;
    let mut terminal = ratatui::try_init()?;
    let outcome = run(&mut terminal, &mut sampler, interval, &signals);
    ratatui::restore();
    outcome
}

fn run(
    terminal: &mut DefaultTerminal,
    sampler: &mut Sampler,
    interval: Duration,
    signals: &Signals,
) -> Result<(), Failure> {
    let clock = guardian::Clock::default();
    let mut model = Model::default();
    let mut due = clock.now();
    while !signals.end.load(Ordering::Relaxed) {
        if signals.stop.swap(false, Ordering::Relaxed) {
            ratatui::restore();
            signal_hook::low_level::emulate_default_handler(SIGTSTP)?;
        }
        // Also after SIGSTOP: the shell has changed the modes of the terminal meanwhile.
        if signals.continued.swap(false, Ordering::Relaxed) {
            ratatui::restore();
            *terminal = ratatui::try_init()?;
        }
        if clock.now() >= due {
            let sample = sampler.sample()?;
            model.update(sample.subjects, sample.failed.len());
            due = clock.now() + interval;
        }
        terminal.draw(|frame| view::draw(frame, &model, sampler))?;
        match pressed(due, clock.now())? {
            Pressed::Key(key) if !model.press(key) => return Ok(()),
            Pressed::Key(_) | Pressed::Nothing => {}
            Pressed::Suspend => signals.stop.store(true, Ordering::Relaxed),
        }
    }
    Ok(())
}

/// Waits for a key, until a sample is due or signals have to be checked.
fn pressed(due: Instant, now: Instant) -> Result<Pressed, Failure> {
    let wait = due.saturating_duration_since(now).min(SIGNALS_EVERY);
    if !event::poll(wait)? {
        return Ok(Pressed::Nothing);
    }
    let Event::Key(key) = event::read()? else { return Ok(Pressed::Nothing) };
    if key.kind == KeyEventKind::Release {
        return Ok(Pressed::Nothing);
    }
    if key.modifiers.contains(KeyModifiers::CONTROL) {
        return Ok(match key.code {
            KeyCode::Char('c') => Pressed::Key(Key::Quit),
            KeyCode::Char('z') => Pressed::Suspend,
            _ => Pressed::Nothing,
        });
    }
    Ok(match key.code {
        KeyCode::Up | KeyCode::Char('k') => Pressed::Key(Key::Up),
        KeyCode::Down | KeyCode::Char('j') => Pressed::Key(Key::Down),
        KeyCode::Enter | KeyCode::Right => Pressed::Key(Key::Open),
        KeyCode::Esc | KeyCode::Backspace | KeyCode::Left => Pressed::Key(Key::Back),
        KeyCode::Char('s') => Pressed::Key(Key::NextColumn),
        KeyCode::Char('r') => Pressed::Key(Key::Reverse),
        KeyCode::Char('?' | 'h') => Pressed::Key(Key::Help),
        KeyCode::Char('q') => Pressed::Key(Key::Quit),
        _ => Pressed::Nothing,
    })
}
