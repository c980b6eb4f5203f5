//! Content of requests: paths, cookies, forms.

use memchr::memmem;

/// Difference between a user's ID and number.
pub(crate) const USER_ID_FIRST: u32 = 10_000;

/// Field with which the filter requests tables at the end of the reply.
pub(crate) const TABLES_FIELD: &str = "web99-tables";

/// Bytes before and after the name of an advertisement in a file.
const AD_TAG: (&[u8], &[u8]) = (b"<!WEB99CAD><IMG SRC=\"", b"\"><!/WEB99CAD>");

/// A file of the set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileId {
    pub(crate) directory: u32,
    pub(crate) class: u32,
    pub(crate) number: u32,
}

impl FileId {
    /// Reads `/file_set/dirNNNNN/classC_F`.
    pub(crate) fn parse(path: &str) -> Option<Self> {
        let (directory, file) = path.strip_prefix("/file_set/dir")?.split_once("/class")?;
        let (class, number) = file.split_once('_')?;
        let is_form = directory.len() == 5 && class.len() == 1 && number.len() == 1;
        let id = Self { directory: digits(directory)?, class: digits(class)?, number: digits(number)? };
        (is_form && id.is_there()).then_some(id)
    }

    pub(crate) fn path(self) -> String {
        format!("/file_set/dir{:05}/class{}_{}", self.directory, self.class, self.number)
    }

    /// The file of an advertisement.
    pub(crate) fn of_ad(ad: u32) -> Self {
        Self { directory: ad / 36, class: ad % 36 / 9, number: ad % 9 }
    }

    fn is_there(self) -> bool {
        self.directory <= 99_999 && self.class <= 3 && self.number <= 8
    }
}

/// The form of a POST.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Post {
    pub(crate) file: FileId,
    pub(crate) client: u64,
}

impl Post {
    /// Reads `urlroot=/file_set,dir=…,class=…,num=…,client=…`.
    pub(crate) fn parse(form: &[u8]) -> Option<Self> {
        let mut values = str::from_utf8(form).ok()?.split(',');
        let mut value = |name: &str| values.next()?.strip_prefix(name)?.strip_prefix('=');
        let root = value("urlroot")?;
        let file = FileId {
            directory: digits(value("dir")?)?,
            class: digits(value("class")?)?,
            number: digits(value("num")?)?,
        };
        let client = value("client")?;
        let client = client.parse().ok().filter(|_| client.len() <= 10 && is_digits(client))?;
        (root == "/file_set" && file.is_there() && values.next().is_none()).then_some(Self { file, client })
    }
}

/// Reads `user_id=<10000 + user>&last_ad=<ad>`.
pub(crate) fn rotation_cookie(cookie: &str) -> Option<(u32, u32)> {
    let (id, last_ad) = cookie.strip_prefix("user_id=")?.split_once("&last_ad=")?;
    let user = digits(id).filter(|_| id.len() == 5)?.checked_sub(USER_ID_FIRST)?;
    Some((user, digits(last_ad).filter(|_| last_ad.len() <= 3)?))
}

/// The user of a cookie that names one.
pub(crate) fn user_of(cookie: &str) -> Option<u32> {
    let (id, _) = cookie.strip_prefix("user_id=")?.split_once('&')?;
    digits(id).filter(|_| id.len() == 5)?.checked_sub(USER_ID_FIRST)
}

/// Reads `Reset&users=…&seed=…&now=…`.
pub(crate) fn reset(command: &str) -> Option<(u32, u32, u64)> {
    let (users, rest) = command.strip_prefix("Reset&users=")?.split_once("&seed=")?;
    let (seed, now) = rest.split_once("&now=")?;
    Some((digits(users)?, digits(seed)?, now.parse().ok().filter(|_| is_digits(now))?))
}

/// Puts the advertisement's name, which has the length of what it replaces, into a file's tags.
pub(crate) fn put_ad(content: &mut [u8], name: &str) {
    let (before, after) = AD_TAG;
    let tag_bytes = before.len() + name.len() + after.len();
    let mut at = 0;
    while at + tag_bytes <= content.len() {
        let Some(found) = memmem::find(&content[at..], before) else { return };
        let start = at + found + before.len();
        at = start;
        let is_tag = content.get(start + name.len()..).is_some_and(|rest| rest.starts_with(after));
        if is_tag && str::from_utf8(&content[start..start + name.len()]).ok().and_then(FileId::parse).is_some() {
            content[start..start + name.len()].copy_from_slice(name.as_bytes());
        }
    }
}

/// The value of `my_cookie` among cookies.
pub(crate) fn my_cookie(cookies: &str) -> Option<&str> {
    cookies.split(';').find_map(|pair| pair.trim_start().strip_prefix("my_cookie="))
}

fn digits(text: &str) -> Option<u32> {
    text.parse().ok().filter(|_| is_digits(text))
}

fn is_digits(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}
