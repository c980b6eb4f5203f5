//! One order: from names to a certificate (RFC 8555, section 7.4).

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use instant_acme::{
    Account, AuthorizationStatus, CertificateIdentifier, ChallengeType, Error, Identifier, NewOrder, Order,
    OrderStatus, RetryPolicy,
};
use rcgen::{CertificateParams, DistinguishedName, KeyPair};

use super::hook::{self, DnsChange};
use super::persist::{self, PersistentRecord};
use super::sharing::{SharedChallenge, SharedOrder, Sharing};
use crate::config::{AutomaticCertificates, CertificateSubject, ChallengeKind};
use crate::log::{ServerLog, event};
use crate::spawner::Spawner;
use crate::tls::{Shown, Validations};

/// Shortest wait after a rate limit of the CA.
const RATE_LIMIT_WAIT: Duration = Duration::from_secs(3_600);

/// Order to be made.
pub(super) struct Ordering<'a> {
    pub(super) account: &'a Account,
    pub(super) settings: &'a AutomaticCertificates,
    /// Starter of the hook.
    pub(super) spawner: Option<&'a Spawner>,
    pub(super) validations: &'a Arc<Validations>,
    pub(super) names: &'a [String],
    /// Profile, instead of that of the settings.
    pub(super) profile: Option<&'a str>,
    /// Certificate that the new one replaces (RFC 9773, section 5).
    pub(super) replaced: Option<CertificateIdentifier<'static>>,
    /// Number of failed orders before this one.
    pub(super) failures: u32,
    /// Store that instances share, and the name of the certificate in it.
    pub(super) sharing: Option<(&'a Sharing, String)>,
    pub(super) log: &'a ServerLog,
}

/// Issued certificate, as PEM.
pub(super) struct Issued {
    pub(super) key_pem: String,
    pub(super) chain_pem: String,
}

/// Error of an order.
#[derive(Debug)]
pub(super) struct OrderError {
    message: String,
    /// Shortest wait before the next order.
    pub(super) wait_min: Duration,
    /// True if the CA does not know the account.
    pub(super) is_of_account: bool,
    /// Part that failed.
    origin: ErrorOrigin,
}

/// Part in which an order failed, for the advice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ErrorOrigin {
    /// The CA could not validate a name.
    Validation,
    /// The CA did not find a record of DNS that stays.
    Record,
    /// The CA did not respond.
    Connection,
    /// The CA has rejected the order, or failed itself.
    Authority,
    /// A part of this server, such as a file or the DNS hook.
    Local,
}

/// Proofs of control over names, until they are removed.
#[derive(Default)]
struct Evidence {
    shown: Vec<Shown>,
    /// Names and values of DNS records.
    records: Vec<(String, String)>,
    /// Names of challenges in the store.
    shared: Vec<String>,
    /// Records that the operator must have set.
    persistent: Vec<PersistentRecord>,
}

impl Issued {
    /// Key and chain in one text.
    pub(super) fn text(&self) -> String {
        format!("{}{}", self.key_pem, self.chain_pem)
    }
}

impl OrderError {
    pub(super) fn new(message: impl fmt::Display) -> Self {
        let origin = ErrorOrigin::Local;
        Self { message: message.to_string(), wait_min: Duration::ZERO, is_of_account: false, origin }
    }

    fn of(origin: ErrorOrigin, message: impl fmt::Display) -> Self {
        Self { origin, ..Self::new(message) }
    }

    /// Error of an order that took too long.
    pub(super) fn timed_out() -> Self {
        Self::of(ErrorOrigin::Connection, "the order took longer than `order-timeout`")
    }

    /// Adds the records of DNS that the CA has looked for.
    fn with_records(mut self, records: &[PersistentRecord]) -> Self {
        for PersistentRecord { name, value } in records {
            self.message.push_str(&format!("; it needs the TXT record {name} {value}"));
        }
        if !records.is_empty() && self.origin != ErrorOrigin::Connection {
            self.origin = ErrorOrigin::Record;
        }
        self
    }

    /// Advice for the operator.
    pub(super) fn advice(&self) -> &'static str {
        if !self.wait_min.is_zero() {
            return "the CA limits the rate of orders: order fewer certificates";
        }
        match self.origin {
            ErrorOrigin::Record => "set the record in DNS; the server tries again",
            ErrorOrigin::Validation => "point the names to this server in DNS, and let the CA reach ports 80 and 443",
            ErrorOrigin::Connection => {
                "the CA did not respond, or not as a CA does: check `directory`, the network and the status page of the CA; the server tries \
                 again"
            }
            ErrorOrigin::Authority => {
                "the CA has rejected the order: the error is its reason; check `directory`, `contact` and the names"
            }
            ErrorOrigin::Local => "the error is of this server; correct it, and the server tries again",
        }
    }
}

impl fmt::Display for OrderError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl From<Error> for OrderError {
    fn from(error: Error) -> Self {
        let kind = match &error {
            Error::Api(problem) => problem.r#type.as_deref().and_then(|kind| kind.rsplit(':').next()),
            _ => None,
        };
        let origin = match (&error, kind) {
            (_, Some("connection" | "dns" | "tls" | "unauthorized" | "incorrectResponse" | "caa")) => {
                ErrorOrigin::Validation
            }
            (Error::Api(_), _) => ErrorOrigin::Authority,
            (Error::Hyper(_) | Error::Http(_) | Error::Json(_) | Error::Other(_) | Error::Timeout(_), _) => {
                ErrorOrigin::Connection
            }
            _ => ErrorOrigin::Authority,
        };
        Self {
            wait_min: if kind == Some("rateLimited") { RATE_LIMIT_WAIT } else { Duration::ZERO },
            is_of_account: kind == Some("accountDoesNotExist"),
            message: with_sources(&error),
            origin,
        }
    }
}

/// Error with its causes: "error sending request" alone does not help.
fn with_sources(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        let more = error.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        source = error.source();
    }
    text
}

impl Ordering<'_> {
    /// Makes the order, proves control over the names, and fetches the certificate.
    ///
    /// # Errors
    /// The CA reports an error, or a local step failed. All proofs are removed in any case.
    pub(super) async fn run(&self) -> Result<Issued, OrderError> {
        let mut evidence = Evidence::default();
        let result = self.run_with(&mut evidence).await;
        if let Some((sharing, name)) = &self.sharing {
            for challenge in &evidence.shared {
                // Instances stop to answer it by its time.
                let _ = sharing.remove("challenges", challenge).await;
            }
            if result.is_err() {
                // The next attempt begins with a new order.
                let _ = sharing.remove("orders", name).await;
            }
        }
        evidence.remove(self.settings, self.spawner, self.log).await;
        result
    }

    async fn run_with(&self, evidence: &mut Evidence) -> Result<Issued, OrderError> {
        let failed =
            |error: rcgen::Error| OrderError::new(format_args!("cannot create a certificate signing request: {error}"));
        let (mut order, key) = match self.resume().await? {
            Some(resumed) => resumed,
            None => {
                let order = self.begin().await?;
                let key = KeyPair::generate().map_err(failed)?;
                self.share(&order, &key).await?;
                (order, key)
            }
        };
        let patience =
            RetryPolicy::new().initial_delay(Duration::from_millis(500)).timeout(self.settings.order_timeout);
        // An instance that has ended may have finalized it.
        if !matches!(order.state().status, OrderStatus::Processing | OrderStatus::Valid) {
            self.show(&mut order, evidence).await?;
            let failure = match order.poll_ready(&patience).await {
                Ok(OrderStatus::Ready) => None,
                Ok(_) => Some(why_invalid(&mut order).await),
                Err(error) => Some(OrderError::from(error)),
            };
            if let Some(error) = failure {
                return Err(error.with_records(&evidence.persistent));
            }
            let mut params = CertificateParams::new(self.names).map_err(failed)?;
            params.distinguished_name = DistinguishedName::new();
            let request = params.serialize_request(&key).map_err(failed)?;
            order.finalize_csr(request.der()).await?;
        }
        let chain_pem = order.poll_certificate(&patience).await?;
        Ok(Issued { key_pem: key.serialize_pem(), chain_pem })
    }

    /// Order that an instance has begun that has ended since, with the key of its certificate.
    async fn resume(&self) -> Result<Option<(Order, KeyPair)>, OrderError> {
        let Some((sharing, name)) = &self.sharing else { return Ok(None) };
        let known: Option<SharedOrder> = sharing.read_json("orders", name).await.map_err(OrderError::new)?;
        let Some(SharedOrder { url, key_pem }) = known else { return Ok(None) };
        // A new order replaces one that the CA does not know any more, or rejects.
        let (Ok(mut order), Ok(key)) = (self.account.order(url).await, KeyPair::from_pem(&key_pem)) else {
            return Ok(None);
        };
        if order.state().status == OrderStatus::Invalid {
            return Ok(None);
        }
        self.log.info(event("order of another instance continued", &[("names", &self.names.join(","))]));
        Ok(Some((order, key)))
    }

    /// Lets another instance continue this order.
    async fn share(&self, order: &Order, key: &KeyPair) -> Result<(), OrderError> {
        let Some((sharing, name)) = &self.sharing else { return Ok(()) };
        let shared = SharedOrder { url: order.url().to_owned(), key_pem: key.serialize_pem() };
        let text = serde_json::to_string(&shared).map_err(OrderError::new)?;
        sharing.write("orders", name, &text).await.map_err(OrderError::new)
    }

    /// Lets all instances answer a challenge, and waits until they do.
    async fn show_everywhere(&self, challenge: &SharedChallenge, evidence: &mut Evidence) -> Result<(), OrderError> {
        let Some((sharing, _)) = &self.sharing else { return Ok(()) };
        evidence.shared.push(sharing.show(challenge).await.map_err(OrderError::new)?);
        sharing.await_readers().await;
        Ok(())
    }

    async fn begin(&self) -> Result<Order, OrderError> {
        let identifiers: Vec<Identifier> = self.names.iter().map(|name| identifier_of(name)).collect();
        let new = || match self.profile.or(self.settings.profile.as_deref()) {
            Some(profile) => NewOrder::new(&identifiers).profile(profile),
            None => NewOrder::new(&identifiers),
        };
        if let Some(replaced) = &self.replaced
            && let Ok(order) = self.account.new_order(&new().replaces(replaced.clone())).await
        {
            return Ok(order);
        }
        // There is none to replace, or the CA rejects that; the certificate is still needed.
        Ok(self.account.new_order(&new()).await?)
    }

    /// Name of the CA in records of DNS; `None` if the CA does not tell.
    async fn issuer(&self) -> Option<String> {
        persist::issuer(&self.settings.directory, self.settings.authority.as_deref()).await
    }

    /// Answers a challenge for each name, and asks the CA to validate it.
    async fn show(&self, order: &mut Order, evidence: &mut Evidence) -> Result<(), OrderError> {
        let mut authorizations = order.authorizations();
        while let Some(authorization) = authorizations.next().await {
            let mut authorization = authorization?;
            match authorization.status {
                AuthorizationStatus::Valid => continue,
                AuthorizationStatus::Pending => {}
                status => return Err(OrderError::new(format_args!("an authorization has status {status:?}"))),
            }
            let is_wildcard = authorization.wildcard;
            let offered = |kind: &ChallengeKind| {
                authorization.challenges.iter().any(|challenge| challenge.r#type == type_of(*kind))
            };
            let subject = match (is_wildcard, &authorization.identifier().identifier) {
                (true, _) => CertificateSubject::Wildcard,
                (false, Identifier::Ip(_)) => CertificateSubject::Address,
                (false, _) => CertificateSubject::Host,
            };
            let Some(kind) = choose(&self.settings.challenges(subject), self.failures, offered) else {
                let name = authorization.identifier();
                return Err(OrderError::new(format_args!(
                    "the CA offers no challenge for {name} that `challenges` allows"
                )));
            };
            let Some(mut challenge) = authorization.challenge(type_of(kind)) else {
                return Err(OrderError::new("the CA withdrew a challenge"));
            };
            let name = match challenge.identifier().identifier {
                Identifier::Dns(name) => name.clone(),
                Identifier::Ip(address) => address.to_string(),
                other => {
                    return Err(OrderError::new(format_args!(
                        "the CA asks for an identifier that is neither a DNS name nor an address: {other:?}"
                    )));
                }
            };
            let answer = challenge.key_authorization();
            match kind {
                ChallengeKind::Http01 => {
                    evidence.shown.push(self.validations.show_response(&challenge.token, answer.as_str()));
                    let shared = SharedChallenge::http(&challenge.token, answer.as_str());
                    self.show_everywhere(&shared, evidence).await?;
                }
                ChallengeKind::TlsAlpn01 => {
                    let shown = self.validations.show_handshake(&name, answer.digest().as_ref());
                    evidence.shown.push(shown.map_err(OrderError::new)?);
                    self.show_everywhere(&SharedChallenge::tls(&name, answer.digest().as_ref()), evidence).await?;
                }
                ChallengeKind::Dns01 => {
                    let (Some(hook), Some(spawner)) = (&self.settings.dns_hook, self.spawner) else {
                        return Err(OrderError::new("a DNS challenge needs `dns-hook`"));
                    };
                    let record = (format!("_acme-challenge.{name}"), answer.dns_value());
                    // Removed even if adding fails, because it may be half done.
                    evidence.records.push(record.clone());
                    hook::run(spawner, hook, DnsChange::Add, &record.0, &record.1).await.map_err(OrderError::new)?;
                }
                ChallengeKind::DnsPersist01 => {
                    let record = PersistentRecord::new(&name, self.issuer().await, self.account.id(), self.names);
                    // A name and the wildcard below it need the same one.
                    if !evidence.persistent.contains(&record) {
                        let fields: &[(&str, &dyn fmt::Display)] = &[("name", &record.name), ("value", &record.value)];
                        self.log.info(event("DNS record expected", fields));
                        evidence.persistent.push(record);
                    }
                }
            }
            challenge.set_ready().await?;
        }
        Ok(())
    }
}

impl Evidence {
    async fn remove(self, settings: &AutomaticCertificates, spawner: Option<&Spawner>, log: &ServerLog) {
        drop(self.shown);
        let (Some(hook), Some(spawner)) = (&settings.dns_hook, spawner) else { return };
        for (name, value) in self.records {
            if let Err(error) = hook::run(spawner, hook, DnsChange::Remove, &name, &value).await {
                log.warn(
                    event("removing DNS record failed", &[("name", &name), ("error", &error)]),
                    "remove the record yourself",
                );
            }
        }
    }
}

/// Identifier of a name or an address (RFC 8738, section 3).
fn identifier_of(name: &str) -> Identifier {
    name.parse::<IpAddr>().map_or_else(|_| Identifier::Dns(name.to_owned()), Identifier::Ip)
}

/// Kind of challenge: each that the CA offers in turn after failures.
fn choose(kinds: &[ChallengeKind], failures: u32, offered: impl Fn(&ChallengeKind) -> bool) -> Option<ChallengeKind> {
    let usable: Vec<ChallengeKind> = kinds.iter().copied().filter(offered).collect();
    (!usable.is_empty()).then(|| usable[failures as usize % usable.len()])
}

fn type_of(kind: ChallengeKind) -> ChallengeType {
    match kind {
        ChallengeKind::Http01 => ChallengeType::Http01,
        ChallengeKind::TlsAlpn01 => ChallengeType::TlsAlpn01,
        ChallengeKind::Dns01 => ChallengeType::Dns01,
        ChallengeKind::DnsPersist01 => ChallengeType::Unknown("dns-persist-01".to_owned()),
    }
}

/// Reasons that the CA reports for an invalid order.
async fn why_invalid(order: &mut Order) -> OrderError {
    let mut reasons = Vec::new();
    let mut authorizations = order.authorizations();
    while let Some(Ok(mut authorization)) = authorizations.next().await {
        // Reasons that cannot be fetched are left out.
        let _ = authorization.refresh().await;
        let name = authorization.identifier().to_string();
        let found = authorization.challenges.iter().filter_map(|challenge| challenge.error.as_ref());
        reasons
            .extend(found.map(|problem| format!("{name}: {}", problem.detail.as_deref().unwrap_or("no reason given"))));
    }
    if reasons.is_empty() {
        reasons.push("the CA gave no reason".to_owned());
    }
    OrderError::of(ErrorOrigin::Validation, reasons.join("; "))
}

#[cfg(test)]
mod tests {
    use ChallengeKind::{Dns01, Http01, TlsAlpn01};

    use super::*;

    #[test]
    fn challenges_are_taken_in_turn() {
        let all = &[Http01, TlsAlpn01, Dns01][..];
        for (kinds, failures, offered, expect) in [
            (&[Http01, TlsAlpn01][..], 0, all, Some(Http01)),
            (&[Http01, TlsAlpn01], 1, all, Some(TlsAlpn01)),
            (&[Http01, TlsAlpn01], 2, all, Some(Http01)),
            (&[Http01, TlsAlpn01], 0, &[TlsAlpn01], Some(TlsAlpn01)),
            (&[Http01], 0, &[Dns01], None),
            (&[], 0, all, None),
        ] {
            let chosen = choose(kinds, failures, |kind| offered.contains(kind));
            assert_eq!(chosen, expect, "{kinds:?} {failures} {offered:?}");
        }
    }

    #[test]
    fn names_and_addresses_are_identifiers() {
        for (name, expect) in [
            ("*.a.example", Identifier::Dns("*.a.example".into())),
            ("192.0.2.1", Identifier::Ip([192, 0, 2, 1].into())),
            ("2001:db8::1", Identifier::Ip("2001:db8::1".parse().unwrap())),
        ] {
            assert_eq!(identifier_of(name), expect);
        }
    }
}
