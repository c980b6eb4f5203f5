//! Automatic certificates (ACME, RFC 8555): obtains them, stores them in the state directory, and renews them.
//!
//! All work is on a thread of its own. Workers only see changed certificates (`crates/tls`), and answer the challenges of a
//! CA (`crates/tls`).

mod hook;
mod order;
mod persist;
mod schedule;
mod sharing;
mod store;

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use instant_acme::{Account, CertificateIdentifier, ExternalAccountKey, NewAccount};
use tokio::runtime::Builder;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::{Mutex, Semaphore};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{sleep, timeout};

use self::order::{OrderError, Ordering};
use self::schedule::Validity;
use self::sharing::Sharing;
use self::store::{Attempts, Store, StoredCertificate};
use crate::config::{AutomaticCertificates, CertificateFiles, Config, certificate_name};
use crate::log::{ServerLog, event};
use crate::spawner::Spawner;
use crate::tls::{AllTls, SiteTls, Validations};
use tailcoat_config as config;
use tailcoat_observe::log;
use tailcoat_spawner as spawner;
use tailcoat_tls as tls;

/// Concurrent orders; CAs ask for restraint.
const ORDERS_MAX: usize = 2;

/// Longest sleep, because clocks may be set, and another process may do the work.
const LOOK_INTERVAL: Duration = Duration::from_secs(3_600);

/// Interval at which an instance looks for certificates of others.
const SHARED_LOOK_INTERVAL: Duration = Duration::from_secs(5);

/// Interval at which a second process checks whether the first has ended.
const LOCK_INTERVAL: Duration = Duration::from_secs(10);

/// Bounds of the lifetime of a CA's renewal info (RFC 9773, section 4.3.2).
const RENEWAL_INFO_MIN: Duration = Duration::from_secs(60);
const RENEWAL_INFO_MAX: Duration = Duration::from_secs(86_400);
const RENEWAL_INFO_AFTER_ERROR: Duration = Duration::from_secs(6 * 3_600);

/// Manager of the certificates of all sites with automatic ones.
struct Manager {
    settings: AutomaticCertificates,
    /// Starter of the hook.
    spawner: Option<Arc<Spawner>>,
    store: Store,
    validations: Arc<Validations>,
    /// Account, once known.
    account: Mutex<Option<Account>>,
    orders: Semaphore,
    /// Store that instances share, if certificates are shared.
    sharing: Option<Sharing>,
    log: ServerLog,
}

/// Handle of the thread. Dropping it ends the thread, even during an order: the state directory is consistent at any
/// time, and the next process starts again.
#[derive(Debug)]
pub struct Keeper {
    plans: UnboundedSender<AcmePlan>,
}

/// Certificates that a configuration needs.
#[derive(Debug)]
pub struct AcmePlan {
    settings: AutomaticCertificates,
    spawner: Option<Arc<Spawner>>,
    store: Store,
    validations: Arc<Validations>,
    certificates: Vec<WantedCertificate>,
    sharing: Option<Sharing>,
}

/// Certificate and the sites that use it.
#[derive(Debug)]
struct WantedCertificate {
    names: Vec<String>,
    /// Profile of the sites; `None` is that of the settings.
    profile: Option<String>,
    path: PathBuf,
    sites: Vec<Arc<SiteTls>>,
}

/// Certificate under management.
struct Managed {
    names: Vec<String>,
    profile: Option<String>,
    path: PathBuf,
    sites: SharedSites,
    renewal: Renewal,
}

impl Managed {
    /// Calls `each` with each site that uses the certificate.
    fn each_site(&self, each: impl FnMut(&Arc<SiteTls>)) {
        self.sites.lock().unwrap_or_else(PoisonError::into_inner).iter().for_each(each);
    }
}

/// Sites that use a certificate; a new configuration may change them.
type SharedSites = Arc<std::sync::Mutex<Vec<Arc<SiteTls>>>>;

/// Renewal info of a CA for a certificate.
#[derive(Default)]
struct Renewal {
    /// Certificate of the info.
    certificate: Vec<u8>,
    /// Start and end of the window, in seconds since 1970.
    window: Option<(i64, i64)>,
    /// Time of the next request for the info, in seconds since 1970.
    next_look: i64,
}

/// Next action for a certificate.
enum Due {
    In(Duration),
    Now,
}

/// Sets the paths of automatic certificates in the configuration; returns whether there are any.
///
/// # Errors
/// The environment names no state directory.
pub fn place_certificates(config: &mut Config) -> io::Result<bool> {
    if !config.sites.iter().any(|site| site.tls.is_automatic) {
        return Ok(false);
    }
    let store = Store::of(&config.automatic_certificates)?;
    for site in config.sites.iter_mut().filter(|site| site.tls.is_automatic) {
        let path = store.certificate_path(&names_of(site), site.tls.profile.as_deref());
        let files = CertificateFiles { certificate: path.clone(), key: path, ocsp: None };
        // A site of the configuration before has its path already.
        if site.tls.certificates != [files.clone()] {
            Arc::make_mut(site).tls.certificates = vec![files];
        }
    }
    Ok(true)
}

impl AcmePlan {
    /// Plans the certificates of a configuration. Creates the state directory if there are any. The spawner is for a
    /// hook.
    ///
    /// # Errors
    /// The state directory cannot be created.
    pub fn new(config: &Config, tls: &AllTls, spawner: Option<Arc<Spawner>>) -> io::Result<Self> {
        let store = Store::of(&config.automatic_certificates)?;
        let mut by_path: BTreeMap<PathBuf, WantedCertificate> = BTreeMap::new();
        for (index, site) in tls.sites() {
            let site_config = &config.sites[*index];
            if site_config.tls.is_automatic {
                let names = names_of(site_config);
                let profile = site_config.tls.profile.clone();
                let path = store.certificate_path(&names, profile.as_deref());
                let wanted = WantedCertificate { names, profile, path: path.clone(), sites: Vec::new() };
                by_path.entry(path).or_insert(wanted).sites.push(Arc::clone(site));
            }
        }
        if !by_path.is_empty() {
            store.create()?;
        }
        Ok(Self {
            settings: config.automatic_certificates.clone(),
            spawner,
            store,
            validations: Arc::clone(tls.validations()),
            sharing: if by_path.is_empty() { None } else { Sharing::of(config)? },
            certificates: by_path.into_values().collect(),
        })
    }

    /// True without certificates.
    pub fn is_empty(&self) -> bool {
        self.certificates.is_empty()
    }
}

impl Keeper {
    /// Starts to obtain and renew the planned certificates.
    ///
    /// # Errors
    /// The thread cannot be created.
    pub fn start(plan: AcmePlan, log: ServerLog) -> io::Result<Self> {
        let (plans, receiver) = unbounded_channel();
        let keeper = Self { plans };
        keeper.apply(plan);
        let runtime = Builder::new_current_thread().enable_all().build()?;
        std::thread::Builder::new().name("acme".into()).spawn(move || runtime.block_on(run(receiver, log)))?;
        Ok(keeper)
    }

    /// Applies a new plan. Running orders for certificates that stay are not disturbed.
    pub fn apply(&self, plan: AcmePlan) {
        // Fails only if the thread ended by a panic, which was logged.
        let _ = self.plans.send(plan);
    }
}

/// Follows the latest plan until the sender is dropped.
async fn run(mut plans: UnboundedReceiver<AcmePlan>, log: ServerLog) {
    let mut next = plans.recv().await;
    while let Some(plan) = next.take() {
        let AcmePlan { settings, spawner, store, validations, certificates, sharing } = plan;
        let (account, orders) = (Mutex::new(None), Semaphore::new(ORDERS_MAX));
        let log = log.clone();
        let manager = Arc::new(Manager { settings, spawner, store, validations, account, orders, sharing, log });
        let answering = manager
            .sharing
            .clone()
            .map(|sharing| tokio::spawn(sharing.answer_challenges(Arc::clone(&manager.validations))));
        // The first process does the work for all that share the directory; the others see the files change.
        let _lock = tokio::select! {
            lock = manager.lock() => lock,
            plan = plans.recv() => {
                next = plan;
                answering.iter().for_each(tokio::task::JoinHandle::abort);
                continue;
            }
        };
        let mut tasks = Tasks::default();
        tasks.keep(&manager, certificates);
        next = loop {
            tokio::select! {
                plan = plans.recv() => match plan {
                    Some(plan)
                        if plan.settings == manager.settings
                            && Sharing::is_same(plan.sharing.as_ref(), manager.sharing.as_ref()) =>
                    {
                        tasks.keep(&manager, plan.certificates);
                    }
                    plan => break plan,
                },
                () = tasks.ended(&manager.log) => {}
            }
        };
        answering.iter().for_each(tokio::task::JoinHandle::abort);
    }
}

/// Tasks, one per certificate.
#[derive(Default)]
struct Tasks {
    running: JoinSet<()>,
    /// Tasks by the path of the certificate.
    known: HashMap<PathBuf, (AbortHandle, SharedSites)>,
}

impl Tasks {
    /// Keeps these certificates, and no others.
    fn keep(&mut self, manager: &Arc<Manager>, certificates: Vec<WantedCertificate>) {
        let mut known = std::mem::take(&mut self.known);
        for WantedCertificate { names, profile, path, sites } in certificates {
            let entry = match known.remove(&path) {
                Some((task, shared)) => {
                    *shared.lock().unwrap_or_else(PoisonError::into_inner) = sites;
                    (task, shared)
                }
                None => {
                    let shared: SharedSites = Arc::new(sites.into());
                    let (path, sites) = (path.clone(), Arc::clone(&shared));
                    let managed = Managed { names, profile, path, sites, renewal: Renewal::default() };
                    (self.running.spawn(Arc::clone(manager).keep(managed)), shared)
                }
            };
            self.known.insert(path, entry);
        }
        known.into_values().for_each(|(task, _)| task.abort());
    }

    /// Logs a task that ended by a panic.
    async fn ended(&mut self, log: &ServerLog) {
        match self.running.join_next().await {
            Some(Err(error)) if !error.is_cancelled() => {
                log.error(event("certificate renewal stopped", &[("error", &error)]), "restart the server");
            }
            Some(_) => {}
            // No task is left.
            None => std::future::pending().await,
        }
    }
}

/// Names of a site's certificate, in a stable order.
fn names_of(site: &crate::config::SiteConfig) -> Vec<String> {
    let mut names: Vec<String> = site.names.iter().map(certificate_name).collect();
    names.sort();
    names.dedup();
    names
}

impl Manager {
    /// Takes the lock of the state directory as soon as it is free.
    async fn lock(&self) -> std::fs::File {
        loop {
            match self.store.lock() {
                Ok(Some(lock)) => return lock,
                Ok(None) => {}
                Err(error) => self.log.error(
                    event("locking certificate directory failed", &[("error", &error)]),
                    "make it writable for the server's user; the server tries again",
                ),
            }
            sleep(LOCK_INTERVAL).await;
        }
    }

    /// Longest sleep. Certificates of other instances must arrive before the own expire.
    fn look_interval(&self) -> Duration {
        if self.sharing.is_some() { SHARED_LOOK_INTERVAL } else { LOOK_INTERVAL }
    }

    /// Renews a certificate whenever it is due.
    async fn keep(self: Arc<Self>, mut certificate: Managed) {
        loop {
            match self.due(&mut certificate).await {
                Due::In(wait) => sleep(wait.min(self.look_interval())).await,
                Due::Now => match &self.sharing {
                    None => self.renew(&certificate).await,
                    Some(sharing) => self.renew_once_for_all(sharing, &mut certificate).await,
                },
            }
        }
    }

    /// Renews a certificate under its lease, unless another instance has it or has renewed it.
    async fn renew_once_for_all(&self, sharing: &Sharing, certificate: &mut Managed) {
        let Some(held) = sharing.hold(&name_of(&certificate.path)).await else { return };
        if matches!(self.due(certificate).await, Due::Now) && held.is_held() {
            self.renew(certificate).await;
        }
    }

    /// Takes what other instances have obtained, or have tried.
    async fn receive(&self, sharing: &Sharing, certificate: &Managed) {
        let name = name_of(&certificate.path);
        // While the store is away, the own certificate is in use.
        if let Ok(Some(text)) = sharing.read("certificates", &name).await
            && self.store.is_better(&certificate.path, &text)
        {
            let saved = self.store.save_text(&certificate.path, &text).map_err(OrderError::new);
            match saved.and_then(|()| reload_sites(certificate)) {
                Ok(()) => {
                    let names = certificate.names.join(",");
                    self.log.info(event("certificate received from another instance", &[("names", &names)]));
                }
                Err(error) => self.log.error(
                    event("using certificate of another instance failed", &[("error", &error)]),
                    "make the state directory writable for the server's user",
                ),
            }
        }
        if let Ok(Some(attempts)) = sharing.read_json::<Attempts>("attempts", &name).await
            && attempts != self.store.attempts(&certificate.path)
        {
            // Without it, this instance tries earlier.
            let _ = self.store.save_attempts(&certificate.path, attempts);
        }
    }

    async fn due(&self, certificate: &mut Managed) -> Due {
        if let Some(sharing) = &self.sharing {
            self.receive(sharing, certificate).await;
        }
        let stored = self.store.certificate(&certificate.path);
        let attempts = self.store.attempts(&certificate.path);
        let at = match &stored {
            None => i64::MIN,
            Some(stored) => {
                let window = self.renewal_window(stored, &mut certificate.renewal).await;
                schedule::renewal_time(stored.validity, window, stored.fraction())
            }
        };
        let now = now_unix_seconds();
        let at = at.max(schedule::retry_time(attempts.retry_unix_seconds, now));
        certificate.each_site(|site| site.note_next_try(Some(at.max(now))));
        match at.saturating_sub(now) {
            ..=0 => Due::Now,
            seconds => Due::In(Duration::from_secs(seconds.unsigned_abs())),
        }
    }

    /// Window in which the CA wants a certificate renewed (RFC 9773), as last reported.
    async fn renewal_window(&self, stored: &StoredCertificate, known: &mut Renewal) -> Option<(i64, i64)> {
        let now = now_unix_seconds();
        let is_known = known.certificate == *stored.certificate;
        if is_known && (0..=RENEWAL_INFO_MAX.as_secs() as i64).contains(&(known.next_look - now)) {
            return known.window;
        }
        let asked = timeout(self.settings.order_timeout, self.ask_renewal_window(stored)).await;
        let (window, again) = match asked {
            Ok(Ok((window, again))) => (Some(window), again.clamp(RENEWAL_INFO_MIN, RENEWAL_INFO_MAX)),
            // Section 4.3.3: the known window stays valid.
            _ => (known.window.filter(|_| known.certificate == *stored.certificate), RENEWAL_INFO_AFTER_ERROR),
        };
        *known = Renewal {
            certificate: stored.certificate.to_vec(),
            window,
            next_look: now.saturating_add_unsigned(again.as_secs()),
        };
        window
    }

    async fn ask_renewal_window(&self, stored: &StoredCertificate) -> Result<((i64, i64), Duration), OrderError> {
        let account = self.account().await?;
        let identifier = CertificateIdentifier::try_from(&stored.certificate).map_err(OrderError::new)?;
        let (info, again) = account.renewal_info(&identifier).await?;
        let window = info.suggested_window;
        Ok(((window.start.unix_timestamp(), window.end.unix_timestamp()), again))
    }

    /// Orders a certificate, and logs the result.
    async fn renew(&self, certificate: &Managed) {
        // Local invariant: the semaphore is never closed.
        let Ok(_turn) = self.orders.acquire().await else { return };
        let attempts = self.store.attempts(&certificate.path);
        let names = certificate.names.join(",");
        let stored = self.store.certificate(&certificate.path);
        let result = match timeout(self.settings.order_timeout, self.order(certificate, attempts.failures)).await {
            Ok(result) => result,
            Err(_) => Err(OrderError::timed_out()),
        };
        match result {
            Ok(()) => {
                certificate.each_site(|site| site.note_try(None));
                self.log.info(event("certificate obtained", &[("names", &names)]));
                let stored = self.store.certificate(&certificate.path);
                let first = self.settings.retry_interval;
                let pause = stored.map_or(first, |stored| schedule::pause_after_success(stored.validity, first));
                let retry_unix_seconds = now_unix_seconds().saturating_add_unsigned(pause.as_secs());
                self.save_attempts(certificate, Attempts { failures: 0, retry_unix_seconds }).await;
            }
            Err(error) => {
                if error.is_of_account {
                    *self.account.lock().await = None;
                    self.store.forget_account();
                    if let Some(sharing) = &self.sharing {
                        let _ = sharing.remove("accounts", &self.store.name()).await;
                    }
                }
                let failures = attempts.failures.saturating_add(1);
                let validity = stored.map(|stored| stored.validity);
                let wait = schedule::retry_wait(self.settings.retry_interval, failures, validity, fastrand::f64());
                let wait = wait.max(error.wait_min);
                let retry_unix_seconds = now_unix_seconds().saturating_add_unsigned(wait.as_secs());
                let retry_in_s = wait.as_secs();
                certificate.each_site(|site| site.note_try(Some(error.to_string())));
                self.log.error(
                    event(
                        "ordering certificate failed",
                        &[("names", &names), ("error", &error), ("retry_in_s", &retry_in_s)],
                    ),
                    error.advice(),
                );
                self.save_attempts(certificate, Attempts { failures, retry_unix_seconds }).await;
            }
        }
    }

    async fn order(&self, certificate: &Managed, failures: u32) -> Result<(), OrderError> {
        let account = self.account().await?;
        let replaced = self.store.certificate(&certificate.path);
        let ordering = Ordering {
            account: &account,
            settings: &self.settings,
            spawner: self.spawner.as_deref(),
            validations: &self.validations,
            names: &certificate.names,
            profile: certificate.profile.as_deref(),
            replaced: replaced.and_then(|stored| CertificateIdentifier::try_from(&stored.certificate).ok()),
            failures,
            sharing: self.sharing.as_ref().map(|sharing| (sharing, name_of(&certificate.path))),
            log: &self.log,
        };
        let issued = ordering.run().await?;
        self.store.save_certificate(&certificate.path, &issued).map_err(OrderError::new)?;
        if let Some(sharing) = &self.sharing {
            let name = name_of(&certificate.path);
            let shared = sharing.write("certificates", &name, &issued.text()).await;
            if let Err(error) = shared {
                self.log.warn(
                    event("sharing certificate failed", &[("error", &error)]),
                    "other instances order one of their own when the store is back",
                );
            } else {
                // The next order is a new one.
                let _ = sharing.remove("orders", &name).await;
            }
        }
        reload_sites(certificate)
    }

    /// Account; created if there is none.
    async fn account(&self) -> Result<Account, OrderError> {
        let mut known = self.account.lock().await;
        if let Some(account) = &*known {
            return Ok(account.clone());
        }
        let builder = || match &self.settings.authority {
            Some(path) => Account::builder_with_root(path),
            None => Account::builder(),
        };
        let stored = match self.shared_account().await? {
            Some(credentials) => Some(credentials),
            None => self.store.account(&self.log),
        };
        let account = match stored {
            Some(credentials) => builder()?.from_credentials(credentials).await?,
            None => {
                let contact: Vec<&str> = self.settings.contacts.iter().map(String::as_str).collect();
                let new = NewAccount { contact: &contact, terms_of_service_agreed: true, only_return_existing: false };
                let external = match &self.settings.external_account {
                    Some(account) => {
                        let key = account.load_key().map_err(OrderError::new)?;
                        Some(ExternalAccountKey::new(account.key_id.clone(), &key))
                    }
                    None => None,
                };
                let directory = self.settings.directory.clone();
                let (account, credentials) = builder()?.create(&new, directory, external.as_ref()).await?;
                if let Some(account) = self.share_account(&credentials).await? {
                    *known = Some(account.clone());
                    return Ok(account);
                }
                self.store.save_account(&credentials).map_err(OrderError::new)?;
                self.log.info(event("ACME account created", &[("id", &account.id())]));
                account
            }
        };
        *known = Some(account.clone());
        Ok(account)
    }

    /// Account of all instances, if there is one.
    async fn shared_account(&self) -> Result<Option<instant_acme::AccountCredentials>, OrderError> {
        let Some(sharing) = &self.sharing else { return Ok(None) };
        sharing.read_json("accounts", &self.store.name()).await.map_err(OrderError::new)
    }

    /// Shares a new account. Returns that of another instance, if it was first.
    async fn share_account(
        &self,
        credentials: &instant_acme::AccountCredentials,
    ) -> Result<Option<Account>, OrderError> {
        let Some(sharing) = &self.sharing else { return Ok(None) };
        let text = serde_json::to_string(credentials).map_err(OrderError::new)?;
        if sharing.create("accounts", &self.store.name(), &text).await.map_err(OrderError::new)? {
            return Ok(None);
        }
        let Some(credentials) = self.shared_account().await? else { return Ok(None) };
        let builder = match &self.settings.authority {
            Some(path) => Account::builder_with_root(path),
            None => Account::builder(),
        };
        Ok(Some(builder?.from_credentials(credentials).await?))
    }

    async fn save_attempts(&self, certificate: &Managed, attempts: Attempts) {
        if let Some(sharing) = &self.sharing
            && let Ok(text) = serde_json::to_string(&attempts)
        {
            // Without it, another instance tries earlier.
            let _ = sharing.write("attempts", &name_of(&certificate.path), &text).await;
        }

        if let Err(error) = self.store.save_attempts(&certificate.path, attempts) {
            self.log.warn(
                event("saving retry time failed", &[("error", &error)]),
                "after a restart the server orders this certificate at once",
            );
        }
    }
}

/// Name of a certificate's file, which is the same on all instances.
fn name_of(path: &std::path::Path) -> String {
    path.file_stem().unwrap_or_default().to_string_lossy().into_owned()
}

fn reload_sites(certificate: &Managed) -> Result<(), OrderError> {
    let sites = certificate.sites.lock().unwrap_or_else(PoisonError::into_inner).clone();
    sites.iter().try_for_each(|site| site.reload()).map_err(OrderError::new)
}

fn now_unix_seconds() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs() as i64)
}
