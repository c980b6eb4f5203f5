//! Dates in UTC. Their text is computed once a second.

use time::OffsetDateTime;

/// Calendar date and time, in UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Calendar {
    pub(crate) year: u16,
    /// 1 to 12.
    pub(crate) month: u8,
    /// 1 to 31.
    pub(crate) day: u8,
    pub(crate) hour: u8,
    pub(crate) minute: u8,
    pub(crate) second: u8,
}

impl Calendar {
    /// Converts seconds since 1970. Later times become the last second of the year 9999, because logs have four digits.
    pub(crate) fn from_unix(unix_seconds: u64) -> Self {
        let unix_seconds = unix_seconds.min(253_402_300_799);
        // The bound above is within the range of the type.
        let time = OffsetDateTime::from_unix_timestamp(unix_seconds as i64).unwrap_or(OffsetDateTime::UNIX_EPOCH);
        Self {
            year: time.year() as u16,
            month: time.month().into(),
            day: time.day(),
            hour: time.hour(),
            minute: time.minute(),
            second: time.second(),
        }
    }
}

/// Texts of one second.
#[derive(Clone, Debug)]
pub(crate) struct DateTexts {
    unix_seconds: u64,
    common: [u8; 26],
    rfc3339: [u8; 19],
}

impl Default for DateTexts {
    fn default() -> Self {
        let mut texts = Self { unix_seconds: u64::MAX, common: [0; 26], rfc3339: [0; 19] };
        texts.set(0);
        texts
    }
}

impl DateTexts {
    /// Returns the texts of this second.
    #[inline]
    pub(crate) fn at(&mut self, unix_seconds: u64) -> &Self {
        if self.unix_seconds != unix_seconds {
            self.set(unix_seconds);
        }
        self
    }

    /// `21/Nov/2026:07:41:51 +0000`
    pub(crate) fn common(&self) -> &[u8; 26] {
        &self.common
    }

    /// `2026-11-21T07:41:51`, without fraction and zone.
    pub(crate) fn rfc3339(&self) -> &[u8; 19] {
        &self.rfc3339
    }

    /// `2026-11-21`
    pub(crate) fn day(&self) -> &[u8] {
        &self.rfc3339[..10]
    }

    /// `07:41:51`
    pub(crate) fn time(&self) -> &[u8] {
        &self.rfc3339[11..]
    }

    /// `Sat Nov 21 07:41:51 2026`, as ctime(3) has it.
    pub(crate) fn ctime(&self) -> [u8; 24] {
        const DAYS: &[u8; 21] = b"ThuFriSatSunMonTueWed";
        let day_at = (self.unix_seconds / 86_400 % 7) as usize * 3;
        let mut text = *b"Thu Jan  1 00:00:00 1970";
        text[..3].copy_from_slice(&DAYS[day_at..day_at + 3]);
        text[4..7].copy_from_slice(&self.common[3..6]);
        text[8..10].copy_from_slice(&self.common[..2]);
        if text[8] == b'0' {
            text[8] = b' ';
        }
        text[11..19].copy_from_slice(&self.common[12..20]);
        text[20..].copy_from_slice(&self.common[7..11]);
        text
    }

    #[cold]
    fn set(&mut self, unix_seconds: u64) {
        const MONTHS: &[u8; 36] = b"JanFebMarAprMayJunJulAugSepOctNovDec";
        let calendar = Calendar::from_unix(unix_seconds);
        let mut rfc3339 = *b"0000-00-00T00:00:00";
        for (at, number) in [
            (0, (calendar.year / 100) as u8),
            (2, (calendar.year % 100) as u8),
            (5, calendar.month),
            (8, calendar.day),
            (11, calendar.hour),
            (14, calendar.minute),
            (17, calendar.second),
        ] {
            rfc3339[at] = b'0' + number / 10;
            rfc3339[at + 1] = b'0' + number % 10;
        }
        let mut common = *b"00/Jan/0000:00:00:00 +0000";
        let month_at = usize::from(calendar.month - 1) * 3;
        common[..2].copy_from_slice(&rfc3339[8..10]);
        common[3..6].copy_from_slice(&MONTHS[month_at..month_at + 3]);
        common[7..11].copy_from_slice(&rfc3339[..4]);
        common[12..20].copy_from_slice(&rfc3339[11..]);
        *self = Self { unix_seconds, common, rfc3339 };
    }
}

#[cfg(test)]
mod tests {
    use super::DateTexts;

    #[test]
    fn dates() {
        let check = |unix_seconds, expect_common: &str, expect_rfc3339: &str| {
            let mut texts = DateTexts::default();
            let texts = texts.at(unix_seconds);
            assert_eq!(std::str::from_utf8(texts.common()).unwrap(), expect_common);
            assert_eq!(std::str::from_utf8(texts.rfc3339()).unwrap(), expect_rfc3339);
        };
        check(0, "01/Jan/1970:00:00:00 +0000", "1970-01-01T00:00:00");
        check(784_111_777, "06/Nov/1994:08:49:37 +0000", "1994-11-06T08:49:37");
        check(951_782_400, "29/Feb/2000:00:00:00 +0000", "2000-02-29T00:00:00");
        check(1_767_225_599, "31/Dec/2025:23:59:59 +0000", "2025-12-31T23:59:59");
        check(4_107_542_400, "01/Mar/2100:00:00:00 +0000", "2100-03-01T00:00:00");
        check(253_402_300_799, "31/Dec/9999:23:59:59 +0000", "9999-12-31T23:59:59");
        check(u64::MAX, "31/Dec/9999:23:59:59 +0000", "9999-12-31T23:59:59");
    }

    /// Compares with a library over three centuries, at steps that are not a multiple of a day.
    #[test]
    fn dates_agree_with_httpdate() {
        let mut texts = DateTexts::default();
        for unix_seconds in (0..9_400_000_000_u64).step_by(86_399 * 3) {
            let time = std::time::UNIX_EPOCH + std::time::Duration::from_secs(unix_seconds);
            let expect = httpdate::fmt_http_date(time);
            let common = std::str::from_utf8(texts.at(unix_seconds).common()).unwrap().to_owned();
            let (day, month, year, time) = (&common[..2], &common[3..6], &common[7..11], &common[12..20]);
            assert_eq!(format!("{day} {month} {year} {time} GMT"), expect[5..]);
        }
    }
}
