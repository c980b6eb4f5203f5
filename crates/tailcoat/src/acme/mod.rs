//! Certificates without anybody's doing (ACME, RFC 8555): gets them, keeps them in the state directory, and renews them.
//!
//! All of it is on a thread of its own. Workers see nothing but certificates that have changed (`tls/`), and answer an
//! authority that looks whether a name is ours (`tls/validations.rs`).

mod hook;
mod order;
mod schedule;
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
use self::store::{Attempts, Store, Stored};
use crate::config::{AutomaticCertificates, CertificateFiles, Config, certificate_name};
use crate::log::ServerLog;
use crate::spawner::Spawner;
use crate::tls::{AllTls, SiteTls, Validations};

/// Orders at a time: authorities ask for restraint.
const ORDERS_MAX: usize = 2;

/// However far away what is to be done next is, clocks may be set, and another process may have done it.
const LOOK_INTERVAL: Duration = Duration::from_secs(3_600);

/// How often a process looks whether the one that was first has ended.
const LOCK_INTERVAL: Duration = Duration::from_secs(10);

/// How long what an authority says of renewal holds, if it says nothing of that, at least and at most (RFC 9773,
/// section 4.3.2).
const RENEWAL_INFO_MIN: Duration = Duration::from_secs(60);
const RENEWAL_INFO_MAX: Duration = Duration::from_secs(86_400);
const RENEWAL_INFO_AFTER_ERROR: Duration = Duration::from_secs(6 * 3_600);

/// Keeps the certificates of all sites that have automatic ones.
struct Manager {
    settings: AutomaticCertificates,
    /// Who starts the hook.
    spawner: Option<Arc<Spawner>>,
    store: Store,
    validations: Arc<Validations>,
    /// Once it is known.
    account: Mutex<Option<Account>>,
    orders: Semaphore,
    log: ServerLog,
}

/// The thread that does it. It ends when this is dropped, in the middle of an order, if need be: what is in the state
/// directory is whole at any time, and whoever is next begins anew.
#[derive(Debug)]
pub struct Keeper {
    plans: UnboundedSender<Plan>,
}

/// What a configuration wants kept.
#[derive(Debug)]
pub struct Plan {
    settings: AutomaticCertificates,
    spawner: Option<Arc<Spawner>>,
    store: Store,
    validations: Arc<Validations>,
    certificates: Vec<Wanted>,
}

/// A certificate, and the sites that use it.
#[derive(Debug)]
struct Wanted {
    names: Vec<String>,
    path: PathBuf,
    sites: Vec<Arc<SiteTls>>,
}

/// A certificate that is kept.
struct Managed {
    names: Vec<String>,
    path: PathBuf,
    sites: SharedSites,
    renewal: Renewal,
}

/// The sites that use a certificate; others may when the configuration changes.
type SharedSites = Arc<std::sync::Mutex<Vec<Arc<SiteTls>>>>;

/// What an authority said of when to renew a certificate.
#[derive(Default)]
struct Renewal {
    /// Of which it was.
    certificate: Vec<u8>,
    /// When, in seconds since 1970.
    window: Option<(i64, i64)>,
    /// When it is to be asked again.
    next_look: i64,
}

/// What is to be done for a certificate.
enum Due {
    In(Duration),
    Now,
}

/// Tells the sites with automatic certificates where theirs are kept; returns whether there are such sites.
///
/// # Errors
/// The environment names no state directory.
pub fn place_certificates(config: &mut Config) -> io::Result<bool> {
    if !config.sites.iter().any(|site| site.tls.is_automatic) {
        return Ok(false);
    }
    let store = Store::of(&config.automatic_certificates)?;
    for site in config.sites.iter_mut().filter(|site| site.tls.is_automatic) {
        let path = store.certificate_path(&names_of(site));
        site.tls.certificates = vec![CertificateFiles { certificate: path.clone(), key: path, ocsp: None }];
    }
    Ok(true)
}

impl Plan {
    /// What a configuration wants kept. Makes the state directory, if certificates are wanted. The spawner is for a hook.
    ///
    /// # Errors
    /// The state directory can't be made.
    pub fn new(config: &Config, tls: &AllTls, spawner: Option<Arc<Spawner>>) -> io::Result<Self> {
        let store = Store::of(&config.automatic_certificates)?;
        let mut by_path: BTreeMap<PathBuf, Wanted> = BTreeMap::new();
        for (index, site) in tls.sites() {
            let site_config = &config.sites[*index];
            if site_config.tls.is_automatic {
                let names = names_of(site_config);
                let path = store.certificate_path(&names);
                let wanted = Wanted { names, path: path.clone(), sites: Vec::new() };
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
            certificates: by_path.into_values().collect(),
        })
    }

    /// Whether there is nothing to keep.
    pub fn is_empty(&self) -> bool {
        self.certificates.is_empty()
    }
}

impl Keeper {
    /// Begins to get and to renew what is wanted.
    ///
    /// # Errors
    /// The thread can't be made.
    pub fn start(plan: Plan, log: ServerLog) -> io::Result<Self> {
        let (plans, receiver) = unbounded_channel();
        let keeper = Self { plans };
        keeper.change(plan);
        let runtime = Builder::new_current_thread().enable_all().build()?;
        std::thread::Builder::new().name("acme".into()).spawn(move || runtime.block_on(run(receiver, log)))?;
        Ok(keeper)
    }

    /// Goes on with what is wanted now. Orders that are under way for certificates that stay are not disturbed.
    pub fn change(&self, plan: Plan) {
        // Fails only if the thread has ended by a panic, which has been told.
        let _ = self.plans.send(plan);
    }
}

/// Keeps what the latest plan says, until there will be no other.
async fn run(mut plans: UnboundedReceiver<Plan>, log: ServerLog) {
    let mut next = plans.recv().await;
    while let Some(plan) = next.take() {
        let Plan { settings, spawner, store, validations, certificates } = plan;
        let (account, orders) = (Mutex::new(None), Semaphore::new(ORDERS_MAX));
        let log = log.clone();
        let manager = Arc::new(Manager { settings, spawner, store, validations, account, orders, log });
        // The process that was first does it for all that share the directory; the others see the files change.
        let _lock = tokio::select! {
            lock = manager.lock() => lock,
            plan = plans.recv() => {
                next = plan;
                continue;
            }
        };
        let mut tasks = Tasks::default();
        tasks.keep(&manager, certificates);
        next = loop {
            tokio::select! {
                plan = plans.recv() => match plan {
                    Some(plan) if plan.settings == manager.settings => tasks.keep(&manager, plan.certificates),
                    plan => break plan,
                },
                () = tasks.ended(&manager.log) => {}
            }
        };
    }
}

/// One task a certificate.
#[derive(Default)]
struct Tasks {
    running: JoinSet<()>,
    /// By the certificate's path.
    known: HashMap<PathBuf, (AbortHandle, SharedSites)>,
}

impl Tasks {
    /// Keeps these certificates, and no others.
    fn keep(&mut self, manager: &Arc<Manager>, certificates: Vec<Wanted>) {
        let mut known = std::mem::take(&mut self.known);
        for Wanted { names, path, sites } in certificates {
            let entry = match known.remove(&path) {
                Some((task, shared)) => {
                    *shared.lock().unwrap_or_else(PoisonError::into_inner) = sites;
                    (task, shared)
                }
                None => {
                    let shared: SharedSites = Arc::new(sites.into());
                    let (path, sites) = (path.clone(), Arc::clone(&shared));
                    let managed = Managed { names, path, sites, renewal: Renewal::default() };
                    (self.running.spawn(Arc::clone(manager).keep(managed)), shared)
                }
            };
            self.known.insert(path, entry);
        }
        known.into_values().for_each(|(task, _)| task.abort());
    }

    /// Tells of a task that has ended by a panic.
    async fn ended(&mut self, log: &ServerLog) {
        match self.running.join_next().await {
            Some(Err(error)) if !error.is_cancelled() => {
                log.error(format_args!("a certificate is not renewed any more: {error}"), "restart the server");
            }
            Some(_) => {}
            // There is none.
            None => std::future::pending().await,
        }
    }
}

/// The names that a site's certificate is for, in an order that does not change.
fn names_of(site: &crate::config::Site) -> Vec<String> {
    let mut names: Vec<String> = site.names.iter().map(certificate_name).collect();
    names.sort();
    names.dedup();
    names
}

impl Manager {
    /// Takes the lock of the state directory, when it is free.
    async fn lock(&self) -> std::fs::File {
        loop {
            match self.store.lock() {
                Ok(Some(lock)) => return lock,
                Ok(None) => {}
                Err(error) => self.log.error(
                    format_args!("no certificates can be got: {error}"),
                    "the user that the server runs as must be able to write there; it is tried again",
                ),
            }
            sleep(LOCK_INTERVAL).await;
        }
    }

    /// Does what is due for a certificate, for ever.
    async fn keep(self: Arc<Self>, mut certificate: Managed) {
        loop {
            match self.due(&mut certificate).await {
                Due::In(wait) => sleep(wait.min(LOOK_INTERVAL)).await,
                Due::Now => self.renew(&certificate).await,
            }
        }
    }

    async fn due(&self, certificate: &mut Managed) -> Due {
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
        match at.max(schedule::retry_time(attempts.retry_unix_seconds, now)).saturating_sub(now) {
            ..=0 => Due::Now,
            seconds => Due::In(Duration::from_secs(seconds.unsigned_abs())),
        }
    }

    /// When the authority would have a certificate renewed (RFC 9773), as it was told lately.
    async fn renewal_window(&self, stored: &Stored, known: &mut Renewal) -> Option<(i64, i64)> {
        let now = now_unix_seconds();
        let is_known = known.certificate == *stored.certificate;
        if is_known && (0..=RENEWAL_INFO_MAX.as_secs() as i64).contains(&(known.next_look - now)) {
            return known.window;
        }
        let asked = timeout(self.settings.order_timeout, self.ask_renewal_window(stored)).await;
        let (window, again) = match asked {
            Ok(Ok((window, again))) => (Some(window), again.clamp(RENEWAL_INFO_MIN, RENEWAL_INFO_MAX)),
            // Section 4.3.3: what was known holds.
            _ => (known.window.filter(|_| known.certificate == *stored.certificate), RENEWAL_INFO_AFTER_ERROR),
        };
        *known = Renewal {
            certificate: stored.certificate.to_vec(),
            window,
            next_look: now.saturating_add_unsigned(again.as_secs()),
        };
        window
    }

    async fn ask_renewal_window(&self, stored: &Stored) -> Result<((i64, i64), Duration), OrderError> {
        let account = self.account().await?;
        let identifier = CertificateIdentifier::try_from(&stored.certificate).map_err(OrderError::new)?;
        let (info, again) = account.renewal_info(&identifier).await?;
        let window = info.suggested_window;
        Ok(((window.start.unix_timestamp(), window.end.unix_timestamp()), again))
    }

    /// Orders a certificate, and tells what came of it.
    async fn renew(&self, certificate: &Managed) {
        // Local invariant: it is never closed.
        let Ok(_turn) = self.orders.acquire().await else { return };
        let attempts = self.store.attempts(&certificate.path);
        let names = certificate.names.join(", ");
        let result = match timeout(self.settings.order_timeout, self.order(certificate, attempts.failures)).await {
            Ok(result) => result,
            Err(_) => Err(OrderError::new("it took longer than `order-timeout`")),
        };
        match result {
            Ok(()) => {
                self.log.info(format_args!("a new certificate is in use for {names}"));
                let stored = self.store.certificate(&certificate.path);
                let first = self.settings.retry_interval;
                let pause = stored.map_or(first, |stored| schedule::pause_after_success(stored.validity, first));
                let retry_unix_seconds = now_unix_seconds().saturating_add_unsigned(pause.as_secs());
                self.save_attempts(certificate, Attempts { failures: 0, retry_unix_seconds });
            }
            Err(error) => {
                if error.is_of_account {
                    *self.account.lock().await = None;
                    self.store.forget_account();
                }
                let failures = attempts.failures.saturating_add(1);
                let wait =
                    schedule::retry_wait(self.settings.retry_interval, failures, fastrand::f64()).max(error.wait_min);
                let retry_unix_seconds = now_unix_seconds().saturating_add_unsigned(wait.as_secs());
                let message = format!("no certificate could be got for {names}: {error}");
                let next = format!("it is tried again in {} seconds; {}", wait.as_secs(), error.advice());
                self.log.error(message, &next);
                self.save_attempts(certificate, Attempts { failures, retry_unix_seconds });
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
            replaced: replaced.and_then(|stored| CertificateIdentifier::try_from(&stored.certificate).ok()),
            failures,
            log: &self.log,
        };
        let issued = ordering.run().await?;
        self.store.save_certificate(&certificate.path, &issued).map_err(OrderError::new)?;
        let sites = certificate.sites.lock().unwrap_or_else(PoisonError::into_inner).clone();
        sites.iter().try_for_each(|site| site.reload()).map_err(OrderError::new)
    }

    /// The account, made if there is none yet.
    async fn account(&self) -> Result<Account, OrderError> {
        let mut known = self.account.lock().await;
        if let Some(account) = &*known {
            return Ok(account.clone());
        }
        let builder = || match &self.settings.authority {
            Some(path) => Account::builder_with_root(path),
            None => Account::builder(),
        };
        let account = match self.store.account(&self.log) {
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
                self.store.save_account(&credentials).map_err(OrderError::new)?;
                self.log.info(format_args!("there is an account for certificates now: {}", account.id()));
                account
            }
        };
        *known = Some(account.clone());
        Ok(account)
    }

    fn save_attempts(&self, certificate: &Managed, attempts: Attempts) {
        if let Err(error) = self.store.save_attempts(&certificate.path, attempts) {
            self.log.warn(error, "a restart will forget when to try again for a certificate");
        }
    }
}

fn now_unix_seconds() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs() as i64)
}
