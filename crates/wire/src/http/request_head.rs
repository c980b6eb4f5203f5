use super::{KnownField, Method};

/// A version of HTTP that a request came in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Version {
    /// HTTP/1.0
    Http10,
    /// HTTP/1.1
    Http11,
    /// HTTP/2
    Http2,
    /// HTTP/3
    Http3,
}

/// A piece of the bytes that a head was parsed from: offsets, so that the head can be kept without them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Span {
    start: u32,
    end: u32,
}

impl Span {
    /// The bytes from `start` to before `end`. Heads are far below 4 GiB: `head_bytes_max` sees to it.
    pub fn new(start: usize, end: usize) -> Self {
        Self { start: start as u32, end: end as u32 }
    }

    /// The piece itself, of the bytes that the span was made for.
    pub fn of(self, bytes: &[u8]) -> &[u8] {
        &bytes[self.start as usize..self.end as usize]
    }

    /// The offset of the first byte.
    pub fn start(self) -> usize {
        self.start as usize
    }

    /// The offset behind the last byte.
    pub fn end(self) -> usize {
        self.end as usize
    }
}

/// One field line.
#[derive(Clone, Copy, Debug)]
pub struct FieldSpan {
    /// The name, as it was sent.
    pub name: Span,
    /// The value, without white space around it.
    pub value: Span,
    /// Which of the fields the server reads it is.
    pub known: KnownField,
    /// Whether the server has set it, and not the client.
    pub is_set_here: bool,
}

/// The head of a request, as spans of the bytes it was parsed from. It is reused from request to request: once its
/// `fields` have grown, parsing allocates nothing.
#[derive(Clone, Debug)]
pub struct RequestHead {
    /// The method.
    pub method: Method,
    /// The method's name.
    pub method_name: Span,
    /// The request target (RFC 9112, section 3.2), as it was sent.
    pub target: Span,
    /// The version.
    pub version: Version,
    /// All field lines, in order.
    pub fields: Vec<FieldSpan>,
    /// Whether credentials came with the request that are in no field any more, because whoever checked them keeps them
    /// from others. What is answered is as little for everybody as with Authorization (RFC 9111, section 3.5).
    pub had_credentials: bool,
    /// The target as the client sent it, if the server has made another of it.
    pub target_asked: Option<Span>,
    /// Names of fields that the server has taken away, and that are not to be set by default either.
    pub withheld: Vec<Span>,
    /// Index + 1 of the first field line of each known field; 0 for none.
    first: [u16; KnownField::COUNT],
    /// A bit for each known field that came in more than one line.
    repeated: u32,
}

impl Default for RequestHead {
    fn default() -> Self {
        Self {
            method: Method::Other,
            method_name: Span::default(),
            target: Span::default(),
            version: Version::Http11,
            fields: Vec::new(),
            had_credentials: false,
            target_asked: None,
            withheld: Vec::new(),
            first: [0; KnownField::COUNT],
            repeated: 0,
        }
    }
}

impl RequestHead {
    /// Forgets the last request.
    pub fn clear(&mut self) {
        self.fields.clear();
        self.had_credentials = false;
        self.target_asked = None;
        self.withheld.clear();
        self.first = [0; KnownField::COUNT];
        self.repeated = 0;
    }

    /// Adds a field line of the client's.
    pub fn push_field(&mut self, name: Span, value: Span, known: KnownField) {
        self.push(FieldSpan { name, value, known, is_set_here: false });
    }

    /// Adds a field line.
    pub fn push(&mut self, field: FieldSpan) {
        self.note(self.fields.len(), field.known);
        self.fields.push(field);
    }

    /// Notes that the line at `index` is of this field.
    fn note(&mut self, index: usize, known: KnownField) {
        let first = &mut self.first[known as usize];
        if *first == 0 {
            *first = index as u16 + 1;
        } else {
            self.repeated |= 1 << known as u32;
        }
    }

    /// Makes one line of all lines of a known field, the first, with this value.
    pub fn join(&mut self, known: KnownField, value: Span) {
        let mut is_joined = false;
        self.fields.retain_mut(|field| {
            if field.known != known {
                return true;
            }
            field.value = value;
            !std::mem::replace(&mut is_joined, true)
        });
        self.first = [0; KnownField::COUNT];
        self.repeated = 0;
        for index in 0..self.fields.len() {
            self.note(index, self.fields[index].known);
        }
    }

    /// How many of the bytes, from the first on, its spans point into.
    pub fn bytes_used(&self) -> usize {
        let fields = self.fields.iter().map(|field| field.name.end().max(field.value.end())).max();
        let others = self.target_asked.iter().chain(&self.withheld).map(|span| span.end()).max();
        self.method_name.end().max(self.target.end()).max(fields.unwrap_or(0)).max(others.unwrap_or(0))
    }

    /// Whether the request came with credentials for its server.
    pub fn has_credentials(&self) -> bool {
        self.had_credentials || self.has(KnownField::Authorization)
    }

    /// Whether the known field came in more than one line.
    pub fn is_repeated(&self, known: KnownField) -> bool {
        self.repeated & (1 << known as u32) != 0
    }

    /// Whether the known field came at all.
    pub fn has(&self, known: KnownField) -> bool {
        self.first[known as usize] != 0
    }

    /// The first line of a known field.
    pub fn first(&self, known: KnownField) -> Option<&FieldSpan> {
        self.fields.get(usize::from(self.first[known as usize]).wrapping_sub(1))
    }
}

/// A request's head together with the bytes it was parsed from: what routing and handlers read. The same for all
/// versions of HTTP.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The parsed head.
    pub head: &'a RequestHead,
    /// The bytes its spans point into.
    pub bytes: &'a [u8],
}

impl<'a> Request<'a> {
    /// The method.
    pub fn method(&self) -> Method {
        self.head.method
    }

    /// The method's name, as it was sent.
    pub fn method_name(&self) -> &'a [u8] {
        self.head.method_name.of(self.bytes)
    }

    /// The request target, as it was sent.
    pub fn target(&self) -> &'a [u8] {
        self.head.target.of(self.bytes)
    }

    /// The request target as the client sent it, whatever the server has made of it.
    pub fn target_asked(&self) -> &'a [u8] {
        self.head.target_asked.unwrap_or(self.head.target).of(self.bytes)
    }

    /// The value of the first line of a known field.
    pub fn field(&self, known: KnownField) -> Option<&'a [u8]> {
        self.head.first(known).map(|field| field.value.of(self.bytes))
    }

    /// The values of all lines of a known field, in order. Lists are the same over several lines as in one (RFC 9110,
    /// section 5.3).
    pub fn field_lines(&self, known: KnownField) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let bytes = self.bytes;
        self.head.fields.iter().filter(move |field| field.known == known).map(move |field| field.value.of(bytes))
    }

    /// The values of all lines of any field, by name in any case, in order.
    pub fn field_lines_by_name(&self, name: &'static [u8]) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let bytes = self.bytes;
        let lines = self.head.fields.iter().filter(move |field| field.name.of(bytes).eq_ignore_ascii_case(name));
        lines.map(move |field| field.value.of(bytes))
    }

    /// The value of the first line of any field, by name in any case.
    pub fn field_by_name(&self, name: &[u8]) -> Option<&'a [u8]> {
        let field = self.head.fields.iter().find(|field| field.name.of(self.bytes).eq_ignore_ascii_case(name))?;
        Some(field.value.of(self.bytes))
    }
}
