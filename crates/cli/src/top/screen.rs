//! The terminal of the live view: its modes, its keys, and the signals that end or stop the view.
//!
//! Owns: the alternate screen and the raw mode, from the start to the end of the view, even after a panic.
//! Invariants: the original mode of the terminal is restored when the view ends, is stopped, or receives SIGTERM or
//! SIGINT.
//! Does not: choose the content of the view.

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

/// Maximum delay until a signal is detected.
const SIGNALS_EVERY: Duration = Duration::from_millis(200);

/// Signals that have arrived.
#[derive(Default)]
struct Signals {
    end: Arc<AtomicBool>,
    stop: Arc<AtomicBool>,
    continued: Arc<AtomicBool>,
}

/// The effect of a key event on the screen.
enum Pressed {
    Key(Key),
    Suspend,
    Nothing,
}

/// Shows the view until the user or a signal ends the view.
pub(super) fn show(mut sampler: Sampler, interval: Duration) -> Result<(), Failure> {
    let signals = Signals::default();
    for signal in [SIGTERM, SIGINT] {
        signal_hook::flag::register(signal, Arc::clone(&signals.end))?;
    }
    signal_hook::flag::register(SIGTSTP, Arc::clone(&signals.stop))?;
    signal_hook::flag::register(SIGCONT, Arc::clone(&signals.continued))?;
    // With crossterm 0.29, a read from a closed terminal does not return. SIGHUP therefore ends this process, even if
    // the caller ignored SIGHUP. In this case, there is no terminal to restore.
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
        // Also needed after SIGSTOP, because the shell has changed the modes of the terminal in the meantime.
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

/// Waits for a key until a sample is due or signals must be checked.
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
