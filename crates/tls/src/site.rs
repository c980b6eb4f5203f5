use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard};

use rustls::crypto::CryptoProvider;
use rustls::crypto::aws_lc_rs::{default_provider, kx_group};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{ClientHello, NoClientAuth, NoServerSessionStorage, ProducesTickets, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::{ServerConfig, SignatureAlgorithm};

use super::clients::client_verifier;
use super::data_sessions::settings_for_control;
use super::early_sessions::EarlySessions;
use super::keeper::file_states;
use super::quic::quic_settings;
use super::suites::cipher_suites;
use crate::config::{
    AcceptedClients, Certificate, CertificateError, CertificateFiles, FileState, HostPattern, HttpVersions, Tls,
    TlsVersion,
};

/// Application protocols over TLS (RFC 7301), the preferred first.
const APPLICATION_PROTOCOLS: &[&[u8]] = &[HTTP2, b"http/1.1"];

/// HTTP/2 (RFC 9113, section 3.1).
pub(super) const HTTP2: &[u8] = b"h2";

/// TLS of a site. Its certificates may change while it is in use.
#[derive(Debug)]
pub struct SiteTls {
    /// Unique number, also among configurations with the same site name.
    pub id: u32,
    /// Names of the site.
    pub names: Vec<HostPattern>,
    config: Tls,
    versions: HttpVersions,
    tickets: Option<Arc<dyn ProducesTickets>>,
    /// Sessions with early data; `None` without.
    early: Option<Arc<EarlySessions>>,
    /// Tickets of all sites, which FTP uses for the time of a control connection.
    all_tickets: Arc<dyn ProducesTickets>,
    current: RwLock<CurrentCertificate>,
    /// States of the files at the last read.
    read_states: Mutex<Vec<Option<FileState>>>,
    /// Trouble with the certificates, and the time of the next try.
    renewal: Mutex<RenewalState>,
}

/// Facts of a certificate for operators.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateFacts {
    /// Names and addresses of the certificate; empty without subject alternative names.
    pub names: Vec<String>,
    /// CA that has signed it.
    pub issuer: String,
    /// First second of validity, since 1970.
    pub not_before_unix_seconds: i64,
    /// Last second of validity, since 1970.
    pub not_after_unix_seconds: i64,
}

/// Last error of a site's certificates, and the next try.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RenewalState {
    /// Error of the last try; `None` if it has succeeded.
    pub error: Option<String>,
    /// Time of the next renewal or try, in seconds since 1970; `None` if it is not known.
    pub next_try_unix_seconds: Option<i64>,
}

/// Parts of a site's TLS that a connection notes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SiteMark {
    /// The site's [`SiteTls::id`].
    pub id: u32,
    /// True if the site has HTTP/3.
    pub has_http3: bool,
    /// True unless certificates of clients are accepted unverified.
    pub verifies_clients: bool,
}

/// Settings with the certificates in use.
#[derive(Clone)]
struct CurrentCertificate {
    settings: Arc<ServerConfig>,
    /// Verifier of client certificates.
    verifier: Arc<dyn ClientCertVerifier>,
    /// True if the certificates are an operator's instead of the files'.
    is_replaced: bool,
    /// Settings for HTTP/3; `None` if it is off.
    quic: Option<Arc<ServerConfig>>,
    /// End of the first certificate to expire.
    not_after_unix_seconds: i64,
    /// Facts of the certificates.
    facts: Arc<[CertificateFacts]>,
}

/// Selector among a site's certificates.
#[derive(Debug)]
struct Certificates(Vec<Certificate>);

impl SiteTls {
    /// Reads the files.
    ///
    /// # Errors
    /// A file cannot be read or used.
    pub fn new(
        id: u32,
        names: &[HostPattern],
        config: &Tls,
        versions: HttpVersions,
        tickets: &Arc<dyn ProducesTickets>,
        early: &Arc<EarlySessions>,
    ) -> Result<Self, CertificateError> {
        // A resumed session does not present its certificate again. So it could come from another listener's site of
        // the same name, which requires none, or use a certificate that is no longer valid.
        let has_tickets = !config.has_no_tickets && config.client_certificates.is_none();
        let early = (has_tickets && config.has_early_data).then(|| Arc::clone(early));
        let (tickets, all_tickets) = (has_tickets.then(|| Arc::clone(tickets)), Arc::clone(tickets));
        // Before the files are read, so that a change in between is seen later.
        let read_states = Mutex::new(file_states(config));
        let current = RwLock::new(CurrentCertificate::load(config, versions, tickets.as_ref(), early.as_ref())?);
        let (names, config) = (names.to_vec(), config.clone());
        let renewal = Mutex::default();
        Ok(Self { id, names, config, versions, tickets, early, all_tickets, current, read_states, renewal })
    }

    /// True if these settings would create the same TLS.
    pub(super) fn is_of(&self, config: &Tls, versions: HttpVersions, early: &Arc<EarlySessions>) -> bool {
        let has_same_sessions = self.early.as_ref().is_none_or(|own| Arc::ptr_eq(own, early));
        self.config == *config && self.versions == versions && has_same_sessions
    }

    /// True if files have changed since the last read.
    pub(super) fn has_new_files(&self) -> bool {
        file_states(&self.config) != *self.read_states()
    }

    /// True if an operator has replaced the certificates since the last read.
    pub fn is_replaced(&self) -> bool {
        self.current().is_replaced
    }

    fn current(&self) -> RwLockReadGuard<'_, CurrentCertificate> {
        // The value is replaced as a whole, so a panic cannot leave it half changed.
        self.current.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn read_states(&self) -> MutexGuard<'_, Vec<Option<FileState>>> {
        // The value is replaced as a whole, so a panic cannot leave it half changed.
        self.read_states.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Settings for a new handshake.
    pub fn settings(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.current().settings)
    }

    /// Parts that a connection to the site notes.
    pub fn mark(&self) -> SiteMark {
        SiteMark { id: self.id, has_http3: self.current().quic.is_some(), verifies_clients: self.verifies_clients() }
    }

    /// True unless certificates of clients are accepted unverified.
    pub(super) fn verifies_clients(&self) -> bool {
        let asked = self.config.client_certificates.as_ref();
        asked.is_none_or(|asked| asked.accepts != AcceptedClients::All)
    }

    /// Settings for a new handshake of QUIC; `None` if HTTP/3 is off.
    pub(super) fn quic(&self) -> Option<Arc<ServerConfig>> {
        self.current().quic.clone()
    }

    /// Settings for a new control connection of FTP and its data connections. Their handshakes can resume only sessions
    /// of these settings.
    pub fn ftp_settings(&self) -> Arc<ServerConfig> {
        settings_for_control(&self.settings(), Arc::clone(&self.all_tickets))
    }

    /// End of the first certificate to expire, in seconds since 1970.
    pub fn not_after_unix_seconds(&self) -> i64 {
        self.current().not_after_unix_seconds
    }

    /// Facts of the certificates in use; empty if an automatic one is not there yet.
    pub fn facts(&self) -> Arc<[CertificateFacts]> {
        Arc::clone(&self.current().facts)
    }

    /// Last error, and the next try.
    pub fn renewal(&self) -> RenewalState {
        self.lock_renewal().clone()
    }

    /// Notes the result of a try to get or read the certificates.
    pub fn note_try(&self, error: Option<String>) {
        self.lock_renewal().error = error;
    }

    /// Notes when the certificates will be renewed, or the next try is due.
    pub fn note_next_try(&self, unix_seconds: Option<i64>) {
        self.lock_renewal().next_try_unix_seconds = unix_seconds;
    }

    fn lock_renewal(&self) -> MutexGuard<'_, RenewalState> {
        // Each value is replaced as a whole, so a panic cannot leave it half changed.
        self.renewal.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Configuration of the site's TLS.
    pub fn config(&self) -> &Tls {
        &self.config
    }

    /// Reads the files again. Open connections keep their settings.
    ///
    /// # Errors
    /// A file cannot be read or used; then the old settings stay.
    pub fn reload(&self) -> Result<(), CertificateError> {
        *self.read_states() = file_states(&self.config);
        let current =
            CurrentCertificate::load(&self.config, self.versions, self.tickets.as_ref(), self.early.as_ref())?;
        self.set(current);
        Ok(())
    }

    /// Replaces the certificates of new handshakes by this one, until [`Self::reload`]. Reads no file. Open connections
    /// keep their settings.
    pub fn replace(&self, certificate: Certificate) {
        let verifier = Arc::clone(&self.current().verifier);
        let (config, tickets, early) = (&self.config, self.tickets.as_ref(), self.early.as_ref());
        let current = CurrentCertificate::of(config, self.versions, tickets, early, vec![certificate], verifier);
        self.set(CurrentCertificate { is_replaced: true, ..current });
    }

    fn set(&self, current: CurrentCertificate) {
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = current;
    }
}

impl fmt::Debug for CurrentCertificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CurrentCertificate").field("settings", &self.settings).finish_non_exhaustive()
    }
}

impl CurrentCertificate {
    fn load(
        config: &Tls,
        versions: HttpVersions,
        tickets: Option<&Arc<dyn ProducesTickets>>,
        early: Option<&Arc<EarlySessions>>,
    ) -> Result<Self, CertificateError> {
        let load = |files: &CertificateFiles| match files.load() {
            // An automatic certificate may not exist yet; until then handshakes fail.
            Err(_) if config.is_automatic => None,
            result => Some(result),
        };
        let certificates = config.certificates.iter().filter_map(load).collect::<Result<Vec<_>, _>>()?;
        let verifier = match &config.client_certificates {
            Some(asked) => client_verifier(asked.load()?, asked.accepts),
            None => Arc::new(NoClientAuth),
        };
        Ok(Self::of(config, versions, tickets, early, certificates, verifier))
    }

    fn of(
        config: &Tls,
        versions: HttpVersions,
        tickets: Option<&Arc<dyn ProducesTickets>>,
        early: Option<&Arc<EarlySessions>>,
        mut certificates: Vec<Certificate>,
        verifier: Arc<dyn ClientCertVerifier>,
    ) -> Self {
        // An RSA signature takes twenty times as long. Otherwise the order stays.
        certificates.sort_by_key(|certificate| certificate.key.key.algorithm() == SignatureAlgorithm::RSA);
        let not_after = certificates.iter().map(|certificate| certificate.not_after_unix_seconds).min();
        let facts = certificates.iter().map(|certificate| CertificateFacts {
            names: certificate.names.clone(),
            issuer: certificate.issuer.clone(),
            not_before_unix_seconds: certificate.not_before_unix_seconds,
            not_after_unix_seconds: certificate.not_after_unix_seconds,
        });
        let facts = facts.collect();
        let mut settings = settings(config, certificates, Arc::clone(&verifier), tickets);
        let is_spoken = |name: &&&[u8]| if **name == HTTP2 { versions.http2 } else { versions.http1 };
        let protocols = APPLICATION_PROTOCOLS.iter().filter(is_spoken);
        settings.alpn_protocols = protocols.map(|name| name.to_vec()).collect();
        let quic = if versions.http3 { quic_settings(&settings, early) } else { None };
        let not_after_unix_seconds = not_after.unwrap_or(i64::MAX);
        Self { settings: Arc::new(settings), verifier, is_replaced: false, quic, not_after_unix_seconds, facts }
    }
}

fn settings(
    config: &Tls,
    certificates: Vec<Certificate>,
    verifier: Arc<dyn ClientCertVerifier>,
    tickets: Option<&Arc<dyn ProducesTickets>>,
) -> ServerConfig {
    let mut provider = CryptoProvider { cipher_suites: cipher_suites().to_vec(), ..default_provider() };
    // The post-quantum group comes first; for clients that support it, the extra cost is small.
    provider.kx_groups = vec![kx_group::X25519MLKEM768, kx_group::X25519, kx_group::SECP256R1, kx_group::SECP384R1];
    if !config.cipher_suites.is_empty() {
        let is_wanted = |name: Option<&str>| config.cipher_suites.iter().any(|wanted| Some(wanted.as_str()) == name);
        provider.cipher_suites.retain(|suite| is_wanted(suite.suite().as_str()));
    }
    let versions: &[_] = match config.version_min {
        TlsVersion::Tls12 => &[&rustls::version::TLS13, &rustls::version::TLS12],
        TlsVersion::Tls13 => &[&rustls::version::TLS13],
    };
    let builder = ServerConfig::builder_with_provider(Arc::new(provider)).with_protocol_versions(versions);
    // The check of the configuration ensures it.
    let builder = builder.expect("each version has a cipher suite");
    let resolver = Arc::new(Certificates(certificates));
    let mut settings = builder.with_client_cert_verifier(verifier).with_cert_resolver(resolver);
    // Tickets store sessions at the clients: no memory here grows with their number, and workers share the keys.
    // Secrets are extracted for kernel TLS (`connection/kernel_tls`).
    settings.enable_secret_extraction = true;
    settings.session_storage = Arc::new(NoServerSessionStorage {});
    match tickets {
        Some(tickets) => settings.ticketer = Arc::clone(tickets),
        None => settings.send_tls13_tickets = 0,
    }
    settings
}

impl ResolvesServerCert for Certificates {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let name = hello.server_name();
        let is_usable =
            |certificate: &&Certificate| certificate.key.key.choose_scheme(hello.signature_schemes()).is_some();
        let usable = || self.0.iter().filter(is_usable);
        let named = usable().find(|certificate| name.is_some_and(|name| certificate.is_for(name)));
        // If the client supports no certificate, any will do: rustls then finds no common scheme, and sends
        // handshake_failure. Without a certificate it would send access_denied.
        let chosen = named.or_else(|| usable().next()).or_else(|| self.0.first());
        chosen.map(|certificate| Arc::clone(&certificate.key))
    }
}
