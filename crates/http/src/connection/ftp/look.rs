//! Replies about paths: CWD, SIZE, MDTM, MLST, and STAT with a path.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context as Task, Poll, ready};

use wire::ftp::{FtpEntry, FtpReply, PathQuestion, push_facts, push_long_line, push_time};

use super::FtpConnection;
use crate::handler::{ListingScope, NamedEntry, NamedListing, NamedRejection};

/// Question about a path, and the lookup that is awaited.
pub(super) struct Looking {
    question: PathQuestion,
    path: Vec<u8>,
    future: Pin<Box<dyn Future<Output = Result<NamedListing, NamedRejection>>>>,
}

impl Looking {
    /// Bytes of the path, and of the path below the root that the lookup holds.
    pub(super) fn held_bytes(&self) -> usize {
        2 * self.path.capacity()
    }
}

impl FtpConnection {
    pub(super) fn begin_look(&mut self, question: PathQuestion, path: Vec<u8>) {
        let Some(site) = self.site() else { return self.reply(&rejection_reply(NamedRejection::NotFound)) };
        let (files, host, now) = (site.files.clone(), self.host.clone().unwrap_or_default(), self.context.clock.now());
        let in_root = self.path_in_root(&path);
        let future: Pin<Box<dyn Future<Output = _>>> = match question {
            PathQuestion::List(form) => {
                let scope = ListingScope {
                    shows_hidden: form.shows_hidden,
                    is_itself: form.is_itself,
                    may_match: true,
                    needs_directory: false,
                    entries_max: site.config.entries_max,
                };
                Box::pin(files.list(host, in_root, scope, now))
            }
            PathQuestion::Size if self.keeper(&site).is_some() => {
                let keeper = self.keeper(&site).unwrap_or_default();
                let (partial, entry) = (
                    files.clone().partial_bytes(host.clone(), in_root.clone(), keeper, now),
                    files.entry(host, in_root, now),
                );
                let name = path.clone();
                Box::pin(async {
                    let unknown =
                        NamedEntry { name: Vec::new(), is_directory: false, size: 0, modified: 0, unique: (0, 0) };
                    let entry = match partial.await {
                        Some(size) => NamedEntry { name, size, ..unknown },
                        None => entry.await?,
                    };
                    Ok(NamedListing { entries: vec![entry], is_content: false })
                })
            }
            PathQuestion::Enter | PathQuestion::Size | PathQuestion::Modified | PathQuestion::Facts => {
                let (entry, name) = (files.entry(host, in_root, now), path.clone());
                Box::pin(async {
                    let entry = NamedEntry { name, ..entry.await? };
                    Ok(NamedListing { entries: vec![entry], is_content: false })
                })
            }
        };
        self.looking = Some(Box::new(Looking { question, path, future }));
    }

    /// Replies when the lookup is done.
    pub(super) fn poll_look(&mut self, task: &mut Task<'_>) -> Poll<()> {
        let Some(looking) = &mut self.looking else { return Poll::Ready(()) };
        let result = ready!(looking.future.as_mut().poll(task));
        if let Some(looking) = self.looking.take() {
            let reply = match result {
                Ok(listing) => self.answer(looking.question, looking.path, &listing.entries),
                Err(rejection) => rejection_reply(rejection),
            };
            self.reply(&reply);
        }
        Poll::Ready(())
    }

    fn answer(&mut self, question: PathQuestion, path: Vec<u8>, entries: &[NamedEntry]) -> FtpReply {
        match (question, entries) {
            (PathQuestion::List(_), entries) => {
                let now = self.context.clock.now().unix_seconds;
                let mut text = [&b"Status of "[..], &path, b":\n"].concat();
                let mut line = Vec::new();
                for entry in entries {
                    line.clear();
                    push_long_line(&mut line, &shown(entry, self.may_write()), now);
                    text.extend_from_slice(line.strip_suffix(b"\r\n").unwrap_or(&line));
                    text.push(b'\n');
                }
                text.extend_from_slice(b"End");
                FtpReply::with_text(213, text)
            }
            (PathQuestion::Enter, [entry]) if entry.is_directory => self.session.on_directory(path),
            (PathQuestion::Enter, _) => FtpReply::new(550, "Not a directory."),
            (PathQuestion::Facts, [entry]) => {
                let mut text = b"Facts:\n".to_vec();
                let kind = if entry.is_directory { "dir" } else { "file" };
                push_facts(&mut text, &shown(entry, self.may_write()), kind, &self.session.facts());
                text.extend_from_slice(b"\nEnd");
                FtpReply::with_text(250, text)
            }
            (PathQuestion::Size, [entry]) if !entry.is_directory => FtpReply::with_text(213, entry.size.to_string()),
            (PathQuestion::Modified, [entry]) if !entry.is_directory => {
                let mut text = Vec::new();
                push_time(&mut text, entry.modified);
                FtpReply::with_text(213, text)
            }
            _ => rejection_reply(NamedRejection::IsDirectory),
        }
    }
}

/// Entry in the form of listings.
pub(super) fn shown(entry: &NamedEntry, is_writable: bool) -> FtpEntry<'_> {
    FtpEntry {
        name: &entry.name,
        is_directory: entry.is_directory,
        size: entry.size,
        modified: entry.modified,
        is_writable,
        unique: entry.unique,
    }
}

/// Reply for a path that cannot be had.
pub(super) fn rejection_reply(rejection: NamedRejection) -> FtpReply {
    match rejection {
        NamedRejection::NotFound => FtpReply::new(550, "No such file or directory."),
        NamedRejection::Forbidden => FtpReply::new(550, "Permission denied."),
        NamedRejection::IsDirectory => FtpReply::new(550, "Not a plain file."),
        NamedRejection::NotDirectory => FtpReply::new(501, "Not a directory."),
        NamedRejection::Exists => FtpReply::new(550, "The name is in use already."),
        NamedRejection::NotEmpty => FtpReply::new(550, "The directory is not empty."),
        NamedRejection::Full => FtpReply::new(452, "The disk is full."),
        NamedRejection::TooLarge => FtpReply::new(552, "The file is larger than `stored-bytes-max`."),
        NamedRejection::PastEnd => FtpReply::new(554, "The file is shorter than the position of REST."),
        NamedRejection::Unavailable => FtpReply::new(450, "Busy, or too much work: try again later."),
        NamedRejection::Failed => FtpReply::new(451, "The file system reported an error."),
    }
}
