//! Forward-confirmed reverse DNS: the name of an address must belong to a domain, and the address to the name.

use std::net::IpAddr;

/// Maximum number of names of an address that are looked up.
const NAMES_MAX: usize = 4;

/// Maximum length of a name in DNS (RFC 1035, section 2.3.4).
const NAME_BYTES_MAX: usize = 255;

/// Lookup that the caller must make next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DnsQuery {
    /// Names of an address (PTR).
    Names(IpAddr),
    /// Addresses of a name (A or AAAA).
    Addresses(String),
}

/// Result of a lookup; `Err` if the resolver gave none in time.
pub type DnsResult<T> = Result<Vec<T>, DnsFailure>;

/// Failure of a lookup that may succeed later. A name that does not exist is no failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DnsFailure;

/// Verdict about a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClaimVerdict {
    /// The address belongs to the crawler.
    Confirmed,
    /// The address belongs to others.
    Refuted,
    /// DNS did not tell.
    Unknown,
}

/// Next step of a confirmation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Confirming {
    /// This lookup must be made.
    Query(DnsQuery),
    /// The end.
    Done(ClaimVerdict),
}

/// Confirmation of an address in progress.
#[derive(Clone, Debug)]
pub struct Confirmation {
    address: IpAddr,
    /// Domains with a leading dot, in lower case.
    domains: Vec<String>,
    /// Names that are looked up after the current one.
    names: Vec<String>,
    has_failed: bool,
}

impl Confirmation {
    /// Begins to confirm that an address has a name in one of the domains.
    pub fn begin(address: IpAddr, domains: &[String]) -> (Self, Confirming) {
        let address = expression::unmapped(address);
        let domains = domains.iter().map(|domain| domain.to_ascii_lowercase()).collect();
        let confirmation = Self { address, domains, names: Vec::new(), has_failed: false };
        (confirmation, Confirming::Query(DnsQuery::Names(address)))
    }

    /// Handles the names of the address.
    pub fn handle_names(&mut self, names: DnsResult<String>) -> Confirming {
        let Ok(names) = names else { return Confirming::Done(ClaimVerdict::Unknown) };
        let names = names.into_iter().map(|name| name.trim_end_matches('.').to_ascii_lowercase());
        let is_of_domain = |name: &String| {
            name.len() <= NAME_BYTES_MAX && self.domains.iter().any(|domain| name.ends_with(domain.as_str()))
        };
        self.names = names.filter(is_of_domain).take(NAMES_MAX).collect();
        self.next()
    }

    /// Handles the addresses of the name that was looked up.
    pub fn handle_addresses(&mut self, addresses: DnsResult<IpAddr>) -> Confirming {
        match addresses {
            Ok(addresses) if addresses.iter().any(|address| expression::unmapped(*address) == self.address) => {
                Confirming::Done(ClaimVerdict::Confirmed)
            }
            Ok(_) => self.next(),
            Err(DnsFailure) => {
                self.has_failed = true;
                self.next()
            }
        }
    }

    fn next(&mut self) -> Confirming {
        match self.names.pop() {
            Some(name) => Confirming::Query(DnsQuery::Addresses(name)),
            None if self.has_failed => Confirming::Done(ClaimVerdict::Unknown),
            None => Confirming::Done(ClaimVerdict::Refuted),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a confirmation with fixed records of DNS; `None` is a failure.
    fn verdict(names: Option<&[&str]>, zone: &[(&str, Option<&[&str]>)]) -> ClaimVerdict {
        let domains = [".googlebot.com".to_owned(), ".google.com".to_owned()];
        let (mut confirmation, mut step) = Confirmation::begin("66.249.66.1".parse().unwrap(), &domains);
        let mut queries = 0;
        loop {
            queries += 1;
            assert!(queries <= 2 + NAMES_MAX);
            step = match step {
                Confirming::Done(verdict) => return verdict,
                Confirming::Query(DnsQuery::Names(address)) => {
                    assert_eq!(address.to_string(), "66.249.66.1");
                    let names = names.map(|names| names.iter().map(|name| (*name).to_owned()).collect());
                    confirmation.handle_names(names.ok_or(DnsFailure))
                }
                Confirming::Query(DnsQuery::Addresses(name)) => {
                    let found = zone.iter().find(|(known, _)| *known == name).map(|(_, addresses)| *addresses);
                    let addresses = found.unwrap_or(Some(&[]));
                    let addresses = addresses.map(|all| all.iter().map(|one| one.parse().unwrap()).collect());
                    confirmation.handle_addresses(addresses.ok_or(DnsFailure))
                }
            };
        }
    }

    #[test]
    fn verdicts() {
        let bot = "crawl-66-249-66-1.googlebot.com";
        let right: &[(&str, Option<&[&str]>)] = &[(bot, Some(&["66.249.66.1"]))];
        assert_eq!(verdict(Some(&["Crawl-66-249-66-1.Googlebot.com."]), right), ClaimVerdict::Confirmed);
        assert_eq!(verdict(Some(&["a.example", bot]), right), ClaimVerdict::Confirmed);
        // An attacker owns the reverse zone of its addresses.
        assert_eq!(verdict(Some(&[bot]), &[(bot, Some(&["192.0.2.1"]))]), ClaimVerdict::Refuted);
        assert_eq!(verdict(Some(&["googlebot.com.attacker.example"]), right), ClaimVerdict::Refuted);
        assert_eq!(
            verdict(Some(&["xgooglebot.com"]), &[("xgooglebot.com", Some(&["66.249.66.1"]))]),
            ClaimVerdict::Refuted
        );
        assert_eq!(verdict(Some(&[]), &[]), ClaimVerdict::Refuted);
        assert_eq!(verdict(None, &[]), ClaimVerdict::Unknown);
        assert_eq!(verdict(Some(&[bot]), &[(bot, None)]), ClaimVerdict::Unknown);
        let many: Vec<String> = (0..100).map(|number| format!("{number}.google.com")).collect();
        assert_eq!(verdict(Some(&many.iter().map(String::as_str).collect::<Vec<_>>()), &[]), ClaimVerdict::Refuted);
    }
}
