//! Heads of responses with files.

use wire::http::{ContentCoding, Fields, Status, date};

use super::FileTree;
use crate::config::{FieldMatch, FieldRule};
use crate::handler::SERVER;
use crate::handler::part::without_content_fields;
use crate::object_cache::{EncodedHead, FileIdentity, ObjectContent, Representation};

/// Facts that the heads of all representations of a file share.
pub(super) struct Description<'a> {
    pub(super) tree: &'a FileTree,
    /// Path as requests have it.
    pub(super) path: &'a [u8],
    pub(super) content_type: &'a str,
    /// True if the representation depends on Accept-Encoding.
    pub(super) varies: bool,
    pub(super) last_modified_unix_seconds: Option<u64>,
}

impl Description<'_> {
    /// Builds a representation of this content, with its heads.
    pub(super) fn represent(&self, coding: ContentCoding, etag: &str, content: ObjectContent) -> Representation {
        let fields = self.fields(coding, etag);
        let mut whole = self.with_server(&fields);
        whole.push("Content-Length", content.length().to_string());
        let not_modified = without_content_fields(&self.with_server(&fields));
        Representation {
            status: Status::OK,
            coding,
            etag: fields.get("ETag").map(|etag| String::from_utf8_lossy(etag)).unwrap_or_default().into(),
            head: EncodedHead::new(Status::OK, &whole),
            not_modified_head: EncodedHead::new(Status::NOT_MODIFIED, &not_modified),
            partial_head: EncodedHead::new(Status::PARTIAL_CONTENT, &self.with_server(&fields)),
            content,
        }
    }

    /// Fields of a 200, without those that the connection adds to a response built for one request.
    pub(super) fn fields(&self, coding: ContentCoding, etag: &str) -> Fields {
        let mut fields = Fields::new();
        fields.push("Content-Type", self.content_type);
        if coding != ContentCoding::Identity {
            fields.push("Content-Encoding", coding.name());
        }
        fields.push("ETag", etag);
        if let Some(unix_seconds) = self.last_modified_unix_seconds {
            fields.push("Last-Modified", date::format(unix_seconds));
        }
        fields.push("Accept-Ranges", "bytes");
        if self.varies {
            fields.push("Vary", "Accept-Encoding");
        }
        apply_rules(&self.tree.files.fields, self.path, self.content_type, &mut fields);
        fields
    }

    fn with_server(&self, fields: &Fields) -> Fields {
        let mut with_server = Fields::new();
        if self.tree.server_field {
            with_server.push("Server", SERVER);
        }
        fields.iter().for_each(|(name, value)| {
            with_server.push(name, value);
        });
        with_server
    }
}

/// Sets the fields that the configuration adds for this path and type.
pub(super) fn apply_rules(rules: &[FieldRule], path: &[u8], content_type: &str, fields: &mut Fields) {
    for rule in rules.iter().filter(|rule| applies(&rule.matches, path, content_type)) {
        // A configured Vary adds to the real one; it must not hide what the response depends on.
        let vary = fields.get("Vary").filter(|_| rule.name.eq_ignore_ascii_case("Vary") && !rule.value.is_empty());
        let value = match vary {
            Some(vary) => [vary, b", ", rule.value.as_bytes()].concat(),
            None => rule.value.clone().into_bytes(),
        };
        fields.set(rule.name.clone(), value);
    }
}

fn applies(wanted: &FieldMatch, path: &[u8], content_type: &str) -> bool {
    match wanted {
        FieldMatch::Path(pattern) => pattern.matches(path),
        FieldMatch::Type(prefix) if prefix.ends_with('/') => content_type.starts_with(prefix.as_str()),
        FieldMatch::Type(media_type) => content_type.split(';').next() == Some(media_type),
    }
}

/// Entity tag of a version of a file, with a suffix for a coding that was made of it.
///
/// Made of size and modification time, so that several servers with the same files give the same tag. If a file may
/// have changed unnoticed, the tag includes a hash of the content, or is weak if the content is not in memory.
pub(super) fn etag(
    identity: &FileIdentity,
    unsettled_content: Option<&ObjectContent>,
    coding: ContentCoding,
) -> String {
    let (size, modified_ns) = (identity.size, identity.modified_ns);
    let suffix = match coding {
        ContentCoding::Identity => "",
        ContentCoding::Gzip => "-gzip",
        ContentCoding::Brotli => "-br",
        ContentCoding::Zstd => "-zstd",
    };
    match unsettled_content {
        None => format!("\"{size:x}-{modified_ns:x}{suffix}\""),
        Some(ObjectContent::File(_)) => format!("W/\"{size:x}-{modified_ns:x}{suffix}\""),
        Some(ObjectContent::Memory(bytes)) => {
            use std::hash::{BuildHasher, Hasher};
            let mut hasher = foldhash::quality::FixedState::default().build_hasher();
            hasher.write(bytes);
            format!("\"{size:x}-{modified_ns:x}-{:x}{suffix}\"", hasher.finish())
        }
    }
}
