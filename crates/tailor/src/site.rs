//! Sites to serve, made up: the same each time.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use fastrand::Rng;

use crate::cli::End;

/// Options of `tailor site`.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Where to make it.
    pub directory: PathBuf,
    /// What kind: `realistic`, `page`, `file:BYTES` or `web99:CONNECTIONS`.
    #[arg(long, default_value = "realistic", value_parser = Kind::parse)]
    pub kind: Kind,
}

/// Makes a site.
///
/// # Errors
/// A file could not be written.
pub fn run(options: &Options) -> Result<End, String> {
    options.kind.write(&options.directory)?;
    Ok(End::Passed)
}

/// A kind of site.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Pages with styles, scripts and images, about 400 files whose sizes spread as on real sites.
    Realistic,
    /// A page of 21.5 KB and two images of 25 KB.
    Page,
    /// One file, `file`, of so many bytes.
    File(u64),
    /// The file set of the web99 workload for so many connections.
    Web99(u32),
}

/// Pages of the realistic site.
const PAGES: usize = 120;
/// Images of the realistic site.
const IMAGES: usize = 240;

impl Kind {
    /// Reads `realistic`, `page`, `file:1024` or `web99:100`.
    ///
    /// # Errors
    /// It is none of them.
    pub fn parse(text: &str) -> Result<Self, String> {
        let number = |digits: &str| digits.parse::<u64>().map_err(|_| format!("`{digits}` is not a number"));
        match text.split_once(':') {
            None if text == "realistic" => Ok(Self::Realistic),
            None if text == "page" => Ok(Self::Page),
            Some(("file", bytes)) => Ok(Self::File(number(bytes)?)),
            Some(("web99", connections)) => {
                Ok(Self::Web99(u32::try_from(number(connections)?).map_err(|error| error.to_string())?))
            }
            _ => Err(format!("`{text}` is not realistic, page, file:BYTES or web99:CONNECTIONS")),
        }
    }

    /// Makes the site, with `urls.txt`: a weight and a path a line.
    ///
    /// # Errors
    /// A file could not be written.
    pub fn write(self, root: &Path) -> Result<(), String> {
        let mut site = Site { root: root.to_owned(), urls: String::new(), rng: Rng::with_seed(2001) };
        match self {
            Self::Realistic => site.realistic()?,
            Self::Page => site.page()?,
            Self::File(bytes) => site.add("file", &vec![b'x'; bytes as usize], 1.0)?,
            Self::Web99(connections) => site.web99(connections)?,
        }
        let urls = std::mem::take(&mut site.urls);
        site.put("urls.txt", urls.as_bytes())
    }
}

struct Site {
    root: PathBuf,
    urls: String,
    rng: Rng,
}

impl Site {
    fn realistic(&mut self) -> Result<(), String> {
        for (name, bytes, weight) in [("style.css", 18_000, 60.0), ("site.js", 42_000, 60.0), ("logo.png", 6_200, 60.0)]
        {
            let content = self.content(name, bytes);
            self.add(&format!("assets/{name}"), &content, weight)?;
        }
        for page in 0..PAGES {
            let bytes = self.log_normal(12_000.0, 0.8, 900, 120_000);
            let content = self.html(&format!("Page {page}"), bytes);
            // Zipf's law: the page of rank r as often as 1 / r.
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

    fn page(&mut self) -> Result<(), String> {
        let content = self.html("A page", 21_500);
        self.add("index.html", &content, 1.0)?;
        for image in ["one.jpg", "two.jpg"] {
            let content = self.content("jpg", 25_000);
            self.add(image, &content, 1.0)?;
        }
        Ok(())
    }

    /// Directories of 36 files, class by class; chosen by Zipf's law over the directories, the classes' shares, and Zipf's
    /// law again over the ranks within a class.
    fn web99(&mut self, connections: u32) -> Result<(), String> {
        const CLASS_SHARES: [f64; 4] = [0.35, 0.50, 0.14, 0.01];
        const RANKS: [usize; 9] = [4, 3, 5, 2, 6, 1, 7, 8, 0];
        const CLASS_BYTES: [f64; 4] = [102.4, 1_024.0, 10_240.0, 102_400.0];
        let rank_sum: f64 = (1..=9).map(|rank| 1.0 / f64::from(rank)).sum();
        for directory in 0..web99_directories(connections) {
            for (class, share) in CLASS_SHARES.iter().enumerate() {
                for (rank, file) in RANKS.iter().enumerate() {
                    let bytes = (CLASS_BYTES[class] * (file + 1) as f64).round() as usize;
                    let content = self.html(&format!("{directory} {class} {file}"), bytes);
                    let weight = share / (rank + 1) as f64 / rank_sum / (directory + 1) as f64 * 1000.0;
                    self.add(&format!("file_set/dir{directory:05}/class{class}_{file}"), &content, weight)?;
                }
            }
        }
        Ok(())
    }

    /// A page of just this length.
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

    /// Text for styles and scripts; for images what compresses as little as they do.
    fn content(&mut self, name: &str, bytes: usize) -> Vec<u8> {
        if name.ends_with("css") || name.ends_with("js") {
            return self.html("", bytes);
        }
        let mut content = vec![0; bytes];
        self.rng.fill(&mut content);
        content
    }

    /// A size whose logarithm is normally distributed, as those of files on the web are.
    fn log_normal(&mut self, median: f64, deviation: f64, min: usize, max: usize) -> usize {
        // The sum of twelve even ones is near enough to normal.
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
        std::fs::write(&path, content).map_err(error)
    }
}

/// How many directories the web99 file set has.
fn web99_directories(connections: u32) -> u32 {
    (25.0 + (400_000.0 / 122_000.0) * f64::from(connections) / 5.0) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn make(kind: &str) -> (tempfile::TempDir, Vec<(f64, String, u64)>) {
        let directory = tempfile::tempdir().unwrap();
        Kind::parse(kind).unwrap().write(directory.path()).unwrap();
        let urls = std::fs::read_to_string(directory.path().join("urls.txt")).unwrap();
        let files = urls.lines().map(|line| {
            let (weight, path) = line.split_once(' ').unwrap();
            let length = std::fs::metadata(directory.path().join(&path[1..])).unwrap().len();
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
        assert_eq!(lengths("realistic").len(), 3 + PAGES + IMAGES);
        for text in ["", "x", "file:", "web99:x"] {
            assert!(Kind::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn the_file_set_of_web99() {
        assert_eq!([1, 100, 1000].map(web99_directories), [25, 90, 680]);
        let (_directory, files) = make("web99:1");
        assert_eq!(files.len(), 25 * 36);
        let find = |path: &str| files.iter().find(|file| file.1 == path).unwrap();
        for (path, bytes) in
            [("class0_0", 102), ("class0_8", 922), ("class1_0", 1024), ("class2_8", 92_160), ("class3_8", 921_600)]
        {
            assert_eq!(find(&format!("/file_set/dir00024/{path}")).2, bytes, "{path}");
        }
        let total: f64 = files.iter().map(|file| file.0).sum();
        let share =
            |text: &str| files.iter().filter(|file| file.1.contains(text)).map(|file| file.0).sum::<f64>() / total;
        for (text, expect) in [("class0_", 0.35), ("class1_", 0.5), ("class2_", 0.14), ("class3_", 0.01)] {
            assert!((share(text) - expect).abs() < 1e-4, "{text}: {}", share(text));
        }
        assert!((share("dir00000") / share("dir00001") - 2.0).abs() < 1e-3);
        assert!(find("/file_set/dir00000/class1_4").0 > find("/file_set/dir00000/class1_0").0 * 8.0);
    }
}
