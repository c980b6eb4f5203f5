//! Patterns of one path segment, with bounded work.

/// Steps of matching that a listing may take.
#[derive(Debug)]
pub struct GlobBudget {
    steps_left: u64,
}

impl GlobBudget {
    /// Budget of so many steps. A step compares a byte of a name.
    pub fn new(steps_max: u64) -> Self {
        Self { steps_left: steps_max }
    }

    /// True until the steps are used up.
    pub fn is_left(&self) -> bool {
        self.steps_left > 0
    }
}

/// Pattern of names: `*` is any text, `?` any byte, `[…]` a set, `\` takes the next byte literally.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Glob {
    pieces: Vec<GlobPiece>,
    shows_hidden: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum GlobPiece {
    Byte(u8),
    AnyByte,
    /// True for `[!…]`; ranges of bytes.
    Set(bool, Vec<(u8, u8)>),
    AnyText,
}

impl Glob {
    /// Parses a pattern; `None` if it has no special byte and so is a name.
    pub fn parse(pattern: &[u8]) -> Option<Self> {
        if !pattern.iter().any(|byte| b"*?[".contains(byte)) {
            return None;
        }
        let mut pieces = Vec::new();
        let mut rest = pattern;
        while let Some((&byte, after)) = rest.split_first() {
            rest = after;
            let piece = match byte {
                b'*' => GlobPiece::AnyText,
                b'?' => GlobPiece::AnyByte,
                b'[' => match parse_set(after) {
                    Some((set, after)) => {
                        rest = after;
                        set
                    }
                    None => GlobPiece::Byte(b'['),
                },
                b'\\' if !after.is_empty() => {
                    rest = &after[1..];
                    GlobPiece::Byte(after[0])
                }
                byte => GlobPiece::Byte(byte),
            };
            // `**` means the same as `*`, and would only cost time.
            if piece != GlobPiece::AnyText || pieces.last() != Some(&GlobPiece::AnyText) {
                pieces.push(piece);
            }
        }
        Some(Self { pieces, shows_hidden: pattern.starts_with(b".") })
    }

    /// True if the name fits. Names that begin with a dot fit only patterns that do. False once the budget is used up.
    pub fn matches(&self, name: &[u8], budget: &mut GlobBudget) -> bool {
        if name.starts_with(b".") && !self.shows_hidden {
            return false;
        }
        let (mut piece, mut at) = (0, 0);
        // The last `*`: piece after it, and the byte that it would take next. Only that one must be tried again.
        let mut retry: Option<(usize, usize)> = None;
        loop {
            if budget.steps_left == 0 {
                return false;
            }
            budget.steps_left -= 1;
            match (self.pieces.get(piece), name.get(at)) {
                (None, None) => return true,
                (Some(GlobPiece::AnyText), _) => {
                    piece += 1;
                    retry = Some((piece, at));
                }
                (Some(one), Some(&byte)) if one.fits(byte) => {
                    piece += 1;
                    at += 1;
                }
                _ => match retry {
                    Some((after, from)) if from < name.len() => {
                        (piece, at) = (after, from + 1);
                        retry = Some((after, from + 1));
                    }
                    _ => return false,
                },
            }
        }
    }
}

impl GlobPiece {
    fn fits(&self, byte: u8) -> bool {
        match self {
            Self::Byte(own) => *own == byte,
            Self::AnyByte => true,
            Self::Set(is_negated, ranges) => {
                ranges.iter().any(|(first, last)| (*first..=*last).contains(&byte)) != *is_negated
            }
            Self::AnyText => false,
        }
    }
}

/// Parses a set after its `[`; `None` if it has no end. A `]` at the start is a member.
fn parse_set(text: &[u8]) -> Option<(GlobPiece, &[u8])> {
    let (is_negated, members) = match text {
        [b'!' | b'^', members @ ..] => (true, members),
        members => (false, members),
    };
    let end = 1 + members.get(1..)?.iter().position(|byte| *byte == b']')?;
    let (mut inside, after) = (&members[..end], &members[end + 1..]);
    let mut ranges = Vec::new();
    while let Some((&first, rest)) = inside.split_first() {
        inside = match rest {
            [b'-', last, rest @ ..] => {
                ranges.push((first, *last));
                rest
            }
            rest => {
                ranges.push((first, first));
                rest
            }
        };
    }
    Some((GlobPiece::Set(is_negated, ranges), after))
}
