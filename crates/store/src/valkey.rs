//! Valkey and Redis: standalone, with Sentinel, or a cluster. A key is a hash of value and version, which a script compares
//! and sets. Each folder has a set of its keys, because a search of all keys of a shared server is slow.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::cluster::ClusterClient;
use redis::cluster_async::ClusterConnection;
use redis::sentinel::{SentinelClient, SentinelClientBuilder, SentinelServerType};
use redis::{
    AsyncConnectionConfig, Client, Cmd, ConnectionAddr, ConnectionInfo, ErrorKind, IntoConnectionInfo,
    RedisConnectionInfo, RedisError, RedisResult, ServerErrorKind, TlsCertificates, TlsMode, Value,
};
use tailcoat_config::{StoreAbilities, StoreConfig, ValkeyPlace, ValkeyTopology, tls_client_settings};
use tailcoat_rest::{TlsConnector, connect};
use tokio::sync::Mutex;
use tokio::task::JoinHandle;

use super::key::KEY_BYTES_MAX;
use super::resp_limit::LimitedReplies;
use super::{
    COUNT_TIME, EngineTime, Entry, Expectation, InstanceCount, LIST_MAX, LimitCharge, Pending, Put, SharedStore,
    StoreError, StoreKey, StoredVersion, ValueFlaw, get_all, salt,
};

/// Start of all keys.
const PREFIX: &str = "tailcoat:";

/// Longest version, in bytes. A longer one is another program's.
const VERSION_BYTES_MAX: usize = 100;

/// Version of a value that is not in the form of [`PUT`].
const FOREIGN: &str = "?";

/// Returns version and value; the version alone if the value is too large or in another form, so that it is not sent. Arguments:
/// most bytes of a value and of a version.
const GET: &str = "local t = redis.call('TYPE', KEYS[1]).ok \
                   if t == 'none' then return {} end \
                   if t ~= 'hash' or redis.call('HEXISTS', KEYS[1], 'v') == 0 \
                   or redis.call('HSTRLEN', KEYS[1], 'v') > tonumber(ARGV[2]) then return {'?'} end \
                   local v = redis.call('HGET', KEYS[1], 'v') \
                   if redis.call('HEXISTS', KEYS[1], 'd') == 0 then return {'?'} end \
                   if redis.call('HSTRLEN', KEYS[1], 'd') > tonumber(ARGV[1]) then return {v} end \
                   return {v, redis.call('HGET', KEYS[1], 'd')}";

/// Returns the members of a set, without those that are no keys; nothing if they are too many. Arguments: most members, and most
/// bytes of one.
const MEMBERS: &str = "local t = redis.call('TYPE', KEYS[1]).ok \
                       if t ~= 'set' then return {} end \
                       if redis.call('SCARD', KEYS[1]) > tonumber(ARGV[1]) then return false end \
                       local all = {} for _, m in ipairs(redis.call('SMEMBERS', KEYS[1])) do \
                       if #m <= tonumber(ARGV[2]) then all[#all + 1] = m end end \
                       return all";

/// Adds a member to a set. Replaces a value of another type.
const ADD: &str = "local t = redis.call('TYPE', KEYS[1]).ok \
                   if t ~= 'set' and t ~= 'none' then redis.call('DEL', KEYS[1]) end \
                   return redis.call('SADD', KEYS[1], ARGV[1])";

/// Sets a key if its version is as expected: `*` any, `-` none, `?` a value in another form. Arguments: expected version, new
/// version, value, and most bytes of a version.
const PUT: &str = "local t = redis.call('TYPE', KEYS[1]).ok local v = false; \
                   if t == 'hash' and redis.call('HEXISTS', KEYS[1], 'v') == 1 and redis.call('HEXISTS', KEYS[1], 'd') == 1 \
                   and redis.call('HSTRLEN', KEYS[1], 'v') <= tonumber(ARGV[4]) then v = redis.call('HGET', KEYS[1], 'v'); \
                   elseif t ~= 'none' then v = '?' end \
                   if ARGV[1] == '-' then if v then return 0 end; \
                   elseif ARGV[1] ~= '*' and v ~= ARGV[1] then return 0 end; \
                   if v == '?' then redis.call('DEL', KEYS[1]) end \
                   redis.call('HSET', KEYS[1], 'v', ARGV[2], 'd', ARGV[3]) return 1";

/// Adds costs to a backlog that shrinks with the server's time (GCRA). Arguments: cost and largest backlog, in
/// microseconds. Returns the backlog. A value that is no number counts as none.
const CHARGE: &str = "local t = redis.call('TIME') local now = t[1] * 1000000 + t[2] \
                      local known = redis.pcall('GET', KEYS[1]) if type(known) ~= 'string' then known = '0' end \
                      local full = tonumber(known) or 0 if full ~= full then full = 0 end \
                      if full < now then full = now end \
                      full = math.min(full + ARGV[1], now + ARGV[2]) \
                      local left = full - now \
                      if left > 0 then redis.call('SET', KEYS[1], string.format('%.0f', full), 'PX', math.ceil(left / 1000) + 1000) end \
                      return string.format('%.0f', left)";

/// Replaces the count of an instance, and adds those of others. Arguments: instance, count, and time in milliseconds after
/// which it is forgotten, by the server's time, and most instances. A key that all instances have left expires.
const COUNT: &str = "local t = redis.call('TIME') local now = t[1] * 1000 + math.floor(t[2] / 1000) \
                     if redis.call('TYPE', KEYS[1]).ok ~= 'hash' or redis.call('HLEN', KEYS[1]) > tonumber(ARGV[4]) \
                     then redis.call('DEL', KEYS[1]) end \
                     if ARGV[2] == '0' then redis.call('HDEL', KEYS[1], ARGV[1]) else \
                     redis.call('HSET', KEYS[1], ARGV[1], ARGV[2] .. ' ' .. string.format('%.0f', now + ARGV[3])) \
                     redis.call('PEXPIRE', KEYS[1], ARGV[3]) end \
                     local sum = 0 local all = redis.call('HGETALL', KEYS[1]) \
                     for i = 1, #all, 2 do if all[i] ~= ARGV[1] then \
                     local count, till = string.match(all[i + 1], '^(%d+) (%d+)$') \
                     if till and tonumber(till) > now then sum = sum + tonumber(count) \
                     else redis.call('HDEL', KEYS[1], all[i]) end end end \
                     return sum";

/// Store of Valkey or Redis.
pub(super) struct ValkeyStore {
    client: AnyClient,
    connection: Mutex<Option<Connection>>,
    /// TLS to one server; a cluster has that of the library.
    tls: Option<TlsConnector>,
    place: String,
    abilities: StoreAbilities,
    timeout: Duration,
}

#[expect(clippy::large_enum_variant, reason = "one for each process")]
enum AnyClient {
    Standalone(Client),
    Sentinel(Box<Mutex<SentinelClient>>),
    Cluster(ClusterClient),
}

/// Connection that many operations share.
#[derive(Clone)]
enum Connection {
    Single {
        connection: MultiplexedConnection,
        /// Task that reads its replies, as long as the connection is used.
        _replies: Arc<ReplyTask>,
    },
    Cluster(ClusterConnection),
}

/// Task that reads replies. Dropping it ends the task, also one of a server that never ends its reply.
struct ReplyTask(JoinHandle<()>);

impl Drop for ReplyTask {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl ValkeyStore {
    pub(super) fn new(
        place: &ValkeyPlace,
        config: &StoreConfig,
        abilities: StoreAbilities,
    ) -> Result<Self, StoreError> {
        let wrong = |error: &dyn fmt::Display| StoreError::Wrong(error.to_string());
        let read = |path: &std::path::PathBuf| StoreConfig::read_secret(path).map_err(|error| wrong(&error));
        let password = config.password_file.as_ref().map(read).transpose()?;
        let password = password.map(String::from_utf8).transpose().map_err(|error| wrong(&error))?;
        let root_cert = config.authorities.as_ref().map(std::fs::read).transpose().map_err(|error| wrong(&error))?;
        let certificates = || TlsCertificates { client_tls: None, root_cert: root_cert.clone() };
        let addresses = place.nodes.iter().map(|(host, port)| match place.is_tls {
            true => ConnectionAddr::TcpTls { host: host.clone(), port: *port, insecure: false, tls_params: None },
            false => ConnectionAddr::Tcp(host.clone(), *port),
        });
        let mut settings = RedisConnectionInfo::default().set_db(place.database.into());
        if let Some(username) = &config.username {
            settings = settings.set_username(username);
        }
        if let Some(password) = &password {
            settings = settings.set_password(password);
        }
        let info = |address: ConnectionAddr| -> RedisResult<ConnectionInfo> {
            Ok(address.into_connection_info()?.set_redis_settings(settings.clone()))
        };
        let client = match &place.topology {
            ValkeyTopology::Standalone => {
                let address = addresses.into_iter().next().ok_or_else(|| wrong(&"no server"))?;
                let info = info(address).map_err(|error| error_of(&error))?;
                let client =
                    if place.is_tls { Client::build_with_tls(info, certificates()) } else { Client::open(info) };
                AnyClient::Standalone(client.map_err(|error| error_of(&error))?)
            }
            ValkeyTopology::Sentinel(primary) => {
                let builder = SentinelClientBuilder::new(addresses, primary, SentinelServerType::Master);
                let mut builder =
                    builder.map_err(|error| error_of(&error))?.set_client_to_redis_db(place.database.into());
                if let Some(username) = &config.username {
                    builder = builder.set_client_to_redis_username(username);
                }
                if let Some(password) = &password {
                    builder = builder.set_client_to_redis_password(password);
                }
                if place.is_tls {
                    builder = builder.set_client_to_redis_tls_mode(TlsMode::Secure);
                    builder = builder.set_client_to_redis_certificates(certificates());
                    builder = builder.set_client_to_sentinel_certificates(certificates());
                }
                AnyClient::Sentinel(Box::new(Mutex::new(builder.build().map_err(|error| error_of(&error))?)))
            }
            ValkeyTopology::Cluster => {
                let nodes = addresses.map(info).collect::<RedisResult<Vec<_>>>().map_err(|error| error_of(&error))?;
                let mut builder = ClusterClient::builder(nodes).retries(2).connection_timeout(config.timeout);
                builder = builder.response_timeout(config.timeout);
                if place.is_tls {
                    builder = builder.tls(TlsMode::Secure).certs(certificates());
                }
                AnyClient::Cluster(builder.build().map_err(|error| error_of(&error))?)
            }
        };
        let tls = place.is_tls.then(|| tls_client_settings(config.authorities.as_deref())).transpose();
        let tls = tls.map_err(StoreError::Wrong)?.map(TlsConnector::from);
        let timeout = config.timeout;
        let place = config.place.as_ref().map(ToString::to_string).unwrap_or_default();
        Ok(Self { client, connection: Mutex::default(), tls, place, abilities, timeout })
    }

    /// Connection for an operation; a new one after an error.
    async fn connection(&self) -> RedisResult<Connection> {
        let mut known = self.connection.lock().await;
        if let Some(connection) = &*known {
            return Ok(connection.clone());
        }
        let connection = match &self.client {
            AnyClient::Standalone(client) => self.connect(client).await?,
            AnyClient::Sentinel(client) => {
                let primary = client.lock().await.async_get_client().await?;
                self.connect(&primary).await?
            }
            AnyClient::Cluster(client) => Connection::Cluster(client.get_async_connection().await?),
        };
        Ok(known.insert(connection).clone())
    }

    /// Connects to the server of a client. The library would not limit its replies.
    async fn connect(&self, client: &Client) -> RedisResult<Connection> {
        let info = client.get_connection_info();
        let (host, port) = match info.addr() {
            ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => (host, *port),
            _ => return Err(RedisError::from((ErrorKind::InvalidClientConfig, "neither a name nor an address"))),
        };
        let limit = Some(self.timeout);
        let settings = AsyncConnectionConfig::new().set_connection_timeout(limit).set_response_timeout(limit);
        let connection = async {
            let stream = LimitedReplies::new(connect(host, port, self.tls.as_ref()).await?);
            let (connection, driver) =
                MultiplexedConnection::new_with_config(info.redis_settings(), stream, settings).await?;
            Ok(Connection::Single { connection, _replies: Arc::new(ReplyTask(tokio::spawn(driver))) })
        };
        let in_time = tokio::time::timeout(self.timeout, connection).await;
        in_time.unwrap_or_else(|_| Err(std::io::Error::from(std::io::ErrorKind::TimedOut).into()))
    }

    async fn query(&self, command: &Cmd) -> Result<Value, StoreError> {
        let mut connection = self.connection().await.map_err(|error| error_of(&error))?;
        let result = match &mut connection {
            Connection::Single { connection, .. } => connection.req_packed_command(command).await,
            Connection::Cluster(connection) => connection.req_packed_command(command).await,
        };
        match result.and_then(Value::extract_error) {
            Ok(value) => Ok(value),
            Err(error) => {
                // A primary that has become a replica rejects changes until the next connection.
                if error.is_io_error()
                    || error.is_connection_dropped()
                    || error.kind() == ErrorKind::Server(ServerErrorKind::ReadOnly)
                {
                    *self.connection.lock().await = None;
                }
                Err(error_of(&error))
            }
        }
    }

    /// Sends commands together, without waiting for responses in between; returns the results in their order.
    async fn query_all(&self, commands: Vec<Cmd>) -> Result<Vec<Value>, StoreError> {
        let mut values = Vec::with_capacity(commands.len());
        let mut waiting = tokio::task::JoinSet::new();
        for (index, command) in commands.into_iter().enumerate() {
            let mut connection = self.connection().await.map_err(|error| error_of(&error))?;
            waiting.spawn(async move {
                let result = match &mut connection {
                    Connection::Single { connection, .. } => connection.req_packed_command(&command).await,
                    Connection::Cluster(connection) => connection.req_packed_command(&command).await,
                };
                (index, result.and_then(Value::extract_error))
            });
        }
        while let Some(done) = waiting.join_next().await {
            let (index, result) = done.map_err(|error| StoreError::Wrong(error.to_string()))?;
            match result {
                Ok(value) => values.push((index, value)),
                Err(error) => {
                    if error.is_io_error() || error.is_connection_dropped() {
                        *self.connection.lock().await = None;
                    }
                    return Err(error_of(&error));
                }
            }
        }
        values.sort_unstable_by_key(|(index, _)| *index);
        Ok(values.into_iter().map(|(_, value)| value).collect())
    }

    async fn read(&self, key: &StoreKey) -> Result<Option<Entry>, StoreError> {
        let mut command = redis::cmd("EVAL");
        let value_bytes_max = key.value_bytes_max().min(self.abilities.value_bytes_max);
        command.arg(GET).arg(1).arg(name_of(key)).arg(value_bytes_max).arg(VERSION_BYTES_MAX);
        let Value::Array(found) = self.query(&command).await? else { return Err(wrong_reply()) };
        let version_of = |version: &[u8]| StoredVersion(String::from_utf8_lossy(version).into_owned());
        match found.as_slice() {
            [] => Ok(None),
            [Value::BulkString(version)] if version == FOREIGN.as_bytes() => {
                Ok(Some(Entry::flawed(ValueFlaw::Foreign, version_of(version))))
            }
            [Value::BulkString(version)] => Ok(Some(Entry::flawed(ValueFlaw::TooLarge, version_of(version)))),
            [Value::BulkString(version), Value::BulkString(value)] => {
                Ok(Some(Entry::new(value.clone(), version_of(version)).within(value_bytes_max)))
            }
            _ => Err(wrong_reply()),
        }
    }
}

fn wrong_reply() -> StoreError {
    StoreError::Wrong("a reply of another form than the script's".to_owned())
}

/// Name of a key. Braces would choose a slot of a cluster; keys have none.
fn name_of(key: &StoreKey) -> String {
    format!("{PREFIX}{key}")
}

/// Name of the set of a folder's keys.
fn index_of(folder: &str) -> String {
    format!("{PREFIX}{folder}/*")
}

fn error_of(error: &RedisError) -> StoreError {
    use ServerErrorKind::{BusyLoading, ClusterDown, MasterDown, NoPerm, ReadOnly, TryAgain};
    let (text, code) = (error.to_string(), error.code().unwrap_or_default());
    match error.kind() {
        _ if error.is_timeout() => StoreError::TimedOut,
        ErrorKind::AuthenticationFailed | ErrorKind::Server(NoPerm) => StoreError::Denied(text),
        _ if ["NOAUTH", "WRONGPASS"].contains(&code) => StoreError::Denied(text),
        ErrorKind::Server(BusyLoading | ClusterDown | MasterDown | ReadOnly | TryAgain) => StoreError::Busy(text),
        _ if ["OOM", "BUSY", "MISCONF"].contains(&code) => StoreError::Busy(text),
        ErrorKind::Io | ErrorKind::ClusterConnectionNotFound => StoreError::Unreachable(text),
        _ if error.is_io_error() || error.is_connection_refusal() || error.is_connection_dropped() => {
            StoreError::Unreachable(text)
        }
        _ => StoreError::Wrong(text),
    }
}

impl fmt::Debug for ValkeyStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Does not show the password.
        write!(f, "ValkeyStore({})", self.place)
    }
}

impl SharedStore for ValkeyStore {
    fn abilities(&self) -> StoreAbilities {
        self.abilities
    }

    fn get<'a>(&'a self, key: &'a StoreKey) -> Pending<'a, Option<Entry>> {
        Box::pin(self.read(key))
    }

    fn put<'a>(&'a self, key: &'a StoreKey, value: &'a [u8], expect: Expectation<'a>) -> Pending<'a, Put> {
        Box::pin(async move {
            let version: String = salt::<12>()?.iter().map(|byte| format!("{byte:02x}")).collect();
            let expected = match expect {
                Expectation::Any => "*",
                Expectation::Absent => "-",
                Expectation::Version(version) => &version.0,
            };
            if !matches!(expect, Expectation::Version(_)) {
                // First, so that no key is missing in lists.
                let mut index = redis::cmd("EVAL");
                index.arg(ADD).arg(1).arg(index_of(key.folder())).arg(key.as_str());
                self.query(&index).await?;
            }
            let mut command = redis::cmd("EVAL");
            command.arg(PUT).arg(1).arg(name_of(key)).arg(expected).arg(&version).arg(value).arg(VERSION_BYTES_MAX);
            match self.query(&command).await? {
                Value::Int(1) => Ok(Put::Done(StoredVersion(version))),
                Value::Int(0) => Ok(Put::Conflict),
                _ => Err(StoreError::Wrong("the script returned no number".to_owned())),
            }
        })
    }

    fn delete<'a>(&'a self, key: &'a StoreKey) -> Pending<'a, ()> {
        Box::pin(async move {
            self.query(redis::cmd("DEL").arg(name_of(key))).await?;
            match self.query(redis::cmd("SREM").arg(index_of(key.folder())).arg(key.as_str())).await {
                // The next put replaces a value of another type.
                Ok(_) | Err(StoreError::Wrong(_)) => Ok(()),
                Err(error) => Err(error),
            }
        })
    }

    fn list<'a>(&'a self, folder: &'a StoreKey) -> Pending<'a, Vec<(StoreKey, Entry)>> {
        Box::pin(async move {
            let mut command = redis::cmd("EVAL");
            command.arg(MEMBERS).arg(1).arg(index_of(folder.as_str())).arg(LIST_MAX).arg(KEY_BYTES_MAX);
            let found = self.query(&command).await?;
            if found == Value::Nil {
                return Err(StoreError::TooLarge);
            }
            let names: Vec<String> =
                redis::from_redis_value(found).map_err(|error| StoreError::Wrong(error.to_string()))?;
            let keys = names.into_iter().filter_map(|name| StoreKey::new(name).ok());
            let keys = keys.filter(|key| key.folder() == folder.as_str()).collect();
            get_all(self, keys).await
        })
    }

    fn charge<'a>(&'a self, charges: &'a [LimitCharge]) -> Pending<'a, Vec<u64>> {
        Box::pin(async move {
            let command = |charge: &LimitCharge| {
                let mut command = redis::cmd("EVAL");
                command.arg(CHARGE).arg(1).arg(format!("{PREFIX}limits/{:016x}", charge.key));
                command.arg(charge.cost_ns / 1_000).arg(charge.backlog_ns_max / 1_000);
                command
            };
            let backlog = |value| {
                let text: String =
                    redis::from_redis_value(value).map_err(|error| StoreError::Wrong(error.to_string()))?;
                let left: u64 = text.parse().map_err(|_| StoreError::Wrong(format!("{text} is not a number")))?;
                Ok(left.saturating_mul(1_000))
            };
            let values = self.query_all(charges.iter().map(command).collect()).await?;
            values.into_iter().map(backlog).collect()
        })
    }

    fn share_counts<'a>(&'a self, instance: &'a str, counts: &'a [InstanceCount]) -> Pending<'a, Vec<u32>> {
        Box::pin(async move {
            let command = |count: &InstanceCount| {
                let mut command = redis::cmd("EVAL");
                command.arg(COUNT).arg(1).arg(format!("{PREFIX}counts/{:016x}", count.key));
                command.arg(instance).arg(count.count).arg(COUNT_TIME.as_millis().to_string()).arg(LIST_MAX);
                command
            };
            let others = |value| match value {
                Value::Int(sum) => Ok(u32::try_from(sum).unwrap_or(u32::MAX)),
                _ => Err(StoreError::Wrong("the script returned no number".to_owned())),
            };
            let values = self.query_all(counts.iter().map(command).collect()).await?;
            values.into_iter().map(others).collect()
        })
    }

    fn get_blob<'a>(&'a self, key: &'a StoreKey, bytes_max: usize) -> Pending<'a, Option<Vec<u8>>> {
        Box::pin(async move {
            // One byte more, so that a larger value is found out before it is sent.
            let mut command = redis::cmd("GETRANGE");
            command.arg(name_of(key)).arg(0).arg(bytes_max);
            match self.query(&command).await? {
                Value::BulkString(value) if value.is_empty() => Ok(None),
                Value::BulkString(value) if value.len() > bytes_max => Err(StoreError::TooLarge),
                Value::BulkString(value) => Ok(Some(value)),
                _ => Err(StoreError::Wrong(format!("{key} is not a value of tailcoat"))),
            }
        })
    }

    fn put_blob<'a>(&'a self, key: &'a StoreKey, value: &'a [u8], time: Duration) -> Pending<'a, ()> {
        Box::pin(async move {
            let mut command = redis::cmd("SET");
            let milliseconds = u64::try_from(time.as_millis()).unwrap_or(u64::MAX).max(1);
            command.arg(name_of(key)).arg(value).arg("PX").arg(milliseconds);
            self.query(&command).await.map(drop)
        })
    }

    fn delete_blob<'a>(&'a self, key: &'a StoreKey) -> Pending<'a, ()> {
        Box::pin(async move { self.query(redis::cmd("DEL").arg(name_of(key))).await.map(drop) })
    }

    fn time(&self) -> Pending<'_, Option<EngineTime>> {
        Box::pin(async move {
            let found = self.query(&redis::cmd("TIME")).await?;
            let (seconds, microseconds): (u64, u64) =
                redis::from_redis_value(found).map_err(|error| StoreError::Wrong(error.to_string()))?;
            let unix_ms = seconds.saturating_mul(1_000).saturating_add(microseconds / 1_000);
            Ok(Some(EngineTime { unix_ms, accuracy_ms: 1 }))
        })
    }
}
