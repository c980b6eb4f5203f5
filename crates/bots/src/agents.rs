//! Names that clients claim in `User-Agent`, and how the claims of crawlers can be verified.

use std::collections::HashMap;

/// A crawler that documents how its requests can be recognized.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Crawler {
    /// Product token, as in robots.txt.
    pub name: String,
    /// Domains that the names of its addresses end with, each with a leading dot; empty if it documents none.
    pub domains: Vec<String>,
}

/// Crawlers by the product tokens of `User-Agent`.
#[derive(Clone, Debug)]
pub struct Crawlers {
    crawlers: Vec<Crawler>,
    /// Index by product token in lower case.
    by_token: HashMap<Vec<u8>, usize>,
}

const GOOGLE: &[&str] = &[".googlebot.com", ".google.com"];
const GOOGLE_USER: &[&str] = &[".google.com", ".googleusercontent.com", ".googlebot.com"];
const MICROSOFT: &[&str] = &[".search.msn.com"];
const YANDEX: &[&str] = &[".yandex.ru", ".yandex.net", ".yandex.com"];
const BAIDU: &[&str] = &[".baidu.com", ".baidu.jp"];

/// Crawlers with the domains that their operators document. One without domains can be verified by its addresses only.
const KNOWN: &[(&str, &[&str])] = &[
    ("Googlebot", GOOGLE),
    ("Googlebot-Image", GOOGLE),
    ("Googlebot-News", GOOGLE),
    ("Googlebot-Video", GOOGLE),
    ("Storebot-Google", GOOGLE),
    ("Google-InspectionTool", GOOGLE),
    ("GoogleOther", GOOGLE),
    ("GoogleOther-Image", GOOGLE),
    ("AdsBot-Google", GOOGLE),
    ("AdsBot-Google-Mobile", GOOGLE),
    ("Mediapartners-Google", GOOGLE),
    ("APIs-Google", GOOGLE),
    ("FeedFetcher-Google", GOOGLE_USER),
    ("Google-Read-Aloud", GOOGLE_USER),
    ("bingbot", MICROSOFT),
    ("adidxbot", MICROSOFT),
    ("BingPreview", MICROSOFT),
    ("msnbot", MICROSOFT),
    ("Applebot", &[".applebot.apple.com"]),
    ("YandexBot", YANDEX),
    ("YandexImages", YANDEX),
    ("YandexMobileBot", YANDEX),
    ("YandexRenderResourcesBot", YANDEX),
    ("Baiduspider", BAIDU),
    ("Baiduspider-render", BAIDU),
    ("Slurp", &[".crawl.yahoo.net"]),
    ("SeznamBot", &[".seznam.cz"]),
    ("PetalBot", &[".petalsearch.com", ".aspiegel.com"]),
    ("MojeekBot", &[".mojeek.com"]),
    ("Amazonbot", &[".crawl.amazonbot.amazon"]),
    ("CCBot", &[".crawl.commoncrawl.org"]),
    ("archive.org_bot", &[".archive.org"]),
    ("Pinterestbot", &[".pinterest.com"]),
    ("Twitterbot", &[".twttr.com"]),
    ("SemrushBot", &[".bot.semrush.com"]),
    ("AhrefsBot", &[".ahrefs.com", ".ahrefs.net"]),
    ("MJ12bot", &[".mj12bot.com"]),
    ("DuckDuckBot", &[]),
    ("DuckAssistBot", &[]),
    ("GPTBot", &[]),
    ("ChatGPT-User", &[]),
    ("OAI-SearchBot", &[]),
    ("ClaudeBot", &[]),
    ("Claude-User", &[]),
    ("Claude-SearchBot", &[]),
    ("PerplexityBot", &[]),
    ("Perplexity-User", &[]),
    ("MistralAI-User", &[]),
    ("Bytespider", &[]),
    ("facebookexternalhit", &[]),
    ("meta-externalagent", &[]),
    ("meta-externalfetcher", &[]),
    ("LinkedInBot", &[]),
    ("Slackbot", &[]),
    ("Discordbot", &[]),
    ("TelegramBot", &[]),
    ("DotBot", &[]),
    ("ImagesiftBot", &[]),
    ("UptimeRobot", &[]),
];

/// Product tokens of programs and libraries that are no browsers, in lower case.
const LIBRARIES: &[&str] = &[
    "aiohttp",
    "apache-httpclient",
    "axios",
    "colly",
    "curl",
    "dart",
    "go-http-client",
    "got",
    "guzzlehttp",
    "httpie",
    "httpx",
    "java",
    "java-http-client",
    "jakarta",
    "libcurl",
    "libwww-perl",
    "lwp",
    "mechanize",
    "node",
    "node-fetch",
    "okhttp",
    "perl",
    "php",
    "python",
    "python-httpx",
    "python-requests",
    "python-urllib",
    "python-urllib3",
    "reqwest",
    "ruby",
    "scrapy",
    "undici",
    "ureq",
    "urllib",
    "wget",
    "wget2",
    "zgrab",
];

/// Product tokens of browsers that programs drive, in lower case.
const HEADLESS: &[&str] = &["headlesschrome", "phantomjs", "puppeteer", "selenium", "playwright", "slimerjs"];

/// Longest product token; a longer one is of no known program.
const TOKEN_BYTES_MAX: usize = 48;

/// Kind of program that a `User-Agent` names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AgentKind {
    /// None is named.
    #[default]
    None,
    /// A browser that sends `Sec-Fetch-Mode`.
    Browser,
    /// Something that calls itself Mozilla, as browsers do, but is old or unknown.
    Mozilla,
    /// A library or a command-line program.
    Library,
    /// A browser that a program drives.
    Headless,
    /// Any other, such as a text browser or a feed reader.
    Other,
}

impl Default for Crawlers {
    fn default() -> Self {
        let mut all = Self { crawlers: Vec::new(), by_token: HashMap::new() };
        for (name, domains) in KNOWN {
            all.add(Crawler {
                name: (*name).to_owned(),
                domains: domains.iter().map(|domain| (*domain).to_owned()).collect(),
            });
        }
        all
    }
}

impl Crawlers {
    /// Adds a crawler, or replaces one of the same name. Returns its index.
    pub fn add(&mut self, crawler: Crawler) -> usize {
        let token = crawler.name.to_ascii_lowercase().into_bytes();
        match self.by_token.get(&token) {
            Some(&index) => {
                self.crawlers[index] = crawler;
                index
            }
            None => {
                self.crawlers.push(crawler);
                self.by_token.insert(token, self.crawlers.len() - 1);
                self.crawlers.len() - 1
            }
        }
    }

    /// Index of a crawler by name.
    pub fn index(&self, name: &str) -> Option<usize> {
        self.by_token.get(name.to_ascii_lowercase().as_bytes()).copied()
    }

    /// Crawler at an index.
    pub fn get(&self, index: usize) -> Option<&Crawler> {
        self.crawlers.get(index)
    }

    /// Index of the crawler that a `User-Agent` claims to be; `None` if it names none.
    pub fn claimed(&self, user_agent: &[u8]) -> Option<usize> {
        let mut buffer = [0; TOKEN_BYTES_MAX];
        tokens(user_agent).find_map(|token| self.by_token.get(lower_case(token, &mut buffer)?).copied())
    }
}

/// Kind of program that a `User-Agent` names.
pub fn agent_kind(user_agent: &[u8]) -> AgentKind {
    if user_agent.trim_ascii().is_empty() {
        return AgentKind::None;
    }
    let mut buffer = [0; TOKEN_BYTES_MAX];
    let mut is_browser = false;
    let mut kind = None;
    for (index, token) in tokens(user_agent).enumerate() {
        let Some(token) = lower_case(token, &mut buffer) else { continue };
        if HEADLESS.iter().any(|known| known.as_bytes() == token) {
            return AgentKind::Headless;
        }
        match (index, token) {
            (0, b"mozilla") => kind = Some(AgentKind::Mozilla),
            (0, token) if LIBRARIES.iter().any(|known| known.as_bytes() == token) => return AgentKind::Library,
            (0, _) => kind = Some(AgentKind::Other),
            (_, token) => is_browser |= matches!(token, b"chrome" | b"firefox" | b"edg" | b"opr"),
        }
    }
    match kind {
        Some(AgentKind::Mozilla) if is_browser && is_recent(user_agent) => AgentKind::Browser,
        Some(kind) => kind,
        None => AgentKind::Other,
    }
}

/// Returns true if the version of Chrome or Firefox is one that sends `Sec-Fetch-Mode`. Web views of Android have left
/// some fields out, so they do not count.
fn is_recent(user_agent: &[u8]) -> bool {
    let major = |name: &[u8]| {
        let at = memchr::memmem::find(user_agent, name)? + name.len();
        let digits = user_agent[at..].iter().take_while(|byte| byte.is_ascii_digit());
        Some(digits.take(6).fold(0_u32, |number, digit| number * 10 + u32::from(digit - b'0')))
    };
    let is_web_view = memchr::memmem::find(user_agent, b"; wv)").is_some();
    !is_web_view
        && (major(b"Chrome/").is_some_and(|major| major >= 90) || major(b"Firefox/").is_some_and(|major| major >= 100))
}

/// Product tokens of a `User-Agent`, without versions.
fn tokens(user_agent: &[u8]) -> impl Iterator<Item = &[u8]> {
    let is_part = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    user_agent.split(move |byte| !is_part(byte)).filter(|token| token.first().is_some_and(u8::is_ascii_alphabetic))
}

fn lower_case<'b>(token: &[u8], buffer: &'b mut [u8; TOKEN_BYTES_MAX]) -> Option<&'b [u8]> {
    let out = buffer.get_mut(..token.len())?;
    out.copy_from_slice(token);
    out.make_ascii_lowercase();
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHROME: &str =
        "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/140.0.0.0 Safari/537.36";

    #[test]
    fn claims() {
        let mut crawlers = Crawlers::default();
        crawlers.add(Crawler { name: "MyBot".into(), domains: vec![".my.example".into()] });
        for (user_agent, expect) in [
            ("Mozilla/5.0 (compatible; Googlebot/2.1; +http://www.google.com/bot.html)", Some("Googlebot")),
            ("Googlebot-Image/1.0", Some("Googlebot-Image")),
            (
                "Mozilla/5.0 AppleWebKit/537.36 (KHTML, like Gecko; compatible; bingbot/2.0; +http://www.bing.com/bingbot.htm) Chrome/116.0.1938.76 Safari/537.36",
                Some("bingbot"),
            ),
            (
                "Mozilla/5.0 (Macintosh; Intel Mac OS X 10_15_5) AppleWebKit/605.1.15 (KHTML, like Gecko) Version/13.1.1 Safari/605.1.15 (Applebot/0.1; +http://www.apple.com/go/applebot)",
                Some("Applebot"),
            ),
            ("Mozilla/5.0 (compatible; YandexBot/3.0; +http://yandex.com/bots)", Some("YandexBot")),
            (
                "Mozilla/5.0 AppleWebKit/537.36 (KHTML, like Gecko; compatible; GPTBot/1.2; +https://openai.com/gptbot)",
                Some("GPTBot"),
            ),
            ("mybot", Some("MyBot")),
            ("NotGooglebot/1", None),
            (CHROME, None),
            ("", None),
        ] {
            let found = crawlers.claimed(user_agent.as_bytes()).and_then(|index| crawlers.get(index));
            assert_eq!(found.map(|crawler| crawler.name.as_str()), expect, "{user_agent}");
        }
    }

    #[test]
    fn kinds() {
        for (user_agent, expect) in [
            ("", AgentKind::None),
            (" ", AgentKind::None),
            (CHROME, AgentKind::Browser),
            ("Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0", AgentKind::Browser),
            (
                "Mozilla/5.0 (iPhone; CPU iPhone OS 18_0 like Mac OS X) AppleWebKit/605.1.15 (KHTML, like Gecko) Version/18.0 Mobile/15E148 Safari/604.1",
                AgentKind::Mozilla,
            ),
            (
                "Mozilla/5.0 (Linux; Android 14; X Build/U; wv) AppleWebKit/537.36 (KHTML, like Gecko) Version/4.0 Chrome/140.0.0.0 Mobile Safari/537.36",
                AgentKind::Mozilla,
            ),
            (
                "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) HeadlessChrome/140.0.0.0 Safari/537.36",
                AgentKind::Headless,
            ),
            ("curl/8.14.1", AgentKind::Library),
            ("python-requests/2.32.3", AgentKind::Library),
            ("Python/3.12 aiohttp/3.9.5", AgentKind::Library),
            ("Go-http-client/1.1", AgentKind::Library),
            ("Lynx/2.9.2 libwww-FM/2.14", AgentKind::Other),
            ("Mozilla/4.0 (compatible; MSIE 6.0; Windows NT 5.1)", AgentKind::Mozilla),
            ("!!", AgentKind::Other),
        ] {
            assert_eq!(agent_kind(user_agent.as_bytes()), expect, "{user_agent}");
        }
    }
}
