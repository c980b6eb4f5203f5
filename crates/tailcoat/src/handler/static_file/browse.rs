//! Listings of directories that have no index file.

use std::sync::Arc;

use rustix::fs::{Dir, FileType};
use wire::http::{Fields, Status};

use super::FileTree;
use super::heads::apply_rules;
use super::listing::{self, Entry, Listing, SortOrder};
use super::load::{Refusal, is_for_everyone};
use super::roots::OpenedRoot;
use crate::handler::page::{Page, PageFormat};
use crate::handler::{Body, BuiltResponse, Response, Routed};
use crate::object_cache::{Access, OpenError};

impl FileTree {
    /// The listing of the directory at this path, which ends with a slash.
    pub(super) async fn list(
        self: &Arc<Self>,
        root: &Arc<OpenedRoot>,
        path: &[u8],
        routed: &Routed<'_>,
    ) -> Result<Response, Refusal> {
        let (tree, root) = (Arc::clone(self), Arc::clone(root));
        let name = path.strip_prefix(b"/").unwrap_or(path).to_vec();
        let (url_path, format) = (routed.path.to_vec(), PageFormat::wanted_by(&routed.request));
        let sort = SortOrder::from_query(routed.query);
        // Local invariant: nothing closes it.
        let _turn = self.listings.acquire().await;
        let making = tokio::task::spawn_blocking(move || {
            let listing = tree.read_listing(&root, &name)?;
            Ok(listing::render(&url_path, listing, sort, format))
        });
        let page: Page = making.await.unwrap_or(Err(OpenError::Exhausted)).map_err(Refusal::from)?;
        let mut fields = Fields::new();
        fields.push("Content-Type", page.content_type);
        fields.push("Vary", "Accept");
        apply_rules(&self.files.fields, routed.path, page.content_type, &mut fields);
        Ok(Response::Built(BuiltResponse::with_fields(Status::OK, fields, Body::from_bytes(page.body))))
    }

    /// Reads a directory as its visitors may see it: what wouldn't be served isn't in it.
    fn read_listing(&self, root: &OpenedRoot, name: &[u8]) -> Result<Listing, OpenError> {
        let mut listing = Listing::default();
        for entry in Dir::new(root.root.open_directory(name)?)? {
            let entry = entry?;
            let entry_name = entry.file_name().to_bytes();
            if matches!(entry_name, b"." | b"..") || !self.files.hidden && entry_name.starts_with(b".") {
                continue;
            }
            // Looked up as a request would be, so that links that leave the root are not shown.
            let Ok((_, status)) = root.root.find(&[name, entry_name].concat(), Access::Blocking) else { continue };
            let is_directory = status.kind == FileType::Directory;
            let is_served = status.kind == FileType::RegularFile
                && (!self.files.permission_rule || is_for_everyone(status.permissions));
            if !is_directory && !is_served {
                continue;
            }
            if listing.entries.len() == self.files.browse_entries_max {
                listing.is_cut_off = true;
                break;
            }
            listing.entries.push(Entry {
                name: entry_name.to_vec(),
                is_directory,
                size: status.identity.size,
                modified: u64::try_from(status.identity.modified_ns / 1_000_000_000).unwrap_or(0),
            });
        }
        Ok(listing)
    }
}
