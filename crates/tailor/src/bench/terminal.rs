//! Terminal on standard error, to which ratatui draws.
//!
//! ratatui's own backends read keys as well. Their libraries would add features to the ones that the server shares with tailor in a build
//! of the whole workspace.

use std::io::{BufWriter, Error, Result, Stderr, Write};

use ratatui::backend::{Backend, ClearType, WindowSize};
use ratatui::buffer::Cell;
use ratatui::layout::{Position, Size};
use ratatui::style::{Color, Modifier};

/// Switch to the terminal's other screen, and back. The content of the screen returns with it.
const ENTER: &str = "\x1b[?1049h\x1b[2J";
const LEAVE: &str = "\x1b[?1049l";
const HIDE_CURSOR: &str = "\x1b[?25l";
const SHOW_CURSOR: &str = "\x1b[?25h";
const CLEAR: &str = "\x1b[2J";

/// The terminal's other screen; dropping it returns to the first one.
pub(super) struct OtherScreen {
    out: BufWriter<Stderr>,
    /// False if the user wants no colours (`NO_COLOR`).
    has_colors: bool,
}

impl OtherScreen {
    /// Enters the screen.
    ///
    /// # Errors
    /// Standard error is no terminal, or one without a size.
    pub(super) fn enter() -> Result<Self> {
        let has_colors = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        let mut screen = Self { out: BufWriter::new(std::io::stderr()), has_colors };
        let size = screen.size()?;
        if size.width == 0 || size.height == 0 {
            return Err(Error::other("the terminal has no size"));
        }
        screen.write(ENTER)?;
        Ok(screen)
    }

    fn write(&mut self, text: &str) -> Result<()> {
        self.out.write_all(text.as_bytes())
    }
}

impl Drop for OtherScreen {
    fn drop(&mut self) {
        // A terminal that is gone needs nothing.
        let _ = self.write(SHOW_CURSOR).and_then(|()| self.write(LEAVE)).and_then(|()| self.out.flush());
    }
}

/// Sequence that sets how the next characters look: the colours and modifiers that the view uses.
fn look(cell: &Cell, has_colors: bool) -> &'static str {
    match cell.fg {
        _ if cell.modifier.contains(Modifier::BOLD) => "\x1b[0;1m",
        Color::Red if has_colors => "\x1b[0;31m",
        Color::Green if has_colors => "\x1b[0;32m",
        Color::Yellow if has_colors => "\x1b[0;33m",
        Color::Cyan if has_colors => "\x1b[0;36m",
        _ => "\x1b[0m",
    }
}

impl Backend for OtherScreen {
    type Error = Error;

    fn draw<'a, I: Iterator<Item = (u16, u16, &'a Cell)>>(&mut self, content: I) -> Result<()> {
        let (mut next, mut shown) = (None, "");
        for (x, y, cell) in content {
            if next != Some((x, y)) {
                write!(self.out, "\x1b[{};{}H", y + 1, x + 1)?;
            }
            let look = look(cell, self.has_colors);
            if look != shown {
                self.write(look)?;
                shown = look;
            }
            self.write(cell.symbol())?;
            next = Some((x + 1, y));
        }
        self.write("\x1b[0m")
    }

    fn hide_cursor(&mut self) -> Result<()> {
        self.write(HIDE_CURSOR)
    }

    fn show_cursor(&mut self) -> Result<()> {
        self.write(SHOW_CURSOR)
    }

    /// A view of the whole screen does not ask for it.
    fn get_cursor_position(&mut self) -> Result<Position> {
        Ok(Position::ORIGIN)
    }

    fn set_cursor_position<P: Into<Position>>(&mut self, position: P) -> Result<()> {
        let Position { x, y } = position.into();
        write!(self.out, "\x1b[{};{}H", y + 1, x + 1)
    }

    fn clear(&mut self) -> Result<()> {
        self.write(CLEAR)
    }

    fn clear_region(&mut self, _: ClearType) -> Result<()> {
        self.clear()
    }

    fn size(&self) -> Result<Size> {
        let size = rustix::termios::tcgetwinsize(std::io::stderr())?;
        Ok(Size::new(size.ws_col, size.ws_row))
    }

    fn window_size(&mut self) -> Result<WindowSize> {
        Ok(WindowSize { columns_rows: self.size()?, pixels: Size::ZERO })
    }

    fn flush(&mut self) -> Result<()> {
        self.out.flush()
    }
}
