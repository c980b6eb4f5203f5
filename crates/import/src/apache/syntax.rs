//! Apache's configuration language: directives, sections, variables and files that are included.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use crate::directive::Directive;
use crate::expression::ReadOnce;
use crate::source::{INCLUDE_DEPTH_MAX, SourceReader, included};
use crate::{FileLine, ImportError};

/// Maximum nesting of sections; real configurations have less, and more would overflow the stack.
const NESTING_MAX: usize = 64;

/// Modules that are part of the program, or that most sites have. They count unless the files load modules.
const USUAL: [&str; 39] = [
    "core",
    "so",
    "http",
    "log_config",
    "logio",
    "version",
    "unixd",
    "authz_core",
    "authz_host",
    "authz_user",
    "authn_core",
    "authn_file",
    "auth_basic",
    "access_compat",
    "alias",
    "rewrite",
    "headers",
    "expires",
    "deflate",
    "brotli",
    "filter",
    "mime",
    "dir",
    "autoindex",
    "negotiation",
    "setenvif",
    "env",
    "ssl",
    "socache_shmcb",
    "proxy",
    "proxy_http",
    "proxy_fcgi",
    "proxy_wstunnel",
    "proxy_balancer",
    "http2",
    "reqtimeout",
    "status",
    "remoteip",
    "cgid",
];

/// Variables of Debian's `envvars`.
const VARIABLES: [(&str, &str); 6] = [
    ("APACHE_LOG_DIR", "/var/log/apache2"),
    ("APACHE_RUN_USER", "www-data"),
    ("APACHE_RUN_GROUP", "www-data"),
    ("APACHE_RUN_DIR", "/run/apache2"),
    ("APACHE_LOCK_DIR", "/var/lock/apache2"),
    ("APACHE_PID_FILE", "/run/apache2/apache2.pid"),
];

/// Reads a file and all that it includes.
pub(super) fn read(path: &Path) -> Result<Vec<Directive>, ImportError> {
    let mut reader = Reader::new(path);
    let text = reader.source.read(path, false)?;
    let directives = parse(path, &text)?;
    reader.resolve(directives, 0)
}

#[cfg(test)]
pub(super) fn parse_resolved(text: &str) -> Result<Vec<Directive>, ImportError> {
    let path = Path::new("httpd.conf");
    Reader::new(path).resolve(parse(path, text)?, 0)
}

struct Reader {
    source: SourceReader,
    root: PathBuf,
    variables: HashMap<String, String>,
    /// Loaded modules, without `mod_` and `_module`.
    modules: HashSet<String>,
    is_loading: bool,
    macros: HashMap<String, Directive>,
    /// Number of directives so far, with those of macros.
    directives: usize,
}

/// Most directives of a configuration: macros that use each other would multiply.
const DIRECTIVES_MAX: usize = 1_000_000;

/// Longest argument in which variables are replaced: those that are defined by themselves would double.
const ARGUMENT_BYTES_MAX: usize = 64 << 10;

impl Reader {
    fn new(path: &Path) -> Self {
        let root = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let known = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
        Self {
            source: SourceReader::default(),
            root: root.to_owned(),
            variables: VARIABLES.into_iter().map(known).collect(),
            modules: HashSet::new(),
            is_loading: false,
            macros: HashMap::new(),
            directives: 0,
        }
    }

    fn has_module(&self, name: &str) -> bool {
        let name = name.trim_start_matches("mod_").trim_end_matches(".c").trim_end_matches("_module");
        match self.is_loading {
            true => self.modules.contains(name) || USUAL[..7].contains(&name),
            false => USUAL.contains(&name),
        }
    }

    /// Directives with variables replaced, files included, and conditions decided.
    fn resolve(&mut self, directives: Vec<Directive>, depth: usize) -> Result<Vec<Directive>, ImportError> {
        let mut all = Vec::with_capacity(directives.len());
        for mut directive in directives {
            if depth > INCLUDE_DEPTH_MAX {
                let message = "files include each other in a loop".to_owned();
                return Err(ImportError::Malformed { place: directive.place, message });
            }
            self.directives += 1;
            if self.directives > DIRECTIVES_MAX {
                let message = format!("macros lead to more than {DIRECTIVES_MAX} directives");
                return Err(ImportError::Malformed { place: directive.place, message });
            }
            for argument in &mut directive.arguments {
                self.replace(argument);
            }
            match directive.name.to_ascii_lowercase().as_str() {
                "define" => {
                    self.variables.insert(directive.first().to_owned(), directive.argument(1).to_owned());
                }
                "undefine" => {
                    self.variables.remove(directive.first());
                }
                "serverroot" => {
                    self.root = PathBuf::from(directive.first());
                }
                "loadmodule" => {
                    self.is_loading = true;
                    self.modules.insert(directive.first().trim_end_matches("_module").to_owned());
                }
                "include" | "includeoptional" => self.include(directive, depth, &mut all)?,
                "ifmodule" | "ifdefine" | "ifversion" | "ifdirective" | "ifsection" | "iffile" => {
                    if self.holds(&directive) {
                        all.append(&mut self.resolve(directive.block.unwrap_or_default(), depth)?);
                    }
                }
                "macro" => {
                    self.macros.insert(directive.first().to_ascii_lowercase(), directive);
                }
                "use" => {
                    if let Some(text) = self.macros.get(&directive.first().to_ascii_lowercase()) {
                        let block = expand(text, directive.arguments.get(1..).unwrap_or_default());
                        all.append(&mut self.resolve(block, depth + 1)?);
                    } else {
                        all.push(directive);
                    }
                }
                _ => {
                    normalise(&mut directive);
                    if let Some(block) = directive.block.take() {
                        directive.block = Some(self.resolve(block, depth)?);
                    }
                    all.push(directive);
                }
            }
        }
        Ok(all)
    }

    fn include(&mut self, directive: Directive, depth: usize, all: &mut Vec<Directive>) -> Result<(), ImportError> {
        let pattern = self.root.join(directive.first());
        let pattern = if pattern.is_dir() { pattern.join("*") } else { pattern };
        match included(&pattern) {
            Ok(files) => {
                for file in files {
                    let text = self.source.read(&file, true)?;
                    let inner = parse(&file, &text)?;
                    all.append(&mut self.resolve(inner, depth + 1)?);
                }
            }
            Err(_) if directive.name.eq_ignore_ascii_case("includeoptional") => {}
            Err(_) => all.push(directive),
        }
        Ok(())
    }

    fn replace(&self, text: &mut String) {
        let mut from = 0;
        while let Some(start) = text[from..].find("${").map(|at| from + at) {
            let Some(end) = text[start..].find('}').map(|at| start + at) else { return };
            match self.variables.get(&text[start + 2..end]) {
                Some(value) if text.len() + value.len() > ARGUMENT_BYTES_MAX => return,
                Some(value) => {
                    text.replace_range(start..=end, value);
                    from = start + value.len();
                }
                None => from = end,
            }
        }
    }

    fn holds(&self, directive: &Directive) -> bool {
        let (is_negated, name) = match directive.first().strip_prefix('!') {
            Some(name) => (true, name),
            None => (false, directive.first()),
        };
        let is = match directive.name.to_ascii_lowercase().as_str() {
            "ifmodule" => self.has_module(name),
            "ifdefine" => self.variables.contains_key(name),
            "ifversion" => !matches!(directive.first(), "<" | "<=") && !directive.argument(1).starts_with("2.2"),
            "iffile" => self.root.join(name).exists(),
            _ => true,
        };
        is != is_negated
    }
}

/// Removes `.`, `..` and doubled slashes from a place on the disk, as Apache does.
fn normalise(directive: &mut Directive) {
    let index = match directive.name.to_ascii_lowercase().as_str() {
        "directory" | "documentroot" => 0,
        "alias" | "scriptalias" => 1,
        _ => return,
    };
    let Some(text) = directive.arguments.get_mut(index).filter(|text| text.starts_with('/')) else { return };
    if !text.contains("//") && !text.split('/').any(|part| matches!(part, "." | "..")) {
        return;
    }
    let mut parts = Vec::new();
    for part in text.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    let end = if text.ends_with('/') && !parts.is_empty() { "/" } else { "" };
    *text = format!("/{}{end}", parts.join("/"));
}

/// The content of a macro with its values.
fn expand(text: &Directive, values: &[String]) -> Vec<Directive> {
    let names = text.arguments.get(1..).unwrap_or_default();
    let replace = |word: &str| {
        let pairs = names.iter().zip(values);
        pairs.fold(word.to_owned(), |word, (name, value)| word.replace(name.as_str(), value))
    };
    fn with(directive: &Directive, replace: &impl Fn(&str) -> String) -> Directive {
        Directive {
            name: directive.name.clone(),
            arguments: directive.arguments.iter().map(|word| replace(word)).collect(),
            block: directive.block.as_ref().map(|block| block.iter().map(|child| with(child, replace)).collect()),
            place: directive.place.clone(),
            had_variables: false,
            expression: ReadOnce::default(),
        }
    }
    text.children().iter().map(|child| with(child, &replace)).collect()
}

/// Directives of a text.
pub(super) fn parse(file: &Path, text: &str) -> Result<Vec<Directive>, ImportError> {
    let file: Rc<Path> = file.into();
    let wrong =
        |line: usize, message: String| ImportError::Malformed { place: FileLine { file: file.clone(), line }, message };
    // Open sections, the outermost first, and the directives of each.
    let mut open: Vec<Directive> = Vec::new();
    let mut found: Vec<Vec<Directive>> = vec![Vec::new()];
    let mut lines = text.lines().enumerate();
    while let Some((index, first)) = lines.next() {
        let mut line = first.trim().to_owned();
        while line.ends_with('\\') && !line.starts_with('#') {
            line.pop();
            match lines.next() {
                Some((_, next)) => line.push_str(next.trim_end()),
                None => break,
            }
        }
        let number = index + 1;
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let place = FileLine { file: file.clone(), line: number };
        if let Some(name) = line.strip_prefix("</") {
            let name = name.trim_end_matches('>').trim();
            match open.pop() {
                Some(mut section) if section.name.eq_ignore_ascii_case(name) => {
                    section.block = found.pop();
                    if let Some(outer) = found.last_mut() {
                        outer.push(section);
                    }
                }
                Some(section) => return Err(wrong(number, format!("`</{name}>` closes `<{}>`", section.name))),
                None => return Err(wrong(number, format!("unexpected `</{name}>`"))),
            }
            continue;
        }
        let section = line.strip_prefix('<');
        let words = words(section.map_or(line, |rest| rest.trim_end().trim_end_matches('>')));
        let Some((name, arguments)) = words.split_first() else { continue };
        let directive = Directive {
            name: name.clone(),
            arguments: arguments.to_vec(),
            block: None,
            place,
            had_variables: false,
            expression: ReadOnce::default(),
        };
        if section.is_some() {
            if open.len() == NESTING_MAX {
                return Err(wrong(number, "sections are nested too deeply".to_owned()));
            }
            open.push(directive);
            found.push(Vec::new());
        } else if let Some(inner) = found.last_mut() {
            inner.push(directive);
        }
    }
    match open.pop() {
        Some(section) => Err(wrong(section.place.line, format!("`<{}>` is not closed", section.name))),
        None => Ok(found.pop().unwrap_or_default()),
    }
}

/// Words of a line. A text whose quotation mark is not closed ends with the line.
fn words(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut characters = line.chars().peekable();
    loop {
        while characters.next_if(|c| c.is_whitespace()).is_some() {}
        let Some(first) = characters.next() else { return words };
        let mut word = String::new();
        if matches!(first, '"' | '\'') {
            while let Some(next) = characters.next() {
                match next {
                    '\\' => match characters.next_if(|next| *next == first || *next == '\\') {
                        // A backslash before another one stays for the expression.
                        Some('\\') => word.push_str(r"\\"),
                        Some(next) => word.push(next),
                        None => word.push('\\'),
                    },
                    end if end == first => break,
                    character => word.push(character),
                }
            }
        } else {
            word.push(first);
            while let Some(character) = characters.next_if(|c| !c.is_whitespace()) {
                word.push(character);
            }
        }
        words.push(word);
    }
}
