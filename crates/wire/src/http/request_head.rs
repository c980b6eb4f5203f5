use super::{KnownField, Method};

/// HTTP version of a request.
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

/// Range of the bytes that a head was parsed from. Offsets need no lifetime, so the head can be stored separately.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Span {
    start: u32,
    end: u32,
}

impl Span {
    /// Creates a span from `start` up to `end`, exclusive. `head_bytes_max` keeps heads far below 4 GiB.
    pub fn new(start: usize, end: usize) -> Self {
        Self { start: start as u32, end: end as u32 }
    }

    /// Returns the bytes of the span. `bytes` must be those that the span was made for.
    pub fn of(self, bytes: &[u8]) -> &[u8] {
        &bytes[self.start as usize..self.end as usize]
    }

    /// Returns the offset of the first byte.
    pub fn start(self) -> usize {
        self.start as usize
    }

    /// Returns the offset after the last byte.
    pub fn end(self) -> usize {
        self.end as usize
    }
}

/// One field line.
#[derive(Clone, Copy, Debug)]
pub struct FieldSpan {
    /// Name as sent.
    pub name: Span,
    /// Value without surrounding white space.
    pub value: Span,
    /// Known field that the name denotes, or [`KnownField::Other`].
    pub known: KnownField,
    /// True if the server has added the field, and not the client.
    pub is_set_here: bool,
}

/// Head of a request, as spans of the bytes it was parsed from. Callers reuse it: after `fields` has grown, parsing
/// does not allocate.
#[derive(Clone, Debug)]
pub struct RequestHead {
    /// Method, or [`Method::Other`].
    pub method: Method,
    /// Span of the method's name.
    pub method_name: Span,
    /// Request target as sent (RFC 9112, section 3.2).
    pub target: Span,
    /// Version in the request line.
    pub version: Version,
    /// All field lines, in order.
    pub fields: Vec<FieldSpan>,
    /// True if the request had credentials that the server has removed from its fields after it checked them. The
    /// response must be as private as with Authorization (RFC 9111, section 3.5).
    pub had_credentials: bool,
    /// Fields in which an authentication server has named the user, as text; empty if there are none. Responses to
    /// requests with another text must not be reused.
    pub identity: Span,
    /// Target as the client sent it, if the server has rewritten it.
    pub target_asked: Option<Span>,
    /// Names of fields that the server has removed and that no default may replace.
    pub withheld: Vec<Span>,
    /// Index + 1 of the first line of each known field; 0 if absent.
    first: [u16; KnownField::COUNT],
    /// Bit set of known fields with more than one line.
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
            identity: Span::default(),
            target_asked: None,
            withheld: Vec::new(),
            first: [0; KnownField::COUNT],
            repeated: 0,
        }
    }
}

impl RequestHead {
    /// Removes all data of the last request.
    pub fn clear(&mut self) {
        self.fields.clear();
        self.had_credentials = false;
        self.identity = Span::default();
        self.target_asked = None;
        self.withheld.clear();
        self.first = [0; KnownField::COUNT];
        self.repeated = 0;
    }

    /// Adds a field line from the client.
    pub fn push_field(&mut self, name: Span, value: Span, known: KnownField) {
        self.push(FieldSpan { name, value, known, is_set_here: false });
    }

    /// Adds a field line, from the client or the server.
    pub fn push(&mut self, field: FieldSpan) {
        self.note(self.fields.len(), field.known);
        self.fields.push(field);
    }

    /// Records that the line at `index` has this field.
    fn note(&mut self, index: usize, known: KnownField) {
        let first = &mut self.first[known as usize];
        if *first == 0 {
            *first = index as u16 + 1;
        } else {
            self.repeated |= 1 << known as u32;
        }
    }

    /// Joins all lines of a known field to the first one, with this value.
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

    /// Returns the end of the last span, as an offset in the bytes.
    pub fn bytes_used(&self) -> usize {
        let fields = self.fields.iter().map(|field| field.name.end().max(field.value.end())).max();
        let others = self.target_asked.iter().chain(&self.withheld).chain([&self.identity]);
        let others = others.map(|span| span.end()).max();
        self.method_name.end().max(self.target.end()).max(fields.unwrap_or(0)).max(others.unwrap_or(0))
    }

    /// Returns whether the request came with credentials for the server.
    pub fn has_credentials(&self) -> bool {
        self.had_credentials || self.has(KnownField::Authorization)
    }

    /// Returns whether a known field has more than one line.
    pub fn is_repeated(&self, known: KnownField) -> bool {
        self.repeated & (1 << known as u32) != 0
    }

    /// Returns whether a known field is present.
    pub fn has(&self, known: KnownField) -> bool {
        self.first[known as usize] != 0
    }

    /// Returns the first line of a known field.
    pub fn first(&self, known: KnownField) -> Option<&FieldSpan> {
        self.fields.get(usize::from(self.first[known as usize]).wrapping_sub(1))
    }
}

/// Head of a request with the bytes it was parsed from. Routing and handlers read it; it is the same for all HTTP
/// versions.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// Parsed head of the request.
    pub head: &'a RequestHead,
    /// Bytes that the spans of the head refer to.
    pub bytes: &'a [u8],
}

impl<'a> Request<'a> {
    /// Returns the method, or [`Method::Other`].
    pub fn method(&self) -> Method {
        self.head.method
    }

    /// Returns the method's name as sent.
    pub fn method_name(&self) -> &'a [u8] {
        self.head.method_name.of(self.bytes)
    }

    /// Returns the request target; it may have been rewritten.
    pub fn target(&self) -> &'a [u8] {
        self.head.target.of(self.bytes)
    }

    /// Returns the request target as the client sent it.
    pub fn target_asked(&self) -> &'a [u8] {
        self.head.target_asked.unwrap_or(self.head.target).of(self.bytes)
    }

    /// Returns the value of the first line of a known field.
    pub fn field(&self, known: KnownField) -> Option<&'a [u8]> {
        self.head.first(known).map(|field| field.value.of(self.bytes))
    }

    /// Returns the values of all lines of a known field, in order. A list may be split over several lines (RFC 9110,
    /// section 5.3).
    pub fn field_lines(&self, known: KnownField) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let bytes = self.bytes;
        self.head.fields.iter().filter(move |field| field.known == known).map(move |field| field.value.of(bytes))
    }

    /// Returns the values of all lines of any field, in order. The name is case-insensitive.
    pub fn field_lines_by_name(&self, name: &'static [u8]) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let bytes = self.bytes;
        let lines = self.head.fields.iter().filter(move |field| field.name.of(bytes).eq_ignore_ascii_case(name));
        lines.map(move |field| field.value.of(bytes))
    }

    /// Returns the value of the first line of any field. The name is case-insensitive.
    pub fn field_by_name(&self, name: &[u8]) -> Option<&'a [u8]> {
        let field = self.head.fields.iter().find(|field| field.name.of(self.bytes).eq_ignore_ascii_case(name))?;
        Some(field.value.of(self.bytes))
    }
}
