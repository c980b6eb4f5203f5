//! Listings of directories without an index file.

use std::sync::Arc;

use rustix::fs::{Dir, FileType};
use wire::http::{Fields, Status};

use super::heads::apply_rules;
use super::in_progress::{Demand, InProgress};
use super::listing::{self, Listing, ListingEntry, SortOrder};
use super::load::{FileRejection, is_for_everyone};
use super::roots::OpenedRoot;
use super::{FileTree, is_hidden};
use crate::handler::page::{Page, PageFormat};
use crate::handler::{Body, BuiltResponse, Response, Routed};
use crate::object_cache::{Blocking, DiskAccess, OpenError, RootId};

/// Listings in progress: each is read once for all requests that want it.
pub(super) type ListingsInProgress = InProgress<ListingKey, ListingResult>;

/// Key of a listing in progress.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct ListingKey {
    root: RootId,
    path: Box<[u8]>,
    sort: SortOrder,
    format: PageFormat,
}

/// A rendered listing.
#[derive(Clone, Debug)]
pub(super) struct MadeListing {
    page: Page,
    is_cut_off: bool,
}

type ListingResult = Result<MadeListing, FileRejection>;

impl FileTree {
    /// Builds the listing of the directory at this path, which ends with a slash.
    pub(super) async fn list(
        self: &Arc<Self>,
        root: &Arc<OpenedRoot>,
        path: &[u8],
        routed: &Routed<'_>,
    ) -> Result<Response, FileRejection> {
        let key = ListingKey {
            root: root.id,
            path: routed.path.into(),
            sort: SortOrder::from_query(routed.query),
            format: PageFormat::wanted_by(&routed.request),
        };
        let (tree, work_root, work_key) = (Arc::clone(self), Arc::clone(root), key.clone());
        let name: Box<[u8]> = path.strip_prefix(b"/").unwrap_or(path).into();
        let work = move |demand| {
            let (tree, root, key, name) = (Arc::clone(&tree), Arc::clone(&work_root), work_key.clone(), name.clone());
            async move { tree.make_listing(root, key, name, demand).await }
        };
        let made = self.listings_in_progress.join(key, work).await;
        let MadeListing { page, is_cut_off } = made.unwrap_or(Err(FileRejection::Unavailable))?;
        let mut fields = Fields::new();
        fields.push("Content-Type", page.content_type);
        fields.push("Vary", "Accept");
        if is_cut_off {
            // JSON has no other place for it: the array has the same form as other servers'.
            fields.push("Listing-Truncated", "?1");
        }
        apply_rules(&self.files.fields, routed.path, page.content_type, &mut fields);
        Ok(Response::Built(BuiltResponse::with_fields(Status::OK, fields, Body::from_bytes(page.body))))
    }

    /// Reads a directory and renders its listing, when its turn comes; `None` if no request wants it any more.
    async fn make_listing(
        self: Arc<Self>,
        root: Arc<OpenedRoot>,
        key: ListingKey,
        name: Box<[u8]>,
        demand: Demand<ListingResult>,
    ) -> Option<ListingResult> {
        let turn = demand.turn(&self.listings).await?;
        let making = Blocking::spawn(move || {
            // Held until the work ends, even if all requests have left.
            let _turn = turn;
            let listing = self.read_listing(&root, &name, &demand);
            let make = |listing: Listing| {
                let is_cut_off = listing.is_cut_off;
                MadeListing { page: listing::render(&key.path, listing, key.sort, key.format), is_cut_off }
            };
            listing.map(|listing| listing.map(make)).transpose()
        });
        match making.await {
            Ok(made) => made.map(|made| made.map_err(FileRejection::from)),
            Err(_) => Some(Err(FileRejection::Failed)),
        }
    }

    /// Reads a directory as visitors may see it, without entries that would not be served. `None` if no request wants
    /// it any more.
    fn read_listing(
        &self,
        root: &OpenedRoot,
        name: &[u8],
        demand: &Demand<ListingResult>,
    ) -> Result<Option<Listing>, OpenError> {
        let mut listing = Listing::default();
        for entry in Dir::new(root.root.open_directory(name)?)? {
            if !demand.exists() {
                return Ok(None);
            }
            let entry = entry?;
            let entry_name = entry.file_name().to_bytes();
            if matches!(entry_name, b"." | b"..") || is_hidden(entry_name, self.files.hidden) {
                continue;
            }
            // Resolved as a request would be, so that links out of the root are hidden.
            let Ok((_, status)) = root.root.find(&[name, entry_name].concat(), DiskAccess::Blocking) else { continue };
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
            listing.entries.push(ListingEntry {
                name: entry_name.to_vec(),
                is_directory,
                size: status.identity.size,
                modified: u64::try_from(status.identity.modified_ns / 1_000_000_000).unwrap_or(0),
            });
        }
        Ok(Some(listing))
    }
}
