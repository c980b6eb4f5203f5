//! Test sites to serve, generated from a fixed seed, so that each run writes the same files.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use fastrand::Rng;

use crate::end::ProgramEnd;

/// Options of `tailor site`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct SiteOptions {
    /// Directory to create
    pub directory: PathBuf,
    /// Kind of site: `realistic`, `mixed`, `page`, `file:BYTES`, `files:BYTES,BYTES…`, `tree:FILES` or
    /// `web99:CONNECTIONS`
    #[arg(long, default_value = "realistic", value_parser = SiteKind::parse)]
    pub kind: SiteKind,
}

/// Writes the site that the options choose.
///
/// # Errors
/// A file could not be written.
pub(crate) fn run(options: &SiteOptions) -> Result<ProgramEnd, String> {
    options.kind.write(&options.directory)?;
    let urls = options.directory.join("urls.txt");
    if urls.is_file() {
        println!("URLs for bench --urls: {}", urls.display());
    }
    Ok(ProgramEnd::Passed)
}

/// Kind of test site; [`SiteKind::parse`] reads its notation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SiteKind {
    /// Pages with styles, scripts and images: about 400 files whose sizes are distributed as on real sites.
    Realistic,
    /// The realistic site and a catalogue in PHP, which gets 20 % of the requests.
    Mixed,
    /// A page of 21.5 KB and two images of 25 KB.
    Page,
    /// One file named `file`, of this length in bytes.
    File(u64),
    /// Files of these lengths in bytes; each file's name is its length.
    Files(Vec<u64>),
    /// This number of small files, 100 in each directory.
    Tree(u64),
    /// File set of the web99 workload for this number of connections.
    Web99(u64),
}

/// Modification time of all files, so that conditional requests can match: Sun, 09 Sep 2001 01:46:40 GMT.
const MODIFIED: std::time::Duration = std::time::Duration::from_secs(1_000_000_000);
/// Pages of the realistic site.
const PAGES: usize = 120;
/// Pages of the mixed site's catalogue.
const CATALOGUE_PAGES: usize = 50;
/// Share of the requests that are for pages of the catalogue.
const DYNAMIC_SHARE: f64 = 0.2;
/// Images of the realistic site.
const IMAGES: usize = 240;

impl SiteKind {
    /// Reads `realistic`, `mixed`, `page`, `file:1024`, `files:1024,4096`, `tree:1000` or `web99:100`.
    ///
    /// # Errors
    /// The text is none of these.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let number = |digits: &str| digits.parse::<u64>().map_err(|_| format!("`{digits}` is not a number"));
        match text.split_once(':') {
            None if text == "realistic" => Ok(Self::Realistic),
            None if text == "mixed" => Ok(Self::Mixed),
            None if text == "page" => Ok(Self::Page),
            Some(("file", bytes)) => Ok(Self::File(number(bytes)?)),
            Some(("files", list)) => Ok(Self::Files(list.split(',').map(number).collect::<Result<_, _>>()?)),
            Some(("tree", files)) => Ok(Self::Tree(number(files)?)),
            Some(("web99", connections)) => Ok(Self::Web99(number(connections)?)),
            _ => Err(format!(
                "unknown site `{text}`; use realistic, mixed, page, file:BYTES, files:BYTES,BYTES, tree:FILES or web99:CONNECTIONS"
            )),
        }
    }

    /// Writes the site's files and `urls.txt`, which has a weight and a path on each line.
    ///
    /// # Errors
    /// A file could not be written.
    pub(crate) fn write(&self, root: &Path) -> Result<(), String> {
        let mut site = GeneratedSite { root: root.to_owned(), urls: String::new(), rng: Rng::with_seed(2001) };
        match self {
            Self::Realistic => site.realistic()?,
            Self::Mixed => site.mixed()?,
            Self::Page => site.page()?,
            Self::File(bytes) => site.add("file", &vec![b'x'; *bytes as usize], 1.0)?,
            Self::Files(lengths) => {
                for bytes in lengths {
                    site.add(&bytes.to_string(), &vec![b'x'; *bytes as usize], 1.0)?;
                }
            }
            Self::Tree(files) => {
                for file in 0..*files {
                    let bytes = site.log_normal(4_000.0, 1.0, 100, 100_000);
                    site.add(&format!("{:04}/{file}.html", file / 100), &vec![b'x'; bytes], 1.0)?;
                }
            }
            Self::Web99(connections) => {
                crate::web99::write_site(root, *connections)?;
                site.urls = crate::web99::weighted_urls(*connections);
            }
        }
        let urls = std::mem::take(&mut site.urls);
        site.put("urls.txt", urls.as_bytes())
    }
}

struct GeneratedSite {
    root: PathBuf,
    urls: String,
    rng: Rng,
}

impl GeneratedSite {
    fn realistic(&mut self) -> Result<(), String> {
        for (name, bytes, weight) in [("style.css", 18_000, 60.0), ("site.js", 42_000, 60.0), ("logo.png", 6_200, 60.0)]
        {
            let content = self.content(name, bytes);
            self.add(&format!("assets/{name}"), &content, weight)?;
        }
        for page in 0..PAGES {
            let bytes = self.log_normal(12_000.0, 0.8, 900, 120_000);
            let content = self.html(&format!("Page {page}"), bytes);
            // By Zipf's law, the page of rank r gets a weight of 1 / r.
            let name = if page == 0 { "index.html".to_owned() } else { format!("pages/{page}.html") };
            self.add(&name, &content, 100.0 / (page + 1) as f64)?;
        }
        for image in 0..IMAGES {
            let bytes = self.log_normal(14_000.0, 1.1, 400, 900_000);
            let content = self.content("jpg", bytes);
            self.add(&format!("images/{image}.jpg"), &content, 150.0 / (image + 1) as f64)?;
        }
        Ok(())
    }

    /// Writes the realistic site and a catalogue in PHP, whose pages are requested by Zipf's law.
    fn mixed(&mut self) -> Result<(), String> {
        self.realistic()?;
        let weights = self.urls.lines().filter_map(|line| line.split(' ').next()?.parse::<f64>().ok());
        let dynamic_weight = weights.sum::<f64>() * DYNAMIC_SHARE / (1.0 - DYNAMIC_SHARE);
        let sum: f64 = (1..=CATALOGUE_PAGES).map(|page| 1.0 / page as f64).sum();
        for page in 1..=CATALOGUE_PAGES {
            // Writing to a string does not fail.
            let _ = writeln!(self.urls, "{:.6} /catalogue.php?page={page}", dynamic_weight / page as f64 / sum);
        }
        self.put("catalogue.php", include_bytes!("site/catalogue.php"))
    }

    fn page(&mut self) -> Result<(), String> {
        let content = self.html("A page", 21_500);
        self.add("index.html", &content, 1.0)?;
        for image in ["one.jpg", "two.jpg"] {
            let content = self.content("jpg", 25_000);
            self.add(image, &content, 1.0)?;
        }
        Ok(())
    }

    /// Builds a page of exactly this length.
    fn html(&mut self, title: &str, bytes: usize) -> Vec<u8> {
        let mut text = format!("<!doctype html><title>{title}</title>\n<h1>{title}</h1>\n");
        while text.len() < bytes {
            text.push_str("<p>");
            for _ in 0..self.rng.usize(20..90) {
                let letters = self.rng.usize(2..10);
                text.extend((0..letters).map(|_| self.rng.lowercase()));
                text.push(' ');
            }
            text.push_str("</p>\n");
        }
        text.truncate(bytes);
        text.into_bytes()
    }

    /// Text for styles and scripts; for images, random bytes, which do not compress.
    fn content(&mut self, name: &str, bytes: usize) -> Vec<u8> {
        if name.ends_with("css") || name.ends_with("js") {
            return self.html("", bytes);
        }
        let mut content = vec![0; bytes];
        self.rng.fill(&mut content);
        content
    }

    /// Size whose logarithm is normally distributed, like the sizes of files on the web.
    fn log_normal(&mut self, median: f64, deviation: f64, min: usize, max: usize) -> usize {
        // The sum of twelve uniform values is close enough to a normal distribution.
        let normal: f64 = (0..12).map(|_| self.rng.f64()).sum::<f64>() - 6.0;
        ((median * (normal * deviation).exp()) as usize).clamp(min, max)
    }

    fn add(&mut self, name: &str, content: &[u8], weight: f64) -> Result<(), String> {
        // Writing to a string does not fail.
        let _ = writeln!(self.urls, "{weight:.6} /{name}");
        self.put(name, content)
    }

    fn put(&self, name: &str, content: &[u8]) -> Result<(), String> {
        let path = self.root.join(name);
        let error = |error: std::io::Error| format!("{}: {error}", path.display());
        if let Some(parent) = path.parent() {
            std::fs::create_dir_all(parent).map_err(error)?;
        }
        let mut file = std::fs::File::create(&path).map_err(error)?;
        file.write_all(content).map_err(error)?;
        file.set_modified(std::time::UNIX_EPOCH + MODIFIED).map_err(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn make(kind: &str) -> (tempfile::TempDir, Vec<(f64, String, u64)>) {
        let directory = tempfile::tempdir().unwrap();
        SiteKind::parse(kind).unwrap().write(directory.path()).unwrap();
        let urls = std::fs::read_to_string(directory.path().join("urls.txt")).unwrap();
        let files = urls.lines().map(|line| {
            let (weight, path) = line.split_once(' ').unwrap();
            let name = path[1..].split('?').next().unwrap();
            let length = std::fs::metadata(directory.path().join(name)).unwrap().len();
            (weight.parse().unwrap(), path.to_owned(), length)
        });
        let files = files.collect();
        (directory, files)
    }

    #[test]
    fn kinds() {
        let lengths = |kind: &str| make(kind).1.iter().map(|file| file.2).collect::<Vec<_>>();
        assert_eq!(lengths("file:1024"), [1024]);
        assert_eq!(lengths("page"), [21_500, 25_000, 25_000]);
        assert_eq!(lengths("files:7,20"), [7, 20]);
        assert_eq!(lengths("tree:250").len(), 250);
        assert_eq!(lengths("realistic").len(), 3 + PAGES + IMAGES);
        let mixed = make("mixed").1;
        let sum = |text: &str| mixed.iter().filter(|file| file.1.contains(text)).map(|file| file.0).sum::<f64>();
        assert!((sum("catalogue") / sum("") - DYNAMIC_SHARE).abs() < 1e-4);
        for text in ["", "x", "file:", "files:", "files:1,x", "web99:x"] {
            assert!(SiteKind::parse(text).is_err(), "{text}");
        }
    }
}
